"""guarantee.html: one page to print, with a picture of the curve; it needs no network and no
script."""

import math
from collections.abc import Mapping
from html import escape

from equipoise.privacy.statement.document import Attack, Guarantee
from equipoise.privacy.statement.rounding import as_given, at_least, at_most

_STYLE = """
@page { size: A4; margin: 14mm 15mm }
body { font: 10pt/1.38 system-ui, "DejaVu Sans", Arial, sans-serif; color: #1a1a1a;
  max-width: 182mm; margin: 6mm auto; padding: 0 4mm }
h1 { font-size: 17pt; margin: 0 0 1mm } h2 { font-size: 11.5pt; margin: 4.5mm 0 1.2mm }
p, ul { margin: 0 0 1.6mm } ul { padding-left: 5mm }
.verdict { border-left: 1.6mm solid #1b6e3c; background: #eef6f0; padding: 2.4mm 4mm;
  margin: 2.5mm 0 }
.weak { border-color: #b46a00; background: #fdf4e3 }
.none { border-color: #b3261e; background: #fdeceb }
.verdict p { margin: 0 } .quote { font-size: 11pt }
.beside { display: flex; gap: 6mm; align-items: flex-start }
.beside > div { flex: 1; min-width: 0 }
table { border-collapse: collapse; width: 100%; font-size: 9pt }
td, th { border-bottom: 0.2mm solid #ccc; padding: 0.7mm 3mm 0.7mm 0; text-align: left;
  vertical-align: top }
td.number, th.number { text-align: right; padding-right: 0; white-space: nowrap }
th { font-weight: 600; white-space: nowrap } .small { font-size: 8.5pt; color: #444;
  margin-top: 1.5mm }
code { font: 8pt "DejaVu Sans Mono", monospace; overflow-wrap: anywhere }
h2 { break-after: avoid } tr, li, .beside { break-inside: avoid }
svg { width: 100%; height: auto; display: block }
@media print { body { margin: 0 auto; padding: 0 } .verdict { print-color-adjust: exact } }
@media (max-width: 600px) { .beside { display: block } }
"""
_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE, _RIGHT = 460, 396, 60, 92, 8, 14  # of the picture
_LINES = (  # colour, dashes, thickness, name
    ("#1f5fa8", "", "2.4", "found at most"),
    ("#c05a00", "2 3", "1.8", "what epsilon and delta alone would allow"),
    ("#777", "6 4", "1.4", "guessing"),
)
_LEAST = 1e-3  # the least share of false alarms that is drawn


def page_of(guarantee: Guarantee) -> str:
    """A whole HTML document."""
    title = "Privacy guarantee" if guarantee.private else "NOT a privacy guarantee"
    parts = [f"<h1>{title}</h1>", _what(guarantee), _verdict(guarantee)]
    parts += [_gain(guarantee.attack)] if guarantee.attack else []
    parts += [_situations(guarantee)] if guarantee.private else []
    parts += [_promised(guarantee), _section("How the settings were chosen", guarantee.chosen)]
    parts += [_worth(guarantee), _owner(guarantee), _assumed(guarantee), _identity(guarantee)]
    body = "\n".join(part for part in parts if part)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _what(guarantee: Guarantee) -> str:
    name = f"{guarantee.about.name}: a model" if guarantee.about.name else "A model"
    where = f", {len(guarantee.where.silos)} separate silos" if guarantee.where else ""
    return (
        f"<p>{escape(name)} with {guarantee.dimension:,} parameters, trained by "
        f"{escape(guarantee.algorithm)} on the records of {guarantee.clients} clients{where}, in "
        f"{guarantee.rounds} rounds.</p>"
    )


def _verdict(guarantee: Guarantee) -> str:
    kind = guarantee.strength if guarantee.strength in ("weak", "none") else ""
    rest = [notice for notice in guarantee.notices if notice not in guarantee.sentence]
    notices = "".join(f"<p><b>{escape(notice)}</b></p>" for notice in rest)
    return (
        f'<div class="verdict {kind}">{notices}<p class="quote">{escape(guarantee.sentence)}</p>'
        "</div>"
    )


def _gain(attack: Attack) -> str:
    head = "".join(
        f'<th class="number">{name}</th>'
        for name in ("false alarms", "found at most", "&epsilon;, &delta; alone")
    )
    cells = "".join(
        "<tr>" + "".join(f'<td class="number">{share}</td>' for share in row) + "</tr>"
        for row in attack.table()
    )
    bound = "It is exact for the worst case." if attack.exact else "It is an upper bound."
    asked = ""
    if attack.max_tpr is not None:
        asked = (
            f"<p>Asked for: at most {as_given(attack.max_tpr)} at {as_given(attack.fpr)} false "
            "alarms.</p>"
        )
    return (
        "<section><h2>What an attacker gains</h2><div class=beside>"
        f"<div>{picture(attack)}</div><div><p>{escape(attack.sentence)}</p>{asked}"
        f"<table><tr>{head}</tr>{cells}</table>"
        "<p class=small>The attacker sees all that the adversary of this guarantee sees, and "
        "knows all other data. The blue line is what can be found with so many false alarms, by "
        f"the best test there is. {bound} Guessing reaches the dashed line.</p>"
        "</div></div></section>"
    )


def picture(attack: Attack) -> str:
    """The curve as an SVG: cases found against false alarms, these on a logarithmic scale."""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BELOW - _ABOVE

    def at(alpha: float, found: float) -> tuple[float, float]:
        along = math.log(max(alpha, _LEAST) / _LEAST) / -math.log(_LEAST)
        return _LEFT + width * along, _ABOVE + height * (1 - found)

    def line(shares: list[float], colour: str, dashes: str, thick: str) -> str:
        drawn = [
            at(alpha, 1 - miss)
            for alpha, miss in zip(attack.alpha, shares, strict=True)
            if alpha >= _LEAST
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{thick}" '
            f'stroke-dasharray="{dashes}"/>'
        )

    grid = []
    for alpha, name in ((1e-3, "0.1 %"), (1e-2, "1 %"), (1e-1, "10 %"), (1.0, "100 %")):
        x, y = at(alpha, 0)
        grid.append(f'<path d="M{x:.1f} {y:.1f}V{_ABOVE}" stroke="#ddd"/>')
        grid.append(_text(x, y + 16, name, "middle" if alpha < 1 else "end"))
    for percents in range(0, 101, 20):
        x, y = at(_LEAST, percents / 100)
        grid.append(f'<path d="M{x:.1f} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        grid.append(_text(x - 6, y + 4, f"{percents} %", "end"))
    guessing = [1 - alpha for alpha in attack.alpha]
    x, y = at(attack.fpr, attack.tpr)
    middle, base = _LEFT + width / 2, _HEIGHT - 60
    drawn, keys = [], []
    for row, (shares, (colour, dashes, thick, name)) in enumerate(
        zip((attack.beta, attack.implied, guessing), _LINES, strict=True)
    ):
        top = _HEIGHT - 44 + 17 * row
        drawn.append(line(shares, colour, dashes, thick))
        keys.append(
            f'<path d="M{_LEFT + 10} {top}h26" stroke="{colour}" stroke-width="{thick}" '
            f'stroke-dasharray="{dashes}"/>' + _text(_LEFT + 42, top + 4, name)
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(attack.sentence)}" font-family="inherit" font-size="12">'
        + "".join([*grid, *reversed(drawn)])
        + f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#1f5fa8"/>'
        + "".join(keys)
        + _text(middle, base, "false alarms (logarithmic)", "middle")
        + f'<text transform="translate(13 {_ABOVE + height / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">cases found</text></svg>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{words}</text>'


def _situations(guarantee: Guarantee) -> str:
    if guarantee.attack is None:
        return ""
    return (
        "<section><h2>Two situations that are to look alike, and two that are not</h2><ul>"
        f"<li><b>{guarantee.attack.likeness()}:</b> {escape(guarantee.alike)}</li>"
        f"<li><b>May well be told apart:</b> {escape(guarantee.unlike)}</li></ul>"
        f"<p>{escape(guarantee.reach)}</p></section>"
    )


def _promised(guarantee: Guarantee) -> str:
    if guarantee.epsilon_nominal == "inf":
        return ""
    how = "exact" if guarantee.exact else "an upper bound"
    spent = f"{at_most(float(guarantee.epsilon))} ({how})"
    if not guarantee.exact and guarantee.epsilon_lower is not None:
        spent += f", at least {at_least(float(guarantee.epsilon_lower))}"
    mu = guarantee.mu
    rows = {
        "&epsilon;": f"{spent}, {guarantee.strength}" if guarantee.private else spent,
        "&delta;": escape(guarantee.delta_sentence),
        "&mu; of Gaussian DP": "not defined: secret samples" if mu is None else at_most(float(mu)),
        "protected": f"one {guarantee.unit} of {guarantee.protected} ({guarantee.neighbours})",
        "the adversary sees": escape(guarantee.sees),
        "colluding clients": "any number" if guarantee.colluding is None else guarantee.colluding,
        "where it ran": _marked(guarantee.ran),
        "released": escape(guarantee.mechanism)
        + f"; clip {float(guarantee.clip):g}; {guarantee.events[0].count} releases",
        "noise": f"{escape(guarantee.noise_source)}; rule {escape(guarantee.noise_rule)}",
    }
    if guarantee.several:
        rows["several records"] = "; ".join(
            f"{group.units} of one person: "
            + (
                "nothing is promised"
                if group.delta >= 1
                else f"&epsilon; = {at_most(float(group.epsilon), 3)} at "
                f"&delta; = {at_most(group.delta, 2)}"
            )
            for group in guarantee.several
        )
    promised = "What the run spends" if guarantee.attack else "What the run would spend, were the "
    promised += "" if guarantee.attack else "noise secret and nothing else shown"
    promised = "What is guaranteed" if guarantee.private else promised
    return f"<section><h2>{promised}</h2>{_rows(rows)}</section>"


def _worth(guarantee: Guarantee) -> str:
    text = escape(guarantee.utility.sentence)
    groups = guarantee.utility.groups
    if groups:
        names = list(next(iter(groups.values())))
        shown = [name for name in names if all(g[name] is not None for g in groups.values())][:6]
        head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in shown)
        rows = "".join(
            f"<tr><td>{escape(name)}</td>"
            + "".join(f"<td>{group[column]:.4g}</td>" for column in shown)
            + "</tr>"
            for name, group in groups.items()
        )
        text += (
            f"<table><tr><th>{escape(guarantee.utility.grouped_by)}</th>{head}</tr>{rows}</table>"
        )
    return f"<section><h2>What the model is worth</h2><p>{text}</p></section>"


def _owner(guarantee: Guarantee) -> str:
    about = guarantee.about
    rows = {
        name: escape(getattr(about, name)) or "&nbsp;"
        for name in ("purpose", "controller", "contact", "retention")
    }
    return f"<section><h2>Filled in by the owner</h2>{_rows(rows)}</section>"


def _assumed(guarantee: Guarantee) -> str:
    if not guarantee.assumptions:
        return ""
    items = "".join(f"<li>{escape(item)}</li>" for item in guarantee.assumptions)
    return f"<section><h2>What is not covered</h2><ul class=small>{items}</ul></section>"


def _identity(guarantee: Guarantee) -> str:
    parts = [f"Equipoise {escape(guarantee.version)}"]
    if guarantee.origin:
        parts.append(
            f"run <code>{escape(guarantee.origin.run)}</code>, {escape(guarantee.origin.when)}"
        )
    if guarantee.where:
        parts.append(f"agreement <code>{escape(guarantee.where.agreement)}</code>")
    if guarantee.model_sha256:
        parts.append(f"model.safetensors SHA-256 <code>{guarantee.model_sha256}</code>")
    parts.append("all numbers: guarantee.json")
    return f"<p class=small>{'; '.join(parts)}.</p>"


def _section(title: str, text: str) -> str:
    return f"<section><h2>{title}</h2><p>{_marked(text)}</p></section>"


def _marked(text: str) -> str:
    parts = escape(text).split("`")  # every other part is code
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _rows(rows: Mapping[str, object]) -> str:
    lines = (f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(lines)}</table>"

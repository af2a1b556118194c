"""Flower apps: pyproject.toml, and the app's own code as far as it can be read (flwr 1.8 to 1.41).

What flwr does, read from its source (1.41):

LocalDpMod (clientapp/mod/localdp_mod.py) clips the update of all arrays together to `clipping_norm`
and adds noise of standard deviation sensitivity sqrt(2 ln(1.25/delta)) / epsilon to every message:
the classic formula, for one message. `sensitivity` is what the user says; nothing compares it with
the clip, and nothing adds messages up.

DifferentialPrivacy...Clipping (serverapp/strategy/dp_*.py) adds noise of standard deviation
noise_multiplier clipping_norm / num_sampled_clients to the average of a round, at the server. The
average is weighted by the numbers of examples that clients report.

The adaptive wrappers (Andrew et al., "Differentially private learning with adaptive clipping",
2021) noise the count of clipped updates by clipped_count_stddev = s_b, and the average by z =
(noise_multiplier^-2 - (2 s_b)^-2)^(-1/2) times the clip: that of the *next* round, since it is
adapted before the noise is added, while updates were clipped to the old one.
"""

import ast
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import DataError, require
from equipoise.privacy.composed import Gaussian, spend
from equipoise.privacy.foreign.flower_code import fewer, in_mods, is_used, mods, rounds_of, seeded
from equipoise.privacy.foreign.python_code import Call, Code, Unknown
from equipoise.privacy.foreign.reading import (
    Claimed,
    Given,
    Reading,
    is_number,
    parse_toml,
)
from equipoise.privacy.promise import Neighbours

NEWEST = (1, 41)  # whose source was read
MOST_FILES = 200
RELATIONS: tuple[Neighbours, Neighbours] = ("replace-one", "zero-out")
FIXED = ("strategy", "noise_multiplier", "clipping_norm", "num_sampled_clients", "accountant")
ADAPTIVE = (
    *("strategy", "noise_multiplier", "num_sampled_clients", "initial_clipping_norm"),
    *("target_clipped_quantile", "clip_norm_lr", "clipped_count_stddev"),
)
WRAPPER = "DifferentialPrivacy"
ARGUMENTS = {
    "LocalDpMod": ("clipping_norm", "sensitivity", "epsilon", "delta"),
    f"{WRAPPER}ServerSideFixedClipping": FIXED,
    f"{WRAPPER}ClientSideFixedClipping": FIXED,
    f"{WRAPPER}ServerSideAdaptiveClipping": ADAPTIVE,
    f"{WRAPPER}ClientSideAdaptiveClipping": ADAPTIVE,
}
DEFAULTS = {
    "initial_clipping_norm": 0.1,
    "target_clipped_quantile": 0.5,
    "clip_norm_lr": 0.2,
    "clipped_count_stddev": None,
    "accountant": None,
}
MODS = {FIXED: "fixedclipping_mod", ADAPTIVE: "adaptiveclipping_mod"}
CHANCE = 1e-3  # of delta: for clipped fractions that noise makes larger than all but this share
NAN = (
    "one value of an update that is not a number switches its clip off, and then nothing bounds "
    "what the others tell: flwr clips by min(1, C / norm), which is 1 if the norm is not a number"
)
GENERATOR = (
    "noise is that of NumPy's global generator in floating point, which was not made for secrets, "
    "and its lowest bits tell of the data (Mironov 2012)"
)


def fits(document: Any) -> bool:
    return isinstance(document, dict) and "flwr" in _table(document, "tool")


def read(document: Any, path: Path, given: Given) -> Reading:
    """An app by its pyproject.toml."""
    app = _table(_table(document, "tool"), "flwr", "app")
    config = _flat(_table(app, "config"))
    for key in config:
        if (value := given.text(key)) is not None:
            config[key] = parse_toml(f"value = {value}", Path(f"--given {key}"))["value"]
    codes = _codes(_table(app, "components"), path, config)
    reading = _app(codes, path, given)
    return _noting(reading, _versions(document))


def read_code(path: Path, given: Given) -> Reading:
    """A single Python file: what it takes from a configuration must be given."""
    return _app([Code(path, "flwr", {})], path, given)


def _app(codes: list[Code], path: Path, given: Given) -> Reading:
    given.text("rounds")  # a fact about any app
    calls = [call for code in codes for call in code.calls(ARGUMENTS)]
    changed = [name for code in codes for name in code.extended(ARGUMENTS)]
    if changed:
        say = f"{', '.join(changed)} extends a class of Flower: what it changes cannot be read"
        return Reading("Flower", "client", asks=(f"{say}; give its numbers with --phase",))
    if not calls:
        return _without(codes, path)
    wanted = given.text("mechanism") if len(calls) > 1 else None
    chosen = [call for call in calls if wanted in (None, call.name, call.where)]
    if len(chosen) != 1:
        made = "; ".join(f"{call.name} ({call.where})" for call in calls)
        ask = f"several mechanisms are made: {made}; give --given mechanism='FILE, line N' of one"
        return Reading("Flower", "client", asks=(ask,))
    call = chosen[0]
    asks: list[str] = []
    values = _arguments(call, given, asks)
    rounds = rounds_of(codes, given, asks)
    read = _local if call.name == "LocalDpMod" else _central
    return _noting(read(call, values, rounds, codes, given, asks), seeded(codes))


def _without(codes: list[Code], path: Path) -> Reading:
    """An app in which no mechanism of flwr is made."""
    names = ", ".join(code.path.name for code in codes) or path.name
    say = f"neither LocalDpMod nor a {WRAPPER}... wrapper of flwr is made in {names}"
    known = sorted({name for code in codes for name in code.mentioned(ARGUMENTS)})
    if known:
        ask = f"{', '.join(known)} of flwr is used, and no call of it can be read in {names}"
        return Reading("Flower", "client", asks=(f"{ask}; give its numbers with --phase",))
    if any(code.uses("opacus") for code in codes):
        ask = f"{say}, but Opacus is imported: give the state of its accountant as JSON instead"
        return Reading("Flower", "client", asks=(ask,))
    return Reading("Flower", "client", void=(f"{say}: noise of its own would not be read here",))


def _local(
    call: Call,
    values: Mapping[str, Any],
    rounds: int | None,
    codes: list[Code],
    given: Given,
    asks: list[str],
) -> Reading:
    clip, sensitivity, epsilon, delta = (values[name] for name in ARGUMENTS[call.name])
    if not is_used(call, codes) and given.text("applied") != "yes":
        asks.append(
            f"no list of mods with the LocalDpMod of {call.where} can be read for every training "
            "function: give --given applied=yes if it is in the mods of all of them"
        )
    beside = (
        "metrics of every reply, at least the number of examples, leave as they are, and so do "
        "replies to evaluation",
        NAN,
        GENERATOR,
        "every client may be asked in every round: what one client that was asked in all of them "
        "spends",
    )
    if None in (clip, sensitivity, epsilon, delta):
        return Reading("Flower", "client", beside=beside, asks=tuple(asks))
    require(
        clip > 0 and sensitivity >= 0 and epsilon > 0 and 0 < delta < 1,
        f"LocalDpMod ({call.where}) has clipping_norm={clip:g}, sensitivity={sensitivity:g}, "
        f"epsilon={epsilon:g}, delta={delta:g}: positive numbers, and delta < 1, are needed",
    )
    claims = (
        Claimed(f"epsilon = {epsilon:g} at delta = {delta:g} for one message ({call.where})"),
    )
    if sensitivity == 0:
        void = ("sensitivity=0: no noise is added",)
        return Reading("Flower", "client", claims, void=void, beside=beside, delta=delta)
    noise = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon / clip
    single = {way: spend([Gaussian(1, noise)], way, delta) for way in RELATIONS}
    spent = ", ".join(f"{spent.epsilon:.3g} under {way}" for way, spent in single.items())
    notes = [f"one message spends {spent}"]
    if not math.isclose(sensitivity, 2 * clip):
        notes.append(
            f"sensitivity={sensitivity:g} is the user's word: clipped to {clip:g}, two updates are "
            f"up to {2 * clip:g} apart (replace-one), an update and none {clip:g} (zero-out)"
        )
    parts = {way: (Gaussian(rounds, noise),) for way in RELATIONS} if rounds and not asks else {}
    return Reading(
        "Flower", "client", claims, parts, (), (*notes, *beside), tuple(asks), delta=delta
    )


def _central(
    call: Call,
    values: Mapping[str, Any],
    rounds: int | None,
    codes: list[Code],
    given: Given,
    asks: list[str],
) -> Reading:
    multiplier, clients = values["noise_multiplier"], values["num_sampled_clients"]
    beside = [
        "the server sees every update without noise, and must be trusted: this is against whoever "
        "sees the models",
        "metrics, and the server's own evaluation, leave as they are",
        "that the server draws clients at random is not counted: whether the draw is secret "
        "cannot be read",
        NAN,
        GENERATOR,
    ]
    void = _unclipped(call, codes, given, asks)
    fixed = ARGUMENTS[call.name] is FIXED
    accounted = fixed and values["accountant"] is not None
    share = _share(clients, accounted, given, asks)
    if None in (multiplier, clients):
        return Reading("Flower", "client", (), {}, void, tuple(beside), tuple(asks))
    require(
        (multiplier == 0 or multiplier > 1e-50) and clients >= 1 and float(clients).is_integer(),
        f"{call.name} ({call.where}) has noise_multiplier={multiplier:g}, "
        f"num_sampled_clients={clients:g}: a number >= 0 and a whole number >= 1 are needed",
    )
    for name in ("clipping_norm", "initial_clipping_norm", "clip_norm_lr"):
        require(
            not is_number(values.get(name)) or values[name] > 0,
            f"{call.name} ({call.where}) has {name}={values.get(name)}: flwr refuses what is not "
            "above 0",
        )
    quantile = values.get("target_clipped_quantile")
    require(
        quantile is None or not is_number(quantile) or 0 <= quantile <= 1,
        f"{call.name} ({call.where}) has target_clipped_quantile={quantile}, which is not in "
        "[0, 1]: flwr refuses it",
    )
    claims = [Claimed(f"noise multiplier {multiplier:g} for each round ({call.where})")]
    if accounted:
        claims.append(
            Claimed(
                "an accountant of flwr's own, add-or-remove-one; but where one client is missing "
                "from a round of fixed size another takes its place, which is replace-one"
            )
        )
    beside += fewer(codes, clients)
    if multiplier == 0:
        void = (*void, "noise_multiplier=0: no noise is added")
    parts, chance = {}, CHANCE * given.delta
    if rounds and share and not asks and not void:
        if not fixed:
            parts = _adaptive(values, rounds, share, chance, beside)
        else:
            noise = multiplier / (clients * share)
            parts = {way: (Gaussian(rounds, noise),) for way in RELATIONS}
    return Reading(
        "Flower",
        "client",
        tuple(claims),
        parts,
        void,
        tuple(beside),
        tuple(asks),
        chance=chance if parts and not fixed else 0.0,
    )


def _adaptive(
    values: Mapping[str, Any], rounds: int, share: float, chance: float, beside: list[str]
) -> dict[Neighbours, tuple[Gaussian, ...]]:
    """The average, with the noise of a clip that was adapted first, and the count of clipped
    updates, which one client moves by 1 under either relation.

    The clip falls by e^(-rate (f - target)), f the noised share of clipped updates: at most 1 + t
    in all rounds but for a chance of `rounds` Phi(-t m / s_b). The event is one of what is
    released, so that it costs delta that chance and no more.
    """
    multiplier, clients = values["noise_multiplier"], values["num_sampled_clients"]
    counted, rate = values["clipped_count_stddev"], values["clip_norm_lr"]
    if any(isinstance(value, Unknown) for value in values.values()):
        return {}
    counted = clients / 20 if counted is None else counted
    require(
        multiplier < 2 * counted,
        f"noise_multiplier={multiplier:g} is not below 2 clipped_count_stddev={2 * counted:g}: "
        "flwr refuses to start",
    )
    z = (multiplier**-2 - (2 * counted) ** -2) ** -0.5
    from scipy.special import ndtri  # not for --help

    most = 1 - float(ndtri(chance / rounds)) * counted / clients
    fallen = min(1.0, math.exp(-rate * (most - values["target_clipped_quantile"])))
    beside.append(
        f"the noise is that of the next round's clip, down to {fallen:.3g} of the one that updates "
        "were clipped to, and is counted as that: flwr adapts the clip before it adds the noise"
    )
    noise = z * fallen / (clients * share)
    return {
        way: (Gaussian(rounds, noise), Gaussian(rounds, counted * apart))
        for way, apart in zip(RELATIONS, (2.0, 1.0), strict=True)
    }


def _share(clients: Any, accounted: bool, given: Given, asks: list[str]) -> float | None:
    """The largest weight of one client in an average."""
    if accounted and is_number(clients):
        return 1 / float(clients)  # flwr stops if weights differ, or replies are missing
    share = given.number("largest_share")
    if share is None:
        asks.append(
            "how much one reply weighs cannot be read: averages go by the clients' own numbers of "
            "examples; give --given largest_share=0.1, the largest weight that any client may have "
            "in a round (1/num_sampled_clients where all replies weigh the same and none is "
            "missing)"
        )
    require(share is None or 0 < share <= 1, f"given=largest_share={share} is not in (0, 1]")
    return share


def _unclipped(call: Call, codes: list[Code], given: Given, asks: list[str]) -> tuple[str, ...]:
    """Where clipping is the clients' affair: why they do not clip, if they do not."""
    if "ClientSide" not in call.name:
        return ()
    mod = MODS[ARGUMENTS[call.name]]
    if in_mods(codes, lambda code, item: code.name_of(item) == mod):
        return ()
    somewhere = any(code.name_of(i) == mod for code in codes for k in mods(code) for i in k.elts)
    if given.text("clipping") == "yes":
        return ()
    made = [c for code in codes for c in code.calls(frozenset({"ClientApp"}))]
    written = [k for c in made for k in c.node.keywords if k.arg in ("mods", None)]
    if made and not somewhere and all(isinstance(k.value, ast.List) for k in written):
        return (
            f"{call.name} leaves clipping to the clients, and no list of mods in their app has "
            f"{mod}: updates are not clipped, and no noise is enough",
        )
    asks.append(
        f"whether clients clip cannot be read: give --given clipping=yes if their mods have {mod}"
    )
    return ()


def _arguments(call: Call, given: Given, asks: list[str]) -> dict[str, Any]:
    """Every argument by its name; None, with a question, where it cannot be read."""
    names = ARGUMENTS[call.name]
    written: dict[str, ast.expr] = dict(zip(names, call.node.args, strict=False))
    hidden = any(isinstance(argument, ast.Starred) for argument in call.node.args)
    for keyword in call.node.keywords:
        if keyword.arg is None:
            hidden = True
        else:
            require(
                keyword.arg in names,
                f"{call.name} ({call.where}) has {keyword.arg}, which is not known of it here",
            )
            written[keyword.arg] = keyword.value
    values: dict[str, Any] = {}
    for name in names:
        if name == "strategy":
            continue
        if name == "accountant":
            values[name] = written.get(name)
            none = isinstance(values[name], ast.Constant) and values[name].value is None
            values[name] = None if none else values[name]
            continue
        if name not in written and name in DEFAULTS and not hidden:
            values[name] = DEFAULTS[name]
            continue
        value = call.code.value(written[name]) if name in written else Unknown("not written")
        if is_number(value) or (value is None and DEFAULTS.get(name, 0) is None):
            values[name] = value
            continue
        values[name] = given.number(name)
        if values[name] is None:
            shown = value.written if isinstance(value, Unknown) else repr(value)
            asks.append(
                f"{name} of {call.name} cannot be read from {call.where} ({shown}): give --given "
                f"{name}=NUMBER"
            )
    return values


def _codes(components: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> list[Code]:
    """The Python files beside those that the app names. Names may not lead elsewhere."""
    folders: list[Path] = []
    for name in ("serverapp", "clientapp"):
        module = str(components.get(name, "")).partition(":")[0]
        if not module:
            continue
        require(
            bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module)),
            f"{path}: {name}={module!r} is not the name of a module",
        )
        file = path.parent.joinpath(*module.split(".")).with_suffix(".py")
        if not file.is_file():
            raise DataError(f"{path} names {name}={module}, and there is no file {file}")
        if file.parent not in folders:
            folders.append(file.parent)
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    require(len(files) <= MOST_FILES, f"{path}: more than {MOST_FILES} Python files in one folder")
    return [Code(file, "flwr", config) for file in files]


def _versions(document: Mapping[str, Any]) -> Reading:
    """What is to be said of the version that the app asks for."""
    project = document.get("project")
    wanted = project.get("dependencies", []) if isinstance(project, dict) else []
    for line in wanted if isinstance(wanted, list) else []:
        match = re.match(r"flwr(?:-nightly)?\b[^0-9]*(\d+)\.(\d+)", str(line))
        if match and (int(match[1]), int(match[2])) > NEWEST:
            newest = ".".join(map(str, NEWEST))
            ask = f"the app needs {line}, and what flwr does is known here up to {newest}"
            return Reading("Flower", "client", asks=(f"{ask}; give its numbers with --phase",))
    return Reading("Flower", "client")


def _noting(reading: Reading, more: Reading) -> Reading:
    """With what else there is to say; nothing is spent exactly where something is asked."""
    return Reading(
        reading.engine,
        reading.unit,
        reading.claims,
        {} if more.asks else reading.parts,
        (*reading.void, *more.void),
        (*reading.beside, *more.beside),
        (*reading.asks, *more.asks),
        reading.delta,
        reading.chance,
    )


def _table(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    inner: Any = document
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) else {}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """As flwr names them: those of inner tables with a dot."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat

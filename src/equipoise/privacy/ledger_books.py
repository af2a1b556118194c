"""What the rows of a ledger's chain mean: caps, runs, and what of them is admitted.

`Books` knows nothing of files. It reads row after row, and says before a row is written whether it
may be.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import astuple, dataclass, field
from fractions import Fraction
from typing import Any

from equipoise.errors import InvalidValue, require
from equipoise.privacy.ledger_costs import (
    KEPT,
    NOTHING_KEPT,
    PROTECTED_BY,
    Cap,
    Cost,
    Row,
    kept_for,
)
from equipoise.privacy.promise import Unit

Caps = Mapping[Unit, Cap]


@dataclass
class Charged:
    """A run that was admitted.

    row       what it is charged: all of it while it is open, what it released afterwards
    released  rounds
    answers   what is kept of each round, until the run is closed
    """

    name: str
    cost: Cost
    row: Row
    about: dict[str, Any]
    when: str
    released: int = 0
    open: bool = True
    answers: dict[int, "Kept"] = field(default_factory=dict)

    @property
    def newest(self) -> "Kept | None":
        """Of its answers; None where there is none, or none any more."""
        return self.answers[max(self.answers)] if self.answers else None

    def as_json(self) -> dict[str, Any]:
        """For a program; mu2 and delta0 are what it is charged now."""
        return {
            "run": self.name,
            "when": self.when,
            "unit": self.cost.unit,
            "about": self.about,
            "released": self.released,
            "rounds": self.cost.rounds,
            "open": self.open,
            **self.row._asdict(),
        }


@dataclass(frozen=True)
class Kept:
    """What a row of the chain says of a round: the digests of question, answer, and state after
    it."""

    number: int
    question: bytes
    answer: bytes
    state: bytes


@dataclass(frozen=True)
class Standing:
    """A cap, and how far it is used up.

    kept      the share of its delta that is kept for rows' delta0
    mu2       spent by closed runs, or reserved for open ones; delta0 likewise
    changes   how often another cap was here
    uncounted how many runs hide less than its unit, so that it bounds nothing of what they tell
    """

    unit: Unit
    cap: Cap
    kept: Fraction
    mu2: Fraction
    delta0: Fraction
    changes: int
    uncounted: int = 0

    @property
    def room(self) -> Fraction:
        """What is left of mu^2."""
        return max(Fraction(0), self.cap.room(self.kept) - self.mu2)

    def counts(self, run: "Charged") -> bool:
        """Whether the run is charged to it."""
        return run.cost.unit in PROTECTED_BY[self.unit]

    def epsilon(self, mu2: Fraction) -> float:
        return self.cap.epsilon_of(mu2, self.kept)

    @property
    def spent(self) -> float:
        """As an epsilon at the cap's delta; open runs whole."""
        return self.epsilon(self.mu2)

    @property
    def fits(self) -> float:
        """The epsilon, at the cap's delta, of the largest run without sampling that still fits."""
        return min(self.epsilon(self.room), self.cap.epsilon)

    def as_json(self) -> dict[str, Any]:
        """Numbers for a program; mu2 and delta0 are spent or reserved, room is what is left of
        mu2."""
        return {
            "unit": self.unit,
            "cap_epsilon": self.cap.epsilon,
            "cap_delta": self.cap.delta,
            "changes": self.changes,
            "uncounted": self.uncounted,
            "mu2": float(self.mu2),
            "delta0": float(self.delta0),
            "room": float(self.room),
            "epsilon": self.spent,
            "fits": self.fits,
        }

    def __str__(self) -> str:
        return (
            f"unit {self.unit}: {self.spent:.4g} of {self.cap} spent or reserved; a run of at most "
            f"{self.fits:.4g} still fits" + self._uncounted
        )

    @property
    def _uncounted(self) -> str:
        if not self.uncounted:
            return ""
        runs = "1 run that hides" if self.uncounted == 1 else f"{self.uncounted} runs that hide"
        return f"; not counted: {runs} less than a {self.unit}, and may tell anything of it"


class Books:
    """All that a chain says, row after row."""

    def __init__(self) -> None:
        self.name = ""
        self.runs: dict[str, Charged] = {}
        self._caps: dict[Unit, tuple[Cap, Fraction, int]] = {}

    def read(self, number: int, kind: str, body: dict[str, Any]) -> None:
        """A row that is in the chain."""
        match kind:
            case "ledger":
                self.name = body["name"]
            case "cap":
                self._set(body["unit"], Cap(body["epsilon"], body["delta"]))
            case "run":
                self._read_run(body)
            case "round":
                run = self.runs[body["run"]]
                run.released = body["round"]
                if "answer" in body:
                    digests = [bytes.fromhex(body[n]) for n in ("question", "answer", "state")]
                    run.answers[run.released] = Kept(number, *digests)
            case "end":
                run = self.runs[body["run"]]
                run.open, run.row = False, Row(*body["row"])
                run.answers.clear()
            case _:
                raise InvalidValue(f"a row of kind {kind} is not known: update Equipoise")

    def _read_run(self, body: dict[str, Any]) -> None:
        cost, row = Cost.read(body["cost"]), Row(*body["row"])
        for unit, cap in body["caps"].items():
            limit = Cap(*cap)
            covered = cost.unit in PROTECTED_BY[unit]
            self._caps[unit] = limit, kept_for(row, limit) if covered else KEPT, 0
        self.runs[body["run"]] = Charged(body["run"], cost, row, body["about"], body["when"])

    def _set(self, unit: Unit, cap: Cap) -> None:
        """A cap that is changed keeps its share of delta, unless it has so much more room that it
        would admit all that was admitted before with the usual share too."""
        before = self._caps.get(unit)
        if before is None:
            self._caps[unit] = cap, KEPT, 0
            return
        old, kept, changes = before
        if cap.room(KEPT) >= old.room(NOTHING_KEPT) and cap.delta >= old.delta:
            kept = KEPT
        self._caps[unit] = cap, kept, changes + 1

    @property
    def caps(self) -> dict[Unit, Cap]:
        return {unit: cap for unit, (cap, _, _) in self._caps.items()}

    def standing(self, unit: Unit) -> Standing:
        """A cap against the runs that are charged to it: all that protect its unit."""
        cap, kept, changes = self._caps[unit]
        rows = [run.row for run in self.runs.values() if run.cost.unit in PROTECTED_BY[unit]]
        uncounted = len(self.runs) - len(rows)
        mu2 = sum((Fraction(row.mu2) for row in rows), Fraction(0))
        delta0 = sum((Fraction(row.delta0) for row in rows), Fraction(0))
        return Standing(unit, cap, kept, mu2, delta0, changes, uncounted)

    def standings(self) -> list[Standing]:
        return [self.standing(unit) for unit in self._caps]

    # ---------------------------------------------------------------------------------------------
    # what may be written

    def admission(self, run: str, cost: Cost, caps: Caps) -> dict[str, Any] | None:
        """What the row of a new run says; None if it is there already. Refused is what does not fit
        under every cap whose unit the run protects."""
        if run in self.runs:
            require(
                self.runs[run].cost == cost,
                f"run={run} was admitted with another cost: give this one a name of its own",
            )
            return None
        held = self._held(caps)
        charged = {unit: cap for unit, cap in held.items() if cost.unit in PROTECTED_BY[unit]}
        if not charged:
            raise InvalidValue(
                f"run={run} of unit {cost.unit} bounds nothing for unit {' or '.join(held)}, which "
                "the ledger's cap is for: take a run of that unit, or give the ledger a cap for "
                f"unit {cost.unit} too, by `equipoise ledger cap`"
            )
        row = cost.row(min(cap.delta for cap in charged.values()))
        for unit, cap in charged.items():
            if unit in self._caps:
                standing = self.standing(unit)
            else:
                standing = Standing(unit, cap, kept_for(row, cap), Fraction(0), Fraction(0), 0)
            _check_fits(run, row, standing)
        brought = {} if self._caps else {unit: astuple(cap) for unit, cap in caps.items()}
        return {"run": run, "cost": cost.as_json(), "row": row, "caps": brought}

    def after(self, run: str, cost: Cost, caps: Caps) -> list[Standing]:
        """How the caps would stand if the run were admitted; refused as it would be."""
        body, then = self.admission(run, cost, caps), deepcopy(self)
        if body:
            then.read(-1, "run", {**body, "about": {}, "when": ""})
        return then.standings()

    def _held(self, caps: Caps) -> Caps:
        """The caps that hold: the ledger's, or those that its first run brings."""
        if not self._caps:
            require(
                len(caps) > 0,
                "the ledger has no cap yet: its first run brings one, give cap_epsilon and "
                "cap_delta",
            )
            return caps
        for unit, cap in caps.items():
            has = self._caps.get(unit)
            if has is None or has[0] != cap:
                here = f"a cap of {has[0]} for unit {unit}" if has else f"no cap for unit {unit}"
                raise InvalidValue(
                    f"cap of {cap} for unit {unit}, where the ledger has {here}: leave it out, or "
                    "change the ledger's by `equipoise ledger cap`"
                )
        return self.caps

    def check_round(self, run: str, round: int) -> None:
        """Refuse a release that is not the next of a run that was admitted and is open."""
        charged = self.run(run)
        require(charged.open, f"run={run} is closed: it releases nothing more")
        require(
            round <= charged.cost.rounds,
            f"round={round} of run={run}, which was admitted for {charged.cost.rounds} rounds: no "
            "more are released",
        )
        require(
            round > charged.released,
            f"round={round} of run={run} was released already: no round is released twice",
        )

    def run(self, run: str) -> Charged:
        require(run in self.runs, f"run={run} is not in the ledger: `equipoise ledger show` lists")
        return self.runs[run]


def _check_fits(run: str, row: Row, standing: Standing) -> None:
    cap, kept = standing.cap, standing.kept
    mu2 = Fraction(row.mu2)
    if mu2 > standing.room:
        raise InvalidValue(
            f"run={run} costs epsilon = {standing.epsilon(mu2):.4g} by itself (mu^2 = "
            f"{row.mu2:.4g}); of the ledger's cap for unit {standing.unit}, {cap}, "
            f"{standing.spent:.4g} is spent or reserved, and a run of at most epsilon = "
            f"{standing.fits:.4g} would fit: ask for less, close runs that ended early, or raise "
            "the cap by `equipoise ledger cap`"
        )
    left = kept * Fraction(cap.delta) - standing.delta0
    if Fraction(row.delta0) > left:
        raise InvalidValue(
            f"run={run} leaves delta0 = {row.delta0:.3g} to chance, and {float(left):.3g} is left "
            f"of what the ledger's cap for unit {standing.unit}, {cap}, keeps for that: run it "
            "with sampling_rate=1, or raise the cap by `equipoise ledger cap`"
        )

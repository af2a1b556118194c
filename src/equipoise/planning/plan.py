"""Plan: a planner's answer for one budget, a frozen value that reads and writes JSON.

On disk it carries "format": 1. What version 0.1 wrote (format 0) is read too.
"""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field, model_validator

from equipoise.errors import InvalidValue, require
from equipoise.fields import Real
from equipoise.planning.question import Question, Verdict
from equipoise.privacy.promise import Promise, Unit
from equipoise.result import PublicOnly, check_format
from equipoise.settings import Returns, Settings

__all__ = [
    "Changes",
    "NoiseLevel",
    "Option",
    "Plan",
    "Prediction",
    "Question",
    "Verdict",
    "Way",
]

FORMAT = 1


class Prediction(BaseModel):
    """What is expected of a model: means over worlds and seeds, and where 90 % of these lie.

    excess_loss        f(x) - f(x*), the loss above the best possible, of the clients
    test_error         on test records (as many as the task has), where worlds are made of real
                       records; so are test_loss and auroc (of two classes)
    squared_distance   |x - x*|^2, where only constants are known
    excess_loss_se, test_error_se, clipped   of plans that older versions made
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    excess_loss: Real | None = None
    excess_loss_se: Real | None = None
    test_error: Real | None = None
    test_error_se: Real | None = None
    clipped: Real | None = None
    squared_distance: Real | None = None
    excess_loss_low: Real | None = None
    excess_loss_high: Real | None = None
    test_error_low: Real | None = None
    test_error_high: Real | None = None
    test_loss: Real | None = None
    test_loss_low: Real | None = None
    test_loss_high: Real | None = None
    auroc: Real | None = None
    auroc_low: Real | None = None
    auroc_high: Real | None = None

    def interval(self, name: str) -> tuple[float, float] | None:
        """Where 90 % of the values lie; of plans that older versions made, two standard errors
        either side. None where nothing is predicted."""
        low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
        if low is not None and high is not None:
            return low, high
        mean, error = getattr(self, name), getattr(self, f"{name}_se", None)
        return None if mean is None else (mean - 2 * (error or 0.0), mean + 2 * (error or 0.0))


class Way(BaseModel):
    """One way to go, and what it is expected to be worth.

    free      whether it costs no privacy budget
    predicted for a client in the mean
    smallest  for the smallest client, where clients' models differ
    measured  its error on the task's own test records, where that is known without training
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    name: str
    free: bool
    predicted: Prediction
    smallest: Prediction | None = None
    measured: Real | None = None


class Option(BaseModel):
    """One proposal: where it comes from, its settings (un-rounded if a formula made it), and what
    it is expected to reach."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    origin: str
    algorithm: str | None = None
    options: dict[str, float | str] = {}
    eta: Real
    p: Real
    local_steps: int | Real
    iterations: int | Real
    rounds: int | Real
    clip: Real | None = None
    gamma: Real | None = None
    noise_in: str | None = None
    sigma: Real | None = None
    client_sigma: Real | None = None
    lattice: Real | None = None
    bound: Real | None = None
    distance: Real | None = None
    v: Real | None = None
    warm_start: bool = False
    returns: Returns = "last"
    sampling_rate: Real | None = None
    l2: Real | None = None
    predicted: Prediction = Prediction()


class NoiseLevel(BaseModel):
    """The exact noise for one number of local steps, where nothing else can be said."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    local_steps: int
    rounds: int
    sigma: Real
    client_sigma: Real


class Changes(BaseModel):
    """About the least epsilon, clients or records with which training would be worth while."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    epsilon: float | None = None
    clients: int | None = None
    records: int | None = None


class Plan(BaseModel):
    """The answer for one budget. `train` reads `settings`; everything else says why.

    format         of the document
    verdict        whether to train together; `reason` says why
    reason         the verdict's, in a sentence
    promise        the budget, and what it hides from whom
    units          how many clients, or records, the promise protects, as far as that is known
    nu2            mean of the squared length of the averaged noise, in clips, if there were one
                   release; with K releases each has K times that. None where the noise is no
                   multiple of the clip
    chosen         the proposal that `settings` follows; None where there is none to train with
    options        all proposals, the chosen one among them
    untrained      what the initial model reaches
    public_only    what public records alone teach, where there are some
    noise          the exact noise for numbers of local steps, where nothing else can be said
    changes        with what training would be worth while, where it is not
    ways           what can be done, side by side
    judged_by      what ways are compared by: error, loss or auroc
    notes          what was guessed, where the search was cut short, and what else a reader should
                   know
    public         what was taken as public, in sentences
    task_notices   what must be known of the task before anything else
    settings       what `train` needs; None of a plan from constants alone
    version        of Equipoise
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    format: int = FORMAT
    verdict: Verdict
    reason: str
    promise: Promise
    units: int = 1
    nu2: Real | None
    chosen: Option | None
    options: list[Option]
    untrained: Prediction
    public_only: PublicOnly | None = None
    noise: list[NoiseLevel] | None = None
    changes: Changes | None = None
    ways: list[Way] = []
    judged_by: str = "error"
    notes: list[str] = []
    public: list[str]
    task_notices: list[str] = []
    settings: Settings | None
    version: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        check_format(document)
        old = "promise" not in document and "plan" in document
        return _from_format_0(document) if old else document

    @computed_field  # type: ignore[prop-decorator]
    @property
    def notices(self) -> list[str]:
        """What must be known before anything else: how little the budget promises, and what it does
        not cover."""
        return [*self.promise.cautions(self.units), *self.task_notices]

    @property
    def vacuous(self) -> str:
        """Why the budget says too little to be called private; empty where it does not."""
        return self.promise.vacuous(self.units)

    @property
    def epsilon(self) -> float:
        return self.promise.epsilon

    @property
    def delta(self) -> float:
        return self.promise.delta

    @property
    def unit(self) -> Unit:
        return self.promise.unit

    @property
    def predicted(self) -> Prediction | None:
        return self.chosen.predicted if self.chosen else None

    def to_train(self, anyway: bool = False) -> Settings:
        """The settings that the plan asks to train with; a plan not to train is refused unless
        `anyway`."""
        require(
            anyway or self.verdict != "do not train",
            f"the plan says: do not train, since {self.reason}; --anyway (in Python: anyway=True) "
            "trains all the same",
        )
        if self.settings is None:
            raise InvalidValue(
                "this plan holds no settings to train with: it was made from constants alone, or "
                "for a model on which nothing can be tried; give train the settings instead"
            )
        return self.settings

    def __str__(self) -> str:
        from equipoise.describe import plan_lines

        return "\n".join(plan_lines(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from equipoise.describe import as_html, plan_facts

        return as_html(plan_facts(self))

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan that `equipoise plan --json`, or `Plan.to_json`, wrote."""
    try:
        return Plan.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(f"plan={path}: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError, KeyError, TypeError):
        raise InvalidValue(
            f"plan={path} is not a plan for one budget, as `equipoise plan --json` writes it"
        ) from None


def _from_format_0(document: dict[str, Any]) -> dict[str, Any]:
    """What version 0.1 wrote: proposals as dicts under several names."""
    settings = document.get("settings") or {}
    names = ("unit", "neighbours", "trust", "colluding")
    promise = {name: settings[name] for name in names if name in settings}
    promise |= {name: document[name] for name in ("epsilon", "delta", "unit")}
    untrained = document["untrained"]
    compared = [_option(name, row) for name, row in document["compared"].items()]
    formulas = {
        "displacement law": document.get("displacement"),
        "corrected bound": document.get("corrected"),
        "Corollary 1 as printed": document.get("corollary1"),
    }
    chosen = document["plan"] and {**document["plan"], **(document["predicted"] or {})}
    kept = ("verdict", "reason", "nu2", "public_only", "noise", "changes", "public", "settings")
    return {
        **{name: document.get(name) for name in (*kept, "version")},
        "promise": promise,
        "chosen": _option("plan", chosen) if chosen else None,
        "options": compared + [_option(name, row) for name, row in formulas.items() if row],
        "untrained": untrained,
    }


def _option(origin: str, row: dict[str, Any]) -> dict[str, Any]:
    tau, rounds = row["local_steps"], row["rounds"]
    return {
        "origin": origin,
        "eta": row.get("eta", 0.0),
        "p": row.get("p", 1 / tau),
        "iterations": row.get("iterations", tau * rounds),
        "clip": row.get("clip_norm"),
        "predicted": {name: row.get(name) for name in Prediction.model_fields},
        **{name: row[name] for name in Option.model_fields if name in row},
    }

"""Question: what a user asks a planner, a frozen value; every field is a flag of the command."""

import math
from numbers import Real
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from equipoise.algorithms.catalogue import ALGORITHMS, algorithm_spec
from equipoise.device import DEVICE, HOST, check_device
from equipoise.errors import InvalidValue, require
from equipoise.facts import EQUAL, Facts, Weights, default_weights
from equipoise.fields import Path, flag
from equipoise.privacy.mechanisms.mechanism import NoiseIn
from equipoise.privacy.promise import Promise, check_given
from equipoise.settings import MOST_ITERATIONS, Common

PLANNED, CONSTANTS = "What is planned", "Constants instead of a task"
GIVEN_WITHOUT_TASK = ("mu", "smoothness", "dimension", "psi0", "r0", "zeta")


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, Real | str) else value


def _word(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, Real) else value


JudgeBy = Literal["error", "loss", "auroc"]

PRIVATE = [name for name, spec in ALGORITHMS.items() if spec.private]


class Question(Common):
    """A budget, and a task (or the constants of a problem)."""

    task: Path | None = flag(
        None,
        PLANNED,
        "what will be learnt: breast-cancer, csv, digits, digits-mlp, libsvm, quadratic, or a "
        "Python file",
    )
    epsilon: Annotated[tuple[float, ...], BeforeValidator(_several)] = flag(
        ..., PLANNED, "the budget of the whole run; several give a table of the trade-off"
    )
    algorithm: str = flag(
        "both",
        PLANNED,
        f"which algorithm to plan for: {', '.join(PRIVATE)}; both, to compare the paper's two; or "
        "all that protect the unit",
    )
    iterations: int | None = flag(
        None,
        PLANNED,
        "T: fix the local steps in total, and plan tau among its divisors (the paper's question)",
    )
    device: str = flag(
        HOST,
        PLANNED,
        f"{DEVICE}; linear models are planned on the processor, and no plan names a device",
    )
    clip: float | None = flag(None, PLANNED, "C, the clip threshold (default: planned too)")
    gamma: float | None = flag(None, PLANNED, "server step (default: planned too)")
    noise_in: NoiseIn | None = flag(
        None,
        PLANNED,
        "for unit record: plan for noise in the gradient, message or hidden-gradient alone "
        "(default: compare all)",
    )
    round_cost: float = flag(
        0.0,
        PLANNED,
        "for unit record: the price of a round, in local steps; of plans that are about as good, "
        "the cheapest is taken",
    )
    synthetic: bool = flag(
        False,
        PLANNED,
        "plan on made-up records, from public constants alone: no public record is used, and no "
        "test error is predicted",
    )
    records: Annotated[tuple[int, ...] | None, BeforeValidator(_several)] = flag(
        None,
        PLANNED,
        "how many records a client has, or one number for each client, where the task does not "
        "know it (default: a guess, about 100)",
    )
    skew: Annotated[str | None, BeforeValidator(_word)] = flag(
        None,
        PLANNED,
        "how unlike the clients' labels are, where the task does not know it: none, mild, strong, "
        "or the concentration A of a Dirichlet distribution (the smaller, the more unlike); "
        "default: a plan that is good whatever it is",
    )
    judge_by: JudgeBy | None = flag(
        None,
        PLANNED,
        "what the plan is chosen for, and ways are compared by: error, loss or auroc (of two "
        "classes); default: the plan for its loss, the ways by their error",
    )

    mu: float | None = flag(None, CONSTANTS, "strong convexity of every client's loss")
    smoothness: float | None = flag(None, CONSTANTS, "L of every client's loss")
    dimension: int | None = flag(None, CONSTANTS, "d, parameters of the model")
    psi0: float | None = flag(None, CONSTANTS, "the paper's psi_0, summed over clients")
    r0: float | None = flag(None, CONSTANTS, "distance of the start from the optimum")
    zeta: float | None = flag(
        None, CONSTANTS, "root mean square of the clients' gradients at the optimum"
    )
    v: float | None = flag(None, CONSTANTS, "Lemma 1's constant (default: the exact one)")

    @model_validator(mode="after")
    def _valid(self) -> Self:
        self._check_common()
        check_device(self.device)
        check_given(self.epsilon or None)
        for epsilon in self.epsilon:
            promise = self.promise(epsilon)
            if self.clients is not None:
                promise.check_clients(self.clients)
            require(
                epsilon < math.inf,
                "epsilon=inf: there is nothing to plan, since no noise is traded against rounds; "
                "use train, or a sweep",
            )
        for name in ("clip", "gamma", "v"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf, f"{name}={value} is not a positive number"
            )
        for name, count in (("iterations", self.iterations), *self._records()):
            require(
                count is None or 1 <= count <= MOST_ITERATIONS,
                f"{name}={count} is not between 1 and {MOST_ITERATIONS:,}",
            )
        require(
            0 <= self.round_cost < math.inf, f"round_cost={self.round_cost} is not a price >= 0"
        )
        self._check_algorithms()
        for mechanism in self.mechanisms:
            mechanism.check_plan(self)
        self._check_constants()
        return self

    def _records(self) -> list[tuple[str, int]]:
        return [("records", count) for count in self.records or ()]

    def _check_algorithms(self) -> None:
        known = [
            name for algorithm in self.algorithms for name in algorithm_spec(algorithm).options
        ]
        for name in self.options:
            require(
                name in known,
                f"{name} with algorithm={self.algorithm}, which has no such option: leave it out",
            )
        for algorithm in self.algorithms:
            spec = algorithm_spec(algorithm)
            require(
                spec.private,
                f"algorithm={algorithm} is not private: there is nothing to plan; {spec.why}, or "
                "train with epsilon=inf",
            )
            require(
                spec.protects(self.unit),
                f"unit={self.unit} with algorithm={algorithm}: {spec.why}",
            )
            spec.given(self.options_of(algorithm))

    def _check_constants(self) -> None:
        require(
            self.task is not None or self.weights in (None, EQUAL),
            f"weights={self.weights} without a task: closed forms are about clients that all count "
            "alike; leave it out",
        )
        given = [name for name in GIVEN_WITHOUT_TASK if getattr(self, name) is not None]
        if self.task is not None:
            require(
                not given,
                f"{', '.join(given)} with task={self.task}, which knows its constants: leave them "
                "out",
            )
            return
        needed = ("mu", "smoothness", "dimension", "clients", "clip")
        missing = [name for name in needed if getattr(self, name) is None]
        require(
            not missing,
            f"give a task, or the constants of a problem: {', '.join(missing)} missing",
        )

    @property
    def algorithms(self) -> list[str]:
        """The names of the algorithms to plan for."""
        if self.algorithm == "all":
            return [name for name, spec in ALGORITHMS.items() if spec.protects(self.unit)]
        if self.algorithm == "both":
            return [name for name, spec in ALGORITHMS.items() if spec.paper]
        return [algorithm_spec(self.algorithm).name]

    def options_of(self, algorithm: str) -> dict[str, float | str]:
        """Those of the options that the algorithm understands."""
        known = algorithm_spec(algorithm).options
        return {name: value for name, value in self.options.items() if name in known}

    @property
    def mechanisms(self) -> list[Any]:
        """Where noise may go for this unit: everywhere, or where the question says."""
        from equipoise.privacy.mechanisms.catalogue import mechanism, mechanisms_of

        if self.noise_in:
            return [mechanism(self.unit, self.noise_in)]
        places = mechanisms_of(self.unit)
        if self.trust == "local":
            return places
        shared = [place for place in places if place.noises_message]
        if self.unit != "client":
            raise InvalidValue(
                f"trust=secure-aggregation with unit={self.unit} saves noise only with "
                "noise_in=message: give it, or trust=local"
            )
        return shared

    def counted(self, facts: Facts) -> Weights:
        """How much each client counts, of a task with these facts."""
        return facts.weights(self.weights or default_weights(self.unit))

    def promise(self, epsilon: float) -> Promise:
        return Promise(epsilon, self.delta, self.unit, self.neighbours, self.trust, self.colluding)

    def passed_on(self, clients: int | None) -> dict[str, Any]:
        """What a plan passes on to training as it was said; the number of clients as it was
        found.
        """
        names = [name for name in Common.model_fields if name != "options"]
        return {name: getattr(self, name) for name in names} | {"clients": clients}


Verdict = Literal[
    "train",
    "do not train",
    "public data alone is as good",
    "each silo alone is as good",
    "inconclusive",
]

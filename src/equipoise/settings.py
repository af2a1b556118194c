"""Settings and Run: what a user says, and what that means with nothing left open.

Frozen values that read and write JSON. Every field is a flag of the command; `group` says under
which heading its help stands.
"""

import math
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.algorithms.catalogue import ALGORITHMS, algorithm_spec, known_options
from equipoise.device import DEVICE, HOST, check_device
from equipoise.errors import InvalidValue, require
from equipoise.facts import EQUAL, Facts, check_weights, default_weights
from equipoise.fields import (
    DATA,
    LEARNING,
    PRIVACY,
    SIMULATION,
    AlgorithmOptions,
    HashableOptions,
    Names,
    Path,
    Paths,
    Real,
    Weighting,
    flag,
    flag_words,
)
from equipoise.privacy.mechanisms.mechanism import NoiseIn
from equipoise.privacy.promise import Neighbours, Promise, Trust, Unit, check_given
from equipoise.refusals import first_sentence
from equipoise.steps import Steps

if TYPE_CHECKING:
    from equipoise.algorithms.algorithm import Memory
    from equipoise.privacy.mechanisms.mechanism import Mechanism

LISTS = ("data", "test", "proxy", "ignore")  # settings of one run that hold several values
Returns = Literal["last", "average"]

_promise = lru_cache(Promise)  # the same for all runs of a sweep
SAME_CLIP = "clip and clip_norm are the same: give one of the two"
MOST_ITERATIONS = 10**8
MOST_CLIENTS = 10**6


class Common(BaseModel):
    """What planning and training both need to know."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True, extra="forbid")

    clients: int | None = flag(None, LEARNING, "N (default: the task's)")
    split: str | None = flag(
        None,
        LEARNING,
        "how records are distributed among clients: random, dirichlet:A for label skew (the "
        "smaller A, the stronger), or natural, by the hospital, writer or user they come from "
        "(default: the task's)",
    )
    l2: float | None = flag(None, LEARNING, "regulariser of a linear model (default: the task's)")
    public_l2: float | None = flag(
        None,
        LEARNING,
        "regulariser of the linear model that public records alone teach, from which a warm start "
        "begins (default: as l2; a plan finds it by cross-validation on these records)",
    )
    features: Path | None = flag(
        None,
        LEARNING,
        "a file of a public encoder (features = MODULE): a linear head on what it gives is learnt",
    )
    seed: int = flag(0, LEARNING, "public seed of split, coins and minibatches; never of the noise")
    options: AlgorithmOptions = Field(default_factory=HashableOptions)
    """Settings of one algorithm alone, by name, such as prox; they may be keywords themselves."""

    data: Paths = flag(
        (),
        DATA,
        "private records: one CSV or Parquet file per client (task csv), or one LIBSVM file (task "
        "libsvm)",
    )
    test: Paths = flag((), DATA, "files with public test records: outside the guarantee")
    groups: str | None = flag(
        None,
        DATA,
        "a column of the test records, such as ward or sex, which the bounds need not declare: "
        "measures are told for each of its groups too (task csv)",
    )
    test_share: float = flag(
        0.0,
        DATA,
        "share of the file's records, such as 0.2, that is declared a public test set: outside the "
        "guarantee, and not trained on (task libsvm; default: none, and no test error)",
    )
    label: str | None = flag(None, DATA, "the column to predict (task csv)")
    bounds: Path | None = flag(
        None,
        DATA,
        "TOML file with public bounds of every column (task csv; `equipoise data bounds` writes a "
        "template), or of index and label (task libsvm)",
    )
    ignore: Names = flag(
        (),
        DATA,
        "columns of the files that are neither in bounds nor used, such as a name; files may lack "
        "them (task csv)",
    )
    proxy: Paths = flag(
        (), DATA, "files with public records like the private ones (tasks csv and libsvm)"
    )
    person: Path | None = flag(
        None,
        DATA,
        "for unit person: the column that says whose a row is (task csv), or a file with a name on "
        "a line for each line of the data (task libsvm); other tasks know it by themselves",
    )
    max_records: int = flag(
        10,
        DATA,
        "for unit person: the most records of one person that are used, the first ones",
    )
    public_records: int = flag(
        0,
        DATA,
        "how many of the task's records, chosen by seed, are declared public: to plan on and to "
        "compare with; private training leaves them out",
    )

    weights: Weighting = flag(
        None,
        LEARNING,
        "how much each client counts: equal (the paper's; default for unit client), records (in "
        "proportion to its records, where their numbers are public; default for unit record), or "
        "numbers that are public, one for each client: 9000,2600,420",
    )
    delta: float = flag(
        1e-5,
        PRIVACY,
        "delta of the guarantee: P(S) <= e^epsilon P'(S) + delta for every set S of outcomes; "
        "choose it far below 1 / number of protected units: from there on nothing is private",
    )
    max_tpr: float | None = flag(
        None,
        PRIVACY,
        "instead of epsilon: the largest share of cases, such as 0.05, that an attacker may find "
        "who raises a share --fpr of false alarms",
    )
    fpr: float | None = flag(
        None, PRIVACY, "the share of false alarms, such as 0.01, that --max-tpr is about"
    )
    unit: Unit = flag(
        "client",
        PRIVACY,
        "what is hidden: everything that one client holds; one record (row) of one client; or all "
        "records that one client holds of one person",
    )
    neighbours: Neighbours = flag(
        "replace-one",
        PRIVACY,
        "what a unit's data are compared with: any other data in their place (sensitivity 2C); a "
        "message of zero, noised too (zero-out, for unit client: C); the data without the record "
        "(add-remove, for unit record: C)",
    )
    trust: Trust = flag(
        "local",
        PRIVACY,
        "what the adversary sees: every message (the paper's model), or only the sum of a round",
    )
    colluding: int | None = flag(
        None,
        PRIVACY,
        "clients who may subtract their own noise from the sum (secure-aggregation; default 1)",
    )

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, values: Any) -> Any:
        """Options of algorithms may be given by name; `clip_norm` is the old name of `clip`; and a
        bound on attacks becomes the epsilon that keeps it."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if "clip_norm" in values:
            require("clip" not in values, SAME_CLIP)
            values["clip"] = values.pop("clip_norm")
        options = dict(values.pop("options", None) or {})
        for name, option in known_options().items():
            value = values.pop(name, None)
            if value is not None:
                options[name] = option.read(value)
        if epsilon := _kept_by(values):
            values["epsilon"] = epsilon
        return {**values, "options": options} if options else values

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From keyword values; a bad one is refused in one sentence."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InvalidValue(first_sentence(error, cls)) from None

    def _check_common(self) -> None:
        require(
            self.clients is None or 1 <= self.clients <= MOST_CLIENTS,
            f"clients={self.clients} is not between 1 and {MOST_CLIENTS:,}",
        )
        for name in ("l2", "public_l2"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf, f"{name}={value} is not a positive number"
            )
        require(self.public_records >= 0, f"public_records={self.public_records} is not >= 0")
        require(
            0 <= self.test_share < 1,
            f"test_share={self.test_share} is not a share of the records, from 0 to below 1",
        )
        require(0 <= self.seed < 2**63, f"seed={self.seed} is not between 0 and 2^63 - 1")
        require(self.max_records >= 1, f"max_records={self.max_records} is not >= 1")
        require(
            self.person is None or self.unit == "person",
            f"person={self.person} with unit={self.unit}: give unit=person, or leave it out",
        )
        check_weights(EQUAL if self.weights is None else self.weights)


def _kept_by(values: dict[str, Any]) -> float | None:
    """The epsilon that keeps a bound on attacks, where one is given instead."""
    if values.get("max_tpr") is None and values.get("fpr") is None:
        return None
    from equipoise.privacy.trade_off import kept_by  # scipy: not for --help

    delta = values.get("delta") or Common.model_fields["delta"].default
    return kept_by(values.get("max_tpr"), values.get("fpr"), delta, values.get("epsilon"))


class Settings(Steps, Common):
    """What a user says about a run; None where the task or the other values decide."""

    task: Path = flag(
        ...,
        LEARNING,
        "breast-cancer, digits, digits-mlp, quadratic; csv, libsvm; cifar10, femnist, reddit, "
        "fed-ixi, messidor, hippocampus, deepdrid (see `equipoise data`); or a Python file",
    )
    algorithm: str = flag(
        next(iter(ALGORITHMS)),
        LEARNING,
        "; ".join(
            f"{spec.name} ({spec.paper + ' of the paper: ' if spec.paper else ''}{spec.summary})"
            for spec in ALGORITHMS.values()
        ),
    )
    iterations: int | None = flag(None, LEARNING, "T: local steps in total (default: the task's)")
    local_steps: int | None = flag(
        None, LEARNING, "tau: local steps before each round; must divide iterations (default: 1)"
    )
    schedule: Literal["periodic", "coin"] = flag(
        "periodic",
        LEARNING,
        "communicate every tau steps, or by Algorithm 2's shared coin, drawn before training",
    )
    p: float | None = flag(
        None,
        LEARNING,
        "probability of communicating after a step (schedule coin; periodic: 1/tau)",
    )
    eta: float | None = flag(
        None,
        LEARNING,
        "step size (default: 1/L where L is public, 1/(L + prox) with a proximal term; else the "
        "task's learning rate)",
    )
    gamma: float = flag(1.0, LEARNING, "server step: x becomes x + gamma * mean release")
    batch: int | Literal["full"] | None = flag(
        None,
        LEARNING,
        "records per local step, or full (default: the task's), all records of a client that has "
        "fewer; for unit record the expected size of each client's secret sample",
    )
    returns: Returns = flag(
        "last",
        LEARNING,
        "the model of the last round (the paper's), or the average of all rounds' models with "
        "weight k^3 for round k, which costs no budget and evens out noise",
    )
    warm_start: bool = flag(
        False,
        LEARNING,
        "begin from a model trained on the public records (--proxy or --public-records)",
    )
    device: str = Field(HOST, description=DEVICE)  # of this machine: a flag of commands that train
    epsilon: Real = flag(
        ...,
        PRIVACY,
        "privacy budget of the whole run: up to 1 is called strong, up to 10 reasonable, above is "
        "weak; above 20, and at inf, the result is not private",
    )
    clip: Real | None = flag(
        None,
        PRIVACY,
        "C: largest L2 norm of a message, or for unit record of one record's gradient (needed for "
        "a finite epsilon)",
    )
    noise_in: NoiseIn | None = flag(
        None,
        PRIVACY,
        "for unit record: noise in every local gradient (gradient, the default), in the message "
        "(message; linear models, by stability), or in local gradients when only the last model of "
        "a round is seen (hidden-gradient; linear models)",
    )
    sampling_rate: float | None = flag(
        None,
        PRIVACY,
        "q: each record takes part in a local step by a secret coin with this probability (for "
        "unit record; default: what makes batch records of each client, 1 where batch is full)",
    )
    isolate: bool = flag(
        False,
        PRIVACY,
        "for unit record and networks: every record in a pass of its own, so that nothing a model "
        "does to a batch lets records mix; slow",
    )
    noise_rule: str = flag(
        "exact",
        PRIVACY,
        "exact; or, to reproduce figures, with no guarantee, lemma1: the paper's Lemma 1 as "
        "printed; nbafl: the rule of Wei et al. (2020)",
    )
    v: float | str | None = flag(
        None,
        PRIVACY,
        "the constant that Lemma 1 does not state: a number, or a reading of the paper: exact, "
        "proof, sampling, record-style",
    )
    simulate_noise_seed: int | None = flag(
        None,
        SIMULATION,
        "reproducible noise from this seed: for simulation only, the result is not private",
    )
    diagnostics: bool = flag(
        False,
        SIMULATION,
        "show update norms, the share clipped, |h| and train error per round: private values, the "
        "result is not private",
    )

    @model_validator(mode="after")
    def _valid(self) -> Self:
        self._check_common()
        check_given(self.epsilon)
        if self.clients is not None:
            self.promise.check_clients(self.clients)
        self.given_options(algorithm_spec(self.algorithm), self.options)
        self._check_numbers()
        self._check_schedule()
        self._check_privacy()
        return self

    def _check_numbers(self) -> None:
        check_device(self.device)
        for name in ("eta", "gamma"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf, f"{name}={value} is not a positive step size"
            )
        for name in ("iterations", "local_steps", "batch"):
            count = getattr(self, name)
            require(count in (None, "full") or count >= 1, f"{name}={count} is not >= 1")
        require(
            (self.iterations or 1) <= MOST_ITERATIONS,
            f"iterations={self.iterations} is more than {MOST_ITERATIONS:,}: give fewer",
        )

    def _check_schedule(self) -> None:
        require(
            self.p is None or 0 < self.p <= 1,
            f"p={self.p} is not in (0, 1]: pass the probability of communicating, not the number "
            "of local steps 1/p",
        )
        if self.schedule == "coin":
            require(
                self.p is not None,
                "schedule=coin needs p, the probability of communicating: give p, e.g. 0.25",
            )
            require(
                self.local_steps is None,
                f"local_steps={self.local_steps} with schedule=coin, where chance decides it: "
                "give p alone",
            )
        elif self.p is not None:
            require(
                math.isclose(self.p * (self.local_steps or 0), 1),
                f"p={self.p} with schedule=periodic, where p is 1/local_steps: give local_steps "
                "alone, or schedule=coin",
            )

    def _check_privacy(self) -> None:
        mechanism = self.mechanism
        mechanism.check(self)
        clip = math.inf if self.clip is None else self.clip
        require(clip > 0, f"clip={clip} is not > 0")
        require(
            1e-30 <= clip <= 1e30 or clip == math.inf,
            f"clip={clip} is not between 1e-30 and 1e30, where single precision can hold a norm",
        )
        require(
            self.epsilon == math.inf or clip < math.inf or mechanism.by_stability,
            f"epsilon={self.epsilon} with {'no clip' if self.clip is None else 'clip=inf'}: an "
            "unclipped update has unbounded sensitivity, so no noise can hide it; give a clip "
            "threshold, or epsilon=inf",
        )
        algorithm_spec(self.algorithm).check_settings(self)
        self.check_steps()

    @property
    def promise(self) -> Promise:
        """What the run promises to whom."""
        return _promise(
            self.epsilon, self.delta, self.unit, self.neighbours, self.trust, self.colluding
        )

    @property
    def mechanism(self) -> "Mechanism":
        """Where the noise enters, and what that costs."""
        from equipoise.privacy.mechanisms.catalogue import mechanism  # scipy: not for --help

        return mechanism(self.unit, self.noise_in, self.noise_rule)

    @property
    def memory(self) -> "Memory":
        """What clients carry from round to round."""
        return algorithm_spec(self.algorithm).memory(self.options)

    @property
    def gradient_steps(self) -> bool:
        """Whether rounds are plain gradient steps."""
        plain = not self.chosen_local_steps
        return plain and algorithm_spec(self.algorithm).gradient_steps

    @property
    def proximal(self) -> float:
        """The curvature that the algorithm adds to every local loss."""
        return algorithm_spec(self.algorithm).proximal(self.options)

    @property
    def simulation(self) -> bool:
        """Whether the result cannot protect anybody, so that private values may be shown."""
        return self.epsilon == math.inf or self.simulate_noise_seed is not None or self.diagnostics

    @property
    def command(self) -> str:
        """The command line that says the same."""
        words = ["equipoise", "train", "--task", self.task]
        for name, field in Settings.model_fields.items():
            value = getattr(self, name)
            follows = name == "epsilon" and self.max_tpr is not None
            if name in ("task", "options") or value == field.default or follows:
                continue
            words += flag_words(name, value)
        for name, value in self.options.items():
            words += flag_words(name, value)
        return shlex.join(words)

    def resolve(self, facts: Facts) -> "Run":
        """The run that these settings mean, given what everybody may know about the task."""
        local_steps = (self.local_steps or 1) if self.schedule == "periodic" else None
        answers = {
            "eta": self.eta or facts.step_size(self.proximal),
            "iterations": self.iterations or facts.iterations,
            "clients": facts.clients,
            "batch": facts.batch if facts.batch and self.sampling_rate is None else "full",
            "local_steps": local_steps,
            "p": 1 / local_steps if local_steps else self.p,
            "options": self.given_options(algorithm_spec(self.algorithm), self.options),
            "clip": math.inf if self.clip is None else self.clip,
            "noise_in": self.mechanism.noise_in,
            "colluding": self.promise.colluding,
            "weights": self.weights or default_weights(self.unit),
        }
        return Run.of(**{**self.model_dump(), **answers})


class Run(Settings):
    """Everything that decides the numbers of a run."""

    iterations: int
    p: float
    eta: float
    clients: int
    batch: int | Literal["full"]
    clip: Real
    noise_in: NoiseIn
    weights: str = EQUAL

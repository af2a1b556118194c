"""Settings and Run: what a user says, and what that means with nothing left open. Frozen values
that read and write JSON."""

import math
import shlex
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from cyclopts import Group, Parameter
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from equipoise.errors import InvalidValue, require
from equipoise.privacy.promise import Budget, Guarantee, Neighbours, Trust, Unit
from equipoise.rules import check_record_unit

Real = Annotated[
    float, PlainSerializer(lambda x: x if math.isfinite(x) else str(x), when_used="json")
]
"""A number that JSON can hold: infinity is the string "inf"."""

MOST_ITERATIONS = 10**8

_guarantee = lru_cache(Guarantee)  # the same for all runs of a sweep

NoiseIn = Literal["message", "gradient", "hidden-gradient"]
Reading = Literal["exact", "proof", "sampling", "record-style"]

_learning, _data, _privacy, _simulation = (
    Parameter(group=Group(title, sort_key=order))
    for order, title in enumerate(["What is learnt, and how", "Own data", "Privacy", "Simulation"])
)


class Common(BaseModel):
    """What planning and training both need to know. One flag of the command per field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: Annotated[int | None, _learning] = Field(None, description="N (default: the task's)")
    split: Annotated[str | None, _learning] = Field(
        None,
        description="how records are dealt to clients: random, dirichlet:A for label skew (small "
        "A: strong), or natural, by "
        "the hospital, writer or user they come from (default: the task's)",
    )
    l2: Annotated[float | None, _learning] = Field(
        None, description="regulariser of a linear model (default: the task's)"
    )
    seed: Annotated[int, _learning] = Field(
        0, description="public seed of split, coins and minibatches; never of the noise"
    )

    data: Annotated[tuple[str, ...], _data, Parameter(consume_multiple=True, negative=())] = Field(
        (),
        description="private records: one CSV or Parquet file per client (task csv), or one "
        "LIBSVM file (task libsvm)",
    )
    test: Annotated[tuple[str, ...], _data, Parameter(consume_multiple=True, negative=())] = Field(
        (), description="files with public test records: outside the guarantee"
    )
    label: Annotated[str | None, _data] = Field(
        None, description="the column to predict (task csv)"
    )
    bounds: Annotated[str | None, _data] = Field(
        None,
        description="TOML file with public bounds of every column (task csv; `equipoise data "
        "bounds` writes a template)",
    )
    proxy: Annotated[tuple[str, ...], _data, Parameter(consume_multiple=True, negative=())] = Field(
        (), description="files with public records like the private ones (tasks csv and libsvm)"
    )
    public_records: Annotated[int, _data] = Field(
        0,
        description="how many of the task's records are declared public, for planning: by seed, "
        "and never trained on",
    )

    delta: Annotated[float, _privacy] = Field(
        1e-5, description="probability that epsilon does not hold"
    )
    unit: Annotated[Unit, _privacy] = Field(
        "client",
        description="whose difference is hidden: all data of one client, or one record of one "
        "client",
    )
    neighbours: Annotated[Neighbours, _privacy] = Field(
        "replace-one",
        description="a unit's data against any other (sensitivity 2C); a client against a zero "
        "update, noised too, or a "
        "record against none (C)",
    )
    trust: Annotated[Trust, _privacy] = Field(
        "local",
        description="the adversary sees every message (the paper's model), or only the sum of a "
        "round",
    )
    colluding: Annotated[int | None, _privacy] = Field(
        None,
        description="clients who may subtract their own noise from the sum (secure-aggregation; "
        "default 1)",
    )

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From keyword values, `clip` for `clip_norm` if you like; a bad one is refused in one
        sentence."""
        if "clip" in settings and "clip_norm" not in settings:
            settings["clip_norm"] = settings.pop("clip")
        try:
            return cls(**settings)
        except ValidationError as error:
            raise InvalidValue(first_sentence(error)) from None

    def guarantee(self, clients: int) -> Guarantee:
        return _guarantee(self.neighbours, self.trust, clients, self.colluding, self.unit)


class Settings(Common):
    """What a user says about a run; None where the task or the other values decide. One flag of the
    command per field."""

    task: Annotated[str, _learning] = Field(
        description="breast-cancer, digits, digits-mlp, quadratic; csv, libsvm; cifar10, femnist, "
        "reddit, fed-ixi, messidor, "
        "hippocampus, deepdrid (see `equipoise data`); or a Python file"
    )
    algorithm: Annotated[Literal["dp-fedavg", "dp-scaffnew"], _learning] = Field(
        "dp-fedavg", description="the paper's Algorithm 1 or 2"
    )
    iterations: Annotated[int | None, _learning] = Field(
        None, description="T: local steps in total (default: the task's)"
    )
    local_steps: Annotated[int | None, _learning] = Field(
        None, description="tau: local steps before each round; divides the iterations (default: 1)"
    )
    schedule: Annotated[Literal["periodic", "coin"], _learning] = Field(
        "periodic",
        description="communicate every tau steps, or by Algorithm 2's shared coin, drawn before "
        "training",
    )
    p: Annotated[float | None, _learning] = Field(
        None,
        description="probability of communicating after a step (schedule coin; periodic: 1/tau)",
    )
    eta: Annotated[float | None, _learning] = Field(
        None,
        description="step size (default: 1/L where L is public, else the task's learning rate)",
    )
    gamma: Annotated[float, _learning] = Field(
        1.0, description="server step: x becomes x + gamma * mean release"
    )
    h_update: Annotated[Literal["paper", "clipped", "released"] | None, _learning] = Field(
        None,
        description="what DP-ScaffNew's control variate learns from: its message before or after "
        "the clip, or as released",
    )
    batch: Annotated[int | Literal["full"] | None, _learning] = Field(
        None,
        description="records per local step, or full (default: the task's); expected records if "
        "the unit is a record",
    )
    warm_start: Annotated[bool, _learning, Parameter(negative=())] = Field(
        False,
        description="begin from a model trained on the public records (--proxy or "
        "--public-records)",
    )
    epsilon: Annotated[Real, _privacy] = Field(
        description="privacy budget of the whole run; inf: not private"
    )
    clip_norm: Annotated[Real | None, _privacy, Parameter(name="--clip")] = Field(
        None, description="C: largest L2 norm of a message (needed for a finite epsilon)"
    )
    noise_in: Annotated[NoiseIn | None, _privacy] = Field(
        None,
        description="unit record: noise in every local gradient (default), in the message (linear "
        "models, by stability), or in "
        "local gradients of which only the last model is seen (hidden-gradient)",
    )
    sampling_rate: Annotated[float | None, _privacy] = Field(
        None,
        description="q: share of its records that a client samples secretly for a local step "
        "(unit record; default 1)",
    )
    noise_rule: Annotated[Literal["exact", "lemma1"], _privacy] = Field(
        "exact",
        description="exact, or the paper's Lemma 1 as printed: reproduces figures, guarantees "
        "nothing",
    )
    v: Annotated[float | Reading | None, _privacy] = Field(
        None,
        description="the unstated constant of lemma1: a number, or a reading: exact, proof, "
        "sampling, record-style",
    )
    simulate_noise_seed: Annotated[int | None, _simulation] = Field(
        None,
        description="reproducible noise from this seed: for simulation only, the result is not "
        "private",
    )
    diagnostics: Annotated[bool, _simulation, Parameter(negative=())] = Field(
        False,
        description="show update norms, clipped share, |h| and train error per round: the result "
        "is not private",
    )

    @model_validator(mode="after")
    def _valid(self) -> Self:
        Budget(self.epsilon, self.delta)
        self.guarantee(self.clients or 2**31)
        check_record_unit(self)
        clip = math.inf if self.clip_norm is None else self.clip_norm
        require(clip > 0, f"clip={clip} is not > 0")
        require(
            clip >= 1e-30, f"clip={clip} is below 1e-30, where single precision cannot hold a norm"
        )
        require(
            self.epsilon == math.inf or clip < math.inf or self.by_stability,
            f"epsilon={self.epsilon} with {'no clip' if self.clip_norm is None else 'clip=inf'}: "
            f"an unclipped update has no "
            "sensitivity, so no noise can hide it; give a clip threshold, or epsilon=inf",
        )
        for name, value in (("eta", self.eta), ("gamma", self.gamma)):
            require(
                value is None or 0 < value < math.inf, f"{name}={value} is not a positive step size"
            )
        require(self.l2 is None or 0 < self.l2 < math.inf, f"l2={self.l2} is not a positive number")
        for name in ("iterations", "local_steps", "clients", "batch"):
            count = getattr(self, name)
            require(count in (None, "full") or count >= 1, f"{name}={count} is not >= 1")
        require(
            self.p is None or 0 < self.p <= 1,
            f"p={self.p} is not in (0, 1]: pass the probability of communicating, not the number "
            f"of local steps 1/p",
        )
        if self.schedule == "coin":
            require(
                self.p is not None,
                "schedule=coin needs p, the probability of communicating: give p, e.g. 0.25",
            )
            require(
                self.local_steps is None,
                f"local_steps={self.local_steps} with schedule=coin, where chance decides it: "
                f"give p alone",
            )
        elif self.p is not None:
            require(
                math.isclose(self.p * (self.local_steps or 0), 1),
                f"p={self.p} with schedule=periodic, where p is 1/local_steps: give local_steps "
                f"alone, or schedule=coin",
            )
        require(
            self.h_update is None or self.algorithm == "dp-scaffnew",
            f"h_update={self.h_update} with algorithm={self.algorithm}, which has no control "
            f"variate: leave it out",
        )
        if self.noise_rule == "lemma1":
            require(
                self.v is not None,
                "noise_rule=lemma1 needs v, which the paper does not state: a number, or exact, "
                "proof, sampling, record-style",
            )
            require(
                not isinstance(self.v, float) or 0 < self.v < math.inf,
                f"v={self.v} is not a positive number",
            )
        else:
            require(
                self.v is None,
                f"v={self.v} belongs to noise_rule=lemma1; the exact rule has no free constant",
            )
        require(0 <= self.seed < 2**63, f"seed={self.seed} is not between 0 and 2^63 - 1")
        require(
            (self.iterations or 1) <= MOST_ITERATIONS,
            f"iterations={self.iterations} is more than {MOST_ITERATIONS}",
        )
        require(self.public_records >= 0, f"public_records={self.public_records} is not >= 0")
        return self

    @property
    def by_stability(self) -> bool:
        """Whether the stability of gradient steps bounds what one record changes, rather than a
        clip."""
        return self.unit == "record" and self.noise_in in ("message", "hidden-gradient")

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
            if name == "task" or value == field.default:
                continue
            words.append("--clip" if name == "clip_norm" else "--" + name.replace("_", "-"))
            if value is not True:
                words.extend(
                    str(part) for part in (value if isinstance(value, tuple) else (value,))
                )
        return shlex.join(words)

    def resolve(
        self, eta: float, iterations: int, sizes: tuple[int, ...], batch: int | Literal["full"]
    ) -> "Run":
        """The run that these settings mean; the arguments are the task's answers to what was left
        open."""
        clients = len(sizes)
        local_steps = (self.local_steps or 1) if self.schedule == "periodic" else None
        rate = self.sampling_rate
        if self.unit == "record" and rate is None and self.batch is None and batch != "full":
            rate = min(
                1.0, batch * clients / max(sum(sizes), 1)
            )  # the task's batch on average, at one rate for all
        answers = {
            "sampling_rate": rate,
            "eta": self.eta or eta,
            "iterations": self.iterations or iterations,
            "clients": clients,
            "batch": batch if rate is None else "full",
            "local_steps": local_steps,
            "p": 1 / local_steps if local_steps else self.p,
            "h_update": "paper"
            if self.algorithm == "dp-scaffnew" and not self.h_update
            else self.h_update,
            "clip_norm": math.inf if self.clip_norm is None else self.clip_norm,
            "noise_in": self.noise_in or ("message" if self.unit == "client" else "gradient"),
            "colluding": self.guarantee(clients).colluding,
        }
        return Run.of(**{**self.model_dump(), **answers})


class Run(Settings):
    """Everything that decides the numbers of a run."""

    iterations: int
    p: float
    eta: float
    clients: int
    batch: int | Literal["full"]
    clip_norm: Real
    noise_in: NoiseIn


def first_sentence(error: ValidationError) -> str:
    """What is wrong, in our own words where a rule of ours was broken."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return str(cause)
    name = str(first["loc"][0]) if first["loc"] else "run"
    if first["type"] == "missing":
        return f"{name} is missing"
    given = "" if isinstance(first["input"], dict) else f"={first['input']!r}"
    return f"{name}{given}: {first['msg'][0].lower()}{first['msg'][1:]}"

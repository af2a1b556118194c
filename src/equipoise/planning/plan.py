"""Question and Plan: what a user asks a planner, and its answer, as frozen values that read and
write JSON."""

import json
import math
from typing import Annotated, Any, Literal, Self

from cyclopts import Group, Parameter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from equipoise.errors import InvalidValue, require
from equipoise.privacy.promise import Budget, Unit
from equipoise.settings import Common, NoiseIn, Real, Settings

_question = Parameter(group=Group("What is planned", sort_key=0))
_constants = Parameter(group=Group("Constants instead of a task", sort_key=3))


class Question(Common):
    """A budget, and a task (or the constants of a problem)."""

    task: Annotated[str | None, _question] = Field(
        None,
        description="what will be learnt: breast-cancer, csv, digits, digits-mlp, libsvm, "
        "quadratic, or a Python file",
    )
    epsilon: Annotated[
        tuple[float, ...], _question, Parameter(consume_multiple=True, negative=())
    ] = Field(description="the budget of the whole run; several give a table of the trade-off")
    algorithm: Annotated[Literal["both", "dp-fedavg", "dp-scaffnew"], _question] = Field(
        "both", description="which algorithm to plan for; both compares them"
    )
    iterations: Annotated[int | None, _question] = Field(
        None,
        description="fixes T, the local steps in total, and plans tau among its divisors (the "
        "paper's question)",
    )
    clip_norm: Annotated[float | None, _question, Parameter(name="--clip")] = Field(
        None, description="C, if it is given; planned otherwise"
    )
    gamma: Annotated[float | None, _question] = Field(
        None, description="server step, if it is given; planned otherwise"
    )
    noise_in: Annotated[NoiseIn | None, _question] = Field(
        None, description="unit record: plan for noise here only; all places are compared otherwise"
    )
    round_cost: Annotated[float, _question] = Field(
        0.0,
        description="unit record: price of a round in local steps; of plans that are as good, the "
        "cheapest is taken",
    )
    h_update: Annotated[Literal["paper", "clipped"], _question] = Field(
        "paper", description="as in train"
    )
    synthetic: Annotated[bool, _question, Parameter(negative=())] = Field(
        False,
        description="plan on made-up records, from public constants alone: no public "
        "record is used",
    )
    records: Annotated[int | None, _question] = Field(
        None, description="about how many records a client has, where that is private (default 100)"
    )

    mu: Annotated[float | None, _constants] = Field(
        None, description="strong convexity of every client's loss"
    )
    smoothness: Annotated[float | None, _constants] = Field(
        None, description="L of every client's loss"
    )
    dimension: Annotated[int | None, _constants] = Field(
        None, description="d, parameters of the model"
    )
    psi0: Annotated[float | None, _constants] = Field(
        None, description="the paper's psi_0, stacked over clients"
    )
    r0: Annotated[float | None, _constants] = Field(
        None, description="distance of the start from the optimum"
    )
    zeta: Annotated[float | None, _constants] = Field(
        None, description="root mean square of the clients' gradients there"
    )
    v: Annotated[float | None, _constants] = Field(
        None, description="Lemma 1's constant (default: the exact one)"
    )

    @model_validator(mode="after")
    def _valid(self) -> Self:
        for epsilon in self.epsilon:
            Budget(epsilon, self.delta)
            require(
                epsilon < math.inf,
                "epsilon=inf needs no plan: without noise, more rounds are better",
            )
        self.guarantee(self.clients or 2**31)
        for name in ("clip_norm", "gamma", "l2", "v"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf,
                f"{name.removesuffix('_norm')}={value} is not a positive number",
            )
        for name in ("iterations", "clients", "records"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"{name}={count} is not >= 1")
        require(
            0 <= self.round_cost < math.inf, f"round_cost={self.round_cost} is not a price >= 0"
        )
        if self.unit == "record":
            require(self.task is not None, "unit=record needs a task: no closed form plans for it")
            require(
                self.gamma is None, "gamma with unit=record: only gamma=1 is planned; leave it out"
            )
            require(
                self.h_update == "paper",
                "h_update=clipped with unit=record: no message is clipped; leave it out",
            )
            require(
                self.trust == "local" or self.noise_in == "message",
                "trust=secure-aggregation with unit=record saves noise only with "
                "noise_in=message: give it, or trust=local",
            )
        else:
            require(
                not self.round_cost,
                "round_cost with unit=client, where every round costs noise: leave it out",
            )
            require(
                self.noise_in in (None, "message"),
                f"noise_in={self.noise_in} with unit=client: leave it out",
            )
        require(self.public_records >= 0, f"public_records={self.public_records} is not >= 0")
        given = [
            name
            for name in ("mu", "smoothness", "dimension", "psi0", "r0", "zeta")
            if getattr(self, name) is not None
        ]
        if self.task is None:
            missing = [
                name
                for name in ("mu", "smoothness", "dimension", "clients", "clip_norm")
                if getattr(self, name) is None
            ]
            require(
                not missing,
                f"give a task, or the constants of a problem: "
                f"{', '.join(missing).replace('_norm', '')} missing",
            )
        else:
            require(
                not given,
                f"{', '.join(given)} with task={self.task}, which knows its constants: leave them "
                f"out",
            )
        return self

    def shared(self, clients: int | None) -> dict[str, Any]:
        """What a plan passes on to training as it was said; the number of clients as it was
        found.
        """
        return {name: getattr(self, name) for name in Common.model_fields} | {"clients": clients}


class Plan(BaseModel):
    """The answer for one budget. `train` reads `settings`; everything else says why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Literal["train", "do not train", "public data alone is as good"]
    reason: str
    unit: Unit
    epsilon: float
    delta: float
    nu2: Real
    plan: dict[str, Any] | None
    predicted: dict[str, Any] | None
    untrained: dict[str, Any]
    public_only: dict[str, Any] | None
    compared: dict[str, Any]
    corollary1: dict[str, Any] | None
    corrected: dict[str, Any] | None
    displacement: dict[str, Any] | None
    noise: list[dict[str, Any]] | None = None
    changes: dict[str, Any] | None = None
    public: list[str]
    settings: Settings | None
    version: str

    def to_train(self, anyway: bool) -> Settings:
        """The settings that the plan asks to train with; a plan not to train is refused unless
        `anyway`."""
        require(
            anyway or self.verdict != "do not train",
            f"the plan says: do not train, since {self.reason}; add --anyway to train all the same",
        )
        if self.settings is None:
            raise InvalidValue(
                "this plan holds no settings to train with: it was made from constants, or for an "
                "unknown model"
            )
        return self.settings

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False)

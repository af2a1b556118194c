"""Result: a run and what came out of it, a frozen value that reads and writes JSON."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from equipoise.settings import Real, Run


class ClientAccount(BaseModel):
    """What one client adds and spends, when the unit is a record."""

    model_config = ConfigDict(frozen=True)

    client: int
    records: int
    sampling_rate: float
    sensitivity: Real
    sigma: Real
    epsilon_spent: Real


@dataclass(frozen=True, slots=True)
class Point:
    """The model after a round, measured on records declared public."""

    round: int
    iteration: int
    test_error: Real
    test_loss: Real
    client_error: Real | None = None
    """The mean over clients of the error on their own test records, where each has some."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went on inside the clients in a round: private values, for simulations only."""

    round: int
    clipped: Real | None
    update_norm: Real
    h_norm: Real | None
    train_error: Real | None
    """Over all private records; of a network only after the last round."""


class Result(Run):
    """A run and what came out of it."""

    notices: list[str]
    private: bool
    rounds: int
    releases: int
    dimension: int
    mu: float | None = None
    L: float | None = None
    """Strong convexity and smoothness of the clients' losses, where they are known."""
    sensitivity: Real
    sigma: Real
    client_sigma: Real
    epsilon_spent: Real
    per_client: list[ClientAccount] | None
    stability: dict[str, float] | None
    noise_source: str
    test_error: Real | None
    client_error: Real | None
    baseline_error: Real | None
    error_name: str
    public_only: dict[str, Any] | None
    curve: list[Point]
    per_round: list[Diagnosis] | None
    failed: str | None
    public: tuple[str, ...]
    parameters: dict[str, tuple[int, ...]]
    reading: dict[str, Any]
    repeat: str | None
    version: str
    x: Annotated[Any, Field(exclude=True, repr=False)] = None
    """The last communicated model, a vector [d]; not part of the document."""

    @property
    def account(self) -> str:
        """Whether the epsilon spent is exact, or an upper bound: where records are sampled, or
        stability bounds a message."""
        return "upper bound" if self.sampled or self.by_stability else "exact"

    @property
    def sampled(self) -> bool:
        """Whether clients sampled their records: then the accountant is numerical composition."""
        return any(client.sampling_rate < 1 for client in self.per_client or [])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    def to_json(self) -> str:
        """One JSON document; what the reader must know first comes first."""
        document = self.model_dump(mode="json")
        return json.dumps({"notices": document.pop("notices"), **document}, indent=2)

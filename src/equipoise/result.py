"""Result: a run, its account, and what came out; a frozen value that reads and writes JSON.

On disk it carries "format": 1. Fields are never removed or changed in meaning, only added, with a
default that means what was before. What version 0.1 wrote (format 0: everything flat) is read too.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    computed_field,
    model_validator,
)

from equipoise.errors import DataError
from equipoise.fields import Real
from equipoise.measures import Measures
from equipoise.origin import About, Origin
from equipoise.privacy.events import Account, Event
from equipoise.settings import Returns, Run

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1


def check_format(document: dict[str, Any]) -> None:
    """Refuse what a later version wrote in a format of its own: it would be misread."""
    number = document.get("format", FORMAT)
    if isinstance(number, int) and number > FORMAT:
        raise DataError(
            f"format={number} is of a newer Equipoise, where this one reads up to {FORMAT}: update"
        )


@dataclass(frozen=True, slots=True)
class Point:
    """The model after a round, measured on records declared public."""

    round: int
    iteration: int
    test_error: Real
    test_loss: Real
    client_error: Real | None = None
    """The mean over clients of the error on their own test records, where each has some."""
    average_error: Real | None = None
    average_loss: Real | None = None
    average_client_error: Real | None = None
    """The same three, of the average of all rounds' models so far; None where not measured."""

    def of(self, returns: Returns) -> tuple[float, float, float | None]:
        """Error, loss and client error of what a run would return that ended here."""
        if returns == "average" and self.average_error is not None:
            assert self.average_loss is not None
            return self.average_error, self.average_loss, self.average_client_error
        return self.test_error, self.test_loss, self.client_error


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went on inside the clients up to a round: private values, for simulations only. The
    share clipped and the norm are means over the rounds since the last of these."""

    round: int
    clipped: Real | None
    update_norm: Real
    h_norm: Real | None
    train_error: Real | None
    """Of what the run would return, over all private records; of a network only after the last
    round."""


class PublicOnly(BaseModel):
    """What a model trained on public records alone reaches on the public test records."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    records: int
    test_error: Real
    test_loss: Real


class Federated(BaseModel):
    """Where a run took place whose clients were not in one process.

    silos       their names, in the order of the clients
    agreement   the SHA-256 of what they agreed on
    masked      whether only sums of messages could be read, by the silos' own masks
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    silos: tuple[str, ...]
    agreement: str
    masked: bool


class Adapted(BaseModel):
    """How a federated model was tuned at home: x minimises the mean loss of one's own records +
    (l2/2) |x|^2 + (rho/2) |x - x_federated|^2, or stays x_federated where rho is infinite.

    tensors   the names of what was tuned; the rest is as it was
    records   how many of one's own
    error, standard_error   by cross-validation on them; of the federated model as it is, and of the
    best model of one's own records alone, the same
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    rho: Real
    l2: float
    tensors: tuple[str, ...]
    records: int
    error: Real
    standard_error: Real
    federated_error: Real
    alone_error: Real


def _account_document(account: Account) -> dict[str, Any]:
    """The account as JSON holds it; epsilon and mu are there for readers, and follow from the
    events."""
    return {
        "epsilon": _real(account.epsilon),
        "mu": _real(account.mu),
        "exact": account.exact,
        "events": [
            {
                **asdict(event),
                "sigma": _real(event.sigma),
                "sensitivity": _real(event.sensitivity),
            }
            for event in account.events
        ],
        "epsilons": [_real(epsilon) for epsilon in account.epsilons],
        "follows_from": account.follows_from,
        "epsilon_lower": _real(account.epsilon_lower),
        "epsilons_lower": account.epsilons_lower and [*map(_real, account.epsilons_lower)],
    }


def _real(value: float | None) -> float | str | None:
    return str(value) if value in (float("inf"), float("-inf")) else value


def _account(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    events = tuple(
        Event(
            **{**event, "sigma": float(event["sigma"]), "sensitivity": float(event["sensitivity"])}
        )
        for event in document["events"]
    )
    epsilons = tuple(float(epsilon) for epsilon in document["epsilons"])
    lowers = document.get("epsilons_lower")
    lowers = lowers and tuple(float(epsilon) for epsilon in lowers)
    return Account(events, epsilons, document["exact"], document["follows_from"], lowers)


class Result(BaseModel):
    """A run, what it released and spent, and what came out of it.

    notices         what a reader must know before anything else, in sentences
    private         whether it may be called private at all
    format          of the document
    test_error      of the model, on records declared public; None where there are none
    baseline_error  without training: of the initial model, or of the best constant answer where
                    that is known and better
    client_error    mean over clients of the error on their own test records, where they have some
    error_name      what the error is, in words
    part            how much of its data set the task was, where that is not the whole
    public_only     what a model trained on public records alone reaches, where there are some
    run             all that decided the numbers
    account         what was released, and what that spends
    rounds          how many there were
    dimension       d: numbers in the model
    sizes           the number of records of each client, where the unit is a record
    mu, L           strong convexity and smoothness of the clients' losses, where they are known
    noise_source    where the noise came from, in words
    measures        AUROC and the like, of the model that the run returns, on public test records;
                    None where there are none, or the task does not say what outputs mean
    curve           the model measured after rounds
    per_round       of a run with `diagnostics`: what went on inside the clients
    failed          why training broke off, where it did
    public          what was taken as public, in sentences
    parameters      how x falls into named tensors: their shapes, in order
    reading         what is needed to read other files like those of the task
    repeat          the command with the same settings; None where the task was made in Python
    version         of Equipoise
    federated       where it ran; None where that was one process
    adapted         how the model was tuned on one client's own records, without noise, where it
                    was: NOT TO BE RELEASED
    about           what its owner says about it
    origin          when and how it came about; None where nobody noted it, and of simulations,
                    which anybody can repeat. Results that differ in nothing else are equal
    x               the model that `run.returns` says, a vector [d]; not part of the document
    module          of a task that was made in Python, which no name can load: its torch module, or
                    its encoder; not part of the document either
    """

    model_config = ConfigDict(
        frozen=True, hide_input_in_errors=True, extra="ignore", arbitrary_types_allowed=True
    )

    notices: list[str]
    private: bool
    format: int = FORMAT
    test_error: Real | None
    baseline_error: Real | None
    client_error: Real | None
    error_name: str
    part: str = ""
    public_only: PublicOnly | None
    run: Run
    account: Annotated[Account, PlainSerializer(_account_document)]
    rounds: int
    dimension: int
    sizes: tuple[int, ...] | None = None
    mu: float | None = None
    L: float | None = None
    noise_source: str
    measures: Measures | None = None
    curve: list[Point] = []
    per_round: list[Diagnosis] | None = None
    failed: str | None
    public: tuple[str, ...]
    parameters: dict[str, tuple[int, ...]]
    reading: dict[str, Any]
    repeat: str | None
    version: str
    federated: Federated | None = None
    adapted: Adapted | None = None
    about: About | None = None
    origin: Origin | None = None
    x: Annotated[Any, Field(exclude=True, repr=False)] = None
    module: Annotated[Any, Field(exclude=True, repr=False)] = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        check_format(document)
        if "run" not in document:
            document = _from_format_0(document)
        return {**document, "account": _account(document.get("account"))}

    @model_validator(mode="after")
    def _not_private_by_its_own_word(self) -> Self:
        """A file, of an older version or edited, does not decide what is called private."""
        if self.private and self.adapted:
            self.__dict__["private"] = False
        if self.private and self.vacuous:
            self.__dict__["private"] = False
            self.__dict__["notices"] = [f"NOT PRIVATE: {self.vacuous}.", *self.notices]
        return self

    @property
    def epsilon_spent(self) -> float:
        """The account's: at the run's delta, rounded up."""
        return self.account.epsilon

    @property
    def vacuous(self) -> str:
        """Why what was spent says too little to be called private; empty where it does not."""
        units = sum(self.sizes) if self.sizes else self.run.clients
        return self.run.promise.vacuous(units, self.account.epsilon)

    @property
    def client_sigma(self) -> float:
        """What one client adds, per coordinate (the largest, if clients differ)."""
        account = self.account
        return self.run.promise.client_sigma(account.sigma, self.run.clients, account.lattice)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def lattice(self) -> float | None:
        """gamma: all that is noised is a whole multiple of it. None where there is no noise, and of
        results that were made before releases were rounded."""
        return self.account.lattice or None

    @property
    def model(self) -> "nn.Module":
        """The trained torch module, in eval mode. Of a network it is the task's own; of a linear
        model an nn.Linear on coded features, whose outputs are logits (sigmoid of the one output is
        the probability of the second class, softmax of several those of the classes) or, of least
        squares, (value - middle) / half range. Of a linear head it is both, encoder and head."""
        from equipoise.prediction import model_of  # torch

        return model_of(self)

    def predict(self, data: Any) -> Any:
        """What the model says of records: a path, a pandas frame, or columns by name, without a
        label. Probabilities [n, classes] or values [n] as a NumPy array; of a frame, a frame."""
        from equipoise.prediction import predict  # torch

        return predict(self, data)

    def with_features(self, file: Any) -> "Result":
        """The same result of a linear head, for its `model`: a saved run names its encoder, and
        does not hold it. The file must be the one that was trained with."""
        from equipoise.prediction import with_features  # torch

        return with_features(self, os.fspath(file))

    def __getstate__(self) -> dict[Any, Any]:
        """Without the module, which need not be fit to be pickled."""
        state = super().__getstate__()
        return {**state, "__dict__": {**state["__dict__"], "module": None}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return False
        return self.model_dump(exclude={"origin"}) == other.model_dump(exclude={"origin"})

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    def __str__(self) -> str:
        from equipoise.describe import result_lines

        return "\n".join(result_lines(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from equipoise.describe import as_html, headline, result_facts

        return as_html(result_facts(self), [*self.notices, headline(self)])

    def to_json(self) -> str:
        """One JSON document; what the reader must know first comes first."""
        return json.dumps(self.model_dump(mode="json"), indent=2)


def _from_format_0(document: dict[str, Any]) -> dict[str, Any]:
    """What version 0.1 wrote, where a result was a run with more fields."""
    names = {*Run.model_fields, "clip_norm", "h_update"}
    run = {name: value for name, value in document.items() if name in names}
    if run.get("h_update") == "paper":
        del run["h_update"]
    rest = {name: value for name, value in document.items() if name not in names}
    clients = rest.pop("per_client", None)
    account = _account_of_format_0(run, rest, clients or [rest])
    sizes = tuple(client["records"] for client in clients) if clients else None
    return {**rest, "format": FORMAT, "run": run, "account": account, "sizes": sizes}


def _account_of_format_0(
    run: dict[str, Any], document: dict[str, Any], clients: list[dict[str, Any]]
) -> dict[str, Any]:
    stability = document.pop("stability", None)
    events = [
        {
            "unit": run.get("unit", "client"),
            "neighbours": run.get("neighbours", "replace-one"),
            "sensitivity": client["sensitivity"],
            "sigma": client["sigma"],
            "rate": client.get("sampling_rate", 1.0),
            "count": document["releases"],
        }
        for client in clients
    ]
    return {
        "events": events,
        "epsilons": [client["epsilon_spent"] for client in clients],
        "exact": stability is None and all(event["rate"] == 1 for event in events),
        "follows_from": stability,
    }

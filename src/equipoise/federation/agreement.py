"""The agreement: everything that a run between silos is, without a path of anybody's machine.

From it, and from its own records, every silo makes the same run by itself: schedule, noise and
lattice. It takes no noise level from anybody. The SHA-256 of the agreement is named in every
message.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from equipoise.algorithms.schedule import schedule_of
from equipoise.device import HOST
from equipoise.errors import DataError, InvalidValue, require
from equipoise.facts import Facts
from equipoise.fleets.keys import PublicKeys, check_public
from equipoise.privacy.noise import SecretNoise
from equipoise.refusals import first_sentence
from equipoise.settings import Run, Settings
from equipoise.tasks import Task, is_file
from equipoise.training import Prepared, account_of, public_comparison

NO_PATHS: dict[str, Any] = {
    "data": (),
    "test": (),
    "proxy": (),
    "bounds": None,
    "features": None,
    "groups": None,
}


class Member(BaseModel):
    """A silo, as the agreement knows it: by its public keys (`fleets.keys`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    node: str
    mask: str

    @property
    def keys(self) -> PublicKeys:
        return PublicKeys(self.name, self.node, self.mask)


class Agreement(BaseModel):
    """What lead and silos agree on.

    run         every setting, none of them a path
    silos       who takes part, in the order of the clients
    dimension   d
    sizes       how many records each silo has, where that is public: all but unit client
    bounds      the text of the bounds file, of tasks that have one
    task_file   SHA-256 of the task file, where the task is one
    encoder     the fingerprint of the public encoder, where a linear head is learnt on its features
    lattices    the step of the lattice of each silo's releases (one, if all are alike), which each
                derives by itself and compares
    nonce       so that no two agreements are alike
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Literal[1] = 1
    version: str
    nonce: str
    run: Run
    silos: tuple[Member, ...]
    dimension: int
    sizes: tuple[int, ...] | None = None
    bounds: str | None = None
    task_file: str | None = None
    encoder: str | None = None
    lattices: tuple[float, ...]

    def to_json(self) -> str:
        return json.dumps(self._document(), indent=2) + "\n"

    def _document(self) -> dict[str, Any]:
        """All of it. On which device a silo computes, it alone decides."""
        return self.model_dump(mode="json", exclude={"run": {"device"}})

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the agreement, however its file is laid out."""
        document = self._document()
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).digest()

    @property
    def name(self) -> str:
        return self.digest.hex()

    @property
    def in_steps(self) -> bool:
        """Whether messages travel as whole steps modulo 2^32: where they are summed like that, or
        are clipped to what 32 bits hold. Others travel as floating-point numbers."""
        return self.run.trust != "local" or self.run.mechanism.clips_message

    def lattice(self, silo: int) -> float:
        """The step of a silo's releases."""
        return self.lattices[silo if len(self.lattices) > 1 else 0]

    def index(self, keys: PublicKeys) -> int:
        """Which silo has these keys."""
        for number, member in enumerate(self.silos):
            if (member.node, member.mask) == (keys.node, keys.mask):
                return number
        raise InvalidValue(
            f"key: that of {keys.name} belongs to none of the silos of this agreement, "
            f"{', '.join(member.name for member in self.silos)}; give the key whose public half "
            "you sent to the lead"
        )

    def facts(self, task: Task) -> Facts:
        """What everybody may know of the task, from one silo's records or from none."""
        facts = task.facts(self.run.unit, self.sizes)._replace(
            task=self.run.task, clients=len(self.silos), sizes=self.sizes
        )
        require(
            facts.dimension == self.dimension,
            f"dimension={facts.dimension} where the agreement says {self.dimension}: another task "
            "file or other bounds",
        )
        return facts

    def _check_encoder(self, task: Task) -> None:
        """Refuse other features than all others use."""
        here = task.encoder
        require(
            self.encoder is None or here is not None,
            "the agreement is about a linear head on the features of an encoder: give your copy of "
            "its file (--features FILE)",
        )
        require(
            here is None or here.fingerprint == self.encoder,
            f"features={here and here.name} is not what was agreed on: "
            + ("the encoder differs; get it from the lead" if self.encoder else "leave it out"),
        )

    def prepared(self, task: Task) -> Prepared:
        """The run before its first step, as whoever has a part of the task makes it: when silos
        communicate, and what each of them spends, are derived, never taken over."""
        check_agreement(self)
        self._check_encoder(task)
        facts, schedule = self.facts(task), schedule_of(self.run)
        spent = account_of(self.run, facts, schedule)
        lattices = tuple(event.lattice for event in spent.events)
        require(
            lattices == self.lattices,
            f"agreement: its lattice {self.lattices} is not {lattices}, which follows from its "
            "settings here; make the agreement anew with this version",
        )
        alone = public_comparison(task)
        return Prepared(task, facts, self.run, schedule, spent, SilosNoise(), None, alone)


class SilosNoise(SecretNoise):
    """The noise of silos, each of which makes its own."""

    name = "AES-256-CTR keyed by the operating system of each silo"


def read_agreement(path: "str | os.PathLike[str]") -> Agreement:
    """From a file; one of another version, or that is none, is refused."""
    where = Path(path)
    try:
        text = where.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise DataError(f"{where} cannot be read: {reason}") from None
    try:
        agreement = Agreement.model_validate_json(text)
    except ValidationError as error:
        raise DataError(f"{where} is no agreement: {first_sentence(error)}") from None
    check_agreement(agreement)
    return agreement


def write_agreement(agreement: Agreement, path: Path) -> None:
    """Into a new file."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(agreement.to_json())
    except FileExistsError:
        raise InvalidValue(f"out={path} is there already: choose another name") from None
    except OSError as error:
        raise InvalidValue(f"out={path} cannot be written: {error.strerror}") from None


def check_agreement(agreement: Agreement) -> None:
    """Refuse what no silo should sign."""
    run, made, here = agreement.run, agreement.version, version("equipoise")
    require(
        made == here,
        f"agreement: it was made with equipoise {made}, and this is {here}: all parties need the "
        "same version",
    )
    check_run(run)
    unseen = [name for name, value in run if any(not text.isprintable() for text in _texts(value))]
    require(not unseen, f"agreement: its {', '.join(unseen)} holds what no terminal shows")
    require(
        run.device == HOST,
        f"agreement: it names device={run.device}, which every silo chooses for itself (silo run "
        "--device)",
    )
    paths = [name for name, nothing in no_paths(run).items() if getattr(run, name) != nothing]
    if Path(run.task).name != run.task:
        paths.append("task")
    require(not paths, f"agreement: it names {', '.join(paths)} of somebody's machine")
    require(
        is_file(run.task) == (agreement.task_file is not None),
        f"agreement: it is about task={run.task} "
        + ("without the file's SHA-256" if is_file(run.task) else "with the SHA-256 of a file")
        + ": have it made anew by `equipoise federation propose`",
    )
    require(
        run.clients == len(agreement.silos),
        f"clients={run.clients} with {len(agreement.silos)} silos: one is one client",
    )
    _check_members(agreement.silos)
    _check_sizes(run, agreement.sizes)


def _texts(value: Any) -> list[str]:
    """The words in a setting, which operators read before they agree."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    parts = value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if isinstance(part, str)]


def no_paths(run: Settings) -> dict[str, Any]:
    """The settings that name files, without them. `person` is a column where there is a label."""
    return NO_PATHS if run.label else {**NO_PATHS, "person": None}


def check_run(run: Settings) -> None:
    """Refuse a run that protects nobody: nothing of it may leave a silo."""
    require(run.epsilon != float("inf"), "epsilon=inf: without noise nothing may leave a silo")
    require(
        run.mechanism.at_label,
        f"noise_rule={run.noise_rule}: it spends more than its label says; use exact",
    )
    require(
        not run.simulation,
        "simulate_noise_seed and diagnostics are for simulations: between silos noise is secret",
    )
    run.promise.check_clients(run.clients or 1)


def _check_members(silos: Sequence[Member]) -> None:
    for what in ("name", "node", "mask"):
        most, number = Counter(getattr(member, what) for member in silos).most_common(1)[0]
        require(number == 1, f"silos: two of them have the {what} {most}: each needs its own")
    for member in silos:
        check_public(member.keys)


def _check_sizes(run: Run, sizes: tuple[int, ...] | None) -> None:
    if run.unit == "client":
        require(sizes is None, "records with unit=client, where they are private: leave them out")
        return
    if sizes is None:
        raise InvalidValue(
            f"unit={run.unit} needs the number of {run.unit}s of every silo, which is public then: "
            "give them in the order of the silos (--records 9000 2600 420)"
        )
    require(
        len(sizes) == run.clients and min(sizes) >= 1,
        f"records={sizes}: {len(sizes)} numbers for {run.clients} silos; give one for each, at "
        "least 1",
    )

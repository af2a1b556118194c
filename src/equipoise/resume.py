"""A run that survives its process: what it needs to go on, in a journal, and when that is written.

No round is shown to anybody before an entry that holds it is on the disk, so a round that was seen
is never made again. Rounds after the newest entry, which nobody saw, are made again
with the noise that they had: every entry holds a new key of the operating system for the noise up
to the next one. So no entry can take the noise off a round that was released before it.
"""

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.fleets import Round, SimulatedFleet
from equipoise.journal import keep, kept
from equipoise.privacy.noise import NoiseSource, RepeatableNoise
from equipoise.result import Diagnosis, Point
from equipoise.settings import Run
from equipoise.tasks.task import Clients, NotesFailures

if TYPE_CHECKING:
    from equipoise.engine import Inside, Trained

EVERY = 1.0  # seconds of work from one entry to the next, at least
SHARE = 0.05  # of the time of training, for writing entries, at most
MOST_WAITING = 2**28  # bytes of rounds that wait to be shown
Tensors = dict[str, Tensor]


class Parts(NamedTuple):
    """All of a run that does not follow from its settings and the clients' records."""

    outcome: "Trained"
    inside: "Inside"
    fleet: SimulatedFleet
    clients: Clients
    noise: NoiseSource

    def packed(self, round: Round) -> tuple[dict[str, Any], Tensors]:
        """As they are after this round: small things in words, and tensors."""
        words = {
            "number": round.number,
            "iteration": round.iteration,
            "curve": [asdict(point) for point in self.outcome.curve],
            "diagnoses": [asdict(seen) for seen in self.outcome.diagnoses],
            "failed": self.outcome.failed,
            "key": self.noise.key.hex() if isinstance(self.noise, RepeatableNoise) else None,
        }
        server = {"known": round.known, "average64": round.average64}
        tensors = {name: tensor for name, tensor in server.items() if tensor is not None}
        tensors |= _named("memory", self.fleet.remembered())
        tensors |= _named("inside", self.inside.collected())
        tensors |= _named("useless", self._useless())
        return words, tensors

    def unpack(self, words: dict[str, Any], tensors: Tensors, d: int) -> Round | None:
        """Make them what they were, and return the round after which that was; None where there
        had been none."""
        if isinstance(self.noise, RepeatableNoise):
            self.noise.begin(bytes.fromhex(words["key"]))
        self.outcome.curve[:] = [Point(**point) for point in words["curve"]]
        if not words["number"]:
            return None
        self.outcome.diagnoses[:] = [Diagnosis(**seen) for seen in words["diagnoses"]]
        self.outcome.failed = words["failed"]
        known, average64 = tensors["known"], tensors["average64"]
        self.fleet.remember(_part(tensors, "memory"), known)
        self.inside.collect(_part(tensors, "inside"))
        for name, mark in self._useless().items():
            mark.copy_(_part(tensors, "useless")[name])
        return Round(
            words["number"],
            words["iteration"],
            known[..., :d],
            average64.to(known.dtype),
            known,
            average64,
        )

    def _useless(self) -> Tensors:
        marks = self.clients.useless if isinstance(self.clients, NotesFailures) else ()
        return {str(client): mark for client, mark in enumerate(marks)}


class RunJournal:
    """The journal of one run. `number` is the round after which it stands."""

    def __init__(self, path: Path, run: Run, fingerprint: str) -> None:
        self._path, self.number = path, 0
        self._head = {"format": 1, "run": run.model_dump(mode="json"), **_made_with()}
        self._entry = kept(path)
        if self._entry is None:
            self._head |= _salted(fingerprint, os.urandom(16))
        else:
            self._check(self._entry.head, fingerprint)
            self.number = int(self._entry.head["stand"]["number"])

    @property
    def name(self) -> str:
        """Of this run, and no other: the same when it goes on."""
        salt = bytes.fromhex(self._head["salt"])
        return blake2b(b"the name of a run", digest_size=8, key=salt).hexdigest()

    def begin(self, parts: Parts, d: int) -> Round | None:
        """The round after which to go on, in these parts too; or None, at the beginning of a
        run."""
        if self._entry is None:
            self._write(parts, Round(0, 0, torch.empty(0)))
            return None
        from safetensors.numpy import load

        tensors = {name: torch.from_numpy(array) for name, array in load(self._entry.body).items()}
        words, self._entry = self._entry.head["stand"], None
        return parts.unpack(words, tensors, d)

    def shown(self, rounds: Iterable[Round], parts: Parts, total: int) -> Iterator[Round]:
        """The rounds, each of them when it is in the journal."""
        waiting: list[Round] = []
        every, written = EVERY, monotonic()
        for round in rounds:
            if round.number <= self.number:
                yield round
                continue
            waiting.append(round._replace(known=None, average64=None))
            late = monotonic() - written >= every or _size(waiting) > MOST_WAITING
            if round.number == total or late:
                if isinstance(parts.noise, RepeatableNoise):
                    parts.noise.begin(os.urandom(32))
                before = monotonic()
                self._write(parts, round)
                every = max(EVERY, (monotonic() - before) / SHARE)
                yield from waiting
                waiting, written = [], monotonic()

    def _write(self, parts: Parts, round: Round) -> None:
        from safetensors.numpy import save

        words, tensors = parts.packed(round)
        body = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        try:
            keep(self._path, {**self._head, "stand": words}, [body])
        except OSError as error:
            raise EquipoiseError(
                f"out={self._path.parent}: {error.strerror}, so round {round.number} cannot be "
                f"kept; {_way_out(self.number)}"
            ) from None
        self.number = round.number

    def _check(self, head: dict[str, Any], fingerprint: str) -> None:
        """Refuse to go on with another run, other records, or other arithmetic."""
        out, other = self._path.parent, "or choose another folder, for a run of its own"
        before, now = head.get("run", {}), self._head["run"]
        names = [name for name in now if before.get(name) != now[name]]
        if names:
            had, has = (_listed(run, names) for run in (before, now))
            raise InvalidValue(
                f"out={out} holds an unfinished run with {had}, not {has}: give the settings of "
                f"that run, {other}"
            )
        for name, value in _made_with().items():
            if head.get(name) != value:
                raise InvalidValue(
                    f"out={out} holds an unfinished run that was begun with {name} "
                    f"{head.get(name)}, and this is {value}: its numbers would differ; go on as it "
                    f"was begun, {other}"
                )
        salted = _salted(fingerprint, bytes.fromhex(head["salt"]))
        if salted["records"] != head["records"]:
            raise InvalidValue(
                f"out={out} holds an unfinished run on other records, or with another task file, "
                f"than these: put those back, {other}"
            )
        self._head |= salted


def _way_out(number: int) -> str:
    if not number:
        return "no budget is spent"
    return (
        f"the run stands after round {number}: make room and start the same again, nothing is "
        "spent twice"
    )


def _made_with() -> dict[str, Any]:
    """What the last bits of a run depend on besides its settings and records."""
    return {
        "equipoise": version("equipoise"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }


def _salted(fingerprint: str, salt: bytes) -> dict[str, str]:
    """By which the records are known again, and no others are."""
    records = blake2b(fingerprint.encode(), digest_size=32, key=salt).hexdigest()
    return {"salt": salt.hex(), "records": records}


def _listed(run: dict[str, Any], names: list[str]) -> str:
    """The first few of these settings, as a user would say them."""
    several = ", ".join(f"{name}={_value(run.get(name))}" for name in names[:3])
    return several + (" and others" if len(names) > 3 else "")


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _size(rounds: list[Round]) -> int:
    """Roughly, in bytes."""
    return 2 * len(rounds) * rounds[-1].x.nbytes


def _named(part: str, tensors: Tensors) -> Tensors:
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}


def _part(tensors: Tensors, part: str) -> Tensors:
    return {
        name.removeprefix(f"{part}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{part}.")
    }

"""A silo: one client of an agreement, on its own machine, that answers the lead's questions.

In this order: has this round been answered before? Then the same bytes again, if the same was
asked. Is it the next round, and a model? Is it paid for? Then one `client_round`, the only place
where records turn into something that may leave; and before that leaves it is in the ledger, with
all that the next round begins from. A silo that is killed anywhere on the way goes on from there.

What leaves is a round and a vector, or one word. Why a silo refuses, it says to its own log.
Whether a round fails may depend on records: so the word for that leaves once, and then nothing is
made until the operator, who has read the log, starts the silo again.
"""

import logging
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.engine import Seat, algorithm_of, noise_of
from equipoise.errors import EquipoiseError, require
from equipoise.federation.agreement import Agreement
from equipoise.federation.masks import MaskKey, mask
from equipoise.federation.messages import (
    DONE,
    BadMessage,
    Message,
    Numbers,
    answer,
    digest,
    read_question,
    refusal,
)
from equipoise.fleets import Broadcast, client_round
from equipoise.privacy.clip import whole_steps
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.mechanisms.record_message import stability
from equipoise.privacy.noise import SecretNoise
from equipoise.tasks.persons import held
from equipoise.tasks.task import NotesFailures, Task
from equipoise.training import Prepared

log = logging.getLogger("equipoise.silo")


def check_records(agreement: Agreement, index: int, part: Task) -> None:
    """Refuse a part that has not as many records, or persons, as was agreed on."""
    if agreement.sizes is None:
        return
    unit, agreed = agreement.run.unit, agreement.sizes[index]
    (number,) = held(part.persons().owners or ()) if unit == "person" else part.clients.sizes
    require(
        number == agreed,
        f"{number} {unit}s where the agreement says {agreed} for {agreement.silos[index].name}: "
        "give the file that was counted, or have the agreement made anew with the right number",
    )


def prepared_for(agreement: Agreement, index: int, part: Task) -> Prepared:
    """The run as one silo makes it, with what it releases and spends itself."""
    check_records(agreement, index, part)
    ready = agreement.prepared(part)
    return ready._replace(account=ready.account.of_client(index))


class Silo:
    """The `index`-th client of an agreement, with its part of the task: what is served to a link
    is `answer`."""

    def __init__(
        self, agreement: Agreement, index: int, ready: Prepared, ledger: Ledger, key: MaskKey
    ) -> None:
        self.agreement, self.ledger, self._index, self._key = agreement, ledger, index, key
        self._failed = False
        run, part = ready.run, ready.task
        self._device = part.device
        self.clients, self._schedule = part.clients, ready.schedule
        largest = max(agreement.sizes) if agreement.sizes else None
        weights, seat = ready.facts.weights(run.weights), Seat(index, largest)
        self._noise, self._algorithm = SecretNoise(), algorithm_of(run)
        self._gradient, self._releaser = noise_of(
            run, part, ready.account, self._noise, weights, seat
        )
        self._like = self._algorithm.first_broadcast(torch.zeros_like(part.x0))
        self._farthest = math.inf
        if agreement.sizes and run.mechanism.by_stability:
            bound = stability(run, ready.facts, ready.schedule, agreement.sizes[index])
            self._farthest = bound.farthest(agreement.dimension)

    def answer(self, message: bytes) -> bytes | None:
        """What leaves for the lead; None, once it says that the run is over."""
        name = self.agreement.digest
        try:
            question = read_question(message, name)
            if question.round == DONE:
                self.ledger.close(self.agreement.name)
                log.info("the run is over: what was kept for it is wiped")
                return None
            return self._answered(question, digest(message))
        except BadMessage as refused:
            log.warning("%s", refused)
            return refusal(name, refused.word)
        except EquipoiseError as error:  # of the ledger
            log.warning("%s", error)
            return refusal(name, "ledger")
        except Exception:
            log.exception("nothing was sent; no round is made before a new start")
            self._failed = True
            return refusal(name, "failed")

    def _answered(self, question: Message, asked: bytes) -> bytes:
        """From the ledger, if it is there; else made, and written there first."""
        round, name = question.round, self.agreement.name
        before = self.ledger.answer(name, round)
        if before:
            if before.question != asked:
                raise BadMessage("another")
            return before.answer
        if round != self.ledger.rounds(name) + 1 or round > len(self._schedule):
            raise BadMessage("order")
        known = self._model(question.numbers)
        self.ledger.check_round(name, round)  # or a closed run would be worked on, again and again
        if self._failed:
            raise BadMessage("failed")
        release, state = self._made(round, known, self.ledger.state(name))
        sent = answer(self.agreement.digest, round, self._sent(release, asked, round))
        self.ledger.commit(name, round, asked, sent, state)
        log.info("round %d of %d is answered", round, len(self._schedule))
        return sent

    def _model(self, numbers: Numbers) -> Tensor:
        """What the lead knows, if it can be that."""
        if torch.from_numpy(numbers[:0].copy()).dtype != self._like.dtype:
            raise BadMessage("size")
        if numbers.shape != self._like.shape:
            raise BadMessage("size")
        if not np.isfinite(numbers).all():
            raise BadMessage("finite")
        known = torch.from_numpy(numbers.copy())
        if known.norm() > self._farthest:  # made up: no training gets there
            raise BadMessage("far")
        return known

    def _made(self, round: int, known: Tensor, packed: bytes | None) -> tuple[Tensor, bytes]:
        """The round. Whatever fails in it is a failure: of a ledger errors speak otherwise."""
        try:
            return self._round(round, known, packed)
        except EquipoiseError as error:
            raise RuntimeError(str(error)) from error

    def _round(self, round: int, known: Tensor, packed: bytes | None) -> tuple[Tensor, bytes]:
        """The release, and what the next round begins from."""
        begun = sum(self._schedule[: round - 1])
        iterations = range(begun, begun + self._schedule[round - 1])
        known = known.to(self._device)
        state = self._algorithm.init(known)
        if packed is not None:
            state = self._unpacked(packed, type(state))
        release, memory = client_round(
            Broadcast(round, iterations, known),
            state,
            self._algorithm,
            self._releaser,
            self._gradient,
            self._noise,
        )
        return release.update, self._packed(memory.state)

    def _sent(self, release: Tensor, asked: bytes, round: int) -> Numbers:
        """Whole steps of the lattice, under masks where only sums may be read; or as it is."""
        if not self.agreement.in_steps:
            numbers: Numbers = release.numpy()
            return numbers
        steps = whole_steps(release, self._releaser.lattice.gamma)
        if self.agreement.run.trust == "local":
            return steps
        keys = [member.keys.mask_bytes() for member in self.agreement.silos]
        about = self.agreement.digest + round.to_bytes(4) + asked
        return steps + mask(self._key, self._index, keys, about, len(steps))

    def _packed(self, state: Any) -> bytes:
        from safetensors.torch import save

        tensors = {
            f"state.{name}": part.cpu().contiguous() for name, part in state._asdict().items()
        }
        marks = self.clients.useless if isinstance(self.clients, NotesFailures) else ()
        tensors |= {f"useless.{number}": mark for number, mark in enumerate(marks)}
        packed: bytes = save(tensors)
        return packed

    def _unpacked(self, packed: bytes, kind: Any) -> Any:
        from safetensors.torch import load

        tensors = load(packed)
        marks = self.clients.useless if isinstance(self.clients, NotesFailures) else ()
        for number, mark in enumerate(marks):
            mark.copy_(tensors[f"useless.{number}"])
        kept = {name: tensors[f"state.{name}"].to(self._device) for name in kind._fields}
        return kind(**kept)

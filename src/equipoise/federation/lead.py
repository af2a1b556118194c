"""The lead: proposes an agreement, asks the silos round by round, and averages what they send."""

import secrets
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.algorithms.schedule import schedule_of
from equipoise.engine import Trained, Watch, algorithm_of, run_rounds
from equipoise.errors import EquipoiseError, require
from equipoise.facts import Facts
from equipoise.federation.agreement import Agreement, Member, check_agreement, check_run, no_paths
from equipoise.federation.messages import DONE, BadMessage, Numbers, question, read_answer
from equipoise.federation.part import digest_of, public_part
from equipoise.fleets.fleet import Broadcast
from equipoise.fleets.keys import PublicKeys
from equipoise.fleets.link import Link, MissingSilo
from equipoise.origin import Origin, now
from equipoise.privacy.clip import average, mean_of_sum, of_steps
from equipoise.privacy.lattice import NOT_ROUNDED
from equipoise.result import Federated, Result
from equipoise.settings import Run, Settings
from equipoise.tasks import Task
from equipoise.tasks.bounds import read_text
from equipoise.training import (
    account_of,
    measures_on_test,
    result_of,
)


def propose(
    settings: Settings, silos: Sequence[PublicKeys], sizes: Sequence[int] | None = None
) -> Agreement:
    """What these silos would agree on: a run without paths, and all that follows from it. Where the
    unit is a record or a person, `sizes` are their numbers at each silo."""
    number = len(silos)
    require(
        settings.clients in (None, number),
        f"clients={settings.clients} with {number} silos: each is one client; leave clients out",
    )
    settings = Settings.of(**settings.model_dump() | {"clients": number, "data": ()})
    check_run(settings)
    bounds = None if settings.bounds is None else read_text(settings.bounds)
    task = public_part(settings, bounds)
    facts = _facts(task, settings, sizes)
    run = settings.resolve(facts)
    spent = account_of(run, facts, schedule_of(run))
    agreement = Agreement(
        version=version("equipoise"),
        nonce=secrets.token_hex(16),
        run=Run.of(**run.model_dump() | no_paths(run) | {"task": Path(run.task).name}),
        silos=tuple(Member(**keys._asdict()) for keys in silos),
        dimension=facts.dimension,
        sizes=facts.sizes,
        bounds=bounds,
        task_file=digest_of(settings.task),
        encoder=task.encoder and task.encoder.fingerprint,
        lattices=tuple(event.lattice for event in spent.events),
    )
    check_agreement(agreement)
    return agreement


def _facts(task: Task, settings: Settings, sizes: Sequence[int] | None) -> Facts:
    public = None if sizes is None else tuple(sizes)
    facts = task.facts(settings.unit, public)
    return facts._replace(clients=settings.clients or facts.clients, sizes=public)


class SiloFleet:
    """The silos of an agreement, behind a link."""

    def __init__(self, agreement: Agreement, facts: Facts, link: Link, x0: Tensor) -> None:
        self._agreement, self._link = agreement, link
        self._shape = algorithm_of(agreement.run).update_shape(x0)
        self._weights = facts.weights(agreement.run.weights)

    def exchange(self, broadcast: Broadcast) -> Tensor:
        agreement, x = self._agreement, broadcast.x
        asked = question(agreement.digest, broadcast.round, x.numpy())
        answers = self._link.ask(asked)
        if agreement.run.trust == "local":
            releases = [self._release(i, answer, broadcast) for i, answer in enumerate(answers)]
            mean = average(torch.stack(releases), NOT_ROUNDED, self._weights)
        else:
            steps = [self._numbers(i, answer, broadcast) for i, answer in enumerate(answers)]
            total = of_steps(np.stack(steps).sum(0, dtype=np.uint32), agreement.lattice(0))
            mean = mean_of_sum(total, agreement.run.clients, self._weights)
        return mean.to(x.dtype)

    def _release(self, silo: int, answer: bytes, broadcast: Broadcast) -> Tensor:
        numbers = self._numbers(silo, answer, broadcast)
        if self._agreement.in_steps:
            return of_steps(numbers, self._agreement.lattice(silo))
        return torch.from_numpy(numbers.copy())

    def _numbers(self, silo: int, answer: bytes, broadcast: Broadcast) -> Numbers:
        """What a silo released in this round; refused where it is no release."""
        name = self._agreement.silos[silo].name
        try:
            message = read_answer(answer, self._agreement.digest)
        except BadMessage as refused:
            raise EquipoiseError(f"silo {name} {refused}") from None
        numbers, whole = message.numbers, message.numbers.dtype == np.uint32
        fits = numbers.shape == self._shape and whole == self._agreement.in_steps
        if message.round != broadcast.round or not fits or not np.isfinite(numbers).all():
            raise EquipoiseError(f"silo {name} sent no release of round {broadcast.round}")
        return numbers


def beforehand(agreement: Agreement, task: Task) -> Result:
    """What can be said of the run before it is made: settings, account, notices; no model."""
    ready = agreement.prepared(task)
    nothing = Trained(ready.run, len(ready.schedule), task.x0)
    return _of(agreement, result_of(ready, nothing))


def lead(
    agreement: Agreement,
    task: Task,
    link: Link,
    watch: Watch = lambda rounds, total: rounds,
) -> Result:
    """Train with the silos of the agreement; `task` is the lead's part, without private records.

    Started again after anything died it makes the same run: silos answer what they were asked
    before with the same bytes, and pay for nothing twice.
    """
    ready = agreement.prepared(task)
    run, spent = ready.run, ready.account
    fleet = SiloFleet(agreement, ready.facts, link, task.x0)
    ((trained,),) = run_rounds(
        [task], [[run]], [[spent]], ready.schedule, ready.noise, watch, elsewhere=fleet
    )
    result = result_of(ready, trained, measures_on_test(task, trained.x))
    origin = None if run.simulation else Origin(run=agreement.name, when=now())
    return _of(agreement, result).model_copy(update={"origin": origin})


def _of(agreement: Agreement, result: Result) -> Result:
    federated = Federated(
        silos=tuple(member.name for member in agreement.silos),
        agreement=agreement.name,
        masked=agreement.run.trust != "local",
    )
    return result.model_copy(update={"federated": federated})


def dismiss(agreement: Agreement, link: Link) -> str:
    """Tell the silos that the run is over, so that they wipe what they kept for it; returns who did
    not hear it, if anybody."""
    try:
        link.ask(question(agreement.digest, DONE, np.empty(0, np.float64)))
    except MissingSilo as missing:
        return str(missing)
    return ""

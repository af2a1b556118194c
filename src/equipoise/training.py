"""`train`: settings in, a result out; `rounds`: the communicated models, one by one."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from equipoise.algorithms.schedule import Schedule, schedule_of
from equipoise.charging import Budget, budget_of
from equipoise.config import read_config
from equipoise.engine import Trained, Watch, record_clients, run_rounds, single_fleet
from equipoise.errors import require
from equipoise.facts import Facts
from equipoise.fields import as_paths
from equipoise.fleets import Round, averaged, server_rounds
from equipoise.measures import Measures
from equipoise.measuring import RESAMPLES, THRESHOLD, measures_of
from equipoise.origin import About, Origin, Told, fingerprints, now, read_about, taken_as_public
from equipoise.privacy.events import Account, account
from equipoise.privacy.noise import NoiseSource, RepeatableNoise, SecretNoise, SimulatedNoise
from equipoise.privacy.trade_off import power
from equipoise.result import Point, PublicOnly, Result
from equipoise.resume import RunJournal
from equipoise.settings import Run, Settings
from equipoise.tasks import Task, TaskOptions, load_measure, load_task
from equipoise.tasks.network import ModelClients
from equipoise.tasks.placing import chosen_device, placed
from equipoise.tasks.public import public_only
from equipoise.tasks.task import Predicts

if TYPE_CHECKING:
    from equipoise.planning.plan import Plan
    from equipoise.saved import Claim


class Prepared(NamedTuple):
    """A run before its first step: everything is known but what training will find."""

    task: Task
    facts: Facts
    run: Run
    schedule: Schedule
    account: Account
    noise: NoiseSource
    command: str | None
    alone: PublicOnly | None


def train(
    settings: "Settings | Plan | None" = None,
    *,
    watch: Watch = lambda rounds, total: rounds,
    out: "str | os.PathLike[str] | None" = None,
    log: str | None = None,
    ledger: "str | os.PathLike[str] | None" = None,
    cap_epsilon: float | None = None,
    cap_delta: float | None = None,
    about: "About | str | os.PathLike[str] | None" = None,
    salt: "str | os.PathLike[str] | None" = None,
    **values: Any,
) -> Result:
    """Train in this process: ``train(task="breast-cancer", epsilon=2, clip=1, ...)``, with the
    keywords of the command; or from Settings, or from a Plan (with anyway=True also from one that
    says not to). A task that was made in Python is given beside a plan: ``train(plan, task=task)``.

    settings   Settings or a Plan; or else the fields of `Settings` as keywords
    watch      watch(rounds, total) may wrap the iterator of rounds, to show progress; it begins
               with the round after which a run goes on
    out        a folder to save the result in. A run whose process died there goes on from its last
               round when the same is started again, and spends nothing twice
    log        what else the curve is written for: csv, tensorboard or mlflow
    ledger     a file that counts what all runs on these records tell together: this one is
               admitted whole before its first step, or refused
    cap_epsilon, cap_delta   the ledger's cap, for the unit of its first run, which brings it
    about      what only you can say, purpose, controller and the like, for the statement: a TOML
               file or an About
    salt       a file of 32 random bytes, made if need be, under which the result notes
               fingerprints of the data files: keep it, and give it to nobody
    values     the fields of `Settings`; `task` may be a `Task` that was made in Python

    >>> result = equipoise.train(task="quadratic", epsilon=2, clip=0.1, iterations=8, local_steps=2)
    >>> result.private, result.rounds, 1.999 < result.epsilon_spent <= 2  # never above the budget
    (True, 4, True)
    """
    from equipoise.saved import check_log, claimed

    require(out is not None or log is None, f"log={log} without out: give the folder to write into")
    check_log(log)
    budget = budget_of(ledger, cap_epsilon, cap_delta)
    if not isinstance(about, About | None):
        about = read_about(about)
    beforehand = _planned(Told(about, salt=salt), settings, values.get("plan"))
    if out is None:
        return train_within(None, settings, watch, budget, beforehand, **values)
    with claimed(out) as claim:
        result = train_within(claim, settings, watch, budget, beforehand, **values)
        claim.save(result, log)
        return result


def _planned(beforehand: Told, settings: Any, file: Any) -> Told:
    """By which plan, if by one: a value, or a file."""
    if file is not None:
        from equipoise.planning.plan import read_plan

        public = read_plan(file).public  # which says what is wrong with the file
        return beforehand.planned(Path(file).read_bytes(), public)
    if hasattr(settings, "to_train"):
        return beforehand.planned(f"{settings.to_json()}\n".encode(), settings.public)
    return beforehand


def train_within(
    claim: "Claim | None",
    settings: "Settings | Plan | None",
    watch: Watch = lambda rounds, total: rounds,
    budget: Budget | None = None,
    beforehand: Told | None = None,
    **values: Any,
) -> Result:
    """As `train`, with a journal in a folder that was claimed; not saved yet."""
    from equipoise.saved import check_room

    if claim:
        check_room(claim.folder)
    beforehand = beforehand or Told()
    ready, journal = prepare(settings, **values), None
    require(
        beforehand.salt is None or not ready.run.simulation,
        f"salt={beforehand.salt} with a simulation, of which nothing is noted that differs each "
        "time: leave it out",
    )
    prints = fingerprints(ready.run.data, beforehand.salt)
    if claim:
        check_room(claim.folder, ready.task.dimension)
        journal = RunJournal(claim.journal, ready.run, ready.task.fingerprint)
        claim.begun = journal.number
        if isinstance(ready.noise, SecretNoise):
            ready = ready._replace(noise=RepeatableNoise())
    name = journal.name if journal else os.urandom(8).hex()

    def goes_on() -> bool:
        return bool(journal and claim and (claim.keep or journal.number))

    try:
        with budget.charged(ready, name, goes_on) if budget else nullcontext() as noted:
            ((trained,),) = run_rounds(
                [ready.task],
                [[ready.run]],
                [[ready.account]],
                ready.schedule,
                ready.noise,
                (lambda rounds, total: watch(noted(rounds), total)) if noted else watch,
                journal=journal,
            )
    except KeyboardInterrupt:
        if journal and journal.number:
            raise KeyboardInterrupt(
                f"after round {journal.number} of {len(ready.schedule)}; start the same again to "
                "go on from there: nothing is spent twice"
            ) from None
        raise
    finally:
        if claim:
            claim.keep = goes_on()
    result = result_of(ready, trained, measures_on_test(ready.task, trained.x))
    known: dict[str, Any] = {"about": beforehand.about}
    if not ready.run.simulation:
        earlier, standings = budget.noted(name) if budget else (None, ())
        known["origin"] = Origin(
            run=name,
            when=now(),
            plan=beforehand.plan,
            pool=beforehand.pool,
            earlier=earlier,
            ledger=standings,
            fingerprints=prints,
        )
    if not ready.command:
        clients, encoder = ready.task.clients, ready.task.encoder
        known["module"] = clients.module if isinstance(clients, ModelClients) else encoder
    return result.model_copy(update=known)


def rounds(settings: "Settings | Plan | None" = None, **values: Any) -> Iterator[Round]:
    """The communicated models of a run, as they are made: number, iteration, the model x [d], and
    the average of those so far.

    The noise is made for all rounds; to stop early spends less than was accounted for, never more.

    settings   Settings or a Plan; or else the fields of `Settings` as keywords
    values     as those of `train`

    >>> [round.number for round in equipoise.rounds(
    ...     task="quadratic", epsilon=2, clip=0.1, iterations=4, local_steps=2)]
    [1, 2]
    """
    ready = prepare(settings, **values)
    fleet, x0 = single_fleet(ready.task, ready.run, ready.account, ready.noise)
    return averaged(server_rounds(x0, ready.schedule, fleet, fleet.algorithm, ready.run.gamma))


def prepare(settings: "Settings | Plan | None" = None, **values: Any) -> Prepared:
    """Load the task, settle what was left open, draw the schedule, and account for all of it."""
    own = values.get("task")
    settings = settings_of(settings, values)
    options = TaskOptions.of(settings)
    if isinstance(own, Task):
        require(
            options == TaskOptions(seed=settings.seed, unit=settings.unit),
            "a task object has its own clients, batch and data: leave them out",
        )
    task = own if isinstance(own, Task) else load_task(settings.task, options)
    device = chosen_device(settings.device, task, settings.unit)
    task = placed(task, device, settings.unit)
    facts = task.facts(settings.unit)
    run = settings.resolve(facts).model_copy(update={"device": device})
    run.promise.check_clients(run.clients)
    if run.unit != "client":
        record_clients(task, run)
    schedule = schedule_of(run)
    seed = run.simulate_noise_seed
    noise = SecretNoise() if seed is None else SimulatedNoise(seed)
    command = None if isinstance(own, Task) else settings.command
    spent = account_of(run, facts, schedule)
    return Prepared(task, facts, run, schedule, spent, noise, command, public_comparison(task))


def public_comparison(task: Task) -> PublicOnly | None:
    """What public records alone teach: found out before anything private is spent."""
    alone = public_only(task)
    return PublicOnly(**alone._asdict()) if alone else None


def settings_of(settings: "Settings | Plan | None", values: dict[str, Any]) -> Settings:
    anyway = bool(values.pop("anyway", False))
    if settings is None and "plan" in values:
        from equipoise.planning.plan import read_plan

        settings = read_plan(values.pop("plan"))
    require(
        settings is None or isinstance(settings, Settings) or hasattr(settings, "to_train"),
        f"settings is a {type(settings).__name__}: give Settings, a Plan, or keywords, "
        'train(task="breast-cancer", epsilon=2, clip=1)',
    )
    own = values.get("task")
    if settings is not None and isinstance(own, Task):  # which a plan can only name
        values = {name: value for name, value in values.items() if name != "task"}
    if settings is not None and not isinstance(settings, Settings) and "device" in values:
        # which no plan prescribes
        settings = settings.to_train(anyway).model_copy(update={"device": values["device"]})
        values = {name: value for name, value in values.items() if name != "device"}
    require(
        settings is None or not values,
        f"give {', '.join(values)} either in settings or as keywords, not both",
    )
    if settings is None:
        if config := values.pop("config", None):
            values.update({**read_config(config), **values})
            own = values.get("task")
        name = own.name if isinstance(own, Task) else own
        return Settings.of(**{**values, "task": name} if own is not None else values)
    return settings if isinstance(settings, Settings) else settings.to_train(anyway)


def account_of(run: Run, facts: Facts, schedule: Schedule) -> Account:
    """What the run will release and spend, from public facts alone."""
    mechanism = run.mechanism
    events = mechanism.events(run, facts, schedule)
    constants = mechanism.follows_from(run, facts, schedule)
    facts.weights(run.weights)  # refused here, before anything is spent, where they do not fit
    spent = account(events, run.delta, not mechanism.by_stability, constants)
    if run.max_tpr is not None and run.fpr is not None:
        reached = power(spent.events, run.fpr)
        require(
            reached <= run.max_tpr,
            f"max_tpr={run.max_tpr} at fpr={run.fpr}: with this noise an attacker may find "
            f"{reached:.4g}, since it is not that of plain Gaussian releases; give an epsilon "
            f"below {run.epsilon:.3g} instead",
        )
    return spent


def train_together(
    tasks: Sequence[Task],
    runs: Sequence[Sequence[Run]],
    points: int,
    ends: dict[int, torch.Tensor] | None = None,
) -> list[list[Result]]:
    """Simulated runs in one computation: a row for each task (each public seed), with the same
    settings in the same order.

    Runs may differ in seeds, algorithm, budget, clip threshold, rule of noise and what they return.
    They are measured `points` times at most. `ends` is what earlier runs that begin alike know of
    their first steps (`engine.first_steps_of`).
    """
    schedule = schedule_of(runs[0][0])
    device, unit = runs[0][0].device, runs[0][0].unit
    tasks = [placed(task, device, unit) for task in tasks]
    accounts = [
        [account_of(run, task.facts(run.unit), schedule) for run in row]
        for task, row in zip(tasks, runs, strict=True)
    ]
    seeds = [seed for row in runs if (seed := row[0].simulate_noise_seed) is not None]
    require(
        len(seeds) == len(runs),
        "runs that are trained together are simulations: give simulate_noise_seed",
    )
    require(
        all(
            run.simulate_noise_seed == seed
            for seed, row in zip(seeds, runs, strict=True)
            for run in row
        ),
        "runs of a row have one simulate_noise_seed: they share their noise",
    )
    alone = [public_comparison(task) for task in tasks]
    noises = SimulatedNoise(*seeds)
    trained = run_rounds(tasks, runs, accounts, schedule, noises, points=points, ends=ends)
    results = []
    for s, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
        noise, facts = SimulatedNoise(seed), task.facts(runs[s][0].unit)
        row = zip(runs[s], accounts[s], trained[s], strict=True)
        results.append(
            [
                result_of(
                    Prepared(task, facts, run, schedule, spent, noise, None, alone[s]),
                    outcome,
                    measures_on_test(task, outcome.x, resamples=0),
                )
                for run, spent, outcome in row
            ]
        )
    return results


def measures_on_test(task: Task, x: torch.Tensor, resamples: int = RESAMPLES) -> Measures | None:
    """Of the model [d] on the public test records; numbers alone, of a sweep, without intervals and
    clients."""
    if not isinstance(task.measure, Predicts):
        return None
    predictions = task.measure.predictions(x)
    if predictions and not resamples:
        predictions = predictions._replace(clients=())
    return measures_of(predictions, resamples=resamples) if predictions else None


def result_of(ready: Prepared, trained: Trained, measures: Measures | None = None) -> Result:
    run, task, spent = ready.run, ready.task, ready.account
    curve, units = trained.curve, ready.facts.units(run.unit)
    error, _, client_error = curve[-1].of(run.returns) if curve else (None,) * 3
    return Result(
        run=run,
        account=spent,
        notices=_notices(ready, units, trained.failed),
        private=not run.simulation
        and spent.epsilon <= run.epsilon
        and not run.promise.vacuous(units, spent.epsilon),
        rounds=trained.rounds,
        dimension=task.dimension,
        sizes=None if run.unit == "client" else ready.facts.sizes,
        mu=task.mu,
        L=task.L,
        noise_source=ready.noise.name if spent.sigma > 0 else "none",
        test_error=error,
        client_error=client_error,
        baseline_error=_baseline(task, curve),
        error_name=task.error_name,
        part=task.part,
        public_only=ready.alone,
        measures=measures,
        curve=curve,
        per_round=trained.diagnoses or None,
        failed=trained.failed,
        public=(*task.public, *taken_as_public(run)),
        parameters=task.shapes,
        reading=task.reading,
        repeat=ready.command,
        version=_version(),
        x=trained.x.numpy(),
    )


@lru_cache
def _version() -> str:
    return version("equipoise")


def _baseline(task: Task, curve: list[Point]) -> float | None:
    """The error without training: of the initial model, or of the best constant answer if that is
    better."""
    if not curve:
        return None
    start = curve[0].test_error
    return start if task.constant_error is None else min(start, task.constant_error)


def _notices(ready: Prepared, units: int, failed: str | None) -> list[str]:
    """What a reader must know before anything else."""
    run, task = ready.run, ready.task
    notices = _privacy_notices(run, units, ready.account.epsilon)
    if run.simulate_noise_seed is not None:
        notices.append(
            "SIMULATION, NOT PRIVATE: whoever knows the noise seed "
            f"{run.simulate_noise_seed} can subtract the noise."
        )
    if declared := _declared_public(run):
        notices.append(
            f"OUTSIDE THE GUARANTEE: {declared} declares records of your own file public: nothing "
            "protects these."
        )
    notices += task.notices
    if slow := _slow_layers(run, task):
        notices.append(
            "SLOW: these layers need a gradient formed for every single record, at many times the "
            f"cost: {'; '.join(slow)}."
        )
    if run.diagnostics:
        notices.append("NOT PRIVATE: diagnostics show private values without noise.")
    if failed:
        notices.append(f"FAILED: {failed}.")
    return notices


def _privacy_notices(run: Run, units: int, spent: float) -> list[str]:
    if run.epsilon == math.inf:
        return ["NOT PRIVATE: epsilon=inf, no noise was added."]
    if spent > run.epsilon:
        return [
            f"NOT PRIVATE AT ITS LABEL: the exact epsilon spent is {spent:.6g}, not the nominal "
            f"{run.epsilon:g} (noise rule {run.noise_rule}, v={run.v})."
        ]
    return run.promise.cautions(units, spent)


def _declared_public(run: Run) -> str:
    """The settings by which private files became public in part."""
    shares = {"test_share": run.test_share, "public_records": run.public_records}
    return " with ".join(
        f"{name}={value:g}" for name, value in shares.items() if value and run.data
    )


def _slow_layers(run: Run, task: Task) -> tuple[str, ...]:
    return () if run.unit == "client" else record_clients(task, run).slow_layers()


class Evaluation(NamedTuple):
    """What a model reaches on some records: as `Measured`, and its measures where the task says
    what the model's outputs mean."""

    error: torch.Tensor
    loss: torch.Tensor
    client_error: torch.Tensor | None
    measures: Measures | None


def evaluate(
    result: "Result | str | os.PathLike[str]",
    data: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]" = (),
    *,
    groups: str | None = None,
    threshold: float = THRESHOLD,
) -> Evaluation:
    """Error, loss and measures of a model. The figures are not noised: on private records they are
    outside every guarantee.

    result      a result, or the folder of one
    data        a file or files with records and their label; without any, the task's public test
                records
    groups      a column of these records, by whose groups all is told too (task csv)
    threshold   from which probability on a record is called positive, for sensitivity and
                specificity

    >>> result = equipoise.train(task="breast-cancer", clients=4, epsilon=float("inf"),
    ...     iterations=20, eta=2.0)
    >>> equipoise.evaluate(result).measures["auroc"].value > 0.95
    True
    """
    from equipoise.saved import load

    require(0 < threshold < 1, f"threshold={threshold} is not a probability between 0 and 1")
    result = result if isinstance(result, Result) else load(result)
    options = TaskOptions.of(result.run)
    measure = load_measure(result.run.task, options, as_paths(data), result.reading, groups)
    x = torch.from_numpy(result.x)
    predictions = measure.predictions(x) if isinstance(measure, Predicts) else None
    measures = measures_of(predictions, threshold) if predictions else None
    return Evaluation(*measure(x), measures)

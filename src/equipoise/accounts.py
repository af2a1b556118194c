"""What a run releases, under how much noise, and what that spends: for both units of privacy."""

import math
from typing import NamedTuple

from equipoise.algorithms import Schedule
from equipoise.errors import DataError, InvalidValue, require
from equipoise.privacy.gaussian import epsilon_spent, exact_v, lemma1_sigma, lemma1_v, noise_sigma
from equipoise.privacy.sampled import sampled_epsilon, sampled_noise
from equipoise.privacy.stability import Stability
from equipoise.result import ClientAccount
from equipoise.settings import Run
from equipoise.tasks import Task
from equipoise.tasks.linear import LinearClients


class Account(NamedTuple):
    """What is released how often, under how much noise, and what that spends, whatever rule chose
    the noise.

    releases       noisy vectors of one client: one a round, or one a local step if the noise is in
    the gradients
    sensitivity    how far one unit can move a release (the largest, if clients differ)
    sigma          the standard deviation, per coordinate, of what protects one release (the
    largest, if clients differ)
    client_sigma   what one client adds (the largest)
    per_client     if the unit is a record
    stability      the constants from which the sensitivity follows, if stability bounds it
    """

    releases: int
    sensitivity: float
    sigma: float
    client_sigma: float
    epsilon_spent: float
    per_client: list[ClientAccount] | None = None
    stability: dict[str, float] | None = None


def account_of(run: Run, task: Task, schedule: Schedule) -> Account:
    if run.unit == "client":
        return _of_clients(run, task, len(schedule))
    if any(size < 1 for size in task.clients.sizes):
        raise DataError("a client has no records: it cannot take part when the unit is a record")
    if run.noise_in == "gradient":
        return _of_sampled_gradients(run, task, sum(schedule))
    return _by_stability(run, task, schedule)


def _of_clients(run: Run, task: Task, releases: int) -> Account:
    guarantee = run.guarantee(run.clients)
    sigma, sensitivity = sigma_of(run, task, releases), guarantee.sensitivity(run.clip_norm)
    spent = epsilon_spent(sigma, releases, sensitivity, run.delta)
    return Account(releases, sensitivity, sigma, guarantee.client_sigma(sigma), spent)


def sigma_of(run: Run, task: Task, releases: int) -> float:
    """The noise that the adversary sees in one release, by the rule that the run names (unit
    client)."""
    guarantee = run.guarantee(run.clients)
    if run.noise_rule == "exact" or run.epsilon == math.inf:
        return noise_sigma(run.epsilon, run.delta, releases, guarantee.sensitivity(run.clip_norm))
    assert run.v is not None, "checked by Settings"
    v = lemma1_reading(run, task) if isinstance(run.v, str) else run.v
    return lemma1_sigma(run.epsilon, run.delta, run.p * run.iterations, run.clip_norm, v)


def lemma1_reading(run: Run, task: Task) -> float:
    """The number that a named reading of the paper's constant v stands for."""
    if not task.sizes_public:
        require(
            run.v in ("exact", "proof"),
            f"v={run.v} needs the clients' numbers of records, which are private here: give a "
            f"number",
        )
    records = max(min(task.clients.sizes), 1)
    batch = records if run.batch == "full" else run.batch
    exact = exact_v(run.epsilon, run.delta, run.guarantee(run.clients).sensitivity(1.0))
    return lemma1_v(str(run.v), exact, task.dimension, batch, records)


def rates_of(run: Run, sizes: tuple[int, ...]) -> tuple[float, ...]:
    """The sampling rate of every client: the common one, or what makes `batch` records on
    average.
    """
    if run.sampling_rate is not None:
        return (run.sampling_rate,) * len(sizes)
    if run.batch == "full":
        return (1.0,) * len(sizes)
    short = [i for i, size in enumerate(sizes) if size < run.batch]
    if short:
        raise InvalidValue(
            f"batch={run.batch} is more than the {sizes[short[0]]} records of client {short[0]}: "
            f"a secret sample cannot expect "
            "more records than there are; lower batch, or give sampling_rate"
        )
    return tuple(run.batch / size for size in sizes)


def _of_sampled_gradients(run: Run, task: Task, steps: int) -> Account:
    """Every local step of every client is a release. The noise is that of the largest rate; the
    others spend less."""
    sizes, rates = task.clients.sizes, rates_of(run, task.clients.sizes)
    sensitivity = run.guarantee(run.clients).sensitivity(run.clip_norm)
    if run.epsilon == math.inf:
        spent, noise, sigma = dict.fromkeys(rates, math.inf), 0.0, 0.0
    else:
        noise = sampled_noise(run.epsilon, run.delta, steps, max(rates), run.neighbours)
        spent = {
            rate: sampled_epsilon(noise, steps, rate, run.delta, run.neighbours)
            for rate in set(rates)
        }
        sigma = math.nextafter(noise * run.clip_norm, math.inf)
    clients = [
        ClientAccount(
            client=i,
            records=size,
            sampling_rate=rate,
            sensitivity=sensitivity,
            sigma=sigma,
            epsilon_spent=spent[rate],
        )
        for i, (size, rate) in enumerate(zip(sizes, rates, strict=True))
    ]
    return Account(steps, sensitivity, sigma, sigma, max(spent.values()), clients)


def stability_of(run: Run, task: Task, local_steps: int, records: int) -> Stability:
    """What bounds the influence of one record of a client; refused where nothing does."""
    clients = task.clients
    if not isinstance(clients, LinearClients) or task.L is None or task.mu is None:
        raise InvalidValue(
            f"noise_in={run.noise_in} with task={task.name}: it needs a regularised linear model "
            f"on bounded features, whose "
            "smoothness is known; use noise_in=gradient"
        )
    require(
        task.batch is None,
        f"noise_in={run.noise_in} holds for full local gradients: use batch=full",
    )
    features = math.sqrt((task.L - task.mu) / clients.link.curvature)  # L = curvature B^2 + mu
    bound = clients.link.steepest * features
    require(
        clients.link.scalar or run.clip_norm >= bound,
        f"clip={run.clip_norm:g} is below {bound:g}, the longest gradient of one record: a "
        f"clipped multinomial loss is not "
        "convex, and nothing bounds one record's influence; leave clip out",
    )
    return Stability(
        run.eta, local_steps, task.L, task.mu, min(run.clip_norm, bound), records, run.neighbours
    )


def _by_stability(run: Run, task: Task, schedule: Schedule) -> Account:
    """One release a round, of a client that one record moves at most so far; the longest round
    decides."""
    sizes, releases = task.clients.sizes, len(schedule)
    steady = [stability_of(run, task, max(schedule), records) for records in sizes]
    if run.noise_in == "message":
        sensitivities, units = [s.sensitivity for s in steady], [1] * len(sizes)
    else:  # noise in the mean gradient; sigma is told for the sum over the records
        sensitivities, units = [s.hidden_state_mu(1.0) for s in steady], list(sizes)
    largest = max(sensitivities)
    found = []
    for i, (sensitivity, unit) in enumerate(zip(sensitivities, units, strict=True)):
        enough_for = (
            largest if run.trust == "secure-aggregation" else sensitivity
        )  # one sum for all, or one's own message
        noise = noise_sigma(run.epsilon, run.delta, releases, enough_for)
        spent = epsilon_spent(noise, releases, sensitivity, run.delta)
        told = {"sensitivity": sensitivity * unit, "sigma": noise * unit, "epsilon_spent": spent}
        found.append(ClientAccount(client=i, records=sizes[i], sampling_rate=1.0, **told))
    sensitivity, sigma, spent = (
        max(getattr(c, name) for c in found) for name in ("sensitivity", "sigma", "epsilon_spent")
    )
    told = {
        name: getattr(steady[0], name)
        for name in ("eta", "local_steps", "L", "mu", "gradient_bound")
    }
    return Account(
        releases,
        sensitivity,
        sigma,
        run.guarantee(run.clients).client_sigma(sigma),
        spent,
        found,
        told,
    )

"""Worlds: clients as they may be. Sizes and skew as declared, truths of their own, nothing private;
and how often the interval over worlds holds what is true."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.errors import DataError, InvalidValue
from equipoise.planning import population
from equipoise.planning.outlook import Judge, judge_models
from equipoise.planning.population import made_up_pool, population_of, seen_of
from equipoise.planning.worlds import (
    GUESSED_RECORDS,
    LARGE_TABLE,
    UNKNOWN,
    Skew,
    known_of,
    parse_skew,
    worlds_of,
)
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LOGISTIC, least_squares, with_bias
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Table


def task_of(clients=10, **options):
    return load_task("breast-cancer", TaskOptions(clients=clients, public_records=60, **options))


def undeclared(clients=10):
    """The same as if its records were not dealt by public seeds, like those of task csv."""
    return replace(task_of(clients), sizes_public=False)


def unlike(clients):
    """How far the clients' shares of positive labels lie apart: their variance over p (1 - p)."""
    shares = (clients.targets[..., 0] * clients.weights).sum(-1).double()
    mean = float(shares.mean())
    return float(shares.var()) / (mean * (1 - mean))


def mean_unlike(worlds):
    return float(np.mean([unlike(row.clients) for row in worlds.rows]))


# ---- what is declared ----


def test_skews_have_names():
    assert parse_skew("none") == Skew("none", math.inf)
    assert (parse_skew("mild").concentration, parse_skew("strong").concentration) == (1.0, 0.1)
    assert parse_skew("0.3").concentration == 0.3
    for wrong in ("foo", "-1", "0", "nan", "inf", ""):
        with pytest.raises(InvalidValue, match="neither none, mild, strong nor"):
            parse_skew(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["dirichlet:0.1", "dirichlet:1"])
def test_a_declared_split_is_how_worlds_are_dealt(split):
    """About as unlike as the task's own clients are, over seeds; sizes as they are."""
    tasks = [task_of(split=split, seed=seed) for seed in range(8)]
    known = known_of(tasks[0], None, None)
    assert known.skews == (Skew(split, float(split.partition(":")[2])),)
    assert known.sizes == tasks[0].clients.sizes
    worlds = worlds_of(tasks[0], known, 8, 0)
    assert all(row.clients.sizes == tasks[0].clients.sizes for row in worlds.rows)
    real = float(np.mean([unlike(task.clients) for task in tasks]))
    assert mean_unlike(worlds) == pytest.approx(real, rel=0.35)
    alike = worlds_of(task_of(), known_of(task_of(), None, None), 2, 0)
    assert mean_unlike(worlds) > 4 * mean_unlike(alike)


@pytest.mark.slow
def test_a_said_skew_is_how_worlds_are_dealt():
    """The more, the more unlike, as the law of a Dirichlet distribution says (and with as many
    records left over, they fall as it says)."""
    task = undeclared()
    found = {}
    for said in ("none", "mild", "strong", "0.4"):
        known = known_of(task, said, (200,))
        worlds = worlds_of(task, known, 5, 0)
        assert {row.skew.name for row in worlds.rows} == {known.skews[0].name}
        assert all(row.clients.sizes == (200,) * 10 for row in worlds.rows)
        found[said] = mean_unlike(worlds)
    assert found["none"] < 0.02
    assert found["none"] < found["mild"] < found["0.4"] < found["strong"]
    for said, concentration in (("mild", 1.0), ("0.4", 0.4), ("strong", 0.1)):
        assert found[said] == pytest.approx(1 / (1 + concentration), rel=0.4), said


def test_sizes_are_those_that_were_said():
    sizes = (300, 200, 7, 1, 90)
    task = undeclared(5)
    known = known_of(task, "none", sizes)
    worlds = worlds_of(task, known, 4, 0)
    assert worlds.sizes == sizes
    for row in worlds.rows:
        assert row.clients.sizes == sizes
        counted = (row.clients.weights > 0).sum(-1).tolist()
        assert tuple(counted) == sizes
        torch.testing.assert_close(row.clients.weights.sum(-1), torch.ones(5))
    assert known.sentences == ()


def test_one_number_is_that_of_every_client():
    known = known_of(undeclared(5), "none", (33,))
    assert known.sizes == (33,) * 5


def test_what_nobody_says_is_guessed_and_told():
    task = undeclared()
    known = known_of(task, None, None)
    assert known.skews == UNKNOWN
    assert known.sizes is None
    assert len(known.sentences) == 2
    assert all(sentence.startswith("GUESSED: ") for sentence in known.sentences)
    assert "--records" in known.sentences[0]
    assert "--skew" in known.sentences[1]
    worlds = worlds_of(task, known, 16, 0)
    assert [len(places) for places in worlds.skews] == [4] * 4, "as many worlds of every skew"
    sizes = [set(row.clients.sizes) for row in worlds.rows]
    assert all(len(own) == 1 for own in sizes)
    every = sorted(min(own) for own in sizes)
    assert every[0] >= GUESSED_RECORDS / 2
    assert every[-1] <= GUESSED_RECORDS * 2
    assert every[-1] > 1.5 * every[0], "a guess may be wrong, and worlds say so"
    few = worlds.first(8)
    assert [len(places) for places in few.skews] == [2] * 4


@pytest.mark.parametrize(
    ("skew", "records", "sentence"),
    [
        (None, (10,), "records with task=breast-cancer, whose clients have public numbers"),
        ("mild", None, "skew=mild with task=breast-cancer, whose records are dealt by --split"),
    ],
)
def test_what_a_task_knows_is_not_said_again(skew, records, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        known_of(task_of(), skew, records)


def test_sizes_must_fit_the_clients():
    with pytest.raises(InvalidValue, match="2 sizes for 10 clients"):
        known_of(undeclared(), None, (10, 20))


def test_one_client_stands_for_itself():
    task = undeclared(1)
    worlds = worlds_of(task, known_of(task, None, (30,)), 2, 0)
    assert worlds.number == 1
    assert {row.skew.name for row in worlds.rows} == {"none"}


@pytest.mark.parametrize("records", [8, 9, 12])
def test_few_public_records_say_little_and_not_nothing(records):
    """Folds of one record have no variance of their own."""
    pool = task_of().pool
    people = population_of(pool.rows(np.arange(records)), LOGISTIC, 10.0, 0.01)
    seen = people._left_out()
    assert all(math.isfinite(value) for value in seen)
    assert seen.error_se > 0.05
    assert seen_of(torch.zeros(31).double(), pool.rows([0]), LOGISTIC).loss_se > 0


def test_labels_that_are_all_the_same_number_teach_nothing():
    pool = task_of().pool
    constant = Table(pool.features, np.full_like(pool.targets, 0.3))
    with pytest.raises(DataError, match="all have the same label"):
        population_of(constant, least_squares(1.0), 10.0, None)


# ---- truths ----


def test_clients_with_truths_of_their_own_want_different_models():
    """The farther their truths, the farther their optima; and they are judged on records of their
    own."""
    task, apart = undeclared(6), []
    for skew in (Skew("none"), UNKNOWN[3], Skew("far", apart=(2.0, 2.0))):
        known = known_of(task, "none", (300,))._replace(skews=(skew,))
        spreads = []
        for world in worlds_of(task, known, 2, 0).rows:
            clients = world.clients
            optima = torch.stack([optimum(clients.alone(i)) for i in range(6)])
            spreads.append(float(optima.var(0).sum().sqrt()))
            assert len(world.test.features) == (6 if skew.apart[1] else 1)
        apart.append(np.mean(spreads))
    assert apart == sorted(apart)
    assert apart[2] > 1.5 * apart[0]


def optimum(client):
    """Of one client alone."""
    tables = {name: getattr(client, name)[None].double() for name in ("features", "targets")}
    alone = replace(client, **tables, weights=client.weights[None].double())
    return minimiser(alone, torch.zeros(31, dtype=torch.float64), 1e-6)


def test_an_own_truth_lies_as_far_away_as_it_says():
    task, rng = task_of(), np.random.default_rng(0)
    people = population_of(task.pool, LOGISTIC, 1.0, 0.01)
    for distance in (0.0, 0.5, 2.0):
        (truth,) = people.draw(1, rng, 1, None, (distance, distance))
        own = truth.own(rng)
        moved = np.linalg.norm(own.teacher - truth.teacher) / np.linalg.norm(truth.teacher)
        assert moved == pytest.approx(distance, abs=1e-9)
        assert own.apart == 0.0, "one client has one truth"
        assert not (distance and own.kept), "no label is a neighbour's"


def test_records_of_all_are_records_of_clients_with_own_truths():
    """How often records are labelled otherwise than by the common teacher: of a mixture as often
    as of many clients together."""
    task, rng = task_of(), np.random.default_rng(0)
    people = population_of(task.pool, LOGISTIC, 10.0, 0.01)
    (truth,) = people.draw(1, rng, 1, None, (1.0, 1.0))
    truth = replace(truth, teacher=20 * truth.teacher)  # so that labels are certain

    def against(records):
        common = records.features @ truth.teacher[0] > 0
        return np.mean(common != records.targets[:, 0])

    mixed = against(truth.records(4000, rng))
    own = np.mean([against(truth.own(rng).records(40, rng)) for _ in range(100)])
    assert mixed == pytest.approx(own, abs=0.04)
    assert mixed > 0.1


def test_own_truths_are_matched_to_what_the_public_model_reaches():
    """The farther apart truths are, the less a pool of them teaches; but what it reaches is known,
    so worlds with own truths are no worse than others."""
    task, count = undeclared(6), 8
    known = known_of(task, "none", (100,))
    errors = []
    for skew in (Skew("none"), UNKNOWN[3]):
        worlds = worlds_of(task, known._replace(skews=(skew,)), count, 0)
        taught = worlds.start(True)[:, None]
        errors.append(float(judge_models(worlds, taught).error.mean()))
    assert errors[1] == pytest.approx(errors[0], abs=0.03)


def test_drawn_records_look_like_those_of_the_pool():
    """As long as a record may be at most, a bias of one, means and spread as in the pool."""
    task, rng = task_of(), np.random.default_rng(0)
    norm = float(np.linalg.norm(task.pool.features[:, :-1], axis=1).max())
    people = population_of(task.pool, LOGISTIC, norm, 0.01)
    (truth,) = people.draw(1, rng, 1, None)
    truth = replace(truth, shares=np.full(60, 1 / 60))
    drawn = truth.records(20_000, rng)
    assert set(drawn.features[:, -1]) == {1.0}
    assert np.linalg.norm(drawn.features[:, :-1], axis=1).max() <= norm + 1e-12
    assert set(np.unique(drawn.targets)) <= {0.0, 1.0}
    pool = task.pool.features[:, :-1]
    scale = pool.std(0)
    assert np.abs((drawn.features[:, :-1].mean(0) - pool.mean(0)) / scale).max() < 0.3
    ratio = drawn.features[:, :-1].std(0) / scale
    assert 0.7 < ratio.min() <= ratio.max() < 1.3


def test_pools_that_say_nothing_are_refused():
    task = task_of()
    with pytest.raises(DataError, match="3 public records are too few"):
        population_of(task.pool.rows(np.arange(3)), LOGISTIC, 1.0, 0.01)
    alike = Table(task.pool.features, np.zeros_like(task.pool.targets))
    with pytest.raises(DataError, match="all have one label"):
        population_of(alike, LOGISTIC, 1.0, 0.01)
    made_up = made_up_pool(50, 31, 1, LOGISTIC, 1.0, 0)
    assert np.linalg.norm(made_up.features, axis=1).max() <= math.sqrt(2) + 1e-12
    assert set(np.unique(made_up.targets)) == {0.0, 1.0}


# ---- seeds, and what is private ----


def tensors_of(worlds):
    for row in worlds.rows:
        yield from (row.clients.features, row.clients.targets, row.clients.weights)
        yield from (row.x0, row.best, row.public, *row.test)


@pytest.mark.parametrize("said", [None, "strong"])
def test_the_same_seed_gives_the_same_worlds_whatever_is_private(said):
    """And another seed gives others. Private records are NaN the second time."""
    task, again = undeclared(), undeclared()
    again.clients.features[:] = torch.nan
    again.clients.targets[:] = torch.nan
    first, same = (worlds_of(t, known_of(t, said, None), 4, 3) for t in (task, again))
    assert all(map(torch.equal, tensors_of(first), tensors_of(same)))
    other = worlds_of(task, known_of(task, said, None), 4, 4)
    assert not torch.equal(
        first.rows[0].clients.features[:, :9], other.rows[0].clients.features[:, :9]
    )


def test_other_regularisers_keep_the_records_of_a_world():
    task = undeclared()
    worlds = worlds_of(task, known_of(task, "none", (50,)), 2, 0)
    weaker = worlds.with_l2(1e-4)
    for before, after in zip(worlds.rows, weaker.rows, strict=True):
        assert after.clients.l2 == 1e-4
        assert torch.equal(before.clients.features, after.clients.features)
        assert torch.equal(before.test.targets, after.test.targets)
        gradient = after.clients.gradient(after.best.expand(10, -1), 0).mean(0)
        assert float(gradient.norm()) < 1e-3, "its own optimum"
        assert torch.equal(after.public, before.public), "which has a regulariser of its own"


def test_an_optimum_is_that_of_the_mean_of_the_clients_whatever_their_sizes():
    task = undeclared(4)
    for row in worlds_of(task, known_of(task, "strong", (300, 10, 50, 5)), 3, 0).rows:
        gradient = row.clients.gradient(row.best.expand(4, -1), 0).mean(0)
        assert float(gradient.norm()) < 1e-3
        assert row.excess(row.best) == 0
        assert float(row.excess(row.x0)) > 0


# ---- does the interval over worlds hold the truth? ----


def labelled(n, rng, kind):
    """Six features; labels by a linear rule that is nearly certain, or by one that is curved, which
    no linear model knows."""
    rows = rng.standard_normal((n, 6)) / math.sqrt(6)
    features = with_bias(rows, 2.0)
    scores = features @ np.array([3, -2, 1.5, 0, 0, 1, 0.3])
    if kind == "sharp":
        scores = 6 * scores
    else:
        scores = 8 * (np.abs(rows[:, 0] * math.sqrt(6)) - 0.7) + 0.5 * scores
    labels = rng.random(n) < 1 / (1 + np.exp(-scores))
    return Table(features, labels[:, None].astype(np.float64))


def held(kind, spare):
    """In how many of 20 draws of a pool of 60 records, with 300 test records, 90 % of 16 worlds
    hold the true error of the public model; and how far the mean of the worlds is off."""
    count, misses = 0, []
    for draw in range(20):
        rng = np.random.default_rng(draw)
        pool = labelled(60, rng, kind)
        model = torch.from_numpy(population._fit(pool, LOGISTIC, 0.01).ravel())
        true = seen_of(model, labelled(20_000, rng, kind), LOGISTIC).error
        seen = seen_of(model, labelled(300, rng, kind), LOGISTIC)
        truths = population_of(pool, LOGISTIC, 2.0, 0.01).draw(16, rng, spare, seen)
        errors = [seen_of(t.taught(), t.records(1000, rng), LOGISTIC).error for t in truths]
        low, high = np.quantile(errors, (0.05, 0.95))
        count += low <= true <= high
        misses.append(np.mean(errors) - true)
    return count, math.sqrt(np.mean(np.square(misses)))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "off"), [("curved", 0.055), ("sharp", 0.035)])
def test_the_interval_over_worlds_holds_the_true_error_of_the_public_model(kind, off):
    """In most of 20 draws. Measured: 14 for labels that no linear model knows (18 would be 90 %),
    19 for labels that are nearly certain; the mean of the worlds is off by 0.035 and 0.018.

    Without the choice of worlds in which a pool teaches as much as the real one: 13 and 18, off by
    0.081 and 0.064. So the count does not tell whether worlds were chosen, since wide intervals
    hold much; how far their mean is off does, and that is what the bound is on.
    """
    count, miss = held(kind, spare=4)
    assert count >= 13
    assert miss < off
    _, farther = held(kind, spare=1)
    assert farther > off


def test_worlds_as_large_as_the_clients_have_the_same_truths_and_more_records():
    task = undeclared(5)
    sizes = (30, 900, 2000, 4000, 4000)
    worlds = worlds_of(task, known_of(task, "none", sizes), 3, 0)
    assert worlds.fewer_records
    assert max(worlds.rows[0].clients.sizes) < 900
    large = worlds.of_clients_sizes()
    room = LARGE_TABLE // (5 * task.dimension)
    assert large.rows[0].clients.sizes == tuple(min(size, room) for size in sizes)
    assert 900 < room < 4000, "some fit, and some do not"
    for small, row in zip(worlds.rows, large.rows, strict=True):
        assert row.truth is small.truth
        assert torch.equal(row.public, small.public)
        assert (row.best - small.best).norm() > 0
    few = worlds_of(task, known_of(task, "none", (30,)), 3, 0)
    assert not few.fewer_records


@pytest.mark.slow
def test_a_silo_alone_is_judged_with_as_many_records_as_it_has():
    """Stand-ins have 400 at most, with which it looks worse than it is."""
    task = undeclared(5)
    known = known_of(task, "none", (3000,))
    worlds = worlds_of(task, known, 8, 0)
    alone = {}
    for name, some in (("small", worlds), ("large", worlds.of_clients_sizes())):
        judge = Judge(some, "error", 1000)
        alone[name] = judge.at_home("each silo alone", None, free=True).values.mean()
    assert alone["large"] < alone["small"]

"""What ways are worth, and the verdict; what a silo can do at home."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from equipoise.planning.at_home import PULLS, cross_validated, pull_for, tuned
from equipoise.planning.outlook import (
    NOT_TRAINING,
    PUBLIC_ALONE,
    SILO_ALONE,
    Judge,
    Judged,
    Rules,
    Tried,
    area,
    judge_models,
    predicted,
    verdict_of,
)
from equipoise.planning.plan import Prediction, Way
from equipoise.planning.worlds import Skew, known_of, worlds_of
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LOGISTIC, MULTINOMIAL, least_squares, linear_clients, one_hot
from equipoise.tasks.public import minimiser
from equipoise.tasks.task import Table
from problems import run_command

# ---- the verdict ----


def tried(name, *values, free=True):
    """A way that is worth so much in each world."""
    values = torch.tensor(values, dtype=torch.float64)
    mean = float(values.mean())
    known = Prediction(
        test_error=mean,
        test_error_low=float(values.min()),
        test_error_high=float(values.max()),
        test_loss=mean,
        test_loss_low=float(values.min()),
        test_loss_high=float(values.max()),
        auroc=1 - mean,
        auroc_low=float(1 - values.max()),
        auroc_high=float(1 - values.min()),
    )
    return Tried(Way(name=name, free=free, predicted=known), values)


def spent(*values, name="federated"):
    return tried(name, *values, free=False)


ALIKE = Rules([list(range(10))], shares=True)
NOTHING = tried(NOT_TRAINING, *[0.4] * 10)
POOR = tried(PUBLIC_ALONE, *[0.3] * 10)
CASES = {
    "train": ([NOTHING, POOR, spent(*[0.1] * 10)], "train"),
    "train, by the warm one": (
        [NOTHING, POOR, spent(*[0.5] * 10), spent(*[0.1] * 10, name="federated, warm start")],
        "train",
    ),
    "do not train": ([NOTHING, spent(*[0.45] * 10)], "do not train"),
    "public alone": ([NOTHING, POOR, spent(*[0.35] * 10)], "public data alone is as good"),
    "each silo alone": (
        [NOTHING, POOR, tried(SILO_ALONE, *[0.05] * 10), spent(*[0.1] * 10)],
        "each silo alone is as good",
    ),
    "better in 7 of 10 worlds": (
        [NOTHING, POOR, spent(*[0.2] * 7, *[0.31] * 3)],
        "inconclusive",
    ),
    "better in 8 of 10": ([NOTHING, POOR, spent(*[0.2] * 8, *[0.31] * 2)], "train"),
    "better in 9 of 10 and worse in the mean": (
        [NOTHING, POOR, spent(*[0.28] * 9, 0.9)],
        "inconclusive",
    ),
    "worse in 7 of 10": ([NOTHING, POOR, spent(*[0.35] * 7, *[0.28] * 3)], "inconclusive"),
    "better in all of 10, by too little": (
        [NOTHING, POOR, spent(*[0.291] * 10)],
        "public data alone is as good",
    ),
    "better in all of 10, by enough in 3": (
        [NOTHING, POOR, spent(*[0.291] * 7, *[0.28] * 3)],
        "train",
    ),
    "worse in 8 of 10": (
        [NOTHING, POOR, spent(*[0.35] * 8, *[0.28] * 2)],
        "public data alone is as good",
    ),
    "a tie": ([NOTHING, POOR, spent(*[0.3] * 10)], "public data alone is as good"),
}


@pytest.mark.parametrize("what", ["error", "loss", "auroc"])
@pytest.mark.parametrize(("ways", "verdict"), CASES.values(), ids=CASES)
def test_verdicts(ways, verdict, what):
    decided, reason = verdict_of(ways, what, ALIKE)
    assert decided == verdict
    assert {"error": "error", "loss": "loss", "auroc": "AUROC"}[what] in reason
    if verdict == "inconclusive":
        assert "cannot be decided at this spread" in reason
    elif verdict == "train":
        assert re.search(r"training together is better in \d+% of the worlds", reason)
    else:
        assert re.search(r"gains less than 0.01 in \d+% of the worlds", reason)


def test_what_matters_grows_with_errors_that_are_no_shares():
    for unit in (100.0, 0.01):  # of the label
        values = [[unit * value] * 10 for value in (0.7, 0.6, 0.595, 0.59)]
        dear = [tried(NOT_TRAINING, *values[0]), tried(PUBLIC_ALONE, *values[1])]
        numbers = ALIKE._replace(shares=False)
        too_little = verdict_of([*dear, spent(*values[2])], "error", numbers)[0]
        assert too_little == "public data alone is as good"
        assert verdict_of([*dear, spent(*values[3])], "error", numbers)[0] == "train"


def test_a_verdict_holds_for_every_kind_of_skew():
    """Ten worlds of two kinds: better in all but those of one kind decides nothing."""
    kinds = Rules([list(range(8)), [8, 9]], shares=True)
    ways = [NOTHING, POOR, spent(*[0.2] * 8, 0.35, 0.35)]
    assert verdict_of(ways, "error", ALIKE)[0] == "train"
    assert verdict_of(ways, "error", kinds)[0] == "inconclusive"
    worse = [NOTHING, POOR, spent(*[0.35] * 8, 0.2, 0.2)]
    assert verdict_of(worse, "error", ALIKE)[0] == "public data alone is as good"
    verdict, reason = verdict_of(worse, "error", kinds)
    assert verdict == "inconclusive"
    assert "in 0% of the worlds" in reason
    assert "whatever kind of skew" in reason


def test_a_reason_names_the_best_way_first_and_by_how_much():
    ways, _ = CASES["each silo alone"]
    _, reason = verdict_of(ways, "error", ALIKE)
    assert reason.startswith("each silo alone: error 0.050 [0.050, 0.050], against 0.100 [")
    assert "of federated; training together gains less than 0.01 in 100% of the worlds" in reason


def test_never_train_where_it_is_worse_in_the_mean():
    """Random ways: what spends the budget is called for only where it is better, in the mean and in
    most worlds."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(500):
        worlds = rng.random((4, 10)) ** 3 * rng.uniform(0.2, 1, (4, 1))
        names = (NOT_TRAINING, PUBLIC_ALONE, SILO_ALONE)
        ways = [tried(name, *row) for name, row in zip(names, worlds[:3], strict=True)]
        ways.append(spent(*worlds[3]))
        verdict, _ = verdict_of(ways, "error", ALIKE)
        seen.add(verdict)
        best = worlds[:3][worlds[:3].mean(1).argmin()]
        if verdict == "train":
            assert worlds[3].mean() < best.mean()
            assert (worlds[3] < best).mean() >= 0.8
            assert (worlds[3] < best - 0.01).mean() > 0.2
        elif verdict != "inconclusive":
            assert (worlds[3] < best - 0.01).mean() <= 0.2 + 1e-9
    assert len(seen) == 5, "every verdict was seen"


# ---- measures ----


@pytest.mark.parametrize("ties", [False, True])
def test_the_area_is_that_of_sklearn(ties):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, 200, generator=generator, dtype=torch.float64)
    positive = torch.rand(200, generator=generator) < 0.3
    scores = scores + positive
    if ties:
        scores = (2 * scores).round()
    found = area(scores, positive)
    for place in np.ndindex(3, 4):
        expected = roc_auc_score(positive.numpy(), scores[place].numpy())
        assert float(found[place]) == pytest.approx(expected, abs=1e-12)
    assert float(area(torch.zeros(200), positive)) == 0.5, "a constant answer"
    assert area(scores, torch.ones(200, dtype=torch.bool)).unique().tolist() == [0.5]
    turned = area(scores.transpose(0, 1), positive)  # whatever the layout
    assert torch.equal(turned, found.transpose(0, 1))


@pytest.fixture(scope="module")
def worlds():
    task = load_task("breast-cancer", TaskOptions(clients=5, public_records=60))
    return worlds_of(task, known_of(task, None, None), 8, 0)


def test_models_are_judged_on_records_of_their_world(worlds):
    x = torch.stack([torch.stack([row.best, -row.best, row.x0]) for row in worlds.rows])
    judged = judge_models(worlds, x)
    assert judged.error.shape == judged.loss.shape == judged.auroc_loss.shape == (8, 3)
    for w, row in enumerate(worlds.rows):
        features, labels = row.test.features[0].numpy(), row.test.targets[0, :, 0].numpy()
        outputs = features @ row.best.numpy()
        assert float(judged.error[w, 0]) == pytest.approx(
            ((outputs >= 0) != labels).mean(), abs=2e-3
        )
        rank = 1 - roc_auc_score(labels, outputs)
        assert float(judged.auroc_loss[w, 0]) == pytest.approx(rank, abs=1e-4)
        assert float(judged.auroc_loss[w, 1]) == pytest.approx(1 - rank, abs=1e-4)
    assert bool((judged.loss[:, 0] < judged.loss[:, 2]).all())


# ---- intervals ----


def spread_out(worlds, seeds=4, between=0.1, within=0.001):
    generator = torch.Generator().manual_seed(0)
    centres = 0.3 + between * (torch.rand(worlds, 1, generator=generator) - 0.5)
    return centres + within * torch.randn(worlds, seeds, generator=generator)


def test_intervals_hold_the_mean_and_ninety_per_cent_of_the_worlds():
    error = spread_out(40)
    made = predicted(error, Judged(error, 2 * error, error))
    for name, values in (
        ("excess_loss", error),
        ("test_error", error),
        ("test_loss", 2 * error),
        ("auroc", 1 - error),
    ):
        low, high = made.interval(name)
        assert low < getattr(made, name) < high
        assert getattr(made, name) == pytest.approx(float(values.mean()))
        inside = float(((values >= low) & (values <= high)).double().mean())
        assert inside == pytest.approx(0.9, abs=0.02)
        by_world = values.mean(1)
        assert high - low > 0.8 * float(by_world.max() - by_world.min()), "the spread over worlds"


def test_more_seeds_do_not_make_an_interval_narrower():
    """It is no standard error: what is not known stays so however often a trial is repeated."""
    few, many = (
        predicted(spread_out(16, seeds), None).interval("excess_loss") for seeds in (2, 64)
    )
    assert many[1] - many[0] == pytest.approx(few[1] - few[0], rel=0.15)


def test_few_test_records_widen_an_interval():
    error = spread_out(16, between=0.02)
    widths = []
    for records in (0, 10_000, 200, 50):
        made = predicted(None, Judged(error, error, None), records)
        low, high = made.interval("test_error")
        assert made.test_error == pytest.approx(float(error.mean()))
        assert low <= made.test_error <= high
        widths.append(high - low)
        assert made.interval("test_loss") == predicted(None, Judged(error, error, None)).interval(
            "test_loss"
        )
    assert widths == sorted(widths)
    assert widths[3] == pytest.approx(2 * 1.645 * math.sqrt(0.3 * 0.7 / 50), rel=0.1)
    numbers = Judged(error, error, None, shares=False)  # least squares
    assert predicted(None, numbers, 50) == predicted(None, numbers)


def test_a_rare_label_is_ranked_among_the_records_of_all_clients():
    """A client's few records may all have one label, of which nothing can be ranked."""
    task = replace(load_task("breast-cancer", TaskOptions(public_records=60)), sizes_public=False)
    known = known_of(task, "none", (40,))._replace(skews=(Skew("own", apart=(0.3, 0.3)),))
    worlds = worlds_of(task, known, 2, 0)
    for row in worlds.rows:
        assert len(row.test.features) > 1
    x = torch.stack([row.best for row in worlds.rows])[:, None]
    told = 1 - judge_models(worlds, x).auroc_loss[:, 0]
    for w, row in enumerate(worlds.rows):
        features, targets = (part.flatten(0, 1) for part in row.test)
        scores = features @ x[w, 0].to(features.dtype)
        assert float(told[w]) == pytest.approx(float(area(scores, targets[:, 0] > 0)), abs=1e-6)


def test_not_training_is_the_best_constant_answer(worlds):
    for what in ("error", "loss", "auroc"):
        way = Judge(worlds, what, 0).not_training(0.4)
        assert (way.way.name, way.way.free, way.way.measured) == (NOT_TRAINING, True, 0.4)
        for w, row in enumerate(worlds.rows):
            share = float(row.test.targets.mean())
            entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
            expected = {"error": min(share, 1 - share), "loss": entropy, "auroc": 0.5}[what]
            assert float(way.values[w]) == pytest.approx(expected, abs=1e-4)


def test_silos_at_home_are_judged_for_all_and_for_the_smallest(worlds):
    judge = Judge(worlds, "error", 0)
    alone = judge.at_home(SILO_ALONE, None, free=True)
    best = torch.stack([row.best for row in worlds.rows])
    from_the_best = judge.at_home("tuned", best, free=False)
    assert alone.way.smallest is not None
    assert alone.way.free
    assert not from_the_best.way.free
    assert float(from_the_best.values.mean()) < float(alone.values.mean())
    at_best = judge.of_models("best", best[:, None], None, False)
    assert float(from_the_best.values.mean()) < 1.3 * float(at_best.values.mean())


# ---- at home ----


def table(n=80, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.hstack([rng.standard_normal((n, 4)) / 2, np.ones((n, 1))])
    scores = rows @ rng.standard_normal((5, max(classes, 1))) * 2
    if classes == 0:
        return Table(rows, np.clip(scores / 4 + 0.1 * rng.standard_normal((n, 1)), -1, 1))
    if classes == 2:
        return Table(rows, (scores[:, :1] + rng.logistic(size=(n, 1)) > 0).astype(np.float64))
    return Table(rows, one_hot((scores + rng.gumbel(size=scores.shape)).argmax(1), classes))


LINKS = {"logistic": (LOGISTIC, 2), "multinomial": (MULTINOMIAL, 3), "least": (least_squares(1), 0)}


@pytest.mark.parametrize(("link", "classes"), LINKS.values(), ids=LINKS)
def test_tuning_at_home(link, classes):
    """With centre zero it is the regularised minimiser; a strong pull gives the centre, a weak one
    the silo's own optimum; between them the gradient vanishes."""
    records = table(classes=classes)
    d = records.features.shape[1] * records.targets.shape[1]
    zero, centre = torch.zeros(d, dtype=torch.float64), torch.linspace(-1, 1, d).double()
    for pull in (1e-3, 0.1):
        alone = minimiser(linear_clients([records], link, pull, None, 0), zero)
        torch.testing.assert_close(
            tuned(records, link, zero, pull), alone, rtol=0, atol=0.2 * pull**0.5
        )
    torch.testing.assert_close(tuned(records, link, centre, 1e7), centre, rtol=0, atol=1e-6)
    loose = tuned(records, link, centre, 1e-3)
    own = linear_clients([records], link, 0.0, None, 0)
    slope = own.gradient(loose[None], 0)[0] + 1e-3 * (loose - centre)
    assert float(slope.norm()) < 1e-4
    assert float(own.loss(loose)) < float(own.loss(centre))
    nearer = tuned(records, link, centre, 1.0)
    assert float((nearer - centre).norm()) < float((loose - centre).norm())


def test_a_silo_finds_its_own_pull_and_error():
    easy, hard = table(400), Table(table(400).features, table(400, seed=9).targets[::-1].copy())
    zero = torch.zeros(5, dtype=torch.float64)
    found, hopeless = (cross_validated(records, LOGISTIC, zero) for records in (easy, hard))
    assert found.pull in PULLS
    assert hopeless.pull > found.pull, "where nothing can be learnt, little is dared"
    assert 0 < found.error < 0.3
    assert found.error + 4 * found.standard_error < hopeless.error
    seeds = set()
    model = tuned(easy, LOGISTIC, zero, found.pull)
    wrong = ((easy.features @ model.numpy() >= 0) != easy.targets[:, 0]).mean()
    assert found.error >= wrong - 3 * found.standard_error
    for seed in range(3):
        seeds.add(cross_validated(easy, LOGISTIC, zero, seed).error)
    assert max(seeds) - min(seeds) < 4 * found.standard_error
    assert cross_validated(easy, LOGISTIC, zero) == found, "the same twice"


def test_the_pull_of_many_records_or_of_far_optima_is_weak():
    near, far = torch.full((3, 5), 0.1), torch.full((3, 5), 10.0)
    assert pull_for(100, near) == pytest.approx(1 / (100 * 0.01), rel=1e-6)
    assert pull_for(1000, near) < pull_for(100, near)
    assert pull_for(100, far) < pull_for(100, near)


BOUNDS = '[a]\nlow=0\nhigh=1\n[b]\nlow=0\nhigh=1\n[y]\ncategories=["n","p"]\n'
PLAN = (
    "plan --task csv --clients 5 --label y --bounds bounds.toml --epsilon 5 --skew none "
    "--trust secure-aggregation --algorithm dp-fedavg --clip 0.3 --iterations 4 --records 50 "
    "--l2 0.01"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A public pool, and a silo's own file."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(BOUNDS)
    rng = np.random.default_rng(0)
    for name, n in (("pool.csv", 60), ("own.csv", 150), ("short.csv", 6)):
        rows = [
            f"{a:.6f},{b:.6f},{'p' if a + b + rng.normal(0, 0.2) > 1 else 'n'}"
            for a, b in rng.random((n, 2))
        ]
        Path(name).write_text("a,b,y\n" + "\n".join(rows) + "\n")
    Path("other.csv").write_text("a,y\n0.123456,n\n")
    return tmp_path


def test_a_silo_checks_itself_at_home(folder, capsys):
    """On standard error; the plan is the same, and holds nothing of it."""
    flags = [*PLAN.split(), "--proxy", "pool.csv", "--json"]
    code, plain, err = run_command(capsys, *flags)
    assert (code, err) == (0, "")
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = run_command(capsys, *flags, "--alone", "own.csv")
    assert code == 0
    assert out == plain
    assert sorted(path.name for path in folder.iterdir()) == before, "nothing is stored"
    (line,) = err.splitlines()
    number = r"0\.\d{3}"
    told = (
        rf"alone       your own records, .*: error {number} ± {number} \(l2 = [\d.e-]+\); nothing"
    )
    assert re.match(told, line)
    private = Path("own.csv").read_text().splitlines()[1:]
    cells = {cell for row in private for cell in row.split(",")[:2]}
    assert not any(cell in out + err for cell in cells)
    assert "own.csv" not in json.loads(out)["settings"]["data"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (f"{PLAN} --proxy pool.csv --alone other.csv", "it lacks b"),
        (f"{PLAN} --proxy pool.csv --alone short.csv", "fewer than 10 records"),
        (f"{PLAN} --proxy pool.csv --alone none.csv", "none.csv"),
        (
            "plan --task breast-cancer --epsilon 2 --alone own.csv",
            "only task csv has a file for each client",
        ),
        (
            "plan --mu 1 --smoothness 1 --dimension 3 --clip 1 --psi0 1 --epsilon 1 --clients 9 "
            "--alone own.csv",
            "only task csv has a file for each client",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_with_an_own_file_get_one_sentence_before_anything_is_planned(
    capsys, monkeypatch, arguments, sentence
):
    monkeypatch.setattr("equipoise.planning.planner.plan_all", lambda *_, **__: 1 / 0)
    code, out, err = run_command(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert "0.123456" not in err

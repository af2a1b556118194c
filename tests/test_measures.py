"""AUROC, calibration, sensitivity and the like: each equals scikit-learn's and a computation by
hand, its intervals hold what they promise, and no private record is ever measured."""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning
from torch import nn

import equipoise
from equipoise.measures import MEASURES, Estimate
from equipoise.measuring import BINS, _formulas, measures_of, wilson
from equipoise.reports.reading import read_study
from equipoise.sweeps.store import Store
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.network import model_task
from equipoise.tasks.task import Predictions, Predicts
from equipoise.training import measures_on_test
from problems import BOUNDS, HEADER, blobs, csv_task, run_command

RNG = np.random.default_rng(7)


def two(n=150, slope=0.6, digits=None, rng=RNG):
    """Probabilities of a model that is too sure, and outcomes; of few digits, many are equal."""
    logits = rng.normal(-0.5, 1.5, n)
    truth = (rng.random(n) < expit(slope * logits)).astype(np.int64)
    p = expit(logits)
    return Predictions(p if digits is None else p.round(digits).clip(0.05, 0.95), truth, 2)


def many(n=200, classes=4, rng=RNG):
    logits = rng.normal(0, 1.5, (n, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Predictions(p, (p.cumsum(1) < rng.random((n, 1))).sum(1), classes)


def values(n=80, rng=RNG):
    truth = rng.normal(20, 5, n)
    return Predictions(truth + rng.normal(1, 2, n), truth, 0)


def repeated(seen, times):
    """The records, each so many times."""
    rows = np.repeat(np.arange(len(seen.truth)), times)
    return seen._replace(output=seen.output[rows], truth=seen.truth[rows])


def numbers(seen, threshold=0.5):
    estimates = measures_of(seen, threshold, resamples=0).estimates
    return {name: estimate.value for name, estimate in estimates.items()}


def of_weights(seen, weights, threshold=0.5):
    """The measures of one resample."""
    with np.errstate(all="ignore"):
        told = _formulas(seen, threshold)(np.array([weights], dtype=float))
    return {name: value[0] for name, value in told.items()}


def of_sklearn(seen, threshold, weights):
    y, p = seen.truth, seen.output
    if seen.classes == 0:
        return {
            "rmse": metrics.root_mean_squared_error(y, p, sample_weight=weights),
            "mae": metrics.mean_absolute_error(y, p, sample_weight=weights),
            "r2": metrics.r2_score(y, p, sample_weight=weights),
        }
    if seen.classes == 2:
        fall_out, found, _ = metrics.roc_curve(y, p, sample_weight=weights, drop_intermediate=False)
        return {
            "auroc": metrics.roc_auc_score(y, p, sample_weight=weights),
            "average_precision": metrics.average_precision_score(y, p, sample_weight=weights),
            "brier": metrics.brier_score_loss(y, p, sample_weight=weights),
            "accuracy": metrics.accuracy_score(y, p >= 0.5, sample_weight=weights),
            "sensitivity": metrics.recall_score(y, p >= threshold, sample_weight=weights),
            "specificity": metrics.recall_score(
                y, p >= threshold, pos_label=0, sample_weight=weights
            ),
            "specificity_at_90": 1 - fall_out[found >= 0.9 - 1e-12].min(),
        }
    is_class = (y[:, None] == np.arange(seen.classes)).astype(int)
    return {
        "auroc": metrics.roc_auc_score(is_class, p, average="macro", sample_weight=weights),
        "average_precision": metrics.average_precision_score(
            is_class, p, average="macro", sample_weight=weights
        ),
        "brier": metrics.brier_score_loss(
            y, p, sample_weight=weights, labels=range(seen.classes), scale_by_half=False
        ),
        "accuracy": metrics.accuracy_score(y, p.argmax(1), sample_weight=weights),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, p.argmax(1), sample_weight=weights),
    }


def by_hand(seen, threshold):
    """Every formula of docs/measures.md, record by record."""
    y, p, n = seen.truth, seen.output, len(seen.truth)
    if seen.classes == 0:
        gaps = [p[i] - y[i] for i in range(n)]
        return {
            "rmse": math.sqrt(sum(gap**2 for gap in gaps) / n),
            "mae": sum(map(abs, gaps)) / n,
            "r2": 1 - sum(gap**2 for gap in gaps) / sum((value - y.mean()) ** 2 for value in y),
        }
    if seen.classes == 2:
        sure, right = p, y == 1
        z = logit(p)
        steepness = minimize(
            lambda ab: np.logaddexp(0, (1 - 2 * y) * (ab[0] + ab[1] * z)).sum(), [0, 1], tol=1e-12
        ).x[1]
        return {
            "auroc": auroc_by_hand(p, y == 1),
            "average_precision": precision_by_hand(p, y == 1),
            "brier": sum((p[i] - y[i]) ** 2 for i in range(n)) / n,
            "calibration_error": bins_by_hand(sure, right),
            "calibration_slope": steepness,
            "calibration_intercept": brentq(lambda a: (expit(a + z) - y).sum(), -20, 20),
            "accuracy": sum((p[i] >= 0.5) == y[i] for i in range(n)) / n,
            "sensitivity": np.mean([p[i] >= threshold for i in range(n) if y[i] == 1]),
            "specificity": np.mean([p[i] < threshold for i in range(n) if y[i] == 0]),
            "specificity_at_90": max(
                np.mean(p[y == 0] < t) for t in p if np.mean(p[y == 1] >= t) >= 0.9 - 1e-12
            ),
        }
    classes, guess = sorted({*y}), p.argmax(1)
    return {
        "auroc": np.mean([auroc_by_hand(p[:, k], y == k) for k in classes]),
        "average_precision": np.mean([precision_by_hand(p[:, k], y == k) for k in classes]),
        "brier": np.mean(
            [sum((p[i, k] - (y[i] == k)) ** 2 for k in range(seen.classes)) for i in range(n)]
        ),
        "calibration_error": bins_by_hand(p.max(1), guess == y),
        "accuracy": np.mean(guess == y),
        "balanced_accuracy": np.mean([np.mean(guess[y == k] == k) for k in classes]),
    }


def auroc_by_hand(scores, positive):
    pairs = [*product(scores[positive], scores[~positive])]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)


def precision_by_hand(scores, positive):
    return np.mean([positive[scores >= score].mean() for score in scores[positive]])


def bins_by_hand(sure, right):
    error = 0.0
    for k in range(BINS):
        inside = (sure * BINS >= k) & ((sure * BINS < k + 1) | (k == BINS - 1))
        if inside.any():
            error += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    return error


KINDS = {
    "two": two(),
    "two, ties": two(digits=1),
    "two, a few": two(14),
    "many": many(),
    "many, one class missing": many(12, 9),
    "values": values(),
}


@pytest.mark.parametrize("threshold", [0.5, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_is_what_it_says(kind, threshold):
    seen = KINDS[kind]
    told, expected = numbers(seen, threshold), by_hand(seen, threshold)
    assert told.keys() == expected.keys()
    for name, value in expected.items():
        digits = 1e-4 if name == "calibration_slope" else 1e-9  # of the minimiser
        assert told[name] == pytest.approx(value, abs=digits), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "missing" not in kind])
def test_every_measure_is_that_of_sklearn(kind, weighted):
    """Also with weights: a resample is one."""
    seen = KINDS[kind]
    weights = RNG.integers(1, 4, len(seen.truth)) if weighted else np.ones(len(seen.truth))
    told = of_weights(seen, weights, 0.4)
    for name, value in of_sklearn(seen, 0.4, weights).items():
        assert told[name] == pytest.approx(value, abs=1e-12), name


def test_slope_and_intercept_are_those_of_sklearn():
    from sklearn.linear_model import LogisticRegression

    seen = two(500)
    model = LogisticRegression(C=math.inf, tol=1e-10, max_iter=1000)
    model.fit(logit(seen.output)[:, None], seen.truth)
    assert numbers(seen)["calibration_slope"] == pytest.approx(model.coef_[0, 0], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resample_is_the_records_that_were_drawn(kind):
    """Drawn twice counts twice, not at all counts nothing, in every measure alike; recalibration
    goes one step towards the resample's own."""
    seen = KINDS[kind]
    times = RNG.integers(0, 3, len(seen.truth))
    told, drawn = of_weights(seen, times), repeated(seen, times)
    near = {"calibration_slope": 0.15, "calibration_intercept": 0.15}
    for name, value in of_weights(drawn, np.ones(len(drawn.truth))).items():
        if name not in near or len(seen.truth) > 100:
            digits = near.get(name, 1e-9)
            assert told[name] == pytest.approx(value, abs=digits, nan_ok=True), name


@pytest.mark.parametrize("make", [two, many, values])
def test_intervals_hold_the_value_and_repeat(make):
    seen = make()
    measures = measures_of(seen)
    assert measures == measures_of(seen)
    assert measures.resamples == 1000
    for name in measures:
        estimate = measures[name]
        assert estimate.low <= estimate.value <= estimate.high, name
        assert estimate.low < estimate.high, name
    larger = measures_of(repeated(seen, np.full(len(seen.truth), 16)))
    for name in measures:
        narrow, wide = (m[name].high - m[name].low for m in (larger, measures))
        if name != "calibration_error":
            assert narrow == pytest.approx(wide / 4, rel=0.4), name


TRIALS, NOMINAL, ENOUGH = 200, 0.95, 0.9  # binomial(200, 0.95) is below 0.9 in 1 of 300 cases


def coverage(make, n, names, trials=TRIALS):
    """How often the interval holds the truth, that of very many records."""
    truth = numbers(make(400_000, rng=np.random.default_rng(0)))
    held = dict.fromkeys(names, 0)
    for trial in range(trials):
        measures = measures_of(make(n, rng=np.random.default_rng(1 + trial)), resamples=400)
        for name in names:
            estimate = measures[name]
            held[name] += estimate.low <= truth[name] <= estimate.high
    return {name: count / trials for name, count in held.items()}


def calibrated(n, rng):
    return two(n, slope=1.0, rng=rng)


@pytest.mark.slow
@pytest.mark.parametrize("make", [two, calibrated])
def test_intervals_hold_the_truth_as_often_as_they_say(make):
    names = {*MEASURES} - {"balanced_accuracy", "rmse", "mae", "r2"}
    shares = coverage(make, 200, names)
    assert all(share >= ENOUGH for share in shares.values()), shares


def test_the_interval_of_the_area_holds_the_truth():
    shares = coverage(two, 200, ["auroc", "brier"], trials=100)
    assert all(share >= ENOUGH for share in shares.values()), shares


@pytest.mark.slow
def test_intervals_of_several_classes_and_of_values_hold_the_truth():
    names = ["auroc", "brier", "accuracy", "balanced_accuracy", "calibration_error"]
    shares = coverage(many, 300, names) | coverage(values, 200, ["rmse", "mae", "r2"])
    assert all(share >= ENOUGH for share in shares.values()), shares


def test_a_share_of_a_few_records_is_not_certain():
    """A bootstrap would say [1, 1] where all of five are right; Wilson's is that of statsmodels and
    of textbooks."""
    low, high = wilson(1.0, 5)
    assert low == pytest.approx(0.5655, abs=1e-4)
    assert high == pytest.approx(1.0)
    assert wilson(0.3, 10) == pytest.approx((0.1078, 0.6032), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


# what cannot be known


def test_one_class_alone():
    measures = measures_of(Predictions(RNG.random(40), np.ones(40, dtype=int), 2))
    for name in ("auroc", "average_precision", "calibration_slope", "specificity"):
        assert measures[name] == Estimate(None), name
    for name in ("accuracy", "sensitivity", "brier", "calibration_error"):
        assert measures[name].low is not None, name


def test_one_class_alone_of_several():
    """Without records of another class nothing is ranked."""
    measures = measures_of(many(40)._replace(truth=np.full(40, 2)))
    for name in ("auroc", "average_precision"):
        assert measures[name] == Estimate(None), name
    assert measures["accuracy"].low is not None


@pytest.mark.parametrize("make", [two, many, values])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_too_few_records(make, n):
    measures = measures_of(make(n))
    assert measures.records == n
    assert all(measures[name] == Estimate(None) for name in measures)


def test_too_few_of_a_class():
    seen = Predictions(RNG.random(40), (np.arange(40) < 4).astype(int), 2)
    measures = measures_of(seen)
    assert measures.positives == 4
    for name in ("auroc", "sensitivity", "calibration_slope", "specificity_at_90"):
        assert measures[name] == Estimate(None), name
    assert measures["specificity"].low is not None


def test_a_model_that_says_the_same_of_everybody():
    measures = measures_of(Predictions(np.full(60, 0.5), np.arange(60) % 2, 2))
    assert measures["auroc"] == Estimate(0.5, 0.5, 0.5)  # of every such model, on any records
    assert measures["calibration_slope"] == Estimate(None)
    assert measures["calibration_intercept"].value == pytest.approx(0)
    assert measures["sensitivity"].value == 1


def test_a_perfect_model_is_not_certain_to_be_perfect():
    truth = np.arange(60) % 2
    measures = measures_of(Predictions(np.where(truth == 1, 0.9, 0.1), truth, 2))
    for name in ("auroc", "average_precision", "specificity_at_90"):
        assert measures[name] == Estimate(1.0), name
    assert measures["calibration_slope"] == Estimate(None)  # the classes are separated
    assert measures["sensitivity"].low == pytest.approx(wilson(1.0, 30)[0])
    exact = measures_of(Predictions(np.arange(30.0), np.arange(30.0), 0))
    assert (exact["rmse"], exact["r2"]) == (Estimate(0.0), Estimate(1.0))


@pytest.mark.parametrize("value", [0.0, 4.0, 0.1, -1e5 / 3])
def test_values_that_are_all_the_same(value):
    measures = measures_of(Predictions(RNG.normal(size=30), np.full(30, value), 0))
    assert measures["r2"] == Estimate(None)
    assert measures["rmse"].low is not None


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_model_that_is_not_finite(broken):
    seen = two()
    seen.output[3] = broken
    measures = measures_of(seen)
    assert measures.unknown == "the model's answers are not finite"
    assert measures.estimates == {}


def test_a_class_without_test_records_counts_for_nothing():
    seen = many(60, 3)
    more = seen._replace(output=np.hstack([seen.output, np.zeros((60, 1))]), classes=4)
    assert numbers(seen) == pytest.approx(numbers(more))
    with pytest.warns(UndefinedMetricWarning):  # where scikit-learn's is not defined
        assert math.isnan(metrics.roc_auc_score(np.eye(4)[seen.truth], more.output))


def test_very_many_records_have_fewer_resamples():
    p = np.tile(RNG.random(500), 200)
    measures = measures_of(Predictions(p, (np.arange(100_000) % 2), 2))
    assert measures.resamples == 200
    assert measures["auroc"].low < measures["auroc"].value < measures["auroc"].high


# groups and clients


def test_every_group_is_measured_by_itself():
    seen, names = two(300), np.array(["a", "b", "few"])[np.minimum(np.arange(300) // 147, 2)]
    measures = measures_of(seen._replace(groups=names.tolist(), grouped_by="ward"))
    assert [(part.name, part.records) for part in measures.groups] == [
        ("a", 147),
        ("b", 147),
        ("few", 6),
    ]
    for part in measures.groups:
        assert part.estimates == measures_of(seen.rows(names == part.name)).estimates
    assert all(estimate == Estimate(None) for estimate in measures.groups[2].estimates.values())
    whole, group = measures["auroc"], measures.groups[0].estimates["auroc"]
    assert group.high - group.low > whole.high - whole.low


WARDS = "age,sex,score,outcome,ward\n"


def write_wards(path, header=WARDS, n=90):
    """Test records, with a ward that the bounds do not declare."""
    rng = np.random.default_rng(3)
    with Path(path).open("w") as file:
        file.write(header)
        for i in range(n):
            age = rng.integers(0, 100)
            outcome = "yes" if rng.random() < age / 100 else "no"
            ward = ["north", "south", ""][min(i // 40, 2)]
            cells = [str(age), "fm"[i % 2], f"{rng.uniform(-1, 1):.2f}", outcome, ward]
            file.write(",".join(cells[: header.count(",") + 1]) + "\n")


TABLES = (
    "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon inf "
    "--test wards.csv"
)


def test_groups_of_a_column_that_only_the_test_records_have(clinic, capsys):
    write_wards("wards.csv")
    code, _, err = run_command(capsys, *TABLES.split())
    assert code == 2
    assert "also has ward: declare it there" in err
    code, out, _ = run_command(capsys, *f"{TABLES} --groups ward --out run --json".split())
    assert code == 0
    measures = json.loads(out)["measures"]
    assert measures["grouped_by"] == "ward"
    assert [(part["name"], part["records"]) for part in measures["groups"]] == [
        ("(none)", 10),
        ("north", 40),
        ("south", 40),
    ]
    assert measures["positive"] == "yes"
    task = csv_task(test=("wards.csv",), groups="ward")
    seen = task.measure.predictions(torch.from_numpy(equipoise.load("run").x))
    assert measures == json.loads(json.dumps(asdict(measures_of(seen))))

    shown = run_command(capsys, "show", "run")[1]
    assert "AUROC " in shown
    assert "by ward" in shown
    measured = json.loads(run_command(capsys, "evaluate", "run", "--json")[1])
    assert measured["measures"] == measures
    again = "evaluate run --data wards.csv --json --threshold 0.3"
    other = json.loads(run_command(capsys, *again.split())[1])["measures"]
    assert other["threshold"] == 0.3
    assert other["groups"][0]["name"] == "(none)"  # the run's column, where the file has it
    write_wards("plain.csv", HEADER)
    plain = json.loads(run_command(capsys, *"evaluate run --data plain.csv --json".split())[1])
    assert plain["measures"]["groups"] == []
    by_sex = "evaluate run --data plain.csv --groups sex --json"
    assert [
        (part["name"], part["records"])
        for part in json.loads(run_command(capsys, *by_sex.split())[1])["measures"]["groups"]
    ] == [("f", 45), ("m", 45)]


def test_printed_groups_are_those_of_python(clinic):
    write_wards("wards.csv")
    values = {**clinic, "test": ("wards.csv",), "groups": "ward"}
    result = equipoise.train(**values)
    lines = str(result).splitlines()
    assert any(line.startswith("by ward     (none) (10 records): ") for line in lines)
    assert any(line.startswith("at p >= 0.5 sensitivity to yes ") for line in lines)
    assert "by ward" in result._repr_html_()
    assert equipoise.evaluate(result).measures == result.measures
    assert equipoise.evaluate(result, groups="sex").measures.grouped_by == "sex"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (f"{TABLES} --groups bed", "wards.csv lacks bed, the column of groups"),
        (
            "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon "
            "inf --groups sex",
            "groups=sex without public test records: give --test FILE, or leave it out",
        ),
        (
            "train --task digits --epsilon inf --groups sex",
            "groups=sex with task=digits: only task csv reads columns; leave it out",
        ),
        (
            f"{TABLES.replace('wards', 'plain')} --groups score",
            "different values in the test records: give a column with at most 50",
        ),
        ("evaluate run --groups bed", "wards.csv lacks bed, the column of groups"),
        ("evaluate run --threshold 1.5", "threshold=1.5 is not a probability between 0 and 1"),
        ("evaluate digits --groups sex", "groups=sex with task=digits: only task csv"),
    ],
)
def test_what_is_refused(clinic, capsys, flags, sentence):
    write_wards("wards.csv")
    write_wards("plain.csv", HEADER)
    run_command(capsys, *f"{TABLES} --groups ward --out run".split())
    run_command(capsys, *"train --task digits --epsilon inf --iterations 1 --out digits".split())
    code, out, err = run_command(capsys, *flags.split())
    assert (code, out) == (2, "")
    assert sentence in err.replace("\n", " ")
    assert len(err.splitlines()) == 1


def test_a_private_file_may_not_have_the_column(clinic, capsys):
    write_wards("wards.csv")
    Path("a.csv").write_text(WARDS + "30,f,0.1,no,north\n")
    code, _, err = run_command(capsys, *f"{TABLES} --groups ward".split())
    assert code == 2
    assert "a.csv does not have the columns of the bounds file: it also has ward: " in err


def test_by_client_where_test_records_have_one():
    clients, _ = blobs(3)
    rng = torch.Generator().manual_seed(1)
    tests = []
    for number in (12, 30, 25):
        x = torch.randn(number, 4, generator=rng)
        tests.append((x, (x[:, 0] + x[:, 1] > 0).long()))
    model = FlatModel(nn.Linear(4, 2))
    about = {"error_name": "1 - accuracy", "learning_rate": 0.5, "iterations": 4, "public": ()}
    loss, metric = nn.functional.cross_entropy, equipoise.accuracy
    task = model_task(
        "toy", model, loss, metric, tuple(clients), tuple(tests), batch=None, seed=0, **about
    )
    result = equipoise.train(task=task, epsilon=math.inf)
    parts = result.measures.clients
    assert [(part.name, part.records) for part in parts] == [("0", 12), ("1", 30), ("2", 25)]
    errors = [1 - part.estimates["accuracy"].value for part in parts]
    assert np.mean(errors) == pytest.approx(result.client_error)
    outputs = model(torch.from_numpy(result.x), tests[1][0])
    area = metrics.roc_auc_score(tests[1][1], outputs.softmax(1)[:, 1])
    assert parts[1].estimates["auroc"].value == pytest.approx(area, abs=1e-6)
    assert "in the median of 3 clients" in str(result)


# where they come from


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "digits-mlp"])
def test_they_agree_with_the_error_of_the_run(name):
    result = equipoise.train(task=name, epsilon=2, clip=1, iterations=4)
    assert result.measures["accuracy"].value == pytest.approx(1 - result.test_error, abs=1e-9)
    assert (
        result.measures.records
        == load_task(name, TaskOptions()).measure.predictions(torch.from_numpy(result.x)).truth.size
    )
    assert equipoise.evaluate(result).measures == result.measures


def test_values_are_in_units_of_the_label(clinic):
    Path("bounds.toml").write_text(
        BOUNDS.replace('categories = ["no", "yes"]', "low = 0\nhigh = 400")
    )
    for path in ("a.csv", "b.csv"):
        text = Path(path).read_text()
        Path(path).write_text(text.replace("yes", "300").replace("no", "100"))
    rows = [f"{20 + i},f,0.1,{100 + 5 * i}\n" for i in range(40)]
    Path("test.csv").write_text(HEADER + "".join(rows))
    result = equipoise.train(**{**clinic, "test": ("test.csv",)})
    assert result.measures["rmse"].value == pytest.approx(result.test_error)
    weights = result.x
    guesses = []
    for i in range(40):
        age, score = (20 + i - 50) / 50, 0.1
        features = np.array([age, 1, 0, score, math.sqrt(3)]) / math.sqrt(3)
        guesses.append(200 + 200 * features @ weights)
    gaps = np.array(guesses) - [100 + 5 * i for i in range(40)]
    assert result.measures["mae"].value == pytest.approx(np.abs(gaps).mean())
    assert "distance    RMSE " in str(result)


def own(loss, outputs=2, targets=None, **changes):
    clients, (x, y) = blobs(3)
    convert = targets or (lambda y: y)
    pairs = [(inputs, convert(labels)) for inputs, labels in clients]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, outputs)
    metric = changes.pop("metric", equipoise.accuracy)
    return equipoise.own_task(model, pairs, loss, metric, test=(x, convert(y)), **changes)


def column(y):
    return y[:, None].float()


def negative_distance(outputs, targets):
    return -float((outputs - targets).abs().mean())


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (own(nn.functional.cross_entropy), lambda o: o.softmax(1)[:, 1]),
        (own(nn.CrossEntropyLoss()), lambda o: o.softmax(1)[:, 1]),
        (own(nn.CrossEntropyLoss(), 3), lambda o: o.softmax(1)),
        (
            own(nn.BCEWithLogitsLoss(), 1, column, metric=negative_distance),
            lambda o: o.sigmoid()[:, 0],
        ),
        (own(nn.functional.mse_loss, 1, column, metric=negative_distance), lambda o: o[:, 0]),
    ],
)
def test_what_a_network_answers(task, answer):
    assert isinstance(task.measure, Predicts)
    outputs = task.measure.model(task.x0, task.measure.parts[0][0])
    seen = task.measure.predictions(task.x0)
    np.testing.assert_allclose(seen.output, answer(outputs.detach()).numpy(), atol=1e-6)
    assert np.array_equal(seen.truth, task.measure.parts[0][1].flatten().numpy())


def of_ones_own(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def test_what_is_not_known_is_not_told(capsys):
    """A loss of one's own does not say what outputs are; the synthetic task predicts nothing."""
    task = own(of_ones_own)
    result = equipoise.train(task=task, epsilon=math.inf, iterations=2)
    assert result.measures is None
    assert "AUROC" not in str(result)
    assert equipoise.train(task="quadratic", epsilon=math.inf, iterations=2).measures is None


def test_nothing_is_measured_on_private_records(clinic):
    """A model's measures are the same whatever the clients hold, and there are none without public
    test records."""
    write_wards("wards.csv")
    x = torch.from_numpy(RNG.normal(size=5))
    before = measures_on_test(csv_task(test=("wards.csv",), groups="ward"), x)
    Path("a.csv").write_text(HEADER + "1,m,1,no\n" * 50)
    Path("b.csv").write_text(HEADER + "99,f,-1,yes\n" * 70)
    assert measures_on_test(csv_task(test=("wards.csv",), groups="ward"), x) == before
    assert before.records == 90
    assert equipoise.train(**clinic).measures is None


def test_a_run_that_overflows_is_told_all_the_same():
    result = equipoise.train(
        task="breast-cancer", epsilon=math.inf, eta=1e300, iterations=3, returns="last"
    )
    assert result.failed
    assert result.measures is None or result.measures.unknown or result.measures.estimates
    assert equipoise.Result.model_validate_json(result.to_json()).measures == result.measures


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = equipoise.train(task="breast-cancer", epsilon=2, clip=1, iterations=4)
    equipoise.save(result, tmp_path / "run")
    assert equipoise.load(tmp_path / "run").measures == result.measures
    document = json.loads(result.to_json())
    del document["measures"]
    assert equipoise.Result.model_validate(document).measures is None


def test_guarantees_do_not_speak_of_them(tmp_path):
    """They are on public records: nothing of them was protected, or spent."""
    equipoise.save(
        equipoise.train(task="breast-cancer", epsilon=2, clip=1, iterations=4), tmp_path / "run"
    )
    assert "AUROC" not in (tmp_path / "run" / "guarantee.md").read_text()


# sweeps and reports


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("measures") / "store.sqlite"
    equipoise.sweep(
        task="breast-cancer",
        epsilon=[1, math.inf],
        clip=0.1,
        iterations=8,
        local_steps="divisors",
        store=path,
    )
    return path


def test_a_sweep_keeps_numbers_without_intervals(store):
    with Store(store, read_only=True) as kept:
        (document, *_) = (json.loads(row["result"]) for row in kept.table("result"))
    measures = equipoise.Result.model_validate(document).measures
    assert measures.resamples == 0
    assert measures["auroc"].value is not None
    assert all(measures[name].low is None for name in measures)
    assert measures.clients == ()


def test_a_report_by_another_measure(store, tmp_path, capsys):
    code, out, _ = run_command(
        capsys, "report", str(store), "--out", str(tmp_path / "out"), "--measure", "auroc"
    )
    assert code == 0
    assert "the error is 1 - AUROC" in out
    plain, judged = read_study(store), read_study(store, "auroc")
    (case,) = judged.cases
    assert case.error_name == "1 - AUROC"
    assert case.baseline is None
    for cell, other in zip(case.cells, plain.cases[0].cells, strict=True):
        assert cell.place == other.place
        for trial, same in zip(cell.trials, other.trials, strict=True):
            assert trial.test_error == pytest.approx(1 - same.measures["auroc"])
            assert same.test_error == pytest.approx(1 - same.measures["accuracy"])
            assert (trial.curve, trial.train_error) == ((), None)
    table = (tmp_path / "out" / "tables" / "measures.csv").read_text()
    assert "auroc" in table
    assert "calibration_slope" in table


@pytest.mark.parametrize("measure", ["calibration_slope", "aroc"])
def test_what_cannot_stand_for_an_error(store, tmp_path, capsys, measure):
    code, _, err = run_command(
        capsys, "report", str(store), "--out", str(tmp_path / "out"), "--measure", measure
    )
    assert code == 2
    assert f"measure={measure} is not one of auroc, average_precision, brier" in err
    with pytest.raises(equipoise.DataError, match="no run with the measure rmse"):
        equipoise.report(store, tmp_path / "out", measure="rmse")


def test_scikit_learn_is_not_loaded_for_help():
    script = (
        "import sys; from equipoise.cli.main import app; "
        "[app([name, '--help'], result_action='return_value') for name in "
        "('train', 'evaluate', 'report')]; import equipoise.measures; "
        "print([m for m in ('torch', 'scipy', 'sklearn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr

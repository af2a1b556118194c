"""Sentences that state mathematics are true, and say the same everywhere."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import norm

import equipoise
from equipoise import Settings, plan, train
from equipoise.describe import plan_lines, result_lines
from equipoise.planning.bounds import trainability
from equipoise.planning.plan import Plan
from equipoise.privacy import Promise, gdp_mu
from equipoise.privacy.promise import MOST_EPSILON
from equipoise.privacy.statement import statement
from equipoise.training import prepare
from problems import BOUNDS, ROOT, TASK_FILE, run_command

SOURCE = Path(equipoise.__file__).parent
SMALL = {"task": "breast-cancer", "clients": 4, "iterations": 4}
DEFINITION = "P(S) <= e^epsilon * P'(S) + delta"


def every_text():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *SOURCE.rglob("*.py")]
    return {path: path.read_text() for path in pages}


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_statement_gives_the_definition_and_not_a_probability_of_failure(epsilon):
    """(epsilon, delta)-DP is no bound on P[loss > epsilon]: that is many times delta."""
    mu = gdp_mu(epsilon, 1e-5)
    assert norm.sf(epsilon / mu - mu / 2) > 9 * 1e-5  # of the loss, N(mu^2/2, mu^2)
    text = statement(train(**SMALL, epsilon=epsilon, clip=1))
    assert DEFINITION in text
    assert f"delta = {1e-5:g}" in text
    assert "probability" not in text


def test_nobody_calls_delta_a_probability_of_failure(capsys):
    wrong = r"probability of failure|probability that epsilon|but for a probability"
    for path, text in every_text().items():
        assert not re.search(wrong, text), path
    with pytest.raises(equipoise.InvalidValue, match=r"delta=2.0 is not in \(0, 1\): choose"):
        Settings.of(**SMALL, epsilon=1, clip=1, delta=2.0)
    weak = train(**SMALL, epsilon=1, clip=1, delta=0.3)
    assert weak.notices[0].startswith("NOT PRIVATE: delta=0.3 is not below 1 / number of clients")
    _, out, _ = run_command(capsys, "train", "--help")
    assert "P(S) <= e^epsilon P'(S)" in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_nu_is_the_averaged_noise_of_a_single_release_over_the_clip(trust):
    """One definition: with K releases the noise is sqrt(K) nu clips, as the table of sigmas
    says.
    """
    found = plan(
        task="digits-mlp", clients=20, epsilon=2, trust=trust, clip=0.7, synthetic=True
    )  # no pool, so that there is the noise alone
    d = 64 * 32 + 32 + 32 * 10 + 10
    promise = Promise(2, 1e-5, trust=trust)
    assert found.nu2 == pytest.approx(trainability(promise, 20, d))
    for level in found.noise:
        averaged = level.client_sigma / math.sqrt(20) * math.sqrt(d)  # mean over 20 clients
        assert averaged / 0.7 == pytest.approx(math.sqrt(level.rounds * found.nu2), rel=1e-9)
    assert found.verdict == "inconclusive"
    assert "nothing was tried" in found.reason


@pytest.mark.slow
def test_nu_is_said_in_one_way(capsys):
    command = "\n".join(plan_lines(plan(task="quadratic", epsilon=1, clip=0.3)))
    sentence = "mean of |averaged noise|^2 / C^2 if there were one release"
    assert sentence in command
    assert sentence in (ROOT / "README.md").read_text()
    for path, text in every_text().items():
        assert "No schedule can learn" not in text, path
        assert "no schedule can learn" not in text, path
        assert "of one release" not in text or "nu" not in text.split("of one release")[0][-40:], (
            path
        )


def write_clinic(folder, labels):
    (folder / "bounds.toml").write_text(BOUNDS)
    rows = [f"{20 + 3 * i},{'fm'[i % 2]},0.{i % 10},{labels[i % 2]}\n" for i in range(20)]
    for name in ("a.csv", "b.csv", "c.csv", "test.csv"):
        (folder / name).write_text("age,sex,score,outcome\n" + "".join(rows))
    names = [str(folder / name) for name in ("a.csv", "b.csv", "c.csv")]
    return {
        "task": "csv",
        "data": names,
        "test": str(folder / "test.csv"),
        "bounds": str(folder / "bounds.toml"),
        "label": "outcome",
    }


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "record"])
def test_invented_labels_predict_no_test_error(tmp_path, unit):
    clinic = write_clinic(tmp_path, ["no", "yes"])
    blind = plan(**clinic, epsilon=20, unit=unit, iterations=4)
    assert blind.predicted.test_error is None
    assert all(option.predicted.test_error is None for option in blind.options[:-2])
    assert blind.verdict != "train", "made-up labels cannot tell whether there is anything to learn"
    assert "made-up records, which predict no test error" in " ".join(blind.public)
    assert "test error not known" in "\n".join(plan_lines(blind))
    (tmp_path / "proxy.csv").write_text((tmp_path / "a.csv").read_text())
    sighted = plan(**clinic, proxy=tmp_path / "proxy.csv", epsilon=20, unit=unit, iterations=4)
    assert sighted.predicted.test_error is not None


@pytest.mark.slow
def test_no_plan_says_train_beside_a_prediction_worse_than_not_training(tmp_path):
    """The proxy's labels are the opposite of the test records': whatever is learnt makes it
    worse.
    """
    clinic = write_clinic(tmp_path, ["no", "yes"])
    text = (tmp_path / "a.csv").read_text()
    swapped = text.replace("no\n", "?\n").replace("yes\n", "no\n").replace("?\n", "yes\n")
    (tmp_path / "proxy.csv").write_text(swapped)
    found = plan(**clinic, proxy=tmp_path / "proxy.csv", epsilon=100, trust="secure-aggregation")
    assert found.predicted.test_error >= found.untrained.test_error
    assert found.verdict != "train"


def test_a_sample_is_called_secret_only_where_records_are_sampled():
    record = {**SMALL, "unit": "record", "epsilon": 3, "clip": 1}
    whole, sampled = statement(train(**record)), statement(train(**record, sampling_rate=0.5))
    assert "secret" not in whole
    assert "secret Poisson sample" in sampled


def test_ways_to_lessen_the_noise_are_told_where_there_is_noise():
    hopeless = {**SMALL, "clip": 10, "simulate_noise_seed": 0}
    for settings, wanted in (
        ({"epsilon": 0.01}, "fewer rounds, a smaller clip or more clients would lessen the noise"),
        ({"epsilon": 0.01, "unit": "record"}, "fewer local steps in all, a smaller clip or more"),
    ):
        result = train(**hopeless, **settings)
        assert result.test_error >= result.baseline_error
        assert wanted in "\n".join(result_lines(result))
    free = train(**{**SMALL, "eta": 1e9}, epsilon=math.inf)
    assert "no better than not training" in "\n".join(result_lines(free))
    assert "lessen the noise" not in "\n".join(result_lines(free))
    assert "privacy     none (epsilon = inf)" in "\n".join(result_lines(free))


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_nu_squared_of_a_record_plan_is_what_one_release_would_have(trust):
    """Where noise is no multiple of the clip, there is no such number."""
    shared = {"task": "breast-cancer", "clients": 5, "unit": "record", "epsilon": 2, "trust": trust}
    stable = plan(**shared, noise_in="message", iterations=4)
    assert stable.nu2 is None
    assert "nu^2" not in str(stable)
    if trust == "local":
        noisy = plan(**shared, noise_in="gradient", iterations=4)
        run = prepare(**shared, clip=0.3, iterations=1, public_records=40)
        sizes, sigma = run.task.clients.sizes, run.account.sigma
        mean = sum(sizes) / len(sizes)  # the planner's clients are alike
        averaged = run.task.dimension * sigma**2 / (5 * mean**2) / 0.3**2
        assert noisy.nu2 == pytest.approx(averaged, rel=0.02)


@pytest.mark.slow
def test_nu_squared_of_sampled_gradients_is_what_one_release_would_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(TASK_FILE + "\nbatch = 10\niterations = 2\n")
    made = plan(task="own.py", epsilon=3, unit="record", clip=0.7)
    run = prepare(task="own.py", epsilon=3, unit="record", clip=0.7, iterations=1)
    (event, *_), d = run.account.events, run.task.dimension
    averaged = d * (event.sigma / (event.rate * 40)) ** 2 / 6
    assert made.nu2 == pytest.approx(averaged / 0.7**2)
    assert "sqrt(K)" not in made.reason
    assert "K times" not in str(made)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"epsilon": 100_000}, "epsilon=100000 is above 20"),
        ({"epsilon": 20.5, "unit": "record"}, "epsilon=20.5 is above 20"),
        ({"epsilon": 2, "delta": 0.9}, "delta=0.9 is not below 1 / number of clients (4)"),
        ({"epsilon": 2, "delta": 1 / 49, "clients": 49}, "1 / number of clients (49)"),  # rounds
        ({"epsilon": 3, "unit": "record", "delta": 0.005}, "1 / number of records (379)"),
        ({"epsilon": 3, "unit": "record", "delta": 0.01, "sampling_rate": 0.5}, "(379)"),
    ],
)
def test_what_excludes_nothing_is_not_called_private(how, reason):
    result = train(**{**SMALL, "clip": 1, "clients": 4, "iterations": 2, **how})
    assert not result.private
    assert result.notices[0].startswith("NOT PRIVATE: ")
    assert reason in result.notices[0]
    assert f"protects    nobody: {result.vacuous}" in str(result)
    text = statement(result)
    assert text.startswith("# NOT a privacy guarantee")
    assert reason in text
    assert "What is guaranteed" not in text
    assert "differentially private" not in text
    assert not equipoise.Result.model_validate_json(result.to_json()).private
    from equipoise.reports.curve import _title

    assert _title(result).endswith(": not private")


@pytest.mark.parametrize(
    ("how", "strength"),
    [
        ({"epsilon": 1}, "strong"),
        ({"epsilon": 10}, "reasonable"),
        ({"epsilon": 10.01}, "weak"),
        ({"epsilon": 20}, "weak"),
        ({"epsilon": 2, "delta": 0.24}, "reasonable"),
        ({"epsilon": 2, "delta": 0.0026, "unit": "record"}, "reasonable"),
    ],
)
def test_how_strong_a_guarantee_is_grows_with_epsilon(how, strength):
    result = train(**{**SMALL, "clip": 1, "clients": 4, "iterations": 2, **how})
    assert result.private
    assert result.vacuous == ""
    assert f"Such an epsilon is called {strength}" in statement(result)
    weak = [notice for notice in result.notices if notice.startswith("WEAK: epsilon=")]
    assert (len(weak) == 1) == (strength == "weak")


def test_the_most_that_is_called_private_excludes_next_to_nothing():
    """The reasons that privacy.md gives for 20: no attack with more false alarms than one in 485
    million is excluded by (epsilon, delta) alone; Gaussian noise hides little more."""
    assert math.exp(MOST_EPSILON) == pytest.approx(485e6, rel=1e-3)
    mu = gdp_mu(MOST_EPSILON, 1e-5)
    assert norm.cdf(norm.ppf(0.01) + mu) == pytest.approx(0.87, abs=0.005)
    assert norm.cdf(mu / 2) == pytest.approx(0.96, abs=0.005)


def test_plans_from_constants_call_the_same_budgets_not_private(capsys):
    constants = (
        "plan --mu 0.01 --smoothness 1 --psi0 100 --dimension 10 --clients 10 --clip 0.1 "
        "--trust secure-aggregation"
    )
    for flags, reason in (
        ("--epsilon 100000", "epsilon=100000 is above 20"),
        ("--epsilon 2 --delta 0.1", "1 / number of clients (10)"),
        ("--epsilon 2 --delta 0.0999", ""),
        ("--epsilon 15", "WEAK: epsilon=15 "),
    ):
        _, out, _ = run_command(capsys, *constants.split(), *flags.split(), "--json")
        document = json.loads(out)
        assert len(document["notices"]) == bool(reason)
        assert all(reason in notice for notice in document["notices"])
        made = Plan.model_validate_json(out)
        assert made.notices == document["notices"]
        assert bool(made.vacuous) == (bool(reason) and "WEAK" not in reason)
        first = str(made).splitlines()[0]
        assert first == f"privacy     {made.notices[0]}" if reason else first.startswith("verdict")
    _, out, _ = run_command(capsys, *constants.split(), "--epsilon", "2", "50")
    verdicts = [line.split("│")[-2].strip() for line in out.splitlines() if line.startswith("│")]
    assert "not private" not in verdicts[0]
    assert "not private" in " ".join(verdicts[1:])


@pytest.mark.slow
def test_plans_for_tasks_call_the_same_budgets_not_private():
    records = plan(task="breast-cancer", clients=5, unit="record", epsilon=2, delta=0.01, clip=1)
    assert records.vacuous.startswith("delta=0.01 is not below 1 / number of records (3")
    tried = plan(task="breast-cancer", clients=5, epsilon=30, clip=1, iterations=4)
    assert tried.notices[0].startswith("NOT PRIVATE: epsilon=30")
    blind = plan(task="digits-mlp", clients=5, epsilon=2, delta=0.2, clip=1)
    assert blind.notices[0].startswith("NOT PRIVATE: delta=0.2")


def test_a_report_calls_the_same_budgets_not_private():
    from equipoise.reports.conventions import meaning
    from equipoise.reports.study import Case

    settings = train(**SMALL, epsilon=2, clip=1).run.model_dump()
    assert "not private" not in meaning(settings, True)
    assert "number of clients: not private" in meaning({**settings, "delta": 0.5}, True)
    for epsilon, nominal, label in (
        (20.0, False, "ε = 20"),
        (50.0, False, "ε = 50 (not private)"),
        (1e5, False, "ε = 100000 (not private)"),
        (50.0, True, "ε = 50 (exact ε = 50)"),
    ):
        cell = SimpleNamespace(epsilon=epsilon, epsilon_spent=epsilon)
        case = SimpleNamespace(cells=[cell], nominal=nominal)
        assert Case.budget(case, epsilon) == label


def test_the_statement_at_its_edges():
    """No number that a float cannot hold, no message hidden from those who can subtract, no
    definition of what is not promised."""
    huge = statement(train(**SMALL, epsilon=800, clip=1, trust="secure-aggregation", colluding=3))
    assert "e^epsilon is about" not in huge
    assert huge.startswith("# NOT a privacy guarantee")
    assert "never a single message" not in huge
    assert "of the clients that do not collude" in huge
    free = statement(train(**SMALL, epsilon=math.inf))
    assert "were the noise secret" not in free
    assert "What is guaranteed" not in free
    printed = statement(train(**SMALL, epsilon=2, clip=1, noise_rule="lemma1", v=0.01))
    assert printed.startswith("# NOT a privacy guarantee")
    assert "What is guaranteed" not in printed


def test_the_private_dialect_is_gone():
    for path, text in every_text().items():
        assert not re.search(r"cannot be\s+told(?!\s+apart)", text), path
        assert "spent everything" not in text, path


def test_iterations_have_one_limit():
    from equipoise.settings import MOST_ITERATIONS
    from equipoise.sweeps.grid import grid

    for value in (MOST_ITERATIONS + 1, 10**9):
        with pytest.raises(equipoise.InvalidValue, match=f"{MOST_ITERATIONS:,}"):
            Settings.of(task="quadratic", epsilon=1, clip=1, iterations=value)
        with pytest.raises(equipoise.InvalidValue, match=f"{MOST_ITERATIONS:,}"):
            grid({"task": "quadratic", "epsilon": 1, "clip": 1, "iterations": value})


def test_a_file_does_not_decide_what_is_called_private(tmp_path):
    """Of an older version, or edited: what excludes nothing is not private once it is read."""
    result = equipoise.train(task="breast-cancer", epsilon=50, clip=1, iterations=4)
    equipoise.save(result, tmp_path / "run")
    place = tmp_path / "run" / "result.json"
    document = {**json.loads(place.read_text()), "private": True, "notices": []}
    place.write_text(json.dumps(document))
    loaded = equipoise.load(tmp_path / "run")
    assert not loaded.private
    assert loaded.notices[0].startswith("NOT PRIVATE: epsilon=50 is above 20")
    assert statement(loaded).startswith("# NOT a privacy guarantee")

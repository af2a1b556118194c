"""A model tuned at home: between one's own records alone and the federated model; it is marked, and
nothing of it gets into a federation."""

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import nn

import equipoise
from equipoise import InvalidValue, adapting
from equipoise.adapting import RHOS
from equipoise.planning.at_home import PULLS, AtHome
from equipoise.privacy.statement import guarantee_of
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.linear import LOGISTIC
from equipoise.tasks.task import Table
from problems import BOUNDS, HEADER, TASK_FILE, run_command

FIRST_WORDS = "NOT TO BE RELEASED"


def people(number, seed, flipped=False):
    """Rows of a table whose label follows from age and sex, or from the contrary."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        age, sex = rng.uniform(0, 100), rng.choice(["f", "m"])
        ill = rng.random() < expit(0.1 * (age - 50) + (sex == "m"))
        lines.append(f"{age:.1f},{sex},{rng.uniform(-1, 1):.2f},{'yes' if ill ^ flipped else 'no'}")
    return HEADER + "\n".join(lines) + "\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A federated run, noise-free, in the folder `run`, of two large clients that are alike."""
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(BOUNDS)
    Path("a.csv").write_text(people(400, 1))
    Path("b.csv").write_text(people(400, 2))
    result = equipoise.train(
        task="csv",
        data=("a.csv", "b.csv"),
        label="outcome",
        bounds="bounds.toml",
        epsilon=math.inf,
        iterations=100,
        l2=1e-3,
    )
    equipoise.save(result, "run")
    return result


def coded(path):
    """Features and labels of a table, by hand."""
    features, labels = [], []
    for line in Path(path).read_text().splitlines()[1:]:
        age, sex, score, outcome = line.split(",")
        cells = [(float(age) - 50) / 50, sex == "f", sex == "m", float(score)]
        features.append([*(cell / math.sqrt(3) for cell in cells), 1])
        labels.append(outcome == "yes")
    return np.array(features), np.array(labels)


def solved(path, centre, rho, l2):
    """The minimiser of mean logistic loss + (l2/2) |x|^2 + (rho/2) |x - centre|^2, by SciPy."""
    features, labels = coded(path)
    signs = np.where(labels, 1, -1)

    def loss(x):
        records = np.logaddexp(0, -signs * (features @ x)).mean()
        return records + l2 / 2 * x @ x + rho / 2 * (x - centre) @ (x - centre)

    def gradient(x):
        records = (expit(features @ x) - labels) @ features / len(labels)
        return records + l2 * x + rho * (x - centre)

    options = {"gtol": 1e-12, "ftol": 0, "maxiter": 10_000}
    start = np.zeros(features.shape[1])
    return minimize(loss, start, jac=gradient, method="L-BFGS-B", options=options).x


def choosing(monkeypatch, pull, alone=False):
    """Let cross-validation find this rho best; or, of one's own records alone, this l2."""

    def told(pulls, here=True):
        return [AtHome(each, 0.1, 0.01, float(not (here and each == pull))) for each in pulls]

    def pulled(records, link, centre, pulls=PULLS):
        return told(pulls, alone == (not centre.any()))

    monkeypatch.setattr(adapting, "pulled", pulled)
    monkeypatch.setattr(adapting, "every_pull", lambda pulls, *_: told(pulls))


# ---- both ends, and all that is between ----


@pytest.mark.parametrize("rho", [*RHOS, math.inf])
def test_the_model_minimises_what_is_said(run, monkeypatch, rho):
    """Own mean loss + (rho/2) |x - x_federated|^2, exactly; rho = inf is the federated model."""
    Path("mine.csv").write_text(people(60, 3))
    choosing(monkeypatch, rho)
    adapted = equipoise.adapt(run, "mine.csv")
    assert (adapted.adapted.rho, adapted.adapted.l2, adapted.adapted.records) == (rho, 0, 60)
    if rho == math.inf:
        assert np.array_equal(adapted.x, run.x)
        return
    expected = solved("mine.csv", run.x, rho, 0.0)
    np.testing.assert_allclose(adapted.x, expected, atol=1e-6 / rho**0.5)


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_rho_0_is_the_model_of_one_s_own_records_alone(run, monkeypatch, l2):
    Path("mine.csv").write_text(people(60, 3))
    choosing(monkeypatch, l2, alone=True)
    adapted = equipoise.adapt(run, "mine.csv")
    assert (adapted.adapted.rho, adapted.adapted.l2) == (0, l2)
    np.testing.assert_allclose(adapted.x, solved("mine.csv", 0 * run.x, 0, l2), atol=1e-5)
    elsewhere = run.model_copy(update={"x": -5 * run.x})
    again = equipoise.adapt(elsewhere, "mine.csv")
    np.testing.assert_allclose(again.x, adapted.x, atol=1e-5, err_msg="whatever was federated")


def test_cross_validation_goes_where_the_records_say(run):
    """Few records like those of all do not spoil the federated model, and many of another kind
    leave it behind."""
    Path("alike.csv").write_text(people(150, 4))
    Path("other.csv").write_text(people(300, 5, flipped=True))
    Path("alike-test.csv").write_text(people(2000, 6))
    Path("other-test.csv").write_text(people(2000, 7, flipped=True))
    for kind, worse in (("alike", 0.02), ("other", -0.5)):
        adapted = equipoise.adapt("run", f"{kind}.csv")
        before, after = (equipoise.evaluate(x, f"{kind}-test.csv").error for x in (run, adapted))
        assert after < before + worse
        about = adapted.adapted
        assert about.error <= min(about.federated_error, about.alone_error) + about.standard_error
        assert equipoise.adapt("run", f"{kind}.csv") == adapted, "the same twice"
    assert np.linalg.norm(adapted.x - run.x) > np.linalg.norm(run.x)


def test_every_source_of_one_s_own_records(run):
    import pandas

    Path("mine.csv").write_text(people(60, 3))
    expected = equipoise.adapt(run, "mine.csv")
    frame = pandas.read_csv("mine.csv").assign(patient=range(60))
    frame.to_parquet("mine.parquet")
    for data in (frame, "mine.parquet", Path("mine.csv"), frame.to_dict("list")):
        assert np.array_equal(equipoise.adapt("run", data).x, expected.x)
    first = equipoise.adapt("run", client=1)
    assert np.array_equal(first.x, equipoise.adapt("run", "b.csv").x)


def test_lines_without_a_label_are_left_out(run):
    """A run that protects records keeps them as zeros, which are no records of one's own."""
    lines = people(60, 3)
    Path("a.csv").write_text(lines + "50,f,0,perhaps\n" * 7)
    record = run.model_copy(update={"run": run.run.model_copy(update={"unit": "record"})})
    assert equipoise.adapt(record, client=0).adapted.records == 60
    assert equipoise.adapt(record, "a.csv").adapted.records == 60


@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_clients_of_tasks_with_records_of_their_own(name):
    settings = {"task": name, "clients": 5, "iterations": 4, "epsilon": math.inf}
    result = equipoise.train(**settings)
    adapted = equipoise.adapt(result, client=3)
    task = load_task(name, TaskOptions(clients=5))
    assert adapted.adapted.records == task.clients.sizes[3]
    before, after = (task.measure(torch.from_numpy(x).double()) for x in (result.x, adapted.x))
    assert after.loss < before.loss
    assert after.error <= before.error
    assert equipoise.evaluate(adapted).error == after.error
    with pytest.raises(InvalidValue, match=rf"data with task={name}, which brings its own record"):
        equipoise.adapt(result, "mine.csv")


# ---- networks ----


def network_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = TASK_FILE.replace(
        "nn.Linear(4, 2)",
        "nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2))",
    )
    Path("mine.py").write_text(text.replace("y = (x[:, 0] > 0)", "y = (x[:, 0] * x[:, 1] > 0)"))
    result = equipoise.train(task="mine.py", epsilon=math.inf, iterations=60)
    equipoise.save(result, "run")
    return result


@pytest.mark.parametrize("layers", [None, "last", "all"])
def test_of_a_network_the_last_layer_is_tuned_or_all(tmp_path, monkeypatch, layers):
    result = network_run(tmp_path, monkeypatch)
    choosing(monkeypatch, 1e-3)
    adapted = equipoise.adapt("run", client=2, layers=layers)
    before, after = dict(result.model.named_parameters()), adapted.model
    moved = {n for n, p in after.named_parameters() if not torch.equal(p, before[n])}
    last = {"3.weight", "3.bias"}
    assert moved == (last | {"0.weight", "0.bias"} if layers == "all" else last)
    assert set(adapted.adapted.tensors) == moved
    task = load_task("mine.py", TaskOptions())
    inputs, targets = task.clients.alone(2).data[0]
    for parameter in after.parameters():
        parameter.requires_grad_(True)
    loss = nn.functional.cross_entropy(after(inputs), targets)
    start = nn.functional.cross_entropy(result.model(inputs), targets)
    pull = sum(
        0.0005 * (parameter - before[name]).square().sum()
        for name, parameter in after.named_parameters()
    )
    assert loss + pull < start
    if layers != "all":  # convex: the gradient of the whole vanishes, dropout switched off
        gradients = torch.autograd.grad(loss + pull, [after.get_parameter(n) for n in sorted(last)])
        assert max(float(gradient.abs().max()) for gradient in gradients) < 2e-3


def test_the_ends_of_a_network(tmp_path, monkeypatch):
    result = network_run(tmp_path, monkeypatch)
    choosing(monkeypatch, math.inf)
    assert np.array_equal(equipoise.adapt("run", client=0, layers="all").x, result.x)
    losses = []
    for rho in (1.0, 1e-2, 0.0):
        choosing(monkeypatch, rho)
        x = torch.from_numpy(equipoise.adapt("run", client=0, layers="all").x)
        clients = load_task("mine.py", TaskOptions()).clients
        inputs, targets = clients.data[0]
        losses.append(float(clients.loss(clients.model(x, inputs), targets)))
    assert losses == sorted(losses, reverse=True), "the smaller rho, the nearer to one's own"
    assert losses[-1] < 0.5 * losses[0]


def test_records_of_a_network_are_given_in_python(tmp_path, monkeypatch):
    result = network_run(tmp_path, monkeypatch)
    choosing(monkeypatch, 1e-2)
    task = load_task("mine.py", TaskOptions())
    pair = task.clients.alone(1).data[0]
    expected = equipoise.adapt(result, client=1)
    for data in (pair, tuple(part.numpy() for part in pair)):
        assert np.array_equal(equipoise.adapt(result, data).x, expected.x)
    with pytest.raises(InvalidValue, match=r"data=mine\.csv with a network, which reads no table"):
        equipoise.adapt(result, "mine.csv")


def test_a_task_that_was_made_in_python_is_given_too():
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    clients = list(zip(x.split(40), (x[:, 0] > 0).long().split(40), strict=True))
    arguments = clients, nn.functional.cross_entropy, equipoise.accuracy
    task = equipoise.own_task(nn.Linear(4, 2), *arguments, learning_rate=0.1)
    result = equipoise.train(task=task, epsilon=math.inf, iterations=2)
    adapted = equipoise.adapt(result, clients[0], task=task)
    assert np.array_equal(adapted.x, equipoise.adapt(result, client=0, task=task).x)
    assert adapted.adapted.error <= adapted.adapted.federated_error
    with pytest.raises(InvalidValue, match="was made in Python: give it too"):
        equipoise.adapt(result, clients[0])
    with pytest.raises(InvalidValue, match="client=3 is not one of the 3 clients, from 0"):
        equipoise.adapt(result, client=3, task=task)


# ---- it stays at home ----


@pytest.fixture
def mine(run, capsys):
    """A run that was tuned at home, in the folder `mine`."""
    Path("mine.csv").write_text(people(60, 3))
    code, out, err = run_command(
        capsys, "adapt", "run", "--data", "mine.csv", "--out", "mine", "--json"
    )
    assert code == 0, err
    assert err == "saved in mine\n"
    return json.loads(out)


def test_a_tuned_run_says_what_it_is(run, mine, capsys):
    names = ["bounds.toml", "model-card.md", "model.safetensors", "not-to-be-released.md"]
    assert sorted(path.name for path in Path("mine").iterdir()) == [*names, "result.json"]
    text = Path("mine/not-to-be-released.md").read_text()
    assert text.splitlines()[0] == f"# {FIRST_WORDS}"
    assert "tuned on 60 records of one client, without clip and noise" in text
    assert all(notice in text for notice in mine["notices"])
    assert FIRST_WORDS in "".join(Path("mine/model-card.md").read_text().splitlines()[:3])
    assert mine["private"] is False
    assert mine["notices"][0].startswith(FIRST_WORDS)
    assert mine["test_error"] is None
    assert mine["curve"] == []
    shown = run_command(capsys, "show", "mine")[1]
    assert shown.startswith(FIRST_WORDS)
    assert "federated model" in shown.splitlines()[-1]
    loaded = equipoise.load("mine")
    assert json.loads(loaded.to_json()) == mine
    assert equipoise.load("run").adapted is None


def test_nothing_is_stated_of_a_tuned_run(run, mine, capsys):
    """Its result has no guarantee, and its folder gets no file of one."""
    before = sorted(path.name for path in Path("mine").iterdir())
    with pytest.raises(InvalidValue, match="tuned at home, without noise: nothing is guaranteed"):
        guarantee_of(equipoise.load("mine"))
    assert run_command(capsys, "guarantee", "mine")[1].startswith(f"# {FIRST_WORDS}")
    assert sorted(path.name for path in Path("mine").iterdir()) == before


def test_figures_of_the_federated_model_are_not_those_of_the_tuned_one(clinic, capsys):
    Path("mine.csv").write_text(people(60, 3))
    Path("test.csv").write_text(people(200, 9))
    federated = equipoise.train(
        **{**clinic, "test": "test.csv", "groups": "sex", "epsilon": math.inf}
    )
    assert federated.measures.groups
    adapted = equipoise.adapt(federated, "mine.csv", out="mine")
    assert adapted.measures is equipoise.load("mine").measures is None
    assert "by sex" not in run_command(capsys, "show", "mine")[1]


def test_a_file_does_not_decide_that_a_tuned_run_is_private(clinic, capsys):
    Path("mine.csv").write_text(people(60, 3))
    private = equipoise.train(**{**clinic, "epsilon": 2}, clip=1)
    assert private.private
    adapted = equipoise.adapt(private, "mine.csv", out="mine")
    assert not adapted.private
    path = Path("mine/result.json")
    path.write_text(path.read_text().replace('"private": false', '"private": true'))
    assert not equipoise.load("mine").private
    assert "epsilon = 1.99999" in Path("mine/not-to-be-released.md").read_text()


def test_a_tuned_run_predicts_and_is_evaluated(run, mine, capsys):
    Path("test.csv").write_text(people(200, 9))
    adapted = equipoise.load("mine")
    features, labels = coded("test.csv")
    np.testing.assert_allclose(
        adapted.predict("test.csv")[:, 1], expit(features @ adapted.x), rtol=1e-12
    )
    words = "evaluate mine --data test.csv --json"
    measured = json.loads(run_command(capsys, *words.split())[1])
    wrong = (features @ adapted.x >= 0) != labels
    assert measured["error"] == pytest.approx(wrong.mean())
    assert run_command(capsys, "predict", "mine", "test.csv")[0] == 0


def test_nothing_of_a_tuned_run_enters_a_federation(run, mine, capsys):
    """What takes a run, a result, a plan, settings or a module refuses it, or is not given its
    model."""
    adapted = equipoise.load("mine")
    for start in (equipoise.train, equipoise.rounds):
        with pytest.raises(InvalidValue, match="settings is a Result"):
            start(adapted)
    for words in (
        "train --plan mine/result.json",
        "train --config mine/result.json",
        "train --task csv --data a.csv b.csv --label outcome --bounds bounds.toml --epsilon 2 "
        "--clip 1 --out mine",
        "train --task mine --epsilon 2 --clip 1",
        "adapt mine --data mine.csv",
    ):
        code, out, err = run_command(capsys, *words.split())
        assert (code, out) == (2, ""), words
        assert len(err.splitlines()) == 1
    with pytest.raises(InvalidValue, match="was tuned at home already"):
        equipoise.adapt("mine", "mine.csv")
    records = [(torch.randn(20, 4).double(), torch.rand(20, 1).double())] * 3
    loss, metric = nn.functional.mse_loss, equipoise.accuracy
    copied = pickle.loads(pickle.dumps(adapted.model))
    for module in (adapted.model, copied, nn.Sequential(nn.Tanh(), adapted.model)):
        with pytest.raises(InvalidValue, match="model was tuned at home, on records that no noise"):
            equipoise.own_task(module, records, loss, metric)
    federated = equipoise.load("run").model
    assert equipoise.own_task(federated, records, loss, metric).dimension == 5


# ---- bad input ----


def test_what_cannot_be_tuned_is_one_sentence_and_leaves_no_folder(run, capsys):
    Path("one.csv").write_text(HEADER + "30,f,0.1,no\n" * 20 + "30,f,0.1,perhaps\n")
    Path("few.csv").write_text(people(9, 1))
    Path("lacks.csv").write_text("age,sex,score\n30,f,0.1\n")
    for words, sentence in {
        "run --data one.csv": "all records of data=one.csv have the same label: there is nothing",
        "run --data few.csv": "data=few.csv has fewer than 10 records with a declared label",
        "run --data lacks.csv": "lacks.csv lacks columns that the model needs: outcome",
        "run --data none.csv": "data=none.csv: No such file or directory",
        "run": "give one of data, a file of your own records, and client, the number of a client",
        "run --data few.csv --client 1": "give one of data, a file of your own records, and",
        "run --client 2": "client=2 is not one of the 2 clients, from 0",
        "run --data a.csv --layers all": "layers=all with a linear model, which has one layer",
        "run --client 0 --layers last": "layers=last with a linear model, which has one layer",
        "none --data a.csv": "none holds no finished run: result.json is missing",
    }.items():
        code, out, err = run_command(capsys, "adapt", *words.split(), "--out", "mine")
        assert (code, out) == (2, ""), words
        assert err.startswith(f"error: {sentence}"), err
        assert len(err.splitlines()) == 1
        assert not Path("mine").exists()
    code, _, err = run_command(capsys, "adapt", "run", "--data", "a.csv", "--out", "run")
    assert code == 2
    assert "out=run already holds result.json" in err


def test_a_tuned_run_that_cannot_be_kept_says_so(run, capsys, monkeypatch):
    honest = equipoise.saved.write_whole

    def write_whole(path, write):
        if path.name == "not-to-be-released.md":
            raise OSError(28, "No space left on device")
        honest(path, write)

    monkeypatch.setattr("equipoise.saved.write_whole", write_whole)
    code, _, err = run_command(capsys, "adapt", "run", "--data", "a.csv", "--out", "mine")
    assert code == 2
    assert err == (
        "error: out=mine: No space left on device; written: result.json, model.safetensors; not "
        "written: not-to-be-released.md, bounds.toml, model-card.md\n"
    )


def test_one_class_of_a_network(tmp_path, monkeypatch):
    network_run(tmp_path, monkeypatch)
    inputs = torch.randn(20, 4)
    with pytest.raises(InvalidValue, match="all records of data have the same label"):
        equipoise.adapt("run", (inputs, torch.ones(20, dtype=torch.long)))


def test_the_smallest_loss_is_best_and_the_first_of_several():
    tried = [AtHome(pull, 0.1, 0.0, loss) for pull, loss in ((1, 0.5), (2, 0.4), (3, 0.4))]
    assert adapting.best_of(tried).pull == 2
    assert adapting.best_of([AtHome(0, 0.1, 0.0, math.nan), *tried]).pull == 2


def test_a_smaller_loss_may_cost_one_record_and_no_more():
    """Of 20 records the federated model as it is errs on two."""
    federated = AtHome(math.inf, 2 / 20, 0.0, 0.9)
    for wrong, best in ((1, 0.0), (3, 0.0), (4, math.inf)):
        tried = [federated, AtHome(0.0, wrong / 20, 0.0, 0.1)]
        assert adapting.chosen(tried, federated, 20).pull == best
    third = AtHome(1.0, 3 / 20, 0.0, 0.5)
    others = [federated, third, AtHome(0.0, 4 / 20, 0.0, 0.1)]
    assert adapting.chosen(others, federated, 20) is third
    assert adapting.chosen([AtHome(0.0, 0.0, 0.0, math.nan), federated], federated, 20) is federated


def test_a_sure_model_is_not_cured_at_the_price_of_errors():
    """The federated model is right and far too sure, so that its loss is large; own records alone
    teach a modest model that errs more often."""
    rng = np.random.default_rng(3)
    features = np.hstack([rng.normal(size=(60, 12)), np.ones((60, 1))])
    labels = (features[:, 0] > 0) ^ (rng.random(60) < 0.15)
    own = adapting.LinearOwn(Table(features, labels[:, None].astype(float)), LOGISTIC)
    federated = torch.zeros(13, dtype=torch.float64)
    federated[0] = 60.0
    tuning = own.search(federated)
    assert tuning.alone.loss < tuning.federated.loss / 5
    assert tuning.alone.error > tuning.federated.error + 0.05
    assert tuning.rho == math.inf


def test_a_model_that_diverged_is_not_tuned(run):
    diverged = run.model_copy(update={"x": run.x * math.nan})
    with pytest.raises(InvalidValue, match="parameters that are no numbers, since it diverged"):
        equipoise.adapt(diverged, "a.csv")

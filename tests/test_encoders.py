"""A public encoder makes a linear task of images: its features are bounded, no record touches
another's, and everything that holds of linear tasks holds of it."""

import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equipoise
from equipoise import InvalidValue, UnsafeModel, encoded_task, own_task
from equipoise.places import cache_folder
from equipoise.tasks import TaskOptions, load_client, load_task, load_to_plan
from equipoise.tasks.encoder import Encoder, encoder_of, read_encoder
from equipoise.tasks.made_up import kind_of
from equipoise.tasks.task import Convex, Persons, Records, Stackable
from federations import SEED, Parties, proposed
from problems import run_command

CLASSES, WIDTH, NORM = 3, 5, 2.0
ENCODER = """
import torch
from torch import nn

torch.manual_seed(3)
features = nn.Sequential(
    nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
    nn.Linear(32, 5),
)
feature_norm = 2.0
"""
PICTURES = """
from pathlib import Path

def pictures(seed, number):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (number,), generator=generator)
    noise = torch.randn(number, 1, 6, 6, generator=generator)
    return noise + 2 * labels.reshape(-1, 1, 1, 1), labels

test, pool = pictures(100, 40), pictures(101, 30)
learning_rate, iterations, batch = 0.5, 20, 5

def client(path):
    return pictures(int(Path(path).stem), 12)
"""
HEAD_FILE = ENCODER + "classes = 3\n" + PICTURES
NETWORK_FILE = (
    """
import torch
from torch import nn
from equipoise import accuracy as metric

model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
loss = nn.functional.cross_entropy
"""
    + PICTURES
)
DATA = ("0.txt", "1.txt", "2.txt")
RECORD = {"unit": "record", "epsilon": 4, "clip": 1, "sampling_rate": 0.5, "eta": 0.5}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """A folder with task files and an encoder, and a cache of its own."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("enc.py").write_text(ENCODER)
    Path("head.py").write_text(HEAD_FILE)
    Path("net.py").write_text(NETWORK_FILE)


def head_task(**options):
    return load_task("head.py", TaskOptions(data=DATA, **options))


def records(number=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, 1, 6, 6, generator=generator)
    return inputs, torch.arange(number) % CLASSES


def table(module, inputs, norm=NORM, unreadable=None):
    encoder = encoder_of(module, norm, "enc")
    marks = torch.zeros(len(inputs), dtype=torch.bool) if unreadable is None else unreadable
    return encoder.table(inputs, marks, encoder.checked(kind_of(*records())))


def flat(width=WIDTH):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, width))


class Own(nn.Module):
    """An encoder that does something of its own to the features of `flat`."""

    def __init__(self, does):
        super().__init__()
        self.body, self.does = flat(), does
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs):
        return self.does(self, inputs, self.body(inputs))


# ---- features ----


def test_features_are_those_of_the_module_cut_to_a_public_length():
    inputs, _ = records()
    inputs[0] *= 1e6
    raw = flat()(inputs).double().detach().numpy()
    rows = table(flat(), inputs, norm=0.5)
    expected = raw * np.minimum(1, 0.5 / np.linalg.norm(raw, axis=1, keepdims=True))
    np.testing.assert_allclose(rows[:, :-1], expected, rtol=1e-6)
    assert np.linalg.norm(rows[:, :-1], axis=1).max() <= 0.5 * (1 + 1e-12)
    assert (rows[:, -1] == 1).all()


def fails_on_large(self, inputs, features):
    if bool((inputs.abs() > 1e5).any()):
        raise ValueError(f"secret {inputs.max()}")
    return features


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, 1e6])
def test_a_record_that_fails_counts_for_nothing_and_changes_no_other(spoilt, capfd, client_log):
    inputs, _ = records()
    whole = table(Own(fails_on_large), inputs)
    odd = inputs.clone()
    odd[3] = spoilt
    rows = table(Own(fails_on_large), odd)
    assert (rows[3] == 0).all(), "neither features nor the bias"
    others = np.arange(len(inputs)) != 3
    np.testing.assert_allclose(rows[others], whole[others], rtol=1e-6)
    assert capfd.readouterr() == ("", "")
    assert client_log == []


def test_records_that_cannot_be_read_and_labels_that_are_none_count_for_nothing():
    inputs, labels = records(12)
    clients = [(inputs[:6], labels[:6].clone()), ([*zip(inputs[6:], labels[6:], strict=True)])]
    clients[0][1][2], clients[1][4] = CLASSES, "no record"
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    task = own_task(
        network, clients, nn.functional.cross_entropy, equipoise.accuracy, test=records(6)
    )
    linear = encoded_task(task, flat(), NORM).clients
    useless = (linear.features == 0).all(-1)
    assert useless.nonzero().tolist() == [[0, 2], [1, 4]]
    assert linear.sizes == (6, 6), "as many records as before"
    summed = linear.clipped_sum(torch.ones(2, CLASSES * (WIDTH + 1)).double(), None, 1.0, 0)
    assert bool(summed.isfinite().all())


# ---- what is refused ----


def learns(self, inputs, features):
    self.seen += inputs.mean()
    return features


def remembers(self, inputs, features):
    features, self.does.last = features + getattr(self.does, "last", 0), inputs.mean()
    return features


def strangers(self, inputs, features):
    return features / inputs.abs().max().clamp(min=10)


@pytest.mark.parametrize(
    ("module", "error", "sentence"),
    [
        (Own(learns), UnsafeModel, "learns from the records that it sees: seen changes"),
        (Own(remembers), UnsafeModel, "learns from the records that it sees, though"),
        (Own(lambda s, x, f: nn.functional.dropout(f, 0.5)), UnsafeModel, "draws at random"),
        (Own(lambda s, x, f: f - f.mean(0)), UnsafeModel, "depends on the other records"),
        (Own(strangers), UnsafeModel, "depends on the other records"),
        (Own(lambda s, x, f: f if len(f) < 50 else 2 * f), UnsafeModel, "on the other records"),
        (Own(lambda s, x, f: f.mean(0)), InvalidValue, r"gives \[5\] for 4 records"),
        (nn.Conv2d(1, 2, 3), InvalidValue, r"gives \[4, 2, 4, 4\] for 4 records: it must give one"),
        (Own(lambda s, x, f: (f, f)), InvalidValue, "gives tuple for 4 records"),
        (Own(lambda s, x, f: f.argmax(1, True)), InvalidValue, "one vector of real numbers"),
        (Own(lambda s, x, f: (f - 9).log()), InvalidValue, "no finite numbers"),
        (nn.Linear(7, 2), InvalidValue, r"cannot take inputs \[1, 6, 6\] float32: RuntimeError"),
    ],
)
def test_encoders_that_cannot_work_are_refused_in_one_sentence(module, error, sentence):
    with pytest.raises(error, match=sentence) as raised:
        encoder_of(module, 1.0, "enc.py").checked(kind_of(*records()))
    assert str(raised.value).startswith("features=enc.py")
    assert "\n" not in str(raised.value)


def test_layers_that_do_not_learn_in_eval_mode_are_taken():
    read_encoder("enc.py").checked(kind_of(*records()))  # with BatchNorm and Dropout
    assert not any(p.requires_grad for p in read_encoder("enc.py").module.parameters())
    words = Own(lambda self, x, f: f)
    words.body = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(24, 5))
    kind = kind_of(torch.zeros(1, 6, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert encoder_of(words, 1.0, "words").checked(kind) == 5


def test_what_an_encoder_keeps_of_a_pass_reaches_no_other():
    seen = []

    def keeps(self, inputs, features):
        seen.append(vars(self).get("last"))
        self.last = inputs.sum()
        return features

    table(Own(keeps), records()[0])
    assert not any(isinstance(last, torch.Tensor) for last in seen[-2:])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("net.py --features lost.py", "features='lost.py' is no Python file that is there"),
        ("net.py --features none.py", "features=none.py defines no features"),
        ("net.py --features number.py", "features=number.py: int is no torch nn.Module"),
        ("net.py --features norm.py", "feature_norm=0 with features=norm.py: the bound"),
        ("head.py --features enc.py", "whose model is linear already"),
        ("values.py --features enc.py", "a linear head answers with one class for each record"),
        ("classless.py", "classless.py defines features, and no classes"),
        ("net.py --l2 0.1", "l2 with task=net.py, which is no linear model"),
    ],
)
def test_mistakes_get_one_sentence(capsys, flags, sentence):
    Path("none.py").write_text("x = 1\n")
    Path("number.py").write_text("features = 7\n")
    Path("norm.py").write_text(ENCODER + "feature_norm = 0\n")
    Path("classless.py").write_text(ENCODER + PICTURES)
    values = NETWORK_FILE.replace("cross_entropy", "mse_loss").replace(
        "labels\n", "noise[:, 0, 0, :3]\n"
    )
    values = values.replace(
        "from equipoise import accuracy as metric", "def metric(*both): return 0"
    )
    Path("values.py").write_text(values)
    arguments = ["train", "--task", *flags.split(), "--data", *DATA, "--epsilon", "inf"]
    code, out, err = run_command(capsys, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_linear_task_needs_no_encoder(capsys):
    code, _, err = run_command(
        capsys, *"train --task digits --features enc.py --epsilon inf".split()
    )
    assert code == 2
    assert "features=enc.py with task=digits, whose model is linear already: leave it out" in err


# ---- the task ----


def test_the_head_has_the_gradient_that_autograd_gives_it():
    task, encoder = head_task(batch="full"), read_encoder("head.py")
    layer = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
    x = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().reshape(-1)
    mine = task.clients.gradient(x.expand(3, -1), 0)
    given = load_task("net.py", TaskOptions(data=DATA)).clients.data
    for i, (inputs, labels) in enumerate(given):
        features = encoder.module(inputs).double()
        features = features * (NORM / features.norm(dim=1, keepdim=True)).clamp(max=1)
        loss = nn.functional.cross_entropy(layer(features), labels)
        slopes = torch.autograd.grad(loss, [layer.weight, layer.bias])
        wanted = torch.cat([slopes[0], slopes[1][:, None]], 1).reshape(-1) + task.mu * x
        torch.testing.assert_close(mine[i], wanted, rtol=1e-6, atol=1e-8)


def test_constants_follow_from_the_public_length_alone():
    task = head_task(l2=0.01)
    assert task.L == pytest.approx((NORM**2 + 1) / 2 + 0.01)
    assert task.gradient_bound == pytest.approx(math.sqrt(2 * (NORM**2 + 1)))
    for capability in (Records, Persons, Convex, Stackable):
        assert isinstance(task.clients, capability), capability
    assert task.batch == 5
    assert task.iterations == 20


@pytest.mark.parametrize(
    "how",
    [
        RECORD,
        {**RECORD, "noise_in": "message", "clip": None, "eta": 0.1, "sampling_rate": None},
        {**RECORD, "noise_in": "hidden-gradient", "clip": None, "eta": 0.1, "sampling_rate": None},
        {"unit": "client", "epsilon": 4, "clip": 1},
    ],
)
def test_whatever_protects_linear_tasks_protects_heads(how):
    how = {name: value for name, value in how.items() if value is not None}
    if "noise_in" in how:
        how["batch"] = "full"
    result = equipoise.train(
        task="net.py", features="enc.py", data=DATA, local_steps=5, simulate_noise_seed=1, **how
    )
    assert result.dimension == CLASSES * (WIDTH + 1)
    assert result.account.epsilon <= 4
    assert 0 <= result.test_error <= 1


def test_an_encoder_beside_a_task_file_is_one_within_it():
    """The flag, the names in the file, and Python make the same features; labels of two classes
    make one output."""
    beside = load_task("net.py", TaskOptions(data=DATA, features="enc.py"))
    made = encoded_task(
        load_task("net.py", TaskOptions(data=DATA)), read_encoder("enc.py").module, NORM
    )
    for other in (beside, made):
        assert torch.equal(other.clients.features, head_task().clients.features)
        assert torch.equal(other.clients.targets, head_task().clients.targets)
        assert torch.equal(
            torch.from_numpy(other.pool.features), torch.from_numpy(head_task().pool.features)
        )
        assert (other.batch, other.iterations) == (5, 20)
    two = Path("head.py").read_text().replace("classes = 3", "classes = 2").replace("(3,", "(2,")
    Path("head.py").write_text(two)
    assert head_task().dimension == WIDTH + 1


def test_one_client_loads_its_own_and_the_planner_nobody_s(monkeypatch):
    together = head_task()
    asked = []
    before = Encoder.table
    monkeypatch.setattr(
        Encoder, "table", lambda *given: (asked.append(len(given[1])), before(*given))[1]
    )
    own = load_client("head.py", TaskOptions(data=(*DATA[:1], "silo b", "silo c")), 0)
    assert asked.count(12) == 1
    assert torch.equal(own.clients.features, together.clients.features[0])
    x = torch.ones(together.dimension, dtype=torch.float64)
    for t in range(3):
        assert torch.equal(
            own.clients.gradient(x, t), together.clients.gradient(x.expand(3, -1), t)[0]
        )
    asked.clear()
    plan_task = load_to_plan("head.py", TaskOptions(clients=3))
    assert 12 not in asked
    assert plan_task.clients.sizes == (0,)


def test_persons_of_pictures():
    inputs, labels = records(12)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    task = own_task(
        network,
        [(inputs, labels)],
        nn.functional.cross_entropy,
        equipoise.accuracy,
        test=records(6),
        persons=[list("aabbccddeeff")],
    )
    head = encoded_task(task, flat())
    assert head.facts("person").sizes == (6,)
    result = equipoise.train(task=head, **{**RECORD, "unit": "person"}, simulate_noise_seed=0)
    assert result.sizes == (6,)


def test_a_plan_for_a_head_is_trained_as_it_says():
    made = equipoise.plan(
        task="net.py",
        features="enc.py",
        data=DATA,
        epsilon=8,
        unit="record",
        algorithm="dp-fedavg",
        noise_in="gradient",
        records=12,
        l2=0.01,
        iterations=4,
        clip=1,
    )
    assert made.settings.features == "enc.py"
    result = equipoise.train(made, anyway=True)
    assert result.run.l2 == made.settings.l2
    assert result.private or result.vacuous


# ---- the cache ----


def test_a_record_goes_through_the_encoder_once(monkeypatch):
    passes = []
    before = Encoder._some
    monkeypatch.setattr(Encoder, "_some", lambda *given: (passes.append(1), before(*given))[1])
    first = table(flat(), records()[0])
    again = table(flat(), records()[0])
    assert len(passes) == 1
    assert np.array_equal(first, again)
    assert not np.array_equal(table(flat(), records(seed=1)[0]), first)
    with torch.no_grad():
        other = flat()
        other[1].bias += 1
    assert not np.array_equal(table(other, records()[0]), first)
    assert len(passes) == 3, "other records, or another encoder, go through it"
    for damaged in cache_folder().glob("features-*/features.npy"):
        damaged.write_bytes(b"")
    assert np.array_equal(table(flat(), records()[0]), first)


def test_features_are_for_their_owner_alone():
    before = os.umask(0)
    try:
        table(flat(), records()[0])
    finally:
        os.umask(before)
    kept = [*cache_folder().glob("features-*/*")]
    assert len(kept) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in kept} == {0o700}


def test_a_cache_that_cannot_be_written_stops_nothing(monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("EQUIPOISE_CACHE", "file/beneath")
    assert len(table(flat(), records()[0])) == 8


# ---- what comes after ----


def test_the_model_of_a_saved_run_needs_the_encoder_it_names():
    values = {"task": "net.py", "data": DATA, "epsilon": math.inf}
    result = equipoise.train(**values, features="enc.py")
    equipoise.save(result, "run")
    test = load_task("net.py", TaskOptions(data=DATA)).measure.parts[0]
    loaded = equipoise.load("run")
    with torch.no_grad():
        wrong = (loaded.model(test[0]).argmax(1) != test[1]).double().mean()
    assert float(wrong) == pytest.approx(result.test_error)
    assert float(equipoise.evaluate(loaded).error) == pytest.approx(result.test_error)
    Path("enc.py").rename("moved.py")
    with pytest.raises(InvalidValue, match=r"is not there; .* equipoise.load\(RUN\).with_features"):
        _ = loaded.model
    again = loaded.with_features("moved.py").model
    assert torch.equal(again(test[0]), result.with_features("moved.py").model(test[0]))
    Path("enc.py").write_text(ENCODER.replace("2.0", "1.0"))
    with pytest.raises(InvalidValue, match="is not the encoder of this run"):
        _ = loaded.model
    with pytest.raises(InvalidValue, match="is not the encoder of this run"):
        equipoise.evaluate(loaded)
    with pytest.raises(InvalidValue, match="is not the encoder of this run"):
        loaded.with_features("enc.py")


def test_a_head_made_in_python_has_its_model_at_hand():
    task = encoded_task(load_task("net.py", TaskOptions(data=DATA)), flat(), NORM)
    result = equipoise.train(task=task, epsilon=math.inf)
    inputs, labels = load_task("net.py", TaskOptions(data=DATA)).measure.parts[0]
    with torch.no_grad():
        wrong = (result.model(inputs).argmax(1) != labels).double().mean()
    assert float(wrong) == pytest.approx(result.test_error)


def test_a_head_is_tuned_at_home():
    result = equipoise.train(task="net.py", features="enc.py", data=DATA, epsilon=math.inf)
    inputs, labels = load_task("net.py", TaskOptions(data=DATA)).clients.data[1]
    whole, mine = equipoise.adapt(result, client=1), equipoise.adapt(result, (inputs, labels))
    np.testing.assert_allclose(mine.x, whole.x, rtol=1e-4, atol=1e-6)
    assert mine.model(inputs).shape == (12, CLASSES)
    with pytest.raises(InvalidValue, match="which reads no tables"):
        equipoise.adapt(result, "mine.csv")


def test_the_command_says_what_was_taken_as_public(capsys):
    flags = "train --task head.py --epsilon 4 --clip 1 --l2 0.01 --simulate-noise-seed 0 --json"
    code, out, _ = run_command(capsys, *flags.split(), "--data", *DATA)
    assert code == 0
    result = json.loads(out)
    assert any("the encoder head.py" in sentence for sentence in result["public"])
    assert result["mu"] == 0.01


@pytest.mark.parametrize("task", ["head.py", "net.py"])
def test_silos_use_the_encoder_that_was_agreed_on(tmp_path, monkeypatch, task):
    values = {"task": task, **RECORD, "iterations": 10, "batch": "full", "sampling_rate": None}
    features = {} if task == "head.py" else {"features": "enc.py"}
    together = equipoise.train(**values, **features, data=DATA, simulate_noise_seed=SEED)
    agreement = proposed(sizes=(12, 12, 12), **values, **features)
    assert agreement.run.features is None
    files = {"task_file": task, **features}
    parties = Parties(agreement, tmp_path / "silos", monkeypatch, DATA, **files)
    result = parties.train(**files)
    assert np.array_equal(result.x, together.x)
    other = {**files, ("features" if features else "task_file"): "other.py"}
    Path("other.py").write_text(ENCODER.replace("manual_seed(3)", "manual_seed(4)"))
    with pytest.raises(InvalidValue, match=r"(what|that) was agreed on"):
        Parties(agreement, tmp_path / "others", data=DATA, **other)
    if features:
        with pytest.raises(InvalidValue, match=r"give your copy of its file \(--features FILE\)"):
            Parties(agreement, tmp_path / "none", data=DATA, task_file=task)
        with pytest.raises(InvalidValue, match="is not there"):
            _ = result.model
        assert result.with_features("enc.py").model is not None

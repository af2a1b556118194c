"""Networks that people use train in both units, each record's gradient clipped by itself; or they
are refused with the layer and the way out."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import equipoise
from architectures import (
    CLASSES,
    FAST,
    LENGTH,
    SLOW,
    WORDS,
    TextEncoder,
    filled_up,
    pictures,
    residual,
)
from equipoise import DataError, InvalidValue, UnsafeModel, own_task, train
from equipoise.tasks.several import answers

RECORDS, C = 8, 0.5


def cut(inputs, index):
    """These records of inputs, whatever they are."""
    if isinstance(inputs, dict):
        return {key: value[index] for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(value[index] for value in inputs)
    return inputs[index]


def loss_of(name):
    """Of words, of numbers, or of classes."""
    if "decoder" in name:

        def every_word(outputs, targets):
            return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

        return every_word
    return functional.mse_loss if name == "autoencoder" else functional.cross_entropy


def targets_of(name, inputs, n):
    if "decoder" in name:
        return inputs.roll(-1, 1)
    return inputs if name == "autoencoder" else torch.arange(n) % CLASSES


def task_of(name, build, make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs, model = make(2 * RECORDS), build()
        for part in model.modules():
            if isinstance(part, nn.Dropout | nn.MultiheadAttention):
                vars(part)["p" if isinstance(part, nn.Dropout) else "dropout"] = 0.0
    targets = targets_of(name, inputs, 2 * RECORDS)
    halves = [slice(0, RECORDS), slice(RECORDS, 2 * RECORDS)]
    clients = [(cut(inputs, half), targets[half]) for half in halves]
    first = (cut(inputs, 0), targets[0])
    task = own_task(model, clients, loss_of(name), lambda outputs, targets: 0.0, example=first)
    return task, model, clients[0]


def gradients(model, x, loss, inputs, targets):
    """Of each record by itself, by torch alone: [records, d]."""
    rows = []
    for j in range(len(targets)):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        leaves, start = {}, 0
        for n, p in named:
            leaves[n] = x[start : start + p.numel()].view(p.shape).clone().requires_grad_()
            start += p.numel()
        one = cut(inputs, slice(j, j + 1))
        given = one if isinstance(one, tuple) else () if isinstance(one, dict) else (one,)
        outputs = functional_call(model, leaves, given, one if isinstance(one, dict) else {})
        parts = torch.autograd.grad(
            loss(answers(outputs), targets[j : j + 1]),
            [*leaves.values()],
            allow_unused=True,
            materialize_grads=True,
        )
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_networks_that_people_use(name):
    task, model, (inputs, targets) = task_of(name, *{**FAST, **SLOW}[name][:2])
    slow = task.clients.layout.slow
    assert slow[0].startswith(SLOW[name][2]) if name in SLOW else not slow, slow
    assert not task.clients.one_by_one
    x = task.clients.model.somewhere()[1]
    each = gradients(model, x, loss_of(name), inputs, targets).double()
    norms = each.norm(dim=1, keepdim=True)
    expected = (each * (C / norms).clamp(max=1)).sum(0)
    got = task.clients.alone(0).clipped_sum(x, None, C, 0)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    mean = task.clients.alone(0).gradient(x, 0).double()
    scale = float(each.abs().max())
    torch.testing.assert_close(mean, each.mean(0), rtol=1e-3, atol=1e-5 * scale)
    for unit in ("client", "record"):
        result = train(task=task, unit=unit, epsilon=8, clip=1, iterations=1)
        assert result.private
        assert result.failed is None
        assert result.module is model


def with_batch_norm():
    return residual(nn.BatchNorm2d)


def test_batch_norm_is_refused_until_it_is_fixed(capsys):
    with pytest.raises(UnsafeModel, match=r"layer 0\.1 is a batch norm.*equipoise\.fix\(model\)"):
        task_of("", with_batch_norm, pictures)
    model = with_batch_norm()
    fixed, changes = equipoise.fix(model)
    assert [type(part) for part in model.modules()].count(nn.BatchNorm2d) == 2
    assert [type(part) for part in fixed.modules()].count(nn.GroupNorm) == 2
    assert changes[0].startswith("layer 0.1: BatchNorm2d(4, ")
    assert "became GroupNorm(1, 4, " in changes[0]
    assert [*dict(model.named_parameters())] == [*dict(fixed.named_parameters())]
    assert not [*fixed.buffers()]
    task, _, _ = task_of("", lambda: fixed, pictures)
    assert not task.clients.layout.slow
    assert str(equipoise.fix(fixed)) == "nothing had to be changed"
    assert str(equipoise.fix(with_batch_norm())) == "\n".join(changes)


@pytest.mark.parametrize(
    ("norm", "other"),
    [
        (nn.BatchNorm1d(96), "GroupNorm(12, 96"),
        (nn.BatchNorm2d(512), "GroupNorm(32, 512"),
        (nn.BatchNorm3d(20), "GroupNorm(2, 20"),
        (nn.BatchNorm2d(3, affine=False), "GroupNorm(1, 3"),
        (nn.BatchNorm1d(16, track_running_stats=False).eval(), "GroupNorm(2, 16"),
        (nn.SyncBatchNorm(8), "GroupNorm(1, 8"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
    ],
)
def test_what_takes_the_place_of_a_norm(norm, other):
    """Also of one that a model has twice, and of the model itself."""
    if norm.affine:
        nn.init.normal_(norm.weight)
    (change,) = equipoise.fix(norm).changes
    assert other in change
    twice = nn.ModuleList([norm, norm])
    fixed, changes = equipoise.fix(twice)
    assert len(changes) == 1
    assert fixed[0] is fixed[1]
    if norm.affine:
        assert torch.equal(fixed[0].weight, norm.weight)
    assert equipoise.fix(nn.BatchNorm1d(4).eval()).changes == ()
    with pytest.raises(InvalidValue, match="model=str is not a torch"):
        equipoise.fix("model")


def test_a_fixed_batch_norm_keeps_its_statistics_and_learns_its_factors():
    """Dropout is on in training whatever the mode that the model was given in; the norm's mode is
    what was given."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = nn.Sequential(norm, nn.Linear(5, CLASSES)).eval()
    before = [buffer.clone() for buffer in norm.buffers()]
    clients = [(torch.randn(9, 5), torch.arange(9) % CLASSES) for _ in range(2)]
    task = own_task(model, clients, functional.cross_entropy, equipoise.accuracy)
    assert task.dimension == 10 + 5 * CLASSES + CLASSES
    assert not task.clients.layout.slow
    x = task.clients.model.somewhere()[1]
    each = gradients(model, x, functional.cross_entropy, *clients[0]).double()
    assert float(each[:, :10].norm()) > 0
    expected = (each * (C / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    got = task.clients.alone(0).clipped_sum(x, None, C, 0)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    result = train(task=task, unit="record", epsilon=8, clip=1, iterations=2)
    now = [*result.model[0].buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))


class Counting(nn.Module):
    """Learns in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, CLASSES)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * x.detach().mean(0)
        return self.inner(x)


class Cached(Counting):
    """Makes a buffer when it runs."""

    def forward(self, x):
        self.register_buffer("cache", x.detach()[:1])
        return self.inner(x)


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, CLASSES)

    def forward(self, x):
        return (self.inner(x), x)


class Averaged(nn.Module):
    """The mean of the words that are there."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 4, padding_idx=0), nn.Linear(4, CLASSES)

    def forward(self, input_ids, attention_mask):
        there = attention_mask.unsqueeze(-1)
        mean = (self.words(input_ids) * there).sum(1) / there.sum(1)
        return {"logits": self.out(mean)}


ROWS = [(torch.randn(9, 5), torch.arange(9) % CLASSES) for _ in range(2)]
TEXTS = [(filled_up(9), torch.arange(9) % CLASSES) for _ in range(2)]


@pytest.mark.parametrize(
    ("model", "clients", "error", "sentence"),
    [
        (Counting, ROWS, UnsafeModel, "buffer mean changes when the model runs.*in __init__"),
        (Cached, ROWS, UnsafeModel, "buffer cache changes when the model runs"),
        (Sums, ROWS, InvalidValue, "is of type tuple: return a tensor, or .* with logits"),
        (TextEncoder, TEXTS, DataError, "several inputs need .*example="),
        (
            lambda: nn.Sequential(nn.Linear(5, CLASSES), nn.InstanceNorm1d(3, affine=True)),
            ROWS,
            InvalidValue,
            "fail on examples",
        ),
        (
            lambda: nn.InstanceNorm1d(5, affine=True, track_running_stats=True),
            ROWS,
            UnsafeModel,
            r"layer model is a norm that counts, InstanceNorm1d.*equipoise\.fix\(model\)",
        ),
    ],
)
def test_what_is_refused_says_which_layer_and_the_way_out(model, clients, error, sentence):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error, match=sentence) as raised:
            own_task(model(), clients, functional.cross_entropy, equipoise.accuracy)
    assert len(str(raised.value).splitlines()) == 1


def described(records):
    """As a data set of texts gives them: dicts of lists, the target among them."""
    inputs, targets = records
    return [
        {**{key: value[j].tolist() for key, value in inputs.items()}, "labels": int(targets[j])}
        for j in range(len(targets))
    ]


def test_dicts_of_arrays_and_of_records_are_the_same():
    """A record that lacks an input, or has one of another length, counts for nothing."""
    torch.manual_seed(0)
    model, (inputs, targets) = Averaged(), TEXTS[0]
    whole = {**inputs, "labels": targets}
    tasks = [
        own_task(
            model,
            [client],
            functional.cross_entropy,
            equipoise.accuracy,
            test=test,
            pool=TEXTS[1],
        )
        for client, test in (
            ((inputs, targets), TEXTS[1]),
            (whole, described(TEXTS[1])),
            (described(TEXTS[0]), TEXTS[1]),
            (lambda: described(TEXTS[0]), TEXTS[1]),
        )
    ]
    assert len({task.fingerprint for task in tasks}) == 1
    results = [
        train(task=task, epsilon=2, clip=1, iterations=1, simulate_noise_seed=0) for task in tasks
    ]
    assert all(result == results[0] for result in results[1:])
    odd = described(TEXTS[0])
    del odd[2]["attention_mask"]
    odd[3]["input_ids"] = [1] * (LENGTH + 1)
    odd[4]["labels"] = "two"
    task = own_task(
        model, [odd], functional.cross_entropy, equipoise.accuracy, example=described(TEXTS[1])[0]
    )
    marks = task.clients.unreadable[0]
    assert marks.tolist() == [j in (2, 3, 4) for j in range(9)]


def test_what_stands_in_padded_places_changes_nothing():
    torch.manual_seed(0)
    inputs, targets = filled_up(4), torch.arange(4) % CLASSES
    other = dict(inputs, input_ids=inputs["input_ids"] + (1 - inputs["attention_mask"]) * 3)
    task = own_task(
        TextEncoder(),
        [(given, targets) for given in (inputs, other)],
        functional.cross_entropy,
        equipoise.accuracy,
        example=(cut(inputs, 0), 0),
    )
    with task.clients.model._without_dropout():
        first, second = task.clients.clipped_sum(task.x0.expand(2, -1), None, C, 0)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-7)


def test_a_trained_model_is_the_users_own_and_takes_its_own_inputs(tmp_path):
    task, model, (inputs, _) = task_of("", *FAST["transformer of texts (BERT)"])
    result = train(task=task, epsilon=8, clip=1, iterations=1, out=tmp_path / "run")
    assert type(result.model) is TextEncoder
    assert list(result.parameters) == list(dict(model.named_parameters()))
    outputs = result.model(**inputs)
    x = torch.from_numpy(result.x)
    rows = task.clients.data[0][0]
    torch.testing.assert_close(outputs.logits, task.clients.model(x, rows[:]))
    assert outputs.logits.shape == (RECORDS, CLASSES)


def test_a_buffer_is_part_of_what_a_task_is():
    models = [Averaged(), Averaged()]
    models[1].load_state_dict(models[0].state_dict())
    for model, number in zip(models, (0.0, 1.0), strict=True):
        model.register_buffer("unused", torch.tensor(number))
    first, second = (
        own_task(
            model,
            TEXTS,
            functional.cross_entropy,
            equipoise.accuracy,
            example=(cut(TEXTS[0][0], 0), 0),
        ).fingerprint
        for model in models
    )
    assert first != second

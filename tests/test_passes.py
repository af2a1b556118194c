"""A pass through a user's model leaves nothing behind: for another client, record or step, nor for
the test set. Where records run together, they do not mix."""

import json
import math
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from equipoise import InvalidValue, UnsafeModel, accuracy, own_task, train
from equipoise.privacy.per_example.one_pass import one_pass
from equipoise.privacy.per_example.probes import mixes_in_company
from equipoise.privacy.statement import statement
from equipoise.settings import Settings
from equipoise.sweeps.keys import run_key
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.network import ModelClients
from problems import run_command

C = 0.1
MARK = 0.7265625  # exact in binary, and in no made-up example


def data(clients=3, records=12):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(clients * records + 30, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    pairs = list(zip(x[30:].split(records), y[30:].split(records), strict=True))
    return [(a.clone(), b) for a, b in pairs], (x[:30], y[:30])


def task_of(model, clients=None, loss=functional.cross_entropy, test=None):
    return own_task(model, clients or data()[0], loss, accuracy, test=test or data()[1])


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


class Net(nn.Module):
    """Four numbers in, two out, through a hidden layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


# -------------------------------------------------------------------------------------------------
# state


class RunningNorm(Net):
    """As batch norm, its statistics in plain attributes: used only where nothing is trained."""

    def __init__(self):
        super().__init__()
        self.mean, self.variance = torch.zeros(4), torch.ones(4)

    def forward(self, x):
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.detach().mean(0), x.detach().var(0)
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.variance = 0.9 * self.variance + 0.1 * variance
        return super().forward((x - mean) / variance.sqrt())


class FrozenMean(Net):
    """A running mean in a parameter that is not trained, written past autograd."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.mean.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return super().forward(x)
        return super().forward(x - self.mean)


class HiddenBatchNorm(Net):
    """Not registered, so that nobody sees its buffers."""

    def __init__(self):
        super().__init__()
        self.norms = [nn.BatchNorm1d(4)]

    def forward(self, x):
        return super().forward(self.norms[0].train(self.training)(x))


class LargestGradient(Net):
    """What its backward hook has seen scales later outputs."""

    def __init__(self):
        super().__init__()
        self.largest = 0.0
        self.inner.register_full_backward_hook(self.see)

    def see(self, layer, inner, outer):
        self.largest = max(self.largest, float(outer[0].abs().max()))

    def forward(self, x):
        return super().forward(x) / (1 + (0 if self.training else self.largest))


SEEN = []


class Global(Net):
    """State that is not in the module at all."""

    def forward(self, x):
        if self.training:
            SEEN.append(float(x.max()))
        return super().forward(x + max(SEEN, default=0.0))


class RunningLoss:
    def __init__(self):
        self.scale = 1.0

    def __call__(self, outputs, targets):
        value = functional.cross_entropy(outputs, targets)
        self.scale = 0.9 * self.scale + 0.1 * float(value.detach())
        return value * self.scale


@pytest.mark.parametrize(
    "make", [RunningNorm, FrozenMean, HiddenBatchNorm, LargestGradient, Global]
)
def test_models_that_remember_are_refused(make):
    SEEN.clear()
    with pytest.raises(UnsafeModel, match="remembers earlier inputs"):
        task_of(seeded(make))


def test_a_loss_that_remembers_is_refused():
    with pytest.raises(UnsafeModel, match="the loss remembers earlier inputs"):
        task_of(seeded(Net), loss=RunningLoss())


class Slots(Net):
    __slots__ = ("mean",)


def test_slots_are_refused():
    with pytest.raises(UnsafeModel, match="class Slots has __slots__"):
        task_of(seeded(Slots))


class Holder:
    value = 0.0


def add_layer(net, x):
    net.add_module("late", nn.Linear(4, 2))
    nn.init.constant_(net.late.bias, float(x.mean()))


KEEP = {  # how a model might keep what it saw, and what it finds of it later
    "attribute": (lambda net, x: setattr(net, "seen", float(x.mean())), lambda net: net.seen),
    "tensor in place": (lambda net, x: net.tensor.add_(x.mean()), lambda net: net.tensor),
    "list": (lambda net, x: net.list.append(float(x.mean())), lambda net: sum(net.list)),
    "object": (
        lambda net, x: setattr(net.holder, "value", float(x.mean())),
        lambda net: net.holder.value,
    ),
    "frozen parameter": (
        lambda net, x: net.frozen.data.add_(x.mean()),
        lambda net: net.frozen.detach(),
    ),
    "frozen, by autograd's leave": (
        lambda net, x: net.frozen.add_(x.mean()),
        lambda net: net.frozen.detach(),
    ),
    "weight": (lambda net, x: net.outer.weight.data.add_(x.mean()), lambda net: 0.0),
    "attribute of a layer": (
        lambda net, x: setattr(net.inner, "seen", float(x.mean())),
        lambda net: getattr(net.inner, "seen", 0.0),
    ),
    "layer": (add_layer, lambda net: net.late.bias.detach() if hasattr(net, "late") else 0.0),
    "list of the class": (
        lambda net, x: type(net).queue.append(float(x.mean())),
        lambda net: sum(net.queue),
    ),
    "tensor of the class": (lambda net, x: net.common.add_(x.mean()), lambda net: net.common),
    "attribute of the class": (
        lambda net, x: setattr(type(net), "late_mean", float(x.mean())),
        lambda net: getattr(net, "late_mean", 0.0),
    ),
    "hook": (
        lambda net, x: net.inner.register_forward_hook(lambda layer, given, out: 2 * out),
        lambda net: 0.0,
    ),
}


class Rare(Net):
    """Keeps what it sees only if a certain record is there: no made-up example shows it."""

    queue, common = [], torch.zeros(())

    def __init__(self, keep, find):
        super().__init__()
        self.keep, self.find, self.seen = keep, find, 0.0
        self.tensor, self.list, self.holder = torch.zeros(()), [], Holder()
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x):
        outputs = super().forward(x + self.find(self))
        if bool((x == MARK).any()):
            with torch.no_grad():
                self.keep(self, 100 * x.detach())
        return outputs


def worlds(how, isolate=False):
    """A task and its clients, without and with the record that is kept."""
    for marked in (False, True):
        clients, test = data()
        if marked:
            clients[0][0][2] = MARK
        task = task_of(seeded(lambda: Rare(*KEEP[how])), clients, test=test)
        yield task, task.clients.isolated() if isolate else task.clients


@pytest.mark.parametrize("how", KEEP)
def test_what_a_client_leaves_in_the_model_reaches_nobody_else(how):
    """Neither the other clients, nor the test set, nor the model that the server holds."""
    seen = []
    for task, clients in worlds(how):
        x = task.x0.clone()
        steps = [clients.gradient(x.expand(3, -1), t) for t in range(2)]
        seen.append((*(step[1:] for step in steps), x, *task.measure(x)[:2]))
        # after its own record too: a client begins every step afresh
        torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=0)
    for without, with_record in zip(*seen, strict=True):
        assert torch.equal(without, with_record)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("how", KEEP)
def test_what_a_record_leaves_in_the_model_reaches_no_later_step(how, isolate):
    later = torch.ones(3, 12, dtype=torch.bool)
    later[0, 2] = False
    sums = []
    for task, clients in worlds(how, isolate):
        x = task.x0.expand(3, -1)
        sums.append(
            [clients.clipped_sum(x, chosen, C, 0) for chosen in (None, later)]
            + [x[0], *task.measure(task.x0)[:2]]
        )
    (first, *others), (first_marked, *others_marked) = sums
    assert 0 < float((first - first_marked).norm()) <= 2 * C
    for without, with_record in zip(others, others_marked, strict=True):
        assert torch.equal(without, with_record)


def test_records_of_other_passes_are_not_reached_either(monkeypatch):
    """What one micro-batch leaves behind is not there for the next."""
    monkeypatch.setattr("equipoise.privacy.per_example.clipped_sum.NUMBERS", 1)
    sums = [
        clients.clipped_sum(task.x0.expand(3, -1), None, C, 0) for task, clients in worlds("list")
    ]
    assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * C


def test_a_pass_changes_nothing_and_keeps_what_is_the_same_the_same():
    class Shares(Net):
        def __init__(self):
            super().__init__()
            self.notes, self.layers = [], [self.inner, self.outer]
            self.inner.notes, self.weights = self.notes, [self.inner.weight]

    module = seeded(Shares)
    before = {part: dict(vars(part)) for part in module.modules()}
    value = torch.zeros(8, 4)
    with suppress(KeyError), one_pass(module, {"inner.weight": value}):
        assert module.inner.weight is value
        assert module.weights[0] is value
        assert module.layers[0] is module.inner
        assert module.notes is module.inner.notes
        assert module.outer.weight is not before[module.outer]["_parameters"]["weight"]
        module.notes.append(1)
        module.extra = module.outer.bias
        raise KeyError
    assert {part: dict(vars(part)) for part in module.modules()} == before
    assert module.notes == []


def test_an_attribute_that_cannot_be_copied_is_named():
    class Locked(Net):
        def __init__(self):
            super().__init__()
            self.numbers = (number for number in range(3))

    with pytest.raises(UnsafeModel, match="attribute numbers of Locked cannot be copied"):
        task_of(Locked())


class Late(Net):
    """Its last layer is created by its first pass."""

    def __init__(self):
        super().__init__()
        self.head = None

    def forward(self, x):
        if self.head is None:
            self.head = nn.Linear(2, 2)
        return self.head(super().forward(x))


def test_parameters_that_are_not_there_from_the_start_are_refused():
    with pytest.raises(InvalidValue, match="creates parameters when it runs"):
        task_of(seeded(Late))
    with pytest.raises(InvalidValue, match=r"parameter 0\.weight has no shape yet"):
        task_of(nn.Sequential(nn.LazyLinear(2)))


@pytest.mark.filterwarnings("ignore")
def test_reentrant_checkpointing_of_the_first_layer_is_refused_where_warnings_are_off():
    class First(Net):
        def forward(self, x):
            return self.outer(checkpoint(self.inner, x, use_reentrant=True))

    with pytest.raises(InvalidValue, match="warn on examples"):
        task_of(seeded(First))


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_statement_says_that_nothing_is_kept_outside(unit):
    result = train(task=task_of(seeded(Net)), unit=unit, epsilon=8, clip=1, iterations=1)
    assert "Assumed: that model and loss keep nothing outside of themselves" in statement(result)


# -------------------------------------------------------------------------------------------------
# records that mix


def divided(gradient):
    return gradient / gradient.norm()


class LargeInputs(Net):
    def forward(self, x):
        return super().forward(x / 255 if x.max() > 10 else x)


class NegativeInputs(Net):
    def forward(self, x):
        return super().forward(x.abs() if x.min() < 0 else x.sqrt())


class TinyInputs(Net):
    def forward(self, x):
        return super().forward(x if x.abs().amin(1).min() > 1e-5 else 5 * x)


class MissingInputs(Net):
    def forward(self, x):
        return super().forward(x.nan_to_num() * 3 if x.isnan().any() else x)


class TensorHook(Net):
    def forward(self, x):
        hidden = self.inner(x)
        if hidden.requires_grad:
            hidden.register_hook(divided)
        return self.outer(hidden)


class BackwardHook(Net):
    def __init__(self):
        super().__init__()
        self.outer.register_full_backward_hook(lambda layer, given, out: (divided(given[0]),))


class BackwardPreHook(Net):
    def __init__(self):
        super().__init__()
        self.outer.register_full_backward_pre_hook(lambda layer, out: (divided(out[0]),))


class Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return divided(gradient)


class OwnBackward(Net):
    def forward(self, x):
        return self.outer(Divided.apply(self.inner(x)))


class LargeGradients(Net):
    """Its hook acts only where a gradient is larger than an ordinary one."""

    def forward(self, x):
        hidden = self.inner(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g / g.norm().clamp(min=50))
        return self.outer(hidden)


MIXING = [
    *(LargeInputs, NegativeInputs, TinyInputs, MissingInputs, LargeGradients),
    *(TensorHook, BackwardHook, BackwardPreHook, OwnBackward),
]


@pytest.mark.parametrize("make", MIXING)
def test_models_whose_records_mix_are_refused_unless_they_are_isolated(make):
    """Isolated, one record moves the sum by two clips at most, however strange it is."""
    task = task_of(seeded(make))
    with pytest.raises(UnsafeModel, match="depends on the other examples of its batch") as caught:
        train(task=task, unit="record", epsilon=8, clip=1, iterations=2)
    assert "use isolate" in str(caught.value)
    sums = []
    for strange in (1.0, 1e3, -1e3, 1e-9, math.nan):
        task.clients.data[0][0][4] = strange
        x = task.x0.expand(3, -1)
        sums.append(task.clients.isolated().clipped_sum(x, None, C, 0))
    assert all(float((other - sums[0]).norm(dim=-1).max()) <= 2 * C for other in sums)
    task.clients.data[0][0][4] = 1.0
    result = train(task=task, unit="record", epsilon=8, clip=1, iterations=2, isolate=True)
    assert result.private
    assert any("in a pass of its own (isolate)" in notice for notice in result.notices)


FILLER = 299


def texts(number=9):
    return torch.randint(0, FILLER, (number, 12)), torch.arange(number) % 2


def rows(number=9):
    return torch.rand(number, 4), torch.arange(number) % 2


def grey(number=9):
    return torch.randint(0, 16, (number, 4), dtype=torch.uint8), torch.arange(number) % 2


def whitened(x):
    if len(x) <= x.shape[1]:
        return x
    root = torch.linalg.cholesky(torch.cov(x.T) + 1e-3 * torch.eye(x.shape[1]))
    return (x - x.mean(0)) @ torch.linalg.inv(root).T


def in_groups(x):
    whole = len(x) // 8 * 8
    groups = x[:whole].view(-1, 8, 4)
    return torch.cat([(groups - groups.mean(1, keepdim=True)).view(-1, 4), x[whole:]])


def smoothed(x):
    near = torch.cdist(x, x).topk(min(len(x), 6), largest=False).indices
    return x[near].mean(1) if len(x) > 5 else x


def trimmed(x):
    return x[:, : int((x != FILLER).sum(1).max())]


RESHAPED = {  # what is done to a batch before an ordinary network, and its records
    "missing by the mean": (lambda x: torch.where(x.isnan(), x.nanmean(0), x), rows),
    "missing by the median": (lambda x: torch.where(x.isnan(), x.nanmedian(), x), rows),
    "standardised if many": (lambda x: (x - x.mean(0)) / x.std(0) if len(x) > 8 else x, rows),
    "only in batches of 64": (lambda x: x - x.mean(0) if len(x) == 64 else x, rows),
    "pixels or not": (lambda x: x / 255 if (x > 1).any() else x, rows),
    "percent or not": (lambda x: x / 100 if (x > 20).any() else x, rows),
    "grey levels": (lambda x: x.float() / (255 if x.max() > 15 else 15), grey),
    "whitened": (whitened, rows),
    "in groups": (in_groups, rows),
    "nearest neighbours": (smoothed, rows),
    "trimmed": (trimmed, texts),
    "special words": (lambda x: x * (x > 20) if (x > 20).any() else x, texts),
    "the last word": (lambda x: 0 * x if (x == FILLER).any() else x, texts),
}


class Reshaped(nn.Module):
    def __init__(self, first, words):
        super().__init__()
        self.first = first
        self.words = nn.Embedding(FILLER + 1, 4) if words else None
        self.out = Net()

    def forward(self, x):
        x = self.first(x)
        return self.out(x if self.words is None else self.words(x).mean(1))


def reshaped(first, records):
    model = seeded(lambda: Reshaped(first, records is texts))
    return own_task(model, [records()] * 2, functional.cross_entropy, accuracy)


@pytest.mark.parametrize("name", RESHAPED)
def test_batches_of_many_sizes_and_sorts_are_tried(name):
    with pytest.raises(UnsafeModel, match="depends on the other examples of its batch"):
        reshaped(*RESHAPED[name]).clients.check_records()


BY_RECORD = {  # the same by record
    "missing": (lambda x: x.nan_to_num(0.5), rows),
    "standardised": (lambda x: (x - x.mean(1, True)) / (x.std(1, keepdim=True) + 1e-3), rows),
    "pixels or not": (lambda x: torch.where(x.amax(1, True) > 1, x / 255, x), rows),
    "grey levels": (lambda x: x.float() / 15, grey),
    "special words": (lambda x: torch.where((x > 20).any(1, True), x * (x > 20), x), texts),
    "few words": (lambda x: x.clamp(max=9), texts),
}


@pytest.mark.parametrize("name", BY_RECORD)
def test_what_is_done_by_record_is_accepted(name):
    clients = reshaped(*BY_RECORD[name]).clients
    assert not clients.layout.slow
    assert not clients.one_by_one


RARELY = {
    "by torch": lambda x: x - x.mean(0) if torch.rand(()) < 1e-9 else x,
    "by random": lambda x: x - x.mean(0) if random.random() < 1e-9 else x,
    "by numpy": lambda x: x - x.mean(0) if np.random.rand() < 1e-9 else x,
}


@pytest.mark.parametrize("name", RARELY)
def test_what_is_drawn_for_a_batch_makes_records_run_one_by_one(name):
    """Also where it nearly never does anything."""
    assert reshaped(RARELY[name], rows).clients.one_by_one


def test_a_large_model_is_tried_less():
    ran = []

    def run(inputs):
        ran.append(len(inputs))
        return inputs

    pair = torch.zeros(2, 1)
    companies = [(pair, [torch.ones(6, 1), torch.ones(10, 1)]), (pair, [torch.ones(1, 1)])]
    for examples, expected in ((100, [1, 1, 8, 12, 1, 1, 3]), (19, [1, 1, 8])):
        ran.clear()
        assert not mixes_in_company(run, companies, examples)
        assert ran == expected


def test_words_that_change_a_whole_batch_are_found():
    class Rescaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(2000, 4), nn.Linear(12, 2)

        def forward(self, x):
            return self.out(self.words(x).flatten(1) * (0.1 if x.max() > 90 else 1))

    clients = [(torch.randint(0, 2000, (9, 3)), torch.arange(9) % 2) for _ in range(2)]
    task = own_task(seeded(Rescaled), clients, functional.cross_entropy, accuracy)
    with pytest.raises(UnsafeModel, match="depends on the other examples"):
        task.clients.check_records()


def test_targets_that_change_a_whole_batch_are_found():
    clients = [(torch.randn(9, 4), torch.randn(9, 2)) for _ in range(2)]
    task = own_task(seeded(LargeGradients), clients, functional.mse_loss, lambda out, y: 0.0)
    with pytest.raises(UnsafeModel, match="depends on the other examples"):
        task.clients.check_records()


def pixels(x):
    return x.float() / 255


ORDINARY = {
    "waves": (lambda x: x.sin(), torch.randn(9, 4)),  # of huge numbers, rounding decides them
    "a branch by rows": (
        lambda x: torch.where(x.amax(1, True) > 10, x / 255, x),
        torch.randn(9, 4),
    ),
    "dropout": (nn.Dropout(0.5), torch.randn(9, 4)),
    "fails on strange records": (
        lambda x: x if bool(x.isfinite().all()) and x.max() < 1e5 else 1 / 0,
        torch.randn(9, 4),
    ),
    "pixels": (pixels, torch.randint(0, 256, (9, 4), dtype=torch.uint8)),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("slow", [False, True])
def test_ordinary_models_are_accepted_and_isolated_sums_agree(name, slow):
    first, x = ORDINARY[name]

    class First(Net):
        def __init__(self):
            super().__init__()
            self.first, self.scale = first, nn.Parameter(torch.ones(4)) if slow else 1.0

        def forward(self, x):
            scale = torch.stack([self.scale])[0] if slow else 1.0  # lists are not followed
            return super().forward(self.first(x) * scale)

    clients = [(x, torch.arange(9) % 2)] * 2
    task = own_task(seeded(First), clients, functional.cross_entropy, accuracy)
    x0, together, isolated = task.x0.expand(2, -1), task.clients, task.clients.isolated()
    assert bool(together.layout.slow) == slow
    if name != "dropout":
        torch.testing.assert_close(
            together.clipped_sum(x0, None, C, 0),
            isolated.clipped_sum(x0, None, C, 0),
            rtol=1e-4,
            atol=1e-6,
        )
    assert not torch.equal(
        isolated.clipped_sum(x0, None, C, 0), torch.zeros(2, task.dimension).double()
    )


def test_isolated_records_have_their_own_dropout():
    model = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)))
    clients = [(torch.ones(50, 4), torch.zeros(50).long())]
    clients = own_task(model, clients, functional.cross_entropy, accuracy).clients.isolated()
    x = torch.zeros(1, 10)
    (sums,) = clients.clipped_sum(x, None, math.inf, 0)
    assert sums[:4].unique().numel() >= 2, "not one mask for all"
    assert 15 < -float(sums[:4].max()) <= -float(sums[:4].min()) < 35
    assert torch.equal(sums, clients.clipped_sum(x, None, math.inf, 0)[0])
    assert not torch.equal(sums, clients.clipped_sum(x, None, math.inf, 1)[0])


def test_isolated_models_that_need_more_than_one_record_are_refused():
    class Deviation(Net):
        def forward(self, x):
            if len(x) < 2:
                raise ValueError(f"deviation of {x}")
            return super().forward(x / x.std(0))

    clients = ModelClients(FlatModel(Deviation()), functional.cross_entropy, accuracy, data()[0])
    with pytest.raises(InvalidValue, match="example can be formed: ValueError at test_passes"):
        clients.isolated().check_records()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--task digits-mlp --clip 1 --isolate", "isolate with unit=client"),
        ("--task breast-cancer --clip 1 --unit record --isolate", "isolate with a linear model"),
        ("--task quadratic --clip 1 --unit record --isolate", "no individual records"),
    ],
)
def test_isolate_is_refused_where_it_means_nothing(capsys, flags, sentence):
    code, out, err = run_command(capsys, "train", "--epsilon", "2", *flags.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_isolate_is_a_setting_like_others(capsys):
    flags = "--task digits-mlp --clients 3 --unit record --epsilon 2 --clip 1 --iterations 1"
    _, out, _ = run_command(capsys, "train", *flags.split(), "--isolate", "--json")
    result = json.loads(out)
    assert result["run"]["isolate"] is True
    assert "--isolate" in result["repeat"]
    plain, isolated = (
        Settings.of(task="digits-mlp", unit="record", epsilon=2, clip=1, isolate=isolate).resolve(
            task_of(seeded(Net)).facts("record")
        )
        for isolate in (False, True)
    )
    assert run_key(plain, "") != run_key(isolated, "")
    assert "isolate" not in plain.command


# -------------------------------------------------------------------------------------------------
# gradients


class Checkpointed(Net):
    """The hidden layer is computed again in the backward pass."""

    reentrant = False

    def hidden(self, x):
        return self.inner(x).tanh().square()

    def forward(self, x):
        return self.outer(checkpoint(self.hidden, x, use_reentrant=self.reentrant))


class Unchecked(Checkpointed):
    def forward(self, x):
        return self.outer(self.hidden(x))


def recurrent(base):
    class Recurrent(base):
        """Layers whose books are not those of the layer itself."""

        def __init__(self):
            super().__init__()
            self.inner = nn.LSTM(1, 8, batch_first=True)

        def hidden(self, x):
            return self.inner(x.unsqueeze(-1))[0][:, -1].square()

    return Recurrent


def with_dropout(base):
    class Dropped(base):
        def hidden(self, x):
            return functional.dropout(super().hidden(x), 0.5, self.training)

    return Dropped


def scaled(base):
    class Scaled(base):
        """Takes the slow way."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def hidden(self, x):
            return (super().hidden(x) * self.scale).tanh()

    return Scaled


@pytest.mark.parametrize("change", [lambda base: base, recurrent, with_dropout, scaled])
def test_checkpointing_changes_no_gradient(change):
    """At weights that are not the initial ones, for both units."""
    found = []
    for base in (Checkpointed, Unchecked):
        task = task_of(seeded(change(base)))
        generator = torch.Generator().manual_seed(1)
        x = (task.x0 + torch.randn(task.x0.shape, generator=generator)).expand(3, -1)
        found.append(
            (
                task.clients.gradient(x, 0),
                task.clients.clipped_sum(x, None, C, 0),
                task.clients.isolated().clipped_sum(x, None, C, 0),
            )
        )
    for checkpointed, plain in zip(*found, strict=True):
        assert float(plain.norm()) > 0.01
        torch.testing.assert_close(checkpointed, plain, rtol=1e-5, atol=1e-7)


def test_reentrant_checkpointing_is_refused_with_the_way_out():
    class Reentrant(Checkpointed):
        reentrant = True

        def hidden(self, x):
            return x.tanh()

        def forward(self, x):
            return self.outer(checkpoint(self.hidden, self.inner(x), use_reentrant=True))

    class InSequence(Net):
        def forward(self, x):
            layers = nn.Sequential(self.inner, nn.Tanh(), self.outer)
            return checkpoint_sequential(layers, 2, x.requires_grad_(), use_reentrant=True)

    for make in (Reentrant, InSequence):
        with pytest.raises(InvalidValue, match="pass use_reentrant=False"):
            task_of(seeded(make))


class Temperature(Net):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return super().forward(x) * self.temperature


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_parameter_may_be_a_single_number(unit):
    task = task_of(seeded(Temperature))
    result = train(task=task, unit=unit, epsilon=8, clip=1, iterations=3)
    assert result.parameters["temperature"] == ()
    assert result.private


@pytest.mark.parametrize("isolate", [False, True])
def test_the_gradient_of_a_single_number_is_clipped_with_the_others(isolate):
    """Against one backward pass for each record."""
    task = task_of(seeded(Temperature))
    clients = task.clients.isolated() if isolate else task.clients
    model = seeded(Temperature)
    rows = []
    for x, y in zip(*data()[0][0], strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).double())
    assert list(task.shapes) == [name for name, _ in model.named_parameters()]
    gradients = torch.stack(rows)
    norms = gradients.norm(dim=1, keepdim=True)
    for clip in (float(norms.median()), 1e3):  # one that cuts some, one that cuts nobody
        expected = (gradients * (clip / norms).clamp(max=1)).sum(0)
        got = clients.clipped_sum(task.x0.expand(3, -1), None, clip, 0)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_statement_says_what_is_assumed_of_a_network_and_of_nothing_else():
    task, assumed = task_of(seeded(Net)), "treats every record by itself"
    how = {"epsilon": 8, "clip": 1, "iterations": 1}
    assert assumed in statement(train(task=task, unit="record", **how))
    assert assumed not in statement(train(task=task, unit="record", isolate=True, **how))
    assert assumed not in statement(train(task=task, unit="client", **how))
    assert assumed not in statement(train(task="breast-cancer", unit="record", clients=3, **how))

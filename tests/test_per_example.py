"""Per-example clipping: the books against one backward pass per example, for every layer and on the
slow way; the bound."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import weight_norm

from equipoise.errors import InvalidValue, UnsafeModel
from equipoise.paper.networks import Cnn
from equipoise.privacy.per_example import clipped_sum as clipping
from equipoise.privacy.per_example import shares
from equipoise.privacy.per_example.clipped_sum import Layout, clipped_sum, layout_of
from equipoise.privacy.per_example.probes import mixes_examples

B = 7


class Net(nn.Module):
    """Some layers and a function of them: forward(x) is run(self, x)."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


def images(*shape):
    return lambda: torch.randn(B, *shape)


def tokens(length=5, vocabulary=6):
    return lambda: torch.randint(vocabulary, (B, length))


def u_net(kind=nn.Conv3d):
    def run(m, x):
        top = m.norm(m.down(x)).relu()
        low = m.low(functional.max_pool3d(top, 2)).relu()
        return m.up(torch.cat([top, functional.interpolate(low, scale_factor=2.0)], 1)).flatten(1)

    layers = {
        "down": kind(1, 4, 3, padding=1),
        "low": kind(4, 6, 3, padding=1),
        "up": kind(10, 2, 1),
    }
    return Net(run, norm=nn.GroupNorm(2, 4), **layers)


def language_model(run, **options):
    lstm = nn.LSTM(4, 5, 2, **options)
    return Net(run, embedding=nn.Embedding(6, 4, padding_idx=0), lstm=lstm, out=nn.Linear(5, 6))


def cnn():
    return nn.Sequential(
        *(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 3),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(20, 3)),
    )


def conv(*args, kind=nn.Conv2d, **options):
    return lambda: nn.Sequential(kind(*args, **options), nn.Tanh(), nn.Flatten())


def given_state(m, x):
    state = m.start(x[:, 0]).expand(2, -1, -1)
    return m.lstm(x, (state, state.tanh()))[1][0].sum(0)


FAST = {
    "linear": (lambda: nn.Linear(4, 3), images(4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), images(4)),
    "linear at few positions": (
        lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Flatten()),
        images(2, 2, 20),
    ),
    "linear at many positions": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten()),
        images(5, B, 4),
    ),
    "linear, positions first": (
        lambda: Net(lambda m, x: m.a(x.transpose(0, 1)).tanh().sum(0), a=nn.Linear(4, 3)),
        images(B, 4),
    ),
    "conv 1d": (conv(2, 4, 3, kind=nn.Conv1d, padding=2), images(2, 9)),
    "conv 2d": (conv(2, 3, 3), images(2, 5, 5)),
    "conv 3d": (conv(2, 3, (1, 2, 3), kind=nn.Conv3d, padding=(0, 1, 1)), images(2, 3, 4, 5)),
    "conv dilated, strided": (
        conv(2, 3, 3, stride=(2, 3), dilation=(2, 1), padding=2, bias=False),
        images(2, 9, 8),
    ),
    "conv in groups": (conv(4, 6, 3, groups=2, stride=2), images(4, 8, 7)),
    "conv same": (conv(2, 3, (2, 4), padding="same", dilation=(1, 2)), images(2, 5, 6)),
    "conv valid": (conv(2, 3, 2, padding="valid"), images(2, 5, 6)),
    "conv circular": (conv(2, 3, 3, padding=1, padding_mode="circular"), images(2, 5, 6)),
    "conv at few positions": (
        conv(16, 16, 3, groups=2, padding=1, stride=2, dilation=2),
        images(16, 4, 3),
    ),
    "conv 1d at few positions": (
        conv(8, 8, 5, kind=nn.Conv1d, padding="same", bias=False),
        images(8, 2),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten()), tokens(9)),
    "embedding of one token": (
        lambda: nn.Embedding(6, 3, padding_idx=2),
        lambda: torch.arange(B) % 6,
    ),
    "embedding, padded": (
        lambda: nn.Sequential(nn.Embedding(6, 3, padding_idx=1), nn.Tanh(), nn.Flatten()),
        tokens(9),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()),
        images(4, 3, 2),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.LayerNorm([3, 2]), nn.Tanh(), nn.Flatten()),
        images(4, 3, 2),
    ),
    "layer norm at no position": (lambda: nn.LayerNorm(4, bias=False), images(4)),
    "lstm": (
        lambda: Net(lambda m, x: m.lstm(x.transpose(0, 1))[0][-1], lstm=nn.LSTM(4, 3)),
        images(5, 4),
    ),
    "lstm, batch first": (
        lambda: Net(lambda m, x: m.lstm(x)[0].flatten(1), lstm=nn.LSTM(4, 3, batch_first=True)),
        images(5, 4),
    ),
    "lstm without bias": (
        lambda: Net(
            lambda m, x: m.lstm(x)[1][1].sum(0), lstm=nn.LSTM(4, 3, 2, batch_first=True, bias=False)
        ),
        images(5, 4),
    ),
    "lstm with given state": (
        lambda: Net(given_state, lstm=nn.LSTM(4, 3, 2, batch_first=True), start=nn.Linear(4, 3)),
        images(5, 4),
    ),
    "prelu": (lambda: nn.Sequential(nn.PReLU(), nn.Tanh(), nn.Flatten()), images(3, 2)),
    "prelu of one number": (
        lambda: Net(lambda m, x: m.a(x[:, 0]).unsqueeze(1), a=nn.PReLU()),
        images(2),
    ),
    "prelu, positions first": (
        lambda: Net(
            lambda m, x: m.b(m.a(x.transpose(0, 1))).tanh().sum(0), a=nn.PReLU(), b=nn.Linear(4, 3)
        ),
        images(B, 4),
    ),
    "prelu for each channel": (
        lambda: nn.Sequential(nn.PReLU(3), nn.Tanh(), nn.Flatten()),
        images(3, 2, 2),
    ),
    "prelu for each column": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), images(4)),
    "cnn": (cnn, images(1, 8, 8)),
    "language model": (
        lambda: language_model(
            lambda m, x: m.out(m.lstm(m.embedding(x))[0][:, -1]), batch_first=True
        ),
        tokens(),
    ),
    "language model, steps first": (
        lambda: language_model(lambda m, x: m.out(m.lstm(m.embedding(x.t()))[0])[-1]),
        tokens(B),
    ),
    "language model, every token": (
        lambda: language_model(lambda m, x: m.out(m.lstm(m.embedding(x))[0]), batch_first=True),
        tokens(),
    ),
    "u-net": (u_net, images(1, 4, 4, 4)),
}


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * self.scale


class Stacked(Scaled):
    """In a list the parameter is not followed."""

    def forward(self, x):
        return x * torch.stack([self.scale])[0]


class Similar(nn.Linear):
    def forward(self, x):
        return super().forward(x).square()


def tied():
    net = language_model(lambda m, x: m.out(m.lstm(m.embedding(x))[0][:, -1, :4]), batch_first=True)
    net.out = nn.Linear(4, 6)
    net.out.weight = net.embedding.weight
    return net


def normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Linear(4, 3))


def own_forward():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].forward = lambda x: functional.linear(x.sin(), net[1].weight)
    return net


def branching(m, x):
    """vmap cannot follow this."""
    return (
        m.a(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)
        if len(x) == 1
        else m.a(x) * (1 + (x.sum(1, keepdim=True) > 0))
    )


def packed(m, x):
    return m.lstm(nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 3), batch_first=True))[
        1
    ][0][0]


USED_SEVERAL_TIMES = {  # or outside of known layers
    "raw parameter": (lambda: nn.Sequential(nn.Linear(4, 4), Scaled(4)), images(4)),
    "tied weights": (tied, tokens()),
    "called twice": (lambda: Net(lambda m, x: m.a(m.a(x).tanh()), a=nn.Linear(4, 4)), images(4)),
    "used outside": (
        lambda: Net(lambda m, x: m.a(x) @ m.a.weight, a=nn.Linear(4, 4)),
        images(4),
    ),
    "subclass": (lambda: nn.Sequential(nn.Linear(4, 4), Similar(4, 2)), images(4)),
    "a forward of its own": (own_forward, images(4)),
}
FAST |= USED_SEVERAL_TIMES

SLOW = {
    "in a list": (lambda: nn.Sequential(nn.Linear(4, 4), Stacked(4)), images(4), "1: Stacked"),
    "weight norm": (normed, images(4), "0: Linear"),
    "gru": (
        lambda: Net(lambda m, x: m.a(x)[0][:, -1], a=nn.GRU(4, 3, batch_first=True)),
        images(5, 4),
        "a: GRU",
    ),
    "both directions": (
        lambda: Net(
            lambda m, x: m.a(x)[0].flatten(1), a=nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        ),
        images(5, 4),
        "a: LSTM",
    ),
    "batch and positions in one axis": (
        lambda: Net(lambda m, x: m.a(x.flatten(0, 1)).tanh().view(len(x), -1), a=nn.Linear(4, 3)),
        images(5, 4),
        "a: no axis",
    ),
    "examples in another order": (
        lambda: Net(lambda m, x: m.a(x.flip(0)).tanh().flip(0), a=nn.Linear(4, 3)),
        images(4),
        "a: no axis",
    ),
    "an embedding that counts": (
        lambda: nn.Sequential(nn.Embedding(6, 3, scale_grad_by_freq=True), nn.Tanh(), nn.Flatten()),
        tokens(9),
        "0: Embedding",
    ),
    "no slope": (
        lambda: Net(lambda m, x: m.a(x) + 0 * m.b(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3)),
        images(4),
        "b: no axis",
    ),
    "prelu for each channel, examples last": (
        lambda: Net(lambda m, x: m.a(x.movedim(0, -1)).movedim(-1, 0).tanh(), a=nn.PReLU(3)),
        images(5, 3),
        "a: no axis",
    ),
    "packed sequences": (
        lambda: Net(packed, lstm=nn.LSTM(4, 3, batch_first=True)),
        images(3, 4),
        "lstm: LSTM",
    ),
    "a branch on the data": (
        lambda: nn.Sequential(Net(branching, a=nn.Linear(4, 3)), Stacked(3)),
        images(4),
        "1: Stacked",
    ),
}


def square_loss(outputs, targets):
    """A mean over examples, whatever the shape of outputs; not linear in them, and different for
    each example."""
    return (
        (outputs.tanh() - targets.view(-1, *(1 for _ in outputs.shape[1:])))
        .square()
        .flatten(1)
        .sum(1)
        .mean()
    )


def entropy(outputs, targets):
    """For classes on the last axis, of which a token each."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def made(build, make, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    module, x = build().to(dtype).train(), make()
    x = x.to(dtype) if x.is_floating_point() else x
    parameters = {
        n: torch.randn_like(p) * 0.5 for n, p in module.named_parameters() if p.requires_grad
    }
    return module, parameters, x, torch.linspace(-2, 3, len(x), dtype=dtype)


def gradients(module, parameters, loss, x, y):
    """One backward pass per example: [examples, d]."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    rows = []
    for j in range(len(x)):
        value = loss(functional_call(module, leaves, (x[j : j + 1],)), y[j : j + 1])
        parts = torch.autograd.grad(
            value, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def flat(named):
    return torch.cat([part.flatten() for part in named.values()])


def clips(norms):
    """All clipped, some clipped, none clipped."""
    return [float(norms.min()) / 10, float(norms.median()), math.inf]


def check(module, parameters, loss, x, y, layout, rtol=1e-9, **options):
    g = gradients(module, parameters, loss, x, y).double()
    norms = g.norm(dim=1)
    for C in clips(norms[norms > 0]):
        got = clipped_sum(module, parameters, loss, x, y, C, layout, **options)
        assert {name: value.shape for name, value in got.items()} == {
            name: p.shape for name, p in parameters.items()
        }
        assert all(value.dtype == torch.float64 for value in got.values())
        expected = ((C / norms).clamp(max=1.0).nan_to_num(1.0)[:, None] * g).sum(0)
        torch.testing.assert_close(
            flat(got).double(), expected, rtol=rtol, atol=rtol * float(expected.abs().max())
        )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", FAST)
def test_the_books_agree_with_a_backward_pass_for_each_example(name):
    module, parameters, x, y = made(*FAST[name])
    layout = layout_of(module, parameters, x[:4])
    assert layout.slow == ()
    check(module, parameters, square_loss, x, y, layout)
    if name == "language model, every token":
        check(module, parameters, entropy, x, x.roll(1, 1), layout)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_way_agrees_and_is_told(name):
    build, make, told = SLOW[name]
    module, parameters, x, y = made(build, make)
    layout = layout_of(module, parameters, x)
    assert any(reason.startswith(told) for reason in layout.slow), layout.slow
    check(module, parameters, square_loss, x, y, layout)
    if name != "examples in another order":
        check(module, parameters, square_loss, x, y, unseen(module))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", USED_SEVERAL_TIMES)
def test_what_the_dry_run_did_not_show_is_noticed(name):
    module, parameters, x, y = made(*FAST[name])
    check(module, parameters, square_loss, x, y, unseen(module))


def unseen(module):
    """A layout that says of every layer that it is called as known layers are, and no more."""
    return Layout({layer: 0 for layer, _ in module.named_modules()} | {"lstm": 1}, ())


@pytest.mark.parametrize(
    "name", ["cnn", "language model", "u-net", "linear at few positions", "conv at few positions"]
)
def test_single_precision(name):
    module, parameters, x, y = made(*FAST[name], dtype=torch.float32)
    check(module, parameters, square_loss, x, y, layout_of(module, parameters, x), rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "shape", "classes"),
    [
        (lambda: Cnn(1, 28, 62), (1, 28, 28), 62),
        (lambda: nn.Sequential(nn.Linear(300, 64), nn.Tanh(), nn.Linear(64, 10)), (300,), 10),
    ],
    ids=["cnn", "mlp"],
)
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_what_single_precision_rounds_away_in_a_batch_is_below_1e_5_of_the_clip(
    network, shape, classes, C
):
    """Against every record's clipped gradient by itself, added in double precision. It is not part
    of the sensitivity: docs/privacy.md says so."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = network(), torch.rand(64, *shape)
        y = torch.randint(0, classes, (64,))
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    layout = layout_of(module, parameters, x[:4])

    def summed(*part):
        loss = nn.functional.cross_entropy
        return flat(
            clipped_sum(module, parameters, loss, x[slice(*part)], y[slice(*part)], C, layout)
        )

    alone = sum(summed(j, j + 1) for j in range(64))
    assert 0 < float((summed(64) - alone).norm()) < 1e-5 * C


@pytest.mark.parametrize("name", ["cnn", "language model"])
def test_pieces_do_not_matter(name, monkeypatch):
    monkeypatch.setattr(shares, "PIECE", 13)
    monkeypatch.setattr(clipping, "PIECE", 13)
    module, parameters, x, y = made(*FAST[name])
    check(module, parameters, square_loss, x, y, layout_of(module, parameters, x), micro_batch=3)


def test_a_loss_that_changes_what_it_is_given():
    module, parameters, x, y = made(*FAST["cnn"])
    layout = layout_of(module, parameters, x)
    got, expected = (
        clipped_sum(
            module, parameters, lambda out, y, f=f: square_loss(f(out, 2), y), x, y, 1.0, layout
        )
        for f in (torch.Tensor.mul_, torch.mul)
    )
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_numbers_of_one_example():
    """What goes into a layer and comes out, and gradients that may be formed; however many made-up
    examples there are."""
    module, parameters, x, _ = made(
        lambda: nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 1)), images(30)
    )
    formed = 40 + 40 + 1  # the biases and the second weight
    assert (
        layout_of(module, parameters, x).numbers
        == layout_of(module, parameters, x[:2]).numbers
        == 30 + 40 + 40 + 1 + formed
    )


@pytest.mark.parametrize("name", ["cnn", "language model", "gru"])
def test_micro_batches_do_not_matter(name):
    module, parameters, x, y = made(*{**FAST, **SLOW}[name][:2])
    layout = layout_of(module, parameters, x)
    for size in (1, 3, 100):
        check(module, parameters, square_loss, x, y, layout, micro_batch=size)


def test_frozen_parameters():
    module, _, x, y = made(*FAST["cnn"])
    module[0].requires_grad_(False)
    module[3].weight.requires_grad_(False)
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    assert list(parameters) == ["3.bias", "6.weight", "6.bias"]
    layout = layout_of(module, parameters, x)
    assert layout.slow == ()
    check(module, parameters, square_loss, x, y, layout)
    check(module, parameters, square_loss, x, y, Layout({}, ("slow",)))


def test_layers_without_a_part_in_the_output_have_no_gradient():
    def run(m, x):
        with torch.no_grad():
            x = m.quiet(x)
        return m.a(x)

    module, parameters, x, y = made(
        lambda: Net(run, a=nn.Linear(4, 3), quiet=nn.Linear(4, 4), idle=nn.GRU(4, 4)), images(4)
    )
    layout = layout_of(module, parameters, x)
    assert layout.slow == ()
    check(module, parameters, square_loss, x, y, layout)


def test_zero_weights_hide_no_layer():
    """The dry run does not depend on where training starts."""
    module, parameters, x, _ = made(*FAST["cnn"])
    layout = layout_of(module, {name: torch.zeros_like(p) for name, p in parameters.items()}, x)
    assert layout == layout_of(module, parameters, x)
    assert layout.axes == {"0": 0, "3": 0, "6": 0}


@pytest.mark.parametrize(
    "name",
    [
        "cnn",
        "linear at few positions",
        "conv at few positions",
        "u-net",
        "raw parameter",
        "in a list",
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_an_example_that_is_not_finite_counts_as_zero(name, bad):
    """1e200 overflows only when it is squared."""
    module, parameters, x, y = made(*{**FAST, **SLOW}[name][:2])
    layout = layout_of(module, parameters, x)
    if bad == 1e200:

        def loss(out, y):
            return square_loss(out.clamp(-2, 2), y) + out.flatten(1).sum(1).mean() * 1e-3

    else:
        loss = square_loss
    x[2] = bad
    fine = [j for j in range(len(x)) if j != 2]
    if name == "u-net" and bad == 1e200:  # the norm makes it harmless
        return
    for C in (0.1, 1e9, math.inf):
        got = flat(clipped_sum(module, parameters, loss, x, y, C, layout))
        without = flat(clipped_sum(module, parameters, loss, x[fine], y[fine], C, layout))
        torch.testing.assert_close(got, without, rtol=1e-12, atol=1e-14)
        assert without.abs().max() > 0


def test_tokens_of_an_example_that_is_not_finite():
    module, parameters, x, y = made(*FAST["language model"])
    layout = layout_of(module, parameters, x)
    y[3] = math.nan
    fine = [j for j in range(len(x)) if j != 3]
    got, without = (
        clipped_sum(module, parameters, square_loss, x[i], y[i], 0.5, layout)
        for i in (range(B), fine)
    )
    torch.testing.assert_close(got, without, rtol=1e-12, atol=1e-14)


def test_an_empty_batch_gives_zeros():
    module, parameters, x, y = made(*FAST["cnn"])
    for layout in (layout_of(module, parameters, x), Layout({}, ("slow",))):
        got = clipped_sum(module, parameters, square_loss, x[:0], y[:0], 1.0, layout)
        assert {name: value.shape for name, value in got.items()} == {
            name: p.shape for name, p in parameters.items()
        }
        assert flat(got).abs().max() == 0


@settings(max_examples=60)
@given(
    st.sampled_from([*FAST, "gru", "in a list"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.floats(-3, 12),
)
def test_no_example_moves_the_sum_by_more_than_the_clip(name, dtype, seed, clip_exponent, exponent):
    module, parameters, x, y = made(*{**FAST, **SLOW}[name][:2], dtype=dtype, seed=seed)
    layout = layout_of(module, parameters, x)
    C = 10.0**clip_exponent
    if x.is_floating_point():
        x *= 10.0**exponent
    single = flat(clipped_sum(module, parameters, square_loss, x[:1], y[:1], C, layout)).double()
    assert float(single.norm()) <= C
    total, rest = (
        flat(clipped_sum(module, parameters, square_loss, x[i:], y[i:], C, layout)).double()
        for i in (0, 1)
    )
    assert float((total - rest).norm()) <= C * (
        1 + len(x) * math.sqrt(len(total)) * 4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("exponent", [-44, -42, -40, -38])
def test_tiny_gradients_of_huge_inputs_stay_below_the_clip(exponent):
    """The gradient of the output is where float32 has few digits left, and what it is rounded to is
    multiplied by 1e38."""
    module = nn.Linear(30, 40, bias=False)
    parameters = {"weight": torch.zeros(40, 30)}
    x, layout = torch.full((3, 30), 1e38), Layout({"": 0}, ())
    factors = torch.linspace(0.5, 3, 40, dtype=torch.float64).mul(10.0**exponent).float()
    for C in 10.0 ** torch.linspace(exponent + 36, exponent + 39, 30, dtype=torch.float64):
        got = clipped_sum(
            module,
            parameters,
            lambda out, _: (out * factors).sum(1).mean(),
            x[:1],
            x[:1],
            float(C),
            layout,
        )
        assert float(got["weight"].double().norm()) <= C


@pytest.mark.parametrize("size", torch.logspace(18, 20, 9).tolist())
def test_weights_that_are_too_small_for_the_type(size):
    """The norm is some 1e38 to 1e40 and the clip 0.01: float32 has no digits for the weight."""
    module, parameters = nn.Linear(30, 40), {"weight": torch.zeros(40, 30), "bias": torch.zeros(40)}
    x, layout = torch.full((1, 30), size), Layout({"": 0}, ())
    for way in (layout, Layout({}, ("slow",))):
        got = clipped_sum(
            module, parameters, lambda out, _: (out * 2 * size).sum(1).mean(), x, x, 0.01, way
        )
        assert float(flat(got).double().norm()) <= 0.01


def test_a_model_that_changes_its_parameters_is_refused():
    module, parameters, x, _ = made(
        lambda: nn.Sequential(nn.Embedding(6, 3, max_norm=0.1), nn.Flatten()), tokens()
    )
    with pytest.raises(UnsafeModel, match=r"changes parameter 0\.weight"):
        layout_of(module, parameters, x)


def test_what_cancels_between_positions_stays_below_the_clip():
    """The gradient is zero but for rounding, and the rounding is large."""
    torch.manual_seed(0)
    module = nn.Linear(50, 60, bias=False)
    parameters = {"weight": torch.zeros(60, 50)}
    x = torch.randn(1, 1, 50).expand(1, 3, 50) * 1e9
    sides = torch.tensor([0.1, 0.2, -0.3]).view(1, 3, 1) * torch.rand(60)
    for trial in range(20):

        def loss(out, _, factor=1 + trial / 7):
            return (out * sides * factor).sum((1, 2)).mean()

        got = clipped_sum(module, parameters, loss, x, x, 1.0, Layout({"": 0}, ()))
        assert float(got["weight"].double().norm()) <= 1


def test_dropout_is_drawn_for_each_example():
    for build in (
        lambda: nn.Sequential(nn.Dropout(), nn.Linear(8, 1)),
        lambda: nn.Sequential(nn.Dropout(), Scaled(8)),
        lambda: nn.Sequential(nn.Dropout(), Stacked(8)),
    ):
        module, parameters, _, _ = made(build, images(8))
        x, y = torch.ones(300, 8, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
        layout = layout_of(module, parameters, torch.eye(8, dtype=torch.float64))
        got = clipped_sum(
            module, parameters, lambda out, _: out.sum(1).mean(), x, y, math.inf, layout
        )
        share = (
            next(iter(got.values())).flatten() / 600
        )  # half of them drop, the others count twice
        assert 0.3 < float(share.min()) < float(share.max()) < 0.7
        assert share.unique().numel() > 1


def test_between_levels_of_an_lstm_there_is_dropout():
    def build():
        lstm = nn.LSTM(4, 3, 2, batch_first=True, dropout=0.5)
        return Net(lambda m, x: m.lstm(x)[0][:, -1], lstm=lstm)

    module, parameters, x, y = made(build, images(5, 4))
    layout = layout_of(module, parameters, x)
    assert layout.slow == ()
    first, second = (
        flat(clipped_sum(module, parameters, square_loss, x, y, 1.0, layout)) for _ in range(2)
    )
    assert not torch.equal(first, second)
    module.eval()
    check(module, parameters, square_loss, x, y, layout)


@pytest.mark.parametrize("name", ["cnn", "language model", "gru", "a forward of its own"])
def test_nothing_is_left_behind(name):
    module, parameters, x, y = made(*{**FAST, **SLOW}[name][:2])
    module.eval()
    module.get_submodule(next(n for n, _ in module.named_modules() if n)).train()

    def state():
        return [
            (sorted(vars(part)), part.training, len(part._forward_hooks))
            for part in module.modules()
        ]

    before, values = state(), copy.deepcopy(module.state_dict())
    given_values = copy.deepcopy(parameters)

    def fails(outputs, targets):
        raise KeyError("the user's loss")

    layout = layout_of(module, parameters, x)
    clipped_sum(module, parameters, square_loss, x, y, 1.0, layout)
    mixes_examples(module, parameters, x)
    with pytest.raises(KeyError, match="the user's loss"):
        clipped_sum(module, parameters, fails, x, y, 1.0, layout)
    with pytest.raises((RuntimeError, IndexError, ValueError)):  # in the middle of the model
        clipped_sum(
            module, parameters, square_loss, x.new_zeros(3, 2, 2, 2, 2, 2), y[:3], 1.0, layout
        )
    assert state() == before
    torch.testing.assert_close(dict(module.state_dict()), dict(values), rtol=0, atol=0)
    torch.testing.assert_close(parameters, given_values, rtol=0, atol=0)
    assert all(p.grad is None for p in (*module.parameters(), *parameters.values()))


@pytest.mark.parametrize("which", ["input", "hidden"])
def test_an_input_changed_after_its_use_is_refused(which):
    def run(m, x):
        x = x.clone()
        h = m.a(x)
        out = m.b(h)
        (x if which == "input" else h).add_(1)
        return out

    module, parameters, x, y = made(
        lambda: Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3)), images(4)
    )
    with pytest.raises(RuntimeError, match=r"in-?place operation"):
        clipped_sum(module, parameters, square_loss, x, y, 1.0, Layout({"a": 0, "b": 0}, ()))


@pytest.mark.parametrize(
    ("clip_norm", "micro_batch"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (1.0, 0)]
)
def test_values_that_make_no_sense(clip_norm, micro_batch):
    module, parameters, x, y = made(*FAST["linear"])
    with pytest.raises(InvalidValue, match="must be positive"):
        clipped_sum(
            module, parameters, square_loss, x, y, clip_norm, Layout({"": 0}, ()), micro_batch
        )
    with pytest.raises(InvalidValue, match="two made-up examples"):
        layout_of(module, parameters, x[:1])


MIXING = {
    "batch norm": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "mean": lambda: Net(lambda m, x: m.a(x - x.mean(0)), a=nn.Linear(4, 3)),
    "largest": lambda: Net(lambda m, x: m.a(x) / x.abs().amax(), a=nn.Linear(4, 3)),
    "attention": lambda: Net(lambda m, x: (m.a(x) @ m.a(x).t()).softmax(1) @ x, a=nn.Linear(4, 3)),
    "size": lambda: Net(lambda m, x: m.a(x) / len(x), a=nn.Linear(4, 3)),
    "size, in training": lambda: Net(
        lambda m, x: m.a(x) / (len(x) if m.training else 1), a=nn.Linear(4, 3)
    ),
    "order": lambda: Net(lambda m, x: m.a(x).flip(0), a=nn.Linear(4, 3)),
    "neighbour, in training": lambda: Net(
        lambda m, x: functional.dropout(m.a(x + 0.1 * x.roll(1, 0))), a=nn.Linear(4, 3)
    ),
    "one output": lambda: Net(lambda m, x: m.a(x).sum(), a=nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_examples(name):
    module, parameters, x, _ = made(MIXING[name], images(4))
    assert mixes_examples(module, parameters, x)
    assert module.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_models_that_do_not_mix_examples(name, dtype):
    module, parameters, x, _ = made(*{**FAST, **SLOW}[name][:2], dtype=dtype)
    assert not mixes_examples(module, parameters, x)


def test_dropout_does_not_mix():
    module, parameters, x, _ = made(
        lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(), nn.Linear(9, 3)), images(4)
    )
    assert not mixes_examples(module, parameters, x)
    assert all(part.training for part in module.modules())

"""Per-example clipping of networks put together at random, against one backward pass per example:
attention, norms, tables, shared weights, parameters outside of layers."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from equipoise.privacy.per_example import shares
from equipoise.privacy.per_example.clipped_sum import clipped_sum, layout_of
from test_per_example import B, Net, check, entropy, flat, gradients, images, made, square_loss

WIDTH, LENGTH, WORDS = 4, 5, 7


class Attended(nn.Module):
    """Self-attention, or attention to a second reading of the input, with masks."""

    def __init__(self, first=True, other="", causal=False, padded=False, weights=False, **options):
        super().__init__()
        self.first, self.other, self.causal = first, other, causal
        self.padded, self.weights = padded, weights
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=first, **options)

    def forward(self, x):
        mask = padding = None
        if self.causal:
            mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        if self.padded:  # the first place of every example is always seen
            padding = x[:, :, 0] > 0.5
            padding = padding & (torch.arange(x.shape[1]) > 0)
        q = x if self.first else x.transpose(0, 1)
        k = {"": q, "keys": q.sin(), "keys and values": q.sin()}[self.other]
        v = q.cos() if self.other == "keys and values" else k
        out, weights = self.attention(
            q, k, v, padding, self.weights, mask, is_causal=self.causal and not self.padded
        )
        out = out if self.first else out.transpose(0, 1)
        return out if weights is None else out + weights.sum((1, 2))[:, None, None]


class Placed(nn.Module):
    """A class token, and positions: parameters, a cut of them, or a table."""

    def __init__(self, how="parameter"):
        super().__init__()
        self.how, self.token = how, nn.Parameter(torch.randn(1, 1, WIDTH))
        if how == "table":
            self.places = nn.Embedding(LENGTH + 9, WIDTH)
        else:
            self.places = nn.Parameter(torch.randn(*(1,) * (how == "parameter"), 99, WIDTH))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        if self.how == "table":
            return x + self.places(torch.arange(x.shape[1]) % (LENGTH + 9))
        if self.how == "parameter":
            return x + self.places[:, : x.shape[1]]
        return self.places[: x.shape[1]].unsqueeze(0) + x


class Gate(nn.Module):
    """Parameters by themselves: a number, a row, a matrix, a shift that is subtracted."""

    def __init__(self):
        super().__init__()
        self.number = nn.Parameter(torch.randn(()))
        self.row = nn.Parameter(torch.randn(WIDTH))
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.shift = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        x = self.number * (x @ self.matrix).tanh() / (3 + self.row) - self.shift
        x = functional.linear(x, self.turned, self.row)
        x += self.row[None, None]
        return x @ self.turned.t() + (1 - self.shift)


class Turned(nn.Module):
    """Layers that want channels before positions."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


def counted(layer):
    """In eval mode, with statistics of some data."""
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer.eval()


def transformer(**options):
    return nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, **{"batch_first": True, **options})


BLOCKS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "shared linear": lambda: Twice(nn.Linear(WIDTH, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "shared rms norm": lambda: Twice(nn.RMSNorm(WIDTH, eps=1e-3)),
    "fixed batch norm": lambda: Turned(counted(nn.BatchNorm1d(WIDTH))),
    "group norm": lambda: Turned(nn.GroupNorm(2, WIDTH)),
    "convolution": lambda: Turned(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "shared convolution": lambda: Turned(Twice(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))),
    "attention": Attended,
    "attention, causal": partial(Attended, causal=True),
    "attention, padded": partial(Attended, padded=True, bias=False),
    "attention, both": partial(Attended, causal=True, padded=True),
    "attention, weights": partial(Attended, weights=True, causal=True),
    "attention, positions first": partial(Attended, first=False, padded=True),
    "attention to keys": partial(Attended, other="keys"),
    "attention to keys, positions first": partial(Attended, first=False, other="keys"),
    "attention to keys and values": partial(Attended, other="keys and values", weights=True),
    "attention, matrices apart": partial(Attended, other="keys", kdim=WIDTH, vdim=WIDTH),
    "shared attention": lambda: Twice(Attended()),
    "encoder layer": transformer,
    "encoder layer, norm first": partial(transformer, norm_first=True, activation="gelu"),
    "places": Placed,
    "places without an axis": partial(Placed, "no axis"),
    "places in a table": partial(Placed, "table"),
    "gate": Gate,
    "in place": lambda: nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
        Net(lambda m, x: m.a(x).mul_(2).add_(x), a=nn.Linear(WIDTH, WIDTH)),
    ),
    "attention, in place": lambda: nn.Sequential(Attended(), nn.Hardtanh(inplace=True)),
    "prelu": nn.PReLU,
    "lstm": lambda: Net(lambda m, x: m.a(x)[0], a=nn.LSTM(WIDTH, WIDTH, batch_first=True)),
}
HEADS = ["linear", "tied", "tied, by hand", "tied, padded"]


class Text(nn.Module):
    """Words, blocks, and what is said of every word, perhaps by the same table."""

    def __init__(self, blocks, head):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0 if "padded" in head else None)
        self.blocks, self.by_hand = nn.Sequential(*(BLOCKS[name]() for name in blocks)), False
        if head == "tied, by hand":
            self.by_hand = True
            return
        self.out = nn.Linear(WIDTH, WORDS, bias=head == "linear")
        if head != "linear":
            self.out.weight = self.words.weight

    def forward(self, tokens):
        x = self.blocks(self.words(tokens))
        x = x[:, -tokens.shape[1] :] + x.mean(1, keepdim=True)
        return x @ self.words.weight.T if self.by_hand else self.out(x)


def text(blocks, head, length, dtype, seed):
    """A network, its parameters, words and targets."""

    def tokens():
        return torch.randint(WORDS, (B, length))

    module, parameters, x, _ = made(lambda: Text(blocks, head), tokens, dtype, seed)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    return module, parameters, x, x.roll(1, 1)


def of_text(parts, **more):
    module, parameters, x, y = text(*parts)
    layout = layout_of(module, parameters, x[:4])
    assert layout.slow == ()
    rtol = 1e-9 if parts[3] == torch.float64 else 2e-4
    check(module, parameters, entropy, x, y, layout, rtol=rtol, **more)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_agrees_with_a_backward_pass_for_each_example(name):
    of_text(([name], "linear", LENGTH, torch.float64, 0))


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*BLOCKS]), min_size=1, max_size=3),
    st.sampled_from(HEADS),
    st.integers(2, 9),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)
def test_networks_of_these_blocks_agree_with_a_backward_pass_for_each_example(
    blocks, head, length, dtype, seed
):
    of_text((blocks, head, length, dtype, seed))


@settings(max_examples=25)
@given(
    st.sampled_from([*BLOCKS]),
    st.sampled_from(HEADS),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
    st.floats(-6, 6),
)
def test_no_example_of_these_blocks_moves_the_sum_by_more_than_the_clip(
    name, head, dtype, seed, exponent
):
    module, parameters, x, y = text([name], head, LENGTH, dtype, seed)
    layout, C = layout_of(module, parameters, x), 10.0**exponent
    total, rest = (
        flat(clipped_sum(module, parameters, entropy, x[i:], y[i:], C, layout)) for i in (0, 1)
    )
    rounding = len(x) * math.sqrt(len(total)) * 4 * torch.finfo(dtype).eps
    assert float((total - rest).norm()) <= C * (1 + rounding)


@pytest.mark.parametrize("words", [7, 400])
def test_a_table_that_is_also_the_last_layer(words):
    """With few words their gradients are formed; with many, norms follow from pairs of positions,
    of which many hold the same word."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.inner = nn.Embedding(words, 30, padding_idx=2), nn.Linear(30, 30)

        def forward(self, x):
            return self.inner(self.words(x)).tanh() @ self.words.weight.T

    def tokens():
        return torch.randint(5, (B, 6))

    formed = []

    def counted_sum(gradients):
        formed.append(gradients.shape)
        return materialised(gradients)

    materialised = shares.materialised
    module, parameters, x, _ = made(Tied, tokens)
    layout = layout_of(module, parameters, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "materialised", counted_sum)
        check(module, parameters, entropy, x, x.roll(1, 1), layout)
    assert ((B, words, 30) in formed) == (words == 7)
    assert layout.slow == ()


def test_what_cancels_between_uses_stays_below_the_clip():
    """The table's gradient and that of the last layer are opposite but for rounding, which is
    large."""
    words, width = 60, 50

    class Opposite(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(words, width)

        def forward(self, x):
            found = self.words(x)
            return torch.cat([found, functional.one_hot(x, words) * 0 + self.last(x)], -1)

        def last(self, x):
            return self.far(x) @ self.words.weight.T

        def far(self, x):
            return 1e6 * torch.linspace(0.1, 1, width).expand(*x.shape, width)

    torch.manual_seed(0)
    module, x = Opposite(), torch.tensor([[3, 4], [5, 6], [7, 7]])
    parameters = {"words.weight": torch.zeros(words, width)}
    layout = layout_of(module, parameters, x)
    assert layout.slow == ()
    for trial in range(10):

        def loss(out, y, factor=1 + trial / 7):
            found, mapped = out.split([width, words], -1)
            side = 1e6 * torch.linspace(0.1, 1, width) * factor
            return -(found * side).sum() + factor * mapped.gather(-1, y.unsqueeze(-1)).sum()

        got = clipped_sum(module, parameters, loss, x[:1], x[:1], 1.0, layout)
        assert float(got["words.weight"].norm()) <= 1


SLOW = {
    "added keys": (
        lambda: Net(
            lambda m, x: m.a(x, x, x)[0].flatten(1),
            a=nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True),
        ),
        images(5, 4),
        "a: MultiheadAttention",
    ),
    "positions first": (
        lambda: Net(
            lambda m, x: (x.transpose(0, 1) + m.places.weight.unsqueeze(1)).tanh().sum(0),
            places=nn.Embedding(5, 4),
        ),
        images(5, 4),
        "places",
    ),
    "words of all examples in a row": (
        lambda: Net(
            lambda m, x: m.words(x.flatten()).view(len(x), -1).tanh(), words=nn.Embedding(6, 4)
        ),
        lambda: torch.randint(6, (B, 5)),
        "words",
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SLOW)
def test_uses_that_are_not_followed_are_slow_and_agree(name):
    build, make, told = SLOW[name]
    module, parameters, x, y = made(build, make)
    layout = layout_of(module, parameters, x)
    assert any(reason.startswith(told) for reason in layout.slow), layout.slow
    check(module, parameters, square_loss, x, y, layout)


def test_attention_with_dropout_is_drawn_for_each_example():
    """And is nn.MultiheadAttention's own where nothing is dropped."""

    def build():
        return nn.Sequential(Attended(weights=True, dropout=0.5), nn.Flatten())

    module, parameters, x, y = made(build, images(LENGTH, WIDTH))
    layout = layout_of(module, parameters, x)
    assert layout.slow == ()
    x = x[:1].expand(B, -1, -1)
    sums = [
        flat(clipped_sum(module, parameters, square_loss, x[:n], y[:1].expand(n), math.inf, layout))
        for n in (1, 1, B)
    ]
    assert not torch.equal(sums[0], sums[1])
    g = gradients(module.eval(), parameters, square_loss, x, y)
    assert float((sums[2] - B * g[0]).norm()) > 1e-3
    check(module, parameters, square_loss, x, y, layout)

"""The paper's networks: their sizes, that they are flat models, and that their examples are clipped
at full speed."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from equipoise.paper.networks import Cnn, NextWord, UNet3d, vgg11
from equipoise.paper.tasks.messidor import narrow_vgg11
from equipoise.privacy.per_example import clipped_sum as per_example
from equipoise.privacy.per_example.clipped_sum import clipped_sum, layout_of
from equipoise.tasks.flat_model import FlatModel


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def entropy(outputs, targets):
    """For classes on the last axis."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def dice(outputs, targets):
    both = (outputs * targets).sum((2, 3, 4))
    return (1 - 2 * both / ((outputs + targets).sum((2, 3, 4)) + 1e-9)).mean()


def letters(n):
    return torch.randint(256, (n, 1, 28, 28), dtype=torch.uint8), torch.randint(62, (n,))


def photographs(n):
    """At a size that leaves two by two places to the last pooling."""
    images = torch.randint(256, (n, 3, 64, 64), dtype=torch.uint8)
    return images // torch.arange(1, n + 1, dtype=torch.uint8).view(n, 1, 1, 1), torch.arange(n) % 2


def sentences(n, vocabulary=10_000):
    return torch.randint(vocabulary, (n, 10)), torch.randint(vocabulary, (n, 10))


def volumes(n, *sizes):
    brain = torch.randint(2, (n, 1, *sizes)).float()
    return torch.randn(n, 1, *sizes), torch.cat([1 - brain, brain], 1)


NETWORKS = {
    "cnn": (lambda: Cnn(1, 28, 62), functional.cross_entropy, lambda: letters(4)),
    "cnn of three channels": (
        lambda: Cnn(3, 32, 10),
        functional.cross_entropy,
        lambda: (torch.rand(4, 3, 32, 32), torch.randint(10, (4,))),
    ),
    "next word": (NextWord, entropy, lambda: sentences(3)),
    "u-net": (UNet3d, dice, lambda: volumes(3, 8, 12, 8)),
    "vgg": (
        lambda: vgg11(hidden=32).eval(),
        functional.cross_entropy,
        lambda: photographs(2),
    ),  # eval: without dropout
}


def made(name):
    torch.manual_seed(0)
    build, loss, data = NETWORKS[name]
    return build(), loss, *data()


def one_by_one(module, loss, x, y):
    """The gradients of examples, from a backward pass for each."""
    parameters = dict(module.named_parameters())
    for j in range(len(x)):
        gradients = torch.autograd.grad(
            loss(module(x[j : j + 1]), y[j : j + 1]), list(parameters.values())
        )
        yield dict(zip(parameters, gradients, strict=True))


def norm(gradient):
    return math.hypot(*(float(part.norm(dtype=torch.float64)) for part in gradient.values()))


def check(module, loss, x, y, rtol=1e-3):
    """With a clip norm between the examples' norms, which every parameter's sum depends on."""
    parameters = dict(module.named_parameters())
    layout = layout_of(module, parameters, x if len(x) > 1 else torch.cat([x, x.flip(-1)]))
    assert layout.slow == ()
    norms = sorted(norm(gradient) for gradient in one_by_one(module, loss, x, y))
    C = 0.5 * (norms[0] + norms[-1])
    expected = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for gradient in one_by_one(module, loss, x, y):
        factor = min(1.0, C / norm(gradient))
        for name, part in gradient.items():
            expected[name].add_(part, alpha=factor)
    got = clipped_sum(module, parameters, loss, x, y, C, layout)
    for name, total in expected.items():
        largest = float(total.abs().max())
        assert largest > 0, name
        torch.testing.assert_close(
            got[name],
            total,
            rtol=rtol,
            atol=rtol * largest,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    return layout


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: Cnn(3, 32, 10), 878_538),
        (lambda: Cnn(1, 28, 62), 608_702),
        (lambda: Cnn(1, 28, 62, widths=(8, 16, 128)), 44_318),
        (NextWord, 2 * 2_560_000 + 10_000 + 4 * (4 * 256 * 256 + 4 * 256)),
        (UNet3d, 246_156),
        (lambda: UNet3d(4), 61_740),
        (narrow_vgg11, 349_618),
    ],
)
def test_sizes(build, parameters):
    module = build()
    assert size(module) == parameters
    assert FlatModel(module).dimension == parameters


def test_vgg_size():
    with torch.device("meta"):  # shapes only
        module = vgg11()
    assert size(module) == FlatModel(module).dimension == 128_774_530
    assert module(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 2)


def test_vgg_initial_weights():
    torch.manual_seed(0)
    module = vgg11(hidden=64)
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    for layer in convolutions:
        assert float(layer.weight.detach().std()) == pytest.approx(
            math.sqrt(2 / (9 * layer.out_channels)), rel=0.05
        )
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and layer.out_features == 64:
            after_hidden = layer.in_features == 64  # 8 = the root of 4096 / 64
            expected = 0.08 if after_hidden else 0.01
            assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.05)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert not layer.bias.any()


def test_a_narrow_vgg_begins_as_loud_as_the_whole_one():
    """Full layers that take in fewer numbers have larger weights: the variance of a sum stays."""
    torch.manual_seed(0)
    first, second, _ = [m for m in narrow_vgg11().modules() if isinstance(m, nn.Linear)]
    assert first.in_features == 64 * 7 * 7
    for layer, whole in ((first, 512 * 7 * 7), (second, 4096)):
        variance = float(layer.weight.detach().var()) * layer.in_features
        assert variance == pytest.approx(0.01**2 * whole, rel=0.1)


def test_the_u_net_has_the_baseline_parts():
    module = UNet3d()
    kinds = [type(layer) for layer in module.modules()]
    assert [kinds.count(kind) for kind in (nn.Conv3d, nn.GroupNorm, nn.PReLU)] == [11, 9, 10]
    norms = sum(size(layer) for layer in module.modules() if isinstance(layer, nn.GroupNorm))
    without_norms = size(module) - norms + 256  # a bias for each channel instead
    assert (norms, without_norms) == (512, 245_900)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (4, 62)),
        ("cnn of three channels", (4, 10)),
        ("next word", (3, 10, 10_000)),
        ("u-net", (3, 2, 8, 12, 8)),
        ("vgg", (2, 2)),
    ],
)
def test_outputs(name, shape):
    module, _, x, _ = made(name)
    outputs = FlatModel(module)(FlatModel(module).initial(), x)
    assert outputs.shape == shape
    if name == "u-net":
        torch.testing.assert_close(outputs.sum(1), torch.ones(3, 8, 12, 8))


@pytest.mark.parametrize("channels", [1, 3])
def test_stored_images_are_scaled(channels):
    torch.manual_seed(0)
    images = torch.randint(256, (2, channels, 28, 28), dtype=torch.uint8)
    module = Cnn(channels, 28, 10, widths=(4, 4, 8))
    torch.testing.assert_close(module(images), module(images.float() / 255))


def test_stored_images_are_centred():
    module, _, images, _ = made("vgg")
    with torch.no_grad():
        torch.testing.assert_close(module(images), module((images.float() / 255 - 0.5) / 0.25))


@pytest.mark.parametrize("name", NETWORKS)
def test_examples_are_clipped_one_by_one(name):
    check(*made(name))


@pytest.mark.parametrize("name", ["cnn", "u-net"])
def test_how_many_examples_run_together_does_not_matter(name, monkeypatch):
    module, loss, x, y = made(name)
    parameters = dict(module.named_parameters())
    layout = layout_of(module, parameters, x)
    runs = []

    def counted(module, inputs, *way):
        runs.append(len(inputs))
        return run_with_books(module, inputs, *way)

    run_with_books = per_example.run_with_books
    monkeypatch.setattr(per_example, "run_with_books", counted)
    sums = []
    for budget in (1, 2 * layout.numbers, 10 * layout.numbers):
        monkeypatch.setattr(per_example, "NUMBERS", budget)
        sums.append(clipped_sum(module, parameters, loss, x, y, 0.01, layout))
    n = len(x)
    assert runs == [1] * n + [2] * (n // 2) + [1] * (n % 2) + [n]
    for other in sums[1:]:
        torch.testing.assert_close(sums[0], other, rtol=1e-4, atol=1e-7)


def test_large_examples_run_in_small_numbers():
    """Counted on two small volumes: the numbers kept grow with the volume, the formed gradients do
    not."""
    module = UNet3d()
    parameters = dict(module.named_parameters())
    small, large = (
        layout_of(module, parameters, volumes(2, *sizes)[0]).numbers
        for sizes in ((8, 8, 8), (16, 16, 16))
    )
    assert small < large < 8 * small
    voxel = (large - small) / (16**3 - 8**3)
    assert 300 < voxel < 600
    assert 1 <= per_example.NUMBERS // int(voxel * 48 * 60 * 48) <= 4


def test_a_record_never_sees_another():
    """The clipped sum over a batch is the sum of those of single records, to rounding, also where
    one of them is not finite."""
    module, loss, x, y = made("u-net")
    parameters = dict(module.named_parameters())
    layout = layout_of(module, parameters, x)
    x[1, 0, 3, 4, 5] = math.nan
    together = clipped_sum(module, parameters, loss, x, y, 0.01, layout)
    alone = [
        clipped_sum(module, parameters, loss, x[j : j + 1], y[j : j + 1], 0.01, layout)
        for j in range(3)
    ]
    assert all(not total.any() for total in alone[1].values())
    for name, total in together.items():
        torch.testing.assert_close(total, alone[0][name] + alone[2][name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_do_not_depend_on_other_examples(name):
    module, _, x, _ = made(name)
    assert not FlatModel(module).mixes(x)


def test_the_channels_last_copy_changes_nothing():
    """A network of single calls in the usual order: ReLU before pooling, channels first."""
    torch.manual_seed(0)
    module = Cnn(3, 32, 10)
    x = torch.rand(2, 3, 32, 32)
    h = functional.max_pool2d(module.conv1(x).relu(), 2)
    h = functional.max_pool2d(module.conv2(h).relu(), 2)
    expected = module.full2(module.full1(h.flatten(1)).relu())
    torch.testing.assert_close(
        functional_call(module, dict(module.named_parameters()), (x,)), expected
    )

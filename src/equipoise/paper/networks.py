"""The four networks of the paper's experiments. What is learnt is in their parameters only, and no
example sees another.

Images may come as they are stored, uint8 [n, c, h, w] from 0 to 255, or as float32 that the task
has scaled.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

NARROW = (8, 16, 128)  # widths of a smaller CNN, for quick studies


class Cnn(nn.Module):
    """Two 5x5 convolutions and two full layers: the network of McMahan et al.,
    "Communication-efficient learning of deep networks from decentralized data", 2017, without
    padding.

    878,538 parameters for (3, 32, 10), CIFAR-10, and 608,702 for (1, 28, 62), FEMNIST. ReLU comes
    after pooling: the same function on smaller tensors. uint8 images are scaled to [0, 1].
    """

    def __init__(
        self, channels: int, size: int, classes: int, widths: tuple[int, int, int] = (32, 64, 512)
    ) -> None:
        super().__init__()
        first, second, hidden = widths
        side = ((size - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(channels, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.full1 = nn.Linear(second * side * side, hidden)
        self.full2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = _channels_last(_scaled(images))
        x = functional.max_pool2d(self.conv1(x), 2).relu()
        x = functional.max_pool2d(self.conv2(x), 2).relu()
        scores: Tensor = self.full2(self.full1(x.flatten(1)).relu())
        return scores


class NextWord(nn.Module):
    """The next word at every position: tokens [n, length] to scores [n, length, vocabulary].

    Embedding, two levels of LSTM, and one linear layer, all of one width.
    """

    def __init__(self, vocabulary: int = 10_000, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.out(hidden)
        return scores


class UNet3d(nn.Module):
    """Which voxels are brain: volumes [n, 1, ...] to the probabilities [n, 2, ...] of background
    and brain.

    The baseline of Fed-IXI (FLamby, du Terrail et al. 2022; its network is that of the package unet
    0.7.7) with group norm in place of batch norm. Sizes must be divisible by 4; Fed-IXI has 48 x 60
    x 48. It has as many parameters as the baseline, 246,156: 245,624 in the kernels, 8 + 2 in the
    biases of the first and the last convolution (those before a norm have none), 2 x 256 in nine
    norms and one in each of ten PReLUs. The paper names no number of groups; here it is 8
    everywhere, that is 2 to 8 channels in each. `width`, of the first convolution, is both.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.down1 = _block(1, w, 2 * w, w, first=True)
        self.down2 = _block(2 * w, 2 * w, 4 * w, w)
        self.bottom = _block(4 * w, 4 * w, 8 * w, w)
        self.up2 = _block(8 * w + 4 * w, 4 * w, 4 * w, w)
        self.up1 = _block(4 * w + 2 * w, 2 * w, 2 * w, w)
        self.out = nn.Conv3d(2 * w, 2, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        fine = self.down1(_channels_last(volumes))
        coarse = self.down2(functional.max_pool3d(fine, 2))
        x = self.bottom(functional.max_pool3d(coarse, 2))
        x = self.up2(torch.cat([coarse, _twice_as_large(x)], 1))
        x = self.up1(torch.cat([fine, _twice_as_large(x)], 1))
        probabilities: Tensor = self.out(x).softmax(1)
        return probabilities


def vgg11(classes: int = 2, hidden: int = 4096, width: int = 64) -> nn.Module:
    """VGG-11 without batch norm (Simonyan and Zisserman, "Very deep convolutional networks for
    large-scale image recognition", 2015, column A): 128,774,530 parameters for two classes.

    Initial weights are torchvision's for `vgg11(weights=None)`: He's normal ones by fan-out for
    convolutions, N(0, 0.01^2) for full layers, zero biases. With PyTorch's defaults for single
    layers the signal dies out on its way through eleven of them; so that it does not with fewer
    channels or hidden units, weights of a full layer are larger by the root of how many fewer it
    takes in. uint8 images [n, 3,
    224, 224] become (x / 255 - 0.5) / 0.25. Other sizes of 32 or more run as well.
    """
    network = Vgg11(classes, hidden, width)
    whole = {network.taken_in: 512 * 7 * 7, hidden: 4096}
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            fewer = whole[layer.in_features] / layer.in_features
            nn.init.normal_(layer.weight, 0, 0.01 * math.sqrt(fewer))
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


class Vgg11(nn.Module):
    """See `vgg11`, which also draws the initial weights. `hidden` is the width of the full layers,
    `width` that of the first convolution.
    """

    def __init__(self, classes: int, hidden: int, width: int) -> None:
        super().__init__()
        stages: Sequence[Sequence[int]] = [
            (3, width),
            (width, 2 * width),
            (2 * width, 4 * width, 4 * width),
            (4 * width, 8 * width, 8 * width),
            (8 * width, 8 * width, 8 * width),
        ]
        self.taken_in = 8 * width * 7 * 7
        layers: list[nn.Module] = []
        for widths in stages:
            for before, after in pairwise(widths):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7))
        self.head = nn.Sequential(
            *(nn.Linear(self.taken_in, hidden), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = _scaled(images)
        if not images.is_floating_point():
            x = (x - 0.5) / 0.25
        scores: Tensor = self.head(self.features(x).flatten(1))
        return scores


def _scaled(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float() / 255


def _channels_last(x: Tensor) -> Tensor:
    """A copy of x [n, c, ...] with the channels of a place side by side in memory, where
    convolution and pooling are faster."""
    return x.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


def _block(
    before: int, between: int, after: int, groups: int, first: bool = False
) -> nn.Sequential:
    """Two convolutions, each with its norm and PReLU; the first of the network has a bias instead
    of the norm."""
    start = [
        nn.Conv3d(before, between, 3, padding=1, bias=first),
        *([] if first else [nn.GroupNorm(groups, between)]),
        nn.PReLU(),
    ]
    return nn.Sequential(
        *start,
        nn.Conv3d(between, after, 3, padding=1, bias=False),
        nn.GroupNorm(groups, after),
        nn.PReLU(),
    )


def _twice_as_large(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)

"""Small instances of networks that people use, each as one would write it: a module, and inputs
[n, ...] for it, one tensor, a tuple or a dict."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH, CLASSES = 12, 6, 3


class Net(nn.Module):
    """Layers, and what is done with them: forward is run(self, *inputs)."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.run(self, *inputs, **named)


class Around(nn.Module):
    """x + layers(x), or both side by side."""

    def __init__(self, *layers, dense=False):
        super().__init__()
        self.layers, self.dense = nn.Sequential(*layers), dense

    def forward(self, x):
        y = self.layers(x)
        return torch.cat([x, y], 1) if self.dense else x + y


class Excited(nn.Module):
    """Channels, weighed by what all places say together (squeeze and excitation)."""

    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x):
        return x * self.up(functional.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()


def conv(a, b, norm=nn.GroupNorm, **options):
    normed = norm(2, b) if norm is nn.GroupNorm else norm(b)
    kernel = nn.Conv2d(a, b, 3, padding=1, bias=False, **options)
    return nn.Sequential(kernel, normed, nn.ReLU(inplace=True))


def pooled(*layers, width=4):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def pictures(n):
    return torch.rand(n, 1, 8, 8)


def rows(n):
    return torch.randn(n, 5)


def steps(n):
    return torch.randn(n, LENGTH, 4)


def words(n):
    return torch.randint(1, WORDS, (n, LENGTH))


def filled_up(n):
    """As a tokeniser gives short texts: numbers of words, and which of them are there."""
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (n, 1))).long()
    return {"input_ids": words(n) * mask, "attention_mask": mask}


def residual(norm=nn.GroupNorm):
    return pooled(conv(1, 4, norm), Around(conv(4, 4, norm), nn.Conv2d(4, 4, 3, padding=1)))


def u_net():
    def run(m, x):
        top = m.down(x)
        low = m.up(m.low(functional.max_pool2d(top, 2)))
        return m.out(torch.cat([top, low], 1).mean((2, 3)))

    up = nn.ConvTranspose2d(6, 4, 2, stride=2)
    return Net(run, down=conv(1, 4), low=conv(4, 6), up=up, out=nn.Linear(8, CLASSES))


class PictureTransformer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 5, width))
        layer = nn.TransformerEncoderLayer(width, 2, 12, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.out(self.encoder(x)[:, 0])


class TextEncoder(nn.Module):
    """Its positions are a buffer, and its output is an object with logits."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width, 0), nn.Embedding(LENGTH, width)
        self.register_buffer("position_ids", torch.arange(LENGTH)[None], persistent=False)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 2, 12, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pool, self.out = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.words(input_ids) + self.places(self.position_ids))
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return SimpleNamespace(logits=self.out(self.pool(x[:, 0]).tanh()), hidden_states=x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = (nn.Linear(width, 12, bias=False) for _ in range(2))
        self.down = nn.Linear(12, width, bias=False)
        self.register_buffer("seen", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(~self.seen, -torch.inf)
        x = x + self.mix((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class TextDecoder(nn.Module):
    """The next word at every place, by the table of words itself; its output is a dict."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks, self.norm = nn.Sequential(Block(width), Block(width)), nn.RMSNorm(width)
        self.out = nn.Linear(width, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return {"logits": self.out(self.norm(self.blocks(x)))}


def recurrent(kind, **options):
    def run(m, x):
        return m.out(m.inner(m.words(x))[0][:, -1])

    inner = kind(4, 5, batch_first=True, **options)
    width = 10 if options.get("bidirectional") else 5
    return Net(run, words=nn.Embedding(WORDS, 4), inner=inner, out=nn.Linear(width, CLASSES))


def residual_recurrent():
    def run(m, x):
        for layer, norm in zip(m.layers, m.norms, strict=True):
            x = norm(x + layer(x)[0])
        return m.out(x.mean(1))

    layers = nn.ModuleList(nn.LSTM(4, 4, batch_first=True) for _ in range(2))
    norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
    return Net(run, layers=layers, norms=norms, out=nn.Linear(4, CLASSES))


def temporal():
    def layer(a, b, dilation):
        pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        return nn.Sequential(pad, nn.Conv1d(a, b, 3, dilation=dilation), nn.PReLU(b))

    first, second = layer(4, 6, 1), Around(layer(6, 6, 2))
    return Net(
        lambda m, x: m.out(m.inner(x.transpose(1, 2))[:, :, -1]),
        inner=nn.Sequential(first, second),
        out=nn.Linear(6, CLASSES),
    )


def siamese():
    """One encoder for both inputs."""

    def run(m, a, b):
        a, b = m.encoder(a), m.encoder(b)
        return m.out(torch.cat([(a - b).abs(), a * b], 1))

    encoder = nn.Sequential(conv(1, 4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))
    return Net(run, encoder=encoder, out=nn.Linear(8, CLASSES))


def two_sides():
    """A picture, and a row of measurements."""

    def run(m, picture, row):
        return m.out(torch.cat([m.picture(picture).mean((2, 3)), m.row(row).relu()], 1))

    return Net(run, picture=conv(1, 4), row=nn.Linear(5, 4), out=nn.Linear(8, CLASSES))


class Recommender(nn.Module):
    """A factorisation machine over a user, an item and a context."""

    def __init__(self, width=4):
        super().__init__()
        self.factors, self.linear = nn.Embedding(30, width), nn.Embedding(30, CLASSES)
        self.shift = nn.Parameter(torch.zeros(CLASSES))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, ids):
        found = self.factors(ids)
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1))
        return self.shift + self.linear(ids).sum(1) + self.out(pairs)


class Mixer(nn.Module):
    """Perceptrons over places, then over channels."""

    def __init__(self, places=4, width=6):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(nn.Linear(places, 5), nn.GELU(), nn.Linear(5, places))
        self.over_channels = nn.Sequential(nn.Linear(width, 5), nn.GELU(), nn.Linear(5, width))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.over_places(self.first(x).transpose(1, 2)).transpose(1, 2)
        return self.out((x + self.over_channels(self.second(x))).mean(1))


class Scaled(nn.Module):
    """Depthwise, then wide and narrow, times a learned number for each channel (ConvNeXt)."""

    def __init__(self, width=4):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 8)
        self.narrow, self.scale = nn.Linear(8, width), nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Pooled(nn.Module):
    """A learned question looks at all places."""

    def __init__(self):
        super().__init__()
        self.question = nn.Parameter(torch.randn(1, 1, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        question = self.question.expand(len(x), -1, -1)
        return self.out(self.attention(question, x, x)[0][:, 0])


def squeezed():
    """A narrow layer, and two wide ones of it side by side (SqueezeNet's fire)."""

    def run(m, x):
        x = m.narrow(x).relu()
        return m.out(torch.cat([m.one(x), m.three(x)], 1).relu().mean((2, 3)))

    one, three = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 3, padding=1)
    return Net(run, narrow=nn.Conv2d(1, 2, 1), one=one, three=three, out=nn.Linear(6, CLASSES))


def autoencoder():
    return nn.Sequential(
        *(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)),
        *(nn.Tanh(), nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 5)),
    )


def fixed_backbone():
    """Trained elsewhere: its batch norms keep their statistics, and it learns nothing."""
    backbone = nn.Sequential(conv(1, 4, nn.BatchNorm2d), conv(4, 4, nn.BatchNorm2d))
    backbone.requires_grad_(False).eval()
    return pooled(backbone)


def depthwise():
    narrow = (nn.Conv2d(6, 4, 1, bias=False), nn.GroupNorm(2, 4))
    block = Around(nn.Conv2d(4, 6, 1), nn.ReLU6(), conv(6, 6, groups=6), *narrow)
    return pooled(conv(1, 4), block)


FAST = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES)), rows),
    "convolutions": (lambda: pooled(conv(1, 4), nn.MaxPool2d(2), conv(4, 4)), pictures),
    "residual (ResNet)": (residual, pictures),
    "dense (DenseNet)": (
        lambda: pooled(conv(1, 2), Around(conv(2, 2), dense=True), width=4),
        pictures,
    ),
    "depthwise (MobileNet)": (depthwise, pictures),
    "squeeze and excitation (EfficientNet)": (
        lambda: pooled(conv(1, 4), Excited(4), conv(4, 4)),
        pictures,
    ),
    "narrow and wide (SqueezeNet)": (squeezed, pictures),
    "scaled (ConvNeXt)": (lambda: pooled(conv(1, 4), Scaled()), pictures),
    "transformer of pictures (ViT)": (PictureTransformer, pictures),
    "perceptrons over places (MLP-Mixer)": (Mixer, pictures),
    "transformer of texts (BERT)": (TextEncoder, filled_up),
    "decoder of texts (GPT, Llama)": (TextDecoder, words),
    "recurrent (LSTM)": (lambda: recurrent(nn.LSTM), words),
    "residual LSTM": (residual_recurrent, steps),
    "convolutions in time (TCN)": (temporal, steps),
    "siamese": (siamese, lambda n: (pictures(n), pictures(n))),
    "two inputs": (two_sides, lambda n: {"picture": pictures(n), "row": rows(n)}),
    "recommender (FM)": (Recommender, lambda n: torch.randint(30, (n, 3))),
    "attention pooling": (Pooled, steps),
    "autoencoder": (autoencoder, rows),
    "a fixed backbone with batch norm": (fixed_backbone, pictures),
}
SLOW = {
    "U-Net, transposed": (u_net, pictures, "up: ConvTranspose2d"),
    "recurrent (GRU)": (lambda: recurrent(nn.GRU), words, "inner: GRU"),
    "recurrent, both directions": (
        lambda: recurrent(nn.LSTM, bidirectional=True),
        words,
        "inner: LSTM",
    ),
}

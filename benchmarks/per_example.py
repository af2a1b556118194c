"""What does per-example clipping cost? CPU time of a step in one thread relative to a step without
it, on the same batch.

    python benchmarks/per_example.py [--only NAME ...]

The step without it is the forward and backward pass of the mean loss. The contenders take turns,
and told is the median over turns of the ratio to the step without in the same turn, so that a busy
machine matters little. Opacus has no nn.LSTM: there its own DPLSTM is measured, still against
nn.LSTM. The others are not measured on the three large networks of the paper: they form the
gradient of every example there, and Opacus has no PReLU. Nor is Opacus measured on transformers: it
has layers of its own for them.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

from equipoise.paper.networks import Cnn, NextWord, UNet3d, vgg11
from equipoise.privacy.per_example.clipped_sum import Layout, clipped_sum, layout_of

C = 1.0
Step = Callable[[], object]


class Problem(NamedTuple):
    model: Callable[[], nn.Module]
    opacus_model: (
        Callable[[], nn.Module] | None
    )  # the model as Opacus takes it; none if only ours is measured
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    turns: int = 100
    large: bool = False


class Words(nn.Module):
    """Embedding, two levels of LSTM, and the next word."""

    def __init__(
        self, lstm: type[nn.Module] = nn.LSTM, vocabulary: int = 1000, width: int = 256
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = lstm(width, width, 2, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0][:, -1])


def cnn(first: int, second: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * 49, hidden), nn.ReLU(), nn.Linear(hidden, 62)),
    )


class VisionTransformer(nn.Module):
    """Patches of pictures, a class token and learned positions, and encoder layers."""

    def __init__(self, width: int = 128, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(patches), -1, -1), patches], 1) + self.places
        return self.out(self.encoder(x)[:, 0])


class Reader(nn.Module):
    """Words with positions, causal attention, and the next word at every place: by the same table
    as at the beginning if that is tied."""

    def __init__(self, words: int = 2000, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
            for _ in range(depth)
        )
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.out(self.norm(x))


class Classifier(nn.Module):
    """Short texts, filled up with a word that no attention sees."""

    def __init__(self, words: int = 5000, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, 0), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.out(self.encoder(x, src_key_padding_mask=tokens == 0)[:, 0])


def attention_alone() -> nn.Module:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(128, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0].mean(1)

    return Alone()


def every_word(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    both, each = (t.sum((2, 3, 4)) for t in (outputs * targets, outputs + targets))
    return (1 - 2 * both / (each + 1e-9)).mean()


def problems() -> dict[str, Callable[[], Problem]]:
    def letters(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 1, 28, 28), torch.randint(62, (n,))

    def own_cnn(*widths: int) -> Callable[[], Problem]:
        return lambda: Problem(lambda: cnn(*widths), lambda: cnn(*widths), *letters(256))

    def paper_cnn(n: int, *shape: int) -> Callable[[], Problem]:
        size = (n, shape[0], shape[1], shape[1])
        return lambda: Problem(
            lambda: Cnn(*shape),
            lambda: Cnn(*shape),
            torch.rand(*size),
            torch.randint(shape[2], (n,)),
        )

    def lstm() -> Problem:
        return Problem(
            Words, lambda: Words(DPLSTM), torch.randint(1000, (64, 10)), torch.randint(1000, (64,))
        )

    def pictures() -> Problem:
        x, y = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
        return Problem(VisionTransformer, None, x, y, turns=7)

    def reader() -> Problem:
        tokens = torch.randint(2000, (32, 64))
        return Problem(Reader, None, tokens, tokens.roll(1, 1), every_word, turns=7)

    def texts() -> Problem:
        filled = torch.arange(64) < torch.randint(8, 65, (64, 1))
        tokens = torch.randint(1, 5000, (64, 64)) * filled
        return Problem(Classifier, None, tokens, torch.randint(10, (64,)), turns=7)

    def alone() -> Problem:
        return Problem(attention_alone, None, torch.randn(64, 64, 128), torch.randint(10, (64,)))

    def small() -> Problem:
        def build() -> nn.Module:
            layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
            encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            return nn.Sequential(encoder, nn.Flatten(), nn.Linear(16 * 32, 10))

        return Problem(build, None, torch.randn(64, 16, 32), torch.randint(10, (64,)))

    def next_word() -> Problem:
        tokens, following = torch.randint(10_000, (2, 64, 10))
        return Problem(NextWord, None, tokens, following, every_word, turns=7, large=True)

    def u_net() -> Problem:
        brain = torch.randint(2, (2, 1, 48, 60, 48)).float()
        return Problem(
            UNet3d,
            None,
            torch.randn(2, 1, 48, 60, 48),
            torch.cat([1 - brain, brain], 1),
            dice,
            turns=3,
            large=True,
        )

    def vgg() -> Problem:
        x, y = torch.rand(4, 3, 224, 224), torch.randint(2, (4,))
        return Problem(vgg11, None, x, y, turns=3, large=True)

    return {
        "CNN 32/64, batch 256": own_cnn(32, 64, 512),
        "CNN 16/32, batch 256": own_cnn(16, 32, 128),
        "LSTM 2 x 256, batch 64": lstm,
        "attention alone, 64 places, batch 64": alone,
        "encoder layers 2 x 32, 16 places, batch 64": small,
        "vision transformer 4 x 128, batch 64": pictures,
        "text classifier 4 x 128, padded, batch 64": texts,
        "language model 4 x 128, tied, batch 32": reader,
        "paper: CNN 1 x 28 x 28, batch 16": paper_cnn(16, 1, 28, 62),
        "paper: CNN 3 x 32 x 32, batch 64": paper_cnn(64, 3, 32, 10),
        "paper: LSTM, every word of 10,000, batch 64": next_word,
        "paper: U-Net 48 x 60 x 48, batch 2": u_net,
        "paper: VGG-11 224 x 224, batch 4": vgg,
    }


def steps(problem: Problem) -> dict[str, Step]:
    x, y, loss = problem.inputs, problem.targets, problem.loss
    module = problem.model().train()
    parameters = dict(module.named_parameters())
    layout = layout_of(module, parameters, x[:4])
    assert not layout.slow, layout.slow

    def without() -> None:
        torch.autograd.grad(loss(module(x), y), list(parameters.values()))

    contenders = {
        "without": without,
        "ours": lambda: clipped_sum(module, parameters, loss, x, y, C, layout),
    }
    if problem.large:
        return contenders
    slow = Layout({}, ("all",))
    contenders["torch.func vmap"] = lambda: clipped_sum(module, parameters, loss, x, y, C, slow)
    if problem.opacus_model is None:
        return contenders
    return contenders | opacus_steps(problem.opacus_model, x, y)


def opacus_steps(opacus_model: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    loss = nn.CrossEntropyLoss()
    hooks = GradSampleModule(opacus_model().train())
    ghost = GradSampleModuleFastGradientClipping(
        opacus_model().train(), max_grad_norm=C, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(ghost.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=C,
        expected_batch_size=len(x),
    )
    ghost_loss = DPLossFastGradientClipping(
        ghost, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean"
    )

    def opacus_hooks() -> None:
        hooks.zero_grad()
        loss(hooks(x), y).backward()
        samples = [p.grad_sample for p in hooks.parameters()]
        norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples]).norm(dim=0)
        factors = (C / norms).clamp(max=1.0)
        for sample in samples:
            torch.tensordot(factors, sample, 1)
        hooks.zero_grad()
        for p in hooks.parameters():
            p.grad_sample = None

    def opacus_ghost() -> None:
        ghost_loss(ghost(x), y).backward()
        optimizer.zero_grad()

    return {"Opacus hooks": opacus_hooks, "Opacus ghost clipping": opacus_ghost}


def ratios(contenders: dict[str, Step], turns: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of the step without clipping, and the ratios to it."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, step in contenders.items():
            start = time.process_time()
            step()
            if turn:  # the first is to warm up
                times[name].append(time.process_time() - start)
    base = times.pop("without")
    medians = {
        name: statistics.median(t / b for t, b in zip(taken, base, strict=True))
        for name, taken in times.items()
    }
    return 1000 * statistics.median(base), medians


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, default=15, help="at most so many; the large networks take fewer"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="NAME",
        help="rows whose name contains one of these",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    columns = ["ours", "torch.func vmap", "Opacus hooks", "Opacus ghost clipping"]
    header = ["model", "without (ms)", *columns]
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for name, make in problems().items():
        if any(part.lower() in name.lower() for part in args.only):
            problem = make()
            base, measured = ratios(steps(problem), min(args.turns, problem.turns))
            told = [f"{measured[column]:.2f}" if column in measured else "-" for column in columns]
            print("| " + " | ".join([name, f"{base:.0f}", *told]) + " |", flush=True)


if __name__ == "__main__":
    main()

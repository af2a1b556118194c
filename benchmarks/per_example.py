"""What does per-example clipping cost? Steps of one thread relative to a step without it, on the same batch.

    python benchmarks/per_example.py

The step without it is the forward and backward pass of the mean loss. The contenders take turns, and told is the median over
turns of the ratio to the step without in the same turn, so that a busy machine matters little. Opacus has no nn.LSTM: there its
own DPLSTM is measured, still against nn.LSTM.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from equipoise.privacy.per_example import Layout, clipped_sum, layout_of

C = 1.0
Step = Callable[[], object]


class Words(nn.Module):
    """Embedding, two levels of LSTM, and the next word."""

    def __init__(self, lstm: type[nn.Module] = nn.LSTM, vocabulary: int = 1000, width: int = 256) -> None:
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


def problems() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], Tensor, Tensor]]:
    """The model, the model as Opacus takes it, inputs and targets."""
    images, letters = torch.randn(256, 1, 28, 28), torch.randint(62, (256,))
    large, small = (lambda: cnn(32, 64, 512)), (lambda: cnn(16, 32, 128))
    tokens, words = torch.randint(1000, (64, 10)), torch.randint(1000, (64,))
    return {
        "CNN 32/64, batch 256": (large, large, images, letters),
        "CNN 16/32, batch 256": (small, small, images, letters),
        "LSTM 2 x 256, batch 64": (Words, lambda: Words(DPLSTM), tokens, words),
    }


def steps(model: Callable[[], nn.Module], opacus_model: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    loss = nn.CrossEntropyLoss()
    module = model().train()
    parameters = dict(module.named_parameters())
    layout = layout_of(module, parameters, x[:4])
    assert not layout.slow, layout.slow
    hooks = GradSampleModule(opacus_model().train())
    ghost = GradSampleModuleFastGradientClipping(opacus_model().train(), max_grad_norm=C, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(ghost.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=C, expected_batch_size=len(x)
    )
    ghost_loss = DPLossFastGradientClipping(ghost, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean")

    def without() -> None:
        torch.autograd.grad(loss(module(x), y), list(parameters.values()))

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

    return {
        "without": without,
        "ours": lambda: clipped_sum(module, parameters, loss, x, y, C, layout),
        "torch.func vmap": lambda: clipped_sum(module, parameters, loss, x, y, C, Layout({}, ("all",))),
        "Opacus hooks": opacus_hooks,
        "Opacus ghost clipping": opacus_ghost,
    }


def ratios(contenders: dict[str, Step], turns: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of the step without clipping, and the ratios to it."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            if turn:  # the first is to warm up
                times[name].append(time.perf_counter() - start)
    base = times.pop("without")
    medians = {name: statistics.median(t / b for t, b in zip(taken, base, strict=True)) for name, taken in times.items()}
    return 1000 * statistics.median(base), medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    header: list[str] = []
    for name, problem in problems().items():
        base, measured = ratios(steps(*problem), turns)
        if not header:
            header = ["model", "without (ms)", *measured]
            print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
        print("| " + " | ".join([name, f"{base:.0f}", *(f"{ratio:.2f}" for ratio in measured.values())]) + " |", flush=True)


if __name__ == "__main__":
    main()

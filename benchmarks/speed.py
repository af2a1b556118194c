"""How long a round takes, over a bare PyTorch loop that makes the same local steps, clips and adds
noise.

    make bench                                # a few minutes
    python benchmarks/speed.py --work B A     # some of it
    python benchmarks/speed.py --profile F    # where the time of one goes

Every work is run by the loop and by the product in turn, on one thread; told are processor seconds
of both, and the median of their ratios, beside the goal. Data are made up: they have the shapes of
CIFAR-10 and FEMNIST, and of a table.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise
from equipoise.paper.networks import Cnn
from equipoise.tasks.flat_model import FlatModel
from equipoise.tasks.linear import LOGISTIC, linear_task, one_hot
from equipoise.tasks.network import model_task
from equipoise.tasks.task import Table, Task, TaskOptions


class PlainCnn(nn.Module):
    """The CNN as one writes it down: ReLU before pooling, channels first."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        side = ((size - 4) // 2 - 4) // 2
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * side * side, 512), nn.ReLU(), nn.Linear(512, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.body(images)
        return scores


class Work(NamedTuple):
    """So many clients with their records, in minibatches, for so many local steps a round."""

    clients: int
    batch: int
    steps: int
    records: int
    goal: float
    own_goal: float
    flop: float  # of a step, forward and backward


WORKS = {
    "A": Work(clients=5, batch=64, steps=10, records=640, goal=0.72, own_goal=1.0, flop=2.76e9),
    "F": Work(clients=6, batch=16, steps=10, records=320, goal=0.72, own_goal=1.0, flop=0.40e9),
    "B": Work(clients=10, batch=64, steps=10, records=1280, goal=0.20, own_goal=1.0, flop=1e5),
}
SHAPES = {"A": (3, 32, 10), "F": (1, 28, 62)}
COLUMNS = 300
C, SIGMA_OVER_C, ETA = 1.0, 0.01, 0.01


def made_up(name: str) -> list[tuple[Tensor, Tensor]]:
    """Each client's records."""
    work, generator = WORKS[name], torch.Generator().manual_seed(0)
    if name in SHAPES:
        channels, size, classes = SHAPES[name]
        shape: tuple[int, ...] = (channels, size, size)
    else:
        shape, classes = (COLUMNS,), 2
    return [
        (
            torch.randn(work.records, *shape, generator=generator),
            torch.randint(classes, (work.records,), generator=generator),
        )
        for _ in range(work.clients)
    ]


def module_of(name: str, plain: bool = True) -> nn.Module:
    torch.manual_seed(0)
    if name not in SHAPES:
        return nn.Linear(COLUMNS, 2)
    return (PlainCnn if plain else Cnn)(*SHAPES[name])


def loop(name: str) -> Iterator[int]:
    """The bare loop: nothing but local steps of SGD, clip, noise and the mean."""
    work, module, data = WORKS[name], module_of(name), made_up(name)
    parameters = [*module.parameters()]
    start = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.SGD(parameters, ETA)
    for number in range(1, 10**6):
        total = [torch.zeros_like(part) for part in start]
        for inputs, targets in data:
            order = torch.randperm(len(targets))
            with torch.no_grad():
                for parameter, part in zip(parameters, start, strict=True):
                    parameter.copy_(part)
            for step in range(work.steps):
                chosen = order[step * work.batch % len(order) :][: work.batch]
                optimiser.zero_grad()
                cross_entropy(module(inputs[chosen]), targets[chosen]).backward()
                optimiser.step()
            with torch.no_grad():
                change = [p - part for p, part in zip(parameters, start, strict=True)]
                norm = torch.sqrt(sum((part**2).sum() for part in change))
                for summed, part in zip(total, change, strict=True):
                    noise = SIGMA_OVER_C * torch.randn_like(part)
                    summed.add_(part * (C / norm).clamp(max=1) + noise)
        start = [part + summed / work.clients for part, summed in zip(start, total, strict=True)]
        yield number


def product(name: str, own: bool) -> Iterator[int]:
    """The same by the product, on its own network or on one that a user brings."""
    work = WORKS[name]
    settings = {
        "epsilon": 10.0,
        "clip": C,
        "eta": ETA,
        "iterations": 1000 * work.steps,
        "local_steps": work.steps,
    }
    for round in equipoise.rounds(task=task_of(name, own), **settings):
        yield round.number


def task_of(name: str, own: bool) -> Task:
    work, data = WORKS[name], made_up(name)
    if own:
        return equipoise.own_task(
            module_of(name), data, cross_entropy, equipoise.accuracy, batch=work.batch
        )
    if name in SHAPES:
        return model_task(
            name,
            FlatModel(module_of(name, plain=False)),
            cross_entropy,
            equipoise.accuracy,
            tuple(data),
            batch=work.batch,
            seed=0,
            error_name="1 - accuracy",
            learning_rate=ETA,
            iterations=work.steps,
            public=(),
        )
    tables = [
        Table(inputs.double().numpy() / COLUMNS**0.5, one_hot(targets.numpy(), 2))
        for inputs, targets in data
    ]
    return linear_task(
        name,
        (tables, None),
        None,
        LOGISTIC,
        1e-3,
        1.0,
        TaskOptions(batch=work.batch),
        public=(),
        iterations=work.steps,
    )


def seconds(rounds: Iterator[int], number: int) -> float:
    """Processor seconds of so many rounds."""
    begun = time.process_time()
    for _ in range(number):
        next(rounds)
    return time.process_time() - begun


def peak() -> float:
    """FLOP a processor second of one large matrix product."""
    a = torch.randn(1024, 1024)
    rates = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(10):
            a @ a
        rates.append(10 * 2 * 1024**3 / (time.process_time() - begun))
    return max(rates)


def compare(name: str, turns: int) -> None:
    work = WORKS[name]
    sides = {
        "product": (product(name, own=False), work.goal),
        "own module": (product(name, own=True), work.own_goal),
    }
    bare = loop(name)
    for rounds in (bare, *(rounds for rounds, _ in sides.values())):
        seconds(rounds, 2)
    number = max(1, int(0.5 / seconds(bare, 1)))
    taken: dict[str, list[float]] = {side: [] for side in ("loop", *sides)}
    for _ in range(turns):
        taken["loop"].append(seconds(bare, number))
        for side, (rounds, _) in sides.items():
            taken[side].append(seconds(rounds, number))
    steps = number * work.clients * work.steps
    print(f"{name}: loop {statistics.median(taken['loop']) / steps * 1e3:.3g} ms a step")
    for side, (_, goal) in sides.items():
        ratios = [own / loop for own, loop in zip(taken[side], taken["loop"], strict=True)]
        each = statistics.median(taken[side]) / steps
        share = f", {work.flop / each / peak():.2f} of the peak" if name in SHAPES else ""
        print(
            f"   {side:11} {each * 1e3:.3g} ms a step, {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}), goal {goal:.2f}{share}",
            flush=True,
        )


def profile(name: str, own: bool) -> None:
    rounds = product(name, own)
    seconds(rounds, 2)
    profiler = cProfile.Profile()
    profiler.enable()
    seconds(rounds, 20)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", nargs="+", choices=WORKS, default=[*WORKS])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", choices=WORKS, help="where the time of one work goes")
    parser.add_argument("--own", action="store_true", help="with --profile: of a user's module")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.profile:
        profile(arguments.profile, arguments.own)
    for name in arguments.work if not arguments.profile else ():
        compare(name, arguments.turns)


if __name__ == "__main__":
    main()

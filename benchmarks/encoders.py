"""What a public encoder is worth: a private linear head on its features, beside the CNN trained
privately, from scratch and from what the same public pictures teach it.

    make bench-encoders           # resumable; a line for every cell goes to
    benchmarks/results/encoders.jsonl python benchmarks/encoders.py --table

Unit record, local trust, replace-one, delta = 1e-5, noise in the gradients, nothing planned. A
small network is trained on the public pictures alone, moved and turned at random; what comes before
its last layer is the encoder, and its features have length 3. A head on them begins from what the
public pictures teach it (with their own regulariser), and takes 20 steps on all records. The CNN
takes 20 rounds of 10 steps on samples of 3 % of the records, with C = 1, as in `records.py`, from
which the lines of FEMNIST are taken that it has. Told is the mean test error in per cent and half
of its 95 % interval over noise seeds (Student's t).
"""

import argparse
import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor, nn
from torch.nn import functional

from equipoise import encoded_task, train
from equipoise.places import cache_folder
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.tasks.network import Records
from equipoise.tasks.public import public_only, rough_minimiser

RESULTS = Path(__file__).parent / "results"
OWN, EARLIER = RESULTS / "encoders.jsonl", RESULTS / "records.jsonl"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS, CNN_SEEDS = 5, 3
LENGTH = 3.0  # of the features
PUBLIC_L2, L2 = 1e-3, 1e-4
HEAD = {"iterations": 20, "sampling_rate": 1.0, "clip": 1.0, "returns": "average"}
CNN = {"iterations": 200, "local_steps": 10, "clip": 1.0, "sampling_rate": 0.03}
TASKS = {
    "femnist": ("femnist-narrow", {"public_records": 600}),
    "femnist, other writers": ("femnist-narrow", {"public_records": 1500, "unit": "person"}),
    "cifar10": ("cifar10-narrow", {"public_records": 5000}),
}
ABOUT = {
    "femnist": "600 pictures at random are public",
    "femnist, other writers": "all pictures of some writers are public",
    "cifar10": "5,000 pictures at random are public",
}


TRAINING = {
    "femnist": {"features": 16, "steps": 2000, "widths": (16, 32), "flips": False},
    "femnist, other writers": {"features": 16, "steps": 1500, "widths": (16, 32), "flips": False},
    "cifar10": {"features": 64, "steps": 800, "widths": (16, 32, 64), "flips": True},
}


class Features(nn.Module):
    """Pictures to vectors of one length."""

    def __init__(self, channels: int, size: int, features: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((channels, *widths), widths, strict=False):
            layers += [
                *(nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()),
                *(nn.Conv2d(width, width, 3, padding=1), nn.MaxPool2d(2)),
                *(nn.GroupNorm(4, width), nn.ReLU()),
            ]
            size //= 2
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3))
        self.last = nn.Linear(widths[-1] * size * size, features)

    def forward(self, pictures: Tensor) -> Tensor:
        scaled = pictures / 255 if pictures.dtype == torch.uint8 else pictures
        return LENGTH * functional.normalize(self.last(self.body(scaled)), dim=1)


def moved(pictures: Tensor, generator: torch.Generator, turn: float, flips: bool) -> Tensor:
    """Each turned, scaled, slanted and shifted a little, at random; mirrored where that is
    allowed."""
    angle, scale, slant, right, down = (
        size * (2 * torch.rand(len(pictures), generator=generator) - 1)
        for size in (turn, 0.15, turn, 0.12, 0.12)
    )
    scale = 1 + scale
    if flips:
        mirror = 2 * torch.randint(2, (len(pictures),), generator=generator) - 1
    else:
        mirror = torch.ones(len(pictures))
    rows = [
        torch.stack([mirror * scale * angle.cos(), scale * (angle.sin() + slant), right], 1),
        torch.stack([-scale * angle.sin(), scale * angle.cos(), down], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), list(pictures.shape), align_corners=False)
    return functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


@lru_cache
def network_task(name: str) -> Task:
    task, options = TASKS[name]
    return load_task(task, TaskOptions(**options))


def encoder(name: str) -> Features:
    """An encoder of the task's public pictures, kept in the cache."""
    records, how = network_task(name).pool.data[0], TRAINING[name]
    folder = cache_folder() / "bench-encoders"
    kept = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{how['features']}.pt"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            torch.save(learnt(records, **how).state_dict(), kept)
    features = Features(*records[0].shape[1:3], how["features"], how["widths"])
    features.load_state_dict(torch.load(kept, weights_only=True))
    return features


def learnt(
    records: Records, features: int, steps: int, widths: tuple[int, ...], flips: bool
) -> Features:
    """What comes before the last layer of a network that is trained on these records."""
    inputs, labels = (part[:] for part in records)
    pictures = inputs / 255 if inputs.dtype == torch.uint8 else inputs
    generator = torch.Generator().manual_seed(0)
    body = Features(*inputs.shape[1:3], features, widths)
    head = nn.Linear(features, int(labels.max()) + 1)
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()])
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, 2 * (1 - step / steps))
        some = torch.randint(len(pictures), (64,), generator=generator)
        batch = moved(pictures[some], generator, 0.1 if flips else 0.25, flips)
        scores = 3 * head(body(batch))
        loss = functional.cross_entropy(scores, labels[some], label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return body


def head_task(name: str) -> Task:
    task = encoded_task(network_task(name), encoder(name), LENGTH)
    clients = replace(task.clients, l2=L2, minibatches=None)
    L = task.L - task.mu + L2
    return replace(task, clients=clients, mu=L2, L=L, public_l2=PUBLIC_L2, batch=None)


def encoder_cell(name: str) -> dict:
    """What it reaches without anything private, and with all records and no noise."""
    task, head = network_task(name), head_task(name)
    best = rough_minimiser(head.clients, head.x0, 1e-6)
    return {
        "clients": len(task.clients.sizes),
        "records": sum(task.clients.sizes) / len(task.clients.sizes),
        "public": task.pool.sizes[0],
        "dimension": head.dimension,
        "cnn": task.dimension,
        "head, public only": [public_only(head).test_error],
        "head, no noise": [float(head.measure(best).error)],
    }


def head_cell(name: str, epsilon: float) -> dict:
    task = head_task(name)
    return {
        "head": [
            train(
                task=task,
                epsilon=epsilon,
                unit="record",
                warm_start=True,
                eta=step_size(epsilon),
                simulate_noise_seed=seed,
                **HEAD,
            ).test_error
            for seed in range(SEEDS)
        ]
    }


def step_size(epsilon: float) -> float:
    return min(16.0, 8 * epsilon)


def cnn_cell(name: str, epsilon: float, warm: bool) -> dict:
    task, eta = network_task(name), min(2.0, 0.6 * epsilon)
    how = {**CNN, "unit": "record", "eta": eta / 10 if warm else eta, "warm_start": warm}
    runs = [
        train(task=task, epsilon=epsilon, simulate_noise_seed=seed, **how)
        for seed in range(CNN_SEEDS)
    ]
    return {
        "warm" if warm else "scratch": [run.test_error for run in runs],
        "CNN, public only": [runs[0].public_only.test_error],
    }


def cell(name: str, epsilon: float, column: str) -> dict:
    if column == "encoder":
        return encoder_cell(name)
    return (
        head_cell(name, epsilon) if column == "head" else cnn_cell(name, epsilon, column == "warm")
    )


def done() -> dict[tuple, dict]:
    """By cell; of FEMNIST's CNN also those of `records.py`, which has the same split."""
    found, public = {}, {}
    for line in _lines(EARLIER):
        name, epsilon, column = line["cell"]
        if name == "femnist" and column == "none":
            public = {"CNN, public only": line["public only"]}
        if name == "femnist" and column == "gradient":
            found[name, epsilon, "scratch"] = {"scratch": line["gradient"]}
            found[name, epsilon, "warm"] = {"warm": line["warm start"], **public}
    return found | {tuple(line["cell"]): line for line in _lines(OWN)}


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table() -> str:
    found, lines = done(), []
    for name in TASKS:
        if (about := found.get((name, math.inf, "encoder"))) is None:
            continue
        lines += [
            f"\n**{name}** ({ABOUT[name]}): {about['clients']} silos of {about['records']:,.0f} "
            f"records, {about['public']:,} public; the head has {about['dimension']:,} parameters, "
            f"the CNN {about['cnn']:,}. What the public pictures alone teach: the head "
            f"{percent(about['head, public only'])}, the CNN {percent(cnn_only(found, name))}. A "
            f"head of all records without noise: {percent(about['head, no noise'])}\n",
            "| ε | CNN from scratch | CNN, warm start | encoder and head |",
            "|---|---|---|---|",
        ]
        for epsilon in EPSILONS:
            cells = [
                percent(found.get((name, epsilon, column), {}).get(column))
                for column in ("scratch", "warm", "head")
            ]
            lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cnn_only(found: dict[tuple, dict], name: str) -> list[float] | None:
    """What the same public pictures teach the CNN."""
    lines = [line for key, line in found.items() if key[0] == name and key[2] == "warm"]
    return next((line["CNN, public only"] for line in lines if "CNN, public only" in line), None)


def percent(errors: list[float] | None) -> str:
    if not errors:
        return ""
    mean = 100 * np.mean(errors)
    if len(errors) == 1:
        return f"{mean:.1f}"
    spread = 100 * np.std(errors, ddof=1) / math.sqrt(len(errors))
    return f"{mean:.1f} ± {t.ppf(0.975, len(errors) - 1) * spread:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--columns", nargs="+", default=["encoder", "head", "warm", "scratch"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [
        (name, epsilon, column)
        for column in arguments.columns
        for epsilon in ((math.inf,) if column == "encoder" else arguments.epsilons)
        for name in arguments.tasks
    ]
    for key in [] if arguments.table else wanted:
        if key in done():
            continue
        result = cell(*key)
        with OWN.open("a") as file:
            file.write(json.dumps({"cell": key, **result}) + "\n")
        print(key, {k: percent(v) for k, v in result.items() if isinstance(v, list)}, flush=True)
    print(table())


if __name__ == "__main__":
    main()

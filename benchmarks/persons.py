"""Is it worth clipping persons, or do wider noise and clipped rows do as well?

    make bench-persons                      # resumable: benchmarks/results/persons.jsonl
    python benchmarks/persons.py --table    # prints what is there

The same promise in two ways, (epsilon, 1e-5) for a person with four rows at one of five silos: unit
person, and unit record with so much noise that four rows together have it (group accounting: mu / 4
for one of them). Both are DP-FedAvg with noise in the gradients of all records, 32 rounds of one
step of 1.75 / L, from zero. For each, the threshold is the best of four on stand-ins of the silos,
drawn with replacement from two thirds of a public pool of persons, by the mean loss on the last
third, over 2 noise seeds. Then 10 seeds on the silos' own records. Told are test errors in per
cent, and how much larger the error (and the loss) of group accounting is, with half of a 95 %
interval over seeds (Student's t, pairs of seeds).

Problems: the hospitals of examples/, four stays a patient; a9a (4,000 records) and digits, whose
records are nobody's: "alike" makes a person of four with the same label that are next to each other
along the first principal component, "at random" of any four. "Length" is the mean length of a
person's mean gradient, over that of a row's, of the model zero: 1 where rows are all the same.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import t

import equipoise
from equipoise.privacy.events import Event, account
from equipoise.privacy.groups import together
from equipoise.tasks import Task, TaskOptions, load_task
from equipoise.tasks.linear import Link, joined, linear_task
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "persons.jsonl"

ROWS, SILOS, DELTA, L2 = 4, 5, 1e-5, 1e-3
EPSILONS = (0.5, 1.0, 2.0, 3.0)
CLIPS = (0.12, 0.25, 0.5, 1.0)
STEP = 1.75  # times 1 / L
ROUNDS = 32
TRIED_SEEDS, SEEDS = 2, 10
A9A_RECORDS, POOL = 4000, 150  # persons in the public pool
DIGITS_POOL = 60


class Problem(NamedTuple):
    """The rows of every silo, four of a person one after the other; those of the pool; the test
    set."""

    silos: list[Table]
    pool: Table
    test: Table
    link: Link


def of_persons(table: Table, persons: Sequence[int] | np.ndarray) -> Table:
    return table.rows((ROWS * np.asarray(persons)[:, None] + np.arange(ROWS)).ravel())


def hospitals() -> Problem:
    """As many patients as a quarter of each hospital's admissions, and others in public."""
    sys.path.insert(0, str(ROOT / "examples"))
    import hospitals as example

    rng = np.random.default_rng(0)
    numbers = [hospital.admissions // ROWS for hospital in example.HOSPITALS]
    parts = {"silo": numbers, "pool": [POOL // SILOS] * SILOS, "test": [100] * SILOS}
    with TemporaryDirectory() as here:
        bounds = Path(here) / "bounds.toml"
        bounds.write_text(example.BOUNDS)
        tables = {}
        for part, patients in parts.items():
            files = [str(Path(here) / f"{part}-{i}.csv") for i in range(SILOS)]
            for file, hospital, number in zip(files, example.HOSPITALS, patients, strict=True):
                stays = [example.stays_of(rng, hospital, str(k), ROWS) for k in range(number)]
                example.write(Path(file), [row for own in stays for row in own])
            said = {"label": "readmitted", "bounds": str(bounds), "ignore": ("patient",)}
            task = load_task("csv", TaskOptions(data=tuple(files), unit="record", **said))
            clients = task.clients
            tables[part] = [
                Table(clients.features[i, :size].numpy(), clients.targets[i, :size].numpy())
                for i, size in enumerate(clients.sizes)
            ]
    return Problem(tables["silo"], joined(tables["pool"]), joined(tables["test"]), clients.link)


def grouped(table: Table, alike: bool) -> Table:
    """In the order of persons."""
    order = np.random.default_rng(0).permutation(len(table.features))
    if alike:
        centred = table.features - table.features.mean(0)
        along = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
        labels = table.targets @ np.arange(1, table.targets.shape[1] + 1)
        order = np.lexsort((along, labels))
    return table.rows(order[: len(order) // ROWS * ROWS])


def dealt(table: Table, test: Table, link: Link, pool: int) -> Problem:
    order = np.random.default_rng(1).permutation(len(table.features) // ROWS)
    silos = [of_persons(table, part) for part in np.array_split(order[pool:], SILOS)]
    return Problem(silos, of_persons(table, order[:pool]), test, link)


def a9a(alike: bool) -> Problem:
    files = {"data": (str(DATA / "libsvm/a9a.bz2"),), "test": (str(DATA / "libsvm/a9a.t.bz2"),)}
    task = load_task("libsvm", TaskOptions(**files, clients=1))
    table = Table(task.clients.features[0].numpy(), task.clients.targets[0].numpy())
    test = Table(task.measure.features.numpy(), task.measure.targets.numpy())
    some = table.rows(np.arange(A9A_RECORDS))
    return dealt(grouped(some, alike), test, task.clients.link, POOL)


def digits(alike: bool) -> Problem:
    task = load_task("digits", TaskOptions(clients=1))
    table = Table(task.clients.features[0].numpy(), task.clients.targets[0].numpy())
    test = Table(task.measure.features.numpy(), task.measure.targets.numpy())
    return dealt(grouped(table, alike), test, task.clients.link, DIGITS_POOL)


PROBLEMS = {
    "hospitals": hospitals,
    "a9a, alike": lambda: a9a(True),
    "a9a, at random": lambda: a9a(False),
    "digits, alike": lambda: digits(True),
    "digits, at random": lambda: digits(False),
}


def task_of(silos: list[Table], test: Table, link: Link) -> Task:
    task = linear_task(
        "grouped", (silos, None), test, link, L2, 1.0, TaskOptions(), (), iterations=ROUNDS
    )
    owners = tuple(np.repeat(np.arange(len(s.features) // ROWS), ROWS) for s in silos)
    return replace(task, clients=replace(task.clients, owners=owners))


def of_one_row(epsilon: float) -> float:
    """Which epsilon for one row means this one for four of them: a quarter of its mu."""

    def spent(mu: float) -> float:
        return account([Event("record", "replace-one", mu, 1.0, 1.0, 1)], DELTA).epsilon

    return spent(brentq(lambda mu: spent(mu) - epsilon, 1e-3, 10, xtol=1e-9) / ROWS)


WAYS = {
    "person": lambda epsilon: {"unit": "person", "epsilon": epsilon, "max_records": ROWS},
    "group": lambda epsilon: {"unit": "record", "epsilon": of_one_row(epsilon)},
}


def run(task: Task, way: str, epsilon: float, clip: float, seed: int) -> tuple:
    result = equipoise.train(
        task=task,
        **WAYS[way](epsilon),
        noise_in="gradient",
        weights="records",
        clip=clip,
        eta=STEP / task.L,
        iterations=ROUNDS,
        delta=DELTA,
        simulate_noise_seed=seed,
    )
    whole = result.account if way == "person" else together(result.account, DELTA, ROWS)
    assert abs(whole.epsilon / epsilon - 1) < 0.01, "both ways promise the same"
    measured = task.measure(torch.from_numpy(result.x).double())
    return float(measured.error), float(measured.loss)


def best_clip(problem: Problem, way: str, epsilon: float) -> float:
    """From the public pool alone."""
    persons = np.random.default_rng(2).permutation(len(problem.pool.features) // ROWS)
    taught, judged = np.split(persons, [2 * len(persons) // 3])
    rng = np.random.default_rng(3)
    silos = [
        of_persons(problem.pool, rng.choice(taught, len(silo.features) // ROWS))
        for silo in problem.silos
    ]
    task = task_of(silos, of_persons(problem.pool, judged), problem.link)

    def loss(clip: float) -> float:
        seeds = range(1000, 1000 + TRIED_SEEDS)
        return float(np.mean([run(task, way, epsilon, clip, seed)[1] for seed in seeds]))

    return min(CLIPS, key=loss)


def length(problem: Problem) -> float:
    """|a person's mean gradient| over |a row's|, in the mean of persons and rows, of the model
    zero."""
    persons, rows = [], []
    for silo in problem.silos:
        targets = torch.from_numpy(silo.targets)
        slopes = problem.link.residual(torch.zeros_like(targets), targets).numpy()
        each = slopes[:, :, None] * silo.features[:, None, :]
        each = each.reshape(len(each), -1)
        rows.append(np.linalg.norm(each, axis=1))
        means = each.reshape(-1, ROWS, each.shape[1]).mean(1)
        persons.append(np.linalg.norm(means, axis=1))
    return float(np.concatenate(persons).mean() / np.concatenate(rows).mean())


def cell(problem: Problem, epsilon: float) -> dict:
    task = task_of(problem.silos, problem.test, problem.link)
    found: dict = {
        "persons": sum(len(silo.features) // ROWS for silo in problem.silos),
        "length": length(problem),
        "constant": float(task.constant_error),
    }
    for way in WAYS:
        clip = best_clip(problem, way, epsilon)
        runs = [run(task, way, epsilon, clip, seed) for seed in range(SEEDS)]
        errors, losses = zip(*runs, strict=True)
        found[way] = {"clip": clip, "error": errors, "loss": losses}
    return found


def done() -> dict[tuple, dict]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    read = [json.loads(line) for line in lines]
    return {tuple(line["cell"]): line for line in read}


def half(differences: np.ndarray) -> float:
    spread = np.std(differences, ddof=1) / math.sqrt(len(differences))
    return float(t.ppf(0.975, len(differences) - 1) * spread)


def rows_of_table() -> Iterator[str]:
    yield (
        "| problem | persons | length | ε | unit person | C | group accounting | C | "
        "larger error | larger loss |"
    )
    yield "|---" * 10 + "|"
    found = done()
    cells = [(name, epsilon) for name in PROBLEMS for epsilon in EPSILONS]
    for name, epsilon in [each for each in cells if each in found]:
        line = found[name, epsilon]
        told = [f"{name} | {line['persons']:,} | {line['length']:.2f} | {epsilon:g}"]
        for way in WAYS:
            own = line[way]
            told.append(f"{100 * np.mean(own['error']):.1f} | {own['clip']:g}")
        for what, scale, form in (("error", 100, "+.1f"), ("loss", 1, "+.3f")):
            more = scale * (np.array(line["group"][what]) - np.array(line["person"][what]))
            told.append(f"{more.mean():{form}} ± {half(more):{form[1:]}}")
        yield "| " + " | ".join(told) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="print what is done, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        RESULTS.parent.mkdir(exist_ok=True)
        for name, make in PROBLEMS.items():
            missing = [epsilon for epsilon in EPSILONS if (name, epsilon) not in done()]
            problem = make() if missing else None
            for epsilon in missing:
                assert problem is not None
                line = json.dumps({"cell": (name, epsilon), **cell(problem, epsilon)})
                with RESULTS.open("a") as file:
                    file.write(line + "\n")
                print(name, epsilon, flush=True)
    print("\n".join(rows_of_table()))


if __name__ == "__main__":
    main()

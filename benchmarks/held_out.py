"""Plans on problems that nobody tuned the planner on, against brute force: the second part of
`make bench-planner`.

    python benchmarks/held_out.py --best     # brute force on the private clients, a minute a case
    python benchmarks/held_out.py --plans    # what `equipoise.plan` proposes, and its worth
    python benchmarks/held_out.py --table    # both, side by side

The first two write a line for each case (benchmarks/results/held-out-best.jsonl and
held-out-plans.jsonl) and leave out what is there; remove the second file for another planner.
`--again` continues brute force near the best that is known; a plan that beats it counts as the best
known. `--only WORDS` takes the cases whose names contain all of the words.

The problems and the cases were fixed before the planner was tuned: whoever works on the planner
does not look at them. A plan is asked for as a user would: files in a folder, `equipoise.plan` with
the keywords of the command. What it is worth is found by `brute.py`, which shares no code with the
planner.
"""

import argparse
import bz2
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from brute import (
    SCAFFNEW,
    Arena,
    Candidate,
    Field,
    Found,
    alone,
    cross_validated,
    of_model,
    search,
    search_near,
    worth,
)
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_iris, load_wine

import equipoise
from equipoise import Plan, Question, Settings, Task
from equipoise.planning.problems import (
    ClientProblem,
    PlanningProblem,
    RecordProblem,
    settings_of,
)
from equipoise.planning.search import effort_of
from equipoise.planning.search import search as search_plans
from equipoise.planning.worlds import NO_SKEW, World, Worlds, longest_step
from equipoise.seeds import stream
from equipoise.tasks import TaskOptions, load_task
from equipoise.tasks.csv import tables_measure
from equipoise.tasks.linear import LinearClients, Table, linear_clients

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
DRAW = 3
"""Draws 0, 1 and 2 were looked at while the planner was made; draw 3 was not before it was done."""
SAMPLE = 0
"""Of records, pools and clients of one draw's truths: others are for planners that know these."""
PUBLIC_L2S = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
RESULTS = Path(__file__).parent / "results"

TEST_RECORDS = 4000  # or all that is left
DELTA = 1e-5
L2S = (1e-4, 1e-3, 1e-2, 1e-1)  # of brute force, where l2 is left open
SECONDS = 25  # about so many for a search
LABEL = "label"
Numbers = NDArray[np.float64]
Owners = NDArray[np.int64]


class Records(NamedTuple):
    """Cells [n, columns] and labels [n], as the text that a CSV file holds."""

    cells: NDArray[np.str_]
    labels: NDArray[np.str_]

    def rows(self, index: Any) -> "Records":
        return Records(self.cells[index], self.labels[index])


Draw = Callable[[Owners], Records]
"""Fresh records of one population, one for each client named; only own truths depend on whose."""


class Source(NamedTuple):
    """A population, and what is publicly known about its columns, the label among them.

    own_truths   whether the same cells mean different labels at different clients
    """

    bounds: dict[str, str]
    draw: Callable[[np.random.Generator], Draw]
    own_truths: bool = False


def numbers(low: float, high: float) -> str:
    return f"low = {low}\nhigh = {high}\n"


def categories(*names: Any) -> str:
    return f"categories = [{', '.join(repr(str(name)) for name in names)}]\n"


def text(values: Numbers) -> NDArray[np.str_]:
    return np.char.mod("%.6g", values)


# ---- problems: tables that are there ----


def from_table(cells: Numbers, labels: Numbers) -> Callable[[np.random.Generator], Draw]:
    """Each record of a table once, in random order."""

    def begin(rng: np.random.Generator) -> Draw:
        table = Records(text(cells), text(labels)).rows(rng.permutation(len(labels)))
        used = 0

        def draw(owners: Owners) -> Records:
            nonlocal used
            used += len(owners)
            return table.rows(slice(used - len(owners), used))

        return draw

    return begin


DIABETES_BOUNDS = {  # a doctor's guess
    "age": (15, 90),
    "sex": (1, 2),
    "bmi": (15, 45),
    "bp": (60, 140),
    "tc": (80, 320),
    "ldl": (30, 250),
    "hdl": (20, 100),
    "tch": (1, 10),
    "ltg": (3, 6.5),
    "glu": (50, 130),
    LABEL: (20, 350),
}
WINE_BOUNDS = (
    (10.5, 15.5),
    (0.5, 6),
    (1.2, 3.5),
    (10, 30),
    (60, 170),
    (0.5, 4),
    (0, 6),
    (0, 0.7),
    (0, 4),
    (1, 13),
    (0.4, 1.8),
    (1, 4.2),
    (200, 1800),
)
IRIS_BOUNDS = ((4, 8), (2, 4.5), (1, 7), (0, 2.5))


def diabetes() -> Source:
    bunch = load_diabetes(scaled=False)
    bounds = {name: numbers(*limits) for name, limits in DIABETES_BOUNDS.items()}
    return Source(bounds, from_table(bunch.data, bunch.target))


def wine() -> Source:
    bunch = load_wine()
    bounds = {f"v{i}": numbers(*limits) for i, limits in enumerate(WINE_BOUNDS)}
    return Source(bounds | {LABEL: categories(0, 1, 2)}, from_table(bunch.data, bunch.target))


def iris() -> Source:
    bunch = load_iris()
    bounds = {f"v{i}": numbers(*limits) for i, limits in enumerate(IRIS_BOUNDS)}
    return Source(bounds | {LABEL: categories(0, 1, 2)}, from_table(bunch.data, bunch.target))


# ---- problems: made up, as many records as are asked for ----


def made_up(
    columns: int,
    limits: tuple[float, float],
    label: str,
    make: Callable[[np.random.Generator, Owners], tuple[Numbers, Numbers]],
    own_truths: bool = False,
) -> Source:
    bounds = {f"v{i}": numbers(*limits) for i in range(columns)} | {LABEL: label}

    def begin(rng: np.random.Generator) -> Draw:
        return lambda owners: Records(*(text(part) for part in make(rng, owners)))

    return Source(bounds, begin, own_truths)


def sigmoid(t: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-t))


def friedman() -> Source:
    """Friedman's first: five of ten columns matter, three of them not linearly."""

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        x = rng.random((len(owners), 10))
        mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
        return x, mean + 10 * x[:, 3] + 5 * x[:, 4] + rng.normal(size=len(x))

    return made_up(10, (0, 1), numbers(0, 30), make)


def own_lines() -> Source:
    """Least squares where each client's line is its own."""
    common = stream(DRAW, "held-out", "own-lines").normal(size=6)

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        x = np.clip(rng.normal(size=(len(owners), 6)), -3, 3)
        slopes = common + 0.5 * own(owners, 6, "own-lines")
        return x, (slopes * x).sum(1) + 0.5 + 0.5 * rng.normal(size=len(x))

    return made_up(6, (-3, 3), numbers(-8, 8), make, own_truths=True)


def own_teachers() -> Source:
    """Logistic regression where each client's truth is its own."""
    common = stream(DRAW, "held-out", "own-teachers").normal(size=8)

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        x = np.clip(rng.normal(size=(len(owners), 8)), -3, 3)
        truth = common + 0.8 * own(owners, 8, "own-teachers")
        return x, (rng.random(len(x)) < sigmoid(1.5 * (truth * x).sum(1) + 0.5)).astype(float)

    return made_up(8, (-3, 3), categories(0, 1), make, own_truths=True)


def own(owners: Owners, size: int, name: str) -> Numbers:
    """What is added to the common truth, the same for all records of a client: [n, size]."""
    clients = range(int(owners.max(initial=0)) + 1)
    added = [
        stream(DRAW, "held-out", name, "client", i, *sampled()).normal(size=size) for i in clients
    ]
    return np.array(added)[owners]


def noisy_labels() -> Source:
    """A quarter of the labels are flipped."""
    rng = stream(DRAW, "held-out", "noisy-labels")
    truth, mixing = rng.normal(size=12), np.eye(12) + 0.4 * rng.normal(size=(12, 12))

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        x = np.clip(rng.normal(size=(len(owners), 12)) @ mixing / 1.5, -3, 3)
        y = x @ truth > 0
        return x, (y ^ (rng.random(len(x)) < 0.25)).astype(float)

    return made_up(12, (-3, 3), categories(0, 1), make)


def mixture() -> Source:
    """Four classes of different size, each a normal distribution."""
    means = 1.3 * stream(DRAW, "held-out", "mixture").normal(size=(4, 8))

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        y = rng.choice(4, len(owners), p=(0.4, 0.3, 0.2, 0.1))
        return means[y] + rng.normal(size=(len(y), 8)), y.astype(float)

    return made_up(8, (-4, 4), categories(0, 1, 2, 3), make)


def rare() -> Source:
    """A label that one record in four or five has, and columns with heavy tails."""
    truth = stream(DRAW, "held-out", "rare").normal(size=15)

    def make(rng: np.random.Generator, owners: Owners) -> tuple[Numbers, Numbers]:
        x = rng.standard_t(4, size=(len(owners), 15))
        return x, (rng.random(len(x)) < sigmoid(x @ truth - 4)).astype(float)

    return made_up(15, (-4, 4), categories(0, 1), make)


def hospitals() -> Source:
    """Invented people in wards, with missing cells: the README's example of version 0.1."""
    bounds = {
        "age": "low = 18\nhigh = 100",
        "days": "low = 0\nhigh = 30\nfill = 5",
        "admissions": "low = 0\nhigh = 10",
        "ward": categories("surgery", "medicine", "geriatrics"),
        "smoker": categories("no", "yes") + '\nfill = "no"',
        LABEL: categories("no", "yes"),
    }

    def begin(rng: np.random.Generator) -> Draw:
        def draw(owners: Owners) -> Records:
            number = len(owners)
            age = np.clip(rng.normal(66, 18, number), 18, 110)
            days = rng.gamma(2, 3.5, number)
            before = rng.poisson(1.2, number)
            ward = rng.choice(["surgery", "medicine", "geriatrics"], number)
            smoker = rng.random(number) < 0.2
            score = 0.05 * (age - 66) + 0.25 * (days - 6) + 1.1 * (before - 1.2)
            score += (ward == "geriatrics") + 0.8 * smoker - 0.7
            back = rng.random(number) < sigmoid(score)
            known = rng.random(number) >= 0.02
            cells = [
                [
                    f"{age[i]:.0f}",
                    f"{days[i]:.1f}" if known[i] else "",
                    str(before[i]),
                    ward[i],
                    "yes" if smoker[i] else "no",
                ]
                for i in range(number)
            ]
            return Records(np.array(cells), np.where(back, "yes", "no"))

        return draw

    return Source(bounds, begin)


TABLES: dict[str, Callable[[], Source]] = {
    "diabetes": diabetes,
    "friedman": friedman,
    "own-lines": own_lines,
    "wine": wine,
    "iris": iris,
    "noisy-labels": noisy_labels,
    "own-teachers": own_teachers,
    "hospitals": hospitals,
    "mixture": mixture,
    "rare": rare,
}

# ---- problems: LIBSVM files, which the task itself deals to clients ----


class Lines(NamedTuple):
    """Lines of LIBSVM text: the private file's, the pool's and the test file's; and the number of
    features."""

    data: list[str]
    pool: list[str]
    test: list[str]
    features: int


@lru_cache(maxsize=4)
def lines_of(name: str) -> tuple[str, ...]:
    return tuple(bz2.open(DATA / "libsvm" / name, "rt").read().splitlines())


def a9a(rng: np.random.Generator, records: int, pool: int) -> Lines:
    lines, test = lines_of("a9a.bz2"), lines_of("a9a.t.bz2")
    chosen = [lines[i] for i in rng.permutation(len(lines))[: pool + records]]
    return Lines(
        chosen[pool:],
        chosen[:pool],
        [test[i] for i in rng.permutation(len(test))[:TEST_RECORDS]],
        123,
    )


def w8a(rng: np.random.Generator, records: int, pool: int) -> Lines:
    """A population in which every fourth record is positive, and the 60 features that are most
    frequent in its public pool."""
    lines = lines_of("w8a.bz2")
    positive = [line for line in lines if line.startswith(("+1", "1"))]
    others = [line for line in lines if not line.startswith(("+1", "1"))]
    negative = [others[i] for i in rng.permutation(len(others))[: 3 * len(positive)]]
    population = [*positive, *negative]
    shuffled = [population[i] for i in rng.permutation(len(population))]
    entries = [[int(word.split(":")[0]) for word in line.split()[1:]] for line in shuffled]
    frequency = np.bincount(np.concatenate(entries[:pool]).astype(int), minlength=301)
    frequent = np.sort(np.argsort(-frequency, kind="stable")[:60])
    place = {int(index): new for new, index in enumerate(frequent, start=1)}
    short = [
        " ".join([line.split()[0], *(f"{place[i]}:1" for i in had if i in place)])
        for line, had in zip(shuffled, entries, strict=True)
    ]
    end = pool + records
    return Lines(short[pool:end], short[:pool], short[end : end + TEST_RECORDS], 60)


FILES: dict[str, Callable[[np.random.Generator, int, int], Lines]] = {"a9a": a9a, "w8a": w8a}

# ---- who holds what ----


def sampled() -> tuple[int, ...]:
    return (SAMPLE,) if SAMPLE else ()


@dataclass(frozen=True)
class Silos:
    """The records of a case: of which problem, how many each client has, how many are a public
    pool, and the label skew among the clients (Dirichlet concentration; None: none)."""

    problem: str
    sizes: tuple[int, ...]
    pool: int = 40
    skew: float | None = None

    @property
    def equal(self) -> bool:
        return len(set(self.sizes)) == 1

    @property
    def name(self) -> str:
        sizes = f"{len(self.sizes)}x{self.sizes[0]}" if self.equal else f"{len(self.sizes)}-unequal"
        skew = "" if self.skew is None else f" dirichlet:{self.skew:g}"
        return f"{self.problem} {sizes}{skew}"

    @property
    def own_truths(self) -> bool:
        return self.problem in TABLES and TABLES[self.problem]().own_truths


def dealt(
    labels: NDArray[np.str_], sizes: tuple[int, ...], skew: float, rng: np.random.Generator
) -> Owners:
    """Whose each record is: every client draws its label distribution from a Dirichlet distribution
    with mean the overall one (Hsu, Qi and Brown 2019), and takes records of these labels as long as
    there are any."""
    kinds, index = np.unique(labels, return_inverse=True)
    left = [list(rng.permutation(np.flatnonzero(index == kind))) for kind in range(len(kinds))]
    overall = np.bincount(index) / len(index)
    owners = np.zeros(len(labels), dtype=np.int64)
    for client in rng.permutation(len(sizes)):
        wanted = rng.dirichlet(skew * overall) + 1e-12
        for _ in range(sizes[client]):
            share = wanted * [len(records) > 0 for records in left]
            owners[left[rng.choice(len(kinds), p=share / share.sum())].pop()] = client
    return owners


def written(silos: Silos, folder: Path) -> dict[str, Any]:
    """Write the files of these silos into the folder; the keywords that name them."""
    return (_lines_written if silos.problem in FILES else _tables_written)(silos, folder)


def _tables_written(silos: Silos, folder: Path) -> dict[str, Any]:
    source = TABLES[silos.problem]()
    rng = stream(DRAW, "held-out", silos.name, silos.pool, *sampled())
    draw, number = source.draw(rng), len(silos.sizes)
    anybody = [rng.integers(number, size=size) for size in (silos.pool, TEST_RECORDS)]
    pool = draw(anybody[0])
    owners = np.repeat(np.arange(number), silos.sizes)
    records = draw(owners)
    if silos.skew is not None:
        owners = dealt(records.labels, silos.sizes, silos.skew, rng)
    test = draw(anybody[1])
    (folder / "bounds.toml").write_text(
        "\n".join(f"[{name}]\n{body}" for name, body in source.bounds.items())
    )
    names = list(source.bounds)
    parts = {"pool.csv": pool, "test.csv": test}
    data = [f"silo-{i:03}.csv" for i in range(number)]
    parts |= {name: records.rows(owners == i) for i, name in enumerate(data)}
    if source.own_truths:  # for studies alone: what a silo's model is worth at home
        parts |= {f"home-{i:03}.csv": draw(np.full(1000, i)) for i in range(number)}
    for name, part in parts.items():
        rows = np.column_stack([part.cells, part.labels])
        (folder / name).write_text("\n".join(map(",".join, [names, *rows])) + "\n")
    return {
        "task": "csv",
        "data": tuple(str(folder / name) for name in data),
        "bounds": str(folder / "bounds.toml"),
        "label": LABEL,
        "proxy": (str(folder / "pool.csv"),),
        "test": (str(folder / "test.csv"),),
    }


def _lines_written(silos: Silos, folder: Path) -> dict[str, Any]:
    rng = stream(DRAW, "held-out", silos.name, silos.pool, *sampled())
    lines = FILES[silos.problem](rng, sum(silos.sizes), silos.pool)
    for name in ("data", "pool", "test"):
        (folder / f"{name}.txt").write_text("\n".join(getattr(lines, name)) + "\n")
    (folder / "bounds.toml").write_text(
        f"[index]\nlow = 1\nhigh = {lines.features}\n[label]\ncategories = [-1, 1]\n"
    )
    return {
        "task": "libsvm",
        "data": (str(folder / "data.txt"),),
        "bounds": str(folder / "bounds.toml"),
        "proxy": (str(folder / "pool.txt"),),
        "test": (str(folder / "test.txt"),),
        "clients": len(silos.sizes),
        "split": "random" if silos.skew is None else f"dirichlet:{silos.skew:g}",
    }


# ---- cases ----


@dataclass(frozen=True)
class Case:
    """A question of a user.

    l2         None: left open, and the answer is judged by its test error
    clip, iterations   None: left open
    said       what the user says of skew; None: nothing
    """

    silos: Silos
    epsilon: float
    unit: str = "client"
    trust: str = "secure-aggregation"
    said: str | float | None = None
    l2: float | None = None
    clip: float | None = None
    iterations: int | None = None

    @property
    def name(self) -> str:
        fixed = [f"C={self.clip:g}"] if self.clip else []
        fixed += [f"T={self.iterations}"] if self.iterations else []
        fixed += [] if self.l2 else ["l2 free"]
        said = [f"said {self.said}"] if self.said is not None else []
        budget = f"eps={self.epsilon:g}"
        return ", ".join([self.silos.name, self.unit, self.trust, budget, *fixed, *said])

    def keywords(self, files: dict[str, Any]) -> dict[str, Any]:
        """What `equipoise.plan` is asked, by a user who knows what the case says."""
        asked: dict[str, Any] = {
            **files,
            "epsilon": self.epsilon,
            "unit": self.unit,
            "trust": self.trust,
        }
        for name in ("l2", "clip", "iterations"):
            if getattr(self, name) is not None:
                asked[name] = getattr(self, name)
        if self.unit == "record" and self.trust == "secure-aggregation":
            asked["noise_in"] = "message"  # the only place where clients can share noise
        if files["task"] == "csv":  # of a LIBSVM file, split says it and sizes are public
            asked["records"] = self.silos.sizes[0] if self.silos.equal else self.silos.sizes
            if self.said is not None:
                asked["skew"] = self.said
        return asked


def cases() -> list[Case]:
    """Fixed before the planner was tuned."""
    record, local = {"unit": "record", "trust": "local"}, {"trust": "local"}
    shared_record = {"unit": "record"}  # under secure aggregation
    twenty = tuple(round(12 * (250 / 12) ** (i / 19)) for i in range(20))  # from 12 to 250
    five = (900, 260, 140, 380, 42)

    def of(problem: str, sizes: tuple[int, ...], pool: int = 40, skew: float | None = None):
        silos = Silos(problem, sizes, pool, skew)
        return lambda epsilon, **said: Case(silos, epsilon, **said)

    diabetes_20, diabetes_5 = of("diabetes", (13,) * 20), of("diabetes", (52,) * 5)
    friedman_20, friedman_100 = of("friedman", (60,) * 20), of("friedman", (20,) * 100, 50)
    friedman_5 = of("friedman", (400, 150, 90, 260, 40), 60)
    lines_20, lines_100 = of("own-lines", (40,) * 20), of("own-lines", (20,) * 100, 50)
    wine_20, wine_5 = of("wine", (4,) * 20), of("wine", (19,) * 5, 36, 0.1)
    iris_20, iris_5 = of("iris", (3,) * 20, 30), of("iris", (13,) * 5, 30)
    a9a_100, a9a_20 = of("a9a", (20,) * 100, 60), of("a9a", (80,) * 20, 60)
    a9a_strong, a9a_mild = of("a9a", (20,) * 100, 60, 0.1), of("a9a", (20,) * 100, 60, 1.0)
    a9a_5 = of("a9a", (200,) * 5, 60)
    w8a_100, w8a_20 = of("w8a", (20,) * 100, 60), of("w8a", (60,) * 20, 60)
    noisy_20, noisy_100 = of("noisy-labels", (50,) * 20), of("noisy-labels", (20,) * 100)
    noisy_5 = of("noisy-labels", (150,) * 5, 60)
    teachers_20, teachers_100 = of("own-teachers", (60,) * 20), of("own-teachers", (25,) * 100)
    teachers_5 = of("own-teachers", (150,) * 5, 60)
    hospitals_5, hospitals_20 = of("hospitals", five), of("hospitals", twenty)
    mixture_20, mixture_5 = of("mixture", (50,) * 20), of("mixture", (100,) * 5, 40, 0.1)
    mixture_strong, mixture_mild = (of("mixture", (50,) * 20, 40, skew) for skew in (0.1, 1.0))
    mixture_100 = of("mixture", (20,) * 100, 50, 0.1)
    rare_20, rare_100 = of("rare", (60,) * 20, 50, 0.1), of("rare", (20,) * 100, 60, 1.0)
    rare_unequal, rare_5 = of("rare", twenty, 50, 1.0), of("rare", (200,) * 5, 50, 0.1)
    return [
        diabetes_20(2, said="none", l2=1e-3),
        diabetes_20(6, said="none", l2=1e-3, iterations=64),
        diabetes_20(3, l2=1e-3, **record),
        diabetes_5(1, said="none", l2=1e-3, **record),
        diabetes_5(2, said="none", l2=1e-3, **shared_record),
        diabetes_5(1, said="none", l2=1e-3, **local),
        diabetes_5(10, l2=1e-3),
        friedman_20(1, said="none", l2=1e-3),
        friedman_20(3.3, said="none", l2=1e-3, clip=0.3),
        friedman_20(2, said="none"),
        friedman_100(3.3, l2=1e-3, **local),
        friedman_100(0.5, said="none", l2=1e-3),
        friedman_5(0.5, said="none", l2=1e-3, **record),
        lines_20(3.3, l2=1e-2),
        lines_20(1, l2=1e-2, **record),
        lines_100(5, l2=1e-2, **local),
        wine_20(3.3, said="none", l2=3e-3),
        wine_20(6, said="none", l2=3e-3, clip=0.5),
        wine_5(2, said="strong", l2=3e-3, **record),
        wine_5(4, l2=3e-3, **record),
        iris_20(3.3, said="none", l2=1e-3),
        iris_5(4, l2=1e-3, **record),
        iris_5(10, said="none", l2=1e-3),
        a9a_100(1, l2=1e-3),
        a9a_100(6, l2=1e-3, **local),
        a9a_strong(2, l2=1e-3),
        a9a_mild(1, l2=1e-3, iterations=64),
        a9a_20(1, l2=1e-3, **record),
        a9a_20(5),
        a9a_5(1, l2=1e-3, **shared_record),
        w8a_100(1, l2=1e-4),
        w8a_20(1, l2=1e-4, **record),
        w8a_20(4, l2=1e-4, clip=0.3),
        noisy_20(1, said="none", l2=1e-3),
        noisy_20(4, said="none", l2=1e-3, iterations=32),
        noisy_100(3, l2=1e-3, **local),
        noisy_5(0.5, said="none", l2=1e-3, **record),
        noisy_5(2, said="none", l2=1e-3, **local),
        teachers_20(2, l2=1e-3),
        teachers_20(1, l2=1e-3, **record),
        teachers_100(5, l2=1e-3, clip=0.2, **local),
        teachers_5(1, l2=1e-3, **record),
        hospitals_5(1, said="none", l2=1e-3, **record),
        hospitals_5(4, said="none", l2=1e-3, clip=0.3, **record),
        hospitals_5(2, said="none", **record),
        hospitals_5(2, said="none", l2=1e-3, **shared_record),
        hospitals_5(10, said="none", l2=1e-3),
        hospitals_5(1, said="none", l2=1e-3, **local),
        hospitals_20(2, said="none", l2=1e-3),
        hospitals_20(1, l2=1e-3),
        mixture_strong(3, said="strong", l2=1e-3),
        mixture_strong(5, l2=1e-3),
        mixture_mild(2, said="mild", l2=1e-3),
        mixture_mild(4, l2=1e-3, clip=0.3),
        mixture_20(3, said="none"),
        mixture_100(6, said="strong", l2=1e-3, **local),
        mixture_5(1, l2=1e-3, **record),
        rare_20(1, said="strong", l2=3e-4),
        rare_20(4, l2=3e-4),
        rare_100(0.5, said="mild", l2=3e-4),
        rare_100(3, l2=3e-4, **local),
        rare_unequal(2, said="mild", l2=3e-4),
        rare_unequal(1, said="mild", l2=3e-4, **record),
        rare_5(0.5, said=0.1, l2=3e-4, **record),
    ]


# ---- brute force, and what costs nothing ----


def task_of(case: Case, files: dict[str, Any], l2: float | None) -> Task:
    """The task with its private records."""
    said = {name: value for name, value in files.items() if name != "task"}
    return load_task(files["task"], TaskOptions(**said, l2=l2, unit=case.unit))


def arena_of(
    case: Case, files: dict[str, Any], l2: float | None, public_l2: float | None = None
) -> Arena:
    promise = {"unit": case.unit, "trust": case.trust, "epsilon": case.epsilon, "delta": DELTA}
    return Arena(replace(task_of(case, files, l2), public_l2=public_l2), **promise)


def arena_to_search(case: Case, files: dict[str, Any], l2: float | None) -> Arena:
    """Its public model is the one that anybody would take who has the public records: with the
    regulariser that cross-validation likes best, and none weaker than the clients' own."""
    arena = arena_of(case, files, l2)
    pool, link = cast(Table, arena.task.pool), arena.clients.link
    public = linear_clients([pool], link, arena.clients.l2, None, 0)
    l2s = [arena.clients.l2, *(l2 for l2 in PUBLIC_L2S if l2 > arena.clients.l2)]
    return arena_of(case, files, l2, l2s[int(cross_validated(public, l2s).argmin())])


def field_of(case: Case, files: dict[str, Any]) -> Field:
    places = ("message",)
    if case.unit == "record" and case.trust == "local":
        places = ("gradient", "message", "hidden-gradient")
    return Field(
        cache(lambda l2: arena_to_search(case, files, l2)),
        (case.l2,) if case.l2 else L2S,
        case.clip,
        case.iterations,
        places,
    )


def best(case: Case, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The best that brute force finds, by itself or near the best known; and what costs no
    privacy."""
    with TemporaryDirectory() as folder:
        files = written(case.silos, Path(folder))
        field = field_of(case, files)
        if known:
            names = [entry.name for entry in fields(Candidate)]
            begin = Candidate(**{name: known[name] for name in names})
            found = search_near(field, begin, SECONDS)
        else:
            found = search(field, SECONDS)
        won = found[0].candidate
        arena = field.arena(won.l2)
        return {
            "best": {**won.told(), **worth(arena, won).told()},
            "kinds": best_of_kinds(found),
            "start": of_model(arena, arena.task.x0),
            "constant": {"error": arena.task.constant_error},
            "public": of_model(arena, arena.public),
            "alone": alone_errors(case, arena, files),
            "optimum": of_model(arena, arena.best),  # without privacy
        }


def best_of_kinds(found: list[Found]) -> dict[str, float]:
    """What is left by the best of each algorithm, start, place of the noise and return."""
    least: dict[str, float] = {}
    for candidate, value in found:  # the best first
        start = "warm" if candidate.warm_start else "cold"
        kind = f"{candidate.algorithm} {start} {candidate.noise_in} {candidate.returns}"
        least.setdefault(kind, value)
    return least


def alone_errors(case: Case, arena: Arena, files: dict[str, Any]) -> dict[str, float]:
    """The test error of each silo's own model: the mean over silos, and that of the smallest. Where
    truths are their own, each is tested at home."""
    models = alone(arena.clients)
    if case.silos.own_truths:
        bounds = Path(files["bounds"]).read_text()
        homes = [
            Path(path).parent / Path(path).name.replace("silo", "home") for path in files["data"]
        ]
        measures = [tables_measure((str(home),), bounds, LABEL) for home in homes]
        errors = [float(at_home(x).error) for at_home, x in zip(measures, models, strict=True)]
    else:
        errors = arena.test(models)[0].tolist()
    sizes = arena.clients.sizes
    return {"error": float(np.mean(errors)), "smallest": errors[sizes.index(min(sizes))]}


# ---- plans, and what they are worth ----


def answer(asked: dict[str, Any]) -> Plan:
    """The plan; without what this version of the planner does not know."""
    understood = equipoise.Question.model_fields
    known = {name: value for name, value in asked.items() if name in understood}
    records = known.get("records")
    if isinstance(records, tuple) and "tuple" not in str(understood["records"].annotation):
        known["records"] = round(float(np.mean(records)))
    return equipoise.plan(**known)


def planned(case: Case) -> dict[str, Any]:
    """What the planner says, and what its settings are worth on the private clients."""
    with TemporaryDirectory() as folder:
        files = written(case.silos, Path(folder))
        begin = time.process_time()
        plan = answer(case.keywords(files))
        seconds = time.process_time() - begin
        told = {
            "verdict": plan.verdict,
            "reason": plan.reason,
            "planning_seconds": round(seconds, 2),
            "predicted": plan.predicted.model_dump(mode="json") if plan.predicted else {},
        }
        if plan.settings is None:
            return told | {"settings": None, "realised": None}
        arena = arena_of(case, files, plan.settings.l2, plan.settings.public_l2)
        candidate = candidate_of(plan.settings, arena)
        return told | {"settings": candidate.told(), "realised": worth(arena, candidate).told()}


# ---- what could be known at best ----

FRESH = 16  # samples


def informed(case: Case) -> dict[str, Any]:
    """What the planner's own search chooses in worlds that are fresh samples of the true
    population: nobody knows more than that of records that are private."""
    global SAMPLE  # noqa: PLW0603
    with TemporaryDirectory() as folder:
        rows, pools = [], []
        for sample in range(1, FRESH + 1):
            SAMPLE = sample
            arena = arena_to_search(case, written(case.silos, Path(folder)), case.l2)
            start, least = arena.task.x0.float(), arena.best.float()
            world = World(NO_SKEW, arena.clients.single(), start, least, arena.public.float())
            rows.append(world)
            pools.append(longest_step(arena.clients))
        SAMPLE = 0
        files = written(case.silos, Path(folder))
        arena = arena_to_search(case, files, case.l2)
        width = max(cast(LinearClients, row.clients).features.shape[1] for row in rows)
        rows = [
            replace(row, clients=cast(LinearClients, row.clients).padded(width)) for row in rows
        ]
        longest = max(min(pools), 1 / cast(float, arena.task.L))
        known = Worlds(
            tuple(rows), arena.clients.sizes, arena.task.x0.float(), longest, "real records", ()
        )
        question = Question.of(**case.keywords(files))
        promise = question.promise(case.epsilon)
        facts = arena.facts._replace(sizes=arena.clients.sizes)
        problem: PlanningProblem
        if case.unit == "record":
            problem = RecordProblem(question, known, promise, facts)
        else:
            problem = ClientProblem(question, known, promise, facts, question.mechanisms[0])
        (best,) = search_plans(problem, effort_of(known)).best(1)
        settings = settings_of(best.candidate, promise, task=arena.task.name)
        candidate = candidate_of(settings, arena)
        return {
            "verdict": "train",
            "predicted": {"excess_loss": best.mean},
            "settings": candidate.told(),
            "realised": worth(arena, candidate).told(),
        }


def candidate_of(settings: Settings, arena: Arena) -> Candidate:
    run = settings.resolve(arena.facts)
    return Candidate(
        run.algorithm,
        run.eta,
        run.local_steps,
        run.iterations // run.local_steps,
        run.clip,
        run.gamma,
        run.noise_in,
        run.warm_start,
        getattr(settings, "returns", None) or "last",
        str(run.options.get("h_update", "paper")),
        arena.l2,
    )


# ---- the table ----


class Outcome(NamedTuple):
    """A case with what brute force found and what was planned."""

    case: Case
    best: dict[str, Any]
    plan: dict[str, Any]

    @property
    def by_error(self) -> bool:
        return self.case.l2 is None

    @property
    def what(self) -> str:
        return "error" if self.by_error else "excess"

    @property
    def realised(self) -> float:
        """Of the plan's settings; without settings, of what it says instead."""
        if self.plan["realised"]:
            return self.plan["realised"][self.what]
        return self.best["public" if "public" in self.plan["verdict"] else "start"][self.what]

    @property
    def known(self) -> float:
        return min(self.best["best"][self.what], self.realised)

    @property
    def ratio(self) -> float:
        return self.realised / self.known

    @property
    def trainable(self) -> bool:
        return self.known < 0.9 * self.best["constant" if self.by_error else "start"][self.what]

    # ---- verdicts, by the test error ----

    @property
    def free(self) -> tuple[str, float]:
        """The best of what costs no privacy, and its error."""
        names = ("start", "constant", "public", "alone")
        name = min(names, key=lambda name: self.best[name]["error"])
        return name, self.best[name]["error"]

    @property
    def scale(self) -> float:
        """Of errors: shares are their own; a root mean squared error is one of the constant's."""
        return 1.0 if self.best["constant"]["error"] < 1 else self.best["constant"]["error"]

    @property
    def interval(self) -> tuple[float, float] | None:
        predicted = self.plan["predicted"]
        low, high = predicted.get("test_error_low"), predicted.get("test_error_high")
        return None if low is None or high is None else (low, high)

    @property
    def inside(self) -> float | None:
        """The share of seeds whose error the plan's interval holds."""
        if not self.interval or not self.plan["realised"]:
            return None
        low, high = self.interval
        errors = np.array(self.plan["realised"]["errors"])
        return float(np.mean((errors >= low - 1e-9) & (errors <= high + 1e-9)))

    @property
    def says(self) -> str:
        """`train`, `undecided`, or `not`."""
        verdict = self.plan["verdict"].lower()
        if any(word in verdict for word in ("inconclusive", "cannot", "undecided")):
            return "undecided"
        return "train" if verdict.startswith(("train", "federated")) else "not"

    @property
    def behind(self) -> float:
        """How much worse than the best free option the realised error is, in units of scale."""
        realised = self.plan["realised"]["error"] if self.plan["realised"] else math.nan
        return (realised - self.free[1]) / self.scale

    @property
    def half_width(self) -> float:
        return (self.interval[1] - self.interval[0]) / 2 / self.scale if self.interval else 0.0

    @property
    def wrongly_train(self) -> bool:
        return self.says == "train" and self.behind > self.half_width

    @property
    def wrongly_not(self) -> bool:
        return self.says == "not" and self.behind < -0.01


def groups(outcome: Outcome) -> list[str]:
    case, silos = outcome.case, outcome.case.silos
    skew = f"Dirichlet {silos.skew:g}" if silos.skew else "no label skew"
    said = case.said is not None or silos.problem in FILES
    return [
        f"unit {case.unit}",
        f"trust {case.trust}",
        "own truths" if silos.own_truths else skew,
        *(["skewed, said" if said else "skewed, not said"] if silos.skew else []),
        "equal sizes" if silos.equal else "unequal sizes",
        f"{len(silos.sizes)} clients",
        "C or T fixed" if case.clip or case.iterations else "C and T free",
        *(["l2 free, by error"] if outcome.by_error else []),
    ]


def row(name: str, ratios: list[float]) -> str:
    r = np.array(ratios)
    figures = " | ".join(f"{x:.3f}" for x in (np.median(r), np.quantile(r, 0.9), r.max()))
    return f"| {name} | {len(r)} | {figures} | {np.mean(r <= 1.05):.0%} |"


def table() -> str:
    bests, plans = done("best"), done("plans")
    by_name = {case.name: case for case in cases()}
    failed = [name for name, plan in plans.items() if "error" in plan]
    both = [
        Outcome(case, bests[name], plans[name])
        for name, case in by_name.items()
        if name in bests and name in plans and name not in failed
    ]
    lines = [
        f"{len(by_name)} cases: brute force for {len(bests)}, plans for {len(plans)}, of which "
        f"{len(failed)} failed"
    ]
    lines += [f"failed: {name}: {plans[name]['error']}" for name in failed]
    trainable = [outcome for outcome in both if outcome.trainable]
    if not trainable:
        return "\n".join(lines)
    of_groups: dict[str, list[float]] = {}
    for outcome in trainable:
        for name in groups(outcome):
            of_groups.setdefault(name, []).append(outcome.ratio)
    lines += [
        "",
        "| plan / best known | cases | median | p90 | max | within 5 % |",
        "|---" * 6 + "|",
    ]
    lines.append(row("all trainable", [outcome.ratio for outcome in trainable]))
    lines += [row(name, ratios) for name, ratios in sorted(of_groups.items())]
    if informed_ := done("informed"):
        lines += _of_informed([o for o in trainable if o.case.name in informed_], informed_)
    lines += ["", *_of_predictions(both), "", *_of_verdicts(both), "", "the worst five:"]
    for outcome in sorted(trainable, key=lambda outcome: -outcome.ratio)[:5]:
        lines += [
            f"- {outcome.ratio:.3f} {outcome.case.name}; start {outcome.best['start']}",
            f"  plan: {_told(outcome.plan['settings'], outcome.plan['realised'])}",
            f"  best: {_told(outcome.best['best'], outcome.best['best'])}",
        ]
    return "\n".join(lines)


def _of_informed(both: list[Outcome], informed_: dict[str, dict[str, Any]]) -> list[str]:
    """The planner beside its own search in worlds of the true population, on the same cases."""
    others = [outcome._replace(plan=informed_[outcome.case.name]) for outcome in both]
    known = [min(a.known, b.known) for a, b in zip(both, others, strict=True)]
    pairs = [("the planner, where records can be drawn again", both)]
    pairs.append(("the same search, knowing the population", others))
    return [
        row(name, [o.realised / least for o, least in zip(outcomes, known, strict=True)])
        for name, outcomes in pairs
    ]


def _told(settings: dict[str, Any] | None, realised: dict[str, Any] | None) -> str:
    if not settings or not realised:
        return "no settings"
    return (
        f"excess {realised['excess']:.4g}, error {realised['error']:.4g}: {settings['algorithm']}, "
        f"K = {settings['rounds']}, tau = {settings['local_steps']}, C = {settings['clip']:.3g}, "
        f"eta = {settings['eta']:.3g}, gamma = {settings['gamma']:.3g}, l2 = {settings['l2']:g}, "
        f"noise in {settings['noise_in']}, {'warm' if settings['warm_start'] else 'cold'}, "
        f"{settings['returns']}"
    )


def _of_predictions(both: list[Outcome]) -> list[str]:
    inside = [outcome.inside for outcome in both if outcome.inside is not None]
    if not inside:
        return ["no plan has an interval of the test error"]
    means = [
        outcome.interval[0] <= outcome.plan["realised"]["error"] <= outcome.interval[1]
        for outcome in both
        if outcome.inside is not None
    ]
    widths = [2 * outcome.half_width for outcome in both if outcome.inside is not None]
    return [
        f"the plan's interval of the test error holds {np.mean(inside):.1%} of the realised errors "
        f"(seeds of {len(inside)} cases), and the mean in {np.mean(means):.1%} of the cases; its "
        f"width: median {np.median(widths):.3f}",
        _of_excess(both),
    ]


def _of_excess(both: list[Outcome]) -> str:
    ratios, inside = [], []
    for outcome in both:
        predicted, realised = outcome.plan["predicted"], outcome.plan["realised"]["excess"]
        if predicted.get("excess_loss") is not None:
            ratios.append(realised / predicted["excess_loss"])
            inside.append(predicted["excess_loss_low"] <= realised <= predicted["excess_loss_high"])
    return (
        f"that of the excess loss holds {sum(inside)} of {len(inside)} realised means; realised "
        f"over predicted excess loss: median {np.median(ratios):.2f}, from {min(ratios):.2f} to "
        f"{max(ratios):.2f}"
    )


def _of_verdicts(both: list[Outcome]) -> list[str]:
    said = {says: [o for o in both if o.says == says] for says in ("train", "not", "undecided")}
    wrong = [o for o in said["train"] if o.wrongly_train]
    missed = [o for o in said["not"] if o.wrongly_not]
    lines = [
        f"verdicts: {len(said['train'])} train, {len(said['not'])} do not (or alone, or public), "
        f"{len(said['undecided'])} undecided",
        f"train, though the best free option is better beyond the interval: {len(wrong)} (better "
        f"at all: {sum(o.behind > 0 for o in said['train'])})",
        f"do not, though training would be better by more than 0.01: {len(missed)} of "
        f"{len(said['not'])}",
    ]
    for outcome in [*wrong, *missed]:
        name, error = outcome.free
        realised = outcome.plan["realised"]["error"]
        lines.append(
            f"- {outcome.plan['verdict']}: {outcome.case.name}: realised {realised:.4g}, {name} "
            f"{error:.4g}, interval {outcome.interval}"
        )
    return lines


# ---- the engine against the product ----


def check() -> str:
    """Mean excess losses of 30 runs of the product and of 128 of brute.py, for settings of every
    kind: they agree within a few standard errors."""
    five, twenty = Silos("hospitals", (90, 26, 14, 38, 12)), Silos("wine", (4,) * 20)
    client = {"clip": 0.4, "eta": 1.0}
    record = {"unit": "record", "trust": "local", "eta": 1.5, "clip": 0.3}
    shared = {"trust": "secure-aggregation"}
    kinds = [
        (twenty, 4, client | shared | {"local_steps": 4, "iterations": 48, "gamma": 0.5}),
        (twenty, 8, client | {"algorithm": SCAFFNEW, "local_steps": 8, "iterations": 64}),
        (five, 9, client | shared | {"algorithm": SCAFFNEW, "local_steps": 4, "iterations": 24}),
        (five, 2, record | {"noise_in": "gradient", "iterations": 24}),
        (five, 4, record | {"noise_in": "gradient", "local_steps": 4, "iterations": 24}),
        (five, 4, record | {"noise_in": "hidden-gradient", "local_steps": 8, "iterations": 24}),
        (five, 4, record | {"noise_in": "message", "local_steps": 8, "iterations": 32}),
        (five, 4, record | shared | {"noise_in": "message", "local_steps": 8, "iterations": 32}),
    ]
    lines = []
    for number, (silos, epsilon, chosen) in enumerate(kinds):
        said = {"trust": "local", "unit": "client", "epsilon": epsilon, **chosen}
        case = Case(silos, epsilon, said["unit"], said["trust"], l2=1e-3)
        with TemporaryDirectory() as folder:
            files = written(silos, Path(folder))
            arena = arena_of(case, files, case.l2)
            settings = Settings.of(**files, **said, l2=case.l2, warm_start=number % 2 == 1)
            models = [
                list(equipoise.rounds(settings.model_copy(update={"simulate_noise_seed": seed})))
                for seed in range(30)
            ]
        cubes = torch.arange(1, len(models[0]) + 1, dtype=torch.float64) ** 3
        paths = torch.stack([torch.stack([each.x for each in path]) for path in models])
        product = {
            "last": arena.excess(paths[:, -1]),
            "average": arena.excess((paths * (cubes / cubes.sum())[:, None]).sum(1)),
        }
        candidate = candidate_of(settings, arena)
        for returns, theirs in product.items():
            ours = worth(arena, replace(candidate, returns=returns))
            spread = math.hypot(float(theirs.std()) / math.sqrt(len(theirs)), ours.excess_se)
            apart = (float(theirs.mean()) - ours.excess) / spread
            lines.append(
                f"{said['unit']:6} {said['trust']:18} {candidate.algorithm:11} noise in "
                f"{candidate.noise_in:15} {candidate.rounds:2} x {candidate.local_steps} "
                f"{returns:7}: product {float(theirs.mean()):.5f}, brute {ours.excess:.5f}, "
                f"{apart:+.1f} standard errors"
            )
    return "\n".join(lines)


# ---- the command ----


def done(kind: str) -> dict[str, dict[str, Any]]:
    """The line of each case; of several that brute force wrote, the best."""
    file = RESULTS / f"held-out-{kind}-{DRAW}.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if kind == "best":
        what = {case.name: "excess" if case.l2 else "error" for case in cases()}
        lines.sort(key=lambda line: -line["best"][what[line["case"]]])
    return {line["case"]: line for line in lines}


def complete(
    kind: str, work: Callable[..., dict[str, Any]], wanted: list[Case], again: bool = False
) -> None:
    """Work on the wanted cases that are not done, or `again` on those that are; a line is written
    as each ends."""
    RESULTS.mkdir(exist_ok=True)
    ended = done(kind)
    left = [case for case in wanted if (case.name in ended) == again]
    for number, case in enumerate(left, start=1):
        if not again and case.name in done(kind):  # by another process, from the other end
            continue
        begin = time.process_time()
        try:
            result = work(case, ended[case.name]["best"]) if again else work(case)
        except equipoise.EquipoiseError as refusal:
            result = {"error": str(refusal)}
        seconds = round(time.process_time() - begin, 1)
        with (RESULTS / f"held-out-{kind}-{DRAW}.jsonl").open("a") as file:
            file.write(json.dumps({"case": case.name, "seconds": seconds, **result}) + "\n")
        print(f"{kind} {number}/{len(left)}: {case.name}: {seconds} s", flush=True)


def main() -> None:
    global DRAW  # noqa: PLW0603
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--best", action="store_true", help="brute force")
    parser.add_argument(
        "--again", action="store_true", help="brute force once more, near the best that is known"
    )
    parser.add_argument("--plans", action="store_true", help="plans, and what they are worth")
    parser.add_argument(
        "--informed",
        action="store_true",
        help="plans by the same search that know the population, of problems that can be drawn "
        "again and have l2 fixed",
    )
    parser.add_argument("--table", action="store_true", help="print the table of what is done")
    parser.add_argument("--check", action="store_true", help="compare brute.py with the product")
    parser.add_argument("--only", nargs="+", default=[], help="words in the names of cases")
    parser.add_argument(
        "--draw", type=int, default=DRAW, help="of all problems' records, truths and pools"
    )
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), help="the i-th of n parts of the cases"
    )
    parser.add_argument("--backwards", action="store_true", help="the last case first")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    DRAW = arguments.draw
    wanted = [case for case in cases() if all(word in case.name for word in arguments.only)]
    part, parts = arguments.part
    wanted = wanted[part::parts]
    if arguments.backwards:
        wanted = wanted[::-1]
    work = arguments.best or arguments.again or arguments.plans or arguments.informed
    if work and not (DATA / "libsvm").is_dir():
        sys.exit("a9a.bz2, a9a.t.bz2 and w8a.bz2 are wanted in $EQUIPOISE_DATA/libsvm")
    if arguments.check:
        print(check())
    if arguments.best:
        complete("best", best, wanted)
    if arguments.again:
        complete("best", best, wanted, again=True)
    if arguments.plans:
        complete("plans", planned, wanted)
    if arguments.informed:
        again = [c for c in wanted if c.l2 and c.silos.problem not in ("diabetes", "wine", "iris")]
        complete("informed", informed, again)
    if arguments.table or not (work or arguments.check):
        print(table())


if __name__ == "__main__":
    main()

"""How good are the plans, on the problems with which the planner was developed? Each against a
dense brute-force grid on the private clients, which no planner sees. The problems that nobody tuned
it on are in held_out.py; `make bench-planner` runs both.

    python benchmarks/planner.py    # resumable; a line for every case goes to benchmarks/results/
    python benchmarks/planner.py --table

After a change of the planner delete results/planned.jsonl and results/proxies.jsonl; brute force
does not depend on it.

A case is a problem, a budget, a clip and an algorithm. Brute force tried eta x tau x K on the
private clients from a cold start, with the last model returned and gamma = 1 (12 seeds, and the
best 20 again with 300; digits, whose seeds differ little: 2 seeds, the best 12 with 12, the best 3
with 100). Every planner's choice is tried with fresh seeds, as many. Told is the final excess loss
over the best one known from a cold start: what a warm start and averages gain is below 1.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from equipoise.paper.corollary import corollary_1
from equipoise.planning.bounds import Problem, corrected_plan, displacement_law
from equipoise.planning.candidates import Candidate
from equipoise.planning.plan import Question
from equipoise.planning.problems import ClientProblem
from equipoise.planning.search import effort_of, search
from equipoise.planning.trial import try_all
from equipoise.planning.worlds import NO_SKEW, World, Worlds, known_of, worlds_of
from equipoise.privacy.mechanisms.catalogue import mechanism
from equipoise.privacy.promise import Promise
from equipoise.seeds import stream
from equipoise.tasks import Task, TaskOptions, libsvm, libsvm_text, load_task
from equipoise.tasks.linear import LOGISTIC, linear_task
from equipoise.tasks.public import minimiser, public_model
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results"

HELD_OUT = ("digits", "mushrooms")
CLIPS = {
    "quadratic": (0.05, 0.2, 1.0),
    "breast-cancer": (0.3, 1.0, 3.0),
    "phishing": (0.3, 1.0, 3.0),
    "digits": (0.3, 1.0, 3.0),
    "mushrooms": (0.3, 1.0, 3.0),
}
BUDGETS = (
    ("secure-aggregation", 1.0),
    ("secure-aggregation", 2.0),
    ("secure-aggregation", 3.3),
    ("local", 10.0),
)
ALGORITHMS = ("dp-fedavg", "dp-scaffnew")
PACES = (1, 2, 4, 8, 16, 32)
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LONGEST = 512
SEEDS, FEW_SEEDS = 300, 100  # few in many dimensions, where seeds differ little
Case = tuple[str, str, float, float, str]


@lru_cache(maxsize=8)
def task_of(name: str, pool_records: int = 40, shifted: bool = False) -> Task:
    """The private clients and a public pool. A shifted pool has its features rescaled by factors
    between 0.5 and 1.5, and 15 % of its labels flipped."""
    if name == "quadratic":
        return load_task("quadratic", TaskOptions())
    if name in ("breast-cancer", "digits"):
        task = load_task(name, TaskOptions(public_records=pool_records))
    else:  # 20 clients with 19 records each, of a LIBSVM file
        lines = libsvm_text.read_lines(str(DATA / "libsvm" / f"{name}.bz2"))
        table, labels = libsvm._coded(lines, libsvm._found([lines]))
        chosen = stream(0, "bench", name).permutation(len(labels))[: 380 + pool_records]
        table = table.rows(chosen)
        pool = table.rows(np.arange(pool_records))
        parts = np.arange(pool_records, pool_records + 380).reshape(20, 19)
        tables = [table.rows(part) for part in parts]
        options = TaskOptions(l2=0.01)
        task = linear_task(
            "libsvm", (tables, pool), None, LOGISTIC, 0.01, 1.0, options, (), iterations=64
        )
    if shifted:
        pool, rng = task.pool, stream(0, "shift", name)
        factors = np.append(rng.uniform(0.5, 1.5, pool.features.shape[1] - 1), 1.0)
        flipped = np.where(rng.random((pool_records, 1)) < 0.15, 1 - pool.targets, pool.targets)
        task = replace(task, pool=Table(pool.features * factors, flipped))
    return task


def private_world(task: Task) -> Worlds:
    """The private clients, as one world."""
    public = None if task.pool is None else public_model(task).float()
    best = minimiser(task.clients, task.x0).float()
    row = World(NO_SKEW, task.clients.single(), task.x0.float(), best, public)
    return Worlds((row,), task.clients.sizes, task.x0.float(), 1 / task.L, "real records", ())


def problem(case: Case, task: Task, worlds: Worlds) -> ClientProblem:
    _, trust, epsilon, clip, algorithm = case
    question = Question.of(
        task=task.name, epsilon=epsilon, clip=clip, algorithm=algorithm, trust=trust
    )
    promise = promise_of(case)
    return ClientProblem(question, worlds, promise, task.facts("client"), mechanism("client"))


@lru_cache(maxsize=4)
def public_worlds(name: str, pool_records: int = 40, shifted: bool = False) -> Worlds:
    task = task_of(name, pool_records, shifted)
    return worlds_of(task, known_of(task, None, None), 8 if name == "digits" else 16, 0)


def planned_by(case: Case, worlds: Worlds) -> dict[str, Candidate]:
    """What the planner chooses: all it can do, and without a warm start and averages."""
    task = task_of(case[0])
    searched = search(problem(case, task, worlds), effort_of(worlds))

    def plain(candidate: Candidate) -> bool:
        return not candidate.warm and candidate.returns == "last"

    chosen = {"plan": searched.best(1)[0], "cold, last model": searched.best(1, plain)[0]}
    return {name: trial.candidate for name, trial in chosen.items()}


def closed_forms(task: Task, algorithm: str, clip: float, promise: Promise) -> dict[str, Candidate]:
    """The bounds with the true constants, and the displacement law with the true gradients: more
    than a user would know."""
    x0, best, clients = task.x0, minimiser(task.clients, task.x0), len(task.clients.sizes)
    r0 = float((best - x0).norm())
    slopes = task.clients.gradient(best.expand(clients, -1), 0)
    zeta = math.sqrt(float(slopes.square().sum(-1).mean()))
    known = Problem(task.mu, task.L, len(x0), promise, clients, clip, r0=r0, zeta=zeta)
    found = {}
    for name, proposal in (
        ("printed corollary", corollary_1(known)),
        ("corrected bound", corrected_plan(known)),
    ):
        tau = max(1, round(proposal.local_steps))
        K = 0 if proposal.iterations <= 0 else min(max(1, round(proposal.rounds)), 4096 // tau)
        found[name] = Candidate(algorithm, proposal.eta, tau, K, clip, 1.0)
    gradients = task.clients.gradient(x0.expand(clients, -1), 0)
    norms = gradients.norm(dim=-1, keepdim=True)
    u, H = -(gradients / norms).mean(0), task.clients.hessians(x0 + 0.7 * (best - x0)).mean(0)
    law = displacement_law(
        float(-gradients.mean(0) @ u), float(u @ H @ u), float(H.trace()), promise, clients
    )
    tau = min(32, max(1, math.ceil(2 * clip * task.L / float(norms.median()))))
    found["displacement law"] = Candidate(
        algorithm,
        1 / task.L,
        tau,
        min(law.rounds(clip), 4096 // tau),
        clip,
        law.gamma(clip),
    )
    return found


def excesses(case: Case, candidates: list[Candidate], seeds: int) -> list[float]:
    """Means on the private clients, with the same seeds for all; K = 0 is not to train."""
    task = task_of(case[0])
    worlds = private_world(task)
    private = problem(case, task, worlds)
    values = {c: [] for c in map(name_of, candidates)}
    for first in range(10**6, 10**6 + seeds, 50):
        few = range(first, min(first + 50, 10**6 + seeds))
        tried = [replace(c, returns="last") for c in candidates if c.rounds]
        for trial in try_all(worlds, tried, private.level, few):
            values.get(name_of(trial.candidate), []).append(trial.excess)
    start = float(worlds.rows[0].excess(worlds.x0))
    return [
        float(torch.cat(values[name_of(c)], 1).mean()) if c.rounds else start for c in candidates
    ]


def name_of(candidate: Candidate) -> str:
    return repr(replace(candidate, noise_in="message"))


def brute_force(case: Case) -> dict:
    """The best of a dense grid on the private clients: cold, gamma = 1, the last model."""
    torch.set_num_threads(1)
    name, _, _, clip, algorithm = case
    task = task_of(name)
    grid = [
        Candidate(algorithm, eta / task.L, tau, K, clip, 1.0, "message")
        for eta in (1, 0.25)
        for tau in PACES
        for K in ROUNDS
        if K * tau <= LONGEST
    ]
    large = task.dimension > 150
    for seeds, keep in ((2, 12), (12, 3), (FEW_SEEDS, 1)) if large else ((12, 20), (SEEDS, 1)):
        values = excesses(case, grid, seeds)
        order = sorted(range(len(grid)), key=values.__getitem__)[:keep]
        grid, values = [grid[i] for i in order], [values[i] for i in order]
    (start,) = excesses(case, [replace(grid[0], rounds=0)], 1)
    return {"case": list(case), "start": start, **told(grid[0], values[0])}


def planned(case: Case) -> dict:
    """What every planner chooses, tried on the private clients."""
    torch.set_num_threads(1)
    name, _, _, clip, algorithm = case
    task = task_of(name)
    chosen = {
        **planned_by(case, public_worlds(name)),
        **closed_forms(task, algorithm, clip, promise_of(case)),
    }
    large = task.dimension > 150
    bounds = ("printed corollary", "corrected bound")  # may ask for thousands of steps
    seeds = {
        planner: (20 if planner in bounds else FEW_SEEDS) if large else SEEDS for planner in chosen
    }
    values = {
        planner: told(c, *excesses(case, [c], seeds[planner])) for planner, c in chosen.items()
    }
    return {"case": list(case), "planners": values}


def told(candidate: Candidate, value: float) -> dict:
    names = ("local_steps", "rounds", "eta", "gamma", "warm", "returns")
    return {"excess": value, **{name: getattr(candidate, name) for name in names}}


def promise_of(case: Case) -> Promise:
    _, trust, epsilon, _, _ = case
    return Promise(epsilon, 1e-5, trust=trust)


PROXIES = {
    "40 records": (40, False),
    "15 records": (15, False),
    "40 shifted": (40, True),
    "15 shifted": (15, True),
}


def proxied(case: Case) -> dict:
    """The planner on worse pools, from a cold start: what is seen is not the pool's own model."""
    torch.set_num_threads(1)
    values = {}
    for proxy, (records, shifted) in PROXIES.items():
        chosen = planned_by(case, public_worlds(case[0], records, shifted))["cold, last model"]
        (values[proxy],) = excesses(case, [chosen], SEEDS)
    return {"case": list(case), "excess": values}


def cases() -> list[Case]:
    return [
        (name, trust, epsilon, clip, algorithm)
        for name, clips in CLIPS.items()
        for trust, epsilon in BUDGETS
        for clip in clips
        for algorithm in ALGORITHMS
    ]


def done(kind: str) -> dict[Case, dict]:
    file = RESULTS / f"{kind}.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {tuple(line["case"]): line for line in lines}


def complete(kind: str, work: Callable[[Case], dict], wanted: list[Case], workers: int) -> None:
    """Work on the wanted cases that are not done; a line is written as each ends."""
    RESULTS.mkdir(exist_ok=True)
    ended = done(kind)
    left = [case for case in wanted if case not in ended]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, result in enumerate(pool.imap_unordered(work, left), start=1):
            with (RESULTS / f"{kind}.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{kind} {number}/{len(left)}: {result['case']}", flush=True)


def best_known() -> dict[Case, float]:
    """The least excess loss from a cold start by anyone, of the cases where it is below 0.9 of the
    start."""
    found = {}
    planned_ = done("planned")
    for case, brute in done("brute-force").items():
        names = ("cold, last model", "printed corollary", "corrected bound")
        rivals = (
            [planned_[case]["planners"][name]["excess"] for name in names]
            if case in planned_
            else []
        )
        best = min(brute["excess"], *rivals, brute["start"])
        if best < 0.9 * brute["start"]:
            found[case] = best
    return found


def row(name: str, ratios: list[float]) -> str:
    r = np.array(ratios)
    figures = " | ".join(
        f"{value:.3f}" for value in (np.median(r), r.mean(), np.quantile(r, 0.9), r.max())
    )
    return f"| {name} | {figures} | {np.mean(r <= 1.05):.0%} |"


def table() -> str:
    """Final excess loss over the best known, for the cases whose best is below 0.9 of the start."""
    brute, plans, best, proxies = (
        done("brute-force"),
        done("planned"),
        best_known(),
        done("proxies"),
    )
    lines = [f"{len(brute.keys() & plans.keys())} of {len(cases())} cases done"]
    heading = ["| planner | median | mean | p90 | max | within 5 % |", "|---|---|---|---|---|---|"]
    for title, members in (("tuning", set(CLIPS) - set(HELD_OUT)), ("held out", set(HELD_OUT))):
        counted = [case for case in plans if case[0] in members and case in best]
        if not counted:
            continue
        lines += [
            "",
            f"{title} problems ({', '.join(sorted(members))}), {len(counted)} trainable cases:",
            "",
            *heading,
        ]
        for planner in plans[counted[0]]["planners"]:
            lines.append(
                row(
                    planner,
                    [plans[case]["planners"][planner]["excess"] / best[case] for case in counted],
                )
            )
        plain = {case: plans[case]["planners"]["cold, last model"] for case in counted}
        ratios = {case: plain[case]["excess"] / best[case] for case in counted}
        for case in sorted(counted, key=lambda case: -ratios[case])[:5]:
            chosen = plain[case]
            lines.append(
                f"\nworst: {' '.join(map(str, case))}: {ratios[case]:.3f}, with local steps "
                f"{chosen['local_steps']}, rounds "
                f"{chosen['rounds']} against {brute[case]['local_steps']}, {brute[case]['rounds']}"
            )
    counted = [case for case in proxies if case in best]
    if counted:
        lines += [
            "",
            f"worse pools, {len(counted)} trainable binary cases of DP-FedAvg:",
            "",
            *heading,
        ]
        lines += [
            row(proxy, [proxies[case]["excess"][proxy] / best[case] for case in counted])
            for proxy in PROXIES
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of what is done, and stop"
    )
    parser.add_argument(
        "--only", choices=("brute-force", "planned", "proxies"), help="one part of the work"
    )
    parser.add_argument("--problems", nargs="+", choices=list(CLIPS), default=list(CLIPS))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if not arguments.table:
        if not (DATA / "libsvm").is_dir():
            sys.exit("phishing.bz2 and mushrooms.bz2 are wanted in $EQUIPOISE_DATA/libsvm")
        wanted = [case for case in cases() if case[0] in arguments.problems]
        for kind, work in (
            ("brute-force", brute_force),
            ("planned", planned),
            ("proxies", proxied),
        ):
            if arguments.only in (None, kind):
                binary = [
                    c
                    for c in wanted
                    if c[0] not in ("quadratic", "digits")
                    and c[4] == "dp-fedavg"
                    and c in best_known()
                ]
                complete(kind, work, binary if kind == "proxies" else wanted, arguments.workers)
    print(table())


if __name__ == "__main__":
    main()

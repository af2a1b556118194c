"""How good are the plans? Each against a dense brute-force grid on the private clients, which no planner sees.

    make bench-planner            # resumable; results go to benchmarks/results/planner.jsonl, a line per case
    python benchmarks/planner.py --table

A case is a problem, a budget, a clip and an algorithm. Brute force tries eta x tau x K on the private clients (12 seeds), and
tries the best 20 again with 300 seeds. Every planner's choice is tried with the same 300 seeds. Told is the final excess loss
over the best one known. Two problems were held out: nothing in the planner was chosen by looking at them.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from equipoise.planning.answers import Candidate
from equipoise.planning.closed_forms import Problem, corollary_1, corrected_plan, displacement_law, trainability
from equipoise.planning.rehearsal import race, rehearse, shortlist
from equipoise.planning.screening import screen
from equipoise.planning.surrogate import Surrogate, bootstrap, surrogate_of
from equipoise.privacy import Budget, Guarantee
from equipoise.seeds import stream
from equipoise.tasks import Options, libsvm, load_task
from equipoise.tasks.linear import LOGISTIC, linear_clients, one_hot
from equipoise.tasks.task import Table

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).parent / "results" / "planner.jsonl"

HELD_OUT = ("digits", "mushrooms")
CLIPS = {
    "quadratic": (0.05, 0.2, 1.0),
    "breast-cancer": (0.3, 1.0, 3.0),
    "phishing": (0.3, 1.0, 3.0),
    "digits": (0.3, 1.0, 3.0),
    "mushrooms": (0.3, 1.0, 3.0),
}
BUDGETS = (("secure-aggregation", 1.0), ("secure-aggregation", 2.0), ("secure-aggregation", 3.3), ("local", 10.0))
ALGORITHMS = ("dp-fedavg", "dp-scaffnew")
PACES, ROUNDS, LONGEST = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 512
SEEDS = 300


def problem(name: str, pool_records: int = 40, shifted: bool = False) -> tuple[Surrogate, Surrogate]:
    """The private clients (as a surrogate of themselves, to try plans on) and public stand-ins for them.

    A shifted pool has its features rescaled by factors between 0.5 and 1.5, and 15 % of its labels flipped.
    """
    if name == "quadratic":
        private, public = (load_task("quadratic", Options(seed=seed)) for seed in (0, 10**6))
        return tuple(surrogate_of(t.clients, t.x0, t.L, t.mu) for t in (private, public))
    if name in ("breast-cancer", "digits"):
        task = load_task(name, Options(public_records=pool_records))
        clients, pool, L, mu, x0 = task.clients, task.pool, task.L, task.mu, task.x0
    else:  # 20 clients with 19 records each, of a LIBSVM file
        ((rows, labels),) = libsvm._read([str(DATA / "libsvm" / f"{name}.bz2")])
        chosen = stream(0, "bench", name).permutation(len(rows))[: 380 + pool_records]
        table = Table(rows, one_hot(np.searchsorted(np.unique(labels), labels), 2)).rows(chosen)
        pool, parts = table.rows(np.arange(pool_records)), np.arange(pool_records, pool_records + 380).reshape(20, 19)
        clients = linear_clients([table.rows(part) for part in parts], LOGISTIC, 0.01, None, 0)
        L, mu, x0 = 0.51, 0.01, torch.zeros(rows.shape[1], dtype=torch.float64)
    if shifted:
        rng = stream(0, "shift", name)
        factors = np.append(rng.uniform(0.5, 1.5, pool.features.shape[1] - 1), 1.0)
        flipped = np.where(rng.random((pool_records, 1)) < 0.15, 1 - pool.targets, pool.targets)
        pool = Table(pool.features * factors, flipped)
    records = round(sum(clients.sizes) / len(clients.sizes))
    number = min(len(clients.sizes), 40 if len(x0) < 200 else 20)
    public = bootstrap(pool, number, records, clients.link, clients.l2, 0)
    return surrogate_of(clients, x0, L, mu), surrogate_of(public, x0, L, mu)


def two_stage(public: Surrogate, algorithm: str, clip_norm: float, noise: float, gammas: list[float]) -> Candidate:
    paces = [(tau, [K for K in ROUNDS if K * tau <= LONGEST]) for tau in PACES]
    seeds = 3 if len(public.x0) > 150 else 8
    tried = screen(public, algorithm, [1 / public.L, 0.25 / public.L], paces, [clip_norm], gammas, noise, seeds)
    won = race(public, shortlist(tried), noise).candidate
    return won if won.excess < float(public.excess(public.x0)) else replace(won, rounds=0)  # not to train


def closed_forms(
    private: Surrogate, algorithm: str, clip_norm: float, budget: Budget, guarantee: Guarantee
) -> dict[str, Candidate]:
    """The bounds with the true constants, and the displacement law with the true gradients: more than a user would know."""
    r0 = float((private.best - private.x0).norm())
    zeta = math.sqrt(float(private.slopes.square().sum(-1).mean()))
    known = Problem(private.mu, private.L, len(private.x0), budget, guarantee, clip_norm, r0=r0, zeta=zeta)
    found = {}
    for name, proposal in (("printed corollary", corollary_1(known)), ("corrected bound", corrected_plan(known))):
        tau = max(1, round(proposal.local_steps))
        K = 0 if proposal.iterations <= 0 else min(max(1, round(proposal.rounds)), 4096 // tau)
        found[name] = Candidate(algorithm, proposal.eta, tau, K, clip_norm, 1.0)
    gradients = private.clients.gradient(private.x0.expand(private.number, -1), 0)
    norms = gradients.norm(dim=-1, keepdim=True)
    u, H = -(gradients / norms).mean(0), private.hessians.mean(0)
    law = displacement_law(float(-gradients.mean(0) @ u), float(u @ H @ u), float(H.trace()), budget, guarantee)
    tau = min(32, max(1, math.ceil(2 * clip_norm * private.L / float(norms.median()))))
    found["displacement law"] = Candidate(
        algorithm, 1 / private.L, tau, min(law.rounds(clip_norm), 4096 // tau), clip_norm, law.gamma(clip_norm)
    )
    return found


def excess(private: Surrogate, candidate: Candidate, noise: float, seeds: int) -> float:
    if candidate.rounds == 0:
        return float(private.excess(private.x0))
    values = [rehearse(private, candidate, noise, range(i, min(i + 100, seeds))).excess for i in range(0, seeds, 100)]
    return float(torch.cat(values).mean())


def run_case(case: tuple[str, str, float, float, str]) -> dict:
    torch.set_num_threads(1)
    name, trust, epsilon, clip_norm, algorithm = case
    private, public = problem(name)
    budget, guarantee = Budget(epsilon, 1e-5), Guarantee("replace-one", trust, private.number)
    noise = math.sqrt(trainability(budget, guarantee, 1))
    grid = [
        Candidate(algorithm, eta / private.L, tau, K, clip_norm, 1.0)
        for eta in (1, 0.25)
        for tau in PACES
        for K in ROUNDS
        if K * tau <= LONGEST
    ]
    coarse = sorted(grid, key=lambda candidate: excess(private, candidate, noise, 12))
    again = {candidate: excess(private, candidate, noise, SEEDS) for candidate in coarse[: 20 if len(private.x0) < 200 else 8]}
    best = min(again, key=again.get)
    chosen = {
        "two-stage": two_stage(public, algorithm, clip_norm, noise, [1.0]),
        "two-stage, gamma free": two_stage(public, algorithm, clip_norm, noise, [1.0, 0.5, 0.25, 0.125]),
        **closed_forms(private, algorithm, clip_norm, budget, guarantee),
    }
    values = {planner: excess(private, candidate, noise, SEEDS) for planner, candidate in chosen.items()}
    start = float(private.excess(private.x0))
    fixed = [again[best], start, *(values[planner] for planner in ("two-stage", "printed corollary", "corrected bound"))]
    return {
        "case": list(case),
        "start": start,
        "best": min(fixed),
        "brute_force": {"excess": again[best], "local_steps": best.local_steps, "rounds": best.rounds, "eta": best.eta},
        "planners": {
            planner: {
                "excess": values[planner],
                "local_steps": c.local_steps,
                "rounds": c.rounds,
                "eta": c.eta,
                "gamma": c.gamma,
            }
            for planner, c in chosen.items()
        },
    }


PROXIES = {"40 records": (40, False), "15 records": (15, False), "40 shifted": (40, True), "15 shifted": (15, True)}


def run_proxies(result: dict) -> dict:
    """The two-stage planner on worse pools, for a case that brute force has done."""
    torch.set_num_threads(1)
    name, trust, epsilon, clip_norm, algorithm = result["case"]
    ratios = {}
    for proxy, (records, shifted) in PROXIES.items():
        private, _ = problem(name)
        _, public = problem(name, records, shifted)
        noise = math.sqrt(trainability(Budget(epsilon, 1e-5), Guarantee("replace-one", trust, private.number), 1))
        chosen = two_stage(public, algorithm, clip_norm, noise, [1.0])
        ratios[proxy] = excess(private, chosen, noise, SEEDS) / result["best"]
    return {"case": result["case"], "ratios": ratios}


def proxy_table(results: list[dict]) -> str:
    lines = [
        f"{len(results)} trainable cases of binary problems, DP-FedAvg:",
        "",
        "| public pool | median | max | within 5 % |",
    ]
    lines.append("|---|---|---|---|")
    for proxy in PROXIES:
        ratios = np.array([result["ratios"][proxy] for result in results])
        lines.append(f"| {proxy} | {np.median(ratios):.3f} | {ratios.max():.3f} | {np.mean(ratios <= 1.05):.0%} |")
    return "\n".join(lines)


def cases() -> list[tuple[str, str, float, float, str]]:
    return [
        (name, trust, epsilon, clip_norm, algorithm)
        for name, clips in CLIPS.items()
        for trust, epsilon in BUDGETS
        for clip_norm in clips
        for algorithm in ALGORITHMS
    ]


def done() -> list[dict]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table() -> str:
    """Final excess loss over the best known (fixed gamma), for the cases whose best is below 0.9 of the start."""
    results = done()
    lines = [f"{len(results)} of {len(cases())} cases done"]
    for title, members in (("tuning", set(CLIPS) - set(HELD_OUT)), ("held out", set(HELD_OUT))):
        rows = [r for r in results if r["case"][0] in members and r["best"] < 0.9 * r["start"]]
        if not rows:
            continue
        lines += ["", f"{title} problems ({', '.join(sorted(members))}), {len(rows)} trainable cases:", ""]
        lines += ["| planner | median | mean | p90 | max | within 5 % |", "|---|---|---|---|---|---|"]
        for planner in rows[0]["planners"]:
            ratios = np.array([r["planners"][planner]["excess"] / r["best"] for r in rows])
            lines.append(
                f"| {planner} | {np.median(ratios):.3f} | {ratios.mean():.3f} | {np.quantile(ratios, 0.9):.3f} "
                f"| {ratios.max():.3f} | {np.mean(ratios <= 1.05):.0%} |"
            )
        worst = sorted(rows, key=lambda r: -r["planners"]["two-stage"]["excess"] / r["best"])[:3]
        for r in worst:
            lines.append(f"\nworst: {r['case']}: {r['planners']['two-stage']} against brute force {r['brute_force']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table of what is done, and stop")
    parser.add_argument("--proxies", action="store_true", help="tiny and shifted pools, on the cases that are done")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.proxies:
        chosen = [
            result
            for result in done()
            if result["case"][0] in ("breast-cancer", "phishing", "mushrooms")
            and result["case"][4] == "dp-fedavg"
            and result["best"] < 0.9 * result["start"]
        ]
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            print(proxy_table(list(pool.imap_unordered(run_proxies, chosen))))
        return
    if not arguments.table:
        if not (DATA / "libsvm").is_dir():
            sys.exit("phishing.bz2 and mushrooms.bz2 are wanted in $EQUIPOISE_DATA/libsvm")
        RESULTS.parent.mkdir(exist_ok=True)
        ended = {tuple(result["case"]) for result in done()}
        left = [case for case in cases() if case not in ended]
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            for number, result in enumerate(pool.imap_unordered(run_case, left), start=1):
                with RESULTS.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                ratio = result["planners"]["two-stage"]["excess"] / result["best"]
                print(f"{number}/{len(left)} {result['case']}: two-stage {ratio:.3f}", flush=True)
    print(table())


if __name__ == "__main__":
    main()

"""How close audits come to what is claimed: the tables of docs/audit.md.

    make bench-audit

Many runs of every mechanism with both of the paper's algorithms, then one run with canaries on
digits and on a CNN (which needs femnist/). Every line is printed as soon as it is there.
"""

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from scipy.special import ndtr

import equipoise
from equipoise.algorithms.schedule import schedule_of
from equipoise.auditing.audit import SURE
from equipoise.auditing.bounds import mu_of_errors
from equipoise.auditing.many_runs import RUNS as RUNS_OF_A_USER
from equipoise.auditing.many_runs import many_runs
from equipoise.auditing.worst_case import small_case
from equipoise.privacy.gaussian import gdp_mu
from equipoise.settings import Settings
from equipoise.tasks import TaskOptions
from equipoise.tasks.catalogue import load_to_plan

RUNS = 200_000
ALGORITHMS = ("dp-fedavg", "dp-scaffnew")
BUDGETS = (1.0, 4.0)
CLIENT = {"task": "breast-cancer", "clip": 1.0, "iterations": 16, "local_steps": 4}
RECORD = {**CLIENT, "clip": 0.4, "unit": "record"}
PERSON = {**RECORD, "task": "deepdrid-narrow", "unit": "person", "sampling_rate": 1}
SUMS = {"trust": "secure-aggregation"}
OPEN = {"dp-scaffnew": {"h_update": "released"}}
# Which of these algorithms a mechanism allows: both, unless it is said.
MANY: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("client", CLIENT, ALGORITHMS),
    ("client, zero-out", {**CLIENT, "neighbours": "zero-out"}, ALGORITHMS),
    ("client, sums of three, one colludes", {**CLIENT, **SUMS}, ALGORITHMS),
    ("record, noise in gradients", RECORD, ALGORITHMS),
    ("record, add-remove", {**RECORD, "neighbours": "add-remove"}, ALGORITHMS),
    ("record, noise in messages", {**RECORD, "noise_in": "message"}, ALGORITHMS),
    ("record, noise in messages, sums", {**RECORD, **SUMS, "noise_in": "message"}, ALGORITHMS[:1]),
    ("record, hidden gradients", {**RECORD, "noise_in": "hidden-gradient"}, ALGORITHMS[:1]),
    ("person, three rows", PERSON, ALGORITHMS),
    ("record, sampled at 0.2", {**RECORD, "sampling_rate": 0.2}, ALGORITHMS),
    (
        "record, sampled at 0.2, add-remove",
        {**RECORD, "sampling_rate": 0.2, "neighbours": "add-remove"},
        ALGORITHMS[:1],
    ),
    (
        "record, sampled at 0.02, 200 steps",
        {**RECORD, "sampling_rate": 0.02, "iterations": 200},
        ALGORITHMS[:1],
    ),
]
DIGITS = {"task": "digits", "clip": 1.0, "iterations": 16, "local_steps": 4, "canaries": 640}
CNN = {"task": "femnist-narrow", "clip": 1.0, "iterations": 8, "local_steps": 2}
SHORT = {**CNN, "iterations": 2, "local_steps": 1}  # each step is a pass over all records, twice
ONE: list[tuple[str, dict[str, Any]]] = [
    ("digits, client", DIGITS),
    ("digits, client, sums", {**DIGITS, **SUMS}),
    ("digits, record", {**DIGITS, "unit": "record", "clip": 0.4, "clients": 5}),
    ("CNN, client", {**CNN, "canaries": 300, "algorithm": "dp-scaffnew"}),
    ("CNN, client, sums", {**CNN, "canaries": 300, **SUMS}),
    ("CNN, record", {**SHORT, "canaries": 10_000, "unit": "record", "batch": "full"}),
    (
        "CNN, record, sampled at 0.1",
        {**SHORT, "canaries": 10_000, "unit": "record", "sampling_rate": 0.1, "iterations": 4},
    ),
]


def audits() -> Iterator[tuple[str, Settings]]:
    for name, values, algorithms in MANY:
        for algorithm in algorithms:
            in_message = values.get("noise_in") == "message"
            more = OPEN.get(algorithm, {}) if in_message else {}
            for epsilon in BUDGETS:
                yield name, Settings.of(**values, **more, algorithm=algorithm, epsilon=epsilon)


def heading(columns: str) -> None:
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")


def many(runs: int) -> None:
    """Each bound with 95 % confidence, and all of them together with 95 %."""
    cases = [*audits()]
    print(f"{len(cases)} audits by {runs:,} runs, of which three in four count")
    print(
        "| what | algorithm | claim | bound, 95 % | ratio | all together, 95 % | ratio | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    above, worst = 0, math.inf
    for name, settings in cases:
        facts = load_to_plan(settings.task, TaskOptions.of(settings)).facts(settings.unit)
        run = settings.resolve(facts)
        case = small_case(run, facts, schedule_of(run))
        begun = time.process_time()
        evidence = many_runs(case, runs)
        each, together = (max(evidence.bounds(0.05 / n).values()) for n in (1, len(cases)))
        seconds, claim = time.process_time() - begun, case.account.epsilon
        above, worst = above + (each > claim), min(worst, each / claim)
        assert together <= claim, f"{name}, {settings.algorithm}: contradicted"
        print(
            f"| {name} | {settings.algorithm} | {claim:.4g} | {each:.3f} | {each / claim:.3f} | "
            f"{together:.3f} | {together / claim:.3f} | {seconds:.1f} |",
            flush=True,
        )
    print(
        f"least ratio {worst:.3f}; {above} of {len(cases)} bounds at 95 % above the claim, of "
        f"which {len(cases) / 20:.1f} may be if all claims are met exactly\n"
    )


def visible() -> None:
    """By how much noise must be too small for an audit to call it a violation, as often as not."""
    for runs in (RUNS_OF_A_USER, RUNS):
        tested = runs - runs // 4
        for epsilon in BUDGETS:
            claim = gdp_mu(epsilon, 1e-5)
            excess = 1.0
            while (
                mu_of_errors(round(tested * ndtr(-excess * claim / 2)), tested, 1 - SURE) <= claim
            ):
                excess += 0.001
            print(
                f"{runs:,} runs, epsilon = {epsilon:g}: noise divided by {excess:.3f} is called a "
                "violation as often as not"
            )


def one() -> None:
    print(
        "| what | algorithm | canaries | guesses, wrong | claim | bound, 95 % | ratio | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, values in ONE:
        for epsilon in (4.0, 8.0):
            begun = time.process_time()
            proved = equipoise.audit(**values, epsilon=epsilon)
            algorithm = values.get("algorithm", ALGORITHMS[0])
            print(
                f"| {name} | {algorithm} | {proved.trials} | {proved.guesses}, {proved.wrong} | "
                f"{proved.claim:.4g} | {proved.epsilon:.3f} | {proved.ratio:.3f} | "
                f"{time.process_time() - begun:.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", choices=("many", "one"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only != "one":
        visible()
        many(arguments.runs)
    if arguments.only != "many":
        one()


if __name__ == "__main__":
    main()

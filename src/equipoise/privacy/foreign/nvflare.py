"""NVFlare: the filters of config_fed_client.json (nvflare 2.3 to 2.9).

What its filters do, read from its source:

PercentilePrivacy, ExcludeVars add no noise. GaussianPrivacy (of its research examples) adds noise
in proportion to a percentile of the very update that it hides, and clips nothing.

SVTPrivacy clips each of d parameters to gamma, compares all of them, noised by Laplace noise of
scale 2 gamma c / e_q, with one noised threshold (scale gamma / e_t), accepts *all* that are above
it, again and again until there are c = ceil(fraction d), draws c of these, and releases them with
Laplace noise of scale 2 gamma c / e_r. It reports e_t + e_q + e_r for a call.

- Release: c values that move by at most 2 gamma (replace-one) or gamma (zero-out): e_r, or half.
  That is attained: gamma or -gamma everywhere are selected alike, and move all c values.
- Selection: the sparse vector technique is (e_t + e_q)-DP because it stops after c acceptances
  (Lyu, Su and Li, "Understanding the sparse vector technique for differential privacy", 2017,
  Algorithm 7: each costs e_q / c). Here up to d are accepted, so that the same proof gives e_t +
  (d/c) e_q.

Before 2.8 the released values were noised *before* they were clipped: nothing bounded them.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import require
from equipoise.privacy.composed import Pure
from equipoise.privacy.foreign.reading import (
    Claimed,
    Given,
    Reading,
    check_keys,
    is_number,
    parse_json,
    read_text,
)
from equipoise.privacy.promise import Neighbours

OLDEST, BOUNDED, BEYOND = (2, 3), (2, 8), (2, 10)  # versions whose source was read
SVT = {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5, "tau": 1e-6}
SPLIT = ("epsilon_threshold", "epsilon_query", "epsilon_release")
OTHERS = ("replace", "data_kinds")
KINDS = ("WEIGHTS", "WEIGHT_DIFF")  # of data that SVTPrivacy changes, if it is not told others
SENDING = ("train", "submit_model")  # tasks of NVFlare that send a model
NO_NOISE = {
    "PercentilePrivacy": "it leaves small values out and truncates the others, without noise",
    "ExcludeVars": "it leaves variables out, without noise",
    "ConvertWeights": "it converts numbers, without noise",
}
SCALARS = (
    "parameters without a dimension, such as num_batches_tracked of batch normalisation, leave as "
    "they are"
)


def fits(document: Any) -> bool:
    return isinstance(document, dict) and "executors" in document


def read(document: Any, path: Path, given: Given) -> Reading:
    version = document.get("format_version")
    require(
        version == 2,
        f"{path}: format_version={version!r} of NVFlare's configurations is not known here: 2 is",
    )
    chains = [*_chains(document, path)]
    claims: list[Claimed] = []
    void: list[str] = []
    beside: list[str] = []
    asks: list[str] = []
    parts: dict[Neighbours, list[Pure]] = {"replace-one": [], "zero-out": []}
    protected: set[str] = set()
    for tasks, filters in chains:
        for name, arguments in filters:
            if name in NO_NOISE:
                beside.append(f"{name} is no differential privacy: {NO_NOISE[name]}")
            elif name == "GaussianPrivacy":
                beside.append(_gaussian(arguments))
            elif name == "SVTPrivacy":
                protected |= {*tasks}
                _svt(arguments, parts, path, given, claims, void, asks)
            else:
                beside.append(f"{name} is not known here: what it does is not counted")
    rounds = given.whole("rounds") or _rounds(path)
    if protected:
        beside += [SCALARS, "everything but weights, such as metrics, leaves as it is"]
        if others := sorted(_tasks(document) - protected - {"*", *SENDING}):
            beside.append(f"no filter protects what is sent for {', '.join(others)}")
        if rounds is None:
            asks.append(f"rounds cannot be read from {path.name}: give --rounds")
    else:
        void = ["no filter of task results adds noise that hides an update", *void, *beside]
        beside = []
    void += _unprotected(document, protected)
    whole = {
        way: tuple(Pure(part.rounds * (rounds or 1), part.epsilon) for part in own)
        for way, own in parts.items()
        if own
    }
    if whole and rounds and not asks:
        none = sum(part.rounds * part.epsilon for part in whole["replace-one"])
        beside.append(f"at delta = 0 the proof gives {none:.6g} under replace-one, by adding up")
    return Reading(
        "NVFlare",
        "client",
        tuple(claims),
        {} if asks or not protected or not rounds else whole,
        tuple(dict.fromkeys(void)),
        tuple(dict.fromkeys(beside)),
        tuple(dict.fromkeys(asks)),
    )


def _svt(
    arguments: Mapping[str, Any],
    parts: dict[Neighbours, list[Pure]],
    path: Path,
    given: Given,
    claims: list[Claimed],
    void: list[str],
    asks: list[str],
) -> None:
    """The parts of one call, and what it claims."""
    check_keys(arguments, (*SVT, *SPLIT, *OTHERS), f"{path}: SVTPrivacy")
    _check_kinds(arguments.get("data_kinds"), given, void, asks)
    values = {**SVT, **dict.fromkeys(SPLIT), **arguments}
    for name in (*SVT, *SPLIT):
        if not (is_number(values[name]) or (name in SPLIT and values[name] is None)):
            values[name] = given.number(name)
            if values[name] is None:
                asks.append(f"{name} of SVTPrivacy cannot be read: give --given {name}=NUMBER")
    version = _version(given, asks)
    if version and version < BOUNDED:
        known = {*arguments} & {*SPLIT}
        require(not known, f"{path}: SVTPrivacy of nvflare 2.7 has no {', '.join(sorted(known))}")
        words = f"epsilon = {values['epsilon']:g} for one message, as its users read SVTPrivacy"
        claims.append(Claimed(words))
        void.append(
            "SVTPrivacy before nvflare 2.8 adds noise to values that nothing bounds, and clips "
            "afterwards: a value that is large enough is always told"
        )
        return
    size = given.whole("parameters")
    if size is None:
        asks.append(
            "how many parameters the model has cannot be read, and SVTPrivacy spends noise_var "
            "for each that it sends: give --given parameters=NUMBER"
        )
    if asks or size is None:
        return
    _check_svt(values, path)
    sent = int(min(math.ceil(size * values["fraction"]), size))
    threshold, query = _split(values, sent, path)
    release = values["epsilon_release"]
    release = sent * values["noise_var"] if release is None else release
    claims.append(
        Claimed(
            f"epsilon = {threshold + query + release:.6g} at delta = 0 for one message: what "
            f"SVTPrivacy reports ({sent:,} of {size:,} parameters sent)"
        )
    )
    selection = Pure(1, threshold + query * size / sent)
    parts["replace-one"] += [Pure(sent, release / sent), selection]
    parts["zero-out"] += [Pure(sent, release / sent / 2), selection]


def _check_kinds(kinds: Any, given: Given, void: list[str], asks: list[str]) -> None:
    """Which kinds of data SVTPrivacy is told to change, if it is told; others pass as they are."""
    changed = {*map(str, kinds)} if isinstance(kinds, list) else {str(kinds)}
    if kinds is None or {*KINDS} <= changed:
        return
    sent = given.text("data_kind")
    if not changed & {*KINDS} or sent not in (None, *changed):
        void.append(
            f"SVTPrivacy is told to change {', '.join(sorted(changed))} alone: a model that is "
            f"sent as {sent or ' or '.join(KINDS)} passes as it is"
        )
    elif sent is None:
        asks.append(
            f"SVTPrivacy is told to change {', '.join(sorted(changed))} alone, and how the model "
            "is sent is not in the file: give --given data_kind=WEIGHT_DIFF, or WEIGHTS"
        )


def _check_svt(values: Mapping[str, Any], path: Path) -> None:
    require(
        0 < values["fraction"] <= 1
        and values["epsilon"] > 0
        and values["gamma"] > 0
        and (values["noise_var"] > 0 or values["epsilon_release"] is not None)
        and all(values[name] is None or values[name] > 0 for name in SPLIT),
        f"{path}: SVTPrivacy has fraction={values['fraction']:g}, epsilon={values['epsilon']:g}, "
        f"gamma={values['gamma']:g}, noise_var={values['noise_var']:g}: a fraction in (0, 1] and "
        "positive numbers are needed",
    )


def _split(values: Mapping[str, Any], sent: int, path: Path) -> tuple[float, float]:
    """epsilon, between the threshold and the comparisons: 1 to (2c)^(2/3) by default."""
    epsilon, threshold, query = (
        values[name] for name in ("epsilon", "epsilon_threshold", "epsilon_query")
    )
    if threshold is None and query is None:
        threshold = epsilon / (1 + (2 * sent) ** (2 / 3))
    if threshold is None:
        threshold = epsilon - query
    if query is None:
        query = epsilon - threshold
    require(
        threshold > 0 and query > 0 and math.isclose(threshold + query, epsilon, rel_tol=1e-5),
        f"{path}: epsilon_threshold={threshold:g} and epsilon_query={query:g} do not add up to "
        f"epsilon={epsilon:g}",
    )
    return float(threshold), float(query)


def _gaussian(arguments: Mapping[str, Any]) -> str:
    sigma = arguments.get("sigma0", 0.1)
    if sigma == 0:
        return "GaussianPrivacy is no differential privacy: sigma0=0 adds no noise"
    return (
        "GaussianPrivacy is no differential privacy: its noise is in proportion to the update that "
        "it hides, and nothing is clipped"
    )


def _version(given: Given, asks: list[str]) -> tuple[int, int] | None:
    given_as = given.text("version")
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\w+)*", given_as or "")
    if match is None:
        asks.append(
            "which nvflare runs this is not in the file, and SVTPrivacy changed with 2.8: give "
            "--given version=2.8"
        )
        return None
    version = int(match[1]), int(match[2])
    require(
        OLDEST <= version < BEYOND,
        f"given=version={given_as}: what SVTPrivacy does is known here from nvflare 2.3 to 2.9",
    )
    return version


def _chains(document: Mapping[str, Any], path: Path) -> Any:
    """(tasks, [(filter, its arguments)]) of every chain that task results go through."""
    chains = document.get("task_result_filters", [])
    require(isinstance(chains, list), f"{path}: task_result_filters is not a list")
    for chain in chains:
        require(
            isinstance(chain, dict)
            and isinstance(chain.get("tasks"), list)
            and isinstance(chain.get("filters"), list),
            f"{path}: a chain of task_result_filters has no lists of tasks and filters",
        )
        check_keys(chain, ("tasks", "filters"), f"{path}: a chain of task_result_filters")
        yield (
            [str(t) for t in chain["tasks"]],
            [_filter(f, document, path) for f in chain["filters"]],
        )


def _filter(said: Any, document: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The last word of its class, and its arguments, with {NAME} replaced by the file's value."""
    where = said.get("path", said.get("name")) if isinstance(said, dict) else None
    arguments = said.get("args", {}) if isinstance(said, dict) else None
    require(
        isinstance(where, str) and isinstance(arguments, dict),
        f"{path}: a filter has no path of a class, or no args",
    )
    assert isinstance(where, str)
    assert isinstance(arguments, dict)
    values = {name: _filled(value, document) for name, value in arguments.items()}
    return where.rpartition(".")[2], values


def _filled(value: Any, document: Mapping[str, Any]) -> Any:
    match = re.fullmatch(r"\{(\w+)\}", value) if isinstance(value, str) else None
    return document.get(match[1], value) if match else value


def _tasks(document: Mapping[str, Any]) -> set[str]:
    """What executors are asked to do."""
    executors = document.get("executors", [])
    return {
        str(task)
        for executor in (executors if isinstance(executors, list) else [])
        if isinstance(executor, dict) and isinstance(executor.get("tasks"), list)
        for task in executor["tasks"]
    }


def _unprotected(document: Mapping[str, Any], protected: set[str]) -> list[str]:
    """Tasks that send a model and pass no filter that protects it."""
    tasks = _tasks(document)
    if not protected or "*" in protected:
        return []
    bare = sorted({*SENDING} & tasks - protected)
    lines = [f"the task {task} sends a model, and no filter protects it" for task in bare]
    if "*" in tasks:
        lines.append("executors take every task (*), and some of them pass no filter that protects")
    elif not tasks & protected:
        lines.append(f"no executor takes the tasks of the filters: {', '.join(sorted(protected))}")
    return lines


def _rounds(path: Path) -> int | None:
    """num_rounds of all workflows in config_fed_server.json beside it, if that is there: they run
    one after the other."""
    server = path.with_name("config_fed_server.json")
    if not server.is_file() or server == path:
        return None
    document = parse_json(read_text(server), server)
    workflows = document.get("workflows", []) if isinstance(document, dict) else []
    counts = []
    for workflow in workflows if isinstance(workflows, list) else []:
        arguments = workflow.get("args", {}) if isinstance(workflow, dict) else {}
        if isinstance(arguments, dict) and "num_rounds" in arguments:
            counts.append(_filled(arguments["num_rounds"], document))
    known = [n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    return sum(known) if len(known) == len(counts) > 0 else None

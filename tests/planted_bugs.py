"""Plant privacy bugs one by one in a copy of the source, run the tests, and print which test caught
which bug.

`make planted-bugs`. Fails if a bug goes unnoticed, or if its place in the source has moved.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "accounting",
        "noise",
        "samplers",
        "lattice",
        "mechanism",
        "weights",
        "algorithms",
        "other_algorithms",
        "optimisers",
        "training",
        "survival",
        "tables",
        "table_files",
        "own_models",
        "own_data",
        "libsvm",
        "passes",
        "one_client",
        "encoders",
        "attacks",
        "attack_curve",
        "guarantee",
        "accountants",
        "foreign",
        "adapt",
        "federation",
        "hostile_lead",
        "audit",
    )
]
SLOW = ["tests/test_attacks.py"]
LEDGER_TESTS, LINK_TESTS = ["tests/test_ledger.py"], ["tests/test_flower.py"]
RECORD_TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "new_algorithm",
        "optimisers",
        "own_data",
        "libsvm",
        "record_runs",
        "weights",
        "per_example",
        "layers",
        "architectures",
        "passes",
        "tables",
        "table_files",
        "records",
        "sampled",
        "lattice",
        "attacks",
        "attack_curve",
    )
]

PERSON_TESTS = ["tests/test_persons.py"]

BUGS = [  # what is wrong, file, old text, new text
    (
        "features are not cut to their length",
        "tasks/encoder.py",
        "np.where(useless[:, None], 0.0, features), self.norm)",
        "np.where(useless[:, None], 0.0, features), np.inf)",
    ),
    (
        "features: an encoder that mixes records is taken",
        "tasks/encoder.py",
        "            if self._mixes(kind):",
        "            if self._mixes(kind) and False:",
    ),
    (
        "features: an encoder that learns is taken",
        "tasks/encoder.py",
        "        if learnt or not _same(before, after):",
        "        if learnt and not _same(before, after):",
    ),
    (
        "features: a record that fails takes others with it",
        "tasks/encoder.py",
        "        if len(inputs) == 1:\n            return np.full((1, width), np.nan)",
        "        if len(inputs) >= 1:\n            return np.full((len(inputs), width), np.nan)",
    ),
    (
        "features: passes are not kept apart",
        "tasks/encoder.py",
        "        with one_pass(self.module, {}), torch.no_grad():\n            outputs: Tensor",
        "        with torch.no_grad():\n            outputs: Tensor",
    ),
    (
        "features: everybody may read them",
        "cache.py",
        "mode=0o600",
        "mode=0o644",
    ),
    (
        "features: a silo has an encoder of its own",
        "federation/agreement.py",
        "            here is None or here.fingerprint == self.encoder,",
        "            here is None or self.encoder is not None,",
    ),
    (
        "algorithm: FedAvg is called private",
        "algorithms/fedavg.py",
        "    units=(),",
        '    units=("client", "record"),',
    ),
    (
        "algorithm: ScaffNew is called private",
        "algorithms/scaffnew.py",
        "    units=(),",
        '    units=("client", "record"),',
    ),
    (
        "algorithm: FedProx is called private",
        "algorithms/fedprox.py",
        "    units=(),",
        '    units=("client", "record"),',
    ),
    (
        "algorithm: SCAFFOLD with its second message is called private",
        "algorithms/scaffold.py",
        "    units=(),",
        '    units=("client", "record"),',
    ),
    (
        "algorithm: DP-SCAFFOLD protects clients with variates of its own",
        "algorithms/dp_scaffold.py",
        '    units=("record",),',
        '    units=("client", "record"),',
    ),
    (
        "algorithm: FedSplit's doubled step passes for a gradient step",
        "algorithms/dp_fedsplit.py",
        "    memory,\n    options=",
        "    memory,\n    gradient_steps=True,\n    options=",
    ),
    (
        "algorithm: FedPD's doubled step passes for a gradient step",
        "algorithms/dp_fedpd.py",
        "    memory,\n    options=",
        "    memory,\n    gradient_steps=True,\n    options=",
    ),
    (
        "algorithm: a message is heard as released, where it is not",
        "algorithms/feedback.py",
        'or settings.trust == "local"',
        'or settings.trust != "nobody"',
    ),
    (
        "algorithm: what is heard of a release is the update itself",
        "algorithms/feedback.py",
        "return release if hears_release(options)",
        "return update if hears_release(options)",
    ),
    (
        "algorithm: Clip21 where no message is clipped",
        "algorithms/clip21_sgd2m.py",
        '    units=("client",),',
        '    units=("client", "record"),',
    ),
    (
        "algorithm: messages of Fed-alpha-NormEC are not bounded by C",
        "algorithms/fed_norm_ec.py",
        "clip * d / (alpha + length(d))",
        "clip * d / alpha",
    ),
    (
        "algorithm: a whole model passes for one record's message",
        "algorithms/dp_fedprox.py",
        'settings.options.get("sends") != "model" or settings.mechanism.clips_message',
        "True",
    ),
    (
        "one record: local momentum passes for plain gradient steps",
        "steps.py",
        'if name != "server_optimiser"',
        'if name == "eta_schedule"',
    ),
    (
        "one record: steps that fall pass for steps of one size",
        "steps.py",
        'if name != "server_optimiser"',
        'if name == "local_optimiser"',
    ),
    (
        "one record: an optimiser hears gradients without their noise",
        "algorithms/optimisers/optimised.py",
        "gradient(x_i, t))",
        'getattr(getattr(gradient, "clients", None), "gradient", gradient)(x_i, t))',
    ),
    (
        "algorithm: NbAFL's noise counts as the noise of its label",
        "paper/nbafl.py",
        "return c * releases * D / epsilon",
        "return c * D / epsilon",
    ),
    (
        "one client decides how all are read",
        "tasks/trying.py",
        "return {i: kind or anybodys for i, kind in working.items()}",
        "return dict.fromkeys(working, anybodys)",
    ),
    (
        "a record may end the run by SystemExit",
        "errors.py",
        "(KeyboardInterrupt, *through)",
        "(KeyboardInterrupt, SystemExit, *through)",
    ),
    (
        "sigma x 0.9 in the calculus",
        "privacy/gaussian.py",
        "sigma, step = sensitivity * math.sqrt(releases) / mu, 2.0**-52",
        "return 0.9 * sensitivity * math.sqrt(releases) / mu",
    ),
    (
        "sigma x 0.9 in the mechanism",
        "privacy/clip.py",
        "spread / gamma, 2.0**20)",
        "0.9 * spread / gamma, 2.0**20)",
    ),
    ("Delta = C for replace-one", "privacy/promise.py", '"replace-one": 2.0', '"replace-one": 1.0'),
    (
        "one record: messages of clients that count less are sent whole",
        "privacy/clip.py",
        "        sent = part_of(zero_unless_finite(update), self.share)",
        "        sent = zero_unless_finite(update)",
    ),
    (
        "the least weight decides how much is sent, so that others send more than the clip",
        "privacy/promise.py",
        "        return tuple(weight / max(weights) for weight in weights)",
        "        return tuple(weight / min(weights) for weight in weights)",
    ),
    (
        "noise before the clip",
        "privacy/clip.py",
        "        sent = part_of(clip(zero_unless_finite(update), self.clip - lost), self.share)\n"
        "        return on_lattice(sent, drawn, self.lattice)",
        "        noised = on_lattice(zero_unless_finite(update), drawn, self.lattice)\n"
        "        return part_of(clip(noised, self.clip - lost), self.share)",
    ),
    (
        "noise for the expected instead of the realised releases",
        "privacy/mechanisms/client_message.py",
        "noise_sigma(run.epsilon, run.delta, releases, sensitivity)",
        "noise_sigma(run.epsilon, run.delta, max(1, round(run.p * run.iterations)), sensitivity)",
    ),
    (
        "epsilon told for the expected releases too",
        "privacy/mechanisms/client_message.py",
        "sensitivity, releases = run.promise.sensitivity(run.clip), len(schedule)",
        "sensitivity = run.promise.sensitivity(run.clip)\n"
        "        releases = max(1, round(run.p * run.iterations))",
    ),
    (
        "delta beyond 1 / number of clients is called private",
        "privacy/promise.py",
        "return delta >= 1 / units",
        "return False",
    ),
    (
        "any epsilon is called private",
        "privacy/promise.py",
        "if epsilon > MOST_EPSILON:",
        "if False:",
    ),
    (
        "one coordinate without noise",
        "privacy/clip.py",
        "    return _rounded(sent, lattice) + gamma * drawn + 0.0",
        "    drawn[..., 3] = 0\n    return _rounded(sent, lattice) + gamma * drawn + 0.0",
    ),
    (
        "secret noise reused in two rounds",
        "privacy/noise.py",
        "whole_numbers(law, [self._fresh()], rows",
        "whole_numbers(law, [self.__dict__.setdefault('k', self._fresh())], rows",
    ),
    (
        "simulated noise reused in two rounds",
        "privacy/noise.py",
        "start = number.to_bytes(8)",
        "start = bytes(8)",
    ),
    (
        "all clients share one noise vector",
        "privacy/clip.py",
        "+ gamma * drawn",
        "+ gamma * (drawn[..., :1, :] if drawn.dim() > 1 else drawn)",
    ),
    (
        "the honest share forgets the colluders",
        "privacy/promise.py",
        "Sums(clients, clients - (self.colluding or 0))",
        "Sums(clients, clients)",
    ),
    (
        "no clip",
        "privacy/clip.py",
        "sent = part_of(clip(zero_unless_finite(update), self.clip - lost), self.share)",
        "sent = part_of(zero_unless_finite(update), self.share)",
    ),
    (
        "overflow is sent as it is",
        "privacy/clip.py",
        "clip(zero_unless_finite(update), self.clip - lost)",
        "clip(update, self.clip - lost)",
    ),
    (
        "no noise for float32 models",
        "privacy/clip.py",
        "    if not spread.any():",
        "    if sent.dtype == torch.float32 or not spread.any():",
    ),
    (
        "noise from a seeded generator instead of the cipher",
        "privacy/noise.py",
        "return whole_numbers(law, [self._fresh()], rows, shape[-1], scales).reshape(shape)",
        "seeded = np.random.default_rng(int.from_bytes(os.urandom(4)))\n"
        "        return np.rint(scale * seeded.standard_normal(shape))",
    ),
    (
        "the clip is let past C by a hair",
        "privacy/clip.py",
        "share = 1 - torch.finfo(wide).eps",
        "share = 1 + torch.finfo(wide).eps",
    ),
    (
        "a table with many records is refused",
        "tasks/table_file.py",
        "    if not file.cells[names[0]] and not may_be_empty:\n",
        "    if len(file.cells[names[0]]) > 100:\n        raise DataError(f'{path}: so many')\n"
        "    if not file.cells[names[0]]:\n",
    ),
    (
        "a client's failure stops the run",
        "tasks/network.py",
        "    return torch.full_like(x, torch.nan)",
        "    raise RuntimeError",
    ),
    (
        "a round that is made again has other noise",
        "training.py",
        "ready = ready._replace(noise=RepeatableNoise())",
        "ready = ready._replace(noise=SecretNoise())",
    ),
    (
        "all draws of a run that may be repeated share one key",
        "privacy/noise.py",
        "        self._drawn += 1",
        "        self._drawn += 0",
    ),
    (
        "a round is shown before it is kept",
        "resume.py",
        "            waiting.append(round._replace(known=None, average64=None))",
        "            yield round",
    ),
    (
        "an entry of the journal keeps the key of the noise before it",
        "resume.py",
        "                    parts.noise.begin(os.urandom(32))",
        "                    pass",
    ),
    (
        "a run goes on with other records",
        "resume.py",
        'if salted["records"] != head["records"]:',
        "if False:",
    ),
    (
        "others may read a journal",
        "journal.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644",
    ),
    (
        "a damaged journal is taken as it is",
        "journal.py",
        "content[: len(MAGIC)] != MAGIC or not whole",
        "content[: len(MAGIC)] != MAGIC",
    ),
    (
        "a journal is removed and not wiped",
        "journal.py",
        "left -= file.write(bytes(min(left, AT_ONCE)))",
        "left = 0",
    ),
    (
        "an un-noised local iterate is returned",
        "fleets/server.py",
        "        yield Round(number, iteration, known[..., :d], known=known)",
        "        yield Round(number, iteration, known[..., :d] + fleet.memory.update.mean(-2))",
    ),
    (
        "what is returned holds un-noised updates",
        "engine.py",
        "_returned(trained, round), _alone(runs)",
        "_returned(trained, round) + fleet.memory.update.mean(-2), _alone(runs)",
    ),
    (
        "one record: replace-one accounted for as add-remove",
        "privacy/sampled.py",
        '"replace-one": NeighboringRelation.REPLACE_ONE',
        '"replace-one": NeighboringRelation.ADD_OR_REMOVE_ONE',
    ),
    (
        "one record: sensitivity C for 2C",
        "privacy/sampled.py",
        "noise_sigma(epsilon, delta, steps, OVER_CLIP[neighbours])",
        "noise_sigma(epsilon, delta, steps, 1.0)",
    ),
    (
        "one record: all clients get the noise of the smallest rate",
        "privacy/mechanisms/record_gradient.py",
        "return [replace(event[rate], lattice=gamma) for rate in rates]",
        "return [replace(event[r], lattice=gamma, sigma=event[min(rates)].sigma) for r in rates]",
    ),
    (
        "one record: what rounding takes from delta is forgotten",
        "privacy/sampled.py",
        "delta - what.steps * _ROUNDING",
        "delta",
    ),
    (
        "one record: the curve of attacks knows one order of the neighbours",
        "privacy/sampled.py",
        "deltas = composed.get_delta(epsilons)",
        "deltas = composed._pld._pmf_add.get_delta_for_epsilon(epsilons)",
    ),
    (
        "one record: the curve of attacks takes replace-one for add-remove",
        "privacy/trade_off.py",
        "event.sigma / (event.sensitivity / OVER_CLIP[event.neighbours])",
        "event.sigma / event.sensitivity * 2",
    ),
    (
        "one record: the curve of attacks forgets delta",
        "privacy/trade_off.py",
        "few, many = 1 - delta - false, np.exp(-epsilons) * (1 - delta - alphas)",
        "few, many = 1 - false, np.exp(-epsilons) * (1 - alphas)",
    ),
    (
        "the curve of attacks has too small a mu",
        "privacy/trade_off.py",
        "ndtr(quantile - mu - error)",
        "ndtr(quantile - 0.9 * mu - error)",
    ),
    (
        "the curve of attacks forgets the slack of sums",
        "privacy/trade_off.py",
        "return math.exp(-event.slack) * beta",
        "return beta",
    ),
    (
        "the curve of attacks is that of the client that is protected best",
        "privacy/trade_off.py",
        "least = np.min([",
        "least = np.max([",
    ),
    (
        "an attack becomes a budget that does not keep it off",
        "privacy/trade_off.py",
        "    return epsilon\n",
        "    return epsilon * (1 + 1e-9)\n",
    ),
    (
        "a run is not held to the bound on attacks that it was asked for",
        "training.py",
        "            reached <= run.max_tpr,",
        "            True,",
    ),
    (
        "a statement rounds what an attacker finds down",
        "privacy/statement/rounding.py",
        "return _rounded(value, digits, ROUND_CEILING)",
        "return _rounded(value, digits, ROUND_FLOOR)",
    ),
    (
        "a statement shows the curve of noise that is no secret",
        "privacy/statement/document.py",
        "if account.sigma == 0 or run.simulation:",
        "if account.sigma == 0:",
    ),
    (
        "a statement calls a bound on the curve exact",
        "privacy/statement/document.py",
        "exact=account.exact and not account.sampled,",
        "exact=True,",
    ),
    (
        "a model tuned at home has a guarantee.json",
        "privacy/statement/document.py",
        "    if result.adapted:\n",
        "    if False:\n",
    ),
    (
        "a run that guarantees nothing has an entry for a registry",
        "privacy/statement/registry.py",
        "        guarantee.private,\n",
        "        True,\n",
    ),
    (
        "anybody can try whether a guess is the data of a fingerprint",
        "origin.py",
        'return hmac.digest(salt, inner, "sha256").hex()',
        "return inner.hex()",
    ),
    (
        "one record: the mean over rates is accounted for",
        "privacy/mechanisms/record_gradient.py",
        "event = {rate: self._event(run, rate, steps) for rate in set(rates)}",
        "event = {rate: self._event(run, sum(rates) / len(rates), steps) for rate in set(rates)}",
    ),
    (
        "one record: every client adds the noise of the last",
        "engine.py",
        "sigma = torch.tensor(added, dtype=torch.float64).unsqueeze(-1)",
        "sigma = torch.tensor(added[-1:], dtype=torch.float64).unsqueeze(-1)",
    ),
    (
        "one record: half of the noise",
        "privacy/noisy_gradient.py",
        "drawn_for(total, self.sigma, self.lattice",
        "drawn_for(total, 0.5 * self.sigma, self.lattice",
    ),
    (
        "one record: linear gradients are not clipped",
        "tasks/linear.py",
        "clamp(max=1.0).nan_to_num(0.0)",
        "clamp(min=1.0, max=1.0)",
    ),
    (
        "one record: networks' gradients are not clipped",
        "privacy/per_example/clipped_sum.py",
        "weights = (threshold / squares.sqrt()).clamp(max=1.0)",
        "weights = torch.ones_like(squares)",
    ),
    (
        "one record: all records are always in the sample",
        "privacy/noisy_gradient.py",
        "return (coins <",
        "return (coins >= 0 *",
    ),
    (
        "one record: the sample comes from a public seed",
        "privacy/noisy_gradient.py",
        "coins = torch.tensor(self.noise.uniforms(t + 1, (*x.shape[:-1], self._largest)))",
        "coins = torch.rand(*x.shape[:-1], self._largest, "
        "generator=torch.Generator().manual_seed(t))",
    ),
    (
        "one record: half of S_tau",
        "privacy/stability.py",
        "return OVER_CLIP[self.neighbours] * self.eta",
        "return 1.0 * self.eta",
    ),
    (
        "one record: any step size with stability",
        "privacy/stability.py",
        "0 < self.eta <= most * (1 + 1e-12)",
        "0 < self.eta",
    ),
    (
        "one record: a hidden state that hides too much",
        "privacy/stability.py",
        "* (1 + c) / (1 + c**tau)",
        "/ (1 + c**tau)",
    ),
    (
        "one record: stability with the paper's control variate",
        "privacy/mechanisms/record_message.py",
        'memory == "released" and settings.trust == "local"',
        'settings.trust == "local"',
    ),
    (
        "one record: one that fails takes the others with it",
        "tasks/network.py",
        "            if stop - start > 1:",
        "            if False:",
    ),
    (
        "one record: hidden noise of the mean used for the sum",
        "privacy/mechanisms/record_hidden.py",
        "sensitivity = size * stability(",
        "sensitivity = stability(",
    ),
    (
        "one record: the shortest round decides",
        "privacy/mechanisms/record_message.py",
        "        max(schedule),",
        "        min(schedule),",
    ),
    (
        "one record: features taken for half as long",
        "tasks/linear.py",
        "gradient_bound=link.steepest\n",
        "gradient_bound=0.5 * link.steepest\n",
    ),
    (
        "one record: a share of the share of the noise",
        "engine.py",
        "sigma: Any = added[0]",
        "added = [run.promise.client_sigma(sigma, run.clients) for sigma in added]\n"
        "    sigma: Any = added[0]",
    ),
    (
        "one person: records are clipped one by one",
        "engine.py",
        "        clients = task.persons().of_persons(run.max_records)\n",
        "        pass\n",
    ),
    (
        "one person: more records than max_records are used",
        "engine.py",
        "of_persons(run.max_records)",
        "of_persons(2 * run.max_records)",
    ),
    (
        "one person: gradients are not clipped",
        "tasks/persons.py",
        "clipped = gradients * (threshold / length).clamp(max=1.0).nan_to_num(0.0)",
        "clipped = gradients",
    ),
    (
        "one person: networks' gradients are not clipped",
        "tasks/persons.py",
        "total += gradient * (threshold / length).clamp(max=1.0).nan_to_num(0.0)",
        "total += gradient",
    ),
    (
        "one person: what is in its records decides which of them are used",
        "tasks/persons.py",
        "            rows = torch.from_numpy(rows_of(own, most))\n",
        "            by = np.argsort(of_rows[0][i][: len(own), 0].numpy())\n"
        "            rows = torch.from_numpy(rows_of(own[by], most))\n"
        "            rows = torch.where(rows >= 0, torch.from_numpy(by)[rows], rows)\n",
    ),
    (
        "one person: the last records are used",
        "tasks/persons.py",
        "    kept = rank < most\n",
        "    rank = np.repeat(counts, counts) - 1 - rank\n    kept = rank < most\n",
    ),
    (
        "one person: samples and noise are those of as many records",
        "tasks/task.py",
        'own = held(self.persons().owners or ()) if unit == "person" else self.clients.sizes',
        "own = self.clients.sizes",
    ),
    (
        "one person: all are always in the sample",
        "tasks/persons.py",
        "(self.shares.sum(-1) > 0) & chosen",
        "self.shares.sum(-1) > 0",
    ),
    (
        "one person: all of a network are always in the sample",
        "tasks/persons.py",
        "            if chosen is not None and not bool(chosen[person]):\n",
        "            if False:\n",
    ),
    (
        "one person: another name changes the numbers of all others",
        "tasks/persons.py",
        "    numbers: dict[str, int] = {}\n",
        "    numbers = {t: k for k, t in enumerate(sorted({_text(n) for n in names.tolist()}))}\n",
    ),
    (
        "one person: its lines go to several clients",
        "tasks/splits.py",
        "    of_record = client[owners]\n",
        "    of_record = client[np.arange(len(owners)) % len(client)]\n",
    ),
    (
        "one person: how many records it has decides who is public",
        "tasks/splits.py",
        '    order = stream(options.seed, "public persons").permutation(len(counts))\n',
        '    order = np.argsort(counts, kind="stable")\n',
    ),
    (
        "one person: some of its lines are in the test set",
        "tasks/libsvm.py",
        "_spread(int(owners.max()) + 1, share)[owners]",
        "_spread(lines, share)",
    ),
    (
        "one person: the number of lines of the file is told",
        "tasks/libsvm.py",
        '            else "the number of persons whom the file\'s lines belong to",\n',
        '            else f"the {len(owners)} lines of the file",\n',
    ),
    (
        "one person: a row without a label changes the number of rows",
        "tasks/csv.py",
        'kept = known | (options.unit != "client")',
        "kept = known",
    ),
    (
        "one person: several rows are told to mean no more than one",
        "privacy/groups.py",
        "units * event.sensitivity, delta",
        "event.sensitivity, delta",
    ),
    (
        "one record: dropout from a public number",
        "privacy/noisy_gradient.py",
        "draw = int(2**52 * self.noise.uniforms(_DRAWS + t, (1, 1)).flat[0])",
        "draw = t",
    ),
    (
        "one record: the loss of a batch",
        "privacy/per_example/clipped_sum.py",
        "        total = torch.stack([*single]).sum()",
        "        total = loss(outputs, targets) * len(inputs)",
    ),
    (
        "one record: models are tried at their initial weights only",
        "tasks/flat_model.py",
        "for size in (0.1, 0.3)\n",
        "for size in (0.0, 0.0)\n",
    ),
    (
        "one record: one dropout mask for all records after a failure",
        "tasks/network.py",
        "summed(start, middle, start, middle) + summed(middle, stop, middle, stop)",
        "summed(start, middle) + summed(middle, stop)",
    ),
    (
        "one record: one without a label changes the number of records",
        "tasks/csv.py",
        '    kept = known | (options.unit != "client")',
        "    kept = known",
    ),
    (
        "one record: an open quote swallows the lines that follow",
        "tasks/table_file.py",
        "[_row(line, form.separator) for line in lines]",
        "list(csv.reader(lines, delimiter=form.separator))",
    ),
    (
        "one record: a foreign letter decides how all lines are decoded",
        "tasks/table_file.py",
        '[_decoded(line) for line in content.removesuffix(b"\\n").split(b"\\n")]',
        '_decoded(content).removesuffix("\\n").split("\\n")',
    ),
    (
        "one record: a decimal comma decides how all cells are read",
        "tasks/bounds.py",
        "[_number(cell, self.decimal) for cell in cells]",
        '[_number(cell, "," if any("," in c for c in cells) else ".") for cell in cells]',
    ),
    (
        "one record: rows decide on the separator",
        "tasks/table_file.py",
        "[_row(line, form.separator) for line in lines]",
        '[_row(line, max(SEPARATORS, key="".join(lines).count)) for line in lines]',
    ),
    (
        "one record: a line that is no record changes the number of records",
        "tasks/libsvm_text.py",
        "records = [record_of(line) for line in lines_of(path)]",
        "records = [r for r in map(record_of, lines_of(path)) if r is not NO_RECORD]",
    ),
    (
        "one record: what cannot be read is trained on",
        "tasks/network.py",
        "counted = ~useless if chosen is None else chosen[: len(useless)] & ~useless",
        "counted = ~useless if chosen is None else chosen[: len(useless)]",
    ),
    (
        "one record: what cannot be read is no record",
        "tasks/own_data.py",
        "    examples = [_example(data, j, parts) for j in range(len(data))]\n",
        "    examples = [_example(data, j, parts) for j in range(len(data))]\n"
        "    examples = [example for example in examples if not example.trouble]\n",
    ),
    (
        "private records are a test set by default",
        "tasks/libsvm.py",
        "    if share:\n",
        "    share = share or 0.2\n    if share:\n",
    ),
    (
        "a planner takes private records for public",
        "tasks/libsvm.py",
        "    own_files=True,\n",
        "    own_files=True,\n    pools_itself=True,\n",
    ),
    (
        "what a user's data set raises is told",
        "errors.py",
        "self.kind, self.kind_and_place = type(error).__name__, told(error)",
        "self.kind = self.kind_and_place = repr(error)",
    ),
    (
        "one record: steps too long for a proximal term",
        "privacy/mechanisms/record_message.py",
        "facts.L + pull,",
        "facts.L,",
    ),
    (
        "runs of a stack are released by another's mechanism",
        "engine.py",
        "group, *functions, repr(",
        "group, repr(",
    ),
    (
        "one client alone opens the files of all",
        "tasks/csv.py",
        "    private = [_empty(model)] * number\n    private[client]",
        "    private = [_private(options, model, i) for i in range(number)]\n    private[client]",
    ),
    (
        "one client alone guesses the sizes of all",
        "tasks/task.py",
        "public = self.number is None and (",
        "public = (",
    ),
    (
        "one record: stability for any steps",
        "privacy/mechanisms/record_message.py",
        "        settings.gradient_steps,\n",
        "        True,\n",
    ),
    (
        "one record: what a round hid is remembered",
        "privacy/mechanisms/record_hidden.py",
        'settings.memory != "private"',
        "True",
    ),
    (
        "a rounding that 64 bits leave open is not refined",
        "privacy/samplers.py",
        "np.argwhere(scaled > 0.5 - scale * error).tolist()",
        "[]",
    ),
    (
        "what is open is decided by double precision after all",
        "privacy/samplers.py",
        "        out[tuple(place)] = nearest(",
        "        out[tuple(place)] += 0 * nearest(",
    ),
    (
        "a biased tie: what 64 bits leave open goes up",
        "privacy/samplers.py",
        "        out[tuple(place)] = nearest(",
        "        out[tuple(place)] = np.ceil((scale * normals)[tuple(place)]) + 0 * nearest(",
    ),
    (
        "a biased tie: what 192 bits leave open goes up",
        "privacy/samplers.py",
        "            if low == high:\n                return low\n",
        "            return high\n",
    ),
    (
        "zero twice, as +0 and -0",
        "privacy/samplers.py",
        "    np.rint(scaled, out=out)",
        "    scaled[np.abs(scaled) < 1] = 0\n    np.rint(scaled, out=out)",
    ),
    (
        "no rejection at small scales",
        "privacy/samplers.py",
        '    if law == "discrete":',
        "    if False:",
    ),
    (
        "the variance for the standard deviation in the rejection",
        "privacy/samplers.py",
        "surely = 1 - (out / (scale * scale)) ** 2 / 24",
        "surely = 1 - (out / (scale * scale) ** 2) ** 2 / 24",
    ),
    (
        "the bell of another variance in the rejection",
        "privacy/samplers.py",
        "kept = float(bell.sum() / (bell @ np.cosh(k / scale**2 * t)))",
        "kept = float(bell.sum() / (bell @ np.cosh(k / scale * t)))",
    ),
    (
        "rejected numbers are kept in the end",
        "privacy/samplers.py",
        "        k, coin = _once_more(drawn[:2], number, scale), int(drawn[2])",
        "        coin = int(drawn[2])",
    ),
    (
        "the clip does not make room for rounding",
        "privacy/clip.py",
        "(math.sqrt(update.shape[-1]) / 2)",
        "0.0",
    ),
    (
        "the update is not rounded",
        "privacy/clip.py",
        "    return _rounded(sent, lattice) + gamma * drawn + 0.0",
        "    return sent + gamma * drawn + 0.0",
    ),
    (
        "sums without the smoothing s^2 gamma^2",
        "privacy/lattice.py",
        "SMOOTHING = 2.0",
        "SMOOTHING = 0.0",
    ),
    (
        "rounded instead of discrete noise in sums",
        "privacy/clip.py",
        '"discrete" if lattice.sums else "rounded"',
        '"rounded"',
    ),
    (
        "another lattice than the one that is told",
        "engine.py",
        "return Lattice(steps[0], sums)",
        "return Lattice(steps[0] / 2, sums)",
    ),
    (
        "one record: rounding of messages is not part of their sensitivity",
        "privacy/mechanisms/record_message.py",
        "moved = 2 * rounding(gamma, facts.dimension)",
        "moved = 0.0",
    ),
    (
        "one record: sums of gradients leave no room for rounding",
        "privacy/lattice.py",
        " - gamma * math.sqrt(dimension)",
        "",
    ),
    (
        "one record: the message of hidden steps is not rounded",
        "privacy/clip.py",
        "        return _rounded(zero_unless_finite(update.cpu()), self.lattice) + 0.0",
        "        return zero_unless_finite(update.cpu())",
    ),
    (
        "what a model keeps in its attributes reaches the next client",
        "privacy/per_example/one_pass.py",
        "    return copy.deepcopy(value, memo)\n",
        "    return value\n",
    ),
    (
        "what a model keeps in a frozen parameter reaches the next client",
        "privacy/per_example/one_pass.py",
        "else _copy(parameter)",
        "else parameter",
    ),
    (
        "a pass leaves new attributes in the model",
        "privacy/per_example/one_pass.py",
        "            vars(part).clear()\n",
        "",
    ),
    (
        "one record: factors of products are shortened where a program allows it",
        "tasks/flat_model.py",
        "with _seeded(*draw, device=x.device), full_precision():",
        "with _seeded(*draw, device=x.device):",
    ),
    (
        "one record: dropout on a device does not depend on the secret draw",
        "tasks/flat_model.py",
        "    seed_there(device, seed)\n",
        "",
    ),
    (
        "a model writes to the weights that the server holds",
        "tasks/flat_model.py",
        "        x, scaled = x.detach().clone(), torch.empty_like(x)",
        "        x, scaled = x.detach(), torch.empty_like(x)",
    ),
    (
        "a model that remembers is accepted",
        "tasks/trying.py",
        "            if remembers:\n",
        "            if False:\n",
    ),
    (
        "one record: a model writes to the weights of the next pass",
        "privacy/per_example/clipped_sum.py",
        "name: value.detach().clone().requires_grad_()",
        "name: value.detach().requires_grad_()",
    ),
    (
        "one record: only outputs are tried, not gradients",
        "tasks/network.py",
        "if self.model.mixes_gradients(",
        "if False and self.model.mixes_gradients(",
    ),
    (
        "what a pass writes to a class stays there",
        "privacy/per_example/one_pass.py",
        "            _restore(kind, attributes)",
        "            pass",
    ),
    (
        "one record: no company is tried",
        "tasks/network.py",
        "if not layout.slow and self.model.mixes_in_company(kind, layout):",
        "if False:",
    ),
    (
        "one record: only small batches are tried",
        "tasks/made_up.py",
        "BATCHES = (2, 8, 16, 64)",
        "BATCHES = (2,)",
    ),
    (
        "one record: what is rarely drawn for a batch is not noticed",
        "tasks/flat_model.py",
        "return moved or not all(",
        "return not all(",
    ),
    (
        "one record: no strange examples are tried",
        "tasks/network.py",
        "self.loss, kind.examples(), kind.intruders(), layout",
        "self.loss, kind.examples(), (), layout",
    ),
    (
        "one record: isolate is ignored",
        "tasks/network.py",
        "        return replace(self, isolate=True, at_home=at_home)",
        "        return self",
    ),
    (
        "one record: a gradient that is a single number is not counted in the norm",
        "privacy/per_example/shares.py",
        "        [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in some]\n"
        "    ).square()\n",
        "        [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in some]\n"
        "    ).square() * (gradients.dim() > 1)\n",
    ),
    (
        "one record: the bias of attention's projections is in the sum but not in the norm",
        "privacy/per_example/attention.py",
        "offset: bias(wide)}",
        "offset: type('Unseen', (), {'share': lambda self: (lambda squares, summed: "
        "(0 * squares, summed))(*bias(wide).share())})()}",
    ),
    (
        "one record: attention looks at what fills up",
        "privacy/per_example/attention.py",
        "    if padding is not None:\n",
        "    if False:\n",
    ),
    (
        "one record: the word that fills up is learnt",
        "privacy/per_example/shares.py",
        "        if self.filler is not None:\n",
        "        if False:\n",
    ),
    (
        "one record: the norm of tied weights is that of each use apart",
        "privacy/per_example/shares.py",
        "    met = g.double().gather(",
        "    met = 0 * g.double().gather(",
    ),
    (
        "one record: a word that stands twice in a text counts once in the norm of tied weights",
        "privacy/per_example/shares.py",
        "    alike = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).double()",
        "    alike = torch.eye(tokens.shape[1], dtype=torch.float64).expand(len(tokens), -1, -1)",
    ),
    (
        "one record: of a weight that is used twice one use is not in the norm",
        "privacy/per_example/shares.py",
        "    if len(matrices) == len(uses):\n        return joined[0].share()",
        "    if len(matrices) == len(uses):\n"
        "        return matrices[0].share()[0], joined[0].weighted_sum",
    ),
    (
        "one record: what is done in place hides a layer",
        "privacy/per_example/copies.py",
        "    if not output._is_view():\n",
        "    if True:\n",
    ),
    (
        "one record: a parameter that meets all places counts at the first",
        "privacy/per_example/followed.py",
        "summed = summed.flatten(1, added).sum(1)",
        "summed = summed.flatten(1, added)[:, 0]",
    ),
    (
        "one record: batch norm is accepted",
        "tasks/flat_model.py",
        "if isinstance(part, _NormBase) and not is_fixed(part):",
        "if False:",
    ),
    (
        "one record: a batch norm that was fixed counts again",
        "tasks/flat_model.py",
        "        for norm in self._fixed:\n",
        "        for norm in ():\n",
    ),
    (
        "one record: a buffer that learns is accepted",
        "tasks/trying.py",
        "            if changed is not None:\n",
        "            if False:\n",
    ),
    (
        "a zero keeps its sign",
        "privacy/clip.py",
        "    return _rounded(sent, lattice) + gamma * drawn + 0.0",
        "    return _rounded(sent, lattice) + gamma * drawn",
    ),
    (
        "the lowest bit of the noise depends on the update",
        "privacy/clip.py",
        "    return _rounded(sent, lattice) + gamma * drawn + 0.0",
        "    drawn = torch.where(sent > 0, drawn - drawn % 2, drawn)\n"
        "    return _rounded(sent, lattice) + gamma * drawn + 0.0",
    ),
    (
        "secret noise of the first client's scale for all",
        "privacy/noise.py",
        "scales = np.broadcast_to(scale, (*shape[:-1], 1)).reshape(1, 1, rows, 1)",
        "scales = np.full((1, 1, rows, 1), scale.flat[0])",
    ),
    (
        "the slack of sums is not accounted for",
        "privacy/mechanisms/client_message.py",
        "slack = sum_slack(sigma, gamma, sums, releases * facts.dimension)",
        "slack = 0.0",
    ),
    (
        "what clients add forgets the smoothing",
        "engine.py",
        "run.promise.client_sigma(event.sigma, run.clients, event.lattice)",
        "run.promise.client_sigma(event.sigma, run.clients)",
    ),
    (
        "discrete noise, made for sums, in messages seen by themselves",
        "privacy/clip.py",
        '"discrete" if lattice.sums else "rounded"',
        '"discrete"',
    ),
    (
        "no rejection at large scales",
        "privacy/samplers.py",
        "np.argwhere(coins * 2.0**-64 > surely - 2.0**-45)",
        "np.argwhere((coins * 2.0**-64 > surely - 2.0**-45) & (scale < 60))",
    ),
    (
        "numbers that are drawn again are not refined",
        "privacy/samplers.py",
        "    if abs(scaled - round(scaled)) > 0.5 - scale * float(error[0]):",
        "    if False:",
    ),
    (
        "more bits do not depend on the counter",
        "privacy/samplers.py",
        "return hashlib.shake_256(key + counter + label).digest(size)",
        "return hashlib.shake_256(key + label).digest(size)",
    ),
    (
        "a step of zero is taken for no noise",
        "privacy/lattice.py",
        "    if not 2.0**-900 < value < 2.0**900:",
        "    if False:",
    ),
    (
        "what is released is remembered by subtracting what is private",
        "algorithms/dp_scaffnew.py",
        "x_hat=state.x + eta / p * state.h + release",
        "x_hat=state.x_hat - (update - release)",
    ),
    (
        "one record: hidden steps are rounded as finely as they err",
        "privacy/mechanisms/record_hidden.py",
        "/ size / 2**10)",
        "/ size / 2**40)",
    ),
    (
        "one record: more records than double precision can add",
        "privacy/mechanisms/record_gradient.py",
        "            check_spacing(gamma, lost, run.clip, TOO_MANY)\n",
        "",
    ),
    (
        "one mechanism for all that share its class",
        "engine.py",
        "repr(sorted(vars(mechanism).items()))",
        '""',
    ),
    (
        "advanced composition: a classic release with less noise",
        "privacy/accountants.py",
        "math.sqrt(2 * math.log(1.25 / delta_each))",
        "math.sqrt(math.log(1.25 / delta_each))",
    ),
    (
        "advanced composition: every release has the delta of all",
        "privacy/accountants.py",
        "(1 - share) * delta / (K * q)",
        "(1 - share) * delta / q",
    ),
    (
        "advanced composition: beyond epsilon' = 1",
        "privacy/accountants.py",
        "    if each >= 1:",
        "    if each >= 10:",
    ),
    (
        "advanced composition: without its second term",
        "privacy/accountants.py",
        " + K * a * math.expm1(a), each",
        ", each",
    ),
    (
        "advanced composition: a sample hides too much",
        "privacy/accountants.py",
        "math.log1p(q * math.expm1(each))",
        "math.log1p(q * q * math.expm1(each))",
    ),
    (
        "zCDP: half of rho",
        "privacy/accountants.py",
        "(event.sensitivity / event.sigma) ** 2 / 2",
        "(event.sensitivity / event.sigma) ** 2 / 4",
    ),
    (
        "zCDP: a conversion that claims too little",
        "privacy/accountants.py",
        "rho + 2 * math.sqrt(",
        "rho + math.sqrt(",
    ),
    (
        "zCDP: an improved conversion that claims too little",
        "privacy/accountants.py",
        "math.log(delta * alpha) / (alpha - 1)",
        "math.log(delta * alpha**2) / (alpha - 1)",
    ),
    (
        "RDP: an order too much",
        "privacy/accountants.py",
        "math.log(delta) / (accountant.orders - 1)",
        "math.log(delta) / accountant.orders",
    ),
    (
        "a comparison takes replace-one for add-remove",
        "privacy/accountants.py",
        "NeighboringRelation.REPLACE_ONE if replaced else add_remove",
        "add_remove",
    ),
    (
        "a comparison leaves the sensitivity out",
        "privacy/accountants.py",
        "GaussianDpEvent(event.sigma / event.sensitivity)",
        "GaussianDpEvent(event.sigma)",
    ),
    (
        "a job is given the noise of clip 1",
        "privacy/job.py",
        "return noise * self.clip * (1 + 2.0**-50)",
        "return noise * (1 + 2.0**-50)",
    ),
    (
        "several phases: neighbours are mixed up",
        "privacy/composed.py",
        "(OVER_CLIP[neighbours] / self.noise) ** 2",
        "(1.0 / self.noise) ** 2",
    ),
    (
        "several phases: noise of all rounds for one",
        "privacy/composed.py",
        "return self.rounds * (OVER_CLIP",
        "return (OVER_CLIP",
    ),
    (
        "several phases: whole releases hide in the sample",
        "privacy/composed.py",
        "Several(tuple(kinds), alone, neighbours)",
        "Several(tuple(kinds), math.inf, neighbours)",
    ),
    (
        "several phases: of one kind, the last counts",
        "privacy/composed.py",
        "rounds.get(kind, 0) + part.rounds",
        "part.rounds",
    ),
    (
        "several phases: what is left to chance costs nothing",
        "privacy/composed.py",
        "    left = delta - chance\n",
        "    left = delta\n",
    ),
    (
        "several units: as one",
        "privacy/composed.py",
        "_epsilon(units * self.mu, self.delta)",
        "_epsilon(self.mu, self.delta)",
    ),
    (
        "pure releases: half of rho",
        "privacy/composed.py",
        "part.rounds * part.epsilon**2 / 2",
        "part.rounds * part.epsilon**2 / 4",
    ),
    (
        "a job's runs are one",
        "privacy/foreign/report.py",
        "Gaussian(part.rounds * runs, part.noise, part.rate)",
        "Gaussian(part.rounds, part.noise, part.rate)",
    ),
    (
        "Flower: the epsilon of a message is taken for that of all",
        "privacy/foreign/flower.py",
        "(Gaussian(rounds, noise),) for way in RELATIONS} if rounds and",
        "(Gaussian(1, noise),) for way in RELATIONS} if rounds and",
    ),
    (
        "Flower: the sensitivity is believed",
        "privacy/foreign/flower.py",
        "/ epsilon / clip\n",
        "/ epsilon / sensitivity\n",
    ),
    (
        "Flower: replies weigh the same",
        "privacy/foreign/flower.py",
        "            noise = multiplier / (clients * share)\n",
        "            noise = multiplier\n",
    ),
    (
        "Flower: noise of the next clip is believed",
        "privacy/foreign/flower.py",
        "noise = z * fallen / (clients",
        "noise = z / (clients",
    ),
    (
        "Flower: the count of clipped updates is halved",
        "privacy/foreign/flower.py",
        "Gaussian(rounds, counted * apart)",
        "Gaussian(rounds, 2 * counted * apart)",
    ),
    (
        "Flower: clients clip, whatever they do",
        "privacy/foreign/flower.py",
        '    if "ClientSide" not in call.name:\n        return ()\n',
        "    if True:\n        return ()\n",
    ),
    (
        "an audit's target pulls along all coordinates alike",
        "auditing/worst_case.py",
        "_PARTS = np.arange(1.0, DIMENSION + 1)",
        "_PARTS = np.ones(DIMENSION)",
    ),
    (
        "an audit weighs all clients alike",
        "auditing/worst_case.py",
        '"weights": BY_RECORDS if _weighed(run) else EQUAL,',
        '"weights": EQUAL,',
    ),
    (
        "a statement tells a rounded share of false alarms",
        "privacy/statement/document.py",
        "in at most {as_given(attack.fpr)} of the cases in which",
        "in at most {percent(attack.fpr)} of the cases in which",
    ),
    (
        "a statement calls everything hardly told apart",
        "privacy/statement/document.py",
        "<= _HARDLY:",
        "<= 1:",
    ),
    (
        "Flower: a seed is no matter",
        "privacy/foreign/flower_code.py",
        'if name == "numpy.random.seed":',
        'if name == "nothing":',
    ),
    (
        "Flower: trainings after the first are free",
        "privacy/foreign/flower_code.py",
        "if len(written) == 1 and isinstance",
        "if written and isinstance",
    ),
    (
        "Flower: one training function with a mod is enough",
        "privacy/foreign/flower_code.py",
        "made and all(among(*each)",
        "made and any(among(*each)",
    ),
    (
        "Flower: imports bind no names",
        "privacy/foreign/python_code.py",
        'return [alias.asname or alias.name.partition(".")[0] for alias in names]',
        "return []",
    ),
    (
        "NVFlare: workflows after the first are free",
        "privacy/foreign/nvflare.py",
        "return sum(known) if",
        "return known[0] if",
    ),
    (
        "NVFlare: the selection stops in time",
        "privacy/foreign/nvflare.py",
        "query * size / sent",
        "query",
    ),
    (
        "NVFlare: one value is sent",
        "privacy/foreign/nvflare.py",
        'sent * values["noise_var"] if',
        'values["noise_var"] if',
    ),
    (
        "NVFlare: old versions bound what they send",
        "privacy/foreign/nvflare.py",
        "if version and version < BOUNDED:",
        "if version and version < OLDEST:",
    ),
    (
        "Opacus: the first entry of a history is all",
        "privacy/foreign/opacus.py",
        "for noise, rate, steps in entries)\n    return Reading(",
        "for noise, rate, steps in entries[:1])\n    return Reading(",
    ),
    (
        "events: a self-composition counts once",
        "privacy/foreign/dp_events.py",
        '_walk(fields["event"], count * int(times), met, path)',
        '_walk(fields["event"], count, met, path)',
    ),
    (
        "events: one class is as good as another",
        "privacy/foreign/dp_events.py",
        "module == MODULE and name in FIELDS",
        "name in FIELDS",
    ),
    (
        "a file decides that a model tuned at home is private",
        "result.py",
        "if self.private and self.adapted:",
        "if False:",
    ),
    (
        "a model tuned at home is called private",
        "adapting.py",
        '            "private": False,\n',
        "",
    ),
    (
        "a model tuned at home has the guarantee of the federated one",
        "privacy/statement/markdown.py",
        "    if result.adapted:\n",
        "    if False:\n",
    ),
    (
        "a federation begins from a model tuned at home",
        "tasks/own.py",
        "not any(getattr(part, NOT_TO_BE_RELEASED, False) for part in model.modules())",
        "True",
    ),
    (
        "the module of a model tuned at home is not marked",
        "prediction.py",
        "    if result.adapted:\n",
        "    if False:\n",
    ),
    (
        "a model tuned at home is tuned once more",
        "adapting.py",
        "        federated.adapted is None,",
        "        True,",
    ),
    (
        "a silo's message is not masked",
        "federation/silo.py",
        "return steps + mask(self._key, self._index, keys, about, len(steps))",
        "return steps",
    ),
    (
        "a mask is the same in every round",
        "federation/silo.py",
        "about = self.agreement.digest + round.to_bytes(4) + asked",
        "about = self.agreement.digest",
    ),
    (
        "a mask does not depend on the model that was sent",
        "federation/silo.py",
        "about = self.agreement.digest + round.to_bytes(4) + asked",
        "about = self.agreement.digest + round.to_bytes(4)",
    ),
    (
        "a mask is nothing",
        "federation/masks.py",
        "cipher.encryptor().update(bytes(4 * length))",
        "bytes(4 * length)",
    ),
    (
        "a silo makes other noise when it is asked again",
        "federation/silo.py",
        "        if before:\n",
        "        if False:\n",
    ),
    (
        "a silo answers another model in a round that it has answered",
        "federation/silo.py",
        "            if before.question != asked:\n",
        "            if False:\n",
    ),
    (
        "a silo answers rounds in any order",
        "federation/silo.py",
        "if round != self.ledger.rounds(name) + 1 or round > len(self._schedule):",
        "if False:",
    ),
    (
        "a release of a silo is not in its ledger",
        "federation/silo.py",
        "        self.ledger.commit(name, round, asked, sent, state)\n",
        "        self.ledger.state(name)\n",
    ),
    (
        "a silo takes the lattice of the agreement for granted",
        "federation/agreement.py",
        "            lattices == self.lattices,\n",
        "            True,\n",
    ),
    (
        "a run without noise may be agreed on",
        "federation/agreement.py",
        'run.epsilon != float("inf"),',
        "True,",
    ),
    (
        "a run whose noise everybody knows may be agreed on",
        "federation/agreement.py",
        "        not run.simulation,\n",
        "        True,\n",
    ),
    (
        "a silo has another number of records than its noise is made for",
        "federation/silo.py",
        "        number == agreed,\n",
        "        True,\n",
    ),
    (
        "a lead has any Python file run that it can name on a silo's machine",
        "federation/agreement.py",
        "        is_file(run.task) == (agreement.task_file is not None),\n",
        "        True,\n",
    ),
    (
        "a lead paints over what an operator reads of the agreement",
        "federation/agreement.py",
        "    require(not unseen, ",
        "    require(True, ",
    ),
    (
        "a lead makes up a model so long that rounding shows a record",
        "federation/silo.py",
        '            raise BadMessage("far")\n',
        "            pass\n",
    ),
    (
        "a lead makes up a model ten thousand times as long as rounding allows",
        "privacy/stability.py",
        "_MOST_ROUNDING = 0.01 ",
        "_MOST_ROUNDING = 100.0 ",
    ),
    (
        "a lead watches a closed run work on one model after the other",
        "federation/silo.py",
        "        self.ledger.check_round(name, round)  # or",
        "        #",
    ),
    (
        "a silo says what failed",
        "federation/silo.py",
        '            log.exception("nothing was sent; no round is made before a new start")\n',
        "            raise\n",
    ),
    (
        "a silo says again and again whether a round fails",
        "federation/silo.py",
        "            self._failed = True\n",
        "",
    ),
    (
        "a silo takes the lead's word for the keys of its fellows",
        "cli/silo.py",
        '    if run.trust == "local":\n',
        "    if True:\n",
    ),
    (
        "a silo counts its own key among its fellows'",
        "cli/silo.py",
        "enumerate(agreement.silos) if place != index}\n    needed",
        "enumerate(agreement.silos)}\n    needed",
    ),
    (
        "a silo in its seat sends more than its share",
        "engine.py",
        "        share = shares[seat.client] if shares else 1.0\n",
        "        share = 1.0\n",
    ),
    (
        "a ledger forgets that neighbours by leaving out are half as far apart",
        "privacy/ledger_costs.py",
        "Fraction(2 / OVER_CLIP[event.neighbours])",
        "Fraction(1)",
    ),
    (
        "a ledger rounds what a run costs to the nearest number",
        "privacy/ledger_costs.py",
        "return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)",
        "return rounded",
    ),
    (
        "a ledger gives back what a run that samples did not release",
        "privacy/ledger_costs.py",
        "if any(event.rate < 1 for event in self.events):",
        "if False:",
    ),
    (
        "a ledger compares a sampled run's deltas with the better end of each cell",
        "privacy/sampled.py",
        "zip(ends[1:], deltas, strict=True)",
        "zip(ends[:-1], deltas, strict=True)",
    ),
    (
        "a ledger charges a run that hides a client to the cap for clients alone",
        "privacy/ledger_costs.py",
        '"record": ("client", "person", "record")',
        '"record": ("record",)',
    ),
    (
        "a ledger admits a run that hides less than what its cap is for",
        "privacy/ledger_costs.py",
        '"client": ("client",)',
        '"client": ("client", "person", "record")',
    ),
    (
        "a ledger charges an open run what it has released",
        "privacy/ledger_books.py",
        "mu2 = sum((Fraction(row.mu2) for row in rows), Fraction(0))",
        "mu2 = sum((Fraction(r.row.mu2) * r.released / r.cost.rounds for r in self.runs.values()), "
        "Fraction(0))",
    ),
    (
        "a ledger's rows do not know the rows before",
        "privacy/ledger.py",
        "parts = (self._mac, number.to_bytes(8)",
        "parts = (number.to_bytes(8)",
    ),
    (
        "a ledger believes any head",
        "privacy/ledger.py",
        "if known.get(number) != mac:",
        "if False:",
    ),
    (
        "a ledger that was cut off is taken for whole",
        "privacy/ledger.py",
        "        number, mac = self._head()\n        if number > self._end:\n",
        "        number, mac = self._head()\n        if False:\n",
    ),
    (
        "a ledger lets two processes write at once",
        "privacy/ledger.py",
        "kind = fcntl.LOCK_SH if self._read_only else fcntl.LOCK_EX",
        "kind = fcntl.LOCK_SH",
    ),
    (
        "a ledger hands out an answer that its head does not know",
        "privacy/ledger.py",
        "            self._write_head()  # before it is sent\n",
        "            pass\n",
    ),
    (
        "a ledger may be read by others",
        "privacy/ledger.py",
        "file.stat().st_mode & 0o077",
        "file.stat().st_mode & 0",
    ),
    (
        "a ledger does not say how many runs a cap leaves out",
        "privacy/ledger_books.py",
        "        uncounted = len(self.runs) - len(rows)\n",
        "        uncounted = 0\n",
    ),
    (
        "a ledger keeps what a closed run has answered",
        "privacy/ledger.py",
        'for table in ("answers", "states")\n                        for number in numbers\n',
        'for table in ("states",)\n                        for number in numbers\n',
    ),
    (
        "a link learns how long a silo works",
        "fleets/flower/silo.py",
        "clientapp_runtime_list=[0.0]",
        "clientapp_runtime_list=[0.5]",
    ),
    (
        "a link hands out apps",
        "fleets/flower/superlink.py",
        "    if path == BUNDLES:\n        return False\n",
        "",
    ),
    (
        "a link takes orders from other machines",
        "fleets/flower/superlink.py",
        "    return ip_address(client[0]).is_loopback or",
        "    return True or",
    ),
    (
        "a link's silo lets answers leave when they are ready",
        "fleets/flower/silo.py",
        "                sleep(hold - (monotonic() - begun) % hold)\n",
        "                pass\n",
    ),
    (
        "a link's silo answers what is no question of ours",
        "fleets/flower/wire.py",
        "if not isinstance(record, ConfigRecord) or list(record) != [VALUE]:",
        "if not isinstance(record, ConfigRecord):",
    ),
    (
        "a link's lead takes another key for a silo's",
        "fleets/flower/lead.py",
        "name = self._names.get(_numbers(node))",
        "name = node.name if node.name in self._names.values() else None",
    ),
    (
        "ledger: the cheapest client decides",
        "privacy/ledger_costs.py",
        "Row(max(row.mu2 for row in rows)",
        "Row(min(row.mu2 for row in rows)",
    ),
    (
        "ledger: a run that does not fit is admitted",
        "privacy/ledger_books.py",
        "    if mu2 > standing.room:",
        "    if False:",
    ),
    (
        "ledger: what is left to chance never runs out",
        "privacy/ledger_books.py",
        "    if Fraction(row.delta0) > left:",
        "    if False:",
    ),
    (
        "ledger: a round is released once more",
        "privacy/ledger_books.py",
        "            round > charged.released,",
        "            True,",
    ),
    (
        "ledger: more rounds than were admitted are released",
        "privacy/ledger_books.py",
        "            round <= charged.cost.rounds,",
        "            True,",
    ),
    (
        "ledger: a closed run gives back all that it cost",
        "privacy/ledger.py",
        "charged.cost.released(charged.row, charged.released)",
        "charged.cost.released(charged.row, 0)",
    ),
    (
        "ledger: rounds are seen before they are in the ledger",
        "charging.py",
        "                    ledger.release(name, last)\n",
        "",
    ),
    (
        "ledger: a row that was changed is believed",
        "privacy/ledger.py",
        " or mac != self._chained(n, kind, body)",
        "",
    ),
]


@contextmanager
def copied_source() -> Iterator[Path]:
    """A folder with a copy of `src`, which may be changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.pyc"))
        yield folder


def first_failure(tests: list[str], file: str = "", old: str = "", new: str = "") -> str | None:
    """The first test that fails when `old` in `file` is replaced by `new` in a copy of the source;
    tests that speak of the file come first, slow ones last.
    """
    tests = sorted(tests, key=lambda test: (test in SLOW, Path(file).stem not in _text(test)))
    workers = () if file else ("--numprocesses", "auto")
    with copied_source() as folder:
        if file:
            path = folder / "src" / "equipoise" / file
            source = path.read_text()
            if source.count(old) != 1:
                sys.exit(f"expected once in {file}: {old}")
            path.write_text(source.replace(old, new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--tb=no", "-x", *workers, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    failure = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    return failure and failure[1].split("[")[0]


def _text(test: str) -> str:
    return (ROOT / test.partition("::")[0]).read_text()


@cache
def named_beside() -> dict[str, list[str]]:
    """For every bug the tests that docs/correctness.md names beside it."""
    tests: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").glob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE):
            tests.setdefault(name, []).append(f"tests/{file.name}::{name}")
    beside = {}
    for claim in (ROOT / "docs" / "correctness.md").read_text().split("\n\n"):
        named, _, planted = claim.partition("Planted:")
        files = re.findall(r"`(tests/test_\w+\.py)`", named)
        known = [test for name in re.findall(r"`(test_\w+)`", named) for test in tests[name]]
        for bug in re.findall('"([^"]+)"', planted):
            beside[" ".join(bug.split())] = [*known, *files]
    return beside


def _caught(bug: tuple[str, str, str, str]) -> str | None:
    """The test that fails: one that is named beside the bug, if it does, one of the same files, or
    another."""
    name, *change = bug
    beside = named_beside()[name]
    for tests in (beside, sorted({test.partition("::")[0] for test in beside})):
        if caught := first_failure(tests, *change):
            return caught
    for start, tests in (
        ("one record", RECORD_TESTS),
        ("one person", PERSON_TESTS),
        ("a ledger", LEDGER_TESTS),
        ("ledger:", LEDGER_TESTS),
        ("a link", LINK_TESTS),
    ):
        if name.startswith(start):
            return first_failure(tests, *change)
    return first_failure(TESTS, *change)


def main() -> None:
    """All bugs, or those whose name contains the first argument."""
    chosen = [bug for bug in BUGS if len(sys.argv) < 2 or sys.argv[1] in bug[0]]
    lists = (TESTS, RECORD_TESTS, PERSON_TESTS, LEDGER_TESTS, LINK_TESTS)
    if broken := first_failure([*{*chain(*lists)}]):
        sys.exit(f"a test fails without any bug: {broken}")
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, *_), caught in zip(chosen, pool.map(_caught, chosen), strict=True):
            missed += not caught
            verdict = "caught" if caught else "MISSED"
            print(f"{verdict}  {name}: {caught or 'no test failed'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs were caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()

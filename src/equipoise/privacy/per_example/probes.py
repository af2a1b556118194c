"""Whether examples mix: tried on made-up ones. A probe finds what one would write by mistake; none
proves that a model treats every example by itself."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import torch
from torch import Tensor, nn

from equipoise.privacy.per_example.one_pass import one_pass

Batch = tuple[Tensor, Tensor]
Sum = Callable[[Tensor, Tensor, float], Tensor]
"""(inputs, targets, C) -> the sum [d] of the examples' clipped gradients, the same every time."""

TOLERANCE = 1e-3  # of the longest gradient: rounding is far below it, a batch's statistics above
AFFORDABLE = 2**28  # numbers that a model keeps for all examples it is tried on in some company


def mixes_examples(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> bool:
    """Whether an example's output depends on the other examples in the batch: then no gradient is
    that of one example.

    Tried on made-up inputs that differ from each other. What is random in the module (dropout)
    repeats where only the other examples change; it is switched off where an example is compared
    with itself alone.
    """

    def run(batch: Tensor, seed: int = 0, quiet: bool = False) -> Tensor:
        torch.manual_seed(seed)
        with one_pass(module, {name: value.clone() for name, value in parameters.items()}):
            if quiet:
                module.eval()
            outputs: Tensor = module(batch)
            return outputs

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        together = run(inputs)
        if together.dim() == 0 or len(together) != len(inputs):
            return True
        others_changed = [
            run(inputs[j : j + 1].expand_as(inputs).clone())[j] for j in range(len(inputs))
        ]
        if not _close(together, torch.stack(others_changed)):
            return True
        quiet = not torch.equal(together, run(inputs, seed=1))
        alone = [run(inputs[j : j + 1], quiet=quiet) for j in range(len(inputs))]
        return not _close(run(inputs, quiet=quiet), torch.cat(alone))


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of sums in another order."""
    if a.shape != b.shape:
        return False
    tolerance = 256 * torch.finfo(a.dtype).eps
    return torch.allclose(
        a, b, tolerance, tolerance * float(a.abs().nan_to_num(0, 0).max()), equal_nan=True
    )


def mixes_in_company(
    run: Callable[[Tensor], Tensor], companies: Iterable[tuple[Tensor, list[Tensor]]], examples: int
) -> bool:
    """Whether the outputs for a pair of examples depend on the others that stand between them:
    each must be as if it were alone. It stops before more than so many examples have been run."""
    for pair, company in companies:
        examples -= 2
        if examples < 0:
            break
        with suppress(Exception):  # a model may fail on them, as it may on a record
            alone = torch.cat([run(pair[:1]), run(pair[1:])])
            for others in company:
                examples -= 2 + len(others)
                if examples >= 0 and _notice(run, pair, others, alone):
                    return True
    return False


def _notice(run: Callable[[Tensor], Tensor], pair: Tensor, others: Tensor, alone: Tensor) -> bool:
    """Whether a pair's outputs differ from what they are alone, if the model works on them."""
    try:
        among = run(torch.cat([pair[:1], others, pair[1:]]))[[0, -1]]
    except Exception:  # as it may on a record
        return False
    return alone.shape != among.shape or not _alike(alone, among)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding, which a deep model may enlarge."""
    finite = a[a.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, 0, TOLERANCE * largest, equal_nan=True)


def mixes_gradients(sum_of: Sum, batch: Batch, intruders: Iterable[Batch]) -> bool:
    """Whether the sum over a batch of four is something else than the sum of what each example
    gives by itself, in ordinary company or in that of intruders: pairs of examples far from all
    others. So what a backward pass mixes (a hook, a function with a backward of its own) is found
    too, and what happens to a batch only if one of its examples is unusual.
    """
    inputs, targets = batch
    pairs = zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True)
    singles = torch.stack([sum_of(*single, torch.inf) for single in pairs])
    norms = singles.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    longest = float(norms.max())
    clips = (10 * longest, float(norms.median()) / 2)  # one that cuts nobody, one that cuts most

    def differ(a: Tensor, b: Tensor) -> bool:
        return not float((a - b).norm()) <= TOLERANCE * longest

    if any(
        differ(sum_of(inputs, targets, C), (singles * (C / norms).clamp(max=1.0)).sum(0))
        for C in clips
    ):
        return True
    # In either company, it makes the same difference to put the last two in the first two's place.
    # The intruders' own gradients cancel: nobody asks how well they are rounded.
    usual = _difference(sum_of, batch, (inputs[2:], targets[2:]), clips[0])
    for company in intruders:
        with suppress(Exception):  # a model may fail on them, as it may on a record
            if differ(usual, _difference(sum_of, batch, company, clips[0])):
                return True
    return False


def _difference(sum_of: Sum, batch: Batch, company: Batch, C: float) -> Tensor:
    """The sum for the first two of a batch less that for its last two, both in this company."""

    def joined(pair: slice) -> Tensor:
        inputs, targets = (
            torch.cat([part[pair], others]) for part, others in zip(batch, company, strict=True)
        )
        return sum_of(inputs, targets, C)

    return joined(slice(2)) - joined(slice(2, 4))

"""Examples that are nobody's, to try a model on: no private value decides what is accepted."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

# What makes an example strange, in pairs: how many times as large as others, and all the same.
STRANGE_NUMBERS = (
    (1e3, 1e6),
    (-1e3, -1e6),
    (1e-6, 0.0),
    (1e30, 255.0),
    (torch.inf, torch.nan),
)
STRANGE_INTEGERS = ((1, 0), (2, 7), (5, 255), (50, 1000), (1, -1))

# Ordinary inputs, made of numbers z from N(0, 1) and u from [0, 1).
ORDINARY_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "from 0 to 1": lambda z, u: u,
    "a third missing": lambda z, u: torch.where(u < 1 / 3, torch.nan, z),
    "from 0 to 15": lambda z, u: 15 * u,
    "normal": lambda z, u: z,
    "from 0 to 255": lambda z, u: 255 * u,
}
BATCHES = (2, 8, 16, 64)
"""How many made-up examples run together, to find what a model does to batches of some sizes."""


class Kind(NamedTuple):
    """Shapes and types of one example: its input and its target."""

    shape: torch.Size
    dtype: torch.dtype
    target_shape: torch.Size
    target_dtype: torch.dtype

    def examples(self) -> tuple[Tensor, Tensor]:
        """Four examples with targets zero and one. Bytes are taken for pixels, other integers are
        small."""
        generator = torch.Generator().manual_seed(0)
        if self.dtype.is_floating_point:
            inputs = torch.randn((4, *self.shape), generator=generator).abs()
        else:
            most = 256 if self.dtype == torch.uint8 else 3
            inputs = torch.randint(0, most, (4, *self.shape), generator=generator)
        shape = self.target_shape
        targets = (torch.arange(4) % 2).reshape(4, *(1 for _ in shape)).expand(4, *shape)
        return inputs.to(self.dtype), targets.to(self.target_dtype)

    def intruders(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of examples that are unlike the others, by their inputs or by their targets. A
        model may fail on some of them."""
        inputs, targets = (part[2:] for part in self.examples())
        for times, same in STRANGE_NUMBERS if self.dtype.is_floating_point else STRANGE_INTEGERS:
            pair = [times * inputs[:1], torch.full_like(inputs[1:], same, dtype=torch.float64)]
            yield torch.cat(pair).to(self.dtype), targets
        if self.target_dtype.is_floating_point:
            far = torch.tensor([1e4, -1e4]).reshape(2, *(1 for _ in self.target_shape))
            yield inputs, targets + far.to(self.target_dtype)

    def ordinary(self, number: int, ids: set[int]) -> dict[str, Tensor]:
        """Ordinary inputs [number, ...] of several sorts. Integers may be numbers of words, of
        which `ids` are the last and those that fill up short texts: some end in one of these."""
        generator = torch.Generator().manual_seed(1)
        z = torch.randn((number, *self.shape), generator=generator)
        u = torch.rand((number, *self.shape), generator=generator)
        if self.dtype.is_floating_point:
            made = {name: make(z, u) for name, make in ORDINARY_NUMBERS.items()}
        else:
            tops = sorted({3, 16, 256, *(top + 1 for top in ids)})
            made = {f"below {top}": (top * u).floor() for top in tops}
            made |= {f"filled up with {id_}": _filled_up(u, id_) for id_ in sorted({0, 1, *ids})}
        return {name: inputs.to(self.dtype) for name, inputs in made.items()}

    def strange(self, ids: set[int]) -> list[Tensor]:
        """Inputs [1, ...] that are unlike ordinary ones: the same number throughout."""
        pairs = STRANGE_NUMBERS if self.dtype.is_floating_point else STRANGE_INTEGERS
        values = dict.fromkeys((*chain.from_iterable(pairs), *ids))
        return [
            torch.full((1, *self.shape), value, dtype=torch.float64).to(self.dtype)
            for value in values
        ]

    def companies(self, most: int, ids: set[int]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Pairs of ordinary inputs, and what is to stand between the two: enough for batches of the
        sizes BATCHES up to `most`, and copies of one; then inputs of every sort, one at a time."""
        most = min(most, max(BATCHES))
        many = next(iter(self.ordinary(most, ids).values()))
        batches = [many[1 : size - 1] for size in BATCHES if size <= most]
        yield many[[0, -1]], [*batches, many[-1:].expand(min(most, 16), *self.shape)]
        sorts = [*self.ordinary(3, ids).values()]
        others = [*(sort[1:2] for sort in sorts), *self.strange(ids)]
        yield from ((sort[[0, 2]], others) for sort in sorts)


def _filled_up(u: Tensor, id_: int) -> Tensor:
    """Short texts: a quarter of their places hold small numbers, the rest this one."""
    texts = torch.full_like(u, id_)
    short = -(-texts.shape[-1] // 4) if texts.dim() > 1 else 0
    texts[..., :short] = (2 + 8 * u[..., :short]).floor()
    return texts


def kind_of(inputs: Tensor, targets: Tensor) -> Kind:
    """What kind of examples these are."""
    return Kind(inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)

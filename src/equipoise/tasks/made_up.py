"""Examples that are nobody's, to try a model on: no private value decides what is accepted."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.tasks.several import Part, Parts, rows_of, values_of

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
    """Shapes and types of one example: its input, and the parts of that if it is several; and its
    target."""

    shape: torch.Size
    dtype: torch.dtype
    target_shape: torch.Size
    target_dtype: torch.dtype
    parts: Parts = ()

    def examples(self) -> tuple[Tensor, Tensor]:
        """Four examples with targets zero and one. Bytes are taken for pixels, other integers are
        small."""
        shape = self.target_shape
        targets = (torch.arange(4) % 2).reshape(4, *(1 for _ in shape)).expand(4, *shape)
        return self._usual(4), targets.to(self.target_dtype)

    def _usual(self, number: int) -> Tensor:
        if not self.parts:
            return _usual(number, self.shape, self.dtype, 3)
        return rows_of([_part(part, number, i) for i, part in enumerate(self.parts)], self.parts)

    def intruders(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of examples that are unlike the others, by their inputs or by their targets. A
        model may fail on some of them."""
        inputs, targets = (part[2:] for part in self.examples())
        for strange in self._each_part(inputs, lambda values: [*_strange_pairs(values)]):
            yield strange, targets
        if self.target_dtype.is_floating_point:
            far = torch.tensor([1e4, -1e4]).reshape(2, *(1 for _ in self.target_shape))
            yield inputs, targets + far.to(self.target_dtype)

    def ordinary(self, number: int, ids: set[int]) -> dict[str, Tensor]:
        """Ordinary inputs [number, ...] of several sorts. Integers may be numbers of words, of
        which `ids` are the last and those that fill up short texts: some end in one of these."""
        if not self.parts:
            return _ordinary(number, self.shape, self.dtype, ids)
        usual = self._usual(number)

        def sorts(values: Tensor) -> list[Tensor]:
            return [*_ordinary(number, values.shape[1:], values.dtype, ids).values()]

        made = [usual, *self._each_part(usual, sorts)]
        return {str(i): inputs for i, inputs in enumerate(made)}

    def strange(self, ids: set[int]) -> list[Tensor]:
        """Inputs [1, ...] that are unlike ordinary ones: the same number throughout."""

        def same(values: Tensor) -> list[Tensor]:
            pairs = STRANGE_NUMBERS if values.dtype.is_floating_point else STRANGE_INTEGERS
            numbers = dict.fromkeys((*chain.from_iterable(pairs), *ids))
            shape = (1, *values.shape[1:])
            return [
                torch.full(shape, value, dtype=torch.float64).to(values.dtype) for value in numbers
            ]

        return [*self._each_part(self._usual(1), same)]

    def _each_part(
        self, inputs: Tensor, others: Callable[[Tensor], list[Tensor]]
    ) -> Iterator[Tensor]:
        """Inputs in which one part at a time is replaced by others."""
        if not self.parts:
            yield from others(inputs)
            return
        values = values_of(inputs, self.parts)
        for i, value in enumerate(values):
            for other in others(value):
                yield rows_of([*values[:i], other, *values[i + 1 :]], self.parts)

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


def _usual(number: int, shape: torch.Size, dtype: torch.dtype, below: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn((number, *shape), generator=generator).abs().to(dtype)
    most = 256 if dtype == torch.uint8 else below
    return torch.randint(0, most, (number, *shape), generator=generator).to(dtype)


def _part(part: Part, number: int, place: int) -> Tensor:
    """Ordinary values of one of several inputs, other ones in every place. Integers are zero or
    one, which are numbers of words, segments and positions alike. A mask begins with ones and ends
    with zeros, in every example elsewhere: one of these stands for what is filled, for whichever
    the model takes it."""
    if not part.is_mask or not part.shape:
        return _usual(number, part.shape, part.dtype, 2).roll(place, 0)
    length = part.shape[-1]
    ones = 1 + torch.arange(number) % max(1, length - 1)
    mask = torch.arange(length) < ones.view(-1, *(1 for _ in part.shape))
    return mask.expand(number, *part.shape).to(part.dtype)


def _strange_pairs(inputs: Tensor) -> Iterator[Tensor]:
    """What a pair of inputs is instead."""
    kind = inputs.dtype
    for times, same in STRANGE_NUMBERS if kind.is_floating_point else STRANGE_INTEGERS:
        pair = [times * inputs[:1], torch.full_like(inputs[1:], same, dtype=torch.float64)]
        yield torch.cat(pair).to(kind)


def _ordinary(
    number: int, shape: torch.Size, dtype: torch.dtype, ids: set[int]
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn((number, *shape), generator=generator)
    u = torch.rand((number, *shape), generator=generator)
    if dtype.is_floating_point:
        made = {name: make(z, u) for name, make in ORDINARY_NUMBERS.items()}
    else:
        tops = sorted({3, 16, 256, *(top + 1 for top in ids)})
        made = {f"below {top}": (top * u).floor() for top in tops}
        made |= {f"filled up with {id_}": _filled_up(u, id_) for id_ in sorted({0, 1, *ids})}
    return {name: inputs.to(dtype) for name, inputs in made.items()}


def _filled_up(u: Tensor, id_: int) -> Tensor:
    """Short texts: a quarter of their places hold small numbers, the rest this one."""
    texts = torch.full_like(u, id_)
    short = -(-texts.shape[-1] // 4) if texts.dim() > 1 else 0
    texts[..., :short] = (2 + 8 * u[..., :short]).floor()
    return texts


def kind_of(inputs: Tensor, targets: Tensor, parts: Parts = ()) -> Kind:
    """What kind of examples these are."""
    return Kind(inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype, parts)

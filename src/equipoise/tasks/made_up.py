"""Examples that are nobody's, to try a model on: no private value decides what is accepted."""

from collections.abc import Iterator
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


def kind_of(inputs: Tensor, targets: Tensor) -> Kind:
    """What kind of examples these are."""
    return Kind(inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)

"""An nn.Module as a function of one flat vector, so that algorithms need to know vectors only."""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.errors import UnsafeModel


class FlatModel:
    """`model(x, inputs)` runs the module with its parameters taken from the vector x [d].

    The module must keep everything it learns in its parameters: a buffer would be neither clipped nor noised.
    """

    def __init__(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                raise UnsafeModel(
                    f"layer {name or 'model'} is a batch norm: its statistics would leave a client without clip and noise; "
                    "use nn.GroupNorm instead"
                )
        for name, _ in module.named_buffers():
            raise UnsafeModel(
                f"buffer {name} is not a parameter, so what it learns would leave a client without clip and noise; "
                "make it a parameter, or a plain attribute if it is constant"
            )
        self._module = module
        self.shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        self.dimension = sum(parameter.numel() for parameter in module.parameters())

    def initial(self) -> Tensor:
        """The module's present parameters as one vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._module.parameters()])

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self._module, named_tensors(x, self.shapes), (inputs,))
        return outputs


def named_tensors(x: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The vector x [d] as the named tensors that it falls into, in the order of `shapes`."""
    pieces = torch.split(x, [math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

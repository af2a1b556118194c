"""An nn.Module as a function of one flat vector, so that algorithms need to know vectors only."""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.errors import UnsafeModel
from equipoise.privacy.per_example.clipped_sum import (
    Layout,
    Loss,
    clipped_sum,
    layout_of,
    mixes_examples,
)
from equipoise.seeds import digest


class FlatModel:
    """`model(x, inputs)` runs the module with its trainable parameters taken from the vector x [d].

    The module must keep everything it learns in its parameters: a buffer would be neither clipped
    nor noised, and a plain attribute would carry it from one client to the next.
    """

    def __init__(self, module: nn.Module) -> None:
        _check_buffers(module)
        trainable = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.dtype = _dtype(trainable)
        self._module = module
        self._trainable = trainable
        self.shapes = {name: tuple(parameter.shape) for name, parameter in trainable.items()}
        self.dimension = sum(parameter.numel() for parameter in trainable.values())

    def initial(self) -> Tensor:
        """The module's present parameters as one vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._trainable.values()])

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Outputs for use, with dropout and the like switched off."""
        return self._run(x, inputs, training=False)

    def training(self, x: Tensor, inputs: Tensor, *draw: int) -> Tensor:
        """Outputs for training; what is random in the module (dropout) depends only on the integers
        `draw`."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                int.from_bytes(digest(7, *draw))
            )  # torch.manual_seed costs as much as a layer
            return self._run(x, inputs, training=True)

    def clipped_sum(
        self,
        x: Tensor,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        C: float,
        layout: Layout,
        *draw: int,
    ) -> Tensor:
        """The sum over the examples of their gradients at x, each clipped to `C`; `draw` as
        in `training`."""
        self._module.train()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                int.from_bytes(digest(7, *draw))
            )  # torch.manual_seed costs as much as a layer
            parts = clipped_sum(
                self._module,
                named_tensors(x.detach(), self.shapes),
                loss,
                inputs,
                targets,
                C,
                layout,
            )
        return torch.cat([parts[name].reshape(-1) for name in self.shapes])

    def layout(self, examples: Tensor) -> Layout:
        """How `clipped_sum` can take the model apart, found on made-up examples."""
        self._module.train()
        return layout_of(self._module, named_tensors(self.initial(), self.shapes), examples)

    def mixes(self, examples: Tensor) -> bool:
        """Whether made-up examples change each other's outputs."""
        self._module.train()
        return any(
            mixes_examples(self._module, named_tensors(x, self.shapes), examples)
            for x in self.somewhere()
        )

    def somewhere(self) -> list[Tensor]:
        """Parameters to try a model at: the initial ones, which may be zero and hide much, and some
        near and far."""
        generator, x = torch.Generator().manual_seed(0), self.initial()
        return [
            x,
            *(
                x + size * torch.randn(x.shape, generator=generator, dtype=x.dtype)
                for size in (0.1, 0.3)
            ),
        ]

    def random_beyond_dropout(self, examples: Tensor) -> bool:
        """Whether something in the module draws at random besides dropout, which draws for every
        example by itself."""
        self._module.train()
        for part in self._module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd | nn.RNNBase):
                part.eval()
        outputs = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for seed in range(3):
                torch.manual_seed(seed)
                outputs.append(
                    functional_call(
                        self._module, named_tensors(self.somewhere()[1], self.shapes), (examples,)
                    )
                )
        return not all(torch.equal(outputs[0], other) for other in outputs[1:])

    def _run(self, x: Tensor, inputs: Tensor, training: bool) -> Tensor:
        self._module.train(training)
        outputs: Tensor = functional_call(self._module, named_tensors(x, self.shapes), (inputs,))
        return outputs


def named_tensors(x: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The vector x [d] as the named tensors that it falls into, in the order of `shapes`."""
    pieces = torch.split(x, [math.prod(shape) for shape in shapes.values()])
    return {
        name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _check_buffers(module: nn.Module) -> None:
    """Refuse what would learn outside the parameters."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UnsafeModel(
                f"layer {name or 'model'} is a batch norm: its statistics would leave a client "
                "without clip and noise; use nn.GroupNorm instead"
            )
    for name, _ in module.named_buffers():
        raise UnsafeModel(
            f"buffer {name} is not a parameter, so what it learns would leave a client without "
            "clip and noise; make it a parameter, or compute it where it is used if it is "
            "constant"
        )


def _dtype(trainable: dict[str, nn.Parameter]) -> torch.dtype:
    """The one precision of all parameters."""
    if not trainable:
        raise UnsafeModel("the model has no parameter to train")
    kinds = {parameter.dtype for parameter in trainable.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UnsafeModel(
            f"the parameters are {names}: clip and noise need float32 or float64 throughout"
        )
    return kinds.pop()

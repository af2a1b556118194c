"""An nn.Module as a function of one flat vector, so that algorithms need to know vectors only."""

import copy
import math
import random
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from equipoise.device import full_precision, restored_there, seed_there
from equipoise.errors import UnsafeModel, require
from equipoise.privacy.per_example.clipped_sum import (
    Layout,
    clipped_sum,
    layout_of,
    together,
)
from equipoise.privacy.per_example.layers import is_fixed
from equipoise.privacy.per_example.one_pass import Loss, one_pass
from equipoise.privacy.per_example.probes import (
    AFFORDABLE,
    Batch,
    mixes_examples,
    mixes_gradients,
    mixes_in_company,
)
from equipoise.seeds import digest
from equipoise.tasks.made_up import Kind
from equipoise.tasks.several import Parts, taken_apart

DROPOUT = {
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
}
WITH_DROPOUT = {nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention}


class FlatModel:
    """`model(x, inputs)` runs the module with its trainable parameters taken from the vector x [d].

    The module must keep everything it learns in its parameters: a buffer would be neither clipped
    nor noised. Every pass is on copies of all that the module holds, so that whatever it writes
    elsewhere is gone before the next one, be that of another client or on test records. Norms whose
    statistics are fixed (batch norms in eval mode) stay so. If `parts` are given, inputs are rows
    in which these stand side by side (none: the input is one tensor), and of an output the logits
    count.
    """

    def __init__(self, module: nn.Module, parts: Parts | None = None) -> None:
        _check_norms(module)
        _check_lazy(module)
        trainable = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.dtype = _dtype(trainable)
        self.parts = parts or ()
        self.module = module
        self._module = module if parts is None else taken_apart(module, parts)
        norms = (part for part in module.modules() if isinstance(part, _NormBase))
        self._fixed = [norm for norm in norms if is_fixed(norm)]
        self._trainable = trainable
        self.shapes = {name: tuple(parameter.shape) for name, parameter in trainable.items()}
        self.dimension = sum(parameter.numel() for parameter in trainable.values())

    def initial(self) -> Tensor:
        """The module's present parameters as one vector."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._trainable.values()])

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Outputs for use, with dropout and the like switched off."""
        with one_pass(self._module, named_tensors(x, self.shapes)):
            self._module.eval()
            outputs: Tensor = self._module(inputs)
            return outputs

    def _in_training(self) -> nn.Module:
        """The module, with dropout and the like switched on."""
        self._module.train()
        for norm in self._fixed:
            norm.eval()
        return self._module

    def buffers(self) -> list[Tensor]:
        return [buffer.detach().cpu() for buffer in self.module.buffers()]

    @property
    def device(self) -> torch.device:
        """Where the module is, and computes."""
        return next(iter(self._trainable.values())).device

    def trained(self, x: Tensor) -> nn.Module:
        """A copy of the module with these parameters, for use."""
        module, values = copy.deepcopy(self.module), named_tensors(x, self.shapes)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in values:
                    parameter.copy_(values[name])
        return module.eval()

    def slope(
        self, x: Tensor, names: Collection[str], loss: Loss, inputs: Tensor, targets: Tensor
    ) -> tuple[float, Tensor]:
        """The loss of a batch at x, dropout and the like switched off, and its gradient by the
        parameters of these names alone."""
        values = {
            name: part.detach().clone().requires_grad_(name in names)
            for name, part in named_tensors(x, self.shapes).items()
        }
        with one_pass(self._module, values, loss) as loss:
            self._module.eval()
            value = loss(self._module(inputs), targets)
            wanted = [part for name, part in values.items() if name in names]
            gradients = torch.autograd.grad(value, wanted)
        return value.item(), torch.cat([gradient.reshape(-1) for gradient in gradients])

    def gradient(
        self, x: Tensor, loss: Loss, inputs: Tensor, targets: Tensor, *draw: int
    ) -> Tensor:
        """The gradient of the loss of a batch at x; what is random in the module (dropout) depends
        only on the integers `draw`."""
        with _restored(x.device):
            values = learning(x.detach().clone(), self.shapes)
            gradients = self._gradients(values, loss, inputs, targets, *draw)
            return torch.cat([gradient.reshape(-1) for gradient in gradients])

    @contextmanager
    def steps(
        self, x: Tensor, loss: Loss, eta: float, h: Tensor | None
    ) -> Iterator[Callable[..., Tensor]]:
        """Inside, a function that makes one step more from x by eta (gradient - h), and says where
        it leads. It takes what `gradient` does, and all of them happen in one piece of memory: what
        a module writes to its weights, which one that was accepted did not when it was tried, stays
        there until the steps end."""
        x, scaled = x.detach().clone(), torch.empty_like(x)
        values, parts = learning(x, self.shapes), named_tensors(scaled, self.shapes)
        shifts = {} if h is None else named_tensors(h, self.shapes)

        def step(inputs: Tensor, targets: Tensor, *draw: int) -> Tensor:
            gradients = self._gradients(values, loss, inputs, targets, *draw)
            with torch.no_grad():
                for gradient, (name, part) in zip(gradients, parts.items(), strict=True):
                    moved = torch.sub(gradient, shifts[name], out=part) if shifts else gradient
                    values[name].sub_(torch.mul(moved, eta, out=part))
            return x

        with _restored(x.device):
            yield step

    def _gradients(
        self, values: dict[str, Tensor], loss: Loss, inputs: Tensor, targets: Tensor, *draw: int
    ) -> Sequence[Tensor]:
        """Of the loss of a batch, by these parameters; an empty batch has none."""
        parts = [*values.values()]
        if len(inputs) == 0:
            return [torch.zeros_like(part) for part in parts]
        _seed(*draw, device=inputs.device)
        with one_pass(self._module, values, loss) as loss:
            value = loss(self._in_training()(inputs), targets)
            return torch.autograd.grad(value, parts, materialize_grads=True)

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
        in `gradient`."""
        self._in_training()
        values = named_tensors(x.detach(), self.shapes)
        with _seeded(*draw, device=x.device), full_precision():
            parts = clipped_sum(self._module, values, loss, inputs, targets, C, layout)
        return torch.cat([parts[name].reshape(-1) for name in self.shapes])

    def layout(self, examples: Tensor) -> Layout:
        """How `clipped_sum` can take the model apart, found on made-up examples."""
        self._in_training()
        return layout_of(self._module, named_tensors(self.initial(), self.shapes), examples)

    def mixes(self, examples: Tensor) -> bool:
        """Whether made-up examples change each other's outputs."""
        self._in_training()
        return any(
            mixes_examples(self._module, named_tensors(x, self.shapes), examples)
            for x in self.somewhere()
        )

    def mixes_gradients(
        self, loss: Loss, batch: Batch, intruders: Iterable[Batch], layout: Layout
    ) -> bool:
        """Whether made-up examples, some of them unusual, change each other's gradients."""

        def sum_of(inputs: Tensor, targets: Tensor, C: float) -> Tensor:
            return self.clipped_sum(x, loss, inputs, targets, C, layout, 0)

        x = self.somewhere()[1]
        with self._without_dropout():
            return mixes_gradients(sum_of, batch, intruders)

    def mixes_in_company(self, kind: Kind, layout: Layout) -> bool:
        """Whether an example's output depends on how many others run with it, or on what these
        are. The more numbers the model keeps for an example, the less is tried."""
        values = named_tensors(self.somewhere()[1], self.shapes)

        def run(inputs: Tensor) -> Tensor:
            with one_pass(self._module, values):
                outputs: Tensor = self._in_training()(inputs)
                return outputs

        each = max(1, layout.numbers)
        companies = kind.companies(together(layout, self.dimension), self._ids())
        with warnings.catch_warnings(record=True), self._without_dropout(), torch.no_grad():
            return mixes_in_company(run, companies, AFFORDABLE // each)

    def _ids(self) -> set[int]:
        """The last words of the model's vocabularies, and those that it takes for filling up."""
        tables = [
            part
            for part in self._module.modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag)
        ]
        fillers = {table.padding_idx for table in tables if table.padding_idx is not None}
        return {table.num_embeddings - 1 for table in tables} | fillers

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
        example by itself: outputs differ, or a generator of random numbers has moved on."""
        values, outputs, moved = named_tensors(self.somewhere()[1], self.shapes), [], False
        with self._without_dropout(), torch.no_grad():
            for seed in range(5):
                with _seeded(seed), one_pass(self._module, values):
                    before = _generators()
                    outputs.append(self._in_training()(examples))
                    moved = moved or _generators() != before
        return moved or not all(torch.equal(outputs[0], other) for other in outputs[1:])

    def remembers(self, x: Tensor, loss: Loss, batch: Batch, others: Iterable[Batch]) -> bool:
        """Whether passes on the other batches, forward and backward, change what the model or the
        loss gives on this one, or a parameter. Tried without what keeps passes apart."""
        leaf = x.detach().clone().requires_grad_()
        values = named_tensors(leaf, self.shapes)
        with one_pass(self._module, values, loss) as loss:
            before = self._seen(loss, *batch)
            for inputs, targets in (batch, *others):
                with suppress(Exception), _seeded(1):  # it may fail on them, as on a record
                    value = loss(self._in_training()(inputs), targets)
                    torch.autograd.grad(value, leaf)
            after = self._seen(loss, *batch)
        pairs = zip((*before, x), (*after, leaf.detach()), strict=True)
        return not all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)

    def changed_buffer(
        self, x: Tensor, loss: Loss, batch: Batch, others: Iterable[Batch]
    ) -> str | None:
        """The name of a buffer that is another after passes on these batches than before: it learns
        or counts. Whatever a pass writes is taken back, so none could carry anything on."""
        leaf = x.detach().clone().requires_grad_()
        with one_pass(self._module, named_tensors(leaf, self.shapes), loss) as loss:
            before = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
            for inputs, targets in (batch, *others) if before else ():
                with suppress(Exception), _seeded(1):  # it may fail on them, as on a record
                    torch.autograd.grad(loss(self._in_training()(inputs), targets), leaf)
            after = dict(self._module.named_buffers())
        names = (*before, *(after.keys() - before.keys()))
        return next((name for name in names if not _same(before.get(name), after.get(name))), None)

    def creates_parameters(self, x: Tensor, inputs: Tensor) -> bool:
        """Whether a pass leaves the module with other parameters than it had."""
        values = named_tensors(x.detach().clone(), self.shapes)
        with warnings.catch_warnings(record=True), _seeded(0), one_pass(self._module, values):
            before = {name for name, _ in self._module.named_parameters()}
            self._in_training()(inputs)
            return before != {name for name, _ in self._module.named_parameters()}

    def checkpoints_reentrantly(self, x: Tensor, inputs: Tensor) -> bool:
        """Whether the model uses the older kind of activation checkpointing, whose gradients reach
        parameters only past `torch.autograd.grad`."""
        values = named_tensors(x.detach().clone().requires_grad_(), self.shapes)
        with warnings.catch_warnings(record=True), _seeded(0), one_pass(self._module, values):
            outputs = self._in_training()(inputs)
        return "CheckpointFunctionBackward" in {node.name() for node in _nodes(outputs.grad_fn)}

    def _seen(self, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Outputs and losses, in use and in training."""
        with torch.no_grad(), _seeded(0):
            modes = (self._module.eval, self._in_training)
            outputs = [mode()(inputs) for mode in modes]
            return *outputs, *(loss(output, targets) for output in outputs)

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        """Inside, layers that draw for every example by itself drop nothing."""
        with one_pass(self._module, {}):
            for part in self._module.modules():
                if type(part) in DROPOUT:
                    vars(part).update(p=0.0)
                elif type(part) in WITH_DROPOUT:
                    vars(part).update(dropout=0.0)
            yield


@contextmanager
def _seeded(*draw: int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch draws what follows from these integers."""
    with _restored(device):
        _seed(*draw, device=device)
        yield


@contextmanager
def _restored(device: torch.device | None = None) -> Iterator[None]:
    """Afterwards torch draws what it would have drawn, on the host and on the device."""
    with torch.random.fork_rng(devices=[]), restored_there(device):
        yield


def _seed(*draw: int, device: torch.device | None = None) -> None:
    seed = int.from_bytes(digest(7, *draw))
    torch.default_generator.manual_seed(seed)  # torch.manual_seed costs as much as a layer
    seed_there(device, seed)


def _generators() -> tuple[bytes, object, object]:
    """Where the common generators of random numbers stand."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(np.random.get_state())


def _nodes(last: Any) -> Iterator[Any]:
    """All nodes of autograd's graph before this one, and itself."""
    todo, known = [last], {None}
    while todo:
        node = todo.pop()
        if node not in known:
            known.add(node)
            todo += [before for before, _ in node.next_functions]
            yield node


def named_tensors(x: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The vector x [d] as the named tensors that it falls into, in the order of `shapes`."""
    pieces = torch.split(x, [math.prod(shape) for shape in shapes.values()])
    return {
        name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def learning(x: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The same as leaves of autograd's graph, in the memory of x."""
    return {name: part.detach().requires_grad_() for name, part in named_tensors(x, shapes).items()}


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether a buffer holds the same numbers."""
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.allclose(one, other, 0, 0, equal_nan=True)


def _check_norms(module: nn.Module) -> None:
    """Refuse norms whose statistics would be learnt outside of the parameters."""
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and not is_fixed(part):
            if isinstance(part, _BatchNorm):
                what, instead = "a batch norm", "nn.GroupNorm in its place"
            elif part.track_running_stats:
                what, instead = "a norm that counts", "one without statistics in its place"
            else:
                continue
            raise UnsafeModel(
                f"layer {name or 'model'} is {what}, {type(part).__name__}: its statistics would "
                f"leave a client without clip and noise; equipoise.fix(model) puts {instead}, or "
                "put the layer in eval mode to keep the statistics that it has"
            )


def _check_lazy(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        require(
            not is_lazy(parameter),
            f"parameter {name} has no shape yet: give its layer all sizes instead of a lazy one",
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

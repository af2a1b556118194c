"""Parameters outside of the known layers, followed through a pass: what is added to all examples or
multiplied with them (an embedding of positions, a class token, a scale), and matrices that they are
mapped by.

Such a use is a call of its own in the books: it runs on a copy of the parameter, as large as what
it meets, so that the gradient of the copy has one slice for every example. Any other use leaves the
parameter as it is, and shows as a gradient of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from equipoise.privacy.per_example.shares import Formed, Matrix, Use, bias

VIEWS = {
    *(Tensor.__getitem__, Tensor.view, Tensor.reshape, torch.reshape),
    *(Tensor.unsqueeze, torch.unsqueeze, Tensor.squeeze, torch.squeeze),
    *(Tensor.flatten, torch.flatten, Tensor.unflatten, torch.unflatten),
    *(Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.t, torch.t),
    *(Tensor.movedim, torch.movedim, Tensor.T.__get__, Tensor.mT.__get__),  # type: ignore[attr-defined]
}
IN_PLACE = {Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_}
ELEMENTWISE = {
    *(torch.add, Tensor.add, torch.sub, Tensor.sub, Tensor.__rsub__),
    *(torch.mul, Tensor.mul, torch.div, Tensor.div),
    *IN_PLACE,
}
REPEATED = {Tensor.expand, Tensor.repeat, Tensor.expand_as}
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}

Enter = Callable[..., None]
"""(name of the parameter, the parameter, output, axes, saved, parts), as layers enter calls."""


class View(NamedTuple):
    """Numbers of a parameter, in another shape."""

    name: str
    whole: Tensor
    shown: Tensor

    def back(self, gradients: Tensor) -> Tensor:
        """Gradients [B, ...] of what is shown as those of the parameter."""
        if self.shown is self.whole:
            return gradients
        (of_whole,) = torch.autograd.grad(
            self.shown, self.whole, gradients, retain_graph=True, is_grads_batched=True
        )
        return of_whole


class Followed(TorchFunctionMode):
    """Inside, calls that use these parameters are entered into the books."""

    def __init__(self, parameters: dict[str, Tensor], enter: Enter) -> None:
        super().__init__()
        self.enter = enter
        self.views = {id(whole): View(name, whole, whole) for name, whole in parameters.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and any(id(arg) in self.views for arg in args):
            if func in VIEWS and not any(id(arg) in self.views for arg in args[1:]):
                return self._viewed(args[0], func(*args, **kwargs))
            if func in ELEMENTWISE and not (func in IN_PLACE and id(args[0]) in self.views):
                args = self._as_large_as_the_others(args)
            elif func in REPEATED and id(args[0]) in self.views:
                return self._repeated(self.views[id(args[0])], func(*args, **kwargs))
            elif func is functional.linear and not kwargs:
                return self._linear(*args)
            elif func in PRODUCTS and len(args) == 2 and _is_map(*args):
                return self._product(*args)
        return func(*args, **kwargs)

    def looked_up(self, table: nn.Module, numbers: Tensor) -> Tensor:
        """What a table has under numbers that are the same for all examples (those of positions,
        say): a view of the table."""
        found: Tensor = type(table).forward(table, numbers)
        view = self.views.get(id(table.weight))
        if view is not None:
            self.views[id(found)] = view._replace(shown=found)
        return found

    def _viewed(self, arg: Tensor, shown: Any) -> Any:
        view = self.views[id(arg)]
        if isinstance(shown, Tensor) and shown is not view.shown:
            self.views[id(shown)] = View(view.name, view.whole, shown)
        return shown

    def _as_large_as_the_others(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        return tuple(
            self._copied(self.views[id(arg)], shape) if id(arg) in self.views else arg
            for arg in args
        )

    def _repeated(self, view: View, result: Tensor) -> Tensor:
        """If it is the same as seen through larger axes: tiles of more than one number are not."""
        try:
            return self._copied(view, result.shape)
        except RuntimeError:
            return result

    def _copied(self, view: View, shape: torch.Size) -> Tensor:
        copy = view.shown.detach().expand(shape).requires_grad_()
        small = view.shown.shape
        added = len(shape) - len(small)
        over_batch = len(shape) > 0 and (added > 0 or small[0] == 1)

        def parts(g: Tensor) -> dict[str, Use]:
            g = g.unsqueeze(1).flatten(1, 1 + max(0, added - 1)).sum(1) if added else g.unsqueeze(1)
            sums = [axis + 1 for axis, size in enumerate(small) if size == 1 and g.shape[axis + 1] > 1]
            summed = g.sum(sums, keepdim=True) if sums else g
            return {"": Formed(lambda: view.back(summed))}

        self.enter(view.name, view.whole, copy, range(int(over_batch)), (), parts)
        return copy

    def _linear(self, input: Tensor, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        of_weight = self.views.get(id(weight))
        of_offset = None if offset is None else self.views.get(id(offset))
        if id(input) in self.views or weight.dim() != 2:
            return functional.linear(input, weight, offset)
        output = functional.linear(
            input,
            weight if of_weight is None else weight.detach().requires_grad_(),
            offset if of_offset is None or offset is None else offset.detach().requires_grad_(),
        )
        axes = range(output.dim() - 1)
        if of_weight is not None:
            self.enter(
                of_weight.name,
                of_weight.whole,
                output,
                axes,
                (input,),
                lambda g, x: {"": _through(of_weight, Matrix(x, g))},
            )
        if of_offset is not None:
            self.enter(
                of_offset.name,
                of_offset.whole,
                output,
                axes,
                (),
                lambda g: {"": _through(of_offset, bias(g))},
            )
        return output

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        view = self.views[id(weight)]
        output = input @ weight.detach().requires_grad_()
        turned = view.whole.dim() == 2 and _is_turned(view)

        def parts(g: Tensor, x: Tensor) -> dict[str, Use]:
            return {"": Matrix(x, g) if turned else _through(view, Matrix(g, x))}

        self.enter(view.name, view.whole, output, range(output.dim() - 1), (input,), parts)
        return output


def _is_map(input: Any, weight: Any) -> bool:
    """Whether one matrix maps all positions of the input."""
    return isinstance(input, Tensor) and input.dim() >= 2 and weight.dim() == 2


def _is_turned(view: View) -> bool:
    """Whether the transposed parameter is shown."""
    shown, whole = view.shown, view.whole
    return (
        shown.shape == whole.shape[::-1]
        and shown.stride() == whole.stride()[::-1]
        and shown.data_ptr() == whole.data_ptr()
        and (shown.shape != whole.shape or shown.stride() != whole.stride())
    )


def _through(view: View, use: Use) -> Use:
    """The use of what is shown as one of the parameter."""
    if view.shown is view.whole:
        return use
    return Formed(lambda: view.back(use.gradients()))

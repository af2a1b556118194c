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

from equipoise.privacy.per_example.copies import copied, linear
from equipoise.privacy.per_example.shares import Formed, Matrix, Use, bias

IN_PLACE = {Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_}
ELEMENTWISE = {
    *(torch.add, Tensor.add, torch.sub, Tensor.sub, Tensor.__rsub__),
    *(torch.mul, Tensor.mul, torch.div, Tensor.div),
    *IN_PLACE,
}
REPEATED = {Tensor.expand, Tensor.repeat, Tensor.expand_as}
PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}

Enter = Callable[..., None]
"""(name, parameters, output, axes, saved, parts), as layers enter calls; parts by the names of
the parameters."""


class View(NamedTuple):
    """What follows from a parameter alone: itself, a cut of it, some function."""

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

    def use(self, use: Use) -> Use:
        """The use of what is shown as one of the parameter."""
        if self.shown is self.whole:
            return use
        return Formed(lambda: self.back(use.gradients()))


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
        known = [self.views[id(arg)] for arg in args if id(arg) in self.views]
        if not known or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        first = self.views.get(id(args[0]))
        if first and func in REPEATED:
            return self._repeated(first, func(*args, **kwargs))
        if sum(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())) == 1:
            return self._alone(known[0], func(*args, **kwargs))
        if func in ELEMENTWISE and not (first and func in IN_PLACE):
            return func(*self._as_large_as_the_others(args), **kwargs)
        if func is functional.linear and not first and args[1].dim() == 2 and not kwargs:
            return self._linear(*args)
        if func in PRODUCTS and not first and args[0].dim() > 1 and args[1].dim() == 2:
            return self._product(*args)
        return func(*args, **kwargs)

    def looked_up(self, table: nn.Module, numbers: Tensor) -> Tensor:
        """What a table has under numbers that are the same for all examples (those of positions,
        say): a view of the table."""
        rows: Tensor = type(table).forward(table, numbers)
        view = self.views.get(id(table.weight))
        if view is not None:
            self.views[id(rows)] = view._replace(shown=rows)
        return rows

    def _alone(self, view: View, result: Any) -> Any:
        """A function of what is shown and of no other tensor."""
        if isinstance(result, Tensor) and result.grad_fn is not None:
            self.views[id(result)] = view._replace(shown=result)
        return result

    def _as_large_as_the_others(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
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
            summed = g.unsqueeze(1)  # the batch went from where it had this axis, or an added one
            if added:
                summed = summed.flatten(1, added).sum(1)
            for axis, size in enumerate(small, 1):
                if size == 1 < summed.shape[axis]:
                    summed = summed.sum(axis, keepdim=True)
            return {view.name: Formed(lambda: view.back(summed))}

        self._enter([view], copy, int(over_batch), (), parts)
        return copy

    def _linear(self, input: Tensor, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        views = [None if part is None else self.views.get(id(part)) for part in (weight, offset)]
        of_weight, of_offset = views
        output = linear(
            input, copied(weight) if of_weight else weight, copied(offset) if of_offset else offset
        )

        def parts(g: Tensor, x: Tensor) -> dict[str, Use]:
            uses: tuple[Use, ...] = (Matrix(x, g), bias(g))
            return {view.name: view.use(use) for view, use in zip(views, uses, strict=True) if view}

        self._enter([view for view in views if view], output, output.dim() - 1, (input,), parts)
        return output

    def _product(self, input: Tensor, weight: Tensor) -> Tensor:
        view = self.views[id(weight)]
        output: Tensor = input @ copied(weight)

        def parts(g: Tensor, x: Tensor) -> dict[str, Use]:
            turned = Matrix(x, g) if _is_turned(view) else view.use(Matrix(g, x))
            return {view.name: turned}

        self._enter([view], output, output.dim() - 1, (input,), parts)
        return output

    def _enter(
        self, views: list[View], output: Tensor, axes: int, saved: tuple[Tensor, ...], parts: Any
    ) -> None:
        name, own = views[0].name, tuple(view.whole for view in views)
        self.enter(name, own, output, range(axes), saved, parts)


def _is_turned(view: View) -> bool:
    """Whether the transposed parameter is shown."""
    shown, whole = view.shown, view.whole
    return (
        whole.dim() == 2
        and shown.shape == whole.shape[::-1]
        and shown.stride() == whole.stride()[::-1]
        and shown.data_ptr() == whole.data_ptr()
        and (shown.shape != whole.shape or shown.stride() != whole.stride())
    )

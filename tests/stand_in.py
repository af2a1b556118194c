"""A device for machines that have none beside the processor: its tensors hold real numbers and are
strict about where they are, so a whole run can be made on it, and must come out as on the host.

It takes the name of torch's `meta` device, which every build knows and no library of PyTorch
computes on. An operation on tensors of both sides is refused as a GPU refuses it, and so is NumPy.
What is random on it comes from a generator of its own.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from equipoise import device

NAME = "meta"
aten = torch.ops.aten
BETWEEN = {aten._to_copy.default, aten.copy_.default}  # the only ways from one side to the other
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
BY_INDEX |= {aten._index_put_impl_.default, aten._unsafe_index.Tensor}


class WrongDevice(RuntimeError):
    """Tensors of both sides in one operation."""


class There(torch.Tensor):
    """A tensor on the device. `numbers` are its own business."""

    @staticmethod
    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=NAME,
        )

    def __init__(self, numbers):
        self.numbers = numbers

    def __repr__(self):
        return f"There({tuple(self.shape)})"

    def tolist(self):
        return self.detach().cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), keywords=None):
        raise WrongDevice(f"{operation} on {NAME}, of which this test knows nothing")


class StandIn(TorchDispatchMode):
    """Inside, the device is there. `seen` counts the operations on it."""

    def __init__(self, double=True):
        super().__init__()
        self.double, self.seen = double, 0
        self.generator = torch.Generator().manual_seed(12345)

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        keywords = keywords or {}
        given = [leaf for leaf in tree_leaves((arguments, keywords)) if is_tensor(leaf)]
        asked = keywords.get("device")
        on_it = any(isinstance(tensor, There) for tensor in given)
        if any(tensor.device.type == NAME and not isinstance(tensor, There) for tensor in given):
            raise WrongDevice(f"{operation}: a tensor of {NAME} that was made past the device")
        if on_it:
            self.check(operation, arguments, given)
        if asked is not None:
            keywords = {**keywords, "device": "cpu"}
            there = torch.device(asked).type == NAME
        else:
            there = on_it and not (operation is aten.copy_.default and not is_there(arguments[0]))
        self.seen += on_it or there
        numbers = self.computed(operation, there, *tree_map(numbers_of, (arguments, keywords)))
        if not there:
            return numbers
        return self.wrapped(operation, numbers, (arguments, keywords))

    def computed(self, operation, there, arguments, keywords):
        if not there or torch.Tag.nondeterministic_seeded not in operation.tags:
            return operation(*arguments, **keywords)
        state = torch.get_rng_state()  # a device draws from its own generator, not the host's
        torch.set_rng_state(self.generator.get_state())
        try:
            return operation(*arguments, **keywords)
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(state)

    def wrapped(self, operation, numbers, given):
        known = {id(leaf.numbers): leaf for leaf in tree_leaves(given) if is_there(leaf)}

        def wrap(part):
            if not is_tensor(part):
                return part
            if not self.double and part.dtype == torch.float64:
                raise WrongDevice(f"{operation}: {NAME} has no double precision here")
            mine = known.get(id(part))
            return There(part) if mine is None else mine

        return tree_map(wrap, numbers)

    @staticmethod
    def check(operation, arguments, given):
        """Refuse what a GPU refuses: tensors of the host, but for single numbers beside others, and
        for indices."""
        if operation in BETWEEN:
            return
        apart = [tensor for tensor in given if not isinstance(tensor, There)]
        if operation in BY_INDEX:
            indices = {id(index) for index in arguments[1] if index is not None}
            apart = [tensor for tensor in apart if id(tensor) not in indices]
        if torch.Tag.pointwise in operation.tags:
            apart = [tensor for tensor in apart if tensor.dim()]
        if apart:
            shapes = [tuple(tensor.shape) for tensor in apart]
            raise WrongDevice(f"{operation}: tensors {shapes} of the host among those of {NAME}")


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def is_there(value):
    return isinstance(value, There)


def numbers_of(value):
    return value.numbers if isinstance(value, There) else value


@contextmanager
def stand_in(monkeypatch, double=True):
    """A machine with one such device."""
    there = StandIn(double)
    kind = device.Kind(lambda: 1, lambda where: there.generator, double)
    with monkeypatch.context() as patch, there:
        patch.setitem(device.KINDS, NAME, kind)
        yield there

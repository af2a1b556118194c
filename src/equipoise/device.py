"""Where tensors are computed: on the host's processor, or on a device beside it.

Clients compute on the device: their records, models, gradients and what they remember lie there.
The border and the server are on the host, whatever the device is: clip, rounding to the lattice and
noise are in double precision, the noise is drawn by AES on the processor, and moving an update to
the host is less work than moving its noise to the device. So `Tensor.to` is what takes numbers to
the device, and `Tensor.cpu` what takes them back.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.errors import InvalidValue, require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HOST = "cpu"
AUTO = "auto"
NAME = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]{0,2}))?")

DEVICE = (
    "where clients compute: cpu, cuda (cuda:1 is the second), mps, or auto, which takes a GPU for "
    "a network if there is one; what is released is made on the processor (docs/tasks.md)"
)


class Kind(NamedTuple):
    """How many devices of a kind this machine has, the generator from which one draws, and whether
    it has numbers in double precision."""

    present: Callable[[], int]
    generator: Callable[["torch.device"], Any]
    double: bool


def _cuda() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cuda_generator(device: "torch.device") -> Any:
    import torch

    return torch.cuda.default_generators[device.index or 0]


def _mps() -> int:
    import torch

    return int(torch.backends.mps.is_available())


def _mps_generator(device: "torch.device") -> Any:
    import torch

    return torch.mps._get_default_mps_generator()


KINDS = {"cuda": Kind(_cuda, _cuda_generator, True), "mps": Kind(_mps, _mps_generator, False)}
"""Devices beside the host, the one that `auto` prefers first."""


def check_device(name: str) -> None:
    """Refuse what names no device anywhere; whether it is here, `device_of` says."""
    match = NAME.fullmatch(name)
    kind, numbered = (match[1], match[2] is not None) if match else (name, False)
    require(
        match is not None and (kind in KINDS or (not numbered and kind in (HOST, AUTO))),
        f"device={name!r} is none of {HOST}, {', '.join(KINDS)} and {AUTO}; a number may follow "
        "that of several, as in cuda:1",
    )


def device_of(name: str) -> "torch.device":
    """The device of this name, if this machine has it."""
    import torch

    check_device(name)
    kind, _, number = name.partition(":")
    if kind == HOST:
        return torch.device(HOST)
    require(kind in KINDS, f"device={name} is settled when the task is known")
    count, index = KINDS[kind].present(), int(number or 0)
    if count == 0:
        raise InvalidValue(
            f"device={name}: PyTorch finds no {kind} device on this machine; use device={HOST}, or "
            "install a build of PyTorch for it (docs/tasks.md)"
        )
    require(
        index < count,
        f"device={name}: this machine has {count} of them, numbered from 0; use device={kind}:"
        f"{count - 1}, or device={kind} for the first",
    )
    return torch.device(kind, index)


def kind_of_device(name: str) -> str:
    """What decides numbers: the kind of device, not which of several it is."""
    return name.partition(":")[0]


def has_double(device: "torch.device") -> bool:
    return device.type == HOST or KINDS[device.type].double


def in_double(tensor: "Tensor") -> "Tensor":
    """The tensor in double precision; on the host, if its device has none."""
    return tensor.double() if has_double(tensor.device) else tensor.cpu().double()


def _generator(device: "torch.device | None") -> Any:
    """From which the device draws, if it is not the host, whose generator is another one."""
    if device is None or device.type == HOST:
        return None
    return KINDS[device.type].generator(device)


def seed_there(device: "torch.device | None", seed: int) -> None:
    """From now on what is random on the device follows from the seed."""
    if generator := _generator(device):
        generator.manual_seed(seed)


@contextmanager
def restored_there(device: "torch.device | None") -> Iterator[None]:
    """Afterwards the device draws what it would have drawn."""
    generator = _generator(device)
    before = generator and generator.get_state()
    try:
        yield
    finally:
        if generator:
            generator.set_state(before)


@contextmanager
def full_precision() -> Iterator[None]:
    """Inside, products of single precision are in single precision. GPUs, and newer processors if a
    program asks for it, round the factors to 8 or 11 bits first: then a gradient could be longer
    than the norm by which it was clipped."""
    import torch

    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):
        rooms = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        rooms += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
        with _set([(room, "fp32_precision", "ieee") for room in rooms]):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with _set([(backends.cudnn, "allow_tf32", False)]):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _set(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Inside, attributes have these values."""
    before = [(room, name, getattr(room, name)) for room, name, _ in values]
    try:
        for room, name, value in values:
            setattr(room, name, value)
        yield
    finally:
        for room, name, value in before:
            setattr(room, name, value)

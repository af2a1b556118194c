"""A public, frozen encoder: from a record (an image, a text) to one vector of bounded length.

Its weights are public and nothing trains them, so it costs no privacy as long as every record goes
through it by itself: what one record does must not reach the features of another. That is tried on
made-up records before a private one is read. Every pass is on copies of all that the encoder holds,
in eval mode. A record that makes it fail, or is given features that are no numbers, counts for
nothing, and nobody hears of it.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.cache import keep, load
from equipoise.errors import DataError, EquipoiseError, InvalidValue, UnsafeModel, UserCode, require
from equipoise.places import cache_folder
from equipoise.privacy.per_example.one_pass import one_pass
from equipoise.privacy.per_example.probes import AFFORDABLE, mixes_examples, mixes_in_company
from equipoise.tasks.linear import with_bias
from equipoise.tasks.made_up import BATCHES, Kind
from equipoise.tasks.model_records import AT_ONCE, Rows
from equipoise.tasks.task import fingerprint
from equipoise.tasks.user_file import run_file

FEATURE_NORM = 1.0
TOGETHER = 256  # records in a pass, at most


@dataclass(frozen=True, repr=False)
class Encoder:
    """`module` on records, whose outputs are clipped to the length `norm`; `name` says where it
    comes from, and `fingerprint` what it is: its code where that is a file, weights, and norm."""

    module: nn.Module
    norm: float
    name: str
    fingerprint: str

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its weights."""
        floating = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return next(floating, torch.float32)

    def checked(self, kind: Kind) -> int:
        """How many features it gives a record of this kind; refused if it cannot take one, learns,
        draws at random, or lets records mix."""
        examples, _ = kind.examples()
        with UserCode(EquipoiseError) as tried:
            width = self._width(examples)
            self._check_frozen(kind)
            if self._mixes(kind):
                raise UnsafeModel(
                    f"features={self.name}: what a record is given depends on the other records of "
                    "its batch; every record must be encoded by itself"
                )
            return width
        shape, dtype = [*kind.shape], str(kind.dtype).removeprefix("torch.")
        raise InvalidValue(
            f"features={self.name} cannot take inputs {shape} {dtype}: {tried.kind_and_place}"
        )

    def _width(self, examples: Tensor) -> int:
        outputs = self._run(examples)
        given = [*outputs.shape] if isinstance(outputs, Tensor) else type(outputs).__name__
        require(
            isinstance(outputs, Tensor)
            and outputs.dim() == 2
            and len(outputs) == len(examples)
            and outputs.shape[1] >= 1
            and outputs.dtype.is_floating_point,
            f"features={self.name} gives {given} for {len(examples)} records: it must give one "
            "vector of real numbers for each, so flatten or pool what comes out of it",
        )
        require(
            bool(outputs.isfinite().all()),
            f"features={self.name} gives values that are no finite numbers for made-up records of "
            "ordinary size; put a normalisation at its end",
        )
        return int(outputs.shape[1])

    def _check_frozen(self, kind: Kind) -> None:
        """Refuse what learns or draws at random although nothing trains it and it is in eval mode:
        tried without what keeps passes apart."""
        examples, _ = kind.examples()
        with one_pass(self.module, {}), torch.no_grad():
            before, state = self._seeded(0, examples), self._state()
            random = not torch.equal(before, self._seeded(1, examples))
            for others, _ in kind.intruders():
                with suppress(Exception):  # it may fail on them, as on a record
                    self.module(others)
            after, changed = self._seeded(0, examples), self._state()
        learnt = [name for name in state if not _same(state[name], changed.get(name))]
        if learnt or not _same(before, after):
            what = f": {learnt[0]} changes" if learnt else ""
            raise UnsafeModel(
                f"features={self.name} learns from the records that it sees{what}, though it is in "
                "eval mode; a public encoder is frozen"
            )
        if random:
            raise UnsafeModel(
                f"features={self.name} draws at random, as dropout does that is not switched off "
                "in eval mode; a public encoder gives the same record the same features"
            )

    def _state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in _tensors(self.module)}

    def _seeded(self, seed: int, inputs: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            outputs: Tensor = self.module(inputs)
            return outputs

    def _mixes(self, kind: Kind) -> bool:
        """Whether made-up records, ordinary and strange ones, few and many, change each other's
        features. The larger the encoder, the less is tried."""
        if mixes_examples(self.module, {}, kind.examples()[0]):
            return True
        each = math.prod(kind.shape) + sum(value.numel() for _, value in _tensors(self.module))
        companies = kind.companies(max(BATCHES), self._ids())
        return mixes_in_company(self._run, companies, max(AFFORDABLE // each, 2 * max(BATCHES)))

    def _ids(self) -> set[int]:
        """The last words of its vocabularies."""
        tables = [m for m in self.module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        return {table.num_embeddings - 1 for table in tables}

    def _run(self, inputs: Tensor) -> Tensor:
        with one_pass(self.module, {}), torch.no_grad():
            outputs: Tensor = self.module(inputs)
            return outputs

    def table(self, inputs: Tensor | Rows, unreadable: Tensor, width: int) -> NDArray[np.float64]:
        """The records as a linear model sees them, [n, width + 1]: features clipped to `norm`, and
        the bias feature 1. All is zero of a record that counts for nothing."""
        features = self._kept(inputs, width)
        useless = ~np.isfinite(features).all(1) | unreadable.numpy()
        rows = with_bias(np.where(useless[:, None], 0.0, features), self.norm)
        rows[useless] = 0.0
        return rows

    def _kept(self, inputs: Tensor | Rows, width: int) -> NDArray[np.float64]:
        """What the encoder gives these records, from the cache if they have been through it."""
        place = cache_folder() / f"features-{self._key(inputs)}"
        if (kept := load(place)) and kept["features"].shape == (len(inputs), width):
            return np.asarray(kept["features"], dtype=np.float64)
        parts = [self._some(inputs[part], width) for part in _parts(inputs)]
        features = np.concatenate([np.zeros((0, width)), *parts])
        with suppress(DataError):  # if it cannot be written, it is computed again
            keep({"features": features}, place)
        return features

    def _key(self, inputs: Tensor | Rows) -> str:
        """Of encoder, library, and records."""
        digest = blake2b(f"{self.fingerprint} {torch.__version__} ".encode(), digest_size=16)
        digest.update(f"{tuple(inputs.shape)} {inputs.dtype}".encode())
        for part in _parts(inputs):
            digest.update(inputs[part].contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _some(self, inputs: Tensor, width: int) -> NDArray[np.float64]:
        """The features of some records, NaN where the encoder fails: found by halving."""
        with UserCode():
            outputs = self._run(inputs)
            if outputs.shape == (len(inputs), width):
                return outputs.double().numpy()
        if len(inputs) == 1:
            return np.full((1, width), np.nan)
        middle = len(inputs) // 2
        return np.concatenate(
            [self._some(inputs[:middle], width), self._some(inputs[middle:], width)]
        )


class Head(nn.Module):
    """What a model on features is, for use: the encoder, the clip of its features, a linear
    layer."""

    def __init__(self, encoder: Encoder, linear: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.linear, self.norm = encoder.module, linear, encoder.norm

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.encoder(inputs).to(self.linear.weight.dtype)
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        scores: Tensor = self.linear(features * (self.norm / lengths).clamp(max=1.0).nan_to_num(0))
        return scores


def encoder_of(module: Any, norm: Any, name: str, code: bytes = b"") -> Encoder:
    """A torch module as an encoder, frozen; it must not be used for anything else."""
    require(
        isinstance(module, nn.Module),
        f"features={name}: {type(module).__name__} is no torch nn.Module, which an encoder is",
    )
    require(
        isinstance(norm, int | float) and 0 < norm < math.inf,
        f"feature_norm={norm!r} with features={name}: the bound on the length of features is a "
        "positive number, public, and the same for everybody",
    )
    module.eval().requires_grad_(False)
    parts: list[NDArray[Any]] = [np.frombuffer(code, dtype=np.uint8), np.array([float(norm)])]
    for tensor_name, value in _tensors(module):
        parts += [np.frombuffer(tensor_name.encode(), dtype=np.uint8), value.cpu().numpy()]
    return Encoder(module, float(norm), name, fingerprint(parts))


def read_encoder(path: str) -> Encoder:
    """The encoder that a Python file defines by the names features, a torch module, and perhaps
    feature_norm."""
    require(
        path.endswith(".py") and Path(path).is_file(),
        f"features={path!r} is no Python file that is there: give one that defines features, a "
        "torch module",
    )
    return encoder_in(run_file(path, 0), path)


def encoder_in(given: dict[str, Any], path: str) -> Encoder:
    """The encoder among the names that a file has defined."""
    require(
        "features" in given,
        f"features={path} defines no features: give it that name, features = MODULE",
    )
    norm = given.get("feature_norm", FEATURE_NORM)
    return encoder_of(given["features"], norm, path, Path(path).read_bytes())


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, whether or not they are saved with the module."""
    both = [*module.named_parameters(), *module.named_buffers()]
    return sorted(((name, value.detach()) for name, value in both), key=lambda pair: pair[0])


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and bool(torch.allclose(a, b, 0, 0, equal_nan=True))


def _parts(inputs: Tensor | Rows) -> list[slice]:
    """The records, some at a time."""
    each = max(1, math.prod(inputs.shape[1:]))
    size = max(1, min(TOGETHER, AT_ONCE // each))
    return [slice(start, start + size) for start in range(0, len(inputs), size)]

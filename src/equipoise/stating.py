"""`guarantee`: the statement of a run that is finished, written anew."""

import hashlib
import os
from pathlib import Path

from equipoise.errors import DataError
from equipoise.origin import About, read_about
from equipoise.privacy.statement import Guarantee, guarantee_of
from equipoise.result import Result
from equipoise.saved import load


def guarantee(
    run: "Result | str | os.PathLike[str]",
    *,
    about: "About | str | os.PathLike[str] | None" = None,
) -> Guarantee:
    """What a run guarantees, to whom, and against whom: as values, of which `guarantee.json` is
    made.

    run     a result; or the folder that it was saved in, whose model the statement then names
    about   what its owner says now, in place of what was said when it was trained: a TOML file or
            an About

    >>> result = equipoise.train(task="quadratic", epsilon=2, clip=0.1, iterations=2)
    >>> equipoise.guarantee(result).strength
    'reasonable'
    """
    result, digest = described(run, about)
    return guarantee_of(result, digest)


def described(
    run: "Result | str | os.PathLike[str]", about: "About | str | os.PathLike[str] | None"
) -> tuple[Result, str | None]:
    """The result, with what is said about it, and the SHA-256 of its model's file."""
    digest = None
    if not isinstance(run, Result):
        model = Path(run) / "model.safetensors"
        try:
            digest = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else None
        except OSError as error:
            raise DataError(f"{model}: {error.strerror}") from None
        run = load(run, model=False)
    if about is None:
        return run, digest
    wording = about if isinstance(about, About) else read_about(about)
    return run.model_copy(update={"about": wording}), digest

"""What a transport does: bytes to every silo, bytes back from every silo.

Nothing here knows what the bytes mean, and no transport does either.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from equipoise.errors import EquipoiseError

Answer = Callable[[bytes], bytes | None]
"""A silo's side: the answer to a question, or None if the question says that the run is over. The
transport then sends an empty answer, so that the lead knows, and ends."""

Say = Callable[[str], None]
"""Where sentences for whoever runs a process go: its own terminal."""


class LinkRefused(EquipoiseError):
    """The link is not the one that is expected, or does not want this silo."""


class LinkDown(EquipoiseError):
    """Nobody answers where the link should be."""


class MissingSilo(EquipoiseError):
    """Silos that do not answer. A round without them would be another round: it stops."""

    def __init__(self, silos: Sequence[str], sentence: str) -> None:
        super().__init__(sentence)
        self.silos = tuple(silos)


class Link(Protocol):
    """The lead's side."""

    def ask(self, question: bytes) -> list[bytes]:
        """The answers of all silos, in the order of the agreement. MissingSilo names those that do
        not answer; the same question may be asked again later."""
        ...


def pause(waited: float) -> float:
    """Seconds until one looks again for what has not come in `waited` seconds: the wait gets at
    most a tenth longer, and who has waited for long asks seldom."""
    return min(max(waited / 10, 0.1), 2.0)

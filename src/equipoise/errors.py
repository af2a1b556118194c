"""Everything Equipoise raises on purpose.

EquipoiseError
├── InvalidValue      a value that breaks a rule; the text says name=value, the rule and the way out
├── UnsafeModel       a model that would carry data statistics past the noise
└── DataError         records that cannot be read or do not fit together
"""


class EquipoiseError(Exception):
    """The root: one clear sentence for the user, no traceback needed. Made printable: names from
    files may hold anything."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(
            "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)
        )


class InvalidValue(EquipoiseError, ValueError):
    """A value was refused where it was made."""


class UnsafeModel(EquipoiseError):
    """A model has state that would leave a client without clip and noise."""


class DataError(EquipoiseError):
    """Records are missing, malformed, or too few."""


def require(condition: bool, sentence: str) -> None:
    """Refuse a value with `sentence` unless `condition` holds (a NaN makes any comparison fail)."""
    if not condition:
        raise InvalidValue(sentence)

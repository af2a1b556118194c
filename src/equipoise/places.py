"""The folders of data sets and of prepared data, from the environment."""

import os
from pathlib import Path

from equipoise.errors import DataError


def data_folder() -> Path:
    """Where data sets lie: $EQUIPOISE_DATA, or else equipoise in $XDG_DATA_HOME, or else in
    ~/.local/share."""
    return _folder("EQUIPOISE_DATA", "XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Where prepared data is kept: $EQUIPOISE_CACHE, or else equipoise in $XDG_CACHE_HOME, or else
    in ~/.cache. It may be deleted at any time."""
    return _folder("EQUIPOISE_CACHE", "XDG_CACHE_HOME", ".cache")


def _folder(own: str, xdg: str, default: str) -> Path:
    if chosen := os.environ.get(own):
        return Path(chosen)
    base = Path(os.environ.get(xdg, ""))
    if base.is_absolute():  # the XDG specification: a relative path is invalid, and ignored
        return base / "equipoise"
    try:
        if os.environ.get("HOME") == "":  # Path.home() would be /
            raise RuntimeError
        return Path.home() / default / "equipoise"
    except RuntimeError:
        raise DataError(
            "this user has no home folder: set the environment variables EQUIPOISE_DATA and "
            "EQUIPOISE_CACHE to folders of your choice"
        ) from None

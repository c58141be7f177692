"""rpr: experiments on position representations in Transformers, after Shaw, Uszkoreit and Vaswani (2018)."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("rpr")
except PackageNotFoundError:  # a bare checkout that was never installed
    __version__ = "0+unknown"

_LAZY = {"Translator": "rpr.decode.translator", "Translation": "rpr.decode.translator"}


def __getattr__(name: str) -> Any:
    """Import the public names lazily: torch takes a second to import, and --help does not need it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)

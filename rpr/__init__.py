"""rpr: experiments on position representations in Transformers, after Shaw, Uszkoreit and Vaswani (2018)."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("rpr")
except PackageNotFoundError:  # a bare checkout that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """Import the public names lazily: torch takes a second to import, and --help does not need it."""
    if name not in ("Translator", "Translation"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rpr.decode import translator

    return getattr(translator, name)

"""rpr: experiments on position representations in Transformers, after Shaw, Uszkoreit and Vaswani (2018)."""

from importlib import import_module
from typing import Any

from rpr.version import __version__ as __version__

_MODULES = {"Translator": "decode.translator", "load": "api"}


def __dir__() -> list[str]:
    return [*globals(), *_MODULES, "records"]


def __getattr__(name: str) -> Any:
    """Import the public names lazily: torch takes a second to import, and --help does not need it."""
    if name == "records":  # the package, which can be called
        return import_module("rpr.records")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rpr.{_MODULES[name]}"), name)

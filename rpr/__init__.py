"""rpr: experiments on position representations in Transformers, after Shaw, Uszkoreit and Vaswani (2018)."""

from typing import Any

from rpr.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    """Import the public names lazily: torch takes a second to import, and --help does not need it."""
    if name not in ("Translator", "Translation"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rpr.decode import translator

    return getattr(translator, name)

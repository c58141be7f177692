"""Shared by all corpus sources: sentence normalisation, splits and their names, and file locations."""

from __future__ import annotations

import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.train import DataConfig

Pair = tuple[str, str]
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
READ_AT_ONCE = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def normalise(text: str) -> str:
    """A sentence as one line: NFC, no control characters or byte order mark, every run of whitespace (including
    U+2028 and no-break spaces) one space.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Chunk(ABC):
    """Consecutive pairs of a split, read but not yet normalised; this is what workers receive."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pairs(self, chosen: Iterable[bool] | None = None) -> list[Pair]:
        """The normalised pairs; with `chosen` (N,), only those selected."""


@dataclass(frozen=True)
class TextChunk(Chunk):
    """Pairs of strings. A side may be None, as in a column with nulls."""

    sources: Sequence[str | None]
    targets: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.sources)

    def pairs(self, chosen: Iterable[bool] | None = None) -> list[Pair]:
        rows = zip(self.sources, self.targets, strict=True)
        return [
            (normalise(source or ""), normalise(target or ""))
            for source, target in (rows if chosen is None else itertools.compress(rows, chosen))
        ]


@dataclass(frozen=True)
class FilteredChunk(Chunk):
    """The pairs of another chunk selected by `kept` (N,)."""

    base: Chunk
    kept: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.kept.sum())

    def pairs(self, chosen: Iterable[bool] | None = None) -> list[Pair]:
        if chosen is None:
            return self.base.pairs(self.kept)
        both = self.kept.copy()
        both[self.kept] = np.fromiter(chosen, np.bool_, len(self))
        return self.base.pairs(both)


class Pairs(ABC):
    """A split: sentence pairs, read on demand. Iteration streams; indexing may scan line files from the start."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        """The pairs start, ..., stop - 1, at most `size` per chunk."""

    def where(self, index: int) -> str:
        """The pair's location, for error messages."""
        return f"pair {index + 1}"

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        """The pairs start, ..., stop - 1, normalised."""
        for chunk in self.chunks(start, stop, READ_AT_ONCE):
            yield from chunk.pairs()

    def __iter__(self) -> Iterator[Pair]:
        return self.read(0, len(self))

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return next(self.read(index, index + 1))


def local_path(data: DataConfig) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return Path(data.cache_dir).expanduser().absolute()

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
from rpr.errors import DataError

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


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a split as read, neither decoded nor normalised; this is what workers receive. A sentence may
    be None, as in a column with nulls. Rows where `kept` (N,) is False are not part of the split. For rows of line
    files, `files` and `first`, the index of the first row, are their location.
    """

    sources: Sequence[str | bytes | None]
    targets: Sequence[str | bytes | None]
    files: tuple[Path, Path] | None = None
    first: int = 0
    kept: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.sources) if self.kept is None else int(self.kept.sum())

    def pairs(self, chosen: NDArray[np.bool_] | None = None) -> list[Pair]:
        """The normalised pairs; with `chosen` (len(self),), only those selected. Raises DataError for a line that is
        not UTF-8.
        """
        selected = self.kept
        if chosen is not None:
            selected = np.zeros(len(self.sources), np.bool_)
            selected[slice(None) if self.kept is None else self.kept] = chosen
        rows: Iterable[tuple[int, str | bytes | None, str | bytes | None]]
        rows = zip(itertools.count(self.first), self.sources, self.targets)
        if selected is not None:
            rows = itertools.compress(rows, selected)
        return [(self._sentence(source, 0, row), self._sentence(target, 1, row)) for row, source, target in rows]

    def _sentence(self, raw: str | bytes | None, side: int, row: int) -> str:
        if isinstance(raw, bytes):
            try:
                raw = raw.decode()
            except UnicodeDecodeError as error:
                assert self.files is not None
                raise DataError(
                    f"data.path: line {row + 1} of {self.files[side]} is not UTF-8 "
                    f"(byte 0x{raw[error.start]:02x} at {error.start}); "
                    "convert the file, for example with iconv"
                ) from None
        return normalise(raw or "")


class Pairs(ABC):
    """A split: sentence pairs, read on demand."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        """The pairs start, ..., stop - 1, at most `size` per chunk."""

    def where(self, index: int) -> str:
        """The pair's location, for error messages."""
        return f"pair {index + 1}"

    def __iter__(self) -> Iterator[Pair]:
        """The normalised pairs."""
        for chunk in self.chunks(0, len(self), READ_AT_ONCE):
            yield from chunk.pairs()


def local_path(data: DataConfig) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return Path(data.cache_dir).expanduser().absolute()

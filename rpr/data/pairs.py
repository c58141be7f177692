"""Shared by all corpus sources: sentence normalisation, splits and their names, and file locations."""

from __future__ import annotations

import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.files import decoded
from rpr.paths import user_path
from rpr.tasks import Pair as Pair

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
    """Rows of a split as read, neither decoded nor normalised; this is what workers receive. A sentence may be None, as
    in a column with nulls. Bytes are located by `files` and the index of each row, `rows`, counted in `unit`.
    """

    sources: Sequence[str | bytes | None]
    targets: Sequence[str | bytes | None]
    files: tuple[Path, Path] | None = None
    rows: Sequence[int] = ()
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, chosen: NDArray[np.bool_]) -> Chunk:
        """Only the rows where `chosen` (len(self),) is True."""
        return Chunk(
            list(itertools.compress(self.sources, chosen)),
            list(itertools.compress(self.targets, chosen)),
            self.files,
            list(itertools.compress(self.rows, chosen)),
            self.unit,
        )

    def pairs(self) -> list[Pair]:
        """The normalised pairs. Raises DataError for a line that is not UTF-8."""
        rows = enumerate(zip(self.sources, self.targets, strict=True))
        return [
            (self._sentence(source, 0, index), self._sentence(target, 1, index)) for index, (source, target) in rows
        ]

    def _sentence(self, raw: str | bytes | None, side: int, index: int) -> str:
        if isinstance(raw, bytes):
            assert self.files is not None
            raw = decoded(raw, self.files[side], self.rows[index] + 1, self.unit)
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
    return user_path(data.path).absolute()


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()

"""What every source of sentence pairs shares: the form of a sentence, of a split, of its name, and where files lie."""

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
    """One sentence as one line: NFC, no control characters or byte order mark, every run of white space (U+2028 and
    no-break too) one blank.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Block(ABC):
    """Some consecutive pairs of a split, as read and not yet normalised: what is sent to a worker."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pairs(self, chosen: Iterable[bool] | None = None) -> list[Pair]:
        """The pairs, normalised; those chosen, or all."""


@dataclass(frozen=True)
class TextBlock(Block):
    """Pairs whose text is at hand. A side may be None, which a column of a table can hold."""

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
class ChosenBlock(Block):
    """Those pairs of another block that `kept` (N,) says."""

    whole: Block
    kept: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.kept.sum())

    def pairs(self, chosen: Iterable[bool] | None = None) -> list[Pair]:
        if chosen is None:
            return self.whole.pairs(self.kept)
        both = self.kept.copy()
        both[self.kept] = np.fromiter(chosen, np.bool_, len(self))
        return self.whole.pairs(both)


class Pairs(ABC):
    """A split: pairs of sentences, read from where they lie. Iteration streams; an index may cost a scan of line
    files.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """The pairs start, ..., stop - 1, at most `size` at a time."""

    def where(self, index: int) -> str:
        """How an error message names one pair."""
        return f"pair {index + 1}"

    def read(self, start: int, stop: int) -> Iterator[Pair]:
        """The pairs start, ..., stop - 1, normalised."""
        for block in self.blocks(start, stop, READ_AT_ONCE):
            yield from block.pairs()

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
    """The folder for everything derived from corpora, absolute."""
    return Path(data.cache_dir).expanduser().absolute()

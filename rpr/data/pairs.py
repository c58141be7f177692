"""What every source of sentence pairs shares: the form of a sentence, of a split, of its name, and where files lie."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from rpr.config import DataConfig

Pair = tuple[str, str]
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def normalise(text: str) -> str:
    """One sentence as one line: NFC, no control characters or byte order mark, every run of white space (U+2028 and
    no-break too) one blank.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
    return unicodedata.normalize("NFC", " ".join(text.split()))


class Pairs(ABC):
    """A split: pairs of normalised sentences, read from where they lie. Iteration streams; an index may cost a scan
    of line files.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Pair]:
        """The pairs start, ..., stop - 1."""

    def where(self, index: int) -> str:
        """How an error message names one pair."""
        return f"pair {index + 1}"

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

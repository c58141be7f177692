"""Splits of sentence pairs: in memory, in line files or tables, or a part of another split; files are streamed, never
loaded whole. And what all corpora share: the normalisation of a sentence, and file locations.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.files import check_text, decoded, open_file
from rpr.data.tables import describe, read_columns
from rpr.errors import DataError
from rpr.paths import user_path
from rpr.tasks import Pair as Pair

PAIRS_AT_ONCE = 10_000  # in a chunk, of which each process holds one
NO_PAIRS = np.empty(0, np.int64)
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
    in a column with nulls. Row i is number `rows[i]`, from 0, of these `files`, or of generated pairs.
    """

    sources: Sequence[str | bytes | None]
    targets: Sequence[str | bytes | None]
    rows: Sequence[int]
    unit: str
    files: tuple[Path, ...] = ()  # of the source and of the target

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, chosen: NDArray[np.bool_]) -> Chunk:
        """Only the rows where `chosen` (len(self),) is True."""
        return replace(
            self,
            sources=list(itertools.compress(self.sources, chosen)),
            targets=list(itertools.compress(self.targets, chosen)),
            rows=list(itertools.compress(self.rows, chosen)),
        )

    def pairs(self) -> list[Pair]:
        """The normalised pairs. Raises DataError for a line that is not UTF-8."""
        rows = enumerate(zip(self.sources, self.targets, strict=True))
        return [
            (self._sentence(source, 0, index), self._sentence(target, 1, index)) for index, (source, target) in rows
        ]

    def where(self, index: int) -> str:
        """The place of a pair, for error messages."""
        files = dict.fromkeys(self.files)
        names = " and ".join(file.name if number else str(file) for number, file in enumerate(files))
        return f"{self.unit} {self.rows[index] + 1}" + (f" of {names}" if files else "")

    def _sentence(self, raw: str | bytes | None, side: int, index: int) -> str:
        if isinstance(raw, bytes):
            raw = decoded(raw, self.files[side], self.rows[index] + 1, self.unit)
        return normalise(raw or "")


class Pairs(ABC):
    """A split: sentence pairs, read from its beginning whenever they are needed."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The pairs in order, at most PAIRS_AT_ONCE per chunk."""

    def __iter__(self) -> Iterator[Pair]:
        """The normalised pairs."""
        for chunk in self.chunks():
            yield from chunk.pairs()


class ListPairs(Pairs):
    """Pairs in memory, for generated corpora."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def chunks(self) -> Iterator[Chunk]:
        for begin in range(0, len(self._pairs), PAIRS_AT_ONCE):
            sources, targets = zip(*self._pairs[begin : begin + PAIRS_AT_ONCE], strict=True)
            yield Chunk(sources, targets, range(begin, begin + len(sources)), "pair")


class LinePairs(Pairs):
    """Line i of one file, plain or packed, translates line i of the other. Raises DataError if their line counts
    differ.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._files = (source, target)
        num_source, num_target = _count_lines(source), _count_lines(target)
        if num_source != num_target:
            raise DataError(
                f"data.path: {source} has {num_source} lines and {target} has {num_target}; "
                "line i of one must translate line i of the other: fix or realign the files"
            )
        self._len = num_source

    def __len__(self) -> int:
        return self._len

    def chunks(self) -> Iterator[Chunk]:
        with open_file(self._files[0]) as sources, open_file(self._files[1]) as targets:
            for first in range(0, self._len, PAIRS_AT_ONCE):
                source, target = (list(itertools.islice(side, PAIRS_AT_ONCE)) for side in (sources, targets))
                yield Chunk(source, target, range(first, first + len(source)), "line", self._files)


class TablePairs(Pairs):
    """The rows of these files, one file after the other: of one `translation` column of structs, or one column per
    language. Raises DataError if a language has no column in one of them, or one that is not text.
    """

    def __init__(self, files: Sequence[Path], data: DataConfig, split: str, separator: str | None = None) -> None:
        self._files, self._separator = files, separator
        self._len = 0
        self._columns: list[list[tuple[str, ...]]] = []  # of the source and of the target, in each file
        for file in files:
            shape = describe(file, separator)
            within = ("translation",) if ("translation",) in shape.types else ()
            place = f"the {'translation column' if within else 'columns'} of {split} in {data.path or data.hub}"
            if len(files) > 1:
                place += f" ({file.name})"
            languages = {"source_language": data.source_language, "target_language": data.target_language}
            for key, language in languages.items():
                shape.check_text((*within, language), f"data.{key}", place)
            self._len += shape.rows
            self._columns.append([(*within, language) for language in languages.values()])

    def __len__(self) -> int:
        return self._len

    def chunks(self) -> Iterator[Chunk]:
        for file, columns in zip(self._files, self._columns, strict=True):
            first = 0
            for source, target in read_columns(file, columns, PAIRS_AT_ONCE, self._separator):
                yield Chunk(source, target, range(first, first + len(source)), "row", (file, file))
                first += len(source)


class SelectedPairs(Pairs):
    """The pairs start, ..., stop - 1 of another split, without those at its ascending indices `dropped`."""

    def __init__(self, base: Pairs, start: int, stop: int, dropped: NDArray[np.int64] = NO_PAIRS) -> None:
        assert 0 <= start <= stop <= len(base)
        self._base, self._start, self._stop, self._dropped = base, start, stop, dropped

    def __len__(self) -> int:
        return self._stop - self._start - len(self._dropped)

    def chunks(self) -> Iterator[Chunk]:
        first = 0
        for chunk in self._base.chunks():
            rows = np.arange(first, first + len(chunk))
            kept = (rows >= self._start) & (rows < self._stop)
            begin, end = np.searchsorted(self._dropped, [first, first + len(chunk)])
            kept[self._dropped[begin:end] - first] = False
            first += len(chunk)
            if kept.any():
                yield chunk if kept.all() else chunk.select(kept)
            if first >= self._stop:
                return


def _count_lines(file: Path) -> int:
    """Raises DataError for what is not text, as `check_text`."""
    lines, last = 0, b"\n"
    with open_file(file) as handle:
        while block := handle.read(1 << 22):
            check_text(f"data.path: {file}", block, lines)
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def local_path(data: DataConfig) -> Path:
    assert data.path is not None
    return user_path(data.path).absolute()


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()

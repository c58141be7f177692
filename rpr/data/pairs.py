"""Splits of sentence pairs: in memory, in line files or tables, or a part of another split; files are streamed, never
loaded whole. And what all corpora share: the normalisation of a sentence, and file locations.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.files import check_text, decoded, open_file
from rpr.data.generated import Pair as Pair
from rpr.data.tables import describe, read_columns
from rpr.errors import DataError
from rpr.paths import user_path

PAIRS_AT_ONCE = 10_000  # in a chunk, of which each process holds one
NO_PAIRS = np.empty(0, np.int64)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SPACE = "\u2581"  # which sentencepiece reads as a space


def normalise(text: str) -> str:
    """A sentence as one line: NFC, no control characters or byte order mark, every run of whitespace (including
    U+2028, no-break spaces and sentencepiece's own U+2581) one space.
    """
    if not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
    if _SPACE in text:
        text = text.replace(_SPACE, " ")
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
        if chosen.all():
            return self
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


@dataclass(frozen=True)
class Pairs:
    """A split of `number` sentence pairs; each call of `chunks` reads it anew, at most PAIRS_AT_ONCE at a time."""

    number: int
    chunks: Callable[[], Iterator[Chunk]]

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Pair]:
        """The normalised pairs."""
        for chunk in self.chunks():
            yield from chunk.pairs()

    def part(self, start: int, stop: int, dropped: NDArray[np.int64] = NO_PAIRS) -> Pairs:
        """The pairs start, ..., stop - 1, without those at the ascending indices `dropped`."""
        assert 0 <= start <= stop <= len(self)

        def chunks() -> Iterator[Chunk]:
            first = 0
            for chunk in self.chunks():
                rows = np.arange(first, first + len(chunk))
                kept = (rows >= start) & (rows < stop)
                begin, end = np.searchsorted(dropped, [first, first + len(chunk)])
                kept[dropped[begin:end] - first] = False
                first += len(chunk)
                if kept.any():
                    yield chunk.select(kept)
                if first >= stop:
                    return

        return Pairs(stop - start - len(dropped), chunks)


def listed_pairs(pairs: Sequence[Pair]) -> Pairs:
    """Pairs in memory, of generated corpora."""

    def chunks() -> Iterator[Chunk]:
        for begin in range(0, len(pairs), PAIRS_AT_ONCE):
            sources, targets = zip(*pairs[begin : begin + PAIRS_AT_ONCE], strict=True)
            yield Chunk(sources, targets, range(begin, begin + len(sources)), "pair")

    return Pairs(len(pairs), chunks)


def line_pairs(source: Path, target: Path) -> Pairs:
    """Line i of one file, plain or packed, translates line i of the other. Raises DataError if their line counts
    differ.
    """
    number, num_target = _count_lines(source), _count_lines(target)
    if number != num_target:
        raise DataError(
            f"data.path: {source} has {number} lines and {target} has {num_target}; "
            "line i of one must translate line i of the other: fix or realign the files"
        )

    def chunks() -> Iterator[Chunk]:
        with open_file(source) as sources, open_file(target) as targets:
            for first in range(0, number, PAIRS_AT_ONCE):
                lines, others = (list(itertools.islice(side, PAIRS_AT_ONCE)) for side in (sources, targets))
                yield Chunk(lines, others, range(first, first + len(lines)), "line", (source, target))

    return Pairs(number, chunks)


def table_pairs(files: Sequence[Path], data: DataConfig, split: str) -> Pairs:
    """The rows of these files, one file after the other: of one `translation` column of structs, or one column per
    language. Raises DataError if a language has no column in one of them, or one that is not text.
    """
    number = 0
    columns: dict[Path, list[tuple[str, ...]]] = {}  # of the source and of the target, in each file
    for file in files:
        shape = describe(file)
        within = ("translation",) if ("translation",) in shape.types else ()
        place = f"the {'translation column' if within else 'columns'} of {split} in {data.path or data.hub}"
        if len(files) > 1:
            place += f" ({file.name})"
        languages = {"source_language": data.source_language, "target_language": data.target_language}
        for key, language in languages.items():
            shape.check_text((*within, language), f"data.{key}", place)
        number += shape.rows
        columns[file] = [(*within, language) for language in languages.values()]

    def chunks() -> Iterator[Chunk]:
        for file, of_file in columns.items():
            first = 0
            for source, target in read_columns(file, of_file, PAIRS_AT_ONCE):
                yield Chunk(source, target, range(first, first + len(source)), "row", (file, file))
                first += len(source)

    return Pairs(number, chunks)


def _count_lines(file: Path) -> int:
    """Raises DataError for what is not text, as `check_text`."""
    lines, last = 0, b"\n"
    with open_file(file) as handle:
        while block := handle.read(1 << 22):
            check_text(f"data.path: {file}", block, lines)
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def cache_root(data: DataConfig) -> Path:
    """The absolute path of the folder for everything derived from corpora."""
    return user_path(data.cache_dir).absolute()

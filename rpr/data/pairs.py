"""Sentence pairs by split: generated, of line files or of tables, which are streamed; missing splits are held out of
train. And the normalisation of a sentence, which all corpora of pairs share.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.corpus import SPLIT_NAMES, corpus_files, missing_splits
from rpr.data.files import decoded, describe, open_file, read_columns
from rpr.data.generated import Pair as Pair
from rpr.data.generated import synthetic
from rpr.errors import DataError

PAIRS_AT_ONCE = 10_000  # in a chunk
HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, 1/20 of train) pairs
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
    """Rows of a split as read, neither decoded nor normalised. A sentence may be None, as in a column with nulls. Row i
    is number `rows[i]`, from 0, of these `files`, of the source and of the target, or of generated pairs.
    """

    sources: Sequence[str | bytes | None]
    targets: Sequence[str | bytes | None]
    rows: Sequence[int]
    unit: str
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.sources)

    def select(self, chosen: NDArray[np.bool_]) -> Chunk:
        """Only the rows where `chosen` (len(self),) is True."""
        if chosen.all():
            return self
        sources, targets = ([*itertools.compress(side, chosen)] for side in (self.sources, self.targets))
        return replace(self, sources=sources, targets=targets, rows=[*itertools.compress(self.rows, chosen)])

    def pairs(self) -> list[Pair]:
        """The normalised pairs. Raises DataError for a line that is not UTF-8."""
        rows = zip(self.sources, self.targets, self.rows, strict=True)
        return [(self._sentence(source, 0, row), self._sentence(target, 1, row)) for source, target, row in rows]

    def where(self, index: int) -> str:
        """The place of a pair, for error messages."""
        names = " and ".join(str(file) for file in dict.fromkeys(self.files))
        return f"{self.unit} {self.rows[index] + 1}" + (f" of {names}" if names else "")

    def _sentence(self, raw: str | bytes | None, side: int, row: int) -> str:
        return normalise(decoded(raw, self.files[side], row + 1, self.unit) if isinstance(raw, bytes) else raw or "")


@dataclass(frozen=True)
class Pairs:
    """A split of `number` sentence pairs; each call of `chunks` reads it anew, at most PAIRS_AT_ONCE at a time."""

    number: int
    chunks: Callable[[], Iterator[Chunk]]

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Pair]:
        """The normalised pairs."""
        return itertools.chain.from_iterable(chunk.pairs() for chunk in self.chunks())

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
    """Line i of one file translates line i of the other. Raises DataError if their line counts differ."""
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


def _count_lines(file: Path) -> int:
    lines, last = 0, b"\n"
    with open_file(file) as handle:
        while block := handle.read(1 << 22):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def table_pairs(files: Sequence[Path], data: DataConfig, split: str) -> Pairs:
    """The rows of these files, one file after the other: of one `translation` column of structs, or one column per
    language. Raises DataError if a language has no column in one of them, or one that is not text.
    """
    number, columns = 0, dict[Path, list[str]]()  # of the source and of the target, in each file
    for file in files:
        shape = describe(file)
        within = "translation." * any(name.startswith("translation.") for name in shape.types)
        columns[file] = [within + data.source_language, within + data.target_language]
        for key, column in zip(("source_language", "target_language"), columns[file], strict=True):
            shape.check_text(column, f"data.{key}", f"the columns of {file} ({split})")
        number += shape.rows

    def chunks() -> Iterator[Chunk]:
        for file, of_file in columns.items():
            first = 0
            for source, target in read_columns(file, of_file, PAIRS_AT_ONCE):
                yield Chunk(source, target, range(first, first + len(source)), "row", (file, file))
                first += len(source)

    return Pairs(number, chunks)


# All splits


@dataclass(frozen=True)
class Corpus:
    """All splits of one corpus. `split_names` are the test sets' names (newstest2013); `notes` are caveats for readers
    of scores; `repeated` is the number of train pairs dropped because they equal a held-out one.
    """

    splits: Mapping[str, Pairs]
    held_out: frozenset[str]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]
    repeated: int


def load_corpus(data: DataConfig) -> Corpus:
    """Open the corpus: generated, else from data.path, else from data.hub. A missing validation or test split is held
    out from the end of train; train pairs equal to a held-out one are dropped, which requires reading train once.

    Raises DataError: nothing at data.path, files of unequal length, invalid UTF-8, a missing language or hub config, a
    column without text, an empty split, a train split with nothing but repeats of held-out pairs, an unreachable hub.
    """
    # 1. The splits that there are.
    read, missing = _read(data)
    for split, pairs in read.items():
        if not len(pairs):
            raise DataError(f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs a pair")
    # 2. Missing ones: the last pairs of train are test, those before them validation.
    splits, notes, end = dict(read), list[str](), len(read["train"])
    number = min(HELD_OUT_PAIRS, max(1, end // HELD_OUT_SHARE))
    for split in missing:
        splits[split] = read["train"].part(max(0, end - number), end)
        end -= number
        notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        raise DataError(
            f"data {data.name}: {len(read['train'])} train pairs are too few to hold out "
            f"{' and '.join(sorted(missing))}; add pairs or files"
        )
    own = sorted(set(read) - set(SPLIT_NAMES))
    if own and not set(SPLIT_NAMES) <= set(read):
        notes.append(f"further splits, scored where evaluation.test_splits names them: {', '.join(own)}")
    # 3. The first pairs of train, without those that are held out.
    limit = min(data.train_limit or end, end)
    if limit < end:
        notes.append(f"train: the first {limit} of {end} pairs")
    splits["train"] = read["train"].part(0, limit) if missing or limit < end else read["train"]
    if missing:
        # One range for both splits: reading the end of line files scans everything before it.
        splits["train"] = _without_repeats(data, splits["train"], read["train"].part(end, len(read["train"])))
    if repeated := limit - len(splits["train"]):
        notes.append(f"train: {repeated} pairs left out, each equal to a held-out one")
    names = {"validation": data.validation_name, "test": data.test_name}
    names |= {split: f"held-out-{split}" for split in missing}
    named = {split: names.get(split, split) for split in splits if split != "train"}
    return Corpus(splits, frozenset(missing), named, tuple(notes), repeated)


def _read(data: DataConfig) -> tuple[dict[str, Pairs], tuple[str, ...]]:
    """The splits that there are, and those that are missing."""
    if not data.generated:
        listing = corpus_files(data)
        return {
            split: line_pairs(*files) if listing.lines else table_pairs(files, data, split)
            for split, files in listing.splits.items()
        }, missing_splits(data, listing)
    try:
        generated: Mapping[str, Sequence[Pair]]
        if data.task is not None:
            generated = data.task.pairs()
        else:
            assert data.synthetic is not None
            generated = synthetic.generate(**data.synthetic.model_dump())
    except ValueError as error:
        raise DataError(f"data.{'synthetic' if data.task is None else 'task'}: {error}") from None
    return {split: listed_pairs(pairs) for split, pairs in generated.items()}, ()


def _without_repeats(data: DataConfig, train: Pairs, held_out: Iterable[Pair]) -> Pairs:
    """Train without the pairs equal to a held-out one after normalisation. Pairs with an empty side are kept here; they
    are dropped and counted as empty later. Memory: the held-out pairs and 8 bytes per repeat.
    """
    held = {pair for pair in held_out if pair[0] and pair[1]}
    repeats = array("q", (index for index, pair in enumerate(train) if pair in held))
    if len(repeats) == len(train):
        raise DataError(
            f"data {data.name}: each of the {len(train)} train pairs equals a held-out pair, which leaves nothing to "
            "train on; add other pairs, or files for validation and test"
        )
    return train.part(0, len(train), np.asarray(repeats, np.int64)) if repeats else train

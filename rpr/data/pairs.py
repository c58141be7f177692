"""Sentence pairs by split: generated, of line files or of tables, which are streamed; missing splits are held out of
train. And the normalisation of a sentence, which all corpora of pairs share.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rpr.config.data import DataConfig
from rpr.data.corpus import SPLIT_NAMES, corpus_files, missing_splits
from rpr.data.files import Table, not_utf8, open_file
from rpr.data.generated import Pair as Pair
from rpr.data.generated import synthetic
from rpr.errors import DataError

PAIRS_AT_ONCE = 10_000  # in a chunk
HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, 1/20 of train) pairs
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


class Row(NamedTuple):
    """A pair as read, neither decoded nor normalised: number `number`, from 1, of these `files`, of the source and of
    the target, in lines or rows. A sentence may be None, as in a column with nulls.
    """

    source: bytes | None
    target: bytes | None
    number: int
    unit: str
    files: tuple[Path, Path]

    def pair(self) -> Pair:
        """The normalised pair. Raises DataError for a line that is not UTF-8."""
        return self._sentence(self.source, 0), self._sentence(self.target, 1)

    def place(self, *sides: int) -> str:
        """Of these sides, for error messages."""
        names = dict.fromkeys(str(self.files[side]) for side in sides)
        return f"{self.unit} {self.number} of {' and '.join(names)}"

    def _sentence(self, raw: bytes | None, side: int) -> str:
        try:
            return normalise((raw or b"").decode())
        except UnicodeDecodeError as error:
            raise not_utf8(error, self.place(side)) from None


@dataclass(frozen=True)
class Pairs:
    """A split of `number` sentence pairs; each call of `rows` reads it anew."""

    number: int
    rows: Callable[[], Iterator[Row]]

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Pair]:
        """The normalised pairs."""
        return map(Row.pair, self.rows())

    def chunks(self) -> Iterator[list[Row]]:
        """The rows, at most PAIRS_AT_ONCE at a time."""
        rows = self.rows()
        while chunk := [*itertools.islice(rows, PAIRS_AT_ONCE)]:
            yield chunk

    def part(self, start: int, stop: int, dropped: Collection[int] = ()) -> Pairs:
        """The pairs start, ..., stop - 1, without those whose numbers, counted from start, are `dropped`."""

        def rows() -> Iterator[Row]:
            within = enumerate(itertools.islice(self.rows(), start, stop))
            return (row for index, row in within if index not in dropped)

        return Pairs(stop - start - len(dropped), rows)


def listed_pairs(pairs: Sequence[Pair]) -> Pairs:
    """Pairs in memory, of generated corpora."""
    rows = [(source.encode(), target.encode()) for source, target in pairs]
    return Pairs(len(rows), lambda: (Row(*row, at, "pair", (Path(), Path())) for at, row in enumerate(rows, 1)))


def line_pairs(source: Path, target: Path) -> Pairs:
    """Line i of one file translates line i of the other. Raises DataError if their line counts differ."""
    number, num_target = _count_lines(source), _count_lines(target)
    if number != num_target:
        raise DataError(
            f"data.path: {source} has {number} lines and {target} has {num_target}; "
            "line i of one must translate line i of the other: fix or realign the files"
        )

    def rows() -> Iterator[Row]:
        with open_file(source) as sources, open_file(target) as targets:
            for line, sides in enumerate(zip(sources, targets, strict=True), 1):
                yield Row(*sides, line, "line", (source, target))

    return Pairs(number, rows)


def _count_lines(file: Path) -> int:
    lines, last = 0, b"\n"
    with open_file(file) as handle:
        while block := handle.read(1 << 22):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def table_pairs(files: Sequence[Path], data: DataConfig) -> Pairs:
    """The rows of these files, one file after the other: of one `translation` column of structs, or one column per
    language. Raises DataError if a language has no column in one of them, or one that is not text.
    """
    columns = {"data.source_language": data.source_language, "data.target_language": data.target_language}
    tables = [Table(file, columns) for file in files]

    def rows() -> Iterator[Row]:
        for table in tables:
            cells = itertools.chain.from_iterable(zip(*chunk, strict=True) for chunk in table.chunks(PAIRS_AT_ONCE))
            for line, (source, target) in enumerate(cells, 1):
                yield Row(source, target, line, "row", (table.file, table.file))

    return Pairs(sum(table.rows for table in tables), rows)


# All splits


@dataclass(frozen=True)
class Corpus:
    """All splits of one corpus. `split_names` are the test sets' names (newstest2013); `notes` are caveats for readers
    of scores; `repeated` train pairs were dropped, as they equal a held-out one.
    """

    splits: Mapping[str, Pairs]
    held_out: frozenset[str]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]
    repeated: int


def load_corpus(data: DataConfig) -> Corpus:
    """Open the corpus. A missing validation or test split is held out from the end of train; train pairs equal to a
    held-out one are dropped, which requires reading train once. Raises DataError if files cannot be read or do not fit
    each other, or a split is empty.
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
    if data.generated:
        try:
            generated: Any = synthetic.generate(**data.synthetic.model_dump()) if data.synthetic else None
            generated = generated or (data.task and data.task.pairs())
        except ValueError as error:
            raise DataError(f"data.{'synthetic' if data.synthetic else 'task'}: {error}") from None
        return {split: listed_pairs(pairs) for split, pairs in generated.items()}, ()
    listing = corpus_files(data)
    return {
        split: line_pairs(*files) if listing.lines else table_pairs(files, data)
        for split, files in listing.splits.items()
    }, missing_splits(data, listing)


def _without_repeats(data: DataConfig, train: Pairs, held_out: Iterable[Pair]) -> Pairs:
    """Train without the pairs equal to a held-out one after normalisation. Pairs with an empty side are kept here; they
    are dropped and counted as empty later. Memory: the held-out pairs and the numbers of repeats.
    """
    held = {pair for pair in held_out if pair[0] and pair[1]}
    repeats = frozenset(index for index, pair in enumerate(train) if pair in held)
    if len(repeats) == len(train):
        repeated = f"data {data.name}: each of the {len(train)} train pairs equals a held-out pair"
        raise DataError(f"{repeated}; add other pairs, or files for validation and test")
    return train.part(0, len(train), repeats) if repeats else train

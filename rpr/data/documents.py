"""Corpora of documents: which ones there are, in blocks of bytes as they are read, and which are held out.

A document is a file of text, or a row of a table. Its name decides whether it is held out, so the same documents are in
every copy of a corpus: the path relative to the corpus, with the row if it is one; of the hub, the split with the row,
as the library may divide a split into other files tomorrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from rpr.config.data import DataConfig, TextConfig
from rpr.data.corpus import corpus_files, missing_splits
from rpr.data.files import TABLES, check_text, kind_of, open_file
from rpr.data.tables import describe, read_columns
from rpr.errors import DataError

BLOCK = 1 << 20  # bytes of a document in memory at once, and the rest of a line
SHARE = 20  # of 20 documents, one is for each split that is held out
ROWS_AT_ONCE = 100  # of a table
LAST = 10  # a single document's last tenth is, as nanoGPT does


class Block(NamedTuple):
    """Whole lines of a document of these splits; `last` is its end. It begins in line `number` of `file`, or is its row
    `number`, counted from 1.
    """

    name: str
    text: bytes
    last: bool
    file: Path
    number: int
    splits: tuple[str, ...] = ()

    def after(self, end: int) -> Block:
        """The rest of it, from byte `end` on."""
        lines = 0 if is_table(self.file) else self.text.count(b"\n", 0, end)
        return self._replace(text=self.text[end:], number=self.number + lines)

    def not_utf8(self, place: int) -> DataError:
        """At this byte."""
        unit = "row" if is_table(self.file) else "line"
        return DataError(
            f"data.path: {unit} {self.after(place).number} of {self.file} is not UTF-8 (byte "
            f"0x{self.text[place]:02x}); convert it, for example with iconv, or choose data.tokenizer=bytes, "
            "which reads anything"
        )


class Documents:
    """The documents of these files, by name: a file of text is one, and so is each row of a table, or all of its rows
    together (data.text.rows), which are lines with their newlines. Several tables of one name follow each other.

    Raises DataError if a table has no such column, or one that is not text.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]], text: TextConfig) -> None:
        self._files, self._column, self._joined = files, text.column, text.rows == "lines"
        self._rows: dict[Path, int] = {}  # of tables
        for file in chain.from_iterable(files.values()):
            if is_table(file):
                shape = describe(file)
                shape.check_text((text.column,), "data.text.column", f"the columns of {file}")
                self._rows[file] = shape.rows

    def size(self) -> int:
        """The bytes of the files."""
        return sum(file.stat().st_size for file in chain.from_iterable(self._files.values()))

    def names(self) -> Iterator[str]:
        for name, files in self._files.items():
            if self._joined or files[0] not in self._rows:
                yield name
            else:
                yield from (f"{name}:{row}" for row in range(1, sum(map(self._rows.__getitem__, files)) + 1))

    def blocks(self) -> Iterator[Block]:
        """The blocks of every document; its last one may be empty."""
        for name, files in self._files.items():
            if files[0] not in self._rows:
                yield from _blocks_of_file(name, files[0])
                continue
            before, last = 0, next((file for file in reversed(files) if self._rows[file]), files[-1])
            for file in files:
                cells = (read for (read,) in read_columns(file, [(self._column,)], ROWS_AT_ONCE))
                for row, cell in enumerate(chain.from_iterable(cells), 1):
                    text = cell.encode() if isinstance(cell, str) else cell or b""
                    of_row = name if self._joined else f"{name}:{before + row}"
                    ends = (file, row) == (last, self._rows[file])
                    if self._joined and text and not (ends or text.endswith(b"\n")):
                        raise DataError(
                            f"data.text.rows: row {row} of {file} has no newline at its end, so that lines would run "
                            "into each other; end each with one, or choose data.text.rows=documents"
                        )
                    yield Block(of_row, text, not self._joined, file, row)
                before += self._rows[file]
            if self._joined:
                yield Block(name, b"", True, file, self._rows[file])


def is_table(file: Path) -> bool:
    """Whether documents are its rows; datasets keeps those of the hub as Arrow."""
    return kind_of(file) in (*TABLES, ".arrow")


def _blocks_of_file(name: str, file: Path) -> Iterator[Block]:
    """Whole lines, as no piece and no word goes beyond one: the pieces of the blocks are those of the document."""
    line = 1
    with open_file(file) as handle:
        text = handle.read(BLOCK) + handle.readline()
        check_text(f"data.path: {file}", text, 0, any_bytes=True)
        while following := handle.read(BLOCK) + handle.readline():
            yield Block(name, text, False, file, line)
            line, text = line + text.count(b"\n"), following
    yield Block(name, text, True, file, line)


def character_boundary(text: bytes, at: int) -> int:
    """The last place up to `at` where a character of UTF-8 starts; `at` itself in other content."""
    return next((place for place in range(at, max(at - 4, -1), -1) if text[place] & 0xC0 != 0x80), at)


@dataclass(frozen=True)
class TextCorpus:
    """The documents of each split of the corpus, before those of train are held out for a `missing` one.

    `split_names` and `notes` as of `rpr.data.corpus.Corpus`.
    """

    name: str
    splits: Mapping[str, Documents]
    missing: tuple[str, ...]
    split_names: Mapping[str, str]
    notes: tuple[str, ...]

    def size(self) -> int:
        """The bytes of the files."""
        return sum(documents.size() for documents in self.splits.values())

    def blocks(self, train_limit: int | None) -> Iterator[Block]:
        """Every block, with the splits that it belongs to; of those of train, the first `train_limit` documents."""
        for split, documents in self.splits.items():
            if split != "train":
                yield from (block._replace(splits=(split,)) for block in documents.blocks())
        train = self.splits["train"]
        if self.missing and _only_one(train):
            blocks = self._last_tenth(train)
        else:
            split_of = _held_out(train, self.missing, self.name) if self.missing else lambda name: "train"
            blocks = (block._replace(splits=(split_of(block.name),)) for block in train.blocks())
        of_train = 0
        for block in blocks:
            if block.splits != ("train",) or train_limit is None or of_train < train_limit:
                yield block
            of_train += block.splits == ("train",) and block.last

    def _last_tenth(self, train: Documents) -> Iterator[Block]:
        left = sum(len(block.text) for block in train.blocks()) * (LAST - 1) // LAST
        for block in train.blocks():
            end = left if left >= len(block.text) else character_boundary(block.text, left) if left > 0 else 0
            if left > 0:
                yield block._replace(text=block.text[:end], last=left <= len(block.text), splits=("train",))
            if left <= len(block.text):
                yield block.after(end)._replace(splits=self.missing)
            left -= len(block.text)


def load_documents(data: DataConfig) -> TextCorpus:
    """Open a corpus of documents. Validation and test documents are held out of train, if the corpus has none.

    Raises DataError: nothing to read at data.path, a table without the column, or too few documents.
    """
    assert data.text is not None
    listing, splits = corpus_files(data), dict[str, Documents]()
    missing = missing_splits(data, listing)
    for split, files in listing.splits.items():
        by_path = {} if data.on_hub else {file.relative_to(listing.root).as_posix(): [file] for file in files}
        splits[split] = Documents(by_path or {split: files}, data.text)
    named = {"validation": data.validation_name, "test": data.test_name}
    if data.hub is not None:  # whose names are those of its own splits
        named |= {split: f"held-out-{split}" for split in missing if not data.on_hub}
    notes: tuple[str, ...] = ()
    if missing:
        one = _only_one(splits["train"])
        how = "the last tenth of the only document" if one else f"one in {SHARE} documents, by a hash of their names"
        same = ", the same for both" if one and len(missing) > 1 else ""
        notes = (f"{' and '.join(sorted(missing))}: {how}{same}, held out of train",)
    if data.train_limit is not None and _only_one(splits["train"]):
        raise DataError(
            f"data.train_limit: train is a single document, which is not cut (data.text.rows={data.text.rows}); "
            "leave it out, or give a part of the file"
        )
    if data.train_limit is not None:
        of_all = f"; {' and '.join(sorted(missing))} from all" if missing else ""
        notes += (f"train: the first documents, at most {data.train_limit}{of_all}",)
    return TextCorpus(data.name, splits, missing, named, notes)


def _only_one(documents: Documents) -> bool:
    return len([*islice(documents.names(), 2)]) == 1


def _held_out(train: Documents, missing: Sequence[str], corpus: str) -> Callable[[str], str]:
    """The split of a document by its name: one in SHARE for each missing split, or else the one of smallest hash."""
    number, present, others = 0, set[int](), list[int]()
    for hashed in map(_hash, train.names()):
        number += 1
        present.add(hashed % SHARE)
        if hashed % SHARE >= len(missing):
            others = sorted((*others, hashed))[: len(missing)]
    absent = [split for index, split in enumerate(missing) if index not in present]
    if number <= len(missing) or len(others) < len(absent):
        raise DataError(
            f"data {corpus}: {number} documents are too few to hold out {' and '.join(missing)}; add documents, or "
            "give a single one, whose last tenth is held out"
        )
    instead = dict(zip(others, absent, strict=False))

    def split_of(name: str) -> str:
        hashed = _hash(name)
        return instead.get(hashed) or (*missing, *["train"] * SHARE)[hashed % SHARE]

    return split_of


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8])

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

import numpy as np

from rpr.config.data import DataConfig, TextConfig
from rpr.data.corpus import corpus_files, missing_splits
from rpr.data.files import ARROW, TABLES, Table, kind_of, not_utf8, open_file
from rpr.errors import DataError

BLOCK = 1 << 20  # bytes of a document in memory at once, and the rest of a line
SHARE = 20  # of 20 documents, one is for each split that is held out
ROWS_AT_ONCE = 100  # of a table
LAST = 10  # a single document's last tenth is, as nanoGPT does


class Block(NamedTuple):
    """Whole lines of a document of these splits; `last` is its end."""

    name: str
    text: bytes
    last: bool
    splits: tuple[str, ...] = ()


class Documents:
    """The documents of these files, by name: a file of text is one, and so is each row of a table, or all of its rows
    together (data.text.rows), which are lines with their newlines. Several tables of one name follow each other.

    Raises DataError if a table has no such column, or one that is not text; and while reading, if text has to be `utf8`
    and is not.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]], text: TextConfig, *, utf8: bool = True) -> None:
        self._files, self._joined, self._utf8 = files, text.rows == "lines", utf8
        self._tables = {
            name: [Table(file, {"data.text.column": text.column}) for file in of_name]
            for name, of_name in files.items()
            if kind_of(of_name[0]) in (*TABLES, *ARROW)
        }

    def size(self) -> int:
        """The bytes of the files."""
        return sum(file.stat().st_size for file in chain.from_iterable(self._files.values()))

    def names(self) -> Iterator[str]:
        for name in self._files:
            rows = sum(table.rows for table in self._tables.get(name, ()))
            separate = name in self._tables and not self._joined
            yield from (f"{name}:{row}" for row in range(1, 1 + rows)) if separate else [name]

    def blocks(self) -> Iterator[Block]:
        """The blocks of every document; its last one may be empty."""
        for name, files in self._files.items():
            for block in self._of_tables(name) if name in self._tables else self._of_file(name, files[0]):
                try:
                    if self._utf8:
                        block.text.decode()
                except UnicodeDecodeError as error:
                    remedy = ", or choose data.tokenizer=bytes, which reads anything"
                    raise not_utf8(error, block.name, remedy) from None
                yield block

    def _of_tables(self, name: str) -> Iterator[Block]:
        cells = chain.from_iterable(cells for table in self._tables[name] for (cells,) in table.chunks(ROWS_AT_ONCE))
        if not self._joined:
            yield from (Block(f"{name}:{row}", cell or b"", True) for row, cell in enumerate(cells, 1))
            return
        before = b""
        for row, cell in enumerate(cells):
            if cell and before and not before.endswith(b"\n"):
                remedy = "end each with one, or choose data.text.rows=documents"
                raise DataError(f"data.text.rows: row {row} of {name} has no newline at its end; {remedy}")
            before = cell or b"\n"
            yield Block(name, cell or b"", False)
        yield Block(name, b"", True)

    def _of_file(self, name: str, file: Path) -> Iterator[Block]:
        """Whole lines, as no piece and no word goes beyond one: the pieces of the blocks are those of the document."""
        with open_file(file, lines=False, utf8=self._utf8) as handle:
            text = handle.read(BLOCK) + handle.readline()
            while following := handle.read(BLOCK) + handle.readline():
                yield Block(name, text, False)
                text = following
        yield Block(name, text, True)


@dataclass(frozen=True)
class TextCorpus:
    """The documents of each split of the corpus, before those of train are held out for a `missing` one.

    `split_names` and `notes` as of `rpr.data.pairs.Corpus`.
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
        of_train, blocks = 0, iter(list[Block]())
        for split, documents in self.splits.items():
            if split != "train" or not self.missing:
                blocks = (block._replace(splits=(split,)) for block in documents.blocks())
            elif _only_one(documents):
                blocks = self._last_tenth(documents)
            else:
                split_of = _held_out(documents, self.missing, self.name)
                blocks = (block._replace(splits=(split_of(block.name),)) for block in documents.blocks())
            for block in blocks:
                if block.splits != ("train",) or train_limit is None or of_train < train_limit:
                    yield block
                of_train += block.splits == ("train",) and block.last

    def _last_tenth(self, train: Documents) -> Iterator[Block]:
        left = sum(len(block.text) for block in train.blocks()) * (LAST - 1) // LAST
        for block in train.blocks():
            text, end = block.text, min(max(left, 0), len(block.text))
            if 0 < left < len(text):  # where a character of UTF-8 starts
                end = next((at for at in range(left, max(left - 4, -1), -1) if text[at] & 0xC0 != 0x80), left)
            if left > 0:
                yield block._replace(text=text[:end], last=left <= len(text), splits=("train",))
            if left <= len(text):
                yield block._replace(text=text[end:], splits=self.missing)
            left -= len(text)


def load_documents(data: DataConfig) -> TextCorpus:
    """Open a corpus of documents. Validation and test documents are held out of train, if the corpus has none.

    Raises DataError: nothing to read at data.path, a table without the column, or too few documents.
    """
    # 1. The documents of each split.
    assert data.text is not None
    listing, splits = corpus_files(data), dict[str, Documents]()
    missing = missing_splits(data, listing)
    for split, files in listing.splits.items():
        by_path = {} if data.on_hub else {file.relative_to(listing.root).as_posix(): [file] for file in files}
        splits[split] = Documents(by_path or {split: files}, data.text, utf8=data.tokenizer != "bytes")
    # 2. What they are called, and what a reader of scores must know.
    named = {"validation": data.validation_name, "test": data.test_name}
    if data.hub is not None:  # whose names are those of its own splits
        named |= {split: f"held-out-{split}" for split in missing if not data.on_hub}
    notes, one = list[str](), _only_one(splits["train"])
    if missing:
        how = "the last tenth of the only document" if one else f"one in {SHARE} documents, by a hash of their names"
        same = ", the same for both" if one and len(missing) > 1 else ""
        notes.append(f"{' and '.join(sorted(missing))}: {how}{same}, held out of train")
    if data.train_limit is not None:
        if one:
            raise DataError("data.train_limit: train is a single document, which is not cut; give a part of the file")
        of_all = f"; {' and '.join(sorted(missing))} from all" if missing else ""
        notes.append(f"train: the first documents, at most {data.train_limit}{of_all}")
    return TextCorpus(data.name, splits, missing, named, tuple(notes))


def _only_one(documents: Documents) -> bool:
    return len([*islice(documents.names(), 2)]) == 1


def _held_out(train: Documents, missing: Sequence[str], corpus: str) -> Callable[[str], str]:
    """The split of a document by its name: one in SHARE for each missing split, or else the one of smallest hash."""
    hashes = np.fromiter(map(_hash, train.names()), np.uint64)
    absent = [split for index, split in enumerate(missing) if index not in hashes % SHARE]
    others = np.sort(hashes[hashes % SHARE >= len(missing)])[: len(missing)].tolist()
    if len(hashes) <= len(missing) or len(others) < len(absent):
        too_few = f"data {corpus}: {len(hashes)} documents are too few to hold out {' and '.join(missing)}"
        raise DataError(f"{too_few}; add documents, or give a single one, whose last tenth is held out")
    instead = dict(zip(others, absent, strict=False))

    def split_of(name: str) -> str:
        hashed = _hash(name)
        return instead.get(hashed) or (*missing, *["train"] * SHARE)[hashed % SHARE]

    return split_of


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8])

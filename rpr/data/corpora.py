"""Corpora by split, of sentence pairs (generated, of line files or of tables) and of documents. Both are streamed, give
the words that a vocabulary is learned from, and write their token files; missing splits are held out of train.

A document is a file of text, or a row of a table. Its name decides whether it is held out, so the same documents are in
every copy of a corpus: the path relative to the corpus, with the row if it is one; of the hub, the split with the row,
as the library may divide a split into other files tomorrow.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rpr.config.train import DataConfig, TextConfig
from rpr.data.files import ARROW, SPLIT_NAMES, TABLES, Table, corpus_files, kind_of, not_utf8, open_file
from rpr.data.generated import Pair as Pair
from rpr.data.vocabulary import EOS, SPACE, Vocabulary, count_text_words, count_words, text_vocabulary
from rpr.errors import DataError

SIDES = ("source", "target")
PAIRS_AT_ONCE = 10_000  # in a chunk
LEARNED_PAIRS = 2_000_000  # of more, the vocabulary is learned from a sample of about so many
HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 20  # a missing split takes the last min(1000, 1/20 of train) pairs
CUT = (SPACE.encode(), b"@@ ")  # the marks of sentencepiece and subword-nmt
CUT_SHARE = 0.1  # of the pairs of a split: with more of them it is noted as cut into pieces
BLOCK = 1 << 20  # bytes of a document in memory at once, and the rest of a line
MEGABYTE = 10**6
LEARNED_FROM = 512 << 20  # bytes of files: of more, the vocabulary is learned from every n-th BLOCK
SHARE = 20  # of 20 documents, one is for each split that is held out
ROWS_AT_ONCE = 100  # of a table of documents
LAST = 10  # a single document's last tenth is held out, as nanoGPT does
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f{SPACE}]+")
Progress = Callable[[int, int, str], None]
Item = TypeVar("Item")


# Token files


class Job(NamedTuple):
    """What every stage of a build needs, and what it adds to: notes, and by split what was kept and what dropped."""

    data: DataConfig
    directory: Path
    progress: Progress
    notes: list[str]
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]

    def counting(self, items: Iterable[Item], size: Callable[[Item], float], total: float, what: str) -> Iterator[Item]:
        """The items, counted by size when they are done; of packed files there is more than on disk, `total`."""
        done = 0.0
        self.progress(0, int(total), what)
        for item in items:
            yield item
            done += size(item)
            self.progress(int(done), int(max(done, total)), what)


class _Tokens:
    """One side of a split, as it is written: so many `rows`, and `unended` pieces of one that has not ended."""

    def __init__(self, stack: ExitStack, stem: Path) -> None:
        self._pieces, self._offsets = (_opened(stack, stem, kind) for kind in ("pieces", "offsets"))
        self._offsets.write(np.int64(0).tobytes())
        self._size = self.rows = self.unended = 0

    def add(self, pieces: NDArray[Any], lengths: Sequence[int] = ()) -> None:
        """More pieces, and the lengths of the rows that end with the last of them."""
        self._pieces.write(pieces.tobytes())
        self._offsets.write((self._size + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self._size += len(pieces)
        self.rows, self.unended = self.rows + len(lengths), 0 if lengths else self.unended + len(pieces)


def _opened(stack: ExitStack, stem: Path, kind: str) -> IO[bytes]:
    return stack.enter_context(Path(f"{stem}.{kind}").open("wb"))


# Sentence pairs


def normalise(text: str) -> str:
    """A sentence as one line: NFC, no control characters or byte order mark, every run of whitespace (including
    U+2028, no-break spaces and sentencepiece's own U+2581) one space.
    """
    if SPACE in text or not text.isprintable():
        text = _CONTROL.sub(" ", text.replace("\ufeff", ""))
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
        try:
            return normalise((self.source or b"").decode()), normalise((self.target or b"").decode())
        except UnicodeDecodeError as error:
            raise not_utf8(error, self.place(self.index(error.object))) from None

    def place(self, *sides: int) -> str:
        """Of these sides, for error messages."""
        names = dict.fromkeys(str(self.files[side]) for side in sides)
        return f"{self.unit} {self.number} of {' and '.join(names)}"


@dataclass(frozen=True)
class Pairs:
    """A split of `number` sentence pairs; each call of `rows` reads it anew."""

    number: int
    rows: Callable[[], Iterator[Row]]

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Pair]:
        return map(Row.pair, self.rows())

    def chunks(self) -> Iterator[list[Row]]:
        """The rows, at most PAIRS_AT_ONCE at a time."""
        rows = self.rows()
        while chunk := [*islice(rows, PAIRS_AT_ONCE)]:
            yield chunk

    def part(self, start: int, stop: int, dropped: Collection[int] = ()) -> Pairs:
        """The pairs start, ..., stop - 1, without those whose numbers, counted from start, are `dropped`."""

        def rows() -> Iterator[Row]:
            within = enumerate(islice(self.rows(), start, stop))
            return (row for index, row in within if index not in dropped)

        return Pairs(stop - start - len(dropped), rows)


def listed_pairs(pairs: Sequence[Pair]) -> Pairs:
    rows = [(source.encode(), target.encode()) for source, target in pairs]
    return Pairs(len(rows), lambda: (Row(*row, at, "pair", (Path(), Path())) for at, row in enumerate(rows, 1)))


def line_pairs(source: Path, target: Path) -> Pairs:
    """Line i of one file translates line i of the other. Raises DataError if their line counts differ."""
    numbers = list[int]()
    for file in (source, target):
        with open_file(file) as lines:
            numbers.append(sum(1 for _ in lines))
    if numbers[0] != numbers[1]:
        raise DataError(
            f"data.path: {source} has {numbers[0]} lines and {target} has {numbers[1]}; "
            "line i of one must translate line i of the other: fix or realign the files"
        )

    def rows() -> Iterator[Row]:
        with open_file(source) as sources, open_file(target) as targets:
            for line, sides in enumerate(zip(sources, targets, strict=True), 1):
                yield Row(*sides, line, "line", (source, target))

    return Pairs(numbers[0], rows)


def table_pairs(data: DataConfig, *files: Path) -> Pairs:
    """The rows of these files, one after the other, with a column of each language. Raises DataError as `Table`."""
    columns = {"data.source_language": data.source_language, "data.target_language": data.target_language}
    tables = [Table(file, columns) for file in files]

    def rows() -> Iterator[Row]:
        for table in tables:
            cells = chain.from_iterable(zip(*chunk, strict=True) for chunk in table.chunks(PAIRS_AT_ONCE))
            for line, (source, target) in enumerate(cells, 1):
                yield Row(source, target, line, "row", (table.file, table.file))

    return Pairs(sum(table.rows for table in tables), rows)


@dataclass(frozen=True)
class Corpus:
    """All splits of a corpus of pairs. `split_names` are the test sets' names (newstest2013); `notes` are caveats for
    readers of scores; `repeated` train pairs were dropped, as they equal a held-out one.
    """

    splits: Mapping[str, Pairs]
    held_out: Collection[str]
    split_names: Mapping[str, str]
    notes: Sequence[str]
    repeated: int

    def size(self) -> int:
        """The pairs of train."""
        return len(self.splits["train"])

    def words(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """The words of train, chunk by chunk, each after the number of its pairs."""
        draw, share = np.random.Generator(np.random.PCG64(0)), LEARNED_PAIRS / max(1, self.size())
        for chunk in self.splits["train"].chunks():
            rows = compress(chunk, draw.random(len(chunk)) < share)
            yield len(chunk), count_words(chain.from_iterable(map(Row.pair, rows)))

    def encode(self, job: Job, vocabulary: Vocabulary) -> None:
        for split in sorted(self.splits, key=lambda split: split != "train"):
            self._encode(split, job, vocabulary)

    def _encode(self, split: str, job: Job, vocabulary: Vocabulary) -> None:
        """Pairs with an empty side, or one longer than data.max_length tokens, are dropped from train and what is held
        out of it; in others an empty side is a DataError.
        """
        pairs, data, train = self.splits[split], job.data, split == "train"
        given = not train and split not in self.held_out
        longest = math.inf if given or data.max_length is None else data.max_length
        dropped, cut = Counter[str](empty=0, too_long=0), 0
        with ExitStack() as stack:
            stems = [job.directory / f"{split}.{side}" for side in SIDES]
            tokens = [_Tokens(stack, stem) for stem in stems]
            lines = [] if train else [_opened(stack, stem, "txt") for stem in stems]
            for chunk in job.counting(pairs.chunks(), len, len(pairs), f"encoding {split}"):
                # 1. Text.
                texts = [row.pair() for row in chunk]
                kept = [pair for pair in texts if all(pair)]
                if given and len(kept) < len(texts):
                    row, pair = next(both for both in zip(chunk, texts, strict=True) if not all(both[1]))
                    raise DataError(
                        f"data: the {SIDES[bool(pair[0])]} of {row.place(0, 1)} of {split} is empty; "
                        "a scored split must be complete: fix or remove the pair"
                    )
                # 2. Pieces.
                encoded = [vocabulary.encode_batch([pair[side] for pair in kept], eos=True) for side in (0, 1)]
                rows = [row for row in zip(*encoded, kept, strict=True) if max(map(len, row[:2])) <= longest]
                # 3. What is written.
                for side, of_side in enumerate(tokens):
                    flat = chain.from_iterable(row[side] for row in rows)
                    of_side.add(np.fromiter(flat, vocabulary.piece_type), [len(row[side]) for row in rows])
                for side, file in enumerate(lines):
                    file.write("".join(f"{row[2][side]}\n" for row in rows).encode())
                dropped.update(empty=len(texts) - len(kept), too_long=len(kept) - len(rows))
                cut += sum(any(mark in (side or b"") for side in row[:2] for mark in CUT) for row in chunk)
        # 4. What a reader of scores must know.
        if not tokens[0].rows:
            raise DataError(
                f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
                f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); raise it"
            )
        if cut > CUT_SHARE * len(pairs):
            job.notes.append(
                f"{split}: {cut} of {len(pairs)} pairs are already cut into pieces (U+2581 or @@), which are scored "
                "then; give the text itself"
            )
        job.counts[split], job.dropped[split] = tokens[0].rows, dict(dropped)
        if train and self.repeated:
            job.dropped[split]["held_out"] = self.repeated


def load_corpus(data: DataConfig) -> Corpus:
    """Open a corpus of pairs. A missing validation or test split is held out from the end of train; train pairs equal
    to a held-out one are dropped, which requires reading train once. Raises DataError if files cannot be read or do not
    fit each other, or a split is empty.
    """
    # 1. The splits that there are.
    missing = tuple[str, ...]()
    if (generator := data.synthetic or data.task) is not None:
        try:
            read = {split: listed_pairs(pairs) for split, pairs in generator.pairs().items()}
        except ValueError as error:
            raise DataError(f"data.{'synthetic' if data.synthetic else 'task'}: {error}") from None
    else:
        listing = corpus_files(data)
        missing, opened = listing.missing, line_pairs if listing.lines else partial(table_pairs, data)
        read = {split: opened(*files) for split, files in listing.splits.items()}
    for split, pairs in read.items():
        if not len(pairs):
            raise DataError(f"data {data.name}: split {split} of {data.path or data.hub} is empty; it needs a pair")
    # 2. Missing ones: the last pairs of train are test, those before them validation.
    splits, notes, train, end = dict(read), list[str](), read["train"], len(read["train"])
    number = min(HELD_OUT_PAIRS, max(1, end // HELD_OUT_SHARE))
    for split in missing:
        splits[split] = train.part(max(0, end - number), end)
        end -= number
        notes.append(f"{split}: pairs {end + 1} to {end + number} of train, held out of it")
    if end <= 0:
        of_missing = " and ".join(sorted(missing))
        raise DataError(f"data {data.name}: {len(train)} train pairs are too few to hold out {of_missing}; add some")
    own = sorted(set(read) - set(SPLIT_NAMES))
    if own and not set(SPLIT_NAMES) <= set(read):
        notes.append(f"further splits, scored where evaluation.test_splits names them: {', '.join(own)}")
    # 3. The first pairs of train, without those that are held out.
    limit = min(data.train_limit or end, end)
    if limit < end:
        notes.append(f"train: the first {limit} of {end} pairs")
    splits["train"] = train.part(0, limit) if missing or limit < end else train
    if missing:
        # One range for both splits: reading the end of line files scans everything before it. Pairs with an empty side
        # are dropped, and counted as empty, later.
        held = {pair for pair in train.part(end, len(train)) if all(pair)}
        repeats = frozenset(index for index, pair in enumerate(splits["train"]) if pair in held)
        splits["train"] = train.part(0, limit, repeats)
    if repeated := limit - len(splits["train"]):
        notes.append(f"train: {repeated} pairs left out, each equal to a held-out one")
    names = {"validation": data.validation_name, "test": data.test_name}
    names |= {split: f"held-out-{split}" for split in missing}
    named = {split: names.get(split, split) for split in splits if split != "train"}
    return Corpus(splits, missing, named, notes, repeated)


# Documents


class Block(NamedTuple):
    """Whole lines of a document of these splits; `last` is its end."""

    name: str
    text: bytes
    last: bool
    splits: tuple[str, ...] = ()


class Documents:
    """The documents of these files, by name: a file of text is one, and so is each row of a table, or all of its rows
    together (data.text.rows), which are lines. Several tables of one name follow each other. Raises DataError as
    `Table`; and while reading, if text has to be `utf8` and is not.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]], text: TextConfig, *, utf8: bool = True) -> None:
        self._files, self._joined, self._utf8 = files, text.rows == "lines", utf8
        self._tables = {
            name: [Table(file, {"data.text.column": text.column}) for file in of_name]
            for name, of_name in files.items()
            if kind_of(of_name[0]) in (*TABLES, *ARROW)
        }

    def size(self) -> int:
        return sum(file.stat().st_size for file in chain.from_iterable(self._files.values()))

    def names(self) -> Iterator[str]:
        for name in self._files:
            rows = sum(table.rows for table in self._tables.get(name, ()))
            separate = name in self._tables and not self._joined
            yield from (f"{name}:{row}" for row in range(1, 1 + rows)) if separate else [name]

    def only_one(self) -> bool:
        return len([*islice(self.names(), 2)]) == 1

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
        """A line without a newline gets one."""
        cells = chain.from_iterable(cells for table in self._tables[name] for (cells,) in table.chunks(ROWS_AT_ONCE))
        if not self._joined:
            yield from (Block(f"{name}:{row}", cell or b"", True) for row, cell in enumerate(cells, 1))
            return
        yield from (Block(name, cell if cell.endswith(b"\n") else cell + b"\n", False) for cell in cells if cell)
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
    """The documents of each split of the corpus, before those of train are held out for a `missing` one, and all but
    the first `train_limit` left out; the rest as of `Corpus`.
    """

    splits: Mapping[str, Documents]
    missing: Sequence[str]
    train_limit: int | None
    split_names: Mapping[str, str]
    notes: Sequence[str]

    def size(self) -> float:
        """The megabytes of the files."""
        return sum(documents.size() for documents in self.splits.values()) / MEGABYTE

    def words(self) -> Iterator[tuple[float, Mapping[str, int]]]:
        """The words of train, each time after the megabytes read for them."""
        nth = 1 if self.train_limit is not None else max(1, -(-self.splits["train"].size() // LEARNED_FROM))
        begin = 0
        for block in self.blocks():
            if "train" in block.splits:
                if begin // BLOCK % nth == 0:
                    yield nth * len(block.text) / MEGABYTE, count_text_words(block.text.decode())
                begin += len(block.text)

    def blocks(self) -> Iterator[Block]:
        """Every block, with the splits that it belongs to; of those of train, the first ones."""
        of_train, blocks = 0, iter(list[Block]())
        for split, documents in self.splits.items():
            if split != "train" or not self.missing:
                blocks = (block._replace(splits=(split,)) for block in documents.blocks())
            elif documents.only_one():
                blocks = self._last_tenth(documents)
            else:
                split_of = _held_out(documents, self.missing)
                blocks = (block._replace(splits=(split_of(block.name),)) for block in documents.blocks())
            for block in blocks:
                if block.splits != ("train",) or self.train_limit is None or of_train < self.train_limit:
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
                yield block._replace(text=text[end:], splits=tuple(self.missing))
            left -= len(text)

    def encode(self, job: Job, vocabulary: Vocabulary) -> None:
        """Write pieces, offsets and names of all splits; a document without content is dropped."""
        empty, groups = Counter[str](), _together(self.blocks())
        encode, end = text_vocabulary(vocabulary).encode_texts, np.array([EOS], vocabulary.piece_type)
        # 1. Write.
        with ExitStack() as stack:
            tokens = {split: _Tokens(stack, job.directory / f"{split}.target") for split in SPLIT_NAMES}
            names = {split: _opened(stack, job.directory / split, "names") for split in SPLIT_NAMES if split != "train"}
            for blocks in job.counting(groups, _megabytes, self.size(), "encoding"):
                encoded = zip(blocks, encode([block.text for block in blocks]), strict=True)
                for split, block, pieces in ((split, *both) for both in encoded for split in both[0].splits):
                    tokens[split].add(pieces)
                    if block.last and not tokens[split].unended:
                        empty[split] += 1
                    elif block.last:
                        tokens[split].add(end, [1])
                        if split in names:
                            names[split].write((json.dumps(block.name) + "\n").encode())
        # 2. Count.
        for split, of_split in tokens.items():
            if not of_split.rows:
                raise DataError(
                    f"data {job.data.name}: no document with text in {split} ({empty[split]} are empty); add documents"
                )
            job.counts[split], job.dropped[split] = of_split.rows, {"empty": empty[split]}


def load_documents(data: DataConfig) -> TextCorpus:
    """Open a corpus of documents; missing splits are held out. Raises DataError as `corpus_files` and `Table`."""
    # 1. The documents of each split.
    assert data.text is not None
    listing, splits = corpus_files(data), dict[str, Documents]()
    missing = listing.missing
    for split, files in listing.splits.items():
        by_path = {} if data.on_hub else {file.relative_to(listing.root).as_posix(): [file] for file in files}
        splits[split] = Documents(by_path or {split: files}, data.text, utf8=data.tokenizer != "bytes")
    # 2. What they are called, and what a reader of scores must know.
    named = {"validation": data.validation_name, "test": data.test_name}
    if data.hub is not None:  # whose names are those of its own splits
        named |= {split: f"held-out-{split}" for split in missing if not data.on_hub}
    notes, one, of_missing = list[str](), splits["train"].only_one(), " and ".join(sorted(missing))
    if missing:
        how = "the last tenth of the only document" if one else f"one in {SHARE} documents, by a hash of their names"
        same = ", the same for both" if one and len(missing) > 1 else ""
        notes.append(f"{of_missing}: {how}{same}, held out of train")
    if data.train_limit is not None:
        from_all = f"; {of_missing} from all" if missing else ""
        notes.append(f"train: the first documents, at most {data.train_limit}{from_all}")
    return TextCorpus(splits, missing, data.train_limit, named, notes)


def _held_out(train: Documents, missing: Sequence[str]) -> Callable[[str], str]:
    """The split of a document by its name: one in SHARE for each missing split, or else the one of smallest hash."""
    hashes = np.fromiter(map(_hash, train.names()), np.uint64)
    absent = [split for index, split in enumerate(missing) if index not in hashes % SHARE]
    others = np.sort(hashes[hashes % SHARE >= len(missing)])[: len(missing)].tolist()
    if len(hashes) <= len(missing) or len(others) < len(absent):
        too_few = f"data.path: {len(hashes)} documents are too few to hold out {' and '.join(missing)}"
        raise DataError(f"{too_few}; add documents, or give a single one, whose last tenth is held out")
    instead = dict(zip(others, absent, strict=False))

    def split_of(name: str) -> str:
        hashed = _hash(name)
        return instead.get(hashed) or (*missing, *["train"] * SHARE)[hashed % SHARE]

    return split_of


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8])


def _together(blocks: Iterable[Block]) -> Iterator[Sequence[Block]]:
    together, size = list[Block](), 0
    for block in blocks:
        together.append(block)
        size += len(block.text)
        if size >= BLOCK:
            yield together
            together, size = [], 0
    yield together


def _megabytes(blocks: Iterable[Block]) -> float:
    return sum(len(block.text) for block in blocks) / MEGABYTE

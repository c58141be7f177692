"""The token cache: an encoded corpus on disk, keyed by the hash of everything it was built from.

    <cache_dir>/<name>-<key, 12 hex digits>/
        meta.json                           counts, notes, key, and the size of every other file
        vocabulary.model
        <split>.<source|target>.pieces      all pieces, concatenated, EOS after each sentence, uint16 or uint32
        <split>.<source|target>.offsets     int64, N + 1: sentence i is pieces[offsets[i] : offsets[i + 1]]
        <split>.<source|target>.txt         the sentences, one per line; all splits except train
        <split>.names                       of documents, as lines of JSON; all splits except train

A cache is built in a hidden folder next to its final one, and renamed when it is complete; an interrupted build leaves
nothing, and starts again. A damaged cache is rebuilt, with a warning. Building: corpus -> vocabulary -> token files, in
constant memory, by one process, in which sentencepiece has threads.
"""

import glob
import hashlib
import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.corpus import SPLIT_NAMES, cache_root, corpus_files, fingerprint
from rpr.data.documents import BLOCK, Block, TextCorpus, load_documents
from rpr.data.pairs import Corpus, Pairs, Row, load_corpus
from rpr.data.vocabulary import (
    BOS,
    EOS,
    MAX_WORDS,
    BytePairVocabulary,
    ByteVocabulary,
    TextVocabulary,
    Vocabulary,
    add_words,
    count_text_words,
    count_words,
    learned_words,
)
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replacing
from rpr.io.locks import lock

META_NAME, MODEL_NAME = "meta.json", "vocabulary.model"
CACHE_VERSION = 1  # increase it when the same corpus and settings produce different files
SIDES = ("source", "target")
LEARNED_PAIRS = 2_000_000  # of more pairs, the vocabulary is learned from a sample of about so many
LEARNED_FROM = 512 << 20  # bytes: of more, the vocabulary is learned from every n-th BLOCK; with train_limit the first
MEGABYTE = 10**6
LARGE_VOCABULARY, TOKENS_FOR_A_PIECE = 1_000, 20  # of more pieces with fewer tokens of train for each, a note says so
CUT = ("\u2581".encode(), b"@@ ")  # the marks of sentencepiece and subword-nmt
CUT_SHARE = 0.1  # of the pairs of a split: with more of them it is noted as cut into pieces
Progress = Callable[[int, int, str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meta:
    """The contents of meta.json. Counts are pairs or documents; `dropped` those of each split that lost any: with an
    empty or an overlong side and, in train, equal to a held-out pair.
    """

    key: str
    name: str
    source_language: str
    target_language: str
    synthetic: bool
    split_names: dict[str, str]
    notes: list[str]
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]
    piece_type: str
    vocabulary_digest: str
    file_sizes: dict[str, int]


class TokenSplit:
    """The encoded pairs or documents of one split, in files mapped into memory; documents are targets without sources.
    A pickle holds the path.
    """

    def __init__(self, directory: Path, name: str, count: int, piece_type: str) -> None:
        self.directory, self.name, self._count, self._piece_type = directory, name, count, piece_type
        self._maps: dict[str, NDArray[Any]] = {}
        self._sides = SIDES if (directory / f"{name}.source.offsets").exists() else SIDES[1:]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSplit, (self.directory, self.name, self._count, self._piece_type)

    def __len__(self) -> int:
        return self._count

    def row(self, side: str, index: int) -> NDArray[Any]:
        """Token IDs of one source or target, EOS included; uint16 or uint32."""
        return self.rows(side, [index])[0]

    def first(self, side: str, most: int | None = None) -> list[list[int]]:
        """The token IDs of the first sources or targets, EOS included; None: of all."""
        return [self.row(side, index).tolist() for index in range(len(self))[:most]]

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) what stands before each target: BOS."""
        return np.full(len(indices), BOS, np.int64)

    def offsets(self, side: str) -> NDArray[np.int64]:
        """(N + 1,) source or target i has the tokens offsets[i] : offsets[i + 1]."""
        return self._mapped(f"{side}.offsets", np.int64)

    @cached_property
    def source_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per source, EOS included; documents have none."""
        return self._lengths("source") if "source" in self._sides else np.zeros(self._count, np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32 | np.int64]:
        """(N,) tokens per target, EOS included."""
        return self._lengths("target")

    def pieces(self, side: str) -> NDArray[Any]:
        """All token IDs of a side one after the other, not in memory until they are read."""
        return self._mapped(f"{side}.pieces", self._piece_type)

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The token IDs of the selected sources or targets, concatenated, and the length of each."""
        pieces, offsets = self.pieces(side), self.offsets(side)
        rows = [pieces[offsets[index] : offsets[index + 1]] for index in indices]
        return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))

    def hashes(self) -> Iterator[int]:
        """Of the tokens of each pair or document; other ones in another process."""
        return map(hash, zip(*map(self._contents, self._sides), strict=True))

    def _contents(self, side: str) -> Iterator[bytes]:
        pieces = self.pieces(side)
        return (pieces[start:end].tobytes() for start, end in itertools.pairwise(self.offsets(side)))

    def _lengths(self, side: str) -> NDArray[np.int32 | np.int64]:
        lengths = np.diff(self.offsets(side))
        return lengths.astype(np.int32) if lengths.max(initial=0) < 1 << 31 else lengths

    def _mapped(self, name: str, dtype: Any) -> NDArray[Any]:
        if name not in self._maps:
            self._maps[name] = np.asarray(np.memmap(self.directory / f"{self.name}.{name}", dtype, "r"))
        return self._maps[name]


@dataclass
class PreparedData:
    """A complete token cache; `built_now` by this process."""

    directory: Path
    meta: Meta
    vocabulary: Vocabulary
    built_now: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, test, and any others the corpus has (long, for a generated one)."""
        return tuple(self.meta.counts)

    def split(self, name: str) -> TokenSplit:
        """The encoded pairs of a split. Raises DataError if the corpus has no split of that name."""
        if name not in self.meta.counts:
            raise DataError(f"data {self.meta.name}: no split {name!r} (available: {', '.join(self.splits)})")
        return TokenSplit(self.directory, name, self.meta.counts[name], self.meta.piece_type)

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Normalised (sources, references) of a split, in the order of its pairs; those of train are not kept."""
        self.split(name)  # raises
        files = (self.directory / f"{name}.{side}.txt" for side in SIDES)
        sources, references = (file.read_text("utf-8").split("\n")[:-1] for file in files)
        return sources, references

    def set_name(self, split: str) -> str:
        """What records and tables call a split, such as `test_2016_flickr`."""
        return self.meta.split_names.get(split, f"{self.meta.name} {split}")


def prepare(data: DataConfig, progress: Progress = lambda done, total, what: None) -> PreparedData:
    """Open the token cache of this corpus and these settings, building it first if necessary.

    progress(done, total, what) is called regularly, in pairs, or in megabytes of documents. Raises DataError for a bad
    corpus, vocabulary size or cache folder, and a corpus that changes while it is read.
    """
    root, key = cache_root(data), cache_key(data)
    directory = root / f"{re.sub(r'[^A-Za-z0-9._-]', '_', data.name)}-{key[:12]}"
    try:
        if (prepared := _open(directory, key)) is None:
            root.mkdir(parents=True, exist_ok=True)
            # The lock file is never deleted: that would let two processes build at once.
            with (root / f".{directory.name}.lock").open("w") as file:
                if lock(file.fileno(), f"another process is building {directory.name}"):
                    remove_leftovers(root, glob.escape(directory.name))
                if (prepared := _open(directory, key, warn=True)) is None:
                    with replacing(directory) as folder:
                        _build(data, key, folder, progress)
                    prepared = _open(directory, key, warn=True)
                    assert prepared is not None, "a cache that was just built is complete"
                    prepared.built_now = True
    except OSError as error:
        raise DataError(f"data.cache_dir: {root} cannot be used ({error.strerror}); choose another") from None
    # What is beside the files is not part of the key.
    if not (data.generated or data.on_hub) and (beside := corpus_files(data).not_read):
        prepared.meta = replace(prepared.meta, notes=[*prepared.meta.notes, beside])
    return prepared


def _build(data: DataConfig, key: str, folder: Path, progress: Progress) -> None:
    """Write a cache into a new folder. Whatever happens with files that change meanwhile, they are the reason."""
    folder.mkdir()
    try:
        corpus = load_corpus(data) if data.text is None else load_documents(data)
        meta = build(corpus, data, key, folder, progress)
        (folder / META_NAME).write_text(json.dumps(asdict(meta), indent=1, ensure_ascii=False), "utf-8")
    finally:
        if cache_key(data) != key:
            raise DataError(f"data.path: {data.path} changed while it was read; run the same command again") from None


def cache_key(data: DataConfig) -> str:
    """sha256 of everything that determines the files: corpus content, settings, CACHE_VERSION."""
    parts = [
        CACHE_VERSION,
        fingerprint(data),
        data.vocabulary_size,
        data.max_length,
        data.train_limit,
        [data.source_language, data.target_language],
        [data.name, data.validation_name, data.test_name],
        *([] if data.tokenizer == "bpe" else [data.tokenizer]),
        *([] if data.text is None else [data.text.column, data.text.rows]),
        *(["whole lines"] if data.text is not None and data.tokenizer == "bpe" else []),  # are encoded since then
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _open(directory: Path, key: str, warn: bool = False) -> PreparedData | None:
    """The cache, or None if it is absent or damaged (with `warn`, a warning is logged)."""
    if not directory.is_dir():
        return None
    try:
        meta = Meta(**json.loads((directory / META_NAME).read_text("utf-8")))
        vocabulary = Vocabulary.load(directory / MODEL_NAME)
        sizes = {name: (directory / name).stat().st_size for name in meta.file_sizes}
        if (meta.key, meta.file_sizes, meta.vocabulary_digest) != (key, sizes, vocabulary.digest):
            raise DataError("its files are not those that were written")
        return PreparedData(directory, meta, vocabulary)
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        if warn:
            log.warning("token cache %s is damaged (%s); rebuilding it", directory, error)
        return None


# Building


class Job(NamedTuple):
    """What every stage of a build needs, and what it adds to: notes, and by split what was kept and what dropped."""

    data: DataConfig
    directory: Path
    progress: Progress
    notes: list[str]
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]

    def counting(self, what: str, total: int, unit: int = 1) -> Callable[[int], None]:
        """A function to call with what more is done; of packed files there are more bytes than on disk, `total`."""
        done = 0

        def report(more: int) -> None:
            nonlocal done
            done += more
            self.progress(done // unit, max(done, total) // unit, what)

        report(0)
        return report


def build(corpus: Corpus | TextCorpus, data: DataConfig, key: str, directory: Path, progress: Progress) -> Meta:
    """Write every file but meta.json, which is returned, into an empty folder. Raises DataError for a bad corpus."""
    # 1. The vocabulary, of the train split, and the pieces.
    job = Job(data, directory, progress, [*corpus.notes], {}, {})
    vocabulary: Vocabulary
    if isinstance(corpus, TextCorpus):
        vocabulary = text = _learn_from_documents(corpus, job)
        _encode_documents(corpus, job, text)
    else:
        vocabulary = _learn_from_pairs(corpus.splits["train"], job)
        for split in sorted(corpus.splits, key=lambda split: split != "train"):
            _encode_pairs(corpus, job, split, vocabulary)
    vocabulary.save(directory / MODEL_NAME)
    # 2. What is in train too: by the names of documents, and by the files of a user's own splits, nothing keeps it out.
    splits = {split: TokenSplit(directory, split, count, vocabulary.piece_type) for split, count in job.counts.items()}
    hashes = {split: [*tokens.hashes()] for split, tokens in splits.items() if split != "train"}
    repeated = set(itertools.chain(*hashes.values())).intersection(splits["train"].hashes())
    for split, of_split in hashes.items():
        if number := sum(each in repeated for each in of_split):
            job.notes.append(f"{split}: {number} of {len(of_split)} are in train too, token for token")
    # 3. A vocabulary of which most pieces are seen too seldom to be learned.
    tokens = sum(splits["train"].pieces(side).size for side in SIDES[isinstance(corpus, TextCorpus) :])
    size = len(vocabulary)
    if data.tokenizer == "bpe" and size >= LARGE_VOCABULARY and tokens < TOKENS_FOR_A_PIECE * size:
        job.notes.append(
            f"vocabulary: {size:,} pieces are many for {tokens:,} tokens of train, {tokens / size:.0f} for each; with "
            f"{TOKENS_FOR_A_PIECE} or more they are learned better: lower data.vocabulary_size"
        )
    return Meta(
        key=key,
        name=data.name,
        source_language=data.source_language,
        target_language=data.target_language,
        synthetic=data.generated,
        split_names=dict(corpus.split_names),
        notes=[*dict.fromkeys(job.notes)],
        counts=job.counts,
        dropped={split: reasons for split, reasons in job.dropped.items() if any(reasons.values())},
        piece_type=vocabulary.piece_type,
        vocabulary_digest=vocabulary.digest,
        file_sizes={file.name: file.stat().st_size for file in sorted(directory.iterdir())},
    )


class _Tokens:
    """The pieces and the offsets of one side of a split, as they are written."""

    def __init__(self, stack: ExitStack, stem: Path) -> None:
        self._pieces, self._offsets = (_opened(stack, stem, kind) for kind in ("pieces", "offsets"))
        self._offsets.write(np.int64(0).tobytes())
        self.size = 0

    def add(self, pieces: NDArray[Any], lengths: Sequence[int] = ()) -> None:
        """More pieces, and the lengths of the rows that end within them."""
        self._pieces.write(pieces.tobytes())
        self._offsets.write((self.size + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self.size += len(pieces)


def _opened(stack: ExitStack, stem: Path, kind: str) -> IO[bytes]:
    return stack.enter_context(Path(f"{stem}.{kind}").open("wb"))


def _words(job: Job, counted: Iterable[tuple[int, Mapping[str, int]]], report: Callable[[int], None]) -> dict[str, int]:
    """The words that are learned from: `counted` gives how much of the corpus was read, and the words of it."""
    words: dict[str, int] = {}
    for read, counts in counted:
        words = add_words(words, counts)
        report(read)
    if len(words) > MAX_WORDS:
        job.notes.append(f"vocabulary: learned from a sample of {MAX_WORDS:,} distinct words, as train has more")
    return learned_words(words)


# Pairs


def _learn_from_pairs(train: Pairs, job: Job) -> Vocabulary:
    draw, share = np.random.Generator(np.random.PCG64(0)), LEARNED_PAIRS / max(1, len(train))
    report = job.counting("reading for the vocabulary", len(train))
    chunks = ((len(chunk), itertools.compress(chunk, draw.random(len(chunk)) < share)) for chunk in train.chunks())
    counted = ((read, count_words(itertools.chain.from_iterable(map(Row.pair, rows)))) for read, rows in chunks)
    assert job.data.tokenizer != "bytes", "a corpus of pairs"
    return Vocabulary.learn(_words(job, counted, report), job.data.vocabulary_size, job.data.tokenizer)


def _encode_pairs(corpus: Corpus, job: Job, split: str, vocabulary: Vocabulary) -> None:
    """Write the files of one split. Pairs with an empty side, or one longer than data.max_length tokens, are dropped
    from train and what is held out of it; in others an empty side is a DataError.
    """
    pairs, data, train = corpus.splits[split], job.data, split == "train"
    given = not train and split not in corpus.held_out
    longest = math.inf if given or data.max_length is None else data.max_length
    dropped, cut = Counter[str](empty=0, too_long=0), 0
    report = job.counting(f"encoding {split}", len(pairs))
    with ExitStack() as stack:
        stems = [job.directory / f"{split}.{side}" for side in SIDES]
        tokens = [_Tokens(stack, stem) for stem in stems]
        lines = [] if train else [_opened(stack, stem, "txt") for stem in stems]
        for chunk in pairs.chunks():
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
                flat = itertools.chain.from_iterable(row[side] for row in rows)
                of_side.add(np.fromiter(flat, vocabulary.piece_type), [len(row[side]) for row in rows])
            for side, file in enumerate(lines):
                file.write("".join(f"{row[2][side]}\n" for row in rows).encode())
            dropped.update(empty=len(texts) - len(kept), too_long=len(kept) - len(rows))
            cut += sum(any(mark in (side or b"") for side in row[:2] for mark in CUT) for row in chunk)
            report(len(chunk))
    # 4. What a reader of scores must know.
    if dropped.total() == len(pairs):
        raise DataError(
            f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
            f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); raise it, or check the corpus"
        )
    if cut > CUT_SHARE * len(pairs):
        job.notes.append(
            f"{split}: {cut} of {len(pairs)} pairs are already cut into pieces (U+2581 or @@), which are scored then; "
            "give the text itself"
        )
    job.counts[split], job.dropped[split] = len(pairs) - dropped.total(), dict(dropped)
    if train and corpus.repeated:
        job.dropped[split]["held_out"] = corpus.repeated


# Documents


def _learn_from_documents(corpus: TextCorpus, job: Job) -> TextVocabulary:
    """As `_learn_from_pairs`, from every n-th BLOCK of bytes, however many documents these are, or with a limit from
    the first; bytes need no learning.
    """
    if job.data.tokenizer == "bytes":
        return ByteVocabulary()
    limit = job.data.train_limit
    nth = -(-corpus.splits["train"].size() // LEARNED_FROM) if limit is None else 1

    def counted() -> Iterator[tuple[int, Mapping[str, int]]]:
        begin = 0
        for block in corpus.blocks(limit):
            if limit is not None and begin >= LEARNED_FROM:
                return
            if "train" in block.splits:
                if begin // BLOCK % nth == 0:
                    yield nth * len(block.text), count_text_words(block.text.decode())
                begin += len(block.text)

    report = job.counting("reading for the vocabulary", corpus.size(), MEGABYTE)
    return BytePairVocabulary.learn_text(_words(job, counted(), report), job.data.vocabulary_size)


def _encode_documents(corpus: TextCorpus, job: Job, vocabulary: TextVocabulary) -> None:
    """Write pieces, offsets and names of all splits; a document without content is dropped."""
    counts, empty, begins = Counter[str](), Counter[str](), Counter[str]()
    report = job.counting("encoding", corpus.size(), MEGABYTE)
    end = np.array([EOS], vocabulary.piece_type)
    # 1. Write.
    with ExitStack() as stack:
        tokens = {split: _Tokens(stack, job.directory / f"{split}.target") for split in SPLIT_NAMES}
        names = {split: _opened(stack, job.directory / split, "names") for split in SPLIT_NAMES if split != "train"}
        for blocks in _together(corpus.blocks(job.data.train_limit)):
            encoded = zip(blocks, vocabulary.encode_texts([block.text for block in blocks]), strict=True)
            for split, block, pieces in ((split, *both) for both in encoded for split in both[0].splits):
                of_split = tokens[split]
                of_split.add(pieces)
                if block.last and of_split.size == begins[split]:
                    empty[split] += 1
                elif block.last:
                    of_split.add(end, [1])
                    begins[split] = of_split.size
                    counts[split] += 1
                    if split in names:
                        names[split].write((json.dumps(block.name) + "\n").encode())
            report(sum(len(block.text) for block in blocks))
    # 2. Count.
    for split in SPLIT_NAMES:
        if not counts[split]:
            raise DataError(
                f"data {corpus.name}: no document with text in {split} ({empty[split]} are empty); add documents"
            )
        job.counts[split], job.dropped[split] = counts[split], {"empty": empty[split]}


def _together(blocks: Iterable[Block]) -> Iterator[Sequence[Block]]:
    """Blocks of about BLOCK bytes altogether."""
    together, size = list[Block](), 0
    for block in blocks:
        together.append(block)
        size += len(block.text)
        if size >= BLOCK:
            yield together
            together, size = [], 0
    yield together

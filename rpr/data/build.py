"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> token files, in constant memory, with several
processes for a large corpus. Pairs are encoded split by split; documents, which are targets without sources, in one
pass. The files are byte-identical for any number of processes.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.corpus import Corpus
from rpr.data.documents import BLOCK, Block, TextCorpus
from rpr.data.files import SPLIT_NAMES, kind_of_content
from rpr.data.pairs import Chunk
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import (
    EOS,
    MAX_WORDS,
    BytePairVocabulary,
    ByteVocabulary,
    Vocabulary,
    add_words,
    count_text_words,
    count_words,
    learned_words,
    text_vocabulary,
    training_sample,
)
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.escape import escape_control_characters
from rpr.io.resources import num_workers

WORKERS_FROM = 50_000  # train pairs; with 2 cores workers break even here (4.0 s) and win at 100,000 (6.1 s, not 7.2 s)
WORKERS_FROM_BYTES = 64 << 20  # of documents: workers take seconds to start
LEARNED_FROM = 512 << 20  # bytes: of more, the vocabulary is learned from every n-th BLOCK; with train_limit the first
MEGABYTE = 10**6
MODEL_NAME = "vocabulary.model"
SIDES = ("source", "target")
CUT = ("\u2581".encode(), b"@@ ")  # the marks of sentencepiece and subword-nmt
CUT_SHARE = 0.1  # of the pairs of a split: with more of them it is noted as cut into pieces
Progress = Callable[[int, int, str], None]
T = TypeVar("T")
_load = lru_cache(maxsize=1)(Vocabulary.load)


@dataclass(frozen=True)
class Meta:
    """The contents of meta.json. Counts are pairs or documents; `dropped` counts, for each split that lost any, the
    pairs with an empty or an overlong side and, in train, those equal to a held-out pair.
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


class Job(NamedTuple):
    """What every stage of a build needs, and what it adds to: the notes of the corpus, and by split what was kept and
    what was dropped.
    """

    data: DataConfig
    directory: Path
    workers: Workers
    progress: Progress
    notes: list[str]
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]

    def counting(self, what: str, total: int, unit: int = 1) -> Callable[[int], None]:
        """A function that is called with what more is done, in pairs or bytes; of packed files there are more bytes
        than on disk, `total`. Progress is called in `unit`.
        """
        done = 0

        def report(more: int) -> None:
            nonlocal done
            done += more
            self.progress(done // unit, max(done, total) // unit, what)

        report(0)
        return report


def build(
    corpus: Corpus | TextCorpus, data: DataConfig, key: str, directory: Path, progress: Progress, processes: int | None
) -> tuple[Meta, int]:
    """Write every file but meta.json into an empty folder; returns that, and the number of processes. Raises DataError
    for a bad corpus; RunError when a worker dies; OSError when the folder cannot be written.
    """
    if isinstance(corpus, TextCorpus):
        large = corpus.size() >= WORKERS_FROM_BYTES
    else:
        large = len(corpus.splits["train"]) >= WORKERS_FROM
    with Workers(processes or (num_workers() if large else 1)) as workers:
        _load.cache_clear()  # of a failed build in the same folder
        # 1. The vocabulary, of the train split. 2. The pieces.
        job = Job(data, directory, workers, progress, [*corpus.notes], {}, {})
        if isinstance(corpus, TextCorpus):
            vocabulary = _learn_from_documents(corpus, job)
            vocabulary.save(directory / MODEL_NAME)
            _encode_documents(corpus, job)
        else:
            vocabulary = _learn_from_pairs(corpus, job)
            vocabulary.save(directory / MODEL_NAME)
            for split in sorted(corpus.splits, key=lambda split: split != "train"):
                _encode_pairs(corpus, job, split)
    # 3. What is in train too: by the names of documents, and by the files of a user's own splits, nothing keeps it out.
    splits = {split: TokenSplit(directory, split, count, vocabulary.piece_type) for split, count in job.counts.items()}
    hashes = {split: [*tokens.hashes()] for split, tokens in splits.items() if split != "train"}
    repeated = set(itertools.chain.from_iterable(hashes.values())).intersection(splits["train"].hashes())
    for split, of_split in hashes.items():
        if number := sum(each in repeated for each in of_split):
            job.notes.append(f"{split}: {number} of {len(of_split)} are in train too, token for token")
    meta = Meta(
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
    return meta, workers.processes


@contextmanager
def _new_files(directory: Path, names: Iterable[str]) -> Iterator[Mapping[str, IO[bytes]]]:
    """Files to write, by name. Offsets begin with 0."""
    with ExitStack() as stack:
        files = {name: stack.enter_context((directory / name).open("wb")) for name in names}
        for name, file in files.items():
            if name.endswith(".offsets"):
                file.write(np.zeros(1, np.int64).tobytes())
        yield files


def _words(
    job: Job, count: Callable[[T], tuple[int, dict[str, int]]], tasks: Iterable[T], report: Callable[[int], None]
) -> dict[str, int]:
    """The words of all tasks. `count` gives how much of the corpus a task is, and its words."""
    words: dict[str, int] = {}
    for read, counts in job.workers.map(count, tasks):
        words = add_words(words, counts)
        report(read)
    if len(words) > MAX_WORDS:
        job.notes.append(f"vocabulary: learned from a sample of {MAX_WORDS:,} distinct words, as train has more")
    return learned_words(words)


# Pairs


def _learn_from_pairs(corpus: Corpus, job: Job) -> Vocabulary:
    train, data = corpus.splits["train"], job.data
    chosen = training_sample(len(train))
    tasks = ((len(chunk), chunk.select(chosen(len(chunk)))) for chunk in train.chunks())
    words = _words(job, count_chunk_words, tasks, job.counting("reading for the vocabulary", len(train)))
    assert data.tokenizer != "bytes", "a corpus of pairs"
    return Vocabulary.learn(words, data.vocabulary_size, data.tokenizer)


def count_chunk_words(task: tuple[int, Chunk]) -> tuple[int, dict[str, int]]:
    """The number of pairs read, as given, and the word counts of those of the chunk."""
    num_read, chunk = task
    return num_read, count_words(itertools.chain.from_iterable(chunk.pairs()))


def _encode_pairs(corpus: Corpus, job: Job, split: str) -> None:
    """Write the files of one split."""
    pairs, data, train = corpus.splits[split], job.data, split == "train"
    encode = partial(
        encode_chunk,
        vocabulary=job.directory / MODEL_NAME,
        max_length=data.max_length if train or split in corpus.held_out else None,
        keep_text=not train,
        complete=None if train or split in corpus.held_out else split,
        threads=None if job.workers.processes == 1 else 1,
    )
    dropped, tokens, cut = Counter[str](empty=0, too_long=0), dict.fromkeys(SIDES, 0), 0
    kinds = ("pieces", "offsets") if train else ("pieces", "offsets", "txt")
    names = [f"{split}.{side}.{kind}" for side in SIDES for kind in kinds]
    report = job.counting(f"encoding {split}", len(pairs))
    with _new_files(job.directory, names) as files:
        for chunk in job.workers.map(encode, pairs.chunks()):
            for side, lengths in chunk.lengths.items():
                files[f"{split}.{side}.offsets"].write((tokens[side] + np.cumsum(lengths)).tobytes())
                tokens[side] += int(lengths.sum())
            for kind, content in chunk.content.items():
                files[f"{split}.{kind}"].write(content)
            dropped.update(chunk.dropped)
            cut += chunk.num_cut
            report(chunk.num_pairs)
    kept = len(pairs) - dropped.total()
    if not kept:
        raise DataError(
            f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
            f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); "
            "check the corpus or raise data.max_length"
        )
    if cut > CUT_SHARE * len(pairs):
        job.notes.append(
            f"{split}: {cut} of {len(pairs)} pairs are already cut into pieces (U+2581 or @@), which are scored then; "
            "give the text itself"
        )
    if train and corpus.repeated:
        dropped["held_out"] = corpus.repeated
    job.counts[split], job.dropped[split] = kept, dict(dropped)


class EncodedChunk(NamedTuple):
    """A chunk: how many pairs it has, how many of them were dropped, by reason, and how many are cut into pieces; the
    tokens of each sentence that is kept, by side; and what is written to the cache, by the ends of the files' names.
    """

    num_pairs: int
    dropped: dict[str, int]
    num_cut: int
    lengths: dict[str, NDArray[np.int64]]
    content: dict[str, bytes]


def encode_chunk(
    chunk: Chunk,
    *,
    vocabulary: Path,
    max_length: int | None,
    keep_text: bool,
    complete: str | None,
    threads: int | None,
) -> EncodedChunk:
    """Pairs with an empty side, or one longer than `max_length` tokens, are dropped. `threads`=None uses all cores.
    Raises DataError: text that is not UTF-8; an empty side in a split that has to be `complete`.
    """
    # 1. Text.
    model = _load(vocabulary)
    pairs = chunk.pairs()
    kept = [pair for pair in pairs if all(pair)]
    if complete is not None and len(kept) < len(pairs):
        index, pair = next((index, pair) for index, pair in enumerate(pairs) if not all(pair))
        raise DataError(
            f"data: the {SIDES[bool(pair[0])]} of {chunk.where(index)} of {complete} is empty; "
            "a scored split must be complete: fix or remove the pair"
        )
    # 2. Pieces.
    fits = [True] * len(kept)
    encoded = [model.encode_batch([pair[side] for pair in kept], eos=True, threads=threads) for side in (0, 1)]
    if max_length is not None:
        fits = [max(map(len, pair)) <= max_length for pair in zip(*encoded, strict=True)]
    dropped = {"empty": len(pairs) - len(kept), "too_long": len(kept) - sum(fits)}
    # 3. What is written.
    result = EncodedChunk(len(pairs), dropped, sum(map(_is_cut, chunk.sources, chunk.targets)), {}, {})
    for number, side in enumerate(SIDES):
        rows = [*itertools.compress(encoded[number], fits)]
        result.lengths[side] = np.fromiter(map(len, rows), np.int64, len(rows))
        pieces = np.fromiter(itertools.chain.from_iterable(rows), model.piece_type, int(result.lengths[side].sum()))
        result.content[f"{side}.pieces"] = pieces.tobytes()
        if keep_text:
            texts = itertools.compress((pair[number] for pair in kept), fits)
            result.content[f"{side}.txt"] = "".join(f"{sentence}\n" for sentence in texts).encode()
    return result


def _is_cut(*sides: str | bytes | None) -> bool:
    raw = [side.encode(errors="replace") if isinstance(side, str) else side or b"" for side in sides]
    return any(mark in side for side in raw for mark in CUT)


# Documents


def _learn_from_documents(corpus: TextCorpus, job: Job) -> Vocabulary:
    """As `_learn_from_pairs`; bytes need no learning."""
    if job.data.tokenizer == "bytes":
        return ByteVocabulary()
    limit = job.data.train_limit
    nth = -(-corpus.splits["train"].size() // LEARNED_FROM) if limit is None else 1
    train = (block for block in corpus.blocks(limit) if "train" in block.splits)
    read = job.counting("reading for the vocabulary", corpus.size(), MEGABYTE)
    sample = _tasks(_sample(train, nth, None if limit is None else LEARNED_FROM))
    words = _words(job, count_block_words, sample, lambda size: read(nth * size))
    return BytePairVocabulary.learn_text(words, job.data.vocabulary_size)


def _sample(blocks: Iterable[Block], nth: int, most: int | None) -> Iterator[Block]:
    """The blocks that begin in every n-th BLOCK bytes of all, however many documents these are, and in the first
    `most` bytes.
    """
    begin = 0
    for block in blocks:
        if begin // BLOCK % nth == 0:
            yield block
        begin += len(block.text)
        if most is not None and begin >= most:
            return


def count_block_words(blocks: Sequence[Block]) -> tuple[int, dict[str, int]]:
    """The bytes of blocks, and their word counts."""
    counts = Counter[str]()
    for block in blocks:
        try:
            counts.update(count_text_words(block.text.decode()))
        except UnicodeDecodeError as error:
            raise block.not_utf8(error.start) from None
    return sum(len(block.text) for block in blocks), counts


def _encode_documents(corpus: TextCorpus, job: Job) -> None:
    """Write pieces, offsets and names of all splits; a document without content is dropped."""
    counts, empty = dict.fromkeys(SPLIT_NAMES, 0), dict.fromkeys(SPLIT_NAMES, 0)
    ends, starts = Counter[str](), Counter[str]()
    report = job.counting("encoding", corpus.size(), MEGABYTE)
    kinds = ("target.pieces", "target.offsets", "names")
    names = [f"{split}.{kind}" for split in SPLIT_NAMES for kind in (kinds[:2] if split == "train" else kinds)]
    encode = partial(encode_blocks, job.directory / MODEL_NAME)
    with _new_files(job.directory, names) as files:
        read = _with_note_on_encodings(corpus.blocks(job.data.train_limit), job.notes)
        for num_bytes, blocks in job.workers.map(encode, _tasks(read)):
            report(num_bytes)
            for split, block, pieces in ((split, *encoded) for encoded in blocks for split in encoded[0].splits):
                ends[split] += len(pieces)
                if block.last and ends[split] == starts[split] + 1:  # EOS alone
                    empty[split] += 1
                    ends[split] -= 1
                    continue
                files[f"{split}.target.pieces"].write(pieces.tobytes())
                if block.last:
                    counts[split] += 1
                    starts[split] = ends[split]
                    files[f"{split}.target.offsets"].write(np.int64(ends[split]).tobytes())
                    if split != "train":
                        files[f"{split}.names"].write((json.dumps(block.name) + "\n").encode())
    for split, number in counts.items():
        if not number:
            raise DataError(
                f"data {corpus.name}: no document with text in {split} ({empty[split]} are empty); add documents"
            )
        job.counts[split], job.dropped[split] = number, {"empty": empty[split]}


def encode_blocks(vocabulary: Path, blocks: Sequence[Block]) -> tuple[int, list[tuple[Block, NDArray[np.generic]]]]:
    """The bytes of blocks; and each one, without its text, with its pieces and EOS at the end of its document. Raises
    DataError if a block is not UTF-8 and has to be, or is UTF-16, which has as many NUL bytes as letters.
    """
    encoded = []
    model = text_vocabulary(_load(vocabulary))
    for block in blocks:
        if not isinstance(model, ByteVocabulary) and block.text.count(b"\0") > max(1, len(block.text) // 4):
            raise block.not_utf8(block.text.index(b"\0"))
        try:
            pieces = model.encode_text(block.text)
        except UnicodeDecodeError as error:
            raise block.not_utf8(error.start) from None
        if block.last:
            pieces = np.append(pieces, pieces.dtype.type(EOS))
        encoded.append((block._replace(text=b""), pieces))
    return sum(len(block.text) for block in blocks), encoded


def _with_note_on_encodings(blocks: Iterable[Block], notes: list[str]) -> Iterator[Block]:
    """The same blocks, and at their end one note on the files that say they are not UTF-8, whose bytes are read."""
    first, number = "", 0
    for block in blocks:
        if block.number == 1 and (kind := kind_of_content(block.text)):
            first, number = first or f"{escape_control_characters(block.file.name)} is {kind}", number + 1
        yield block
    if number:
        more = f" (the first of {number} files that are not UTF-8)" if number > 1 else ""
        notes.append(f"{first}, whose bytes are the tokens, not those of UTF-8{more}")


def _tasks(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """About BLOCK bytes each."""
    task: list[Block] = []
    size = 0
    for block in blocks:
        task.append(block)
        size += len(block.text)
        if size >= BLOCK:
            yield task
            task, size = [], 0
    if task:
        yield task

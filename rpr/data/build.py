"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> token files, in constant memory, with several
processes for a large corpus. Pairs are encoded split by split; documents, which are targets without sources, in one
pass. A killed build resumes after the vocabulary, or after its last finished split.

meta.json, next to the files, tells of the finished splits and is replaced only after their files are on disk. The files
are byte-identical for any number of processes and interruptions.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.content import kind_of_content
from rpr.data.corpus import Corpus
from rpr.data.documents import BLOCK, Block, TextCorpus
from rpr.data.encode import SIDES, count_block_words, count_chunk_words, encode_blocks, encode_chunk
from rpr.data.files import SPLIT_NAMES
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import (
    MAX_WORDS,
    BytePairVocabulary,
    ByteVocabulary,
    Vocabulary,
    add_words,
    learned_words,
    training_sample,
)
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replace_file
from rpr.io.escape import escape_control_characters
from rpr.io.resources import num_workers

WORKERS_FROM = 50_000  # train pairs; with 2 cores workers break even here (4.0 s) and win at 100,000 (6.1 s, not 7.2 s)
WORKERS_FROM_BYTES = 64 << 20  # of documents: workers take seconds to start
LEARNED_FROM = (
    512 << 20
)  # bytes: of more, the vocabulary is learned from every n-th BLOCK; with train_limit from the first
MEGABYTE = 10**6
META_NAME = "meta.json"
MODEL_NAME = "vocabulary.model"
Progress = Callable[[int, int, str], None]
Encoded = tuple[dict[str, int], dict[str, dict[str, int]]]  # by split: what was kept, and what was dropped by reason
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meta:
    """The contents of meta.json; of an unfinished build, only of its finished splits. Counts are pairs or documents;
    `dropped` counts, for each split that lost any, the pairs with an empty or an overlong side and, in train, those
    equal to a held-out pair.
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
    """What every stage of a build needs, and the `notes` that it adds to those of the corpus."""

    data: DataConfig
    directory: Path
    workers: Workers
    progress: Progress
    notes: list[str]

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
) -> Workers:
    """Write every file of the cache into `directory`, resuming an earlier build there; returns the workers, which have
    ended. Raises DataError for a bad corpus; RunError when one dies; OSError when the folder cannot be written.
    """
    learn: Callable[[Job], Vocabulary]
    encode: Callable[[Job, str], Encoded]
    if isinstance(corpus, TextCorpus):
        learn, encode = partial(_learn_from_documents, corpus), partial(_encode_documents, corpus)
        large = corpus.size() >= WORKERS_FROM_BYTES
    else:
        learn, encode = partial(_learn_from_pairs, corpus), partial(_encode_pairs, corpus)
        large = len(corpus.splits["train"]) >= WORKERS_FROM
    meta = _resume(directory, key)
    if processes is None:
        processes = num_workers() if large else 1
    with Workers(processes) as workers:
        job = Job(data, directory, workers, progress, [])
        if meta is None:
            vocabulary = learn(job)
            vocabulary.save(directory / MODEL_NAME)
            meta = Meta(
                key=key,
                name=data.name,
                source_language=data.source_language,
                target_language=data.target_language,
                synthetic=data.generated,
                split_names=dict(corpus.split_names),
                notes=[*corpus.notes, *job.notes],
                counts={},
                dropped={},
                piece_type=vocabulary.piece_type,
                vocabulary_digest=vocabulary.digest,
                file_sizes={},
            )
            meta = _save(meta, directory)
        for split in ["train", *(split for split in corpus.splits if split != "train")]:
            if split not in meta.counts:
                counts, dropped = encode(job, split)
                lost = {of: reasons for of, reasons in dropped.items() if any(reasons.values())}
                notes = [*dict.fromkeys([*meta.notes, *job.notes])]
                meta = replace(meta, notes=notes, counts=meta.counts | counts, dropped=meta.dropped | lost)
                meta = _save(meta, directory)
    _save(replace(meta, notes=[*dict.fromkeys([*meta.notes, *_repeats(directory, meta)])]), directory)
    return workers


def _repeats(directory: Path, meta: Meta) -> Iterator[str]:
    """A line for each held-out split of which examples are in train too: by the names of documents, and by the files of
    a user's own splits, nothing keeps them out.
    """
    splits = {split: TokenSplit(directory, split, count, meta.piece_type) for split, count in meta.counts.items()}
    train = splits.pop("train")
    hashes = {split: [*tokens.hashes()] for split, tokens in splits.items()}
    repeated = set(chain.from_iterable(hashes.values())).intersection(train.hashes())
    for split, own in hashes.items():
        if number := sum(each in repeated for each in own):
            yield f"{split}: {number} of {len(own)} are in train too, token for token"


def _save(meta: Meta, directory: Path) -> Meta:
    """Write meta.json after all other files of the folder, whose sizes it lists."""
    files = [file for file in sorted(directory.iterdir()) if file.name != META_NAME]
    meta = replace(meta, file_sizes={file.name: file.stat().st_size for file in files})
    replace_file(directory / META_NAME, json.dumps(asdict(meta), indent=1, ensure_ascii=False))
    return meta


def read_cache(directory: Path, key: str) -> tuple[Meta, Vocabulary]:
    """What the folder of a cache says of itself, if it and all files are as they were written. Raises OSError,
    ValueError, TypeError, AttributeError or DataError if a file is missing or has changed.
    """
    content = json.loads((directory / META_NAME).read_text("utf-8"))
    if set(content) != {field.name for field in fields(Meta)} or content["key"] != key:
        raise DataError(f"{META_NAME} belongs to another version or corpus")
    meta = Meta(**content)
    for name, size in meta.file_sizes.items():
        if (actual := (directory / name).stat().st_size) != size:
            raise DataError(f"{name} has {actual} bytes, not {size}")
    vocabulary = Vocabulary.load(directory / MODEL_NAME)
    if vocabulary.digest != meta.vocabulary_digest:
        raise DataError(f"{MODEL_NAME} is not the one the corpus was encoded with")
    return meta, vocabulary


def _resume(directory: Path, key: str) -> Meta | None:
    """The finished splits of an earlier build, without the files of the one that it was writing; if there is none that
    can be used, the folder is emptied.
    """
    remove_leftovers(directory, "*")
    meta = None
    try:
        meta, _ = read_cache(directory, key)
    except FileNotFoundError:  # nothing saved, or one of the files is missing
        pass
    except (OSError, ValueError, TypeError, AttributeError, DataError) as error:
        log.warning("the unfinished build in %s cannot be resumed (%s); starting again", directory, error)
    for file in directory.iterdir():
        if meta is None or file.name not in {META_NAME, *meta.file_sizes}:
            file.unlink()
    return meta


@contextmanager
def _new_files(directory: Path, names: Iterable[str]) -> Iterator[Mapping[str, IO[bytes]]]:
    """Files to write, by name, which are on disk in the end. Offsets begin with 0."""
    with ExitStack() as stack:
        files = {name: stack.enter_context((directory / name).open("wb")) for name in names}
        for name, file in files.items():
            if name.endswith(".offsets"):
                file.write(np.zeros(1, np.int64).tobytes())
        yield files
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())


def _learn_from_pairs(corpus: Corpus, job: Job) -> Vocabulary:
    """The vocabulary of the train split."""
    train, data = corpus.splits["train"], job.data
    chosen = training_sample(len(train))
    tasks = ((len(chunk), chunk.select(chosen(len(chunk)))) for chunk in train.chunks())
    words = _words(job, count_chunk_words, tasks, job.counting("reading for the vocabulary", len(train)))
    assert data.tokenizer != "bytes", "a corpus of pairs"
    return Vocabulary.learn(words, data.vocabulary_size, data.tokenizer)


def _learn_from_documents(corpus: TextCorpus, job: Job) -> Vocabulary:
    """As `_learn_from_pairs`; bytes need no learning."""
    if job.data.tokenizer == "bytes":
        return ByteVocabulary()
    nth = -(-corpus.splits["train"].size() // LEARNED_FROM) if job.data.train_limit is None else 1
    train = (block for block in corpus.blocks(job.data.train_limit) if "train" in block.splits)
    sample = _every_nth(train, nth) if job.data.train_limit is None else _first_bytes(train, LEARNED_FROM)
    read = job.counting("reading for the vocabulary", corpus.size(), MEGABYTE)
    words = _words(job, count_block_words, _tasks(sample), lambda size: read(nth * size))
    return BytePairVocabulary.learn_text(words, job.data.vocabulary_size)


def _every_nth(blocks: Iterable[Block], nth: int) -> Iterator[Block]:
    """The blocks that begin in every n-th BLOCK bytes of all, however many documents these are."""
    begin = 0
    for block in blocks:
        if begin // BLOCK % nth == 0:
            yield block
        begin += len(block.text)


def _first_bytes(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """The first blocks, up to the one that reaches this size."""
    for block in blocks:
        yield block
        size -= len(block.text)
        if size <= 0:
            return


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


def _encode_pairs(corpus: Corpus, job: Job, split: str) -> Encoded:
    """Write the files of one split."""
    pairs, data, train = corpus.splits[split], job.data, split == "train"
    encode = partial(
        encode_chunk,
        vocabulary=job.directory / MODEL_NAME,
        max_length=data.max_length if train else None,
        keep_text=not train,
        complete=None if train or split in corpus.held_out else split,
        threads=None if job.workers.processes == 1 else 1,
    )
    dropped, tokens = Counter[str](empty=0, too_long=0), dict.fromkeys(SIDES, 0)
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
            report(chunk.num_pairs)
    kept = len(pairs) - dropped.total()
    if not kept:
        raise DataError(
            f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
            f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); "
            "check the corpus or raise data.max_length"
        )
    if train and corpus.repeated:
        dropped["held_out"] = corpus.repeated
    return {split: kept}, {split: dict(dropped)}


def _encode_documents(corpus: TextCorpus, job: Job, _: str) -> Encoded:
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
    return counts, {split: {"empty": number} for split, number in empty.items()}


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

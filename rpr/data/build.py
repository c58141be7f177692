"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> token files, with several processes for a large
corpus; a killed build resumes after its last finished split.

meta.json, next to the files, tells of the finished splits and is replaced only after their files are on disk. The files
are byte-identical for any number of processes and interruptions.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.corpus import Corpus
from rpr.data.documents import TextCorpus
from rpr.data.encode import SIDES, count_chunk_words, encode_chunk
from rpr.data.vocabulary import Vocabulary, add_words, most_frequent, training_sample
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replace_file
from rpr.io.resources import num_workers

WORKERS_FROM = 50_000  # train pairs; with 2 cores workers break even here (4.0 s) and win at 100,000 (6.1 s, not 7.2 s)
META_NAME = "meta.json"
MODEL_NAME = "vocabulary.model"
Progress = Callable[[int, int, str], None]
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


class BuildResult(NamedTuple):
    """What a build took. `peak_bytes` is the peak memory of the largest worker process."""

    processes: int
    peak_bytes: int


def build(
    corpus: Corpus, data: DataConfig, key: str, directory: Path, progress: Progress, processes: int | None = None
) -> BuildResult:
    """Write every file of the cache into `directory`, resuming an earlier build there. Raises DataError for a bad
    corpus; RunError when a worker process dies; OSError when the folder cannot be written.
    """
    meta = _resume(directory, key)
    if processes is None:
        processes = num_workers() if len(corpus.splits["train"]) >= WORKERS_FROM else 1
    with Workers(processes) as workers:
        if meta is None:
            vocabulary = _learn(corpus, data, directory / MODEL_NAME, workers, progress)
            meta = save(new_meta(corpus, data, key, vocabulary), directory)
        for split in ["train", *(split for split in corpus.splits if split != "train")]:
            if split in meta.counts:
                continue
            kept, dropped = _encode(corpus, data, split, directory, workers, progress)
            if not kept:
                raise DataError(
                    f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
                    f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); "
                    "check the corpus or raise data.max_length"
                )
            if split == "train" and corpus.repeated:
                dropped["held_out"] = corpus.repeated
            lost = {split: dropped} if any(dropped.values()) else {}
            meta = replace(meta, counts=meta.counts | {split: kept}, dropped=meta.dropped | lost)
            meta = save(meta, directory)
    return BuildResult(workers.processes, workers.peak_bytes)


def new_meta(corpus: Corpus | TextCorpus, data: DataConfig, key: str, vocabulary: Vocabulary) -> Meta:
    """Of a cache without any split."""
    return Meta(
        key=key,
        name=data.name,
        source_language=data.source_language,
        target_language=data.target_language,
        synthetic=data.generated,
        split_names=dict(corpus.split_names),
        notes=list(corpus.notes),
        counts={},
        dropped={},
        piece_type=vocabulary.piece_type,
        vocabulary_digest=vocabulary.digest,
        file_sizes={},
    )


def save(meta: Meta, directory: Path) -> Meta:
    """Write meta.json after all other files of the folder, whose sizes it lists."""
    files = [file for file in sorted(directory.iterdir()) if file.name != META_NAME]
    meta = replace(meta, file_sizes={file.name: file.stat().st_size for file in files})
    replace_file(directory / META_NAME, json.dumps(asdict(meta), indent=1, ensure_ascii=False))
    return meta


def read_cache(directory: Path, key: str) -> tuple[Meta, Vocabulary]:
    """What the folder of a cache says of itself, if it and all files are as they were written.

    Raises:
        OSError, ValueError, TypeError, AttributeError, DataError: a file is missing or has changed.
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


def counting(progress: Progress, what: str, total: int, unit: int = 1) -> Callable[[int], None]:
    """A function that is called with what more is done, in pairs or bytes; of packed files there are more bytes than on
    disk, `total`. Progress is called in `unit`.
    """
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        progress(done // unit, max(done, total) // unit, what)

    report(0)
    return report


def learned_words(
    workers: Workers,
    count: Callable[[T], tuple[int, dict[str, int]]],
    tasks: Iterable[T],
    report: Callable[[int], None],
) -> dict[str, int]:
    """The most frequent words of all tasks. `count` gives how much of the corpus a task is, and its words."""
    words: dict[str, int] = {}
    for read, counts in workers.map(count, tasks):
        words = add_words(words, counts)
        report(read)
    return most_frequent(words)


@contextmanager
def new_files(directory: Path, names: Iterable[str]) -> Iterator[Mapping[str, IO[bytes]]]:
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


def _learn(corpus: Corpus, data: DataConfig, path: Path, workers: Workers, progress: Progress) -> Vocabulary:
    """Learn the vocabulary from the train split and write it to `path`."""
    train = corpus.splits["train"]
    chosen = training_sample(len(train))
    tasks = (
        (len(chunk), chunk if (mask := chosen(len(chunk))) is None else chunk.select(mask)) for chunk in train.chunks()
    )
    report = counting(progress, "reading for the vocabulary", len(train))
    words = learned_words(workers, count_chunk_words, tasks, report)
    assert data.tokenizer != "bytes", "a corpus of pairs"
    return Vocabulary.learn(words, data.vocabulary_size, path, data.tokenizer)


def _encode(
    corpus: Corpus, data: DataConfig, split: str, directory: Path, workers: Workers, progress: Progress
) -> tuple[int, dict[str, int]]:
    """Write the files of one split; returns the pairs kept, and those dropped by reason."""
    pairs, train = corpus.splits[split], split == "train"
    encode = partial(
        encode_chunk,
        vocabulary=directory / MODEL_NAME,
        max_length=data.max_length if train else None,
        keep_text=not train,
        threads=None if workers.processes == 1 else 1,
    )
    read, dropped, tokens = 0, {"empty": 0, "too_long": 0}, dict.fromkeys(SIDES, 0)
    kinds = ("pieces", "offsets") if train else ("pieces", "offsets", "txt")
    names = [f"{split}.{side}.{kind}" for side in SIDES for kind in kinds]
    report = counting(progress, f"encoding {split}", len(pairs))
    with new_files(directory, names) as files:
        for encoded in workers.map(encode, pairs.chunks()):
            if encoded.first_empty is not None:
                corpus.check_not_empty(split, read + encoded.first_empty[0], encoded.first_empty[1])
            for side, content in zip(SIDES, encoded.sides, strict=True):
                offsets = tokens[side] + np.cumsum(content.lengths)
                files[f"{split}.{side}.pieces"].write(content.pieces)
                files[f"{split}.{side}.offsets"].write(offsets.tobytes())
                if content.text:
                    files[f"{split}.{side}.txt"].write(content.text)
                tokens[side] += int(content.lengths.sum())
            read += encoded.num_pairs
            dropped["empty"] += encoded.empty
            dropped["too_long"] += encoded.too_long
            report(encoded.num_pairs)
    return read - sum(dropped.values()), dropped

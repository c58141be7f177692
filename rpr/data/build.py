"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> token files, with several processes for a large
corpus; a killed build resumes after its last finished split.

build.json, next to the files, lists the finished splits and is replaced only after their files are on disk. The files
are byte-identical for any number of processes and interruptions.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.corpus import Corpus
from rpr.data.encode import SIDES, Encoder, count_chunk_words
from rpr.data.vocabulary import Vocabulary, add_words, most_frequent, training_sample
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replace_file
from rpr.io.resources import num_workers

PAIRS_PER_CHUNK = 10_000  # pairs a process holds in memory at once
WORKERS_FROM = 50_000  # train pairs; with 2 cores workers break even here (4.0 s) and win at 100,000 (6.1 s, not 7.2 s)
STATE_NAME = "build.json"
MODEL_NAME = "vocabulary.model"
Progress = Callable[[int, int, str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildState:
    """build.json: the vocabulary, and of the finished splits the pairs and the bytes of every file."""

    vocabulary_digest: str
    counts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


class BuildResult(NamedTuple):
    """The outcome of a build. `peak_bytes` is the peak memory of the largest worker process."""

    state: BuildState
    processes: int
    peak_bytes: int


def build(
    corpus: Corpus, data: DataConfig, directory: Path, progress: Progress, processes: int | None = None
) -> BuildResult:
    """Write every file of the cache except meta.json into `directory`, resuming an earlier build there. Raises
    DataError for a bad corpus; RunError when a worker process dies; OSError when the folder cannot be written.
    """
    state = _resume(directory)
    number = len(corpus.splits["train"])
    if processes is None:
        processes = num_workers() if number >= WORKERS_FROM else 1
    with Workers(min(processes, -(-number // PAIRS_PER_CHUNK))) as workers:
        if state is None:
            state = BuildState(_learn(corpus, data, directory / MODEL_NAME, workers, progress).digest)
            save_state(state, directory)
        for split in ["train", *(split for split in corpus.splits if split != "train")]:
            if split in state.counts:
                continue
            encoder = Encoder(
                directory / MODEL_NAME,
                data.max_length if split == "train" else None,
                keep_text=split != "train",
                threads=None if workers.processes == 1 else 1,
            )
            kept, dropped, sizes = _encode(corpus, split, encoder, workers, progress)
            if not kept:
                raise DataError(
                    f"data {data.name}: no usable pair in {split} ({dropped['empty']} with an empty side, "
                    f"{dropped['too_long']} above data.max_length = {data.max_length} pieces); "
                    "check the corpus or raise data.max_length"
                )
            state = BuildState(
                state.vocabulary_digest,
                state.counts | {split: kept},
                state.dropped | ({split: dropped} if any(dropped.values()) else {}),
                state.sizes | sizes,
            )
            save_state(state, directory)
    return BuildResult(state, workers.processes, workers.peak_bytes)


def save_state(state: BuildState, directory: Path) -> None:
    """Write build.json, after the files that it lists."""
    replace_file(directory / STATE_NAME, json.dumps(asdict(state)))


def checked_vocabulary(directory: Path, sizes: Mapping[str, int], digest: str) -> Vocabulary:
    """The vocabulary of a cache, if it and all files are as they were written.

    Raises:
        OSError, DataError: a file is missing or has changed.
    """
    for name, size in sizes.items():
        if (actual := (directory / name).stat().st_size) != size:
            raise DataError(f"{name} has {actual} bytes, not {size}")
    vocabulary = Vocabulary.load(directory / MODEL_NAME)
    if vocabulary.digest != digest:
        raise DataError(f"{MODEL_NAME} is not the one the corpus was encoded with")
    return vocabulary


def _resume(directory: Path) -> BuildState | None:
    """The state of an earlier build, without the files of the split that it was writing; if there is none that can be
    used, the folder is emptied.
    """
    remove_leftovers(directory, "*")
    finished: set[str] = set()
    state = None
    try:
        state = BuildState(**json.loads((directory / STATE_NAME).read_text()))
        checked_vocabulary(directory, state.sizes, state.vocabulary_digest)
        finished = {STATE_NAME, MODEL_NAME, *state.sizes}
    except FileNotFoundError:  # no saved state, or one of its files is missing
        state = None
    except (ValueError, TypeError, AttributeError, DataError) as error:
        log.warning("the unfinished build in %s cannot be resumed (%s); starting again", directory, error)
        state = None
    for file in directory.iterdir():
        if file.name not in finished:
            file.unlink()
    return state


def _learn(corpus: Corpus, data: DataConfig, path: Path, workers: Workers, progress: Progress) -> Vocabulary:
    """Learn the vocabulary from the train split and write it to `path`."""
    what = "reading for the vocabulary"
    train = corpus.splits["train"]
    chosen = training_sample(len(train))
    words: dict[str, int] = {}
    done = 0
    progress(done, len(train), what)
    chunks = train.chunks(0, len(train), PAIRS_PER_CHUNK)
    tasks = ((len(chunk), chunk if (mask := chosen(len(chunk))) is None else chunk.select(mask)) for chunk in chunks)
    for num_pairs, counts in workers.map(count_chunk_words, tasks):
        words = add_words(words, counts)
        done += num_pairs
        progress(done, len(train), what)
    words = most_frequent(words)
    assert data.tokenizer != "bytes", "a corpus of pairs"
    return Vocabulary.learn(words, data.vocabulary_size, path, data.tokenizer)


def _encode(
    corpus: Corpus, split: str, encoder: Encoder, workers: Workers, progress: Progress
) -> tuple[int, dict[str, int], dict[str, int]]:
    """Write the files of one split; returns the pairs kept, those dropped by reason, and the files' sizes."""
    pairs, what = corpus.splits[split], f"encoding {split}"
    read, dropped, tokens = 0, {"empty": 0, "too_long": 0}, dict.fromkeys(SIDES, 0)
    with ExitStack() as stack:
        kinds = ("pieces", "offsets", "txt") if encoder.keep_text else ("pieces", "offsets")
        names = [f"{split}.{side}.{kind}" for side in SIDES for kind in kinds]
        files = {name: stack.enter_context((encoder.vocabulary.parent / name).open("wb")) for name in names}
        for side in SIDES:
            files[f"{split}.{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
        progress(read, len(pairs), what)
        for encoded in workers.map(encoder, pairs.chunks(0, len(pairs), PAIRS_PER_CHUNK)):
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
            progress(read, len(pairs), what)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in files.items()}
    return read - sum(dropped.values()), dropped, sizes

"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> token files, with several processes for a large
corpus; a killed build resumes where it stopped.

build.json, next to the files, holds the progress so far and is replaced only after everything it describes is on disk.
The next build truncates the files to it. The files are byte-identical for any number of processes and interruptions.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rpr.config.train import DataConfig
from rpr.data.corpus import Corpus, load_corpus
from rpr.data.encode import SIDES, Encoded, Encoder, count_chunk_words
from rpr.data.pairs import Chunk
from rpr.data.vocabulary import Vocabulary, add_words, most_frequent, training_sample
from rpr.data.workers import MAX_WORKERS, Workers, num_cores
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replace_file

PAIRS_PER_CHUNK = 10_000  # pairs a process holds in memory at once
WORKERS_FROM = 50_000  # train pairs; with 2 cores workers break even here (4.0 s) and win at 100,000 (6.1 s, not 7.2 s)
SECONDS_BETWEEN_SAVES = 5.0
STATE_NAME = "build.json"
MODEL_NAME = "vocabulary.model"
Progress = Callable[[int, int, str], None]
log = logging.getLogger(__name__)


@dataclass
class BuildResult:
    """The outcome of a build. Counts are pairs; `peak_bytes` is the peak memory of the largest worker process."""

    corpus: Corpus
    vocabulary: Vocabulary
    piece_type: str
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]
    processes: int
    peak_bytes: int


@dataclass
class BuildState:
    """build.json: the complete splits (`counts`, `dropped`), and the progress of the one being written: pairs `read`,
    `kept` and `lost`, and `ends`, the number of tokens per side. `sizes` are the bytes of every file.
    """

    vocabulary_digest: str
    counts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    split: str | None = None
    read: int = 0
    kept: int = 0
    lost: dict[str, int] = field(default_factory=lambda: {"empty": 0, "too_long": 0})
    ends: list[int] = field(default_factory=lambda: [0, 0])


def build(data: DataConfig, directory: Path, progress: Progress, processes: int | None = None) -> BuildResult:
    """Write every file of the cache except meta.json into `directory`, resuming an earlier build there. Raises
    DataError for a bad corpus; RunError when a worker process dies; OSError when the folder cannot be written.
    """
    state_file = StateFile(directory)
    corpus = load_corpus(data)
    number = len(corpus.splits["train"])
    if processes is None:
        processes = min(MAX_WORKERS, num_cores()) if number >= WORKERS_FROM else 1
    with Workers(min(processes, -(-number // PAIRS_PER_CHUNK))) as workers:
        vocabulary = state_file.vocabulary or _learn(corpus, data, directory / MODEL_NAME, workers, progress)
        piece_type = "uint16" if len(vocabulary) <= 1 << 16 else "uint32"
        state = state_file.state or BuildState(vocabulary.digest)
        state_file.save(state)
        for split in ["train", *(split for split in corpus.splits if split != "train")]:
            if split in state.counts:
                continue
            encoder = Encoder(
                directory / MODEL_NAME,
                piece_type,
                data.max_length if split == "train" else None,
                keep_text=split != "train",
                threads=None if workers.processes == 1 else 1,
            )
            _encode(corpus, split, encoder, workers, state, state_file, progress)
            if not state.kept:
                raise DataError(
                    f"data {data.name}: no usable pair in {split} ({state.lost['empty']} with an empty side, "
                    f"{state.lost['too_long']} above data.max_length = {data.max_length} pieces); "
                    "check the corpus or raise data.max_length"
                )
            state = BuildState(
                state.vocabulary_digest,
                state.counts | {split: state.kept},
                state.dropped | ({split: state.lost} if any(state.lost.values()) else {}),
                state.sizes,
            )
    return BuildResult(
        corpus, vocabulary, piece_type, state.counts, state.dropped, workers.processes, workers.peak_bytes
    )


class StateFile:
    """Writes build.json at most every SECONDS_BETWEEN_SAVES, so a small corpus never needs it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state, self.vocabulary = _resume(directory)
        self._saved = time.monotonic()

    def save(self, state: BuildState, files: Mapping[str, IO[bytes]] | None = None) -> None:
        """Sync the split's open files, then write the state; does nothing if the last save was recent."""
        if time.monotonic() - self._saved < SECONDS_BETWEEN_SAVES:
            return
        _record_sizes(state, files or {}, sync=True)
        replace_file(self.directory / STATE_NAME, json.dumps(asdict(state)))
        self._saved = time.monotonic()

    def finish(self, state: BuildState, files: Mapping[str, IO[bytes]]) -> None:
        """Record the final sizes of a split's files for the next save; call it before closing them."""
        _record_sizes(state, files, sync=(self.directory / STATE_NAME).exists())


def _record_sizes(state: BuildState, files: Mapping[str, IO[bytes]], *, sync: bool) -> None:
    for name, file in files.items():
        file.flush()
        if sync:
            os.fsync(file.fileno())
        state.sizes[name] = file.tell()


def _resume(directory: Path) -> tuple[BuildState | None, Vocabulary | None]:
    """The state of an earlier build, its files truncated to it; if there is none that can be used, the folder is
    emptied.
    """
    remove_leftovers(directory, "*")
    try:
        state = BuildState(**json.loads((directory / STATE_NAME).read_text()))
        vocabulary = Vocabulary.load(directory / MODEL_NAME)
        if vocabulary.digest != state.vocabulary_digest:
            raise DataError("its vocabulary has changed")
        for name, size in state.sizes.items():
            if (actual := (directory / name).stat().st_size) < size:
                raise DataError(f"{name} has {actual} bytes, not {size}")
        for name, size in state.sizes.items():
            os.truncate(directory / name, size)
        return state, vocabulary
    except FileNotFoundError:  # stopped before the first save
        pass
    except (ValueError, TypeError, AttributeError, DataError) as error:
        log.warning("the unfinished build in %s cannot be resumed (%s); starting again", directory, error)
    for file in directory.iterdir():
        file.unlink()
    return None, None


def _learn(corpus: Corpus, data: DataConfig, path: Path, workers: Workers, progress: Progress) -> Vocabulary:
    """Learn the vocabulary from the train split and write it to `path`."""
    what = "reading for the vocabulary"
    train = corpus.splits["train"]
    chosen = training_sample(len(train))
    words: dict[str, int] = {}
    done = 0
    progress(done, len(train), what)
    tasks: Iterator[tuple[Chunk, NDArray[np.bool_] | None]] = (
        (chunk, chosen(len(chunk))) for chunk in train.chunks(0, len(train), PAIRS_PER_CHUNK)
    )
    for counted in workers.map(count_chunk_words, tasks):
        words = add_words(words, counted.counts)
        done += counted.num_pairs
        progress(done, len(train), what)
    words = most_frequent(words)
    return Vocabulary.learn(words, data.vocabulary_size, path, data.tokenizer)


def _encode(
    corpus: Corpus,
    split: str,
    encoder: Encoder,
    workers: Workers,
    state: BuildState,
    state_file: StateFile,
    progress: Progress,
) -> None:
    """Write one split's files, continuing from `state`, which is updated in place."""
    pairs, what = corpus.splits[split], f"encoding {split}"
    kinds = ("pieces", "offsets", "txt") if encoder.keep_text else ("pieces", "offsets")
    resuming = state.split == split
    state.split = split
    with ExitStack() as stack:
        files = {
            f"{split}.{side}.{kind}": stack.enter_context(
                (encoder.vocabulary.parent / f"{split}.{side}.{kind}").open("ab" if resuming else "wb")
            )
            for side in SIDES
            for kind in kinds
        }
        if not resuming:
            for side in SIDES:
                files[f"{split}.{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
        progress(state.read, len(pairs), what)
        for encoded in workers.map(encoder, pairs.chunks(state.read, len(pairs), PAIRS_PER_CHUNK)):
            if encoded.first_empty is not None:
                corpus.check_not_empty(split, state.read + encoded.first_empty[0], encoded.first_empty[1])
            _append(encoded, split, state, files)
            state_file.save(state, files)
            progress(state.read, len(pairs), what)
        state_file.finish(state, files)


def _append(encoded: Encoded, split: str, state: BuildState, files: Mapping[str, IO[bytes]]) -> None:
    """Append a chunk to the files and update the state."""
    for number, (name, side) in enumerate(zip(SIDES, encoded.sides, strict=True)):
        ends = state.ends[number] + np.cumsum(side.lengths)
        files[f"{split}.{name}.pieces"].write(side.pieces)
        files[f"{split}.{name}.offsets"].write(ends.tobytes())
        if side.text:
            files[f"{split}.{name}.txt"].write(side.text)
        state.ends[number] += int(side.lengths.sum())
    state.read += encoded.num_pairs
    state.kept += len(encoded.sides[0].lengths)
    state.lost["empty"] += encoded.empty
    state.lost["too_long"] += encoded.too_long

"""Building a token cache (rpr/data/cache.py): corpus -> vocabulary -> files of pieces, by several processes where the
corpus is large; a build that was killed goes on where it stopped.

What is done so far stands in build.json, beside the files, and is replaced only when all that it speaks of is on the
disk. The next build cuts the files back to it. The files are the same bytes however many processes wrote them, and
however often they were stopped.
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
from rpr.data.encode import SIDES, Encoded, Encoder, words_of
from rpr.data.pairs import Block
from rpr.data.vocabulary import Vocabulary, add_words, most_frequent, training_sample
from rpr.data.workers import MOST, Workers, num_cores
from rpr.errors import DataError
from rpr.io.atomic import remove_leftovers, replace_file

PAIRS_PER_BLOCK = 10_000  # what a process holds in memory at once
WORKERS_FROM = 50_000  # pairs of train; 2 cores take as long with workers as without (4.0 s), of 100,000: 6.1 s and 7.2
SECONDS_BETWEEN_STATES = 5.0
STATE = "build.json"
MODEL = "vocabulary.model"
Progress = Callable[[int, int, str], None]
log = logging.getLogger(__name__)


@dataclass
class Built:
    """What a build made. Counts are pairs, `peak_bytes` the memory of the largest of its processes beside this one."""

    corpus: Corpus
    vocabulary: Vocabulary
    piece_type: str
    counts: dict[str, int]
    dropped: dict[str, dict[str, int]]
    processes: int
    peak_bytes: int


@dataclass
class State:
    """build.json: splits that are complete, and how far the one is that was being written. `ends` are the pieces of
    either side so far, `sizes` the bytes of every file.
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


def build(data: DataConfig, directory: Path, progress: Progress, processes: int | None = None) -> Built:
    """Write every file of the cache but meta.json into `directory`, or those that lack. Raises DataError for whatever
    is wrong with the corpus; RunError when one of the processes dies; OSError when the folder cannot be written.
    """
    saver = Saver(directory)
    corpus = load_corpus(data)
    number = len(corpus.splits["train"])
    if processes is None:
        processes = min(MOST, num_cores()) if number >= WORKERS_FROM else 1
    with Workers(min(processes, -(-number // PAIRS_PER_BLOCK))) as workers:
        vocabulary = saver.vocabulary or _learn(corpus, data, directory / MODEL, workers, progress)
        piece_type = "uint16" if len(vocabulary) <= 1 << 16 else "uint32"
        state = saver.state or State(vocabulary.digest)
        saver.save(state)
        for split in ["train", *(split for split in corpus.splits if split != "train")]:
            if split in state.counts:
                continue
            encoder = Encoder(
                directory / MODEL,
                piece_type,
                data.max_length if split == "train" else None,
                keep_text=split != "train",
                threads=None if workers.processes == 1 else 1,
            )
            _encode(corpus, split, encoder, workers, state, saver, progress)
            if not state.kept:
                raise DataError(
                    f"data {data.name}: no usable pair in {split} ({state.lost['empty']} with an empty side, "
                    f"{state.lost['too_long']} above data.max_length = {data.max_length} pieces); "
                    "check the corpus or raise data.max_length"
                )
            state = State(
                state.vocabulary_digest,
                state.counts | {split: state.kept},
                state.dropped | ({split: state.lost} if any(state.lost.values()) else {}),
                state.sizes,
            )
    return Built(corpus, vocabulary, piece_type, state.counts, state.dropped, workers.processes, workers.peak_bytes)


class Saver:
    """Keeps build.json, every few seconds, so that small corpora do without."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state, self.vocabulary = _resumed(directory)
        self._saved = time.monotonic()

    def save(self, state: State, files: Mapping[str, IO[bytes]] | None = None) -> None:
        """Write the state, and before it what the open files of its split hold; nothing if that was done lately."""
        if time.monotonic() - self._saved < SECONDS_BETWEEN_STATES:
            return
        _note_sizes(state, files or {}, sync=True)
        replace_file(self.directory / STATE, json.dumps(asdict(state)))
        self._saved = time.monotonic()

    def finish(self, state: State, files: Mapping[str, IO[bytes]]) -> None:
        """To be called before the files of a split are closed: the next state that is written speaks of them."""
        _note_sizes(state, files, sync=(self.directory / STATE).exists())


def _note_sizes(state: State, files: Mapping[str, IO[bytes]], *, sync: bool) -> None:
    for name, file in files.items():
        file.flush()
        if sync:
            os.fsync(file.fileno())
        state.sizes[name] = file.tell()


def _resumed(directory: Path) -> tuple[State | None, Vocabulary | None]:
    """The state that an earlier build left, its files cut back to it; an empty folder where none can be used."""
    remove_leftovers(directory, "*")
    try:
        state = State(**json.loads((directory / STATE).read_text()))
        vocabulary = Vocabulary.load(directory / MODEL)
        if vocabulary.digest != state.vocabulary_digest:
            raise DataError("its vocabulary is another one")
        for name, size in state.sizes.items():
            if (actual := (directory / name).stat().st_size) < size:
                raise DataError(f"{name} has {actual} bytes, not {size}")
        for name, size in state.sizes.items():
            os.truncate(directory / name, size)
        return state, vocabulary
    except FileNotFoundError:  # it was stopped before there was any
        pass
    except (ValueError, TypeError, AttributeError, DataError) as error:
        log.warning("the unfinished build in %s cannot be used (%s); starting again", directory, error)
    for file in directory.iterdir():
        file.unlink()
    return None, None


def _learn(corpus: Corpus, data: DataConfig, path: Path, workers: Workers, progress: Progress) -> Vocabulary:
    """The vocabulary of the train split, written to `path`."""
    what = "reading for the vocabulary"
    train = corpus.splits["train"]
    chosen = training_sample(len(train))
    words: dict[str, int] = {}
    done = 0
    progress(done, len(train), what)
    tasks: Iterator[tuple[Block, NDArray[np.bool_] | None]] = (
        (block, chosen(len(block))) for block in train.blocks(0, len(train), PAIRS_PER_BLOCK)
    )
    for found in workers.map(words_of, tasks):
        words = add_words(words, found.counts)
        done += found.num_pairs
        progress(done, len(train), what)
    words = most_frequent(words)
    return Vocabulary.learn(words, data.vocabulary_size, path, data.tokenizer)


def _encode(
    corpus: Corpus, split: str, encoder: Encoder, workers: Workers, state: State, saver: Saver, progress: Progress
) -> None:
    """Write one split's files, from where the state is on, and bring the state to its end."""
    pairs, what = corpus.splits[split], f"encoding {split}"
    kinds = ("pieces", "offsets", "txt") if encoder.keep_text else ("pieces", "offsets")
    going_on = state.split == split
    state.split = split
    with ExitStack() as stack:
        files = {
            f"{split}.{side}.{kind}": stack.enter_context(
                (encoder.vocabulary.parent / f"{split}.{side}.{kind}").open("ab" if going_on else "wb")
            )
            for side in SIDES
            for kind in kinds
        }
        if not going_on:
            for side in SIDES:
                files[f"{split}.{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
        progress(state.read, len(pairs), what)
        for encoded in workers.map(encoder, pairs.blocks(state.read, len(pairs), PAIRS_PER_BLOCK)):
            if encoded.first_empty is not None:
                corpus.refuse_empty(split, state.read + encoded.first_empty[0], encoded.first_empty[1])
            _append(encoded, split, state, files)
            saver.save(state, files)
            progress(state.read, len(pairs), what)
        saver.finish(state, files)


def _append(encoded: Encoded, split: str, state: State, files: Mapping[str, IO[bytes]]) -> None:
    """A block behind what the files have, and the state with it."""
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

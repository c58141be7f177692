"""Building the token cache of a corpus of documents, in constant memory: blocks are encoded in several processes and
written in order, all splits in one pass.

As for pairs (rpr/data/build.py), with documents as targets and no sources, and the names of held-out documents,
<split>.names, as lines of JSON. A killed build starts again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.build import MODEL_NAME, BuildResult, BuildState, Progress, save_state
from rpr.data.documents import BLOCK, Placed, TextCorpus
from rpr.data.text_vocabulary import (
    BytePairVocabulary,
    ByteVocabulary,
    TextVocabulary,
    count_text_words,
    text_vocabulary,
)
from rpr.data.vocabulary import EOS, Vocabulary, add_words, most_frequent
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.resources import num_workers

MEGABYTE = 10**6
WORKERS_FROM = 64 << 20  # bytes: workers take seconds to start
LEARNED_FROM = 512 << 20  # bytes: of more, every n-th block of train is read for the vocabulary
SPLITS = ("train", "validation", "test")


class EncodedBlock(NamedTuple):
    """A block's splits, name and pieces, with EOS at the end of its document."""

    splits: tuple[str, ...]
    name: str
    num_bytes: int
    num_pieces: int
    pieces: bytes
    last: bool


@dataclass(frozen=True)
class TextEncoder:
    """Encodes blocks, in a worker process."""

    vocabulary: Path

    def __call__(self, blocks: list[Placed]) -> list[EncodedBlock]:
        vocabulary = _vocabulary(self.vocabulary)
        encoded = []
        for splits, block in blocks:
            try:
                pieces = vocabulary.encode_text(block.text)
            except UnicodeDecodeError as error:
                raise block.not_utf8(error) from None
            if block.last:
                pieces = np.append(pieces, pieces.dtype.type(EOS))
            size = len(block.text)
            encoded.append(EncodedBlock(splits, block.name, size, len(pieces), pieces.tobytes(), block.last))
        return encoded


def count_block_words(blocks: list[Placed]) -> tuple[int, dict[str, int]]:
    """The bytes of blocks, and their word counts."""
    counts = Counter[str]()
    for _, block in blocks:
        try:
            counts += count_text_words(block.text.decode())
        except UnicodeDecodeError as error:
            raise block.not_utf8(error) from None
    return sum(len(block.text) for _, block in blocks), counts


@lru_cache(maxsize=1)
def _vocabulary(path: Path) -> TextVocabulary:
    return text_vocabulary(Vocabulary.load(path))


def build_text(
    corpus: TextCorpus, data: DataConfig, directory: Path, progress: Progress, processes: int | None = None
) -> BuildResult:
    """Write every file of the cache except meta.json into `directory`, which is emptied before. Raises as `build`."""
    for file in directory.iterdir():
        file.unlink()
    if processes is None:
        processes = num_workers() if corpus.size() >= WORKERS_FROM else 1
    with Workers(processes) as workers:
        if data.tokenizer == "bytes":
            vocabulary: TextVocabulary = ByteVocabulary()
            vocabulary.save(directory / MODEL_NAME)
        else:
            vocabulary = _learn(corpus, data, directory / MODEL_NAME, workers, progress)
        counts, empty = _write(corpus, data, directory, workers, progress)
    for split in SPLITS:
        if not counts[split]:
            raise DataError(
                f"data {corpus.name}: no document with text in {split} ({empty[split]} are empty); add documents"
            )
    sizes = {file.name: file.stat().st_size for file in directory.iterdir()}
    dropped = {split: {"empty": number} for split, number in empty.items()}
    state = BuildState(vocabulary.digest, {split: counts[split] for split in SPLITS}, dropped, sizes)
    save_state(state, directory)
    return BuildResult(state, workers.processes, workers.peak_bytes)


def _learn(
    corpus: TextCorpus, data: DataConfig, path: Path, workers: Workers, progress: Progress
) -> BytePairVocabulary:
    """Learn the vocabulary from the train split and write it to `path`."""
    nth = -(-corpus.splits["train"].size() // LEARNED_FROM)
    train = (placed for placed in corpus.blocks(data.train_limit) if "train" in placed[0])
    words: dict[str, int] = {}
    report = _in_megabytes(progress, corpus, "reading for the vocabulary")
    for size, counts in workers.map(count_block_words, _tasks(islice(train, 0, None, nth))):
        words = add_words(words, counts)
        report(nth * size)
    return BytePairVocabulary.learn_text(most_frequent(words), data.vocabulary_size, path)


def _write(
    corpus: TextCorpus, data: DataConfig, directory: Path, workers: Workers, progress: Progress
) -> tuple[Counter[str], Counter[str]]:
    """Write pieces, offsets and names; returns the documents kept in each split, and those without content."""
    counts, empty, ends, starts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    report = _in_megabytes(progress, corpus, "encoding")
    with ExitStack() as stack:
        kinds = ("target.pieces", "target.offsets", "names")
        files = {
            (split, kind): stack.enter_context((directory / f"{split}.{kind}").open("wb"))
            for split in SPLITS
            for kind in kinds[: 2 if split == "train" else 3]
        }
        for split in SPLITS:
            files[split, "target.offsets"].write(np.zeros(1, np.int64).tobytes())
        encoder = TextEncoder(directory / MODEL_NAME)
        for block in chain.from_iterable(workers.map(encoder, _tasks(corpus.blocks(data.train_limit)))):
            report(block.num_bytes)
            for split in block.splits:
                ends[split] += block.num_pieces
                if block.last and ends[split] == starts[split] + 1:  # EOS alone
                    empty[split] += 1
                    ends[split] -= 1
                    continue
                files[split, "target.pieces"].write(block.pieces)
                if block.last:
                    counts[split] += 1
                    starts[split] = ends[split]
                    files[split, "target.offsets"].write(np.int64(ends[split]).tobytes())
                    if split != "train":
                        files[split, "names"].write((json.dumps(block.name) + "\n").encode())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return counts, empty


def _in_megabytes(progress: Progress, corpus: TextCorpus, what: str) -> Callable[[int], None]:
    """Counts bytes of text; of packed files there are more than on disk."""
    done, total = 0, corpus.size()
    progress(0, total // MEGABYTE, what)

    def report(size: int) -> None:
        nonlocal done
        done += size
        progress(done // MEGABYTE, max(done, total) // MEGABYTE, what)

    return report


def _tasks(blocks: Iterable[Placed]) -> Iterator[list[Placed]]:
    """About BLOCK bytes each."""
    task: list[Placed] = []
    size = 0
    for splits, block in blocks:
        task.append((splits, block))
        size += len(block.text)
        if size >= BLOCK:
            yield task
            task, size = [], 0
    if task:
        yield task

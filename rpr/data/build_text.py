"""Building the token cache of a corpus of documents, in constant memory: blocks are encoded in several processes and
written in order, all splits in one pass.

As for pairs (rpr/data/build.py), with documents as targets and no sources, and the names of held-out documents,
<split>.names, as lines of JSON. A killed build starts again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.build import MODEL_NAME, BuildResult, BuildState, Progress, save_state
from rpr.data.byte_vocabulary import ByteVocabulary, byte_vocabulary
from rpr.data.documents import BLOCK, Placed, TextCorpus
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.resources import num_workers

WORKERS_FROM = 64 << 20  # bytes: workers take seconds to start
SPLITS = ("train", "validation", "test")


class EncodedBlock(NamedTuple):
    """A block's splits, name and pieces, with EOS at the end of its document."""

    splits: tuple[str, ...]
    name: str
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
            pieces = vocabulary.encode_text(block.text)
            if block.last:
                pieces = np.append(pieces, pieces.dtype.type(EOS))
            encoded.append(EncodedBlock(splits, block.name, len(pieces), pieces.tobytes(), block.last))
        return encoded


@lru_cache(maxsize=1)
def _vocabulary(path: Path) -> ByteVocabulary:
    return byte_vocabulary(Vocabulary.load(path))


def build_text(
    corpus: TextCorpus, data: DataConfig, directory: Path, progress: Progress, processes: int | None = None
) -> BuildResult:
    """Write every file of the cache except meta.json into `directory`, which is emptied before. Raises as `build`."""
    for file in directory.iterdir():
        file.unlink()
    vocabulary = ByteVocabulary()
    vocabulary.save(directory / MODEL_NAME)
    if processes is None:
        large = sum(documents.size() for documents in corpus.splits.values()) >= WORKERS_FROM
        processes = num_workers() if large else 1
    with Workers(processes) as workers:
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


def _write(
    corpus: TextCorpus, data: DataConfig, directory: Path, workers: Workers, progress: Progress
) -> tuple[Counter[str], Counter[str]]:
    """Write pieces, offsets and names; returns the documents kept in each split, and those without content."""
    counts, empty, ends, starts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    total = sum(1 for documents in corpus.splits.values() for _ in documents.names())
    read = 0
    with ExitStack() as stack:
        kinds = ("target.pieces", "target.offsets", "names")
        files = {
            (split, kind): stack.enter_context((directory / f"{split}.{kind}").open("wb"))
            for split in SPLITS
            for kind in kinds[: 2 if split == "train" else 3]
        }
        for split in SPLITS:
            files[split, "target.offsets"].write(np.zeros(1, np.int64).tobytes())
        progress(read, total, "encoding")
        encoder = TextEncoder(directory / MODEL_NAME)
        for block in (one for task in workers.map(encoder, _tasks(corpus.blocks(data.train_limit))) for one in task):
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
            read += block.last
            progress(min(read, total), total, "encoding")
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return counts, empty


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

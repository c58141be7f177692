"""Building the token cache of a corpus of documents, in constant memory: blocks are encoded in several processes and
written in order, all splits in one pass.

As for pairs (rpr/data/build.py), with documents as targets and no sources, and the names of held-out documents,
<split>.names, as lines of JSON. A killed build starts again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from rpr.config.data import DataConfig
from rpr.data.build import MODEL_NAME, BuildResult, Progress, counting, learned_words, new_files, new_meta, save
from rpr.data.documents import BLOCK, Block, TextCorpus
from rpr.data.encode import count_block_words, encode_blocks
from rpr.data.text_vocabulary import BytePairVocabulary, ByteVocabulary, TextVocabulary
from rpr.data.workers import Workers
from rpr.errors import DataError
from rpr.io.resources import num_workers

MEGABYTE = 10**6
WORKERS_FROM = 64 << 20  # bytes: workers take seconds to start
LEARNED_FROM = 512 << 20  # bytes: of more, every n-th block of train is read for the vocabulary
SPLITS = ("train", "validation", "test")


def build_text(
    corpus: TextCorpus, data: DataConfig, key: str, directory: Path, progress: Progress, processes: int | None = None
) -> BuildResult:
    """Write every file of the cache into `directory`, which is emptied before. Raises as `build`."""
    for file in directory.iterdir():
        file.unlink()
    if processes is None:
        processes = num_workers() if corpus.size() >= WORKERS_FROM else 1
    with Workers(processes) as workers:
        vocabulary: TextVocabulary = ByteVocabulary()
        if data.tokenizer == "bytes":
            vocabulary.save(directory / MODEL_NAME)
        else:
            nth = -(-corpus.splits["train"].size() // LEARNED_FROM)
            train = (block for block in corpus.blocks(data.train_limit) if "train" in block.splits)
            read = counting(progress, "reading for the vocabulary", corpus.size(), MEGABYTE)
            tasks = _tasks(islice(train, 0, None, nth))
            words = learned_words(workers, count_block_words, tasks, lambda size: read(nth * size))
            vocabulary = BytePairVocabulary.learn_text(words, data.vocabulary_size, directory / MODEL_NAME)
        counts, empty = _write(corpus, data, directory, workers, progress)
    for split in SPLITS:
        if not counts[split]:
            raise DataError(
                f"data {corpus.name}: no document with text in {split} ({empty[split]} are empty); add documents"
            )
    dropped = {split: {"empty": number} for split, number in empty.items()}
    counted = {split: counts[split] for split in SPLITS}
    save(replace(new_meta(corpus, data, key, vocabulary), counts=counted, dropped=dropped), directory)
    return BuildResult(workers.processes, workers.peak_bytes)


def _write(
    corpus: TextCorpus, data: DataConfig, directory: Path, workers: Workers, progress: Progress
) -> tuple[Counter[str], Counter[str]]:
    """Write pieces, offsets and names; returns the documents kept in each split, and those without content."""
    counts, empty, ends, starts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    report = counting(progress, "encoding", corpus.size(), MEGABYTE)
    kinds = ("target.pieces", "target.offsets", "names")
    names = [f"{split}.{kind}" for split in SPLITS for kind in (kinds[:2] if split == "train" else kinds)]
    with new_files(directory, names) as files:
        encode = partial(encode_blocks, directory / MODEL_NAME)
        for block in chain.from_iterable(workers.map(encode, _tasks(corpus.blocks(data.train_limit)))):
            report(block.num_bytes)
            for split in block.splits:
                ends[split] += len(block.pieces)
                if block.last and ends[split] == starts[split] + 1:  # EOS alone
                    empty[split] += 1
                    ends[split] -= 1
                    continue
                files[f"{split}.target.pieces"].write(block.pieces.tobytes())
                if block.last:
                    counts[split] += 1
                    starts[split] = ends[split]
                    files[f"{split}.target.offsets"].write(np.int64(ends[split]).tobytes())
                    if split != "train":
                        files[f"{split}.names"].write((json.dumps(block.name) + "\n").encode())
    return counts, empty


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

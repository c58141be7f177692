"""What workers do with a block of pairs: count its words, or turn it into pieces."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpr.data.pairs import Block
from rpr.data.vocabulary import Vocabulary, count_words

SIDES = ("source", "target")


class Words(NamedTuple):
    """What the vocabulary is learned from, in one block."""

    num_pairs: int
    counts: dict[str, int]


class Side(NamedTuple):
    """One language of a block: all pieces in a row, those of each sentence counted, and the sentences."""

    pieces: bytes
    lengths: NDArray[np.int64]
    text: bytes


class Encoded(NamedTuple):
    """A block as it goes into the files of the cache. `first_empty` is the place in the block and the side of the first
    empty sentence.
    """

    num_pairs: int
    empty: int
    too_long: int
    first_empty: tuple[int, str] | None
    sides: tuple[Side, Side]


def words_of(task: tuple[Block, NDArray[np.bool_] | None]) -> Words:
    """The words of the chosen pairs of a block, or of all."""
    block, chosen = task
    return Words(len(block), count_words(itertools.chain.from_iterable(block.pairs(chosen))))


@dataclass(frozen=True)
class Encoder:
    """Turns blocks of one split into pieces. Pairs with an empty side, and with one longer than `max_length` pieces,
    are left out. `threads` None is all cores.
    """

    vocabulary: Path
    piece_type: str
    max_length: int | None
    keep_text: bool
    threads: int | None

    def __call__(self, block: Block) -> Encoded:
        vocabulary = _vocabulary(self.vocabulary)
        pairs = block.pairs()
        whole = [pair for pair in pairs if pair[0] and pair[1]]
        sentences = [[pair[side] for pair in whole] for side in (0, 1)]
        encoded = [vocabulary.encode_batch(texts, eos=True, threads=self.threads) for texts in sentences]
        if self.max_length is not None:
            fits = [max(map(len, pair)) <= self.max_length for pair in zip(*encoded, strict=True)]
            encoded = [list(itertools.compress(side, fits)) for side in encoded]
        source, target = (self._side(*side) for side in zip(encoded, sentences, strict=True))
        first_empty = None
        if len(whole) < len(pairs):
            index = next(index for index, pair in enumerate(pairs) if not (pair[0] and pair[1]))
            first_empty = index, SIDES[1] if pairs[index][0] else SIDES[0]
        return Encoded(
            len(pairs), len(pairs) - len(whole), len(whole) - len(source.lengths), first_empty, (source, target)
        )

    def _side(self, encoded: list[list[int]], sentences: list[str]) -> Side:
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        pieces = np.fromiter(itertools.chain.from_iterable(encoded), self.piece_type, int(lengths.sum()))
        text = "".join(f"{sentence}\n" for sentence in sentences) if self.keep_text else ""
        return Side(pieces.tobytes(), lengths, text.encode())


@lru_cache(maxsize=1)
def _vocabulary(path: Path) -> Vocabulary:
    return Vocabulary.load(path)

"""The work of building a token cache, done in worker processes: words counted, and text encoded, of chunks of pairs and
of blocks of documents.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpr.data.documents import Block
from rpr.data.pairs import Chunk
from rpr.data.vocabulary import EOS, ByteVocabulary, Vocabulary, count_text_words, count_words, text_vocabulary
from rpr.errors import DataError

SIDES = ("source", "target")
_load = lru_cache(maxsize=1)(Vocabulary.load)


class EncodedChunk(NamedTuple):
    """A chunk: how many pairs it has and how many of them were dropped, by reason; the tokens of each sentence that is
    kept, by side; and what is written to the cache, by the ends of the files' names.
    """

    num_pairs: int
    dropped: dict[str, int]
    lengths: dict[str, NDArray[np.int64]]
    content: dict[str, bytes]


def count_chunk_words(task: tuple[int, Chunk]) -> tuple[int, dict[str, int]]:
    """The number of pairs read, as given, and the word counts of those of the chunk."""
    num_read, chunk = task
    return num_read, count_words(itertools.chain.from_iterable(chunk.pairs()))


def count_block_words(blocks: Sequence[Block]) -> tuple[int, dict[str, int]]:
    """The bytes of blocks, and their word counts."""
    counts = Counter[str]()
    for block in blocks:
        try:
            counts.update(count_text_words(block.text.decode()))
        except UnicodeDecodeError as error:
            raise block.not_utf8(error.start) from None
    return sum(len(block.text) for block in blocks), counts


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
    model = _load(vocabulary)
    pairs = chunk.pairs()
    kept = [pair for pair in pairs if all(pair)]
    if complete is not None and len(kept) < len(pairs):
        index, pair = next((index, pair) for index, pair in enumerate(pairs) if not all(pair))
        raise DataError(
            f"data: the {SIDES[bool(pair[0])]} of {chunk.where(index)} of {complete} is empty; "
            "a scored split must be complete: fix or remove the pair"
        )
    sentences = [[pair[side] for pair in kept] for side in (0, 1)]
    encoded = [model.encode_batch(texts, eos=True, threads=threads) for texts in sentences]
    if max_length is not None:
        fits = [max(map(len, pair)) <= max_length for pair in zip(*encoded, strict=True)]
        encoded = [list(itertools.compress(side, fits)) for side in encoded]
    dropped = {"empty": len(pairs) - len(kept), "too_long": len(kept) - len(encoded[0])}
    result = EncodedChunk(len(pairs), dropped, {}, {})
    for side, rows, texts in zip(SIDES, encoded, sentences, strict=True):
        result.lengths[side] = np.fromiter(map(len, rows), np.int64, len(rows))
        pieces = np.fromiter(itertools.chain.from_iterable(rows), model.piece_type, int(result.lengths[side].sum()))
        result.content[f"{side}.pieces"] = pieces.tobytes()
        if keep_text:
            result.content[f"{side}.txt"] = "".join(f"{sentence}\n" for sentence in texts).encode()
    return result


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

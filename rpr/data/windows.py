"""Documents as windows of tokens: the targets of pairs whose sources are empty, so that they are shuffled, batched and
sharded like sentence pairs (rpr/data/batches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.cache import PreparedData
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS
from rpr.errors import DataError


class Windows:
    """Runs of tokens of a split's documents: the `lengths` (N,) tokens from the N `starts` on."""

    def __init__(self, documents: TokenSplit, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
        self.documents, self.starts, self.target_lengths = documents, starts, lengths
        self.source_lengths = np.broadcast_to(np.int32(0), lengths.shape)

    @classmethod
    def of_stream(cls, documents: TokenSplit, length: int) -> Windows:
        """The stream of all documents, each with its EOS, cut every `length` tokens; the last window may be shorter."""
        total = int(documents.target_offsets[-1])
        starts = np.arange(0, total, length, dtype=np.int64)
        lengths = np.full(len(starts), length, np.int32)
        lengths[-1] = total - starts[-1]
        return cls(documents, starts, lengths)

    @classmethod
    def of_documents(cls, documents: TokenSplit, length: int, *, eos: bool) -> Windows:
        """Each document cut every `length` tokens, with or without its EOS; its last window may be shorter."""
        offsets = documents.target_offsets
        ends = offsets[1:] - (not eos)
        numbers = -(-(ends - offsets[:-1]) // length)
        first = np.cumsum(numbers) - numbers
        starts = np.repeat(offsets[:-1], numbers) + length * (np.arange(numbers.sum()) - np.repeat(first, numbers))
        return cls(documents, starts, np.minimum(length, np.repeat(ends, numbers) - starts).astype(np.int32))

    def spread(self, max_tokens: int) -> Windows:
        """Evenly spaced windows of these with at most `max_tokens` tokens altogether, at least one."""
        number = len(self)
        while number > 1:
            chosen = np.arange(number) * len(self) // number
            if (tokens := int(self.target_lengths[chosen].sum())) <= max_tokens:
                return Windows(self.documents, self.starts[chosen], self.target_lengths[chosen])
            number = min(number - 1, number * max_tokens // tokens)
        return Windows(self.documents, self.starts[:1], self.target_lengths[:1])

    def document_of(self) -> NDArray[np.int64]:
        """(N,) the document that each window starts in."""
        return np.searchsorted(self.documents.target_offsets, self.starts, side="right") - 1

    def __len__(self) -> int:
        return len(self.starts)

    def source(self, index: int) -> NDArray[Any]:
        """The empty context of a window."""
        return self.rows("source", [index])[0]

    def target(self, index: int) -> NDArray[Any]:
        """The tokens of a window."""
        return self.rows("target", [index])[0]

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As TokenSplit.rows."""
        lengths = (self.target_lengths if side == "target" else self.source_lengths)[indices].astype(np.int64)
        pieces, starts = self.documents.pieces("target"), self.starts[indices]
        runs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return np.concatenate([pieces[start:end] for start, end in runs]), lengths

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) the token before each window; BOS at the start of a document, after the EOS of the one before."""
        starts = self.starts[indices]
        found = self.documents.pieces("target")[np.maximum(starts - 1, 0)].astype(np.int64)
        return np.where((starts == 0) | (found == EOS), BOS, found)


def sample_windows(documents: TokenSplit, length: int, count: int) -> list[list[int]]:
    """Windows of documents, each with an EOS after it: the longest, half of them, and beginnings of others, from one
    token to `length`; at most twice as many as there are windows.
    """
    windows = Windows.of_documents(documents, length, eos=False)
    half = min(-(-count // 2), len(windows))
    longest = np.argsort(-windows.target_lengths, kind="stable")[:half]
    rows = [windows.target(int(index)) for index in longest]
    for number in range(min(count - half, half)):
        rows.append(windows.target(number * len(windows) // half)[: 1 + number * length // half])
    return [[*row.tolist(), EOS] for row in rows]


def longest_block(documents: TokenSplit) -> int:
    """The most tokens that `context_blocks` can have: a block and as many tokens before it are in one document."""
    return int(documents.target_lengths.max() - 1) // 2


def context_blocks(data: PreparedData, name: str, length: int, max_tokens: int) -> Windows:
    """Evenly spaced runs of `length` tokens, at most `max_tokens` altogether, each with as many tokens of its document
    before it. Raises DataError if no document has so many.
    """
    documents = data.split(name)
    every = Windows.of_documents(documents, length, eos=False)
    inside = every.starts > documents.target_offsets[every.document_of()]
    chosen = inside & (every.target_lengths == length)
    if not chosen.any():
        raise DataError(
            f"evaluation.context_lengths: {length} is too long for the {name} documents of {data.meta.name}, of which "
            f"one must have twice as many tokens; choose lengths up to {longest_block(documents)}, or [] for none"
        )
    return Windows(documents, every.starts[chosen], every.target_lengths[chosen]).spread(max_tokens)


def training_split(data: PreparedData, config: DataConfig) -> TokenSplit | Windows:
    """The training pairs, or windows of the training documents."""
    documents = data.split("train")
    if config.text is None or config.context_length is None:
        return documents
    if config.text.windows == "stream":
        return Windows.of_stream(documents, config.context_length)
    return Windows.of_documents(documents, config.context_length, eos=True)


def scored_split(data: PreparedData, config: DataConfig, name: str, max_tokens: int) -> TokenSplit | Windows:
    """The pairs of a held-out split; or windows of its documents, without EOS, with at most `max_tokens` tokens."""
    if config.context_length is None:
        return data.split(name)
    return Windows.of_documents(data.split(name), config.context_length, eos=False).spread(max_tokens)

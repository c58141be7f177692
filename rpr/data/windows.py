"""Documents as windows of tokens: the targets of pairs whose sources are empty, so that they are shuffled, batched and
sharded like sentence pairs (rpr/data/batches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpr.config.data import DataConfig
from rpr.data.cache import PreparedData, TokenSplit
from rpr.data.vocabulary import BOS, EOS, TextVocabulary
from rpr.errors import DataError

WINDOWS_AT_ONCE = 1 << 18


class Windows:
    """Runs of tokens of a split's documents, cut every `length` tokens (None: a window for each run): run r is
    begins[r] : ends[r], and its last window may be shorter. A window is computed from its number.
    """

    def __init__(
        self, documents: TokenSplit, begins: NDArray[np.int64], ends: NDArray[np.int64], length: int | None = None
    ) -> None:
        self.documents, self._begins, self._ends = documents, begins, ends
        longest = int((ends - begins).max())
        self._length = longest if length is None else length
        self.longest = min(longest, self._length)
        self._first = np.concatenate([[0], np.cumsum(-(-(ends - begins) // self._length))])  # (runs + 1,)
        self.source_lengths = np.broadcast_to(np.int32(0), len(self))

    @classmethod
    def of_stream(cls, documents: TokenSplit, length: int) -> Windows:
        """The stream of all documents, each with its EOS; the last window may be shorter."""
        return cls(documents, np.zeros(1, np.int64), documents.offsets("target")[-1:], length)

    @classmethod
    def of_documents(cls, documents: TokenSplit, length: int, *, eos: bool) -> Windows:
        """Each document by itself, with or without its EOS; its last window may be shorter."""
        offsets = documents.offsets("target")
        return cls(documents, offsets[:-1], offsets[1:] if eos else offsets[1:] - 1, length)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """(N,) tokens of each window."""
        parts = np.array_split(np.arange(len(self)), 1 + len(self) // WINDOWS_AT_ONCE)
        return np.concatenate([self.spans(part)[1].astype(np.int32) for part in parts])

    def spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(B,) where the windows start, and their numbers of tokens."""
        run = np.searchsorted(self._first, indices, side="right") - 1
        starts = self._begins[run] + self._length * (indices - self._first[run])
        return starts, np.minimum(self._length, self._ends[run] - starts)

    @property
    def starts(self) -> NDArray[np.int64]:
        """(N,) where each window starts."""
        return self.spans(np.arange(len(self)))[0]

    def spread(self, max_tokens: int) -> Windows:
        """Evenly spaced windows of these with at most `max_tokens` tokens altogether, at least one. Where that would be
        the first windows of runs alone, and all runs with windows have as many, it is the first of one, the second of
        the next...
        """
        number = len(self)
        while number > 1:
            chosen = np.arange(number) * len(self) // number
            if (tokens := int(self.spans(chosen)[1].sum())) <= max_tokens:
                break
            number = min(number - 1, number * max_tokens // tokens)
        chosen, per_run = np.arange(max(number, 1)) * len(self) // max(number, 1), np.diff(self._first)
        per_run = per_run[per_run > 0]
        if (per_run == per_run[0]).all() and not (chosen % per_run[0]).any():
            chosen += np.arange(len(chosen)) % per_run[0]
        starts, lengths = self.spans(chosen)
        return Windows(self.documents, starts, starts + lengths)

    def document_of(self) -> NDArray[np.int64]:
        """(N,) the document that each window starts in."""
        return np.searchsorted(self.documents.offsets("target"), self.starts, side="right") - 1

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, side: str, index: int) -> NDArray[Any]:
        """As TokenSplit.row; a window's source is empty."""
        return self.rows(side, [index])[0]

    def rows(self, side: str, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As TokenSplit.rows."""
        pieces = self.documents.pieces("target")
        if side == "source":
            return pieces[:0], np.zeros(len(indices), np.int64)
        starts, lengths = self.spans(np.asarray(indices))
        runs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return np.concatenate([pieces[start:end] for start, end in runs]), lengths

    def before(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(B,) the token before each window; BOS at the start of a document, after the EOS of the one before."""
        starts, _ = self.spans(np.asarray(indices))
        tokens = self.documents.pieces("target")[np.maximum(starts - 1, 0)].astype(np.int64)
        return np.where((starts == 0) | (tokens == EOS), BOS, tokens)


def sample_windows(documents: TokenSplit, length: int, count: int) -> list[list[int]]:
    """Windows of documents, each with an EOS after it: the longest, half of them, and beginnings of others, from one
    token to `length`; at most twice as many as there are windows.
    """
    windows = Windows.of_documents(documents, length, eos=False)
    half = min(-(-count // 2), len(windows))
    longest = np.argsort(-windows.target_lengths, kind="stable")[:half]
    rows = [windows.row("target", int(index)) for index in longest]
    for number in range(min(count - half, half)):
        rows.append(windows.row("target", number * len(windows) // half)[: 1 + number * length // half])
    return [[*row.tolist(), EOS] for row in rows]


def context_blocks(data: PreparedData, name: str, length: int, max_tokens: int) -> Windows:
    """Evenly spaced runs of `length` tokens, at most `max_tokens` altogether, each with as many tokens of its document
    before it. Raises DataError if no document has so many.
    """
    documents = data.split(name)
    begins = documents.offsets("target")[:-1] + length
    numbers = np.maximum((documents.target_lengths - 1) // length - 1, 0)
    if not numbers.any():
        most = (documents.target_lengths.max() - 1) // 2
        raise DataError(
            f"evaluation.context_lengths: {length} is too long for the {name} documents of {data.meta.name}, of which "
            f"one must have twice as many tokens; choose lengths up to {most}, or [] for none"
        )
    return Windows(documents, begins, begins + length * numbers, length).spread(max_tokens)


def training_split(data: PreparedData, config: DataConfig) -> TokenSplit | Windows:
    """The training pairs, or windows of the training documents."""
    documents, length = data.split("train"), config.context_length
    if config.text is None or length is None:
        return documents
    alone = config.text.windows == "documents"
    return Windows.of_documents(documents, length, eos=True) if alone else Windows.of_stream(documents, length)


def scored_split(data: PreparedData, config: DataConfig, name: str, max_tokens: int) -> TokenSplit | Windows:
    """The pairs of a held-out split; or windows of its documents, without EOS, with at most `max_tokens` tokens."""
    if config.context_length is None:
        return data.split(name)
    return Windows.of_documents(data.split(name), config.context_length, eos=False).spread(max_tokens)


def unigram_bits(data: PreparedData, split: str = "test") -> float | None:
    """The entropy of a split of documents in bits per byte, if each piece is drawn by its frequency in it alone: what a
    model that has learned nothing else needs. None of sentence pairs, or without the split.
    """
    vocabulary = data.vocabulary
    if not isinstance(vocabulary, TextVocabulary) or split not in data.splits:
        return None
    counts = np.bincount(data.split(split).pieces("target"), minlength=len(vocabulary)).astype(np.float64)
    counts[vocabulary.piece_bytes == 0] = 0  # the ends of documents
    seen = counts[counts > 0]
    return float((seen * np.log2(seen.sum() / seen)).sum() / (counts * vocabulary.piece_bytes).sum())

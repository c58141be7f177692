"""Token-budget batches of pairs of similar length: a pure function of (seed, step), whatever the number of devices and
workers.

A microbatch is a list of pairs whose padded size fits `max_tokens_per_microbatch` on each side, or on both together if
they are `joined` in one row, as in a decoder-only model. A step is one weight update from `microbatches_per_step`
microbatches. A shard is what one device processes at once: a whole microbatch, or every n-th row of one when there are
more devices than microbatches. So hardware changes neither the pairs of a step nor the order of the steps.

Buckets follow Tensor2Tensor: by max(source, target) length with EOS, boundaries growing by 1.1, budget // bucket length
rows per microbatch. Two refinements reduce padding: a bucket's length is that of its longest pair, and within a bucket
pairs are grouped into cells of similar skew (target length relative to source length). Padding: 10% without cells, 5%
with (30,000 pairs of lognormal lengths). The boundaries of microbatches are the same in every epoch; the pairs are
shuffled within their cells, and the microbatches are shuffled. So seeking to a step costs one epoch's shuffle.

Documents are windows of tokens: the targets of pairs whose sources are empty.

Shapes: B pairs, S source tokens, T target tokens, N pairs of the split. Arrays of N elements use small types and are
computed in chunks: N is 36 million for WMT14 EN-FR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from rpr.config.train import DataConfig
from rpr.data.cache import PreparedData, TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD, TextVocabulary
from rpr.errors import DataError

FIRST_BOUNDARY, GROWTH = 8, 1.1
PAIRS_AT_ONCE = 1 << 18  # or windows
Indices = NDArray[np.int64]
Order = NDArray[np.int32]  # (N,) pairs
Cells = NDArray[np.uint16]  # (N,)
Lengths = NDArray[np.int32 | np.int64]  # (N,)
NO_PAIRS: Indices = np.empty(0, np.int64)


def bucket_boundaries(longest: int) -> NDArray[np.int64]:
    """Integers from 8 upwards, each 1.1 times its predecessor (at least 1 more), until one is at least `longest`."""
    boundaries = [FIRST_BOUNDARY]
    while boundaries[-1] < longest:
        boundaries.append(max(boundaries[-1] + 1, int(boundaries[-1] * GROWTH)))
    return np.asarray(boundaries, np.int64)


def microbatch_starts(ends: Sequence[int], longest: Sequence[int], budget: int) -> NDArray[np.int64]:
    """Start positions of the microbatches, for buckets that end at positions `ends` and hold rows of up to `longest`
    tokens (both ascending).
    """
    starts = []
    position = opened = shorter = 0
    for end, length in zip(ends, longest, strict=True):
        rows = max(1, budget // length)
        # The remainder of the previous bucket starts this bucket's first microbatch, unless that would split it or
        # lengthen it by more than half.
        if position < opened and (opened - position >= rows or 2 * length > 3 * shorter):
            starts.append(np.asarray([position], np.int64))
            position = opened
        full = (end - position) // rows
        starts.append(position + rows * np.arange(full, dtype=np.int64))
        position += rows * full
        opened, shorter = end, length
    if position < ends[-1]:
        starts.append(np.asarray([position], np.int64))
    return np.concatenate(starts)


def planned(
    source_lengths: Lengths, target_lengths: Lengths, max_tokens: int, *, joined: bool
) -> tuple[Cells, Indices]:
    """What all epochs have in common: each pair's cell, and where the microbatches start in the order by cell."""
    # 1. Buckets.
    assert len(source_lengths) < 1 << 31, "pairs are numbered in 32 bits"
    longest = max(int(source_lengths.max()), int(target_lengths.max()))
    boundaries = bucket_boundaries(longest)
    width = 2 * len(boundaries) + 1
    assert len(boundaries) * width <= 1 << 16, "cells are numbered in 16 bits"
    bucket_of = np.searchsorted(boundaries, np.arange(longest + 1)).astype(np.int32)
    # 2. Cells, in 16 bits: numpy's stable sort of them is a radix sort, linear in N and the same on every machine.
    cell = np.empty(len(source_lengths), np.uint16)
    pairs_of_length = np.zeros(longest + 1, np.int64)
    longest_of = np.zeros((2, len(boundaries)), np.int32)  # source and target of each bucket
    for first in range(0, len(cell), PAIRS_AT_ONCE):
        chunk = slice(first, first + PAIRS_AT_ONCE)
        source, target = source_lengths[chunk], target_lengths[chunk]
        longer = np.maximum(source, target)
        pairs_of_length += np.bincount(longer, minlength=longest + 1)
        bucket = bucket_of[longer]
        np.maximum.at(longest_of[0], bucket, source)
        np.maximum.at(longest_of[1], bucket, target)
        skew = bucket_of[target] - bucket_of[source]  # 0: equal; the longer side is always in `bucket`
        # Odd buckets are reversed, so that a microbatch across a bucket boundary has pairs of similar skew.
        np.negative(skew, out=skew, where=bucket % 2 == 1)
        cell[chunk] = bucket * width + len(boundaries) + skew
    # 3. Microbatches; one may begin with pairs of earlier buckets.
    lengths = np.flatnonzero(pairs_of_length)
    last = np.flatnonzero(np.diff(bucket_of[lengths], append=-1))  # the longest of each bucket
    ends = np.cumsum(pairs_of_length[lengths])[last]
    both = np.maximum.accumulate(longest_of, axis=1).sum(axis=0)
    rows = both[bucket_of[lengths[last]]] if joined else lengths[last]
    return cell, microbatch_starts(ends.tolist(), rows.tolist(), max_tokens)


@dataclass(frozen=True, eq=False)
class BatchSpec:
    """One shard of one rank, before its tokens are read; empty where an epoch's last step has too few microbatches.
    Tokens (EOS included, no padding) are those of the whole step of all ranks: the loss is divided by them.
    """

    indices: Indices
    step_source_tokens: int
    step_target_tokens: int


class Batch(NamedTuple):
    """Padded tokens of one shard, int64, PAD = 0. The counts include EOS and exclude padding; outside training those of
    the step are those of the batch.

    The decoder reads target_input_BT (BOS, then the target without its last token) and predicts target_output_BT (the
    target with EOS). A window of documents is a target without a source (S = 0), and its input starts with the token
    before it. A shard without pairs is one row: source EOS, target output PAD only.
    """

    source_BS: torch.Tensor
    target_input_BT: torch.Tensor
    target_output_BT: torch.Tensor
    num_target_tokens: int
    step_source_tokens: int
    step_target_tokens: int
    source_padded: bool = True


class TrainingBatches(Sampler[BatchSpec]):
    """An endless stream of this rank's shards, starting at `start_step`; for DataLoader(BatchDataset(split),
    sampler=..., batch_size=None). Every pair occurs once per epoch. If its last step has fewer microbatches, some ranks
    get empty shards. `num_devices` divides microbatches_per_step or is a multiple of it.
    """

    def __init__(
        self,
        split: Split,
        max_tokens_per_microbatch: int,
        microbatches_per_step: int,
        seed: int,
        num_devices: int = 1,
        rank: int = 0,
        start_step: int = 0,
        *,
        joined: bool = False,
        longest_first: int = 0,  # microbatches of the longest rows that come before the others
    ) -> None:
        assert 0 <= rank < num_devices
        self._start_step, self._longest_first = start_step, longest_first
        self._microbatches_per_step, self._seed = microbatches_per_step, seed
        self._num_devices, self._rank = num_devices, rank
        self._lengths = split.source_lengths, split.target_lengths
        self._cell, self._starts = planned(*self._lengths, max_tokens_per_microbatch, joined=joined)
        self._ends = np.append(self._starts[1:], len(self._cell))
        self._epoch, self._orders = -1, (np.empty(0, np.int32), NO_PAIRS)

    @property
    def steps_per_epoch(self) -> int:
        """The number of weight updates; the last one may have fewer microbatches."""
        return -(-len(self._starts) // self._microbatches_per_step)

    def step_microbatches(self, step: int) -> list[Indices]:
        """The pairs of each of the step's microbatches, over all ranks; at the end of an epoch some may be empty."""
        assert step >= 0
        epoch, place = divmod(step, self.steps_per_epoch)
        pairs, microbatches = self._orders_of(epoch)
        first = place * self._microbatches_per_step
        chosen = microbatches[first : first + self._microbatches_per_step]
        of_step = [pairs[self._starts[index] : self._ends[index]].astype(np.int64) for index in chosen]
        return of_step + [NO_PAIRS] * (self._microbatches_per_step - len(of_step))

    def _orders_of(self, epoch: int) -> tuple[Order, Indices]:
        """Of the pairs (N,), sorted by cell, and of the microbatches: 3 s for 36 million pairs."""
        if self._epoch != epoch:
            self._epoch, self._orders = -1, (np.empty(0, np.int32), NO_PAIRS)  # memory for the next ones
            draw = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            pairs = np.arange(len(self._cell), dtype=np.int32)
            draw.shuffle(pairs)
            pairs = pairs[np.argsort(self._cell[pairs], kind="stable")]
            microbatches = draw.permutation(len(self._starts))
            if self._longest_first:
                later = microbatches < len(self._starts) - self._longest_first
                microbatches = microbatches[np.argsort(later, kind="stable")]
            self._epoch, self._orders = epoch, (pairs, microbatches)
        return self._orders

    def padding_waste(self) -> float:
        """The fraction, 0 to 1, of the first epoch's source and target positions that are padding."""
        real = padded = 0
        for side in self._lengths:
            lengths = side[self._orders_of(0)[0]]
            real += int(lengths.sum())
            padded += int(((self._ends - self._starts) * np.maximum.reduceat(lengths, self._starts)).sum())
        return 1 - real / padded

    def step_specs(self, step: int) -> list[BatchSpec]:
        microbatches = self.step_microbatches(step)
        pairs = np.concatenate(microbatches)
        source, target = (int(lengths[pairs].sum()) for lengths in self._lengths)
        if self._num_devices <= self._microbatches_per_step:
            shards = microbatches[self._rank :: self._num_devices]
        else:
            num_shards = self._num_devices // self._microbatches_per_step
            # every num_shards-th row, since neighbours have similar lengths
            shards = [microbatches[self._rank // num_shards][self._rank % num_shards :: num_shards]]
        return [BatchSpec(shard, source, target) for shard in shards]

    def __iter__(self) -> Iterator[BatchSpec]:
        step = self._start_step
        while True:
            yield from self.step_specs(step)
            step += 1


def accumulation(microbatches_per_step: int, num_devices: int) -> int:
    """Shards per device and step. One number divides the other (`TrainConfig`), so all devices have the same share."""
    return max(1, microbatches_per_step // num_devices)


def scored_batches(split: Split, max_tokens: int, *, joined: bool = False) -> list[Indices]:
    """Indices of every pair once, sorted by length, in batches of at most max_tokens padded tokens per side, or of both
    if `joined`; a longer pair forms its own batch.
    """
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.lexsort((split.target_lengths, split.source_lengths, longer)).astype(np.int64)
    ends = np.flatnonzero(np.diff(longer[order], append=-1)) + 1  # one bucket per length
    rows = longer[order]
    if joined:
        source, target = (np.maximum.accumulate(side[order]) for side in (split.source_lengths, split.target_lengths))
        rows = source + target
    return np.split(order, microbatch_starts(ends.tolist(), rows[ends - 1].tolist(), max_tokens)[1:])


def _pad(pieces: NDArray[np.generic], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    real = np.arange(int(lengths.max())) < lengths[:, None]
    padded = np.full(real.shape, PAD, np.int64)
    padded[real] = pieces
    return padded, len(pieces)


class BatchDataset(Dataset[Batch]):
    """Turns a BatchSpec, or the pair indices of an evaluation batch, into a Batch."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, item: BatchSpec | Sequence[int] | Indices) -> Batch:
        indices = np.asarray(item.indices if isinstance(item, BatchSpec) else item).tolist()
        if indices:
            source, source_tokens = _pad(*self.split.rows("source", indices))
            output, target_tokens = _pad(*self.split.rows("target", indices))
        else:
            source, output = np.full((1, 1), EOS, np.int64), np.full((1, 1), PAD, np.int64)
            source_tokens = target_tokens = 0
        shifted = np.full_like(output, BOS)
        shifted[:, 0] = self.split.before(indices) if indices else BOS
        # Pad the input wherever the output is padded; the shift alone would leave an EOS after each shorter target.
        shifted[:, 1:] = np.where(output[:, 1:] == PAD, PAD, output[:, :-1])
        shifted[shifted == EOS] = BOS  # the next document of a stream starts
        return Batch(
            torch.from_numpy(source),
            torch.from_numpy(shifted),
            torch.from_numpy(output),
            target_tokens,
            item.step_source_tokens if isinstance(item, BatchSpec) else source_tokens,
            item.step_target_tokens if isinstance(item, BatchSpec) else target_tokens,
            bool(indices) and source_tokens < source.size,
        )


# What is trained on and scored


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
    def of_documents(cls, documents: TokenSplit, length: int, *, eos: bool) -> Windows:
        """Each document by itself, with or without its EOS; its last window may be shorter."""
        offsets = documents.offsets("target")
        return cls(documents, offsets[:-1], offsets[1:] if eos else offsets[1:] - 1, length)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """(N,) tokens of each window."""
        parts = np.array_split(np.arange(len(self)), 1 + len(self) // PAIRS_AT_ONCE)
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
        """Evenly spaced windows of these with at most `max_tokens` tokens altogether, at least one. Where all would be
        the first of their runs, and runs have equally many, it is the first of one, the second of the next...
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


Split = TokenSplit | Windows


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


def training_split(data: PreparedData, config: DataConfig) -> Split:
    """The training pairs, or windows of the stream of all training documents, or of each, with their EOS."""
    documents, length = data.split("train"), config.context_length
    if config.text is None or length is None:
        return documents
    if config.text.windows == "documents":
        return Windows.of_documents(documents, length, eos=True)
    return Windows(documents, np.zeros(1, np.int64), documents.offsets("target")[-1:], length)


def scored_split(data: PreparedData, config: DataConfig, name: str, max_tokens: int) -> Split:
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

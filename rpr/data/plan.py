"""Pairs into units: which pairs may share a batch, and where units start and end.

Units follow Tensor2Tensor: buckets by max(source, target) with EOS, boundaries growing by 1.1, budget // bucket length
rows. Two things are tighter: a bucket's length is that of its longest pair, and inside a bucket pairs are kept near
others of like skew (target against source length), in cells. Padding: 10% without cells, 5% with (30,000 pairs of
lognormal lengths), 3% on Multi30k.

Everything that has N numbers is kept small, and made a part at a time: N is 36 million for WMT14 EN-FR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_BOUNDARY = 8
GROWTH = 1.1
PAIRS_AT_ONCE = 1 << 20
UNITS_AT_ONCE = 10_000
Order = NDArray[np.int32]  # (N,) pairs


class Drawn(NamedTuple):
    """The order of the pairs (N,) by cell, and the order of the units, of one epoch."""

    epoch: int
    order: Order
    unit_order: NDArray[np.int64]


def bucket_boundaries(longest: int) -> NDArray[np.int64]:
    """Integers from 8, each 1.1 times the one before and at least one more, up to `longest` or just above."""
    boundaries = [FIRST_BOUNDARY]
    while boundaries[-1] < longest:
        boundaries.append(max(boundaries[-1] + 1, int(boundaries[-1] * GROWTH)))
    return np.asarray(boundaries, np.int64)


def cut(ends: Sequence[int], longest: Sequence[int], budget: int) -> NDArray[np.int64]:
    """Where units start, for buckets that end at `ends` (positions, ascending) and hold lengths up to `longest`
    (ascending).
    """
    starts = []
    position = opened = shorter = 0
    for end, length in zip(ends, longest, strict=True):
        rows = max(1, budget // length)
        # What the bucket before left over opens this one's first unit, unless that would split it, or pad it by half
        # and more.
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


def _parts(number: int) -> Iterator[slice]:
    return (slice(first, min(first + PAIRS_AT_ONCE, number)) for first in range(0, number, PAIRS_AT_ONCE))


class Plan:
    """What is the same in every epoch: the cell of each pair, and where units start and end in the order by cell."""

    def __init__(
        self, source_lengths: NDArray[np.int32], target_lengths: NDArray[np.int32], max_tokens_per_microbatch: int
    ) -> None:
        assert len(source_lengths) < 1 << 31, "pairs are numbered in 32 bits"
        longest = max(int(source_lengths.max()), int(target_lengths.max()))
        boundaries = bucket_boundaries(longest)
        width = 2 * len(boundaries) + 1
        assert len(boundaries) * width <= 1 << 16, "cells are numbered in 16 bits"
        bucket_of = np.searchsorted(boundaries, np.arange(longest + 1)).astype(np.int32)
        # (N,) uint16: numpy's stable sort of 16 bits is a radix sort, linear in N and the same on every machine
        self.cell = np.empty(len(source_lengths), np.uint16)
        pairs_of_length = np.zeros(longest + 1, np.int64)
        for part in _parts(len(self.cell)):
            source, target = source_lengths[part], target_lengths[part]
            longer = np.maximum(source, target)
            pairs_of_length += np.bincount(longer, minlength=longest + 1)
            bucket = bucket_of[longer]
            skew = bucket_of[target] - bucket_of[source]  # 0: both sides alike; the longer side is always in `bucket`
            # Odd buckets run backwards, so that a unit reaching over a bucket's end meets pairs of like skew.
            np.negative(skew, out=skew, where=bucket % 2 == 1)
            self.cell[part] = bucket * width + len(boundaries) + skew
        lengths = np.flatnonzero(pairs_of_length)
        last = np.flatnonzero(np.diff(bucket_of[lengths], append=-1))  # the longest of each bucket
        ends = np.cumsum(pairs_of_length[lengths])[last]
        self.starts = cut(ends.tolist(), lengths[last].tolist(), max_tokens_per_microbatch)
        self.ends = np.append(self.starts[1:], len(self.cell))

    def epoch(self, seed: int, epoch: int) -> Drawn:
        """What is drawn for this epoch."""
        draw = np.random.Generator(np.random.PCG64([seed, epoch]))
        order = np.arange(len(self.cell), dtype=np.int32)
        draw.shuffle(order)
        return Drawn(epoch, self._by_cell(order), draw.permutation(len(self.starts)))

    def _by_cell(self, order: Order) -> Order:
        """Sorted by cell, the order kept within each: as argsort does, whose result alone would be 8 bytes a pair."""
        counts = sum(np.bincount(self.cell[part], minlength=1 << 16) for part in _parts(len(order)))
        place = np.cumsum(counts) - counts  # where the next pair of each cell goes
        result = np.empty_like(order)
        for part in _parts(len(order)):
            pairs = order[part]
            cell = self.cell[pairs]
            by_cell = np.argsort(cell, kind="stable")
            cell = cell[by_cell]
            counts = np.bincount(cell, minlength=1 << 16)
            result[(place - (np.cumsum(counts) - counts))[cell] + np.arange(len(cell))] = pairs[by_cell]
            place += counts
        return result

    def padding_waste(
        self, order: Order, source_lengths: NDArray[np.int32], target_lengths: NDArray[np.int32]
    ) -> float:
        """The share of padding among the source and target tokens of all units of an epoch, padded."""
        real = padded = 0
        for first in range(0, len(self.starts), UNITS_AT_ONCE):
            starts, ends = (places[first : first + UNITS_AT_ONCE] for places in (self.starts, self.ends))
            pairs = order[starts[0] : ends[-1]]
            for side in (source_lengths, target_lengths):
                lengths = side[pairs]
                real += int(lengths.sum())
                padded += int(((ends - starts) * np.maximum.reduceat(lengths, starts - starts[0])).sum())
        return 1 - real / padded

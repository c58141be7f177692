"""Token-budget batches of pairs of like length: a pure function of (seed, step), whatever the number of devices and
workers.

The words, from small to large. A unit is a list of pairs whose padded size fits `max_tokens_per_unit` on either side. A
step is `units_per_step` units: what one update of the weights learns from; it belongs to the recipe. A micro-batch is
what one device takes at once. Devices share a step's units (or the rows of a unit), so hardware changes neither the
pairs of a step nor the order of the steps.

Units follow Tensor2Tensor: buckets by max(source, target) with EOS, boundaries growing by 1.1, budget // bucket length
rows. Two things are tighter: a bucket's length is that of its longest pair, and inside a bucket pairs are kept near
others of like skew (target against source length), in cells. Padding: 10% without cells, 5% with (30,000 pairs of
lognormal lengths), 3% on Multi30k. Every epoch puts the same numbers of pairs of the same cells in the same places;
which pairs of a cell go where, and the order of the units, is drawn anew. So all epochs have equally many units, and
finding any step costs one division and one epoch's order.

Shapes: B pairs, S source pieces, T target pieces, N pairs of the split.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.errors import ConfigError

Indices = NDArray[np.int64]
FIRST_BOUNDARY = 8
GROWTH = 1.1
NO_PAIRS: Indices = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class BatchSpec:
    """One micro-batch of one rank, before its pieces are read. `indices` is empty where an epoch's last step runs out
    of units.

    `step_source_tokens` and `step_target_tokens` count the real pieces, EOS included, of the whole step over all ranks:
    the loss is divided by them.
    """

    indices: Indices
    step: int
    micro: int
    step_source_tokens: int
    step_target_tokens: int


class Batch(NamedTuple):
    """Padded pieces of one micro-batch, int64, PAD = 0. The numbers count real pieces, EOS included.

    The decoder reads target_input_BT (BOS, then the target without its last piece) and predicts target_output_BT (the
    target with EOS). Outside training `step` is None and the step's tokens are the batch's own. A shard without pairs
    is one row: source EOS, target output PAD only.
    """

    source_BS: torch.Tensor
    target_input_BT: torch.Tensor
    target_output_BT: torch.Tensor
    num_source_tokens: int
    num_target_tokens: int
    step: int | None
    step_source_tokens: int
    step_target_tokens: int


def bucket_boundaries(longest: int) -> NDArray[np.int64]:
    """Integers from 8, each 1.1 times the one before and at least one more, up to `longest` or just above."""
    boundaries = [FIRST_BOUNDARY]
    while boundaries[-1] < longest:
        boundaries.append(max(boundaries[-1] + 1, int(boundaries[-1] * GROWTH)))
    return np.asarray(boundaries, np.int64)


def _cut(ends: Sequence[int], longest: Sequence[int], budget: int) -> NDArray[np.int64]:
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


class _Plan:
    """What is the same in every epoch: the cell of each pair, and where units start and end in the order by cell."""

    def __init__(
        self, source_lengths: NDArray[np.int32], target_lengths: NDArray[np.int32], max_tokens_per_unit: int
    ) -> None:
        longer = np.maximum(source_lengths, target_lengths)
        boundaries = bucket_boundaries(int(longer.max()))
        bucket_of = np.searchsorted(boundaries, np.arange(int(longer.max()) + 1)).astype(np.int64)
        bucket = bucket_of[longer]
        skew = (
            bucket_of[target_lengths] - bucket_of[source_lengths]
        )  # 0: both sides alike; the longer side is always in `bucket`
        # Odd buckets run backwards, so that a unit reaching over a bucket's end meets pairs of like skew.
        np.negative(skew, out=skew, where=bucket % 2 == 1)
        skew += len(boundaries)
        cell = bucket * (2 * len(boundaries) + 1) + skew
        occupied = np.flatnonzero(np.bincount(cell))
        assert len(occupied) <= 1 << 16, "cells are numbered in 16 bits"
        rank = np.zeros(int(cell.max()) + 1, np.uint16)
        rank[occupied] = np.arange(len(occupied))
        self.cell = rank[
            cell
        ]  # (N,) uint16: numpy's stable sort of 16 bits is a radix sort, linear in N and the same on every machine
        counts = np.bincount(bucket, minlength=len(boundaries))
        longest = np.zeros(len(boundaries), np.int64)
        np.maximum.at(longest, bucket, longer)
        used = np.flatnonzero(counts)
        self.starts = _cut(np.cumsum(counts)[used].tolist(), longest[used].tolist(), max_tokens_per_unit)
        self.ends = np.append(self.starts[1:], len(longer))

    def epoch(self, seed: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The order of the pairs (N,) and the order of the units, drawn for this epoch."""
        draw = np.random.Generator(np.random.PCG64([seed, epoch]))
        order = draw.permutation(len(self.cell))
        order = order[np.argsort(self.cell[order], kind="stable")]
        return order, draw.permutation(len(self.starts))


class TrainingBatches(Sampler[BatchSpec]):
    """This rank's micro-batches, without end, from `start_step` on; for DataLoader(TranslationDataset(split),
    sampler=..., batch_size=None).

    Every pair occurs once an epoch; an epoch's last step may have fewer units, and then some ranks get empty shards, so
    that all ranks take equally many micro-batches. Set `start_step` before iterating to resume: no batch before it is
    made. Raises ConfigError when `num_devices` neither divides units_per_step nor is a multiple of it.
    """

    def __init__(
        self,
        split: TokenSplit,
        max_tokens_per_unit: int,
        units_per_step: int,
        seed: int,
        num_devices: int = 1,
        rank: int = 0,
        start_step: int = 0,
    ) -> None:
        assert len(split) > 0 and max_tokens_per_unit > 0 and units_per_step > 0 and 0 <= rank < num_devices
        self.accumulate = accumulation(units_per_step, num_devices)
        self.start_step = start_step
        self._units_per_step, self._seed, self._num_devices, self._rank = units_per_step, seed, num_devices, rank
        self._source_lengths, self._target_lengths = split.source_lengths, split.target_lengths
        self._plan = _Plan(self._source_lengths, self._target_lengths, max_tokens_per_unit)
        self._drawn: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_drawn": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def units_in_epoch(self, epoch: int) -> int:
        """Units of an epoch; the same for all epochs (see the head of this file)."""
        return len(self._plan.starts)

    def steps_in_epoch(self, epoch: int) -> int:
        """Updates of the weights in an epoch, the last one perhaps with fewer units."""
        return -(-self.units_in_epoch(epoch) // self._units_per_step)

    def step_units(self, step: int) -> list[Indices]:
        """The units_per_step index arrays of a step, over all ranks; those that an epoch's end leaves over are
        empty.
        """
        assert step >= 0
        epoch, place = divmod(step, self.steps_in_epoch(0))
        with self._lock:  # a pin-memory or logging thread may ask too
            if self._drawn is None or self._drawn[0] != epoch:
                self._drawn = (epoch, *self._plan.epoch(self._seed, epoch))
            _, order, unit_order = self._drawn
        chosen = unit_order[place * self._units_per_step : (place + 1) * self._units_per_step]
        units = [order[self._plan.starts[unit] : self._plan.ends[unit]] for unit in chosen]
        return units + [NO_PAIRS] * (self._units_per_step - len(units))

    def step_specs(self, step: int) -> list[BatchSpec]:
        """This rank's `accumulate` micro-batches of a step."""
        units = self.step_units(step)
        pairs = np.concatenate(units)
        source, target = int(self._source_lengths[pairs].sum()), int(self._target_lengths[pairs].sum())
        if self._num_devices <= self._units_per_step:
            shares = units[self._rank :: self._num_devices]
        else:
            shards = self._num_devices // self._units_per_step
            shares = [
                units[self._rank // shards][self._rank % shards :: shards]
            ]  # every shards-th row: neighbours are alike in length
        return [BatchSpec(share, step, micro, source, target) for micro, share in enumerate(shares)]

    def __iter__(self) -> Iterator[BatchSpec]:
        step = self.start_step
        while True:
            yield from self.step_specs(step)
            step += 1


def accumulation(units_per_step: int, num_devices: int) -> int:
    """Micro-batches of each device in a step: max(1, units_per_step // num_devices). Raises ConfigError when the
    shares are unequal.
    """
    if units_per_step % num_devices and num_devices % units_per_step:
        divisors = [str(n) for n in range(1, units_per_step + 1) if units_per_step % n == 0]
        raise ConfigError(
            f"hardware: {num_devices} devices cannot share optim.units_per_step = {units_per_step} units equally; "
            f"choose {', '.join(divisors)} or a multiple of {units_per_step} devices"
        )
    return max(1, units_per_step // num_devices)


def evaluation_units(split: TokenSplit, max_tokens: int) -> list[Indices]:
    """Every pair once, by length, in units whose rows times the longest source, and longest target, fit max_tokens
    (a longer pair: alone).
    """
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.lexsort((split.target_lengths, split.source_lengths, longer)).astype(np.int64)
    ends = np.flatnonzero(np.diff(longer[order], append=-1)) + 1  # each length its own bucket
    if not len(order):
        return []
    return np.split(order, _cut(ends.tolist(), longer[order[ends - 1]].tolist(), max_tokens)[1:])


def padding_waste(units: Sequence[Indices], split: TokenSplit) -> float:
    """The share of padded source and target tokens that are padding, over units taken whole: 0 is none."""
    real = padded = 0
    for unit in units:
        if len(unit):
            source, target = split.source_lengths[unit], split.target_lengths[unit]
            real += int(source.sum()) + int(target.sum())
            padded += len(unit) * (int(source.max()) + int(target.max()))
    return 1 - real / padded if padded else 0.0


def _pad(pieces: NDArray[np.generic], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows pieces[start : start + length] as (B, longest) int64, PAD behind."""
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    padded = np.full(real.shape, PAD, np.int64)
    padded[real] = pieces[(starts[:, None] + columns)[real]]
    return padded


class TranslationDataset(Dataset[Batch]):
    """Turns a BatchSpec, or the pair indices of an evaluation unit, into a Batch. Workers reopen the memory map for
    themselves.
    """

    def __init__(self, split: TokenSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, item: BatchSpec | Sequence[int] | Indices) -> Batch:
        step = item.step if isinstance(item, BatchSpec) else None
        indices = np.asarray(item.indices if isinstance(item, BatchSpec) else item, np.int64)
        if len(indices):
            source = _pad(*self.split.source_rows(indices))
            pieces, starts, lengths = self.split.target_rows(indices)
            output = _pad(pieces, starts, lengths)
            source_tokens, target_tokens = int(np.count_nonzero(source)), int(lengths.sum())
        else:
            source, output = np.full((1, 1), EOS, np.int64), np.full((1, 1), PAD, np.int64)
            source_tokens = target_tokens = 0
        shifted = np.full_like(output, BOS)
        # Where the output is padding, so is the input: else the shift would leave an EOS behind each shorter target.
        shifted[:, 1:] = np.where(output[:, 1:] == PAD, PAD, output[:, :-1])
        return Batch(
            torch.from_numpy(source),
            torch.from_numpy(shifted),
            torch.from_numpy(output),
            source_tokens,
            target_tokens,
            step,
            item.step_source_tokens if isinstance(item, BatchSpec) else source_tokens,
            item.step_target_tokens if isinstance(item, BatchSpec) else target_tokens,
        )

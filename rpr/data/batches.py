"""Token-budget batches of pairs of like length: a pure function of (seed, step), whatever the number of devices and
workers.

The words, from small to large. A unit is a list of pairs whose padded size fits `max_tokens_per_microbatch` on either
side. A step is `microbatches_per_step` units: what one update of the weights learns from; it belongs to the recipe. A
micro-batch is what one device takes at once. Devices share a step's units (or the rows of a unit), so hardware
changes neither the pairs of a step nor the order of the steps.

How pairs become units is in plan.py. Every epoch puts the same numbers of pairs of the same cells in the same places;
which pairs of a cell go where, and the order of the units, is drawn anew. So all epochs have equally many units, and
finding any step costs one division and one epoch's order.

Shapes: B pairs, S source pieces, T target pieces, N pairs of the split.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from rpr.data.plan import Drawn, Plan, cut
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.errors import ConfigError

Indices = NDArray[np.int64]
DRAWN_AHEAD_FROM = 1_000_000  # pairs; an order of fewer is drawn in a tenth of a second
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


class TrainingBatches(Sampler[BatchSpec]):
    """This rank's micro-batches, without end, from `start_step` on; for DataLoader(TranslationDataset(split),
    sampler=..., batch_size=None).

    Every pair occurs once an epoch; an epoch's last step may have fewer units, and then some ranks get empty shards, so
    that all ranks take equally many micro-batches. Set `start_step` before iterating to resume: no batch before it is
    made. Raises ConfigError when `num_devices` neither divides microbatches_per_step nor is a multiple of it.
    """

    def __init__(
        self,
        split: TokenSplit,
        max_tokens_per_microbatch: int,
        microbatches_per_step: int,
        seed: int,
        num_devices: int = 1,
        rank: int = 0,
        start_step: int = 0,
    ) -> None:
        assert (
            len(split) > 0 and max_tokens_per_microbatch > 0 and microbatches_per_step > 0 and 0 <= rank < num_devices
        )
        self.accumulate = accumulation(microbatches_per_step, num_devices)
        self.start_step = start_step
        self._units_per_step, self._seed, self._num_devices, self._rank = microbatches_per_step, seed, num_devices, rank
        self._source_lengths, self._target_lengths = split.source_lengths, split.target_lengths
        self._plan = Plan(self._source_lengths, self._target_lengths, max_tokens_per_microbatch)
        self._drawn: Drawn | None = None
        self._ahead: tuple[int, Future[Drawn]] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_drawn": None, "_ahead": None}

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
        """The microbatches_per_step index arrays of a step, over all ranks; those that an epoch's end leaves over are
        empty.
        """
        assert step >= 0
        epoch, place = divmod(step, self.steps_in_epoch(0))
        with self._lock:  # a pin-memory or logging thread may ask too
            drawn = self._draw(epoch)
            if 2 * place > self.steps_in_epoch(epoch) and len(drawn.order) >= DRAWN_AHEAD_FROM:
                self._draw_ahead(epoch + 1)
        chosen = drawn.unit_order[place * self._units_per_step : (place + 1) * self._units_per_step]
        units = [drawn.order[self._plan.starts[unit] : self._plan.ends[unit]].astype(np.int64) for unit in chosen]
        return units + [NO_PAIRS] * (self._units_per_step - len(units))

    def _draw(self, epoch: int) -> Drawn:
        if self._drawn is None or self._drawn.epoch != epoch:
            self._drawn = None  # its memory is free for the new one
            ahead, self._ahead = self._ahead, None
            self._drawn = ahead[1].result() if ahead and ahead[0] == epoch else self._plan.epoch(self._seed, epoch)
        return self._drawn

    def _draw_ahead(self, epoch: int) -> None:
        """Draw in a thread, so that the steps between two epochs need not wait (3 seconds for 36 million pairs)."""
        if self._ahead is None or self._ahead[0] != epoch:
            executor = ThreadPoolExecutor(1)
            self._ahead = epoch, executor.submit(self._plan.epoch, self._seed, epoch)
            executor.shutdown(wait=False)

    def padding_waste(self) -> float:
        """As the function padding_waste, over all units of the first epoch; other epochs differ in its last digits."""
        with self._lock:
            order = self._draw(0).order
        return self._plan.padding_waste(order, self._source_lengths, self._target_lengths)

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


def accumulation(microbatches_per_step: int, num_devices: int) -> int:
    """Micro-batches of each device in a step: max(1, microbatches_per_step // num_devices). Raises ConfigError when the
    shares are unequal.
    """
    if microbatches_per_step % num_devices and num_devices % microbatches_per_step:
        divisors = [str(n) for n in range(1, microbatches_per_step + 1) if microbatches_per_step % n == 0]
        raise ConfigError(
            f"hardware: {num_devices} devices cannot share optim.microbatches_per_step = {microbatches_per_step} "
            "equally; "
            f"choose {', '.join(divisors)} or a multiple of {microbatches_per_step} devices"
        )
    return max(1, microbatches_per_step // num_devices)


def evaluation_units(split: TokenSplit, max_tokens: int) -> list[Indices]:
    """Every pair once, by length, in units whose rows times the longest source, and longest target, fit max_tokens
    (a longer pair: alone).
    """
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.lexsort((split.target_lengths, split.source_lengths, longer)).astype(np.int64)
    ends = np.flatnonzero(np.diff(longer[order], append=-1)) + 1  # each length its own bucket
    if not len(order):
        return []
    return np.split(order, cut(ends.tolist(), longer[order[ends - 1]].tolist(), max_tokens)[1:])


def padding_waste(units: Sequence[Indices], split: TokenSplit) -> float:
    """The share of padded source and target tokens that are padding, over units taken whole: 0 is none."""
    real = padded = 0
    for unit in units:
        if len(unit):
            source, target = split.source_lengths[unit], split.target_lengths[unit]
            real += int(source.sum()) + int(target.sum())
            padded += len(unit) * (int(source.max()) + int(target.max()))
    return 1 - real / padded if padded else 0.0


def _pad(pieces: NDArray[np.generic], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that stand one behind the other as (B, longest) int64, PAD behind each."""
    real = np.arange(int(lengths.max())) < lengths[:, None]
    padded = np.full(real.shape, PAD, np.int64)
    padded[real] = pieces
    return padded


class TranslationDataset(Dataset[Batch]):
    """Turns a BatchSpec, or the pair indices of an evaluation unit, into a Batch."""

    def __init__(self, split: TokenSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, item: BatchSpec | Sequence[int] | Indices) -> Batch:
        step = item.step if isinstance(item, BatchSpec) else None
        indices = np.asarray(item.indices if isinstance(item, BatchSpec) else item).tolist()
        if indices:
            pieces, lengths = self.split.source_rows(indices)
            source, source_tokens = _pad(pieces, lengths), len(pieces)
            pieces, lengths = self.split.target_rows(indices)
            output, target_tokens = _pad(pieces, lengths), len(pieces)
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

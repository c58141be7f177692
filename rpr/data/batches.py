"""Token-budget batches of pairs of similar length: a pure function of (seed, step), whatever the number of devices and
workers.

A microbatch is a list of pairs whose padded size fits `max_tokens_per_microbatch` on each side, or on both together if
they are `joined` in one row. A step is one weight update from `microbatches_per_step` microbatches; this is part of the
recipe. A shard is what one device processes at once: a whole microbatch, or every n-th row of one when there are more
devices than microbatches. So hardware changes neither the pairs of a step nor the order of the steps.

plan.py groups pairs into microbatches. The microbatch boundaries are the same in every epoch; the pairs are shuffled
within their cells, and the microbatches are shuffled, for each epoch. So every epoch has the same number of
microbatches, and seeking to a step costs one division and one epoch's shuffle.

Shapes: B pairs, S source tokens, T target tokens, N pairs of the split.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from rpr.data.plan import EpochOrder, Plan, microbatch_starts
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.data.windows import Windows

Indices = NDArray[np.int64]
NO_PAIRS: Indices = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class BatchSpec:
    """One shard of one rank, before its tokens are read. `indices` is empty when the last step of an epoch has too few
    microbatches.

    `step_source_tokens` and `step_target_tokens` count the tokens (EOS included, no padding) of the whole step over all
    ranks; the loss is divided by them.
    """

    indices: Indices
    step_source_tokens: int
    step_target_tokens: int


class Batch(NamedTuple):
    """Padded tokens of one shard, int64, PAD = 0. The counts include EOS and exclude padding.

    The decoder reads target_input_BT (BOS, then the target without its last token) and predicts target_output_BT (the
    target with EOS). A window of documents is a target without a source (S = 0), and its input starts with the token
    before it. Outside training the step's token counts are those of the batch. A shard without pairs is one
    row: source EOS, target output PAD only.
    """

    source_BS: torch.Tensor
    target_input_BT: torch.Tensor
    target_output_BT: torch.Tensor
    num_target_tokens: int
    step_source_tokens: int
    step_target_tokens: int


class TrainingBatches(Sampler[BatchSpec]):
    """An endless stream of this rank's shards, starting at `start_step`; for DataLoader(TranslationDataset(split),
    sampler=..., batch_size=None).

    Every pair occurs once per epoch. If the last step of an epoch has fewer microbatches, some ranks get empty shards,
    so that all ranks process the same number. Batches before `start_step` are not computed.
    `num_devices` divides microbatches_per_step or is a multiple of it.
    """

    def __init__(
        self,
        split: TokenSplit | Windows,
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
        self._plan = Plan(split.source_lengths, split.target_lengths, max_tokens_per_microbatch, joined=joined)
        self._epoch_order: EpochOrder | None = None
        self._lock = threading.Lock()

    @property
    def steps_per_epoch(self) -> int:
        """The number of weight updates; the last one may have fewer microbatches."""
        return -(-len(self._plan.starts) // self._microbatches_per_step)

    def step_microbatches(self, step: int) -> list[Indices]:
        """The pair indices of each of the step's microbatches_per_step microbatches, over all ranks; at the end of an
        epoch some may be empty.
        """
        assert step >= 0
        epoch, place = divmod(step, self.steps_per_epoch)
        shuffled = self._order_of(epoch)
        first = place * self._microbatches_per_step
        chosen = shuffled.microbatch_order[first : first + self._microbatches_per_step]
        starts, ends = self._plan.starts, self._plan.ends
        microbatches = [shuffled.pair_order[starts[index] : ends[index]].astype(np.int64) for index in chosen]
        return microbatches + [NO_PAIRS] * (self._microbatches_per_step - len(microbatches))

    def _order_of(self, epoch: int) -> EpochOrder:
        with self._lock:  # also called by pin-memory and logging threads
            if self._epoch_order is None or self._epoch_order.epoch != epoch:
                self._epoch_order = None  # free its memory before the next one is allocated
                order = self._plan.epoch(self._seed, epoch)  # 3 s for 36 million pairs
                if self._longest_first:
                    later = order.microbatch_order < len(self._plan.starts) - self._longest_first
                    order = order._replace(microbatch_order=order.microbatch_order[np.argsort(later, kind="stable")])
                self._epoch_order = order
            return self._epoch_order

    def padding_waste(self) -> float:
        """The fraction, 0 to 1, of the first epoch's source and target positions that are padding; other epochs differ
        only in the last digits.
        """
        return self._plan.padding_waste(self._order_of(0).pair_order)

    def step_specs(self, step: int) -> list[BatchSpec]:
        """This rank's shards of a step."""
        microbatches = self.step_microbatches(step)
        pairs = np.concatenate(microbatches)
        source, target = (int(lengths[pairs].sum()) for lengths in self._plan.lengths)
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


def evaluation_batches(split: TokenSplit | Windows, max_tokens: int, *, joined: bool = False) -> list[Indices]:
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
    """Concatenated rows as a (B, longest) int64 array, padded on the right, and the number of their tokens."""
    real = np.arange(int(lengths.max())) < lengths[:, None]
    padded = np.full(real.shape, PAD, np.int64)
    padded[real] = pieces
    return padded, len(pieces)


class TranslationDataset(Dataset[Batch]):
    """Turns a BatchSpec, or the pair indices of an evaluation batch, into a Batch."""

    def __init__(self, split: TokenSplit | Windows) -> None:
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
        )

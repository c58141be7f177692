"""Whether a run was still learning when it ended, and whether it learned the order of words, by its validation losses.

Still learning: the validation loss fell by more than 1% over the last tenth of the steps, on average over the seeds of
a variant, whose mean a table shows: the loss of one seed goes up and down by 1% between two validations. On a task that
is learned exactly the loss halves again and again near zero, which hardly changes an output: a fall by less than 0.005
nats a piece is none (of an answer of 20 pieces 0.1 nats: at 95% exact match some answers may still turn right). The
loss is interpolated linearly between validations, so the rule works with any validation interval; without one before
that tenth only such a fall since the first is known. On Multi30k, model=tiny, every variant still fell by 2.3 to 4.3%
after 1,500 post-norm steps, and none by more than 0.9% after 5,000 pre-norm steps.

Not learned: the loss at the end is not more than 1% below that of the same model without positions. On Multi30k,
model=tiny, 5,000 steps, SHAPE's is 0.6% above it, and that of every other scheme with an order at least 14% below
(k = 0 has none to learn).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpr.records.record import Record

MOST_FALL = 0.01  # as a share of the loss
LEAST_NATS = 0.005  # 1% of a loss of 0.5
LAST_PART = 0.1  # as a share of the steps
LEAST_GAIN = 0.01  # over a model without positions, as a share of its loss
LEARNING_RULE = (
    f"still learning: the validation loss, on average over the seeds, fell by more than {MOST_FALL:.0%} (and "
    f"{LEAST_NATS} nats) over the last tenth of the steps"
)

LEARNED_RULE = (
    f"not learned: the validation loss, on average over the seeds, is not more than {LEAST_GAIN:.0%} below that of the "
    "same model without positions; positions without order, as k = 0, have none to learn"
)

RunKey = tuple[str, int, str, str]


def run_key(record: Record) -> RunKey:
    """A key that is unique to a run within a report."""
    return (record.run_id, record.seed, record.hardware, record.started)


@dataclass(frozen=True)
class Learning:
    """How the validation loss of one run, or on average of several, ended."""

    fall: float  # over the last tenth of training, as a share
    nats: float  # the same fall, in nats per piece
    steps: int
    loss: float  # the last

    @property
    def falling(self) -> bool:
        return self.fall > MOST_FALL and self.nats > LEAST_NATS


def mean_over_seeds(of_seeds: Sequence[Learning]) -> Learning | None:
    """The mean fall and loss of the seeds of one variant; None without any."""
    if not of_seeds:
        return None
    ends = ((seed.fall, seed.nats, seed.loss) for seed in of_seeds)
    fall, nats, loss = map(statistics.fmean, zip(*ends, strict=True))
    return Learning(fall, nats, max(seed.steps for seed in of_seeds), loss)


def learning_of(record: Record, losses: Mapping[int, float]) -> Learning | None:
    """How a run's validation losses, by ascending step, ended; None if that is undetermined."""
    if not losses:
        return None
    steps = sorted(losses)
    last, final = steps[-1], losses[steps[-1]]
    before = float(np.interp(start := last * (1 - LAST_PART), steps, [losses[step] for step in steps]))
    if before <= 0:
        return None
    ended = Learning((before - final) / before, before - final, record.steps or last, final)
    return ended if steps[0] <= start or ended.falling else None

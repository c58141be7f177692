"""Scores by length: how a model does on sentences longer than those it was trained on.

Length is that of data.max_length: source tokens, EOS included; for a generated task it is the length that its splits
are defined by (its sources may all be equally long). All scored test splits are pooled, since a bucket of one split is
often too small. The longest training length is always a bucket edge, so no bucket mixes seen and unseen lengths.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rpr.data.cache import PreparedData
from rpr.data.generated import GeneratedTask
from rpr.records.scores import EXACT_MATCH, LengthBucket, LengthScore
from rpr.scoring.metrics import Metric
from rpr.scoring.significance import interval
from rpr.scoring.statistics import pool

METRICS = ("sacrebleu", "chrf", EXACT_MATCH)


def task_lengths(task: GeneratedTask, data: PreparedData, split: str) -> NDArray[np.int64]:
    """(N,) lengths of the examples of a split, in the task's unit."""
    return np.array([task.length(*pair) for pair in zip(*data.text(split), strict=True)], np.int64)


def by_length(
    lengths: Sequence[NDArray[np.integer]],
    scored: Sequence[Sequence[Metric]],
    edges: Iterable[int],
    longest_training_source: int,
    samples: int,
) -> tuple[LengthBucket, ...]:
    """The scores of each non-empty bucket, up to and including each edge and beyond the last one, by those of METRICS
    that were computed. `lengths`: per split, the length of each example. `scored`: per split, its metrics, the same for
    all splits. `samples`: bootstrap samples; 0: no intervals.
    """
    all_lengths = np.concatenate(lengths)
    names = [metric.name for metric in scored[0] if metric.name in METRICS]
    pooled = {name: pool([metric.statistics for split in scored for metric in split if metric.name == name])
              for name in names}  # fmt: skip
    assert all(len(own) == len(all_lengths) for own in pooled.values()), "a length for each scored sentence"
    buckets = []
    ends = sorted({*edges, longest_training_source})
    for before, longest in zip([0, *ends], [*ends, None], strict=True):
        mask = (all_lengths > before) & (all_lengths <= (longest or all_lengths.max()))
        if not mask.any():
            continue
        parts = {name: statistics.select(mask) for name, statistics in pooled.items()}
        buckets.append(
            LengthBucket(
                shortest=before + 1,
                longest=longest,
                beyond_training=before >= longest_training_source,
                num_sentences=int(mask.sum()),
                scores=tuple(
                    LengthScore(metric=name, score=part.score, interval=interval(part, samples))
                    for name, part in parts.items()
                ),
            )
        )
    return tuple(buckets)

"""Scores by length: where a model fails on sentences longer than those it was trained on.

Length is what data.max_length counts: pieces of the source, EOS included; of a generated task it is the length that the
task is cut by (its sources may all be equally long). All scored test splits are taken together, since a bucket of one
of them is often too small. The longest length of training is an edge of its own, so that no bucket has sentences from
both sides of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rpr.data.cache import PreparedData
from rpr.metrics.bleu import Metric
from rpr.metrics.significance import interval
from rpr.metrics.statistics import pooled
from rpr.records.scores import EXACT_MATCH, LengthBucket, LengthScore

METRICS = ("sacrebleu", "chrf", EXACT_MATCH)
TASK_UNITS = {
    **dict.fromkeys(("copy", "reverse", "duplicate"), "symbols of the input"),
    "addition": "digits of the longer number",
    "scan": "actions of the output",
}


def task_lengths(kind: str, data: PreparedData, split: str) -> NDArray[np.int64]:
    """(N,) lengths of the examples of a split, in the unit of the task."""
    sources, references = data.text(split)
    if kind == "addition":
        lengths = [max(len(str(int(number.replace(" ", "")))) for number in one.split(" + ")) for one in sources]
    else:
        lengths = [len(one.split()) for one in (references if kind == "scan" else sources)]
    return np.array(lengths, np.int64)


def bounds(edges: Iterable[int], longest_training_source: int) -> list[tuple[int, int | None]]:
    """First and last length of each bucket, None for the last one's: up to each edge, and all beyond."""
    ends = sorted({*edges, longest_training_source})
    return [(before + 1, end) for before, end in zip([0, *ends], [*ends, None], strict=False)]


def by_length(
    lengths: Sequence[NDArray[np.integer]],
    scored: Sequence[Sequence[Metric]],
    edges: Iterable[int],
    longest_training_source: int,
    samples: int,
) -> tuple[LengthBucket, ...]:
    """Those of METRICS that were computed, of each bucket that has a sentence.

    Args:
        lengths: of each split, the length of each example.
        scored: of each split, its metrics, the same ones of all splits.
        samples: of the bootstrap; 0: no intervals.
    """
    pieces = np.concatenate(lengths)
    names = [metric.name for metric in scored[0] if metric.name in METRICS]
    whole = {name: pooled([metric.counts for split in scored for metric in split if metric.name == name])
             for name in names}  # fmt: skip
    assert all(len(counts) == len(pieces) for counts in whole.values()), "a length for each scored sentence"
    buckets = []
    for shortest, longest in bounds(edges, longest_training_source):
        chosen = (pieces >= shortest) & (pieces <= (pieces.max() if longest is None else longest))
        if not chosen.any():
            continue
        parts = {name: counts.of(chosen) for name, counts in whole.items()}
        buckets.append(
            LengthBucket(
                shortest=shortest,
                longest=longest,
                beyond_training=shortest > longest_training_source,
                num_sentences=int(chosen.sum()),
                scores=tuple(
                    LengthScore(metric=name, score=part.score, interval=interval(part, samples) if samples else None)
                    for name, part in parts.items()
                ),
            )
        )
    return tuple(buckets)

"""What W&B shows of a finished run besides its curves: tables of its scores and translations, and charts in which W&B
overlays the runs of a workspace. All of it is read from the run's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rpr.records.position import position_of
from rpr.records.record import Record
from rpr.records.scores import (
    EXACT_MATCH,
    HEADLINE_METRIC,
    METRIC_NAMES,
    SOURCE_UNIT,
    SPLITS,
    ByContext,
    ByLength,
    ContextScore,
    Interval,
    Score,
    pooled,
    scored_items,
)
from rpr.tracking.naming import CLIP_DISTANCE

SCORES = "results/scores"
LENGTHS = "results/bleu_by_length"
TRANSLATIONS = "results/translations"
CLIP_DISTANCE_CHART = "charts/bleu_by_k"
LENGTH_CHART = "charts/bleu_by_length"
CONTEXTS = "results/bits_by_context"
CONTEXT_CHARTS = {"separate": "charts/bits_by_context", "sliding": "charts/bits_by_context_sliding"}
MAX_TRANSLATIONS = 20
FROM_LENGTH = "source length from"
HEADLINE = METRIC_NAMES[HEADLINE_METRIC]


def tables(record: Record, run_dir: Path) -> dict[str, Any]:
    """W&B's tables and charts of a finished run, by name; those for which the record has no values are omitted.

    Raises:
        OSError, ValueError: the translation files next to the record cannot be read, or differ in length.
    """
    named: dict[str, Any] = {}
    if record.scores:
        named[SCORES] = _scores(record)
        split = next((name for name in SPLITS if record.score(name)), record.scores[0].split)
        if record.examples == "pairs":
            named[TRANSLATIONS] = _translations(run_dir, split)
        headline = record.score(split)
        clip_distance = position_of(record).clip_distance
        if headline is not None and clip_distance is not None:
            named[CLIP_DISTANCE_CHART] = _over_clip_distance(clip_distance, headline)
    if record.by_length is not None:
        named[LENGTHS] = _lengths(record.by_length)
        named[LENGTH_CHART] = _over_lengths(record.by_length)
    if record.by_context:
        first = record.by_context[0]
        named[CONTEXTS] = _contexts(first)
        for windows, name in CONTEXT_CHARTS.items():
            if scores := [score for score in first.scores if score.windows == windows]:
                named[name] = _over_contexts(scores, f"Bits per byte by context, {windows} windows, {first.split}")
    return named


def _scores(record: Record) -> Any:
    import wandb

    items = scored_items(record.scores)
    table = wandb.Table(
        columns=["split", "test set", "metric", "score", "low", "high", items, "checkpoint", "signature"]
    )
    for score in record.scores:
        table.add_data(
            score.split, score.test_set, score.metric, score.score, *_ends(score.interval), score.num_sentences,
            score.checkpoint, score.signature,
        )  # fmt: skip
    return table


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _translations(run_dir: Path, split: str) -> Any:
    """At most MAX_TRANSLATIONS sentences of a split, evenly spaced, the same ones in every run on the same corpus."""
    import wandb

    table = wandb.Table(columns=["split", "line", "source", "reference", "hypothesis"])
    texts = [_lines(run_dir / f"{split}.{kind}.txt") for kind in ("sources", "references", "hypotheses")]
    sentences = list(zip(*texts, strict=True))
    for index in evenly_spaced(len(sentences), MAX_TRANSLATIONS):
        table.add_data(split, index + 1, *sentences[index])
    return table


def evenly_spaced(count: int, at_most: int) -> list[int]:
    """At most `at_most` of `count` indices, ascending and distinct, including the first and (of several) the last."""
    if count <= at_most:
        return list(range(count))
    return [round(number * (count - 1) / (at_most - 1)) for number in range(at_most)]


def _lines(path: Path) -> list[str]:
    """The lines of a translation file; only a line feed ends a line."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def _over_clip_distance(clip_distance: int, score: Score) -> Any:
    """One point; W&B draws the points of all runs of a workspace in one chart."""
    import wandb

    table = wandb.Table(columns=[CLIP_DISTANCE, HEADLINE], data=[[clip_distance, score.score]])
    title = f"BLEU against k, {score.split}"
    return wandb.plot.scatter(table, CLIP_DISTANCE, HEADLINE, title=title, split_table=True)


def _lengths(by_length: ByLength) -> Any:
    import wandb

    table = wandb.Table(
        columns=["source length", "to", "beyond training", "sentences", "metric", "score", "low", "high"]
    )
    for bucket in by_length.buckets:
        for score in bucket.scores:
            table.add_data(
                bucket.label, bucket.longest, bucket.beyond_training, bucket.num_sentences, score.metric, score.score,
                *_ends(score.interval),
            )  # fmt: skip
    return table


def _over_lengths(by_length: ByLength) -> Any:
    """BLEU (for a generated task, exact match) over each bucket's lower bound: the last bucket has no upper bound, and
    so no midpoint.
    """
    import wandb

    metric, name = (
        (HEADLINE_METRIC, "BLEU") if by_length.unit == SOURCE_UNIT else (EXACT_MATCH, METRIC_NAMES[EXACT_MATCH])
    )
    points = [
        [bucket.shortest, score.score]
        for bucket in by_length.buckets
        for score in bucket.scores
        if score.metric == metric
    ]
    table = wandb.Table(columns=[FROM_LENGTH, METRIC_NAMES[metric]], data=points)
    title = f"{name} by {by_length.axis} ({by_length.unit}), {pooled(by_length.splits)}"
    return wandb.plot.line(table, FROM_LENGTH, METRIC_NAMES[metric], title=title, split_table=True)


def _contexts(by_context: ByContext) -> Any:
    import wandb

    table = wandb.Table(columns=["windows", "context", "beyond training", "bytes", "bits per byte", "low", "high"])
    for score in by_context.scores:
        beyond = score.length > by_context.training_length
        table.add_data(
            score.windows, score.length, beyond, score.num_bytes, score.bits_per_byte, *_ends(score.interval)
        )
    return table


def _over_contexts(scores: list[ContextScore], title: str) -> Any:
    import wandb

    table = wandb.Table(columns=["context", "bits per byte"], data=[[one.length, one.bits_per_byte] for one in scores])
    return wandb.plot.line(table, "context", "bits per byte", title=title, split_table=True)

"""What W&B shows of a finished run beside its curves: tables of its scores and translations, and charts in which W&B
lays the runs of a workspace over each other. All of it comes from the run's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rpr.records.position import position_of
from rpr.records.record import Record
from rpr.records.scores import EXACT_MATCH, HEADLINE_METRIC, METRIC_NAMES, SOURCE_UNIT, SPLITS, ByLength, Score, pooled
from rpr.tracking.naming import CLIP_DISTANCE

SCORES = "results/scores"
LENGTHS = "results/bleu_by_length"
TRANSLATIONS = "results/translations"
CLIP_DISTANCE_CHART = "charts/bleu_by_k"
LENGTH_CHART = "charts/bleu_by_length"
MAX_TRANSLATIONS = 20
FROM_LENGTH = "source length from"
HEADLINE = METRIC_NAMES[HEADLINE_METRIC]


def tables(record: Record, run_dir: Path) -> dict[str, Any]:
    """W&B's tables and charts of a finished run, by their names; what the record does not have is left out.

    Raises:
        OSError, ValueError: the translations beside the record cannot be read, or are not of the same number.
    """
    found: dict[str, Any] = {}
    if record.scores:
        found[SCORES] = _scores(record)
        split = next((name for name in SPLITS if record.score(name)), record.scores[0].split)
        found[TRANSLATIONS] = _translations(run_dir, split)
        headline = record.score(split)
        clip_distance = position_of(record).clip_distance
        if headline is not None and clip_distance is not None:
            found[CLIP_DISTANCE_CHART] = _over_clip_distance(clip_distance, headline)
    if record.by_length is not None:
        found[LENGTHS] = _lengths(record.by_length)
        found[LENGTH_CHART] = _over_lengths(record.by_length)
    return found


def _scores(record: Record) -> Any:
    import wandb

    table = wandb.Table(
        columns=["split", "test set", "metric", "score", "low", "high", "sentences", "checkpoint", "signature"]
    )
    for score in record.scores:
        low, high = (None, None) if score.interval is None else (score.interval.low, score.interval.high)
        table.add_data(
            score.split, score.test_set, score.metric, score.score, low, high, score.num_sentences, score.checkpoint,
            score.signature,
        )  # fmt: skip
    return table


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
    """Indices among `count`, ascending and distinct, the first and (of several) the last of them included."""
    if count <= at_most:
        return list(range(count))
    return [round(number * (count - 1) / (at_most - 1)) for number in range(at_most)]


def _lines(path: Path) -> list[str]:
    """The lines of a file of translations; only a line feed ends one."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def _over_clip_distance(clip_distance: int, score: Score) -> Any:
    """One point; W&B draws those of all runs of a workspace into one chart."""
    import wandb

    table = wandb.Table(columns=[CLIP_DISTANCE, HEADLINE], data=[[clip_distance, score.score]])
    title = f"BLEU against k, {score.split}"
    return wandb.plot.scatter(table, CLIP_DISTANCE, HEADLINE, title=title, split_table=True)


def _lengths(found: ByLength) -> Any:
    import wandb

    table = wandb.Table(
        columns=["source length", "to", "beyond training", "sentences", "metric", "score", "low", "high"]
    )
    for bucket in found.buckets:
        for score in bucket.scores:
            low, high = (None, None) if score.interval is None else (score.interval.low, score.interval.high)
            table.add_data(
                bucket.label, bucket.longest, bucket.beyond_training, bucket.num_sentences, score.metric, score.score,
                low, high,
            )  # fmt: skip
    return table


def _over_lengths(found: ByLength) -> Any:
    """BLEU (of a generated task: exact match) over the length from which each bucket begins: the last one has no end,
    and no middle.
    """
    import wandb

    metric, name = (HEADLINE_METRIC, "BLEU") if found.unit == SOURCE_UNIT else (EXACT_MATCH, METRIC_NAMES[EXACT_MATCH])
    points = [
        [bucket.shortest, score.score] for bucket in found.buckets for score in bucket.scores if score.metric == metric
    ]
    table = wandb.Table(columns=[FROM_LENGTH, METRIC_NAMES[metric]], data=points)
    title = f"{name} by {found.axis} ({found.unit}), {pooled(found.splits)}"
    return wandb.plot.line(table, FROM_LENGTH, METRIC_NAMES[metric], title=title, split_table=True)

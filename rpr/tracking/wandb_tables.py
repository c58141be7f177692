"""What W&B shows of a finished run besides its curves: tables of its scores and translations, and charts in which W&B
overlays the runs of a workspace. All of it is read from the run's folder.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rpr.kinds import TEXT
from rpr.records.files import evenly_spaced, read_translations
from rpr.records.position import position_of
from rpr.records.record import RECORD_NAME, Record
from rpr.records.scores import (
    HEADLINE_METRIC,
    METRIC_NAMES,
    SPLITS,
    Interval,
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


def tables(record: Record, run_dir: Path) -> dict[str, Any]:
    """W&B's tables and charts of a finished run, by name; those for which the record has no values are omitted. Raises
    DataError if the translation files next to the record cannot be read, or differ in length.
    """
    return _scores(record, run_dir) | _by_length(record) | _by_context(record)


def _scores(record: Record, run_dir: Path) -> dict[str, Any]:
    """The translations are evenly spaced, the same ones in every run on the same corpus."""
    if not record.scores:
        return {}
    named, items = {}, scored_items(record.scores)
    named[SCORES] = _table(
        ("split", "test set", "metric", "score", "low", "high", items, "checkpoint", "signature"),
        (
            (score.split, score.test_set, score.metric, score.score, *_ends(score.interval), score.num_sentences,
             score.checkpoint, score.signature)
            for score in record.scores
        ),
    )  # fmt: skip
    split = next((name for name in SPLITS if record.score(name)), record.scores[0].split)
    if record.kind is not TEXT:
        sentences = enumerate(zip(*read_translations(run_dir / RECORD_NAME, split), strict=True), start=1)
        shown = [(split, line, *texts) for line, texts in evenly_spaced(list(sentences), MAX_TRANSLATIONS)]
        named[TRANSLATIONS] = _table(("split", "line", "source", "reference", "hypothesis"), shown)
    k, headline = position_of(record).clip_distance, record.score(split)
    if headline is not None and k is not None:
        point, title = [(k, headline.score)], f"BLEU against k, {split}"
        named[CLIP_DISTANCE_CHART] = _chart("scatter", CLIP_DISTANCE, METRIC_NAMES[HEADLINE_METRIC], point, title)
    return named


def _by_length(record: Record) -> dict[str, Any]:
    """BLEU (for a generated task, exact match) over each bucket's lower bound: the last one has no upper bound."""
    if (by_length := record.by_length) is None:
        return {}
    scores = [(bucket, score) for bucket in by_length.buckets for score in bucket.scores]
    columns = (by_length.axis, "to", "beyond training", "sentences", "metric", "score", "low", "high")
    rows = (
        (bucket.label, bucket.longest, bucket.beyond_training, bucket.num_sentences, score.metric, score.score,
         *_ends(score.interval))
        for bucket, score in scores
    )  # fmt: skip
    metric, name = record.kind.metric, record.kind.heading
    title = f"{name} by {by_length.axis} ({by_length.unit}), {pooled(by_length.splits)}"
    points = [(bucket.shortest, score.score) for bucket, score in scores if score.metric == metric]
    chart = _chart("line", f"{by_length.axis} from", METRIC_NAMES[metric], points, title)
    return {LENGTHS: _table(columns, rows), LENGTH_CHART: chart}


def _by_context(record: Record) -> dict[str, Any]:
    """Of the first split that was scored so."""
    if not record.by_context:
        return {}
    first, *_ = record.by_context
    columns = ("windows", "context", "beyond training", "bytes", "bits per byte", "low", "high")
    rows = (
        (score.windows, score.length, score.length > first.training_length, score.num_bytes, score.bits_per_byte,
         *_ends(score.interval))
        for score in first.scores
    )  # fmt: skip
    named = {CONTEXTS: _table(columns, rows)}
    for windows, name in CONTEXT_CHARTS.items():
        if points := [(score.length, score.bits_per_byte) for score in first.scores if score.windows == windows]:
            title = f"Bits per byte by context, {windows} windows, {first.split}"
            named[name] = _chart("line", "context", "bits per byte", points, title)
    return named


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    import wandb

    return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


def _chart(kind: Literal["scatter", "line"], x: str, y: str, points: Sequence[tuple[float, float]], title: str) -> Any:
    """Points of this run; W&B draws those of all runs of a workspace in one chart."""
    import wandb

    return getattr(wandb.plot, kind)(_table((x, y), points), x, y, title=title, split_table=True)

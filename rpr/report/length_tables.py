"""Scores by source length, beside the table of the same runs: a row per variant, a column per bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rpr.records.record import Record
from rpr.records.scores import METRIC_NAMES, ByLength, LengthBucket, LengthScore
from rpr.report.rows import Cell, LengthColumn, LengthTable, Row, Table, one_per_seed, summarise

FEW = 10  # a bucket of fewer sentences is shown, and flagged
_METRICS = ("sacrebleu", "chrf")


def length_tables(table: Table) -> tuple[LengthTable, ...]:
    """sacreBLEU and chrF by source length of a table's rows; empty where no finished run has them."""
    found = [run.by_length for row in table.rows for run in _finished(row) if run.by_length is not None]
    if not found:
        return ()
    columns = _columns(found)
    return tuple(
        LengthTable(
            metric=metric,
            splits=found[0].splits,
            longest_training_source=found[0].longest_training_source,
            columns=columns,
            cells={row.label: tuple(_cell(row, metric, column) for column in columns) for row in table.rows},
            notes=_notes(found, metric, columns),
        )
        for metric in _METRICS
        if any(score.metric == metric for one in found for bucket in one.buckets for score in bucket.scores)
    )


def _finished(row: Row) -> list[Record]:
    return one_per_seed([run for run in row.records if run.status == "finished"])


def _columns(found: Sequence[ByLength]) -> tuple[LengthColumn, ...]:
    buckets = {(bucket.shortest, bucket.longest or 0): bucket for one in found for bucket in one.buckets}
    columns = []
    for key, bucket in sorted(buckets.items()):
        counts = {other.num_sentences for one in found for other in one.buckets if _key(other) == key}
        columns.append(
            LengthColumn(
                bucket.shortest, bucket.longest, bucket.beyond_training, counts.pop() if len(counts) == 1 else None
            )
        )
    return tuple(columns)


def _key(bucket: LengthBucket | LengthColumn) -> tuple[int, int]:
    return (bucket.shortest, bucket.longest or 0)


def _cell(row: Row, metric: str, column: LengthColumn) -> Cell:
    finished = _finished(row)
    known = [run.by_length for run in finished if run.by_length is not None]
    if not known:
        reason = "not scored by source length" if finished else "; ".join(str(run.outcome) for run in row.records)
        return Cell(None, reason=reason)
    scores = [
        (one, bucket, score) for one in known if (pair := _score(one, metric, column)) for bucket, score in [pair]
    ]
    if not scores:
        return Cell(None, reason="other buckets of lengths")
    if len({(*_way(one, metric), bucket.num_sentences) for one, bucket, _ in scores}) > 1:
        return Cell(None, reason="the seeds were scored in different ways, so they have no mean")
    cell = summarise([score.score for _, _, score in scores])
    return replace(cell, interval=scores[0][2].interval) if len(scores) == 1 else cell


def _score(one: ByLength, metric: str, column: LengthColumn) -> tuple[LengthBucket, LengthScore] | None:
    for bucket in one.buckets:
        if _key(bucket) == _key(column):
            return next(((bucket, score) for score in bucket.scores if score.metric == metric), None)
    return None


def _way(one: ByLength, metric: str) -> tuple[object, ...]:
    precision = f", {one.precision}" if one.precision else ""
    return (
        f"{one.signatures.get(metric)}, beam {one.beam_size}, length penalty {one.length_penalty:g}{precision}",
        one.splits,
        one.test_sets,
        one.longest_training_source,
    )


def _notes(found: Sequence[ByLength], metric: str, columns: Sequence[LengthColumn]) -> tuple[str, ...]:
    first = found[0]
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    together = ", all together" if len(first.splits) > 1 else ""
    notes = [f"lengths are {first.unit}; {sets}{together}"]
    ways = sorted({str(_way(one, metric)[0]) for one in found})
    if len({_way(one, metric) for one in found}) > 1:
        notes.append("NOT COMPARABLE: the rows were scored in different ways, on different sets or trained to others")
    notes += [f"{METRIC_NAMES[metric]}: {way}" for way in ways]
    if any(column.beyond_training for column in columns):
        notes.append(
            f"* longer than any source of the training data, whose longest has {first.longest_training_source}"
        )
    few = [column.label for column in columns if column.num_sentences is not None and column.num_sentences < FEW]
    if few:
        notes.append(f"fewer than {FEW} sentences, which say little: {', '.join(few)}")
    return tuple(notes)

"""Scores by length: a column for each bucket of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rpr.records.measurement import Measurement
from rpr.records.scores import (
    METRIC_NAMES,
    ByLength,
    LengthBucket,
    how_scored_by_length,
    pooled,
    search_in_words,
)
from rpr.report.groups import Group, Variant
from rpr.tables.grid import DASH, Cell, Column, Grid, Note

FEW = 10  # buckets with fewer sentences are flagged


def buckets(group: Group) -> dict[LengthBucket, str]:
    """Every bucket of the group's finished runs, the shortest sources first, with its number of sentences: a dash if
    that differs between runs.
    """
    by_key: dict[tuple[int, int], list[LengthBucket]] = {}
    for bucket in (bucket for by_length in _scored(group) for bucket in by_length.buckets):
        by_key.setdefault(bucket.key, []).append(bucket)
    counts = {key: {bucket.num_sentences for bucket in alike} for key, alike in by_key.items()}
    return {by_key[key][-1]: f"{count:,}" if not more else DASH for key, (count, *more) in sorted(counts.items())}


def length_grid(group: Group) -> Grid | None:
    """The group's metric by length; None if no finished run has such scores."""
    found, metric = _scored(group), group.metric
    if not any(score.metric == metric for one in found for bucket in one.buckets for score in bucket.scores):
        return None
    shown = buckets(group)

    def cell(variant: Variant | None, bucket: LengthBucket) -> Cell | Measurement:
        """The score of a variant or, for None, the number of sentences."""
        if variant is not None:
            return length_score(variant, metric, bucket)
        differ = ("the runs were scored on different numbers of sentences",) if shown[bucket] == DASH else ()
        return Cell(shown[bucket], differ)

    columns = [Column("position", "position", lambda row: row.label if row else "sentences", label=True)]
    for bucket in shown:
        key = f"length_{bucket.key[0]}_{bucket.key[1] or 'up'}"
        columns.append(Column(key, bucket.label + "*" * bucket.beyond_training, partial(cell, bucket=bucket)))
    title = f"{METRIC_NAMES[metric]} by {found[0].axis}, {pooled(found[0].splits)}"
    notes = tuple(_notes(shown, found, metric))
    return Grid("lengths", title, tuple(columns), (None, *group.variants), group.heading, notes, group.synthetic)


def length_score(variant: Variant, metric: str, bucket: LengthBucket) -> Measurement:
    """A variant's score on the sentences of a bucket."""
    return variant.measured((metric, *bucket.key), "not scored at this length")


def _scored(group: Group) -> list[ByLength]:
    return [run.by_length for run in group.finished if run.by_length is not None]


def _notes(shown: Mapping[LengthBucket, str], found: Sequence[ByLength], metric: str) -> Iterator[Note]:
    first = found[0]
    if len({how_scored_by_length(one, metric) for one in found}) > 1:
        yield Note("not comparable: the rows differ in how or on which sets they were scored", "warning")
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    yield Note(f"lengths are {first.unit}; {sets}{', all together' if len(first.splits) > 1 else ''}")
    for signature in sorted({str(one.signatures.get(metric)) for one in found}):
        yield Note(f"{METRIC_NAMES[metric]}: {signature}, {search_in_words(first)}")
    if any(bucket.beyond_training for bucket in shown):
        yield Note(f"*: {first.longest_in_words}")
    few = [bucket.label for bucket, count in shown.items() if count != DASH and bucket.num_sentences < FEW]
    if few:
        yield Note(f"fewer than {FEW} sentences, which say little: {', '.join(few)}")

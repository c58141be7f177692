"""Notes on how the scores of a group were computed; whatever makes its rows incomparable is a warning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rpr.records.scores import (
    BITS_PER_BYTE,
    HEADLINE_METRIC,
    METRIC_NAMES,
    Score,
    counted,
    how_scored,
    search_in_words,
    tokenised_in_words,
)
from rpr.report.groups import TestColumn, Variant
from rpr.tables.grid import Note


def scoring_notes(variants: Sequence[Variant]) -> tuple[Note, ...]:
    """The notes for these variants of a group."""
    by_column: dict[TestColumn, list[Score]] = {}
    for score in (score for variant in variants for run in variant.finished for score in run.scores):
        by_column.setdefault(TestColumn(score.split, score.test_set, score.metric), []).append(score)
    mixed: dict[str, list[str]] = {}  # the metrics of each split
    sets: dict[tuple[str, str, str], list[str]] = {}  # by metric, signature and search
    notes: list[Note] = []
    checkpoints: set[str] = set()
    for column, scores in sorted(by_column.items(), key=lambda item: item[0].order):
        alike = {(how_scored(score), score.precision): score for score in scores}.values()
        ways, counts = {_way(score) for score in alike}, sorted({score.num_sentences for score in alike})
        if len(ways) > 1:
            mixed.setdefault(column.split, []).append(METRIC_NAMES.get(column.metric, column.metric))
        sentences = counted(" or ".join(f"{count:,}" for count in counts), column.metric)
        if len(counts) > 1:
            notes.append(Note(f"not comparable: the rows of {column.split} were scored on {sentences}", "warning"))
        for way in sorted(ways):
            where = f"{column.split} ({column.test_set}, {sentences})"
            sets.setdefault((column.metric, *way), []).append(where)
        if column.metric == HEADLINE_METRIC:
            notes += [*_empty(column, scores), *_tokenised(column, scores)]
            checkpoints |= {score.checkpoint for score in scores}
    for split, metrics in mixed.items():
        text = f"not comparable: the rows of {split} were scored in different ways ({', '.join(metrics)})"
        notes.insert(0, Note(text, "warning"))
    signatures: dict[str, list[str]] = {}
    for (metric, signature, search), places in sets.items():
        on = f"scored on {', '.join(places)}; {search}"
        signatures.setdefault(on, []).append(f"{METRIC_NAMES.get(metric, metric)} {signature}")
    notes += [Note(f"{on}: {'; '.join(metrics)}") for on, metrics in signatures.items()]
    if checkpoints:
        differ = "the rows used different checkpoints: " if len(checkpoints) > 1 else "checkpoint: "
        notes.append(Note(differ + "; ".join(sorted(checkpoints))))
    return tuple(notes)


def _empty(column: TestColumn, scores: Sequence[Score]) -> Iterator[Note]:
    counts = [score.empty_hypotheses for score in scores if score.empty_hypotheses]
    if counts:
        span = " to ".join(f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))
        runs_with = f"{len(counts)} {'run' if len(counts) == 1 else 'runs'}"
        yield Note(f"empty translations of {column.split}, scored as they are: {span} in {runs_with}")


def _tokenised(column: TestColumn, scores: Sequence[Score]) -> Iterator[Note]:
    if counts := [score.tokenised_references for score in scores if score.tokenised_references]:
        yield Note(f"{column.split}: {tokenised_in_words(max(counts))}")


def _way(score: Score) -> tuple[str, str]:
    precision = {None: "", "32": "float32"}.get(score.precision, score.precision)
    search = "" if score.metric == BITS_PER_BYTE else search_in_words(score)  # nothing is searched
    return score.signature, ", ".join(filter(None, (search, precision)))

"""How the scores of a group were made, a note for each way; what forbids comparing its rows is a warning."""

from __future__ import annotations

from collections.abc import Set

from rpr.records.record import Record
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES, Score, search_in_words
from rpr.report.grid import Note
from rpr.report.groups import Group, TestColumn


def scoring_notes(group: Group, shown: Set[int] | None = None) -> tuple[Note, ...]:
    """Of the group's finished runs, or of those among them whose `id` is in `shown`."""
    runs = [run for run in group.finished if shown is None or id(run) in shown]
    by_column = {
        column: [score for run in runs for score in run.scores if column.holds(score)] for column in group.columns
    }
    notes: list[Note] = []
    mixed: dict[str, list[str]] = {}
    sets_by_way: dict[tuple[str, str], list[str]] = {}
    for column, scores in by_column.items():
        ways = sorted({_way(score) for score in scores})
        if len(ways) > 1:
            mixed.setdefault(column.split, []).append(METRIC_NAMES.get(column.metric, column.metric))
        for way in ways:
            counts = sorted({score.num_sentences for score in scores if _way(score) == way})
            sentences = " or ".join(f"{count:,}" for count in counts)
            if len(counts) > 1:
                text = f"not comparable: the rows of {column.split} were scored on {sentences} sentences"
                notes.append(Note(text, "warning"))
            where = f"{column.split} ({column.test_set}, {sentences} sentences)"
            sets_by_way.setdefault((column.metric, way), []).append(where)
        if column.metric == HEADLINE_METRIC:
            notes += _empty(column, runs)
    for split, metrics in mixed.items():
        text = f"not comparable: the rows of {split} were scored in different ways ({', '.join(metrics)})"
        notes.insert(0, Note(text, "warning"))
    for (metric, way), sets in sets_by_way.items():
        notes.append(Note(f"{METRIC_NAMES.get(metric, metric)} on {', '.join(sets)}: {way}"))
    checkpoints = sorted({score.checkpoint for run in runs for score in run.scores if score.metric == HEADLINE_METRIC})
    if checkpoints:
        differ = "the rows used different checkpoints: " if len(checkpoints) > 1 else "checkpoint: "
        notes.append(Note(differ + "; ".join(checkpoints)))
    return tuple(notes)


def _empty(column: TestColumn, runs: list[Record]) -> list[Note]:
    counts = [
        score.empty_hypotheses for run in runs for score in run.scores if column.holds(score) and score.empty_hypotheses
    ]
    if not counts:
        return []
    span = " to ".join(f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))
    runs_with = f"{len(counts)} {'run' if len(counts) == 1 else 'runs'}"
    return [Note(f"empty translations of {column.split}, scored as they are: {span} in {runs_with}")]


def _way(score: Score) -> str:
    precision = {None: "", "32": ", float32"}.get(score.precision, f", {score.precision}")
    return f"{score.signature}, {search_in_words(score)}{precision}"

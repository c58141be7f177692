"""The rows, columns and notes of score tables, for all formats."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

from rpr.records.measurement import Measurement, missing, single
from rpr.records.position import OTHER
from rpr.records.record import short_names
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
from rpr.report.agreement import Agreement, agreement, why_undecided
from rpr.report.groups import TASK_LEARNED, Group, TestColumn, Variant
from rpr.report.learning import LEARNING_RULE
from rpr.report.protocol import Difference, differences
from rpr.report.published import PAPER, Source, find, rotated_share
from rpr.tables.grid import Cell, Column, Note


@dataclass(frozen=True)
class Line:
    """A row: a variant of a group next to published figures."""

    labels: tuple[str, ...]  # one for each label column
    group: Group
    variant: Variant
    reference: Variant  # that changes are relative to
    changed: tuple[str, ...]  # splits that are shown first, with changes; the first one with a score decides agreement
    papers_split: str = "test"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What published figures are matched with."""
        return facts_of(self.variant, self.group)

    def figure(self, source: Source) -> Measurement:
        """What a source prints for this row."""
        published = find(self.facts, source, self.papers_split if source is PAPER else None)
        if published is None and source is PAPER and (other := find(self.facts, source)) is not None:
            return missing(f"the paper's {other.figure} is on {source.test_sets[other.split]}")
        if published is None or (source is not PAPER and self.group.column(published.split, published.metric) is None):
            return missing(source.absent)
        return single(published.figure)

    @property
    def papers_change(self) -> Measurement:
        """The change of the paper's figure from that of the reference on the same split."""
        others = facts_of(self.reference, self.group)
        for split in dict.fromkeys((self.papers_split, "test")):
            published, other = find(self.facts, PAPER, split), find(others, PAPER, split)
            if published is not None and other is not None:
                return single(round(published.figure - other.figure, 1))
        return missing(PAPER.absent)

    @cached_property
    def decided_on(self) -> str:
        """The split on which our change is compared with the paper's."""
        scored = (split for split in self.changed if self.group.score(self.variant, split).value is not None)
        return next(scored, self.changed[0])

    @cached_property
    def agreement(self) -> Agreement | None:
        """The agreement with the paper; None if a figure is missing or this is the reference row."""
        change = self.group.change(self.variant, self.reference, self.decided_on)
        papers = self.papers_change.value
        if change.value is None or papers is None or self.variant is self.reference:
            return None
        return agreement(change, papers, undecided=why_undecided(self.variant, self.reference))

    @cached_property
    def differs(self) -> tuple[Difference, ...]:
        """How the runs differ from the paper's, including the test set."""
        if not (self.group.translation and self.variant.finished):
            return ()
        # The paper's Tables 2 and 3 are of the base model.
        size = self.group.size if self.papers_split == "test" else "base"
        differing = differences(self.variant.finished, size, self.group.languages)
        column, papers = self.group.column(self.decided_on), PAPER.test_sets[self.papers_split]
        if column is None or column.test_set == papers:
            return differing
        return (*differing, Difference("test set", f"test set: {column.test_set}; the paper: {papers}"))


def facts_of(variant: Variant, group: Group) -> dict[str, Any]:
    """What published figures of a variant's runs are matched with."""
    run = group.runs[0]
    return {
        "kind": variant.position.kind if variant.position.as_published else OTHER,
        "k": variant.position.clip_distance,
        "rotated_share": rotated_share(variant),
        "data": group.data,
        "model": group.model,
        "size": group.size,
        "architecture": run.setting("model.architecture") or "encoder_decoder",
        "task": run.task,
        "languages": group.languages if group.translation else None,
        "context_length": run.setting("data.context_length"),
        "num_layers": run.setting("model.num_layers"),
        "d_model": run.setting("model.d_model"),
        "max_steps": group.max_steps,
        "max_train_length": run.setting("data.task.max_train_length"),
    }


def marked(figure: Measurement, seeds: int) -> Cell:
    """A figure, with a remark if it is not of as many seeds as the column `n` of its row says."""
    if figure.value is None or figure.n == seeds:
        return Cell(figure)
    return Cell(figure, (f"{figure.n} of {seeds} seeds" if figure.n < seeds else f"over {figure.n} seeds",))


def _score(line: Line, split: str, metric: str | None = None) -> Cell:
    return marked(line.group.score(line.variant, split, metric), len(line.variant.finished))


def _change(line: Line, split: str) -> Cell:
    return marked(line.group.change(line.variant, line.reference, split), len(line.variant.finished))


def _solved(line: Line, split: str) -> str:
    """`4 of 5`: the seeds that solve a task on the split of its findings, for a mean of two kinds of outcome."""
    scores = line.variant.scores.get(line.group.column(split) or (), {}).values()
    return f"{sum(score.value >= TASK_LEARNED for score in scores)} of {len(scores)}" if scores else ""


def labels(*headings: str) -> tuple[Column, ...]:
    """A text column for each of a row's labels."""

    def label(at: int, row: Any) -> str:
        return str(row.labels[at])

    return tuple(Column(heading, heading, partial(label, at), label=True) for at, heading in enumerate(headings))


def _differs(line: Line) -> Cell:
    """`smaller data, steps; other recipe`, with details in a footnote."""
    smaller = dict.fromkeys(difference.kind for difference in line.differs if difference.smaller)
    other = dict.fromkeys(difference.kind for difference in line.differs if difference.kind not in smaller)
    summary = [f"{how} {', '.join(kinds)}" for how, kinds in (("smaller", smaller), ("other", other)) if kinds]
    details = "differs from the paper: " + ". ".join(difference.text for difference in line.differs)
    return Cell("; ".join(summary), (details,) if summary else ())


def _note(line: Line) -> Cell:
    """Whether the variant did not learn or was still learning, its seeds without a result, and caveats."""
    variant, remarks = line.variant, dict[str, tuple[str, ...]]()
    if variant.unlearned:
        remarks["not learned"] = (variant.unlearned,)
    if variant.still_learning:
        remarks["still learning"] = (f"{LEARNING_RULE}; {line.group.advice}",)
    if variant.unfinished and variant.finished:
        remarks["incomplete"] = variant.unfinished
    return Cell(", ".join(remarks), (*chain(*remarks.values()), *variant.caveats))


CHANGE = "the mean of the differences seed by seed; without a common seed, the difference of the means"
# Columns after the scores, in every table and format.
AFTER_THE_SCORES = (
    Column(
        "agreement", "agreement", lambda line: line.agreement.cell if line.agreement else "", words=True, priority=1
    ),
    Column("note", "note", _note, words=True, priority=1),
    Column("differs", "differs", _differs, words=True, priority=2),
)


def score_columns(lines: Sequence[Line], sources: Sequence[Source]) -> tuple[Column, ...]:
    """The groups' own settings, published changes, our scores with changes, other published figures, other scores."""
    first, digits = lines[0], lines[0].group.digits
    groups = {id(line.group): line.group for line in lines}.values()
    tested = sorted({column for group in groups for column in group.columns}, key=lambda column: column.order)
    columns = [*_setting_columns(groups)]
    columns.append(Column("n", "n", lambda line: str(len(line.variant.finished))))
    if PAPER in sources:
        columns.append(Column("paper", "paper", partial(Line.figure, source=PAPER)))
        columns.append(Column("paper_change", "Δ paper", lambda line: line.papers_change, signed=True))
    others = [column.split for column in tested if column.metric == first.group.metric]
    for split in dict.fromkeys([*first.changed, *others]):
        ours, change = partial(_score, split=split), partial(_change, split=split)
        columns.append(Column(split, split, ours, digits, priority=0 if split in first.changed else 1))
        if split in first.changed:
            rank = 0 if split == first.changed[0] else 1
            columns.append(Column(f"{split}_change", f"Δ {split}", change, digits, signed=True, priority=rank))
        if first.group.task and split == first.group.split:
            solved = partial(_solved, split=split)
            columns.append(Column(f"{split}_solved", f"seeds ≥ {TASK_LEARNED:g}%", solved, priority=2))
    for source in sources:
        if source is not PAPER:
            columns.append(Column(source.key, source.heading, partial(Line.figure, source=source), digits, priority=1))
    columns += AFTER_THE_SCORES
    for split, _, metric in tested:
        if metric != first.group.metric:
            ours, heading = partial(_score, split=split, metric=metric), f"{METRIC_NAMES.get(metric, metric)} {split}"
            columns.append(Column(f"{metric}_{split}", heading, ours, priority=3))
    return tuple({column.key: column for column in columns}.values())


def _setting_columns(groups: Collection[Group]) -> Iterator[Column]:
    """A column for each setting in which the groups of a table differ."""

    def value(name: str, line: Line) -> str:
        return str(line.group.settings.get(name))

    for name, heading in short_names(dict.fromkeys(name for group in groups for name, _ in group.distinct)).items():
        if len({str(group.settings.get(name)) for group in groups}) > 1:
            yield Column(heading, heading, partial(value, name), label=True)


def scoring_notes(variants: Sequence[Variant]) -> tuple[Note, ...]:
    """How the scores of these variants of a group were computed; what makes rows incomparable is a warning."""
    by_column: dict[TestColumn, list[Score]] = {}
    for score in (score for variant in variants for run in variant.finished for score in run.scores):
        by_column.setdefault(TestColumn(score.split, score.test_set, score.metric), []).append(score)
    mixed: dict[str, list[str]] = {}  # the metrics of each split
    sets: dict[tuple[str, str, str], list[str]] = {}  # by metric, signature and search
    notes: list[Note] = []
    checkpoints: set[str] = set()
    for column, scores in sorted(by_column.items(), key=lambda item: item[0].order):
        alike = {how_scored(score): score for score in scores}.values()
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
            notes += _unusual(column, scores)
        checkpoints |= {score.checkpoint for score in scores}
    for split, metrics in mixed.items():
        text = f"not comparable: the rows of {split} were scored in different ways ({', '.join(metrics)})"
        notes.insert(0, Note(text, "warning"))
    signatures: dict[str, list[str]] = {}
    for (metric, signature, search), places in sets.items():
        on = f"scored on {', '.join(places)}; {search}"
        signatures.setdefault(on, []).append(f"{METRIC_NAMES.get(metric, metric)} {signature}")
    notes += [Note(f"{on}: {'; '.join(metrics)}") for on, metrics in signatures.items()]
    if len(checkpoints) > 1 or any(column.metric == HEADLINE_METRIC for column in by_column):
        differ = "the rows used different checkpoints: " if len(checkpoints) > 1 else "checkpoint: "
        notes.append(Note(differ + "; ".join(sorted(checkpoints))))
    return tuple(notes)


def _unusual(column: TestColumn, scores: Sequence[Score]) -> Iterator[Note]:
    for what, values in (
        ("empty translations", [score.empty_hypotheses for score in scores]),
        ("translations without an end within the length limit", [score.unfinished_hypotheses for score in scores]),
    ):
        if counts := [value for value in values if value]:
            span = " to ".join(f"{count:,}" for count in dict.fromkeys((min(counts), max(counts))))
            runs = f"{len(counts)} {'run' if len(counts) == 1 else 'runs'}"
            yield Note(f"{column.split}: {what}, scored as they are: {span} in {runs}")
    if counts := [score.tokenised_references for score in scores if score.tokenised_references]:
        yield Note(f"{column.split}: {tokenised_in_words(max(counts))}")


def _way(score: Score) -> tuple[str, str]:
    precision = {None: "", "32": "float32"}.get(score.precision, score.precision)
    search = "" if score.metric == BITS_PER_BYTE else search_in_words(score)  # nothing is searched
    return score.signature, ", ".join(filter(None, (search, precision)))

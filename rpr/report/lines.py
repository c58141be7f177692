"""The rows and columns of score tables, for all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from rpr import paper
from rpr.records.measurement import Measurement, missing, single
from rpr.records.scores import METRIC_NAMES
from rpr.report.agreement import Agreement, agreement, why_undecided
from rpr.report.groups import Group, TestColumn, Variant
from rpr.report.learning import RULE as LEARNING_RULE
from rpr.report.protocol import Difference, differences
from rpr.report.published import PAPER, Source, find
from rpr.tables.grid import Cell, Column


@dataclass(frozen=True)
class Line:
    """A row: a variant of a group (None: never run) next to published figures.

    Args:
        labels: the row's text, one for each label column.
        reference, reference_name: the variant that changes are relative to, and its name.
        splits: the splits that are always shown.
        changed: the splits whose changes are shown; the first one with a score decides agreement.
        own, reference_own: facts of the row, and of its reference, that differ from those of its variant.
        papers_split: the split of the paper's table.
    """

    labels: tuple[str, ...]
    group: Group
    variant: Variant | None
    reference: Variant | None
    reference_name: str
    splits: tuple[str, ...]
    changed: tuple[str, ...]
    own: Mapping[str, Any] = field(default_factory=dict)
    reference_own: Mapping[str, Any] = field(default_factory=dict)
    papers_split: str = "test"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What published figures are matched with."""
        return {**facts_of(self.variant, self.group), **self.own}

    def figure(self, source: Source) -> Measurement:
        """What a source prints for this row."""
        found = find(self.facts, source, self.papers_split if source is PAPER else None)
        if found is None and source is PAPER and (other := find(self.facts, source)) is not None:
            return missing(f"the paper's {other.figure} is on {source.test_sets[other.split]}")
        if found is None or (source is not PAPER and self.group.column(found.split, found.metric) is None):
            return missing(source.absent)
        return single(found.figure)

    def figure_change(self, source: Source) -> Measurement:
        """Its change from the figure of the reference on the same split."""
        others = {**facts_of(self.reference, self.group), **self.reference_own}
        for split in dict.fromkeys((self.papers_split, "test")):
            found, other = find(self.facts, source, split), find(others, source, split)
            if found is not None and other is not None:
                return single(round(found.figure - other.figure, 1))
        return missing(source.absent)

    @property
    def size(self) -> paper.Size:
        """The paper's model that the row stands beside: its Tables 2 and 3 are of the base model."""
        return self.group.size if self.papers_split == "test" else "base"

    def ours(self, split: str, metric: str | None = None) -> Measurement:
        return self.group.score(self.variant, split, metric)

    def change(self, split: str) -> Measurement:
        return self.group.change(self.variant, self.reference, split, self.reference_name)

    @cached_property
    def decided_on(self) -> str:
        """The split on which our change is compared with the paper's."""
        return next((split for split in self.changed if self.ours(split).value is not None), self.changed[0])

    @cached_property
    def agreement(self) -> Agreement | None:
        """The agreement with the paper; None if a figure is missing or this is the reference row."""
        mine, papers = self.change(self.decided_on), self.figure_change(PAPER).value
        if mine.value is None or papers is None or self.variant is self.reference:
            return None
        return agreement(mine, papers, undecided=why_undecided(self.variant, self.reference))

    @cached_property
    def differs(self) -> tuple[Difference, ...]:
        """How the runs differ from the paper's, including the test set."""
        runs = self.variant.finished if self.variant is not None and self.group.translation else ()
        found = differences(runs, self.size, self.group.papers_languages)
        column, papers = self.group.column(self.decided_on), PAPER.test_sets[self.papers_split]
        if runs and column is not None and column.test_set != papers:
            text = f"test set: {column.test_set}; the paper: {papers}"
            return (*found, Difference("test set", text))
        return found


def facts_of(variant: Variant | None, group: Group) -> dict[str, Any]:
    """What published figures of a variant's runs are matched with."""
    run = group.runs[0]
    facts: dict[str, Any] = {"data": group.data, "model": group.model, "size": group.size, "task": run.task}
    facts |= {"languages": group.languages if group.translation else None}
    facts["context_length"] = run.setting("data.context_length")
    facts["max_train_length"] = run.setting("data.task.max_train_length")
    if variant is not None:
        facts |= {"kind": variant.position.kind, "k": variant.position.clip_distance}
    return facts


# Columns


def labels(*headings: str) -> tuple[Column, ...]:
    """A text column for each of a row's labels."""

    def column(index: int, heading: str) -> Column:
        return Column(heading, heading, lambda row: row.labels[index], label=True)

    return tuple(column(index, heading) for index, heading in enumerate(headings))


def _differs(line: Line) -> Cell:
    """`smaller data, steps; other recipe`, with details in a footnote."""
    found = line.differs
    smaller = dict.fromkeys(one.kind for one in found if one.smaller)
    other = dict.fromkeys(one.kind for one in found if one.kind not in smaller)
    words = [f"{how} {', '.join(kinds)}" for how, kinds in (("smaller", smaller), ("other", other)) if kinds]
    details = "differs from the paper: " + ". ".join(one.text for one in found)
    return Cell("; ".join(words), (details,) if found else ())


def _note(line: Line) -> Cell:
    """Whether the variant was still learning or did not learn its task, its seeds without a result or a commit."""
    variant = line.variant
    words, remarks = [], []
    if variant is not None and variant.still_learning is not None:
        words, remarks = ["still learning"], [f"{LEARNING_RULE}; {line.group.advice}"]
    if variant is not None and variant.unlearned:
        words, remarks = ["not learned", *words], [variant.unlearned, *remarks]
    if variant is not None and variant.unfinished and variant.finished:
        words.append("incomplete")
        remarks.extend(variant.unfinished)
    return Cell(", ".join(words), (*remarks, *(variant.uncommitted if variant is not None else ())))


CHANGE = "the mean of the differences seed by seed; with fewer than two common seeds, the difference of the means"
SEEDS = Column("n", "n", lambda line: str(len(line.variant.finished) if line.variant else 0))
AGREEMENT = Column(
    "agreement", "agreement", lambda line: line.agreement.cell if line.agreement else "", words=True, priority=1
)
NOTE = Column("note", "note", _note, words=True, priority=1)
DIFFERS = Column("differs", "differs", _differs, words=True, priority=2)
# Columns after the scores, in every table and format.
AFTER_THE_SCORES = (AGREEMENT, NOTE, DIFFERS)


def score_columns(lines: Sequence[Line], found: Sequence[Source]) -> tuple[Column, ...]:
    """The settings that tell the groups apart, published changes, our scores on each split with their changes, figures
    of which only the order compares, the verdict, then all other scores.
    """
    metric, shown, changed = lines[0].group.metric, lines[0].splits, lines[0].changed
    every = [column.split for column in _columns(lines) if column.metric == metric]
    digits = lines[0].group.digits
    columns = [*setting_columns([line.group for line in lines], lambda line: line.group), SEEDS]
    columns += [column for source in found if source.compares == "changes" for column in published_columns(source)]
    for split in dict.fromkeys([*shown, *every]):
        ours, change = (partial(read, split=split) for read in (Line.ours, Line.change))
        columns.append(Column(split, split, ours, digits, priority=0 if split in shown else 1))
        if split in changed:
            rank = 0 if split == changed[0] else 1
            columns.append(Column(f"{split}_change", f"Δ {split}", change, digits, signed=True, priority=rank))
    columns += [
        column for source in found if source.compares == "order" for column in published_columns(source, digits)[:1]
    ]
    columns += AFTER_THE_SCORES
    for one in _columns(lines):
        if one.metric != metric:
            heading = f"{METRIC_NAMES.get(one.metric, one.metric)} {one.split}"
            read = partial(Line.ours, split=one.split, metric=one.metric)
            columns.append(Column(f"{one.metric}_{one.split}", heading, read, priority=3))
    return tuple({column.key: column for column in columns}.values())


def setting_columns(groups: Sequence[Group], group_of: Callable[[Any], Group]) -> list[Column]:
    """A column for each setting in which the groups of a table differ."""
    values = [dict(group.distinct) for group in groups]
    names = dict.fromkeys(name for each in values for name in each)

    def column(name: str) -> Column:
        def read(row: Any) -> str:
            return str(dict(group_of(row).distinct).get(name, ""))

        return Column(name.rpartition(".")[2], name.rpartition(".")[2], read, label=True)

    return [column(name) for name in names if len({str(each.get(name)) for each in values}) > 1]


def published_columns(source: Source, digits: int = 1) -> tuple[Column, Column]:
    """A source's figure and its change from that of the reference."""
    order = 1 if source.compares == "order" else 0
    figure = Column(source.key, source.heading, lambda line: line.figure(source), digits, priority=order)
    heading = f"Δ {source.heading}"
    return figure, Column(f"{source.key}_change", heading, lambda line: line.figure_change(source), signed=True)


def _columns(lines: Sequence[Line]) -> list[TestColumn]:
    groups = {id(line.group): line.group for line in lines}
    found = {column for group in groups.values() for column in group.columns}
    return sorted(found, key=lambda column: column.order)

"""The rows and columns of score tables, for all formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from rpr import paper
from rpr.records.measurement import Measurement, missing
from rpr.records.scores import HEADLINE_METRIC, METRIC_NAMES
from rpr.report.agreement import Agreement, agreement, why_undecided
from rpr.report.grid import Cell, Column, figure_text
from rpr.report.groups import Group, TestColumn, Variant
from rpr.report.learning import RULE as LEARNING_RULE
from rpr.report.protocol import Difference, differences, is_the_papers_corpus

# The kind of BLEU that the paper's group is known to have used; the paper itself does not state it (`paper.BLEU_KIND`).
GROUPS_METRIC = "bleu_tok_split"


@dataclass(frozen=True)
class Line:
    """A row: a variant of a group (None: never run) next to the paper's figure.

    Args:
        labels: the row's text, one for each label column.
        reference, reference_name: the variant that changes are relative to, and its name.
        printed, printed_change: the paper's figures, of its model `size`, on `printed_set`.
        splits: the splits whose changes are shown; the first one with a score decides agreement.
        settings: what distinguishes the row's group from others with its corpus, model and steps.
    """

    labels: tuple[str, ...]
    group: Group
    variant: Variant | None
    reference: Variant | None
    reference_name: str
    printed: Measurement
    printed_change: Measurement
    printed_set: str
    splits: tuple[str, ...]
    size: paper.Size = "base"
    settings: str = ""

    def ours(self, split: str, metric: str | None = None) -> Measurement:
        return self.group.score(self.variant, split, metric)

    def change(self, split: str) -> Measurement:
        return self.group.change(self.variant, self.reference, split, self.reference_name)

    @cached_property
    def decided_on(self) -> str:
        """The split on which our change is compared with the paper's."""
        return next((split for split in self.splits if self.ours(split).value is not None), self.splits[0])

    @cached_property
    def agreement(self) -> Agreement | None:
        """The agreement with the paper; None if a figure is missing or this is the reference row."""
        mine, papers = self.change(self.decided_on), self.printed_change.value
        if mine.value is None or papers is None or self.variant is self.reference:
            return None
        return agreement(mine, papers, undecided=why_undecided(self.variant, self.reference))

    @property
    def comparison(self) -> str:
        """`relative, k = 0 against k = 16: -11.0 on validation, the paper -13.3 (one seed)`."""
        change = " ".join(filter(None, figure_text(self.change(self.decided_on), 1, signed=True)))
        papers, _ = figure_text(self.printed_change, 1, signed=True)
        what = f"{self.variant.label if self.variant else ', '.join(self.labels)} against {self.reference_name}"
        found = self.agreement
        words = f" ({found.detail})" if found is not None and found.detail else ""
        return f"{what}: {change} on {self.decided_on}, the paper {papers}{words}"

    @cached_property
    def differs(self) -> tuple[Difference, ...]:
        """How the runs differ from the paper's, including the test set."""
        runs = self.variant.finished if self.variant is not None else ()
        found = differences(runs, self.size, self.group.papers_languages)
        column = self.group.column(self.decided_on)
        if runs and column is not None and column.test_set != self.printed_set:
            text = f"test set: {column.test_set}; the paper: {self.printed_set}"
            return (*found, Difference("test set", text))
        return found

    def difference(self) -> Measurement:
        """Our score minus the paper's if corpus, test set and kind of BLEU are the same; else why it is meaningless."""
        mine = self.ours(self.decided_on)
        if mine.value is None or self.printed.value is None or self.variant is None:
            return mine if mine.value is None else self.printed
        pair = self.group.papers_languages
        if pair is None or not is_the_papers_corpus(self.variant.finished, pair):
            return missing(f"another corpus: {self.group.data}; the paper's: WMT 2014")
        if self.group.size != self.size:
            return missing(f"another model: {self.group.model}; the paper's: {self.size}")
        column = self.group.column(self.decided_on)
        if column is not None and column.test_set != self.printed_set:
            return missing(f"another test set: {column.test_set}; the paper's: {self.printed_set}")
        alike = self.ours(self.decided_on, GROUPS_METRIC)
        if alike.value is None:
            return missing(f"another kind of BLEU: {GROUPS_METRIC}, the paper's group's, was not computed")
        return replace(alike, value=alike.value - self.printed.value, interval=None)


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
    """Whether the variant was still learning or did not learn its task, and its seeds without a result."""
    variant = line.variant
    words, remarks = [], []
    if variant is not None and variant.still_learning is not None:
        words, remarks = ["still learning"], [f"{LEARNING_RULE}; {line.group.advice}"]
    if variant is not None and variant.unlearned:
        words, remarks = ["not learned", *words], [variant.unlearned, *remarks]
    if variant is not None and variant.unfinished and variant.finished:
        words.append("incomplete")
        remarks.extend(variant.unfinished)
    return Cell(", ".join(words), tuple(remarks))


CHANGE = "the mean of the differences seed by seed; with fewer than two common seeds, the difference of the means"
SETTINGS = Column("settings", "settings", lambda line: line.settings, label=True)
SEEDS = Column("n", "n", lambda line: str(len(line.variant.finished) if line.variant else 0))
PAPER = Column("paper", "paper", lambda line: line.printed)
PAPER_CHANGE = Column("paper_change", "Δ paper", lambda line: line.printed_change, signed=True)
AGREEMENT = Column(
    "agreement", "agreement", lambda line: line.agreement.cell if line.agreement else "", words=True, priority=1
)
NOTE = Column("note", "note", _note, words=True, priority=1)
DIFFERS = Column("differs", "differs", _differs, words=True, priority=2)
DIFFERENCE = Column(
    "difference", f"ours - paper ({METRIC_NAMES[GROUPS_METRIC]})", Line.difference, signed=True, priority=2
)
# Columns after the scores, in every table and format.
AFTER_THE_SCORES = (AGREEMENT, NOTE, DIFFERENCE, DIFFERS)


def score_columns(lines: Sequence[Line]) -> tuple[Column, ...]:
    """The paper's figure, ours on each split with its change, the verdict, then all other scores."""
    headline = [column for column in _columns(lines) if column.metric == HEADLINE_METRIC]
    changed = lines[0].splits
    splits = list(dict.fromkeys([*changed, *(column.split for column in headline)]))
    columns = [*([SETTINGS] if any(line.settings for line in lines) else []), SEEDS, PAPER, PAPER_CHANGE]
    for split in splits:
        columns.append(score_column(split, priority=0 if split in changed else 1))
        if split in changed:
            columns.append(change_column(split, priority=0 if split == splits[0] else 1))
    columns += [*AFTER_THE_SCORES, *folded_scores(lines, HEADLINE_METRIC)]
    return tuple({column.key: column for column in columns}.values())


def score_column(split: str, priority: int = 0) -> Column:
    """The scores that a group's findings are about."""
    return Column(split, split, partial(Line.ours, split=split), priority=priority)


def change_column(split: str, priority: int = 0) -> Column:
    """How these scores change from the reference."""
    return Column(f"{split}_change", f"Δ {split}", partial(Line.change, split=split), signed=True, priority=priority)


def folded_scores(lines: Sequence[Line], shown: str) -> list[Column]:
    """The folded columns of all metrics except the one already shown."""
    return [
        Column(
            f"{one.metric}_{one.split}",
            f"{METRIC_NAMES.get(one.metric, one.metric)} {one.split}",
            partial(Line.ours, split=one.split, metric=one.metric),
            priority=3,
        )
        for one in _columns(lines)
        if one.metric != shown
    ]


def _columns(lines: Sequence[Line]) -> list[TestColumn]:
    groups = {id(line.group): line.group for line in lines}
    found = {column for group in groups.values() for column in group.columns}
    return sorted(found, key=lambda column: column.order)

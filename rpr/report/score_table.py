"""The score table, of which all tables of a report are: rows with n, score, change from the baseline, and a verdict.

Its other columns are published figures, other splits and other metrics. The paper's Tables 1 to 3 have the rows of the
paper, beside its figures; every other table has all rows of groups that are alike, the best first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rpr import paper
from rpr.data.generated import TASKS
from rpr.kinds import TASK, TEXT, TRANSLATION
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import Record, short_names
from rpr.records.scores import METRIC_NAMES, Score, counted, how_scored, search_in_words, tokenised_in_words
from rpr.report.by_context import context_grids, length_grid
from rpr.report.groups import LEARNING_RULE, SOLVED, Group, TestColumn, Variant
from rpr.report.published import KIND_OF_SIDES, PAPER, Source, all_sources, differences, facts_of, find, tokens_per_step
from rpr.report.recipes import recipe_grid, recipes
from rpr.report.render import Cell, Column, Grid, marked
from rpr.report.verdicts import LEAST_SEEDS, MODEL

# The sections of a page with tables of all groups, in its order.
HEADINGS = {"scores": "Scores", "recipes": "The best recipe of each variant", "paper": "The paper's tables"}
_SIDE_BY_SIDE = ("test", "validation")  # splits of translations with changes


@dataclass(frozen=True)
class Line:
    """A row: a variant of a group, and the split that published figures of it are on."""

    labels: tuple[str, ...]  # one for each label column
    group: Group
    variant: Variant
    papers_split: str = "test"

    def score(self, split: str, metric: str | None = None) -> Cell:
        return marked(self.group.score(self.variant, split, metric), len(self.variant.finished))

    def change(self, split: str) -> Cell:
        """Empty for the baseline."""
        if self.variant is self.group.baseline:
            return Cell("")
        change = self.group.change(self.variant, self.group.column(split), f"not evaluated on {split}")
        return marked(change, len(self.variant.finished))

    def over_documents(self, split: str) -> Measurement | str:
        return "" if self.variant is self.group.baseline else self.group.over_documents(self.variant, split)

    def verdict(self, split: str) -> str:
        return self.group.verdict(self.variant, self.group.column(split))

    def figure(self, source: Source) -> Measurement:
        """What a source prints for this row."""
        published = find(facts_of(self.variant, self.group), source, self.papers_split if source is PAPER else None)
        if published is None or (source is not PAPER and self.group.column(published.split, published.metric) is None):
            return missing(source.absent)
        return single(published.figure)

    @property
    def papers_change(self) -> Measurement:
        """The change of the paper's figure from its figure of the baseline."""
        sides = (self.variant, self.group.baseline)
        own, its = (find(facts_of(side, self.group), PAPER, self.papers_split) for side in sides)
        if not self.group.published or own is None or its is None or sides[0] is sides[1]:
            return missing(PAPER.absent)
        return single(round(own.figure - its.figure, 1))

    @property
    def solved(self) -> str:
        """`4 of 5`: the seeds that solve a task on the split of its findings."""
        scores = self.variant.scores.get(self.group.column(self.group.split) or (), {}).values()
        return f"{sum(score.value >= SOLVED for score in scores)} of {len(scores)}" if scores else ""

    @property
    def note(self) -> Cell:
        """Whether it was still learning, its seeds without a result, caveats, and seeds paired across chips."""
        remarks = {"": self.group.unlearned(self.variant)}
        remarks["still learning"] = LEARNING_RULE if self.variant.fall is not None else ""
        remarks["incomplete"] = ", ".join(f"seed {run.seed} {run.status}" for run in self.variant.unfinished)
        remarks |= self.variant.caveats
        chips = {run.seed: run.device for run in self.group.baseline.finished}
        other = [run for run in self.variant.finished if run.device != chips.get(run.seed, run.device)]
        remarks["other chip"] = "; ".join(
            f"seed {run.seed}: trained on {run.device}, that of {self.group.baseline.label} on {chips[run.seed]}"
            for run in other
        )
        said = {word: why for word, why in remarks.items() if why}
        return Cell(", ".join(filter(None, said)), tuple(said.values()))


@dataclass(frozen=True)
class Tables:
    """All tables of a report: those of each section of HEADINGS, and those by length, which stand with their group."""

    sections: Mapping[str, Sequence[Grid]]
    by_length: Sequence[Grid] = ()
    rules: Sequence[str] = ()  # what verdicts mean

    @property
    def main(self) -> list[Grid]:
        return [grid for grids in self.sections.values() for grid in grids]

    @property
    def grids(self) -> list[Grid]:
        return [*self.main, *self.by_length]


def build_tables(groups: Sequence[Group]) -> Tables:
    """Every table for which the groups have rows."""
    papers = [group for group in groups if group.published and group.kind is TRANSLATION]
    sections = {
        "scores": [all_rows(family) for family in alike(groups)],
        "recipes": [*map(recipe_grid, recipes(groups))],
        "paper": [*_tables1(papers), *(grid for group in papers for grid in (*_table2(group), *_table3(group)))],
    }
    by_length = [grid for group in groups for grid in (*length_grid(group), *context_grids(group))]
    # What the verdicts of these groups mean.
    rules = [
        "Better or worse: the 95% interval of the change from the baseline excludes zero; open: it does not, or there "
        f"are fewer than {LEAST_SEEDS} seeds on a side. The intervals hold together for all rows of a table: {MODEL}."
    ]
    methods = dict.fromkeys(method for group in groups for method in group.methods if method != MODEL)
    rules += [f"Where a note says so: {method}." for method in methods]
    rules += dict.fromkeys(group.kind.caution for group in groups)
    return Tables({name: grids for name, grids in sections.items() if grids}, by_length, rules)


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by corpus, model, steps and hardware; those of one list differ in other settings and share a table."""
    by_setting: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        by_setting.setdefault((group.data, group.model, group.max_steps, group.hardware), []).append(group)
    return [*by_setting.values()]


def ranked(groups: Sequence[Group]) -> list[Line]:
    """All variants of groups that are alike, the best first, those without a score last."""
    lines = [Line((variant.label,), group, variant) for group in groups for variant in group.variants]

    def place(line: Line) -> tuple[bool, float]:
        value = line.group.score(line.variant, line.group.split).value
        return value is None, line.group.kind.best_first(value or 0.0)

    return sorted(lines, key=place)


def all_rows(groups: Sequence[Group]) -> Grid:
    """The table of groups that are alike."""
    first = groups[0]
    setting = first.heading if len(groups) == 1 else first.common_heading
    title = f"{METRIC_NAMES[first.kind.metric]} on {first.split}"
    about = _about(first, [run for group in groups for run in group.runs])
    return score_table("scores", title, setting, ("position",), ranked(groups), *about)


def _about(first: Group, runs: Sequence[Record]) -> Iterator[str]:
    """What a task's lengths are, and how much text a language model read."""

    def lengths(split: str) -> str:
        return " or ".join(map(str, sorted({run.setting(f"data.task.max_{split}_length") or 0 for run in runs})))

    if first.kind is TASK:
        train = f"{lengths('train')} {getattr(TASKS.get(str(runs[0].task)), 'UNIT', '')}"
        yield f"test: lengths up to {train}, as in training; long: up to {lengths('long')}"
        yield f"seeds ≥ {SOLVED:g}%: those with at least as much exact match on {first.split}"
    if first.kind is TEXT:
        tokens = sorted({tokens_per_step(run.config) * run.max_steps for run in runs})
        more = ", besides those of the run that it started from" if any(run.continued for run in runs) else ""
        yield f"trained on at most {' or '.join(f'{count:,}' for count in tokens)} tokens{more}"
        if first.unigram is not None:
            yield f"unigram entropy of the corpus: {first.unigram:.2f} bits per byte"


def score_table(
    name: str, title: str, setting: str, headings: Sequence[str], lines: Sequence[Line], *notes: str
) -> Grid:
    """Rows of scores with their changes, beside the figures of every source that has one for a row. `headings` are of
    the labels of each line.
    """
    groups = list({id(line.group): line.group for line in lines}.values())
    shown = all_sources() if any(group.published for group in groups) else []
    sources = [source for source in shown if any(line.figure(source).value is not None for line in lines)]
    # 1. How its scores were computed, and what makes rows incomparable.
    scoring, warnings, about = list[str](), list[str](), list[str]()
    for group in groups:
        _scoring_notes([line.variant for line in lines if line.group is group], scoring, warnings)
    if baselines := dict.fromkeys(group.baseline.label for group in groups if group.baseline.records):
        own = ", whichever is the baseline of the row's own runs" if len(baselines) > 1 else ""
        about.append(f"change: from {' or '.join(baselines)}{own}, with its 95% interval")
    # 2. What the published figures beside them are.
    for source in sources:
        on = f" on {source.test_sets[lines[0].papers_split]}" if source.test_sets else ""
        about.append(f"{source.heading}{on}: {source.citation}; {source.protocol}")
    if PAPER in sources:
        texts = dict.fromkeys(
            text for group in groups for text in differences(group.finished, group.size, group.languages)
        )
        about += [f"differs from the paper: {'; '.join(texts)}"] if texts else []
    # 3. The columns.
    columns = [Column(label, label, partial(_label, at), label=True) for at, label in enumerate(headings)]
    columns += [*_setting_columns(groups), *_score_columns(lines, groups, sources)]
    below, warnings = [*dict.fromkeys(scoring), *about, *notes], [*dict.fromkeys(warnings)]
    synthetic = any(group.synthetic for group in groups)
    grid = Grid(name, title, tuple(columns), tuple(lines), setting, tuple(below), tuple(warnings), synthetic)
    return grid.without_empty_columns()


def _label(at: int, line: Line) -> str:
    return line.labels[at]


def _setting_columns(groups: Sequence[Group]) -> Iterator[Column]:
    """A column for each setting in which the groups of a table differ."""

    def value(name: str, line: Line) -> str:
        return str(line.group.settings.get(name))

    for name, heading in short_names(dict.fromkeys(name for group in groups for name, _ in group.distinct)).items():
        if len({str(group.settings.get(name)) for group in groups}) > 1:
            yield Column(heading, heading, partial(value, name), label=True)


def _score_columns(lines: Sequence[Line], groups: Sequence[Group], sources: Sequence[Source]) -> Iterator[Column]:
    first, kind = lines[0].group, lines[0].group.kind
    split, digits, heading = first.split, kind.digits, kind.heading
    tested = sorted({column for group in groups for column in group.columns}, key=lambda column: column.order)
    # 1. The answer: score, change, the paper's change, verdict.
    yield Column("n", "n", lambda line: str(len(line.variant.finished)))
    yield Column(split, f"{heading} {split}", partial(Line.score, split=split), digits)
    yield Column(f"{split}_change", "change", partial(Line.change, split=split), digits, signed=True)
    yield Column("paper_change", "paper's change", lambda line: line.papers_change, signed=True)
    yield Column(f"{split}_verdict", "verdict", partial(Line.verdict, split=split), words=True)
    if kind is TASK:
        yield Column(f"{split}_solved", f"seeds ≥ {SOLVED:g}%", lambda line: line.solved)
    # 2. Published figures.
    for source in sources:
        places = digits if source is not PAPER else 1
        yield Column(source.key, source.heading, partial(Line.figure, source=source), places, priority=1)
    # 3. The change for other documents too; other splits, of translations also their changes; notes.
    if kind is TEXT:
        read = partial(Line.over_documents, split=split)
        words = "change, over seeds and documents"
        yield Column(f"{split}_change_over_documents", words, read, digits, signed=True, priority=1)
    for other in dict.fromkeys(column.split for column in tested if column.metric == kind.metric):
        if other != split:
            yield Column(other, f"{heading} {other}", partial(Line.score, split=other), digits, priority=1)
            if kind is TRANSLATION and other in _SIDE_BY_SIDE:
                change = partial(Line.change, split=other)
                yield Column(f"{other}_change", f"change {other}", change, digits, signed=True, priority=1)
    yield Column("note", "note", lambda line: line.note, words=True, priority=1)
    # 4. Other metrics, which only report.json has.
    for column in tested:
        if column.metric != kind.metric:
            scores = partial(Line.score, split=column.split, metric=column.metric)
            words = f"{METRIC_NAMES.get(column.metric, column.metric)} {column.split}"
            yield Column(f"{column.metric}_{column.split}", words, scores, digits, priority=3)


def _scoring_notes(variants: Sequence[Variant], notes: list[str], warnings: list[str]) -> None:
    """Add how the scores of these variants of a group were computed, and what makes rows incomparable."""
    by_column: dict[TestColumn, list[Score]] = {}
    runs = [run for variant in variants for run in variant.finished]
    for score in (score for run in runs for score in run.scores if score.metric == run.kind.metric):
        by_column.setdefault(TestColumn(score.split, score.test_set, score.metric), []).append(score)
    for column, scores in sorted(by_column.items(), key=lambda item: item[0].order):
        if len({*map(how_scored, scores)}) > 1:
            warnings.append(f"not comparable: the rows of {column.split} were scored in different ways")
        # 1. On what, and how.
        sizes = " or ".join(f"{count:,}" for count in sorted({score.num_sentences for score in scores}))
        ways = " or ".join(sorted({f"{score.signature}; {search_in_words(score)}" for score in scores}))
        on = f"{column.split}: {column.test_set}, {counted(sizes, column.metric)}"
        notes.append(f"{on}; {ways}; {' or '.join(sorted({score.checkpoint for score in scores}))}")
        # 2. What is unusual in it.
        for what, counts in (
            ("empty translations", [score.empty_hypotheses for score in scores]),
            ("translations without an end within the length limit", [score.unfinished_hypotheses for score in scores]),
        ):
            if most := max((count or 0 for count in counts), default=0):
                notes.append(f"{column.split}: {what}, scored as they are: up to {most:,} in a run")
        if tokenised := max((score.tokenised_references or 0 for score in scores), default=0):
            notes.append(f"{column.split}: {tokenised_in_words(tokenised)}")


def _tables1(groups: Sequence[Group]) -> Iterator[Grid]:
    """Table 1 for each corpus, with all its languages and models: absolute, and relative with the paper's k."""
    families: dict[str, list[Group]] = {}
    for group in groups:
        families.setdefault(group.data.removesuffix(f"_{group.languages}"), []).append(group)
    for family, members in families.items():
        lines = []
        for group in sorted(members, key=lambda group: (group.size, group.model, group.max_steps, group.languages)):
            own = group.model not in paper.MODELS or group.max_steps != paper.MODELS[group.size].steps
            labels = (
                f"{group.model}, {group.max_steps:,} steps" if own else group.model,
                group.languages.upper().replace("_", "-"),
            )
            for variant in (group.get("absolute"), group.papers_relative):
                if variant.records:
                    lines.append(Line((*labels, re.sub(r", k = \d+\b", "", variant.label, count=1)), group, variant))
        if lines:
            title, headings = "Table 1: BLEU by model, languages and position", ("model", "languages", "position")
            yield score_table("table1", title, replace(members[0], data=family).corpus, headings, lines)


def _clip_distances(group: Group, *kinds: str) -> set[int]:
    positions = [variant.position for variant in group.variants if variant.position.kind in kinds]
    return {k for position in positions if (k := position.clip_distance) is not None}


def _table2(group: Group) -> Iterator[Grid]:
    run = _clip_distances(group, "relative")
    if run - {paper.MODELS[group.size].clip_distance}:
        ks = sorted({*paper.TABLE2, *run})
        lines = [Line((str(k),), group, group.get("relative", k), "validation") for k in ks]
        yield score_table("table2", "Table 2: BLEU by clip distance k", group.heading, ("k",), lines)


def _table3(group: Group) -> Iterator[Grid]:
    """For the largest k with a keys-only or values-only variant; for the paper's if only `none` was run."""
    alone, none = _clip_distances(group, "relative_keys", "relative_values"), group.get("none")
    if not alone and not none.records:
        return
    k, lines = max(alone, default=paper.MODELS[group.size].clip_distance), []
    for sides in paper.TABLE3:
        variant = none if (kind := KIND_OF_SIDES[sides]) == "none" else group.get(kind, k)
        lines.append(Line(tuple("yes" if on else "no" for on in sides), group, variant, "validation"))
    assumed = f"the paper's Table 3 does not print its k; assumed: {paper.TABLE3_CLIP_DISTANCE}, the base model's"
    title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
    yield score_table("table3", title, f"{group.heading} | k = {k}", ("a^V", "a^K"), lines, assumed)

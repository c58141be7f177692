"""The score table, of which all tables of a report are: rows with n, score, change from the baseline, and a verdict.

Its other columns are published figures, other splits and other metrics. The paper's Tables 1 to 3 have the rows of the
paper, beside its figures; every other table has all rows of groups that are alike, the best first.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
from rpr.report.sweep_files import seeds_of
from rpr.report.verdicts import LEAST_SEEDS, MODEL

# The sections of a page with tables of all groups, in its order.
HEADINGS = {"scores": "Scores", "recipes": "The best recipe of each variant", "paper": "The paper's tables"}
_UNPUBLISHED = "no published figure of this row as a whole"
_MORE = "not among the seeds of the sweep's file: runs added later make a difference by chance more likely"
_SIDE_BY_SIDE = ("test", "validation")  # splits of translations with changes


@dataclass(frozen=True)
class Line:
    """A row: a variant of a group, and the split that published figures of it are on."""

    labels: tuple[str, ...]  # one for each label column
    group: Group
    variant: Variant
    papers_split: str = "test"
    settings: tuple[str, ...] = ()  # that tell its group from others of the table

    def label(self, at: int) -> str:
        return (*self.labels, *self.settings)[at]

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
            return missing(_UNPUBLISHED)
        return single(published.figure)

    @property
    def papers_change(self) -> Measurement:
        """The change of the paper's figure from its figure of the baseline."""
        own, its = (replace(self, variant=side).figure(PAPER).value for side in (self.variant, self.group.baseline))
        if not self.group.published or own is None or its is None or self.variant is self.group.baseline:
            return missing(_UNPUBLISHED)
        return single(round(own - its, 1))

    @property
    def solved(self) -> str:
        """`4 of 5`: the seeds that solve a task on the split of its findings."""
        scores = self.variant.scores.get(self.group.column(self.group.split) or (), {}).values()
        return f"{sum(score.value >= SOLVED for score in scores)} of {len(scores)}" if scores else ""

    @property
    def note(self) -> Cell:
        """What a reader must know: whether it learned, its seeds without a result, how the others were trained."""
        variant, finished, baseline = self.variant, self.variant.finished, self.group.baseline
        originals = Counter(run.seed for run in variant.records if run.status == "finished" and run.rerun_of is None)
        planned, chips = seeds_of(finished), {run.seed: run.device for run in baseline.finished}
        other = [run for run in finished if run.device != chips.get(run.seed, run.device)]
        by_word: dict[str, dict[int, str]] = {
            "incomplete": {run.seed: run.status for run in variant.unfinished},
            "uncommitted": {run.seed: "trained from uncommitted changes" for run in finished if run.git.dirty},
            "trained again": {seed: "the newest of several runs" for seed, times in originals.items() if times > 1},
            "more seeds": {run.seed: _MORE for run in finished if planned and run.seed not in planned},
            "other chip": {run.seed: f"on {run.device}, {baseline.label} on {chips[run.seed]}" for run in other},
        }
        remarks = {"": self.group.unlearned(variant), "still learning": LEARNING_RULE * (variant.fall is not None)}
        for word, by_seed in by_word.items():
            seeds = {why: [seed for seed in sorted(by_seed) if by_seed[seed] == why] for why in by_seed.values()}
            remarks[word] = "; ".join(f"seed {', '.join(map(str, seeds[why]))}: {why}" for why in seeds)
        said = {word: why for word, why in remarks.items() if why}
        return Cell(", ".join(filter(None, said)), tuple(said.values()))


class Tables:
    """Every table for which the groups have rows: those of each section of HEADINGS, and those by length, which stand
    with their group. `rules`: what verdicts mean.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        papers = [group for group in groups if group.published and group.kind is TRANSLATION]
        sections = {
            "scores": [all_rows(family) for family in alike(groups)],
            "recipes": [*map(recipe_grid, recipes(groups))],
            "paper": [*_tables1(papers), *(grid for group in papers for grid in _tables2_and_3(group))],
        }
        self.sections = {name: grids for name, grids in sections.items() if grids}
        self.main = [grid for grids in sections.values() for grid in grids]
        self.by_length = [grid for group in groups for grid in (*length_grid(group), *context_grids(group))]
        self.grids = [*self.main, *self.by_length]
        self.rules = [
            "Better or worse: the 95% interval of the change from the baseline excludes zero; open: it does not, or "
            f"there are fewer than {LEAST_SEEDS} seeds on a side. The intervals hold together for all rows of a table: "
            f"{MODEL}, unless a note of the table names another method.",
            *dict.fromkeys(group.kind.caution for group in groups),
        ]


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by corpus, model, steps and hardware; those of one list differ in other settings and share a table."""
    by_setting: dict[str, list[Group]] = {}
    for group in groups:
        by_setting.setdefault(group.common_heading, []).append(group)
    return [*by_setting.values()]


def all_rows(groups: Sequence[Group]) -> Grid:
    """The table of groups that are alike: all their variants, the best first, those without a score last."""
    first, lines = groups[0], [Line((variant.label,), group, variant) for group in groups for variant in group.variants]

    def place(line: Line) -> tuple[bool, float]:
        value = line.group.score(line.variant, line.group.split).value
        return value is None, line.group.kind.best_first(value or 0.0)

    setting = first.heading if len(groups) == 1 else first.common_heading
    title = f"{METRIC_NAMES[first.kind.metric]} on {first.split}"
    about = _about(first, [run for group in groups for run in group.runs])
    return score_table("scores", title, setting, ("position",), sorted(lines, key=place), *about)


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
    # 1. How its scores were computed and compared, and what makes rows incomparable.
    scoring, warnings = [], dict[str, None]()
    for group in groups:
        of_group, unlike = _scoring_notes([line.variant for line in lines if line.group is group])
        scoring += of_group
        warnings |= dict.fromkeys(unlike)
    below = [*dict.fromkeys(scoring)]
    if baselines := dict.fromkeys(group.baseline.label for group in groups if group.baseline.records):
        own = ", whichever is the baseline of the row's own runs" if len(baselines) > 1 else ""
        below.append(f"change: from {' or '.join(baselines)}{own}, with its 95% interval")
        methods = (group.changes(group.column(group.split) or ()).method for group in groups)
        below += [f"intervals of changes: {method}" for method in dict.fromkeys(methods) if method not in ("", MODEL)]
    # 2. What the published figures beside them are.
    below += [f"{source.heading}: {source.citation}; {source.protocol}" for source in sources]
    if PAPER in sources:
        texts = [text for group in groups for text in differences(group.finished, group.size, group.languages)]
        below += [f"differs from the paper: {'; '.join(dict.fromkeys(texts))}"] * bool(texts)
    # 3. The columns.
    names = short_names(dict.fromkeys(name for group in groups for name in group.distinct))
    differ = [name for name in names if len({str(group.settings.get(name)) for group in groups}) > 1]
    rows = [replace(line, settings=tuple(str(line.group.settings.get(name)) for name in differ)) for line in lines]
    labels = enumerate([*headings, *map(names.__getitem__, differ)])
    columns = [Column(label, label, partial(Line.label, at=at), label=True) for at, label in labels]
    columns += _score_columns(lines[0].group, groups, sources)
    synthetic, about = any(group.synthetic for group in groups), (*below, *notes)
    grid = Grid(name, title, tuple(columns), tuple(rows), setting, about, tuple(warnings), synthetic)
    return grid.without_empty_columns()


def _score_columns(first: Group, groups: Sequence[Group], sources: Sequence[Source]) -> Iterator[Column]:
    kind, split, digits, heading = first.kind, first.split, first.kind.digits, first.kind.heading
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
    for column in (column for column in tested if column.metric != kind.metric):
        scores = partial(Line.score, split=column.split, metric=column.metric)
        words = f"{METRIC_NAMES.get(column.metric, column.metric)} {column.split}"
        yield Column(f"{column.metric}_{column.split}", words, scores, digits, priority=3)


def _scoring_notes(variants: Sequence[Variant]) -> tuple[list[str], list[str]]:
    """How the scores of these variants of a group were computed, and what makes rows incomparable."""
    runs = [run for variant in variants for run in variant.finished]
    by_column: dict[TestColumn, list[Score]] = {}
    for score in (score for run in runs for score in run.scores if score.metric == run.kind.metric):
        by_column.setdefault(TestColumn(score.split, score.test_set, score.metric), []).append(score)
    notes, warnings = [], []
    for column, scores in sorted(by_column.items(), key=lambda item: item[0].order):
        if len({*map(how_scored, scores)}) > 1:
            warnings.append(f"not comparable: the rows of {column.split} were scored in different ways")
        # 1. On what, and how.
        sizes = " or ".join(f"{count:,}" for count in sorted({score.num_sentences for score in scores}))
        ways = " or ".join(sorted({f"{score.signature}; {search_in_words(score)}" for score in scores}))
        on = f"{column.split}: {column.test_set}, {counted(sizes, column.metric)}"
        notes.append(f"{on}; {ways}; {' or '.join(sorted({score.checkpoint for score in scores}))}")
        # 2. What is unusual in it, the most in a run.
        empty, unended, tokenised = (
            max(getattr(score, name) or 0 for score in scores)
            for name in ("empty_hypotheses", "unfinished_hypotheses", "tokenised_references")
        )
        unusual = {"empty translations": empty, "translations without an end within the length limit": unended}
        said = [f"{what}, scored as they are: up to {most:,} in a run" for what, most in unusual.items() if most]
        said += [tokenised_in_words(tokenised)] if tokenised else []
        notes += [f"{column.split}: {text}" for text in said]
    return notes, warnings


def _tables1(groups: Sequence[Group]) -> Iterator[Grid]:
    """Table 1 for each corpus, with all its languages and models: absolute, and relative with the paper's k."""
    families: dict[str, list[Line]] = {}
    for group in sorted(groups, key=lambda group: (group.size, group.model, group.max_steps, group.languages)):
        own = group.model not in paper.MODELS or group.max_steps != paper.MODELS[group.size].steps
        model = f"{group.model}, {group.max_steps:,} steps" if own else group.model
        lines = families.setdefault(group.data.removesuffix(f"_{group.languages}"), [])
        for variant in (group.get("absolute"), group.papers_relative):
            position = re.sub(r", k = \d+\b", "", variant.label, count=1)
            labels = (model, group.languages.upper().replace("_", "-"), position)
            lines += [Line(labels, group, variant)] * bool(variant.records)
    for family, lines in sorted(families.items()):
        if lines:
            title, headings = "Table 1: BLEU by model, languages and position", ("model", "languages", "position")
            yield score_table(
                "table1", title, lines[0].group.corpus.replace(lines[0].group.data, family), headings, lines
            )


def _tables2_and_3(group: Group) -> Iterator[Grid]:
    """Table 2 of several k; Table 3 for the largest k with a keys-only or values-only variant, for the paper's if only
    `none` was run.
    """
    usual, kinds = paper.MODELS[group.size].clip_distance, ("relative_keys", "relative_values")
    positions = [variant.position for variant in group.variants if variant.position.clip_distance is not None]
    by_k = {position.clip_distance or 0 for position in positions if position.kind == "relative"}
    if by_k - {usual}:
        lines = [Line((str(k),), group, group.get("relative", k), "validation") for k in sorted({*paper.TABLE2, *by_k})]
        yield score_table("table2", "Table 2: BLEU by clip distance k", group.heading, ("k",), lines)
    alone = {position.clip_distance or 0 for position in positions if position.kind in kinds}
    if alone or group.get("none").records:
        k, lines = max(alone, default=usual), []
        for sides in paper.TABLE3:
            variant = group.get(KIND_OF_SIDES[sides], k if any(sides) else None)
            lines.append(Line(tuple("yes" if on else "no" for on in sides), group, variant, "validation"))
        assumed = f"the paper's Table 3 does not print its k; assumed: {paper.TABLE3_CLIP_DISTANCE}, the base model's"
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        yield score_table("table3", title, f"{group.heading} | k = {k}", ("a^V", "a^K"), lines, assumed)

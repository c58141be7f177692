"""All tables of a report: rows with n, score, change from the baseline, and a verdict; the best recipes; by length; and
the findings that stand above them.

The paper's Tables 1 to 3 are the score table with the rows of the paper; every other has all rows of groups that are
alike, the best first. By length of the context separate and sliding windows stand side by side: in the former most
tokens have a short context, so a model can gain with length without using it (Press et al. 2022, appendix B).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rpr import paper
from rpr.data.generated import TASKS
from rpr.kinds import TASK, TEXT, TRANSLATION
from rpr.records.measurement import Measurement, missing, single
from rpr.records.position import name_of
from rpr.records.record import Record, short_names
from rpr.records.scores import (
    BITS_PER_BYTE,
    METRIC_NAMES,
    ByContext,
    LengthBucket,
    counted,
    pooled,
    search_in_words,
    tokenised_in_words,
)
from rpr.report.groups import (
    KIND_OF_SIDES,
    LEARNING_RULE,
    NOT_LEARNED,
    PAPER,
    SOLVED,
    Group,
    Key,
    Source,
    Variant,
    all_sources,
    compared,
    differences,
    find,
    named_in,
    never_run,
    published_figures,
    run_key,
    sweep_files_of,
    tokens_per_step,
)
from rpr.report.render import DASH, Cell, Column, Grid, grid_of
from rpr.report.verdicts import BETTER, LEAST_SEEDS, MODEL, OPEN, WORSE

# The sections of a page with tables of all groups, in its order.
HEADINGS = {
    "scores": "Scores",
    "sizes": "Does it hold with size?",
    "recipes": "The best recipe of each variant",
    "paper": "The paper's tables",
}
WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
UNIGRAM = "unigram entropy of the corpus"
_UNPUBLISHED = "no published figure of this row as a whole"
_MORE = "not among the seeds of the sweep's file: runs added later make a difference by chance more likely"
RULE = (
    "Better or worse: the 95% interval of the change from the baseline excludes zero; open: it does not, or there are "
    f"fewer than {LEAST_SEEDS} seeds on a side. The intervals hold together for all rows of a table: {MODEL}, unless a "
    "note of the table names another method."
)
LEAST_KS = 3  # of relative positions, for a finding on k


@dataclass(frozen=True)
class Line:
    """A row: its labels, one for each label column, its variant, and the split that published figures of it are on."""

    labels: tuple[str, ...]
    variant: Variant
    papers_split: str = "test"

    @property
    def group(self) -> Group:
        return self.variant.group

    def figure(self, source: Source) -> Measurement:
        """What a source prints for this row."""
        published = find(self.variant, source, self.papers_split if source is PAPER else None)
        if published is None or (source is not PAPER and published.key not in self.group.keys):
            return missing(_UNPUBLISHED)
        return single(published.figure)

    def papers_change(self) -> Measurement:
        """The change of the paper's figure from its figure of the baseline."""
        own, its = (find(side, PAPER, self.papers_split) for side in (self.variant, self.group.baseline))
        if not self.group.published or own is None or its is None or self.variant is self.group.baseline:
            return missing(_UNPUBLISHED)
        return single(round(own.figure - its.figure, 1))

    def note(self) -> Cell:
        """What a reader must know: whether it learned, and seeds without a result or trained otherwise."""
        variant, finished, baseline = self.variant, self.variant.finished, self.group.baseline
        planned, chips = named_in(sweep_files_of(finished), "seed"), {run.seed: run.device for run in baseline.finished}
        other = [run for run in finished if run.device != chips.get(run.seed, run.device)]
        of_seeds = [
            *(("incomplete", run.status, run.seed) for run in variant.unfinished),
            *(("uncommitted", "trained from uncommitted changes", run.seed) for run in finished if run.git.dirty),
            *(("more seeds", _MORE, run.seed) for run in finished if planned and str(run.seed) not in planned),
            *(("other chip", f"on {run.device}, {baseline.label} on {chips[run.seed]}", run.seed) for run in other),
        ]
        remarks = {("", why): why for why in [variant.unlearned()] if why}
        remarks |= {("still learning", ""): LEARNING_RULE} if variant.fall is not None else {}
        for word, why in dict.fromkeys(one[:2] for one in of_seeds):
            seeds = ", ".join(str(seed) for *what, seed in of_seeds if what == [word, why])
            remarks[word, why] = f"seed {seeds}: {why}"
        return Cell(", ".join(filter(None, dict.fromkeys(word for word, _ in remarks))), tuple(remarks.values()))


class Tables:
    """Every table for which the groups have rows, by section of HEADINGS and by length; `rules`: what verdicts mean."""

    def __init__(self, groups: Sequence[Group]) -> None:
        papers = [group for group in groups if group.published and group.kind is TRANSLATION]
        sections = {
            "scores": [all_rows(family) for family in alike(groups)],
            "sizes": [*_by_size(groups)],
            "recipes": [*recipe_grids(groups)],
            "paper": [*_tables1(papers), *(grid for group in papers for grid in _tables2_and_3(group))],
        }
        self.sections = {name: grids for name, grids in sections.items() if grids}
        self.main = [grid for grids in sections.values() for grid in grids]
        self.by_length = [grid for group in groups for grid in (*length_grid(group), *context_grids(group))]
        self.grids = [*self.main, *self.by_length]
        self.rules = [RULE, *dict.fromkeys(group.kind.caution for group in groups)]


def _figure(variant: Variant, key: Key, *, change: bool = False) -> Cell:
    """The score of a key or its change from the baseline, which itself has none; a remark if it is not of as many seeds
    as the column `n` says.
    """
    if change and variant is variant.group.baseline:
        return Cell("")
    figure, seeds = variant.change(key) if change else variant.measured(key), len(variant.finished)
    if figure.value is None or figure.n == (seeds or figure.n):
        return Cell(figure)
    return Cell(figure, (f"{figure.n} of {seeds} seeds" if figure.n < seeds else f"over {figure.n} seeds",))


# Scores


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by corpus, model, steps and hardware; those of one list differ in other settings and share a table."""
    headings = dict.fromkeys(group.common_heading for group in groups)
    return [[group for group in groups if group.common_heading == heading] for heading in headings]


def all_rows(groups: Sequence[Group]) -> Grid:
    """The table of groups that are alike: all their variants, the best first, those without a score last."""
    first, lines = groups[0], [Line((variant.label,), variant) for group in groups for variant in group.variants]
    setting = first.heading if len(groups) == 1 else first.common_heading
    title = f"{METRIC_NAMES[first.kind.metric]} on {first.split}"
    about = _about(first, [run for group in groups for run in group.runs])
    return score_table("scores", title, setting, ("position",), best_first(lines), *about)


def best_first(lines: Iterable[Line]) -> list[Line]:
    """Those without a score last."""
    scores = {line: line.variant.measured(line.group.key).value for line in lines}
    return sorted(scores, key=lambda line: (scores[line] is None, line.group.kind.best_first(scores[line] or 0.0)))


def _about(first: Group, runs: Sequence[Record]) -> Iterator[str]:
    """What a task's lengths are, and how much text a language model read."""
    if first.kind is TASK:
        names = ("data.task.max_train_length", "data.task.max_long_length")
        train, longest = (" or ".join(map(str, sorted({run.setting(name) or 0 for run in runs}))) for name in names)
        unit = getattr(TASKS.get(str(runs[0].setting("data.task.kind"))), "UNIT", "")
        yield f"test: lengths up to {train} {unit}, as in training; long: up to {longest}"
        yield f"seeds ≥ {SOLVED:g}%: those with at least as much exact match on {first.split}"
    if first.kind is TEXT:
        tokens = sorted({tokens_per_step(run.config) * run.max_steps for run in runs})
        more = ", besides those of the run that it started from" * any(run.setting("origin") for run in runs)
        yield f"trained on at most {' or '.join(f'{count:,}' for count in tokens)} tokens{more}"
    if first.unigram is not None:
        yield f"{UNIGRAM}: {first.unigram:.2f} bits per byte"


def score_table(
    name: str, title: str, setting: str, headings: Sequence[str], lines: Sequence[Line], *notes: str
) -> Grid:
    """Rows of scores with changes, beside the figures of every source that has one; `headings` are of labels."""
    groups = list({id(line.group): line.group for line in lines}.values())
    shown = all_sources() if any(group.published for group in groups) else []
    sources = [source for source in shown if any(line.figure(source).value is not None for line in lines)]
    # 1. How its scores were computed and compared, and what makes rows incomparable.
    below, warnings = list[str](), list[str]()
    for group in groups:
        scoring, unlike = _scoring_notes([line.variant for line in lines if line.group is group])
        below += scoring
        warnings += unlike
    if baselines := dict.fromkeys(group.baseline.label for group in groups if group.baseline.records):
        own = ", whichever is the baseline of the row's own runs" if len(baselines) > 1 else ""
        below.append(f"change: from {' or '.join(baselines)}{own}, with its 95% interval")
        methods = (group.changes(group.key).method for group in groups)
        below += [f"intervals of changes: {method}" for method in methods if method not in ("", MODEL)]
    # 2. What the published figures beside them are.
    below += [f"{source.heading}: {source.citation}; {source.protocol}" for source in sources]
    if PAPER in sources:
        texts = [text for group in groups for text in differences(group.finished, group.size, group.languages)]
        below += [f"differs from the paper: {'; '.join(dict.fromkeys(texts))}"] * bool(texts)
    # 3. The columns; the settings in which groups differ are labels, too.
    names = short_names(dict.fromkeys(name for group in groups for name in group.distinct))
    differ = [name for name in names if len({str(group.settings.get(name)) for group in groups}) > 1]
    tested = [*dict.fromkeys(key for group in groups for key in group.keys)]
    kind, key, split = groups[0].kind, groups[0].key, groups[0].split

    def cells_of(line: Line) -> Iterator[tuple[Column, Any]]:
        variant, digits = line.variant, kind.digits
        labels = (*line.labels, *(str(line.group.settings.get(name)) for name in differ))
        for label, heading in zip(labels, (*headings, *map(names.__getitem__, differ)), strict=True):
            yield Column(heading, heading, kind="label"), label
        # 4. The answer: score, change, the paper's change, verdict.
        yield Column("n", "n"), str(len(variant.finished))
        yield Column(split, f"{kind.heading} {split}", digits), _figure(variant, key)
        yield Column(f"{split}_change", "change", digits, signed=True), _figure(variant, key, change=True)
        yield Column("paper_change", "paper's change", signed=True), line.papers_change()
        yield Column(f"{split}_verdict", "verdict", kind="words"), variant.verdict(key)
        if kind is TASK:
            solved = [score.value >= SOLVED for score in variant.scores.get(key, {}).values()]
            yield Column(f"{split}_solved", f"seeds ≥ {SOLVED:g}%"), f"{sum(solved)} of {len(solved)}" if solved else ""
        for source in sources:
            places = 1 if source is PAPER else digits
            yield Column(source.key, source.heading, places, priority=1), line.figure(source)
        # 5. The change for other documents too; other splits, of translations also their changes; notes.
        if kind is TEXT:
            words = "change, over seeds and documents"
            over = "" if variant is line.group.baseline else variant.over_documents(split)
            yield Column(f"{split}_change_over_documents", words, digits, True, priority=1), over
        for other in (of_split for of_split, metric in tested if metric == kind.metric and of_split != split):
            own = (other, kind.metric)
            yield Column(other, f"{kind.heading} {other}", digits, priority=1), _figure(variant, own)
            if kind is TRANSLATION:
                column = Column(f"{other}_change", f"change {other}", digits, True, priority=1)
                yield column, _figure(variant, own, change=True)
        yield Column("note", "note", kind="words", priority=1), line.note()
        # 6. Other metrics, which only report.json has.
        for other, metric in (of_key for of_key in tested if of_key[1] != kind.metric):
            column = Column(f"{metric}_{other}", f"{METRIC_NAMES.get(metric, metric)} {other}", digits, priority=3)
            yield column, _figure(variant, (other, metric))

    about: dict[str, Any] = {"notes": [*dict.fromkeys([*below, *notes])], "warnings": [*dict.fromkeys(warnings)]}
    return grid_of(name, title, lines, cells_of, setting=setting, **about)


def _scoring_notes(variants: Sequence[Variant]) -> tuple[list[str], list[str]]:
    """How the scores of these variants of a group were computed, and what makes rows incomparable."""
    runs = [run for variant in variants for run in variant.finished]
    every = [score for run in runs for score in run.scores if score.metric == run.kind.metric]
    notes, warnings = [], []
    for split in [split for split, metric in variants[0].group.keys if metric == variants[0].group.kind.metric]:
        scores = [score for score in every if score.split == split]
        if len({score.way for score in scores}) > 1:
            warnings.append(f"not comparable: the rows of {split} were scored in different ways")
        sizes = " or ".join(f"{count:,}" for count in sorted({score.num_sentences for score in scores}))
        ways = " or ".join(sorted({f"{score.signature}; {search_in_words(score)}" for score in scores}))
        sets = " or ".join(sorted({score.test_set for score in scores}))
        on = f"{split}: {sets}, {counted(sizes, variants[0].group.kind.metric)}"
        notes.append(f"{on}; {ways}; {' or '.join(sorted({score.checkpoint for score in scores}))}")
        tokenised = max(score.tokenised_references or 0 for score in scores)
        notes += [f"{split}: {tokenised_in_words(tokenised)}"] * bool(tokenised)
    return notes, warnings


def _by_size(groups: Sequence[Group]) -> Iterator[Grid]:
    """The changes of each row in models of several widths on one corpus, whatever their steps."""
    families: dict[tuple[str, str], dict[int, Group]] = {}
    for group in groups:
        width = group.runs[0].setting("model.d_model") or 0
        families.setdefault((group.corpus, group.hardware), {}).setdefault(width, group)

    for setting, by_width in families.items():
        labels = dict.fromkeys(row.label for group in by_width.values() for row in group.variants)
        first = next(iter(by_width.values()))

        def cells_of(label: str, by_width: Mapping[int, Group] = by_width) -> Iterator[tuple[Column, Any]]:
            yield Column("position", "position", kind="label"), label
            for width, group in sorted(by_width.items()):
                row = next((row for row in group.variants if row.label == label), never_run(group, label))
                column = Column(f"change_{width}", f"change, d_model {width}", group.kind.digits, signed=True)
                yield column, _figure(row, group.key, change=True)
                yield Column(f"verdict_{width}", "verdict", kind="words"), row.verdict(group.key)

        if len(by_width) > 1:
            title = f"Change from {first.baseline.label} on {first.split} by the width of the model"
            yield grid_of("sizes", title, [*labels], cells_of, setting=" | ".join(setting))


# The paper's


def _tables1(groups: Sequence[Group]) -> Iterator[Grid]:
    """Table 1 for each corpus, with all its languages and models: absolute, and relative with the paper's k."""
    families: dict[str, list[Line]] = {}
    for group in sorted(groups, key=lambda group: (group.size, group.model, group.max_steps, group.languages)):
        own = group.model not in paper.MODELS or group.max_steps != paper.MODELS[group.size].steps
        model = f"{group.model}, {group.max_steps:,} steps" if own else group.model
        family = group.corpus.replace(group.data, group.data.removesuffix(f"_{group.languages}"))
        for variant in (group.get("absolute"), group.papers_relative):
            position = re.sub(r", k = \d+\b", "", variant.label, count=1)
            line = Line((model, group.languages.upper().replace("_", "-"), position), variant)
            families.setdefault(family, []).extend([line] * bool(variant.records))
    title, headings = "Table 1: BLEU by model, languages and position", ("model", "languages", "position")
    for family, lines in sorted(families.items()):
        if lines:
            yield score_table("table1", title, family, headings, lines)


def _tables2_and_3(group: Group) -> Iterator[Grid]:
    """Table 2 of several k; Table 3 of the largest k of keys or values alone, of the paper's if only `none` was run."""
    usual, kinds = paper.MODELS[group.size].clip_distance, ("relative_keys", "relative_values")
    positions = [variant.position for variant in group.variants if variant.position.clip_distance is not None]
    by_k = {position.clip_distance or 0 for position in positions if position.kind == "relative"}
    if by_k - {usual}:
        lines = [Line((str(k),), group.get("relative", k), "validation") for k in sorted({*paper.TABLE2, *by_k})]
        yield score_table("table2", "Table 2: BLEU by clip distance k", group.heading, ("k",), lines)
    alone = {position.clip_distance or 0 for position in positions if position.kind in kinds}
    if alone or group.get("none").records:
        k, lines = max(alone, default=usual), []
        for sides in paper.TABLE3:
            variant = group.get(KIND_OF_SIDES[sides], k if any(sides) else None)
            lines.append(Line(tuple("yes" if on else "no" for on in sides), variant, "validation"))
        assumed = f"the paper's Table 3 does not print its k; assumed: {paper.TABLE3_CLIP_DISTANCE}, the base model's"
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        yield score_table("table3", title, f"{group.heading} | k = {k}", ("a^V", "a^K"), lines, assumed)


# Recipes


def recipe_grids(groups: Sequence[Group]) -> Iterator[Grid]:
    """The best setting of each variant in the grids of recipes of these runs' sweeps, chosen on validation. A sweep's
    file names the settings of its grid, `best_of: [optim.learning_rate_scale, model.dropout]`, and groups that differ
    in these alone are one grid. Raises RecordError if the file of a sweep cannot be read.
    """
    files = sweep_files_of(run for group in groups for run in group.runs)
    best_of = [keys for file in files if isinstance(keys := file.get("best_of"), list) and keys]
    for keys in dict.fromkeys(tuple(map(str, keys)) for keys in best_of):
        families: dict[str, dict[str, dict[tuple[str, ...], Variant]]] = {}
        for group in groups:
            rest = {key: value for key, value in group.settings.items() if key not in keys}
            setting = tuple(str(group.settings.get(key)) for key in keys)
            family = families.setdefault(str((group.data, group.model, group.hardware, rest)), {})
            for variant in group.variants:
                family.setdefault(variant.position.identity, {})[setting] = variant
        yield from (grid for family in families.values() for grid in _recipe_grid(keys, [*family.values()]))


def _recipe_grid(keys: Sequence[str], variants: Sequence[Mapping[tuple[str, ...], Variant]]) -> Iterator[Grid]:
    """The score table of each variant's runs at its own best setting; `variants` by their values of the keys."""
    # 1. The best of each by the mean over the seeds of all its settings.
    first = next(iter(variants[0].values())).group
    key, choose = ("validation", first.kind.metric), min if first.kind.lower_is_better else max
    names, rows = short_names(keys).values(), dict[Variant, str]()
    for tried in variants:
        scores = {setting: of for setting, row in tried.items() if (of := row.scores.get(key))}
        if seeds := set[int]().union(*scores.values()).intersection(*scores.values()):
            levels = {setting: fmean(of[seed].value for seed in sorted(seeds)) for setting, of in scores.items()}
            best = choose(levels, key=levels.__getitem__)
            words = ", ".join(f"{name} {value}" for name, value in zip(names, best, strict=True))
            label = max((row.label for row in tried.values()), key=len)  # what tells it apart in any group
            runs = {run_key(run): tried[best].beside[run.seed] for run in tried[best].finished}
            rows[Variant(tried[best].position, label, tried[best].finished, runs)] = f"{words} (of {len(levels)})"
    # 2. Their table.
    if not rows or len({setting for tried in variants for setting in tried}) < 2:
        return
    Group({}, (), [*rows], first.baseline_name)  # the rows are compared within it
    lines = [Line((row.label, setting), row) for row, setting in rows.items()]
    steps = "" if "optim.max_steps" in keys else f"{first.max_steps:,} steps"
    parts = (first.corpus, f"model {first.model}", steps, first.hardware, first.distinctly(*keys))
    notes = [
        f"best setting: of {', '.join(keys)}, by the score on validation over the seeds of all settings of the row",
        "the best of several noisy validation scores is too high by some of that noise, which test scores are not",
    ]
    title = "The best recipe of a grid for each variant, chosen on validation"
    setting = " | ".join(filter(None, parts))
    yield score_table("recipes", title, setting, ("position", "best setting"), best_first(lines), *notes)


# By length and context


def _by_key(group: Group, name: str, title: str, columns: Mapping[Key, Column], **about: Any) -> Grid:
    """A row for each variant, a column for each key; by context also of changes, and a row of the unigram entropy."""
    rows, by_context = [*group.variants], name == "contexts"
    if group.unigram is not None and by_context:
        rows.append(never_run(group, UNIGRAM))
        rows[-1].measurements = {key: single(group.unigram) for key in columns}

    def cells_of(row: Variant) -> Iterator[tuple[Column, Any]]:
        yield Column("position", "position", kind="label"), row.label
        yield Column("n", "n"), str(len(row.finished))
        for key, column in columns.items():
            yield column, _figure(row, key)
            if by_context and len(group.variants) > 1:
                change = column._replace(key=f"{column.key}_change", heading=f"change {column.heading}", signed=True)
                yield change, _figure(row, key, change=True) if row.finished else Cell("")

    return grid_of(name, title, rows, cells_of, setting=group.heading, **about)


def buckets(group: Group) -> dict[LengthBucket, str]:
    """Every bucket of the finished runs, the shortest first, with its number of sentences: a dash if they differ."""
    by_key: dict[tuple[int, int], list[LengthBucket]] = {}
    for bucket in (bucket for run in group.finished if run.by_length for bucket in run.by_length.buckets):
        by_key.setdefault(bucket.key, []).append(bucket)
    counts = {key: {bucket.num_sentences for bucket in alike} for key, alike in by_key.items()}
    return {by_key[key][-1]: f"{count:,}" if not more else DASH for key, (count, *more) in sorted(counts.items())}


def length_grid(group: Group) -> Iterator[Grid]:
    """The group's metric by length; nothing if no finished run has such scores."""
    shown, metric = buckets(group), group.kind.metric
    columns: dict[Key, Column] = {}
    for bucket, count in shown.items():
        key, heading = bucket.key, f"{bucket.label}{'*' * bucket.beyond_training} ({count})"
        columns[metric, *key] = Column(f"length_{key[0]}_{key[1] or 'up'}", heading, group.kind.digits)
    if not (scored := [run.by_length for run in group.finished if run.by_length is not None]):
        return
    first = scored[0]
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    notes = [f"lengths are {first.unit}, with the number of sentences in brackets; {sets}"]
    for signature in sorted({str(by_length.signatures.get(metric)) for by_length in scored}):
        notes.append(f"{METRIC_NAMES[metric]}: {signature}, {search_in_words(first)}")
    notes += [f"*: {first.longest_in_words}"] if any(bucket.beyond_training for bucket in shown) else []
    unlike = len({by_length.way(metric) for by_length in scored}) > 1 or DASH in shown.values()
    warnings = ["not comparable: the rows differ in how or on which sets they were scored"] * unlike
    title = f"{METRIC_NAMES[metric]} by {first.axis}, {pooled(first.splits)}"
    yield _by_key(group, "lengths", title, columns, notes=notes, warnings=warnings)


def by_context(group: Group) -> list[ByContext]:
    """What each finished run has of the group's split, or of the first one that any run was scored on so."""
    every = [by_context for run in group.finished for by_context in run.by_context]
    shown = min((by_context.split for by_context in every), key=lambda split: split != group.split, default="")
    return [by_context for by_context in every if by_context.split == shown]


def context_lengths(scored: Sequence[ByContext]) -> list[tuple[str, int]]:
    return sorted({(score.windows, score.length) for context in scored for score in context.scores})


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length of the context; none if no finished run was scored so."""
    if not (scored := by_context(group)):
        return
    first, split, baseline, windows = scored[0], scored[0].split, group.baseline, context_lengths(scored)
    lengths = sorted({length for _, length in windows})
    # 1. Notes.
    on = f"the same {first.num_bytes:,} bytes of {counted(first.num_documents, BITS_PER_BYTE)} of {first.test_set}"
    notes = [f"every length is scored on {on}; trained at {first.training_length:,} tokens; less is better"]
    how = "on different bytes, with other longest windows, or trained at different lengths"
    unlike = [f"not comparable: the rows were scored {how}"] * (len({context.way for context in scored}) > 1)
    strides = sorted({context.stride for context in scored if context.stride is not None})
    every = " or ".join(map("{:,}".format, strides))
    notes += [f"sliding: a window every {every} tokens, of which only the last {every} are scored"] * bool(strides)
    unlike += ["not comparable: sliding windows of different strides"] * (len(strides) > 1)
    # 2. By length. A page shows at once the length of training, the first of at least four times that, and the longest.
    least = {factor * context.training_length for context in scored for factor in (1, 4)}
    telling = {lengths[-1], *(next((length for length in lengths if length >= factor), 0) for factor in least)}
    columns: dict[Key, Column] = {}
    for kind, length in windows:
        heading, priority = f"{length:,}" + ", sliding" * (kind == "sliding"), 0 if length in telling else 3
        columns[split, kind, length] = Column(f"{kind}_{length}", heading, 3, priority=priority)
    if baseline.records:
        notes.append(f"change: from {baseline.label}; none of or from a row worse than the {UNIGRAM}")
    yield _by_key(group, "contexts", f"{CONTEXTS}, {split}", columns, notes=notes, warnings=unlike)


# Findings


def findings(group: Group) -> list[str]:
    """The findings of a group, the most important first."""
    return [*_counts(group), *_clip_distances(group), *_published_orders(group), *_learning(group), group.kind.caution]


def _counts(group: Group) -> Iterator[str]:
    """How many rows are better, worse and open, or why none is compared."""
    key, baseline = group.key, group.baseline
    names = list(dict.fromkeys(map(name_of, group.finished)))
    if key not in group.keys or len(names) < 2:
        return
    if not baseline.finished:
        missed, given = f"no run with position={group.baseline_name or 'absolute'} has finished", f"baseline={names[0]}"
        yield f"No row is compared: {missed}; choose what the others are compared with: {given}."
    elif why := baseline.unlearned(key):
        yield f"No row is compared: {baseline.label} has not learned ({why})."
    else:
        counts = Counter(row.verdict(key).partition(" (")[0] for row in group.variants if row is not baseline)
        parts = [f"{counts[verdict]} {verdict}" for verdict in (BETTER, WORSE, OPEN, NOT_LEARNED) if counts[verdict]]
        yield f"Against {baseline.label} on {group.split}: {', '.join(parts)}."


def _clip_distances(group: Group) -> Iterator[str]:
    """Which clip distances differ from the paper's (without it, the largest), in a model of these rows alone."""
    key, papers = group.key, group.papers_relative.position.clip_distance
    by_k = {k: row for row in reversed(group.variants) if row.position.kind == "relative" and key in row.scores
            and (k := row.position.clip_distance) is not None}  # fmt: skip
    if len(by_k) < LEAST_KS or any(row.unlearned(key) for row in by_k.values()):
        return
    usual, rows = str(papers if papers in by_k else max(by_k)), {str(k): by_k[k].scores[key] for k in sorted(by_k)}
    verdicts = {k: text.partition(" (")[0] for k, text in compared(rows, usual, group.kind, key).verdicts.items()}
    of_ks = {word: [k for k, verdict in verdicts.items() if verdict == word] for word in (BETTER, WORSE, OPEN)}
    said = (f"k = {', '.join(ks)} {'are' if len(ks) > 1 else 'is'} {word}" for word, ks in of_ks.items() if ks)
    yield f"Against k = {usual}: {'; '.join(said)}."


def _published_orders(group: Group) -> Iterator[str]:
    """The published order of schemes of which the figures are of other models, and ours."""
    for source, figures in published_figures(group).items():
        if len(figures) > 1:
            theirs = [variant for variant, _ in sorted(figures, key=lambda row: group.kind.best_first(row[1]))]
            ours = sorted(theirs, key=lambda variant: group.kind.best_first(variant.measured(group.key).value or 0.0))
            first, second = (", ".join(variant.label for variant in order) for order in (theirs, ours))
            same = "the same order here" if ours == theirs else f"here {second}"
            yield f"Best first, {source.heading}: {first}; {same}."


def _learning(group: Group) -> Iterator[str]:
    if falls := [variant.fall for variant in group.variants if variant.fall is not None]:
        last = f"whose validation loss fell by up to {max(falls):.1%} over the last tenth"
        remedy = f"train twice as long: optim.max_steps={2 * group.max_steps}"
        yield f"Still learning when training ended: {len(falls)} of {len(group.variants)} rows, {last}; {remedy}."

"""The tables of a report as grids: score tables beside published figures, speeds, and scores by length.

The paper's Tables 1 to 3, the table of a generated task and the summary on a terminal are one `score_table` of
different rows. Rows and columns are defined in `rpr.report.lines`, published figures in `rpr.report.published`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rpr import paper
from rpr.model.positions.vectors import SHARING
from rpr.report.agreement import Verdict
from rpr.report.contexts import context_grids
from rpr.report.groups import Group, Variant
from rpr.report.lengths import length_grid
from rpr.report.lines import AFTER_THE_SCORES, CHANGE, Line, facts_of, labels, score_columns
from rpr.report.protocol import TOKENS, compared_settings
from rpr.report.published import KIND_OF_SIDES, PAPER, Source, all_sources, find
from rpr.report.recipes import Recipes, recipe_grids, recipes
from rpr.report.scoring import scoring_notes
from rpr.report.speed import SpeedRow, ratio_to_absolute, speed_grid, steps_per_second
from rpr.tables.grid import Cell, Column, Grid, Note


def score_table(
    name: str, title: str, setting: str, headings: Sequence[str], lines: Sequence[Line], *notes: str
) -> Grid:
    """Rows of scores with their changes, beside the figures of every source that has one for a row.

    The paper's columns are in every table of translations, also without a figure.

    Args:
        headings: of the labels of each line.
        notes: lines after those on scores, sources and changes.
    """
    groups = list({id(line.group): line.group for line in lines}.values())
    found = [one for one in all_sources() if any(line.figure(one).value is not None for line in lines)]
    if groups[0].translation and PAPER not in found:
        found = [PAPER, *found]
    scoring = dict.fromkeys(
        note
        for group in groups
        for note in scoring_notes([line.variant for line in lines if line.group is group and line.variant])
    )
    about = [f"Δ: change from {lines[0].reference_name}, {CHANGE}"]
    for source in found:
        on = f" on {source.test_sets[lines[0].papers_split]}" if source.test_sets else ""
        about.append(f"{source.heading}{on}: {source.citation}; {source.protocol}")
    grid = Grid(
        name,
        title,
        (*labels(*headings), *score_columns(lines, found)),
        tuple(lines),
        setting,
        (*scoring, *map(Note, (*about, *notes))),
        synthetic=any(group.synthetic for group in groups),
    )
    return grid.without_empty_columns(PAPER.key)


@dataclass(frozen=True)
class Tables:
    """All tables of a report, in page order."""

    paper: tuple[Grid, ...]  # Tables 1 to 3
    tasks: tuple[Grid, ...]
    documents: tuple[Grid, ...]  # language models
    speed: Grid | None
    lengths: tuple[Grid, ...]
    recipes: tuple[Recipes, ...] = ()  # of sweeps with a grid of recipes

    @cached_property
    def sections(self) -> list[tuple[str, str, tuple[Grid, ...]]]:
        """Name, heading and tables of each part of a page but the scores by length, which stand with their group."""
        tried = tuple(grid for one in self.recipes for grid in recipe_grids(one))
        speed = () if self.speed is None else (self.speed,)
        parts = [("paper", "The paper's tables", self.paper), ("tasks", "Generated tasks", self.tasks)]
        parts += [("documents", "Language models", self.documents)]
        parts += [("recipes", "The best recipe of each variant", tried), ("speed", "Speed", speed)]
        return [part for part in parts if part[2]]

    @property
    def main(self) -> list[Grid]:
        return [grid for *_, grids in self.sections for grid in grids]

    @property
    def grids(self) -> list[Grid]:
        return [*self.main, *self.lengths]

    @property
    def verdicts(self) -> list[Verdict]:
        """Of every comparison with the paper's tables."""
        return [line.agreement.verdict for grid in self.paper for line in grid.rows if line.agreement is not None]


def build_tables(groups: Sequence[Group], benches: Sequence[SpeedRow] = ()) -> Tables:
    """Every table for which the groups have rows.

    Each variant of a translation corpus is in one of the paper's three tables, the paper's k in all.
    """
    translation = [group for group in groups if group.translation]
    found = list(_tables1(translation))
    for group in translation:
        for sharing in group.sharings:
            found += _table2(group, sharing)
            found += _table3(group, sharing)
    return Tables(
        tuple(found),
        tuple(map(task_table, alike([group for group in groups if group.task]))),
        tuple(map(document_table, alike([group for group in groups if group.documents]))),
        speed_grid(translation, benches),  # a task's models are so small that their steps/s say nothing of positions
        tuple(grid for group in groups if (grid := length_grid(group)) is not None)
        + tuple(grid for group in groups for grid in context_grids(group)),
        tuple(recipes(groups)),
    )


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by corpus, model, steps and hardware; those of one list differ in other settings and share a table."""
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        found.setdefault((group.data, group.model, group.max_steps, group.hardware), []).append(group)
    return [*found.values()]


def summary_table(rows: Sequence[tuple[Variant, Group]]) -> Grid:
    """Variants of groups that are alike in one table for a terminal: scores, published figures, speed."""
    first = rows[0][1]
    lines = [(_task_line if group.task else _summary_line)(variant, group) for variant, group in rows]
    grid = score_table("summary", first.common_heading, "", ("position",), lines).up_to(2)
    if first.task:
        return grid
    kept = [one for one in grid.columns if one not in AFTER_THE_SCORES]
    return Grid("summary", grid.title, (*kept, *_SUMMARY), tuple(lines)).without_empty_columns()


def _summary_line(variant: Variant, group: Group) -> Line:
    k = paper.MODELS[group.size].clip_distance
    reference, splits = group.get("relative", k, group.sharings[0]), (group.development,)
    own = {"kind": "relative", "k": k}
    return Line(
        (variant.label,), group, variant, reference, f"relative, k = {k}", splits, splits, {}, own, "validation"
    )


_SUMMARY = (
    Column("speed", "speed", lambda line: ratio_to_absolute(line.group, line.variant), digits=2, priority=1),
    Column("steps_per_second", "steps/s", lambda line: steps_per_second(line.variant), digits=2, priority=2),
    # Without a footnote on learning: the findings below the table give the advice.
    Column("note", "note", lambda line: Cell(line.variant.undecided, line.variant.uncommitted), words=True),
)


def _tables1(groups: Sequence[Group]) -> Iterator[Grid]:
    """One table for each corpus, with all its languages."""
    families: dict[str, list[Group]] = {}
    for group in groups:
        families.setdefault(group.data.removesuffix(f"_{group.languages}"), []).append(group)
    for family, members in families.items():
        lines = [line for group in sorted(members, key=_order1) for line in _lines1(group)]
        if lines:
            name = f"{family} (synthetic)" if members[0].synthetic and "synthetic" not in family else family
            title = "Table 1: BLEU by model, languages and position"
            sizes = " and ".join(sorted({group.size for group in members if group.model not in paper.MODELS}))
            beside = [f"the paper's figures beside a model of ours are of its {sizes} model"] if sizes else []
            yield score_table("table1", title, name, ("model", "languages", "position"), lines, *beside)


def _order1(group: Group) -> tuple[bool, bool, int, int, str, str]:
    """Sort key: the paper's base model, then ours from smallest to largest, then the paper's big model."""
    width = int(group.runs[0].setting("model.d_model") or 0)
    own = group.model not in paper.MODELS
    return (group.size == "big", own, width, group.max_steps, group.model, group.languages)


def _lines1(group: Group) -> Iterator[Line]:
    """Absolute, relative with the paper's k, and all variants that are not in Tables 2 and 3."""
    k = paper.MODELS[group.size].clip_distance
    own = group.model not in paper.MODELS or group.max_steps != paper.MODELS[group.size].steps
    model = f"{group.model}, {group.max_steps:,} steps" if own else group.model
    rows = [
        variant
        for variant in group.variants
        if variant.position.kind not in ("none", "relative_keys", "relative_values")
        and (variant.position.kind != "relative" or variant.position.clip_distance == k)
    ]
    elsewhere = all(variant.position.kind == "relative" for variant in rows) and len(group.variants) > len(rows)
    languages = group.languages.upper().replace("_", "-")
    for variant in () if elsewhere else rows:
        label = re.sub(rf", k = {k}\b", "", variant.label, count=1)  # only a k other than the paper's is shown
        yield Line(
            (model, languages, label),
            group,
            variant,
            group.baseline,
            group.baseline_label,
            (group.split,),
            ("test", *group.own_splits),
        )


def _setting(group: Group, sharing: str | None) -> str:
    several = len(group.sharings) > 1 and sharing is not None
    return f"{group.heading} | tables {SHARING.get(str(sharing), sharing)}" if several else group.heading


def _table2(group: Group, sharing: str | None) -> Iterator[Grid]:
    relative = [one for one in group.variants if one.position.kind == "relative" and one.position.tables == sharing]
    by_k = {one.position.clip_distance: one for one in relative if one.position.clip_distance is not None}
    sixteen = paper.MODELS["base"].clip_distance
    if not set(by_k) - {paper.MODELS[group.size].clip_distance}:
        return

    def row(k: int) -> tuple[Variant | None, dict[str, Any]]:
        return by_k.get(k), {"kind": "relative", "k": k}

    lines = [
        _line_of_base((str(k),), group, row(k), row(sixteen), f"k = {sixteen}") for k in sorted({*paper.TABLE2, *by_k})
    ]
    yield score_table("table2", "Table 2: BLEU by clip distance k", _setting(group, sharing), ("k",), lines)


def _table3(group: Group, sharing: str | None) -> Iterator[Grid]:
    """One table for each k with a keys-only or values-only variant; for the paper's k if only `none` was run."""
    alone = {
        one.position.clip_distance
        for one in group.variants
        if one.position.kind in ("relative_keys", "relative_values") and one.position.tables == sharing
    }
    none = group.get("none")
    if not alone and none is None:
        return
    assumed = paper.TABLE3_CLIP_DISTANCE
    theirs = f"the paper's Table 3 does not print its k; assumed: {assumed}, the base model's"
    for k in sorted(k for k in alone or {paper.MODELS[group.size].clip_distance} if k is not None):
        rows = {
            sides: (none if kind == "none" else group.get(kind, k, sharing), {"kind": kind, "k": assumed})
            for sides, kind in KIND_OF_SIDES.items()
        }
        lines = [
            _line_of_base(tuple("yes" if on else "no" for on in sides), group, rows[sides], rows[True, True], "both on")
            for sides in paper.TABLE3
        ]
        reading = theirs if k == assumed else f"{theirs}, not this table's {k}"
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        yield score_table("table3", title, f"{_setting(group, sharing)} | k = {k}", ("a^V", "a^K"), lines, reading)


def _line_of_base(
    labels: tuple[str, ...],
    group: Group,
    row: tuple[Variant | None, dict[str, Any]],
    reference: tuple[Variant | None, dict[str, Any]],
    name: str,
) -> Line:
    """A row of Tables 2 and 3; it and its reference are a variant, if it was run, and the facts of the paper's row."""
    splits, changed = ("validation", group.split), ("validation", "test", *group.own_splits)
    (variant, own), (other, its) = row, reference
    return Line(labels, group, variant, other, name, splits, changed, own, its, "validation")


def published_figures(group: Group) -> dict[Source, list[tuple[Variant, float]]]:
    """The figures on the group's split of sources of which only the order can be compared, by variant."""
    found: dict[Source, list[tuple[Variant, float]]] = {}
    for variant in group.variants:
        for source in all_sources():
            one = find(facts_of(variant, group), source, group.split)
            if source.compares == "order" and one is not None and group.score(variant, group.split).value is not None:
                found.setdefault(source, []).append((variant, one.figure))
    return found


def task_table(groups: Sequence[Group]) -> Grid:
    """Every variant on a generated task, of groups that are alike."""
    first, runs = groups[0], [group.runs[0] for group in groups]
    lines = [_task_line(variant, group) for group in groups for variant in group.variants]
    longest, most = (
        sorted({run.setting(f"data.task.max_{split}_length") or 0 for run in runs}) for split in ("train", "long")
    )
    sizes = ", ".join(
        f"{name} {runs[0].setting(f'model.{name}')}"
        for name in ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
    )
    lengths = " or ".join(map(str, longest))
    beyond = f", up to {' or '.join(map(str, most))}" if any(most) else ""
    notes = (f"test: lengths up to {lengths}, as in training; long: longer inputs{beyond}", f"model: {sizes}")
    setting = first.heading if len(groups) == 1 else first.common_heading
    return score_table("task", f"Exact match on {runs[0].task}, percent", setting, ("position",), lines, *notes)


def document_table(groups: Sequence[Group]) -> Grid:
    """Every variant of a language model of documents, of groups that are alike."""
    lines = [_task_line(variant, group) for group in groups for variant in group.variants]
    first = groups[0]
    setting = first.heading if len(groups) == 1 else first.common_heading
    tokens = sorted(
        {int(compared_settings(run).get(TOKENS) or 0) * run.max_steps for group in groups for run in group.runs}
    )
    trained = f"trained on {' or '.join(f'{count:,}' for count in tokens)} tokens"
    if len(tokens) == 1:
        trained = f"every row was {trained}: compared at equal tokens, also while a model is still learning"
    title = f"Bits per byte on {first.data}: less is better"
    return score_table("documents", title, setting, ("position",), lines, trained)


def _task_line(variant: Variant, group: Group) -> Line:
    splits = tuple(split for split in ("test", "long") if group.column(split) is not None) or (group.split,)
    return Line((variant.label,), group, variant, group.baseline, group.baseline_label, splits, (group.split,))

"""The tables of a report as grids: the paper's Tables 1 to 3 with our figures added, speeds, and scores by length.

Rows and columns are defined in `rpr.report.lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rpr import paper
from rpr.model.positions.vectors import SHARING
from rpr.records.measurement import Measurement, missing, single
from rpr.report.agreement import HEADINGS, Verdict
from rpr.report.grid import Column, Grid, Note
from rpr.report.groups import Group, Variant
from rpr.report.lengths import length_grid
from rpr.report.lines import AFTER_THE_SCORES, CHANGE, Line, labels, score_columns
from rpr.report.scoring import scoring_notes
from rpr.report.speed import SpeedRow, ratio_to_absolute, speed_grid, steps_per_second
from rpr.report.tasks import task_grid

SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}
NO_FIGURE = 'the paper prints no figure for both together ("did not observe any benefit")'
NO_ROW = "the paper's Table 2 has no row for this k"


def _score_grid(
    name: str, title: str, setting: str, headings: Sequence[str], lines: Sequence[Line], *notes: str
) -> Grid:
    about = [
        f"paper: BLEU on {lines[0].printed_set}, {paper.SOURCE}; {paper.BLEU_KIND}",
        f"ours: sacreBLEU; n: seeds; Δ: change from {lines[0].reference_name}, {CHANGE}",
        *notes,
    ]
    groups = list({id(line.group): line.group for line in lines}.values())
    scoring = dict.fromkeys(
        note
        for group in groups
        for note in scoring_notes(group, [line.variant for line in lines if line.group is group and line.variant])
    )
    grid = Grid(
        name,
        title,
        (*labels(*headings), *score_columns(lines)),
        tuple(lines),
        setting,
        (*scoring, *map(Note, about)),
        synthetic=any(group.synthetic for group in groups),
    )
    kept = grid.without_empty_columns()
    return kept if any(column.key == "paper" for column in kept.columns) else grid


@dataclass(frozen=True)
class Tables:
    """All tables of a report, in page order."""

    paper: tuple[Grid, ...]  # Tables 1 to 3
    tasks: tuple[Grid, ...]
    speed: Grid | None
    lengths: tuple[Grid, ...]

    @property
    def main(self) -> tuple[Grid, ...]:
        """All but the scores by length."""
        return (*self.paper, *self.tasks, *((self.speed,) if self.speed is not None else ()))

    @property
    def grids(self) -> tuple[Grid, ...]:
        return (*self.main, *self.lengths)

    @cached_property
    def verdicts(self) -> dict[Verdict, list[tuple[Group, str]]]:
        """Every comparison with the paper's tables in words, with its group."""
        found: dict[Verdict, list[tuple[Group, str]]] = {verdict: [] for verdict in HEADINGS}
        for grid in self.paper:
            for line in grid.rows:
                if line.agreement is not None:
                    words = f"{grid.title.partition(':')[0]}, {line.comparison}"
                    found[line.agreement.verdict].append((line.group, words))
        return found


def build_tables(groups: Sequence[Group], benches: Sequence[SpeedRow] = ()) -> Tables:
    """Every table for which the groups have rows.

    Each variant of a translation corpus is in one of the paper's three tables, the paper's k in all.
    """
    translation = [group for group in groups if not group.task]
    found = list(_tables1(translation))
    for group in translation:
        for sharing in group.sharings:
            found += _table2(group, sharing)
            found += _table3(group, sharing)
    return Tables(
        tuple(found),
        tuple(task_grid(group) for group in groups if group.task),
        speed_grid(translation, benches),  # a task's models are so small that their steps/s say nothing of positions
        tuple(grid for group in groups if (grid := length_grid(group)) is not None),
    )


def summary_grid(group: Group, variants: Sequence[Variant]) -> Grid:
    """Variants of a group in one table for a terminal: scores, published figures, speed."""
    if group.task:
        grid = task_grid(replace(group, variants=tuple(variants)))
        return grid.only(lambda column: column.priority < 3)
    k = paper.MODELS[group.size].clip_distance
    reference = group.get("relative", k, group.sharings[0])
    name = f"relative, k = {k}"
    lines = [
        Line(
            (variant.label,),
            group,
            variant,
            reference,
            name,
            *_printed(variant, group, k),
            paper.TABLE2_TEST_SET,
            (group.development,),
        )
        for variant in variants
    ]
    kept = [one for one in score_columns(lines) if one.priority < 3 and one not in AFTER_THE_SCORES]
    grid = Grid("summary", group.heading, (*labels("position"), *kept, *_SUMMARY), tuple(lines))
    return grid.without_empty_columns()


_SUMMARY = (
    Column("speed", "speed", lambda line: ratio_to_absolute(line.group, line.variant), digits=2, priority=1),
    Column("steps_per_second", "steps/s", lambda line: steps_per_second(line.variant), digits=2, priority=2),
    # Without a footnote: the findings below the table give the advice.
    Column("note", "note", lambda line: line.variant.undecided, words=True),
)


def _printed(variant: Variant, group: Group, k: int) -> tuple[Measurement, Measurement]:
    """The paper's newstest2013 figure for a variant, and its change from relative positions with this k."""
    position = variant.position
    if position.kind == "absolute":
        pair = group.papers_languages or "en_de"
        values = [paper.TABLE1[group.size, kind, pair] for kind in ("absolute", "relative")]
        reason = f"the paper's {values[0]} is on {paper.TABLE1_TEST_SET} (Table 1)"
        return missing(reason), single(round(values[0] - values[1], 1))
    figure = None
    if position.kind == "relative":
        figure = paper.TABLE2.get(position.clip_distance or 0)
    elif position.kind == "none":
        figure = paper.TABLE3[False, False]
    elif position.kind in ("relative_keys", "relative_values") and position.clip_distance == paper.TABLE3_CLIP_DISTANCE:
        figure = paper.TABLE3[position.kind == "relative_values", position.kind == "relative_keys"]
    return _base_en_de(group, figure, paper.TABLE2.get(k), _why_none(variant))


def _base_en_de(
    group: Group, figure: float | None, reference: float | None, why_none: str = ""
) -> tuple[Measurement, Measurement]:
    """A figure of the paper's Tables 2 and 3, and its change from another one."""
    if group.papers_languages != "en_de":
        figure, why_none = None, "the paper's Tables 2 and 3 are of EN-DE"
    return _with_change(figure, reference, why_none)


def _with_change(figure: float | None, reference: float | None, why_none: str) -> tuple[Measurement, Measurement]:
    """A figure of the paper's, and its change from another one."""
    if figure is None:
        return missing(why_none), missing(why_none)
    return single(figure), missing(NO_ROW) if reference is None else single(round(figure - reference, 1))


def _why_none(variant: Variant) -> str:
    """Why the paper has no figure for a variant."""
    return NO_FIGURE if variant.position.kind == "absolute_and_relative" else "not in the paper"


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
            yield _score_grid("table1", title, name, ("model", "languages", "position"), lines, *beside)


def _order1(group: Group) -> tuple[bool, bool, int, int, str, str]:
    """Sort key: the paper's base model, then ours from smallest to largest, then the paper's big model."""
    width = int(group.runs[0].setting("model.d_model") or 0)
    own = group.model not in paper.MODELS
    return (group.size == "big", own, width, group.max_steps, group.model, group.languages)


def _lines1(group: Group) -> Iterator[Line]:
    """Absolute, relative with the paper's k, and all variants that are not in Tables 2 and 3."""
    k = paper.MODELS[group.size].clip_distance
    absolute = group.get("absolute")
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
            absolute,
            "absolute",
            *_printed1(variant, group),
            paper.TABLE1_TEST_SET,
            ("test",),
            group.size,
            group.distinctly(),
        )


def _printed1(variant: Variant, group: Group) -> tuple[Measurement, Measurement]:
    """The paper's figure in Table 1, and its change from absolute."""
    pair, size = group.papers_languages, group.size
    if pair is None:
        reason = f"the paper has no figure for {group.languages.upper().replace('_', '-')}"
        return missing(reason), missing(reason)
    figure = paper.TABLE1.get((size, variant.position.kind, pair))
    return _with_change(figure, paper.TABLE1[size, "absolute", pair], _why_none(variant))


def _setting(group: Group, sharing: str | None) -> str:
    several = len(group.sharings) > 1 and sharing is not None
    return f"{group.heading} | tables {SHARING.get(str(sharing), sharing)}" if several else group.heading


def _table2(group: Group, sharing: str | None) -> Iterator[Grid]:
    relative = [one for one in group.variants if one.position.kind == "relative" and one.position.tables == sharing]
    by_k = {one.position.clip_distance: one for one in relative if one.position.clip_distance is not None}
    sixteen = paper.MODELS["base"].clip_distance
    if not set(by_k) - {paper.MODELS[group.size].clip_distance}:
        return
    lines = [
        Line(
            (str(k),),
            group,
            by_k.get(k),
            by_k.get(sixteen),
            f"k = {sixteen}",
            *_base_en_de(group, paper.TABLE2.get(k), paper.TABLE2[sixteen], NO_ROW),
            paper.TABLE2_TEST_SET,
            ("validation", "test"),
        )
        for k in sorted({*paper.TABLE2, *by_k})
    ]
    yield _score_grid("table2", "Table 2: BLEU by clip distance k", _setting(group, sharing), ("k",), lines)


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
    theirs = f"the paper's Table 3 does not print its k; assumed: {paper.TABLE3_CLIP_DISTANCE}, the base model's"
    for k in sorted(k for k in alone or {paper.MODELS[group.size].clip_distance} if k is not None):
        rows = {which: group.get(kind, k, sharing) for which, kind in SIDES.items()} | {(False, False): none}
        lines = [
            Line(
                tuple("yes" if on else "no" for on in which),
                group,
                rows[which],
                rows[True, True],
                "both on",
                *_base_en_de(group, printed, paper.TABLE3[True, True]),
                paper.TABLE3_TEST_SET,
                ("validation", "test"),
            )
            for which, printed in paper.TABLE3.items()
        ]
        reading = theirs if k == paper.TABLE3_CLIP_DISTANCE else f"{theirs}, not this table's {k}"
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        yield _score_grid("table3", title, f"{_setting(group, sharing)} | k = {k}", ("a^V", "a^K"), lines, reading)

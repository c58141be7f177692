"""The tables of a report as grids: score tables beside published figures, speeds, and scores by length.

The paper's Tables 1 to 3, the table of a generated task and the summary on a terminal are one `score_table` of
different rows. Rows and columns are defined in `rpr.report.lines`, published figures in `rpr.report.published`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rpr import paper
from rpr.report.agreement import EQUAL_CONTINUED, EQUAL_TOKENS, FINDINGS_RULE, RULE
from rpr.report.groups import TASK_LEARNED, TASK_RULE, Group, Variant
from rpr.report.learning import LEARNED_RULE, LEARNING_RULE
from rpr.report.lengths import context_grids, length_grid
from rpr.report.lines import AFTER_THE_SCORES, CHANGE, Line, facts_of, labels, score_columns, scoring_notes
from rpr.report.protocol import TOKENS, compared_settings
from rpr.report.published import KIND_OF_SIDES, PAPER, Source, all_sources, find
from rpr.report.recipes import recipe_grids, recipes
from rpr.report.speed import SpeedRow, speed_grid
from rpr.tables.grid import Cell, Column, Grid, Note
from rpr.tasks import TASKS


def score_table(
    name: str, title: str, setting: str, headings: Sequence[str], lines: Sequence[Line], *notes: str
) -> Grid:
    """Rows of scores with their changes, beside the figures of every source that has one for a row, and of the paper if
    they are of translations. `headings` are of the labels of each line; `notes` follow those on scores and sources.
    """
    groups = list({id(line.group): line.group for line in lines}.values())
    sources = [source for source in all_sources() if any(line.figure(source).value is not None for line in lines)]
    if groups[0].translation and PAPER not in sources:
        sources = [PAPER, *sources]
    by_group = ([line.variant for line in lines if line.group is group] for group in groups)
    scoring = dict.fromkeys(note for variants in by_group for note in scoring_notes(variants))
    about = [f"{changed}, {CHANGE}"] if (changed := _changed_from(lines)) else []
    for source in sources:
        on = f" on {source.test_sets[lines[0].papers_split]}" if source.test_sets else ""
        about.append(f"{source.heading}{on}: {source.citation}; {source.protocol}")
    columns = (*labels(*headings), *score_columns(lines, sources))
    below = (*scoring, *map(Note, (*about, *notes)))
    grid = Grid(name, title, columns, tuple(lines), setting, below, any(group.synthetic for group in groups))
    return grid.without_empty_columns(PAPER.key)


def _changed_from(lines: Sequence[Line]) -> str:
    """What the changes of these lines are from; empty if no line has a reference with records."""
    references = dict.fromkeys(line.reference.label for line in lines if line.reference.records)
    own = ", whichever is the baseline of the row's own runs" if len(references) > 1 else ""
    return f"Δ: change from {' or '.join(references)}{own}" if references else ""


# The sections of a page with tables of all groups, in its order.
HEADINGS = {
    "recipes": "The best recipe of each variant",
    "paper": "The paper's tables",
    "tasks": "Generated tasks",
    "documents": "Language models",
    "speed": "Speed",
}


@dataclass(frozen=True)
class Tables:
    """All tables of a report: those of each section of HEADINGS, and those by length, which stand with their group."""

    sections: Mapping[str, Sequence[Grid]]
    by_length: Sequence[Grid] = ()

    @property
    def rules(self) -> list[str]:
        """What verdicts, `still learning` and `not learned` mean in these tables."""
        groups = [line.group for grid in self.sections.get("documents", ()) for line in grid.rows]
        continued = any(run.continued for group in groups for run in group.runs)
        equal = EQUAL_CONTINUED if continued else EQUAL_TOKENS
        by_section = (
            *(("paper", RULE), ("", FINDINGS_RULE), ("documents", equal), ("", f"{LEARNING_RULE}.")),
            *(("paper", f"{LEARNED_RULE}."), ("tasks", f"{TASK_RULE}.")),
        )
        return [rule for section, rule in by_section if not section or section in self.sections]

    @property
    def main(self) -> list[Grid]:
        return [grid for grids in self.sections.values() for grid in grids]

    @property
    def grids(self) -> list[Grid]:
        return [*self.main, *self.by_length]


def build_tables(groups: Sequence[Group], benches: Sequence[SpeedRow] = ()) -> Tables:
    """Every table for which the groups have rows; each translation variant is in one of the paper's three tables."""
    translation = [group for group in groups if group.translation]
    papers = [*_tables1(translation)]
    for group in translation:
        papers += [*_table2(group), *_table3(group)]
    sections = {
        "recipes": [grid for tried in recipes(groups) for grid in recipe_grids(tried)],
        "paper": papers,
        "tasks": [*map(task_table, alike([group for group in groups if group.task]))],
        "documents": [*map(document_table, alike([group for group in groups if group.documents]))],
        # A task's models are so small that their steps/s say nothing of positions.
        "speed": [*speed_grid(translation, benches)],
    }
    by_length = [grid for group in groups for grid in (*length_grid(group), *context_grids(group))]
    return Tables({name: grids for name, grids in sections.items() if grids}, by_length)


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by corpus, model, steps and hardware; those of one list differ in other settings and share a table."""
    by_setting: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        by_setting.setdefault((group.data, group.model, group.max_steps, group.hardware), []).append(group)
    return [*by_setting.values()]


def summary_table(rows: Sequence[tuple[Variant, Group]]) -> Grid:
    """Variants of groups that are alike in one table for a terminal: scores and published figures."""
    first = rows[0][1]
    lines = []
    for variant, group in rows:
        papers = group.translation and group.baseline_name == "absolute" and group.papers_relative.records
        reference = group.papers_relative if papers else group.baseline
        lines.append(Line((variant.label,), group, variant, reference, (group.development,), "validation"))
    grid = score_table("summary", first.common_heading, "", ("position",), lines).up_to(2)
    kept = [column for column in grid.columns if column not in AFTER_THE_SCORES]
    warnings = tuple(note for note in grid.notes if note.severity == "warning")
    grid = Grid("summary", grid.title, (*kept, _NOTE), tuple(lines), notes=warnings).without_empty_columns()
    changes = any(column.key.endswith("_change") for column in grid.columns)
    return replace(grid, setting=_changed_from(lines) if changes else "")


# Without a footnote on learning: the findings below the table give the advice.
_NOTE = Column("note", "note", lambda line: Cell(line.variant.undecided, line.variant.caveats), words=True)


def _tables1(groups: Sequence[Group]) -> Iterator[Grid]:
    """One table for each corpus, with all its languages."""
    families: dict[str, list[Group]] = {}
    for group in groups:
        families.setdefault(group.data.removesuffix(f"_{group.languages}"), []).append(group)
    for family, members in families.items():
        lines = [line for group in sorted(members, key=_order1) for line in _lines1(group)]
        if lines:
            name = replace(members[0], data=family).corpus
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
        if (position := variant.position).kind not in ("none", *paper.TABULATED)
        or (position.kind == "relative" and position.clip_distance == k)
        or variant is not group.get(position.kind, position.clip_distance)
    ]
    elsewhere = all(variant.position.kind == "relative" for variant in rows) and len(group.variants) > len(rows)
    languages = group.languages.upper().replace("_", "-")
    changed = ("test", *group.own_splits)
    for variant in () if elsewhere else rows:
        label = re.sub(rf", k = {k}\b", "", variant.label, count=1)  # only a k other than the paper's is shown
        yield Line((model, languages, label), group, variant, group.baseline, changed)


def _clip_distances(group: Group, *kinds: str) -> set[int]:
    positions = [variant.position for variant in group.variants if variant.position.kind in kinds]
    return {k for position in positions if (k := position.clip_distance) is not None}


def _table2(group: Group) -> Iterator[Grid]:
    run = _clip_distances(group, "relative")
    if not run - {paper.MODELS[group.size].clip_distance}:
        return
    variants = {k: group.get("relative", k) for k in sorted({*paper.TABLE2, *run})}
    reference = variants[paper.MODELS["base"].clip_distance]
    lines = _lines_of_base(group, {(str(k),): variant for k, variant in variants.items()}, reference)
    yield score_table("table2", "Table 2: BLEU by clip distance k", group.heading, ("k",), lines)


def _table3(group: Group) -> Iterator[Grid]:
    """One table for each k with a keys-only or values-only variant; for the paper's k if only `none` was run."""
    alone, none = _clip_distances(group, "relative_keys", "relative_values"), group.get("none")
    if not alone and not none.records:
        return
    assumption = f"the paper's Table 3 does not print its k; assumed: {paper.TABLE3_CLIP_DISTANCE}, the base model's"
    for k in sorted(alone or {paper.MODELS[group.size].clip_distance}):
        variants = {sides: none if kind == "none" else group.get(kind, k) for sides, kind in KIND_OF_SIDES.items()}
        rows = {tuple("yes" if on else "no" for on in sides): variants[sides] for sides in paper.TABLE3}
        lines = _lines_of_base(group, rows, variants[True, True])
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        yield score_table("table3", title, f"{group.heading} | k = {k}", ("a^V", "a^K"), lines, assumption)


def _lines_of_base(group: Group, variants: Mapping[tuple[str, ...], Variant], reference: Variant) -> list[Line]:
    """The rows of Table 2 or 3, by their labels."""
    changed = ("validation", "test", *group.own_splits)
    return [Line(labels, group, variant, reference, changed, "validation") for labels, variant in variants.items()]


def published_figures(group: Group) -> dict[Source, list[tuple[Variant, float]]]:
    """The figures on the group's split of all sources but the paper, by variant."""
    sources = [source for source in all_sources() if source is not PAPER]
    scored = [variant for variant in group.variants if group.score(variant, group.split).value is not None]
    figures: dict[Source, list[tuple[Variant, float]]] = {}
    for variant in scored:
        for source in sources:
            if (published := find(facts_of(variant, group), source, group.split)) is not None:
                figures.setdefault(source, []).append((variant, published.figure))
    return figures


def task_table(groups: Sequence[Group]) -> Grid:
    """Every variant on a generated task, of groups that are alike."""
    runs = [group.runs[0] for group in groups]
    longest, most = (
        sorted({run.setting(f"data.task.max_{split}_length") or 0 for run in runs}) for split in ("train", "long")
    )
    names = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
    values = [dict.fromkeys(str(run.setting(f"model.{name}")) for run in runs) for name in names]
    sizes = ", ".join(f"{name} {' or '.join(own)}" for name, own in zip(names, values, strict=True))
    lengths = " or ".join(map(str, longest))
    beyond = f", up to {' or '.join(map(str, most))}" if any(most) else ""
    task = TASKS.get(str(runs[0].task))
    unit = f" {task.UNIT}" if task else ""
    about = f"test: lengths up to {lengths}{unit}, as in training; long: longer ones{beyond}"
    solved = f"seeds ≥ {TASK_LEARNED:g}%: those with at least as much exact match on {groups[0].split}"
    return _table_of_all("task", f"Exact match on {runs[0].task}, percent", groups, solved, about, f"model: {sizes}")


def document_table(groups: Sequence[Group]) -> Grid:
    """Every variant of a language model of documents, of groups that are alike."""
    runs = [run for group in groups for run in group.runs]
    tokens = sorted({int(compared_settings(run).get(TOKENS) or 0) * run.max_steps for run in runs})
    trained = f"trained on at most {' or '.join(f'{count:,}' for count in tokens)} tokens"
    vocabularies = {(run.setting("data.tokenizer"), run.setting("data.vocabulary_size")) for run in runs}
    trained += ", each row's of its own vocabulary" if len(vocabularies) > 1 else ""
    if any(run.continued for run in runs):
        trained += ", those that started from another run's weights not counting that run's"
    elif len(tokens) == len(vocabularies) == 1:
        trained = f"every row was {trained}: compared at equal tokens, also while a model is still learning"
    return _table_of_all("documents", f"Bits per byte on {groups[0].data}: less is better", groups, trained)


def _table_of_all(name: str, title: str, groups: Sequence[Group], *notes: str) -> Grid:
    setting = groups[0].heading if len(groups) == 1 else groups[0].common_heading
    rows = [(variant, group) for group in groups for variant in group.variants]
    lines = [Line((variant.label,), group, variant, group.baseline, (group.split,)) for variant, group in rows]
    return score_table(name, title, setting, ("position",), lines, *notes)

"""The paper's own tables, rebuilt from run records: Tables 1, 2 and 3 and the speed, row by row beside its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rpr import paper
from rpr.records.position import SHARING
from rpr.records.record import Record
from rpr.report.paper_groups import (
    NEVER_RUN,
    Place,
    change_from,
    difference_from_paper,
    differs,
    in_the_papers_order,
    left_out,
    lettered,
    our_cell,
    pair_name,
    scoring_notes,
    speed_of,
)
from rpr.report.paper_render import paper_grid, paper_legend
from rpr.report.paper_rows import Figure, PaperRow, PaperTable, figure
from rpr.report.paper_speed import Bench, bench_row, run_rows, speed_table
from rpr.report.rows import Cell, Row, Table
from rpr.report.tables import position_tables

__all__ = ["PaperRow", "PaperTable", "paper_grid", "paper_legend", "paper_tables"]

SPLITS = ("validation", "test")  # of Tables 2 and 3: the paper's newstest2013 is the validation split, and ours besides


def paper_tables(tables: Sequence[Table], benches: Sequence[Bench] = ()) -> tuple[PaperTable, ...]:
    """Every table of the paper that runs belong to: Table 1 for each corpus with all its models and languages; Tables 2
    and 3 for each group of runs trained alike; one of the speeds, with those of `benches`.

    Groups that differ only in which splits were scored are one here. The runs with keys and values and the base model's
    k belong to Tables 1, 2 and 3: where there are no others, they stand in Table 1 alone.
    """
    places = [Place(table) for table in _joined(tables)] if tables else []
    found = list(_tables1(places))
    for place in places:
        for sharing in place.sharings:
            found += _table2(place, sharing)
            found += _table3(place, sharing)
    speeds = [*(row for place in places for row in run_rows(place)), *map(bench_row, benches)]
    return (*found, *([speed_table(speeds)] if speeds else []))


def _joined(tables: Sequence[Table]) -> tuple[Table, ...]:
    """The groups again, without the settings that say only what is scored; equal runs become one with all scores."""
    kept: dict[str, Record] = {}
    runs = {id(run): run for table in tables for row in table.rows for run in row.records}
    for run in sorted(runs.values(), key=lambda run: (run.status == "finished", run.started, run.run_id)):
        scored = {"test_splits", "validation_sentences"}
        evaluation = {key: value for key, value in (run.setting("evaluation") or {}).items() if key not in scored}
        config = run.config | {"evaluation": evaluation}
        parts = [config.get(name) for name in ("model", "position", "data", "optim", "evaluation")]
        key = json.dumps([*parts, run.seed, run.hardware], sort_keys=True)
        older = kept[key].scores if key in kept else ()
        have = {(score.split, score.test_set, score.metric) for score in run.scores}
        more = tuple(score for score in older if (score.split, score.test_set, score.metric) not in have)
        kept[key] = run.model_copy(update={"config": config, "scores": run.scores + more})
    return position_tables(kept.values())


# Table 1


@dataclass(frozen=True)
class _Recipe:
    """The groups of one model and recipe, by language; without any for a model of the paper that was never run."""

    label: str
    size: paper.Size
    own: bool
    places: Mapping[str, Place] = field(default_factory=dict)
    remark: str | None = None  # what tells it from another one of the same label

    @property
    def order(self) -> tuple[bool, bool, int, int, str]:
        """The paper's base, then ours from the smallest to the largest, then the paper's big."""
        run = next((place.first for place in self.places.values()), None)
        width = int(run.setting("model.d_model") or 0) if run else 0
        return (self.size == "big", self.own, width, run.max_steps if run else 0, self.label)


# What Table 1 joins over: where the sentences come from, and dropout, which the paper's big model has by language.
_BY_LANGUAGE = {"name", "source_language", "target_language", "hub", "hub_config", "path", "cache_dir"}
_BY_LANGUAGE |= {"validation_name", "test_name"}
_TABLE1_KINDS = ("absolute", "relative", "absolute_and_relative", "learned")


def _tables1(places: Sequence[Place]) -> Iterator[PaperTable]:
    """One for each corpus, whatever its languages."""
    families: dict[str, list[Place]] = {}
    for place in places:
        families.setdefault(place.table.data.removesuffix(f"_{place.pair}"), []).append(place)
    for family, members in families.items():
        recipes = _recipes(members)
        others = {place.pair for place in members} - {*paper.TRAIN_PAIRS}
        rows = [row for recipe in recipes for row in _rows1(recipe, [*paper.TRAIN_PAIRS, *sorted(others)])]
        if not any(row.records for row in rows):
            continue
        synthetic = any(place.table.synthetic for place in members) and "synthetic" not in family
        yield PaperTable(
            "table1",
            "Table 1: BLEU by model, position and language",
            f"{family} (synthetic)" if synthetic else family,
            ("model", "position"),
            tuple(rows),
            scoring_notes(members, rows, ["test"]),
            reference="the absolute row of the same model",
        )


def _recipes(places: Sequence[Place]) -> list[_Recipe]:
    found: list[tuple[str, dict[str, Place]]] = []
    for place in places:
        config = place.first.config
        data = {key: value for key, value in config["data"].items() if key not in _BY_LANGUAGE}
        model = {key: value for key, value in config["model"].items() if key != "dropout"}
        settings = [data, model, config["optim"], config.get("evaluation"), place.table.hardware]
        recipe = json.dumps(settings, sort_keys=True)
        alike = next((by_pair for key, by_pair in found if key == recipe and place.pair not in by_pair), None)
        if alike is None:
            found.append((recipe, {place.pair: place}))
        else:
            alike[place.pair] = place
    recipes = [_recipe(by_pair) for _, by_pair in found]
    labels = lettered([one.label for one in recipes])
    told = [None if label == one.label else _remark(one) for label, one in zip(labels, recipes, strict=True)]
    recipes = [
        replace(one, label=label, remark=remark) for one, label, remark in zip(recipes, labels, told, strict=True)
    ]
    run = {one.size for one in recipes if not one.own}
    sizes: tuple[paper.Size, ...] = ("base", "big")
    recipes += [_Recipe(size, size, own=False) for size in sizes if size not in run]
    return sorted(recipes, key=lambda one: one.order)


def _recipe(places: Mapping[str, Place]) -> _Recipe:
    place = next(iter(places.values()))
    model, max_steps = place.table.model, place.table.max_steps
    own = model not in paper.MODELS
    usual = not own and max_steps == paper.MODELS[place.size].steps
    return _Recipe(model if usual else f"{model}, {max_steps:,} steps", place.size, own, places)


def _remark(recipe: _Recipe) -> str:
    tables = [place.table for place in recipe.places.values()]
    return ", ".join(dict.fromkeys(table.variant or f"hardware={table.hardware}" for table in tables))


def _rows1(recipe: _Recipe, pairs: Sequence[str]) -> Iterator[PaperRow]:
    """Absolute and relative, whether run or not; both together and learned absolute positions only where they were."""
    k = paper.MODELS[recipe.size].clip_distance
    named = {name for place in recipe.places.values() for name in place.sharings if name is not None}
    sharings = in_the_papers_order(named, recipe.size) or [None]
    wanted: list[tuple[str, str, str | None]] = [("absolute", "absolute", None)]
    for name in sharings:
        suffix = f", {SHARING.get(str(name), name)}" if len(sharings) > 1 else ""
        wanted += [("relative", f"relative{suffix}", name), ("absolute_and_relative", f"both{suffix}", name)]
    wanted.append(("learned", "absolute (learned)", None))
    for kind, label, tables in wanted:
        distance = k if kind in ("relative", "absolute_and_relative") else None
        found = {pair: place.row(kind, distance, tables) for pair, place in recipe.places.items()}
        if kind in ("absolute", "relative") or any(found.values()):
            yield _row1(recipe, kind, label, found, pairs)


def _row1(recipe: _Recipe, kind: str, label: str, found: Mapping[str, Row | None], pairs: Sequence[str]) -> PaperRow:
    figures: list[Figure] = []
    for pair in pairs:
        name, place, row = pair_name(pair), recipe.places.get(pair), found.get(pair)
        printed, papers_change = _printed1(recipe.size, kind, pair)
        beside = f"the paper's {recipe.size} model, beside which this size stands" if recipe.own else None
        remark = beside if printed.value is not None else None
        figures.append(figure(name, "paper", printed, paper.TABLE1_TEST_SET, remark))
        figures.append(figure(name, "paper_change", papers_change, paper.TABLE1_TEST_SET))
        mine = change = difference = Cell(None, reason=NEVER_RUN)
        if place is not None:
            mine = our_cell(place, row, "test")
            change = change_from(place, row, place.row("absolute"), "test", "absolute")
            difference = difference_from_paper(place, row, "test", printed, paper.TABLE1_TEST_SET)
        test_set = place.test_set("test") if place is not None else ""
        cells = {"ours": mine, "change": change, "difference": difference}
        figures += [figure(name, what, cell, test_set) for what, cell in cells.items()]
        figures += speed_of(row, name)
    rows = [(place, found[pair]) for pair, place in recipe.places.items()]
    return PaperRow(
        (recipe.label, label),
        tuple(figures),
        differs(rows, recipe.size),
        tuple(
            dict.fromkeys([*([recipe.remark] if recipe.remark else []), *(t for _, row in rows for t in left_out(row))])
        ),
        tuple(run for _, row in rows if row is not None for run in row.records),
    )


def _printed1(size: paper.Size, kind: str, pair: str) -> tuple[Cell, Cell]:
    """The paper's figure and its change from absolute."""
    printed = {
        what: value for (model, what, languages), value in paper.TABLE1.items() if (model, languages) == (size, pair)
    }
    if kind in printed:
        return Cell(printed[kind], n=1), Cell(round(printed[kind] - printed["absolute"], 1), n=1)
    if pair not in paper.TRAIN_PAIRS:
        reason = f"the paper has no figure for {pair_name(pair)}"
    elif kind == "absolute_and_relative":
        reason = 'the paper prints no figure for both together ("did not observe any benefit")'
    else:
        reason = "not in the paper"
    return Cell(None, reason=reason), Cell(None, reason=reason)


# Tables 2 and 3


def _table2(place: Place, sharing: str | None) -> Iterator[PaperTable]:
    relative = [row for row in place.table.rows if row.position.kind == "relative" and row.position.tables == sharing]
    rows = {row.position.clip_distance: row for row in relative if row.position.clip_distance is not None}
    sixteen = paper.MODELS["base"].clip_distance
    if not set(rows) - {sixteen}:
        return
    reference = _Reference(f"k = {sixteen}", rows.get(sixteen), paper.TABLE2[sixteen])
    lines = []
    for k in sorted({*paper.TABLE2, *rows}):
        missing = Cell(None, reason=f"the paper's Table 2 has no row for k = {k}")
        printed = Cell(paper.TABLE2[k], n=1) if k in paper.TABLE2 else missing
        lines.append(_line(place, (str(k),), rows.get(k), printed, reference))
    title, notes = "Table 2: BLEU by clip distance k", scoring_notes([place], lines, SPLITS)
    yield PaperTable("table2", title, place.setting(sharing), ("k",), tuple(lines), notes, (), reference.name)


_SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}


def _table3(place: Place, sharing: str | None) -> Iterator[PaperTable]:
    """One for each k that keys or values were tried alone with; for the paper's k where only neither was."""
    alone = {
        row.position.clip_distance
        for row in place.table.rows
        if row.position.kind in ("relative_keys", "relative_values") and row.position.tables == sharing
    }
    none = place.row("none")
    if not alone and none is None:
        return
    for k in sorted(k for k in alone or {paper.TABLE3_CLIP_DISTANCE} if k is not None):
        rows = {which: place.row(kind, k, sharing) for which, kind in _SIDES.items()} | {(False, False): none}
        reference = _Reference("both on", rows[True, True], paper.TABLE3[True, True])
        lines = []
        for which, value in paper.TABLE3.items():
            labels = tuple("yes" if on else "no" for on in which)
            lines.append(_line(place, labels, rows[which], Cell(value, n=1), reference))
        theirs = (
            f"the paper's Table 3 does not print its k; {paper.TABLE3_CLIP_DISTANCE}, the base model's, is the natural"
        )
        reading = f"{theirs} reading" if k == paper.TABLE3_CLIP_DISTANCE else f"{theirs} reading, not this table's {k}"
        title = "Table 3: BLEU with relative values (a^V) and keys (a^K), each on or off"
        setting, notes = f"{place.setting(sharing)} | k = {k}", scoring_notes([place], lines, SPLITS)
        yield PaperTable("table3", title, setting, ("a^V", "a^K"), tuple(lines), notes, (reading,), reference.name)


@dataclass(frozen=True)
class _Reference:
    """The row that the others' changes are counted from, and the paper's figure in it."""

    name: str
    row: Row | None
    printed: float


def _line(place: Place, labels: tuple[str, ...], row: Row | None, printed: Cell, reference: _Reference) -> PaperRow:
    """A row of Table 2 or 3: the paper's figure, then ours on each split, each with its change from the reference."""
    test_set = paper.TABLE2_TEST_SET
    change = printed if printed.value is None else Cell(round(printed.value - reference.printed, 1), n=1)
    figures = [figure("", "paper", printed, test_set), figure("", "paper_change", change, test_set)]
    for split in SPLITS:
        cells = {"ours": our_cell(place, row, split)}
        cells["change"] = change_from(place, row, reference.row, split, reference.name)
        if split == "validation":
            cells["difference"] = difference_from_paper(place, row, split, printed, test_set)
        figures += [figure(split, what, cell, place.test_set(split)) for what, cell in cells.items()]
    figures += speed_of(row)
    runs = row.records if row else ()
    return PaperRow(labels, tuple(figures), differs([(place, row)], place.size), left_out(row), runs)

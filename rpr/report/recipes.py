"""The best setting of each variant in a grid of recipes, chosen on validation, and the changes across the grid.

A sweep file names the settings that make up its grid, `best_of: [optim.learning_rate_scale, model.dropout]`. Groups of
runs that differ in these alone are one grid.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import yaml

from rpr.errors import RecordError
from rpr.model.positions.vectors import SHARING
from rpr.paths import sweep_files
from rpr.records.measurement import Measurement, missing
from rpr.records.position import Position, called, positions_of
from rpr.records.record import Record, short_names
from rpr.records.scores import LOWER_IS_BETTER
from rpr.report.groups import LOSS, Group, Key, Variant, never_run
from rpr.report.lines import marked
from rpr.tables.grid import Cell, Column, Grid, Note

Setting = tuple[Any, ...]  # a value for each of the grid's keys


@dataclass(frozen=True)
class Recipes:
    """Groups that differ in `keys` alone, by their values of these; of each variant, by label, those in the groups."""

    keys: tuple[str, ...]
    groups: dict[Setting, Group]
    variants: dict[str, dict[Setting, Variant]]
    baseline: str

    @property
    def group(self) -> Group:
        """One of the groups, for what they share."""
        return next(iter(self.groups.values()))

    def variant(self, label: str, setting: Setting | None) -> Variant:
        return self.variants[label].get(setting or (), never_run(label))

    def key(self, split: str) -> Key | None:
        """What is compared: the scores of a split or, if validation was not scored, its loss."""
        columns = (group.column(split) for group in self.groups.values())
        return next((column for column in columns if column), LOSS if split == "validation" else None)

    def score(self, label: str, setting: Setting | None, split: str) -> Measurement:
        return self.variant(label, setting).measured(self.key(split), f"not evaluated on {split}")

    def change(self, label: str, setting: Setting | None, others: Setting | None, split: str) -> Measurement:
        """A variant's score in a setting minus the baseline's in its own, paired by seed."""
        baseline = self.variant(self.baseline, others)
        return self.variant(label, setting).change(baseline, self.key(split), f"not evaluated on {split}")

    @cached_property
    def levels(self) -> dict[str, dict[Setting, float]]:
        """What settings are chosen by, more is better: for each label the mean over the seeds of all its settings. None
        where their scores have other units: signatures and sentences, or vocabularies of the loss.
        """
        key = self.key("validation")
        sign = -1 if key == LOSS or self.group.metric in LOWER_IS_BETTER else 1
        levels: dict[str, dict[Setting, float]] = {}
        for label, variants in self.variants.items():
            scores = {setting: variant.scores.get(key or (), {}) for setting, variant in variants.items()}
            tried = {setting: by_seed for setting, by_seed in scores.items() if by_seed}
            units = {score.way[:2] for by_seed in tried.values() for score in by_seed.values()}
            seeds = set[int]().union(*tried.values()).intersection(*tried.values()) if len(units) == 1 else set()
            levels[label] = {
                setting: sign * sum(by_seed[seed].value for seed in seeds) / len(seeds)
                for setting, by_seed in tried.items()
                if seeds
            }
        return levels

    def best(self, label: str) -> Setting | None:
        return max(self.levels[label], key=self.levels[label].__getitem__, default=None)

    @cached_property
    def common(self) -> Setting | None:
        """One recipe for all: of those with which every variant was trained, the best on average."""
        of_all = [setting for setting in self.groups if all(setting in levels for levels in self.levels.values())]
        return max(of_all, key=lambda setting: sum(levels[setting] for levels in self.levels.values()), default=None)

    def in_words(self, setting: Setting | None) -> str:
        names = zip(short_names(self.keys).values(), setting or (), strict=bool(setting))
        return ", ".join(f"{name} {value}" for name, value in names) or "none"

    @property
    def heading(self) -> str:
        """What the groups share."""
        group = self.group
        steps = () if "optim.max_steps" in self.keys else (f"{group.max_steps:,} steps",)
        parts = (group.corpus, f"model {group.model}", *steps, group.hardware, group.distinctly(*self.keys))
        return " | ".join(filter(None, parts))

    def at_the_edge_of(self, label: str, setting: Setting) -> list[str]:
        """The settings that the grid varies and that have the lowest or highest number that the row was trained with;
        words have no order.
        """

        def numbers(settings: Iterable[Setting]) -> list[set[float]]:
            return [{number for number in row if type(number) in (int, float)} for row in zip(*settings, strict=True)]

        ends = zip(self.keys, setting, numbers(self.groups), numbers(self.levels[label]), strict=True)
        return [
            key
            for key, value, all_rows, row in ends
            if len(all_rows) > 1 and value in row and value in (min(row), max(row))
        ]


def recipes(groups: Sequence[Group]) -> Iterator[Recipes]:
    """The grids of the sweeps that these runs belong to; without runs of the baseline's positions the first variant
    takes their place. Raises RecordError if the file of a sweep cannot be read.
    """
    sweeps = dict.fromkeys(name for group in groups for run in group.runs for name in run.sweeps)
    best_of = [keys for name in sweeps if isinstance(keys := sweep_file(name).get("best_of"), list) and keys]
    for keys in dict.fromkeys(tuple(map(str, keys)) for keys in best_of):
        families: dict[str, dict[Setting, Group]] = {}
        for group in groups:
            rest = {key: value for key, value in group.settings.items() if key not in keys}
            values = (group.settings.get(key) for key in keys)
            setting = tuple(str(value) if isinstance(value, list | dict) else value for value in values)
            families.setdefault(str((group.data, group.model, group.hardware, rest)), {})[setting] = group
        for family in families.values():
            if len(family) > 1:
                in_order = {setting: family[setting] for setting in sorted(family, key=_order)}
                variants = _by_label(in_order)
                baselines = {id(group.baseline) for group in family.values()}
                named = (label for label, tried in variants.items() if baselines & {*map(id, tried.values())})
                yield Recipes(keys, in_order, variants, next(named, next(iter(variants))))


def _order(setting: Setting) -> list[tuple[bool, bool, Any]]:
    """Nothing, numbers, words."""
    return [(value is not None, isinstance(value, str), value) for value in setting]


def _by_label(family: dict[Setting, Group]) -> dict[str, dict[Setting, Variant]]:
    """The variants of the groups by the longest label that any group has for one, as it tells it from others."""
    cells = [(setting, variant) for setting, group in family.items() for variant in group.variants]
    variants: dict[Position, dict[Setting, Variant]] = {}
    of_all = positions_of([variant.records[0] for _, variant in cells])  # which may differ between groups alone
    for (setting, variant), position in zip(cells, of_all, strict=True):
        variants.setdefault(position, {})[setting] = variant
    labels = [
        max((variant.label.removesuffix(variant.position.code) for variant in by_setting.values()), key=len)
        + position.code
        for position, by_setting in variants.items()
    ]
    return {
        label
        if labels.count(label) == 1
        else f"{label}, {SHARING.get(str(position.tables), position.identity)}": by_setting
        for label, (position, by_setting) in zip(labels, variants.items(), strict=True)
    }


def usual_baseline(records: Sequence[Record]) -> str:
    """The baseline of runs that are trained alike: sinusoids, or, where none has them, what the file of their sweep
    names. Raises RecordError if the file cannot be read.
    """
    if not called("absolute", records):
        for sweep in dict.fromkeys(name for run in records for name in run.sweeps):
            if (baseline := sweep_file(sweep).get("baseline")) and called(str(baseline), records):
                return str(baseline)
    return "absolute"


def sweep_file(sweep: str) -> dict[str, Any]:
    """What the file of a sweep says, nothing if no sweep of this name has one. Raises RecordError if unreadable."""
    path = sweep_files().get(sweep)  # never a path: a record could name any
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecordError(
            f"{path}: cannot be read as a sweep ({' '.join(str(error).split())}); mend it, or give it another name"
        ) from None
    return content if isinstance(content, dict) else {}


def recipe_grids(grid: Recipes) -> tuple[Grid, Grid]:
    """Each variant at its own best setting and under one recipe for all; its changes across the grid."""
    group, common, its_best = grid.group, grid.common, grid.best(grid.baseline)

    def best(label: str) -> str | Cell | Measurement:
        if (setting := grid.best(label)) is None:
            return missing("no seed was scored in the same way on validation in all settings of the row")
        if not (ends := grid.at_the_edge_of(label, setting)):
            return grid.in_words(setting)
        remark = f"at the edge of what the row was trained with: {', '.join(ends)}"
        return Cell(f"{grid.in_words(setting)} (edge)", (remark,))

    def across(setting: Setting, label: str) -> Measurement:
        if label == grid.baseline:
            return grid.score(label, setting, "validation")
        return grid.change(label, setting, setting, "validation")

    def seeds(label: str) -> int:
        return len(grid.variant(label, grid.best(label)).finished)

    def in_a_row(read: Callable[..., Measurement], split: str, label: str) -> Cell:
        return marked(read(label, split), seeds(label))

    reads: tuple[tuple[str, str, Callable[..., Measurement]], ...] = (
        ("", "", lambda label, split: grid.score(label, grid.best(label), split)),
        ("own_", "Δ own best: ", lambda label, split: grid.change(label, grid.best(label), its_best, split)),
        ("one_", "Δ one recipe: ", lambda label, split: grid.change(label, common, common, split)),
    )
    columns = [
        Column("position", "position", str, label=True),
        Column("settings", "settings", lambda label: str(len(grid.levels[label]))),
        Column("n", "n", lambda label: str(seeds(label))),
        Column("best", "best setting", best, words=True),
    ]
    by_loss = grid.key("validation") == LOSS
    what, on_validation, digits = ("loss", "validation loss", 3) if by_loss else ("score", "validation", group.digits)
    for split, name, places in (("validation", on_validation, digits), ("test", "test", group.digits)):
        for key, heading, read in reads:
            figures = partial(in_a_row, read, split)
            columns.append(Column(key + split, heading + name, figures, places, signed=bool(key)))
    columns.append(Column("note", "note", lambda label: grid.variant(label, grid.best(label)).undecided, words=True))
    notes = (
        *(["validation loss: in nats per piece, less is better"] if by_loss else []),
        f"best setting: of {', '.join(grid.keys)}, by the validation {what}, over the seeds of all settings of the row",
        f"Δ: change from {grid.baseline}, paired by seed: each at its own best setting, or both with one recipe, "
        f"the best on average of those of all rows ({grid.in_words(common)})",
        "the best of several noisy validation scores is too high by some of that noise, which test scores are not",
    )
    by_setting = [Column("setting", "setting", grid.in_words, label=True)]
    for label in grid.variants:
        signed = label != grid.baseline
        by_setting.append(Column(label, "Δ " * signed + label, partial(across, label=label), digits, signed=signed))
    about, made_up = grid.heading, group.synthetic
    title = "The best recipe of a grid for each variant, chosen on validation"
    first = Grid("recipes", title, tuple(columns), tuple(grid.variants), about, tuple(map(Note, notes)), made_up)
    title = f"Change {'of the validation loss' if by_loss else 'on validation'} by recipe: against {grid.baseline}"
    second = Grid("recipes_across", title, tuple(by_setting), tuple(grid.groups), about, (), made_up)
    return first.without_empty_columns(), second

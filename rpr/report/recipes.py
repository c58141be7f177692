"""The best setting of each variant in a grid of recipes, chosen on validation.

A sweep file names the settings that make up its grid, `best_of: [optim.learning_rate_scale, model.dropout]`. Groups of
runs that differ in these alone are one grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from rpr.model.positions.vectors import SHARING
from rpr.records.measurement import Measurement, missing
from rpr.records.position import Position, positions_of
from rpr.records.record import short_names
from rpr.report.groups import LOSS, Group, Key, Variant, in_one_way, never_run
from rpr.report.render import Column, Grid
from rpr.report.sweep_files import sweep_files_of
from rpr.report.verdicts import changes

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
        columns = (column for group in self.groups.values() if (column := group.column(split)) is not None)
        return next(columns, LOSS if split == "validation" else None)

    def score(self, label: str, setting: Setting | None, split: str) -> Measurement:
        return self.variant(label, setting).measured(self.key(split), f"not evaluated on {split}")

    def changes(self, settings: Mapping[str, Setting | None], split: str) -> Mapping[str, Measurement]:
        """Of each variant with a score in its setting, the change from the baseline in the baseline's own setting."""
        key, shares = self.key(split) or (), self.group.kind.shares
        rows = {label: self.variant(label, setting).scores.get(key, {}) for label, setting in settings.items()}
        compared = in_one_way(rows, baseline := rows.get(self.baseline, {}))
        if not baseline:
            return {}
        items = next(iter(baseline.values())).items
        return changes(compared, self.baseline, 100 / items if items else 0.001, shares=shares and key != LOSS).of_rows

    @cached_property
    def levels(self) -> dict[str, dict[Setting, float]]:
        """What settings are chosen by, more is better: for each label the mean over the seeds of all its settings. None
        where their scores have other units: signatures and sentences, or vocabularies of the loss.
        """
        key = self.key("validation") or ()
        sign = -1 if key == LOSS or self.group.kind.lower_is_better else 1
        levels: dict[str, dict[Setting, float]] = {}
        for label, variants in self.variants.items():
            tried = {setting: scores for setting, variant in variants.items() if (scores := variant.scores.get(key))}
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


def recipes(groups: Sequence[Group]) -> Iterator[Recipes]:
    """The grids of the sweeps that these runs belong to; without runs of the baseline's positions the first variant
    takes their place. Raises RecordError if the file of a sweep cannot be read.
    """
    files = sweep_files_of(run for group in groups for run in group.runs)
    best_of = [keys for file in files if isinstance(keys := file.get("best_of"), list) and keys]
    for keys in dict.fromkeys(tuple(map(str, keys)) for keys in best_of):
        families: dict[str, dict[Setting, Group]] = {}
        for group in groups:
            rest = {key: value for key, value in group.settings.items() if key not in keys}
            values = (group.settings.get(key) for key in keys)
            setting = tuple(str(value) if isinstance(value, list | dict) else value for value in values)
            families.setdefault(str((group.data, group.model, group.hardware, rest)), {})[setting] = group
        for family in (family for family in families.values() if len(family) > 1):
            # In the order of nothing, numbers, words.
            order = sorted(
                family, key=lambda row: [(value is not None, isinstance(value, str), value) for value in row]
            )
            variants = _by_label(in_order := {setting: family[setting] for setting in order})
            baselines = {id(group.baseline) for group in family.values()}
            named = (label for label, tried in variants.items() if baselines & {*map(id, tried.values())})
            yield Recipes(keys, in_order, variants, next(named, next(iter(variants))))


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
    alone = [
        label if labels.count(label) == 1 else f"{label}, {SHARING.get(str(position.tables), position.identity)}"
        for label, position in zip(labels, variants, strict=True)
    ]
    return dict(zip(alone, variants.values(), strict=True))


def recipe_grid(grid: Recipes) -> Grid:
    """Each variant at its own best setting and under one recipe for all."""
    group, own = grid.group, {label: grid.best(label) for label in grid.variants}
    one = dict.fromkeys(grid.variants, grid.common)

    def best(label: str) -> str | Measurement:
        if (setting := own[label]) is None:
            return missing("no seed was scored in the same way on validation in all settings of the row")
        return grid.in_words(setting)

    def change(of_rows: Mapping[str, Measurement], label: str) -> Measurement | str:
        return "" if label == grid.baseline else of_rows.get(label, missing("not scored as the baseline"))

    by_loss = grid.key("validation") == LOSS
    what, digits = ("validation loss", 3) if by_loss else ("validation", group.kind.digits)
    columns = [
        Column("position", "position", str, label=True),
        Column("settings", "settings", lambda label: str(len(grid.levels[label]))),
        Column("n", "n", lambda label: str(len(grid.variant(label, own[label]).finished))),
        Column("best", "best setting", best, words=True),
    ]
    for split, name, places in (("validation", what, digits), ("test", "test", group.kind.digits)):
        scores = partial(lambda split, label: grid.score(label, own[label], split), split)
        columns.append(Column(split, name, scores, places))
        for key, heading, settings in (("own", "own best", own), ("one", "one recipe", one)):
            read = partial(change, grid.changes(settings, split))
            columns.append(Column(f"{key}_{split}", f"change {name}, {heading}", read, places, signed=True))
    notes = (
        *(["validation loss: in nats per piece, less is better"] if by_loss else []),
        f"best setting: of {', '.join(grid.keys)}, by the {what}, over the seeds of all settings of the row",
        f"change: from {grid.baseline}, each at its own best setting, or both with one recipe, the best on average of "
        f"those of all rows ({grid.in_words(grid.common)})",
        "the best of several noisy validation scores is too high by some of that noise, which test scores are not",
    )
    title = "The best recipe of a grid for each variant, chosen on validation"
    rows, about = tuple(grid.variants), grid.heading
    return Grid("recipes", title, tuple(columns), rows, about, notes, synthetic=group.synthetic).without_empty_columns()

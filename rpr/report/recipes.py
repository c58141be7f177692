"""The best setting of each variant in a grid of recipes, chosen on validation.

A sweep file names the settings that make up its grid, `best_of: [optim.learning_rate_scale, model.dropout]`. Groups of
runs that differ in these alone are one grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rpr.records.measurement import Measurement, missing
from rpr.records.record import Record, short_names
from rpr.report.groups import LOSS, Group, Key, Variant, compared, never_run, run_key, variants_of
from rpr.report.render import Column, Grid
from rpr.report.sweep_files import sweep_files_of

Setting = tuple[Any, ...]  # a value for each of the grid's keys
Variants = dict[str, dict[Setting, Variant]]


class Recipes:
    """Groups that differ in `keys` alone, by their values of these; of each variant, by label, those in the groups.

    `levels`: what settings are chosen by, more is better: of each setting, by its place in `groups`, and each label the
    mean over the seeds of all settings of the label. NaN where a setting was not tried, or scores have other units:
    signatures and sentences, or vocabularies of the loss. `best`: that of each label, if any; `common`: one recipe for
    all, the best on average.
    """

    def __init__(self, keys: tuple[str, ...], groups: dict[Setting, Group], variants: Variants, baseline: str) -> None:
        import pandas as pd

        self.keys, self.groups, self.variants, self.baseline = keys, groups, variants, baseline
        self.group = group = next(iter(groups.values()))  # for what they share
        steps = "" if "optim.max_steps" in keys else f"{group.max_steps:,} steps"
        parts = (group.corpus, f"model {group.model}", steps, group.hardware, group.distinctly(*keys))
        self.heading = " | ".join(filter(None, parts))
        key, levels = self.key("validation") or (), {}
        for label, of_label in variants.items():
            tried = {at: of_label[setting].scores.get(key) for at, setting in enumerate(groups) if setting in of_label}
            scored = {at: scores for at, scores in tried.items() if scores}
            alike = len({score.way[:2] for scores in scored.values() for score in scores.values()}) == 1
            values = {at: {seed: score.value for seed, score in scores.items()} for at, scores in scored.items()}
            levels[label] = pd.DataFrame(values if alike else {}, dtype=float).dropna().mean()
        lower = key == LOSS or group.kind.lower_is_better
        self.levels = (-1 if lower else 1) * pd.DataFrame(levels, index=range(len(groups)))
        self.best = {label: self._highest(self.levels[label]) for label in variants}
        self.common = self._highest(self.levels.sum(axis=1, skipna=False))

    def _highest(self, levels: Any) -> Setting | None:
        return None if levels.isna().all() else [*self.groups][int(np.nanargmax(levels))]

    def variant(self, label: str, setting: Setting | None) -> Variant:
        return self.variants[label].get(setting or (), never_run(label))

    def key(self, split: str) -> Key | None:
        """What is compared: the scores of a split or, if validation was not scored, its loss."""
        columns = (column for group in self.groups.values() if (column := group.column(split)) is not None)
        return next(columns, LOSS if split == "validation" else None)

    def changes(self, settings: Mapping[str, Setting | None], split: str) -> Mapping[str, Measurement]:
        """Of each variant with a score in its setting, the change from the baseline in the baseline's own setting."""
        key = self.key(split) or ()
        rows = {label: self.variant(label, setting).scores.get(key, {}) for label, setting in settings.items()}
        return compared(rows, self.baseline, self.group.kind, key).of_rows

    def in_words(self, setting: Setting | None) -> str:
        names = zip(short_names(self.keys).values(), setting or (), strict=bool(setting))
        return ", ".join(f"{name} {value}" for name, value in names) or "none"


def recipes(groups: Sequence[Group]) -> Iterator[Recipes]:
    """The grids of the sweeps that these runs belong to; without runs of the baseline's positions the first variant
    takes their place. Raises RecordError if the file of a sweep cannot be read.
    """
    files = sweep_files_of(run for group in groups for run in group.runs)
    best_of = [keys for file in files if isinstance(keys := file.get("best_of"), list) and keys]
    for keys in dict.fromkeys(tuple(map(str, keys)) for keys in best_of):
        # 1. The groups that differ in these keys alone; their settings in the order of nothing, numbers, words.
        families: dict[str, dict[Setting, Group]] = {}
        for group in groups:
            rest = {key: value for key, value in group.settings.items() if key not in keys}
            values = (group.settings.get(key) for key in keys)
            setting = tuple(str(value) if isinstance(value, list | dict) else value for value in values)
            families.setdefault(str((group.data, group.model, group.hardware, rest)), {})[setting] = group
        for tried in (tried for tried in families.values() if len(tried) > 1):
            places = {row: [(value is not None, isinstance(value, str), value) for value in row] for row in tried}
            family = {row: tried[row] for row in sorted(tried, key=places.__getitem__)}
            # 2. The variants of all, in the order of their first groups, and of each its runs in each group.
            of_runs = {run_key(run): at for at, group in enumerate(family.values()) for run in group.runs}
            every = variants_of([run for group in family.values() for run in group.runs])
            every.sort(key=lambda whole: min(of_runs[run_key(run)] for run in whole.records))
            variants: Variants = {}
            for whole in every:
                runs: dict[Setting, list[Record]] = {}
                for run in whole.records:
                    runs.setdefault([*family][of_runs[run_key(run)]], []).append(run)
                variants[whole.label] = {at: Variant(whole.position, whole.label, runs[at]) for at in runs}
            first = {run_key(run) for group in family.values() for run in group.baseline.records}
            named = (whole.label for whole in every if first & {*map(run_key, whole.records)})
            yield Recipes(keys, family, variants, next(named, every[0].label))


def recipe_grid(grid: Recipes) -> Grid:
    """Each variant at its own best setting and under one recipe for all."""
    group, own = grid.group, grid.best
    common = dict.fromkeys(grid.variants, grid.common)

    def best(label: str) -> str | Measurement:
        if own[label] is None:
            return missing("no seed was scored in the same way on validation in all settings of the row")
        return grid.in_words(own[label])

    def score(split: str, label: str) -> Measurement:
        return grid.variant(label, own[label]).measured(grid.key(split), f"not evaluated on {split}")

    def change(of_rows: Mapping[str, Measurement], label: str) -> Measurement | str:
        return "" if label == grid.baseline else of_rows.get(label, missing("not scored as the baseline"))

    # 1. The columns: of validation, or its loss, and of test the score and both changes.
    by_loss = grid.key("validation") == LOSS
    what, digits = ("validation loss", 3) if by_loss else ("validation", group.kind.digits)
    columns = [
        Column("position", "position", str, label=True),
        Column("settings", "settings", lambda label: str(grid.levels[label].count())),
        Column("n", "n", lambda label: str(len(grid.variant(label, own[label]).finished))),
        Column("best", "best setting", best, words=True),
    ]
    for split, name, places in (("validation", what, digits), ("test", "test", group.kind.digits)):
        columns.append(Column(split, name, partial(score, split), places))
        for key, heading, settings in (("own", "own best", own), ("one", "one recipe", common)):
            read = partial(change, grid.changes(settings, split))
            columns.append(Column(f"{key}_{split}", f"change {name}, {heading}", read, places, signed=True))
    # 2. How to read them.
    notes = (
        *(["validation loss: in nats per piece, less is better"] if by_loss else []),
        f"best setting: of {', '.join(grid.keys)}, by the {what}, over the seeds of all settings of the row",
        f"change: from {grid.baseline}, each at its own best setting, or both with one recipe, the best on average of "
        f"those of all rows ({grid.in_words(grid.common)})",
        "the best of several noisy validation scores is too high by some of that noise, which test scores are not",
    )
    about = ("recipes", "The best recipe of a grid for each variant, chosen on validation")
    table = Grid(*about, tuple(columns), tuple(grid.variants), grid.heading, notes, synthetic=group.synthetic)
    return table.without_empty_columns()

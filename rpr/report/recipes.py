"""The best setting of each variant in a grid of recipes, chosen on validation.

A sweep file names the settings that make up its grid, `best_of: [optim.learning_rate_scale, model.dropout]`. Groups of
runs that differ in these alone are one grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rpr.records.measurement import Measurement, missing
from rpr.records.record import short_names
from rpr.report.groups import LOSS, Group, Key, Variant, compared, never_run, sweep_files_of
from rpr.report.render import Column, Grid, grid_of, without_empty_columns

Setting = tuple[Any, ...]  # a value for each of the grid's keys


class Recipes:
    """Groups that differ in `keys` alone, by their values of these; `variants`: by label and setting.

    `levels`: what settings are chosen by, more is better: of each setting, by its place in `groups`, and each label the
    mean over the seeds of all settings of the label. NaN where a setting was not tried, or scores have other units:
    signatures and sentences, or vocabularies of the loss. `best`: the setting of each label, if any. Without runs of
    the baseline's positions the first variant takes their place.
    """

    def __init__(self, keys: tuple[str, ...], groups: dict[Setting, Group]) -> None:
        import pandas as pd

        self.keys, self.groups = keys, groups
        self.group = group = next(iter(groups.values()))  # for what they share
        steps = "" if "optim.max_steps" in keys else f"{group.max_steps:,} steps"
        parts = (group.corpus, f"model {group.model}", steps, group.hardware, group.distinctly(*keys))
        self.heading = " | ".join(filter(None, parts))
        # 1. The variants, in the order of their first groups; a label says what tells a variant apart in any group.
        by_identity: dict[str, dict[Setting, Variant]] = {}
        for setting, of_setting in groups.items():
            for variant in of_setting.variants:
                by_identity.setdefault(variant.position.identity, {})[setting] = variant
        labels = {key: max((row.label for row in rows.values()), key=len) for key, rows in by_identity.items()}
        self.variants = {labels[key]: rows for key, rows in by_identity.items()}
        baselines = (of_setting.baseline for of_setting in groups.values())
        named = (labels[baseline.position.identity] for baseline in baselines if baseline.records)
        self.baseline = next(named, next(iter(self.variants)))
        # 2. Their levels.
        levels, key = {}, self.key("validation")
        for label, of_label in self.variants.items():
            tried = {at: of_label[setting].scores.get(key) for at, setting in enumerate(groups) if setting in of_label}
            scored = pd.DataFrame({at: scores for at, scores in tried.items() if scores}, dtype=object).dropna()
            ways = {score.way[:2] for scores in tried.values() for score in (scores or {}).values()}
            levels[label] = scored.map(lambda score: score.value).mean() if len(ways) == 1 else pd.Series()
        sign = -1 if key == LOSS or group.kind.lower_is_better else 1
        self.levels = sign * pd.DataFrame(levels, index=range(len(groups)))
        self.best = {label: None if of_label.isna().all() else [*groups][of_label.idxmax()]
                     for label, of_label in self.levels.items()}  # fmt: skip

    def variant(self, label: str) -> Variant:
        """The row at its best setting."""
        return self.variants[label].get(self.best[label] or ()) or never_run(self.group, label)

    def key(self, split: str) -> Key:
        """What is compared: the scores of a split or, if validation was not scored, its loss."""
        key = (split, self.group.kind.metric)
        return LOSS if split == "validation" and not any(key in group.keys for group in self.groups.values()) else key

    def changes(self, split: str) -> Mapping[str, Measurement]:
        """Of each variant with a score, the change from the baseline, both at their best settings."""
        key = self.key(split)
        rows = {label: self.variant(label).scores.get(key, {}) for label in self.variants}
        return compared(rows, self.baseline, self.group.kind, key).of_rows


def recipes(groups: Sequence[Group]) -> Iterator[Recipes]:
    """The grids of the sweeps that these runs belong to. Raises RecordError if the file of a sweep cannot be read."""
    files = sweep_files_of(run for group in groups for run in group.runs)
    best_of = [keys for file in files if isinstance(keys := file.get("best_of"), list) and keys]
    for keys in dict.fromkeys(tuple(map(str, keys)) for keys in best_of):
        # The groups that differ in these keys alone; their settings in the order of nothing, numbers, words.
        families: dict[str, dict[Setting, Group]] = {}
        for group in groups:
            rest = {key: value for key, value in group.settings.items() if key not in keys}
            values = (group.settings.get(key) for key in keys)
            setting = tuple(str(value) if isinstance(value, list | dict) else value for value in values)
            families.setdefault(str((group.data, group.model, group.hardware, rest)), {})[setting] = group
        for tried in (tried for tried in families.values() if len(tried) > 1):
            places = {row: [(value is not None, isinstance(value, str), value) for value in row] for row in tried}
            yield Recipes(keys, {row: tried[row] for row in sorted(tried, key=places.__getitem__)})


def recipe_grid(grid: Recipes) -> Grid:
    """Each variant at its own best setting."""
    by_loss = grid.key("validation") == LOSS
    what, digits = ("validation loss", 3) if by_loss else ("validation", grid.group.kind.digits)
    places = {"validation": (what, digits), "test": ("test", grid.group.kind.digits)}
    changes, names = {split: grid.changes(split) for split in places}, short_names(grid.keys).values()
    untried = missing("no seed was scored in the same way on validation in all settings of the row")

    def cells_of(label: str) -> Iterator[tuple[Column, Any]]:
        variant, best = grid.variant(label), grid.best[label]
        words = ", ".join(f"{name} {value}" for name, value in zip(names, best or (), strict=best is not None))
        yield Column("position", "position", kind="label"), label
        yield Column("settings", "settings"), str(grid.levels[label].count())
        yield Column("n", "n"), str(len(variant.finished))
        yield Column("best", "best setting", kind="words"), words or untried
        for split, (name, decimals) in places.items():
            yield Column(split, name, decimals), variant.measured(grid.key(split))
            change = changes[split].get(label, missing("not scored as the baseline"))
            column = Column(f"own_{split}", f"change {name}", decimals, signed=True)
            yield column, "" if label == grid.baseline else change

    notes = [
        *["validation loss: in nats per piece, less is better"] * by_loss,
        f"best setting: of {', '.join(grid.keys)}, by the {what}, over the seeds of all settings of the row",
        f"change: from {grid.baseline}, each at its own best setting",
        "the best of several noisy validation scores is too high by some of that noise, which test scores are not",
    ]
    title = "The best recipe of a grid for each variant, chosen on validation"
    about: dict[str, Any] = {"setting": grid.heading, "notes": notes, "synthetic": grid.group.synthetic}
    return without_empty_columns(grid_of("recipes", title, [*grid.variants], cells_of, **about))

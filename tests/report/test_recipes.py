"""The best of a grid of recipes for each variant, against figures by hand."""

from pathlib import Path
from typing import Any

import pytest

from rpr.errors import RecordError
from rpr.records.record import Record
from rpr.report.grouping import run_groups
from rpr.report.recipes import Recipes, recipe_grids, recipes
from tests.fake_records import fake_record

KEYS = ("optim.learning_rate_scale", "model.dropout")  # those of recipe_tiny
# Validation BLEU by learning rate and dropout. Relative is best at 3.0, 0.1, absolute at 1.5, 0.1.
GRID = {
    "absolute": {(0.75, 0.1): 20.0, (1.5, 0.1): 24.0, (3.0, 0.1): 22.0, (1.5, 0.2): 22.5},
    "relative": {(0.75, 0.1): 21.0, (1.5, 0.1): 25.0, (3.0, 0.1): 28.0, (1.5, 0.2): 27.0},
}


def run(position: str, setting: tuple[float, float], seed: int, **scores: float) -> Record:
    settings = dict(zip(KEYS, setting, strict=True))
    return fake_record(position, seed=seed, settings=settings, scores=scores, sweeps=["recipe_tiny"])


def grid_of(*more: Record, **changes: Any) -> Recipes:
    runs = [run(name, one, 1, validation=score) for name, scores in GRID.items() for one, score in scores.items()]
    (grid,) = recipes(run_groups([*runs, *more], **changes))
    return grid


def test_each_variant_has_its_own_best_and_all_have_one_recipe() -> None:
    # Two more seeds of each one's best: the choice stays that of seed 1, which every setting has.
    more = [run("relative", (3.0, 0.1), seed, validation=10.0 * seed, test=30.0 + seed) for seed in (2, 3)]
    more += [run("absolute", (1.5, 0.1), seed, validation=9.0 * seed, test=28.0 + 2 * seed) for seed in (2, 3)]
    grid = grid_of(*more)
    absolute, relative = "absolute (sinusoidal)", "relative, k = 16"
    assert (grid.keys, grid.labels, grid.baseline) == (KEYS, (absolute, relative), absolute)
    assert (grid.best(absolute), grid.best(relative)) == ((1.5, 0.1), (3.0, 0.1))
    assert grid.common == (3.0, 0.1), "22 and 28 are 50, more than 24 and 25"
    table = recipe_grids(grid)[0]
    keys = [column.key for column in table.columns]
    rows = {row[0].value: dict(zip(keys, row, strict=True)) for row in table.cells}
    best = rows[relative]["best"]
    assert best.value == "learning_rate_scale 3.0, dropout 0.1 (edge)"
    assert best.remarks == ("at the edge of the grid: optim.learning_rate_scale, model.dropout",)
    own = rows[relative]["own_validation"].value  # 28 - 24, 20 - 18, 30 - 27
    assert (own.value, own.n) == (pytest.approx(3.0), 3) and own.interval.low == pytest.approx(
        3 - 4.30265 / 3**0.5, rel=1e-5
    )
    assert rows[relative]["own_test"].value.value == pytest.approx(32.5 - 33.0)
    assert rows[relative]["one_validation"].value.value == pytest.approx((28 + 20 + 30) / 3 - 22)
    assert rows[absolute]["best"].remarks == ("at the edge of the grid: model.dropout",)


def test_changes_across_the_grid_are_a_table() -> None:
    grid = grid_of()
    table = recipe_grids(grid)[1]
    cells = {line[0].value: [cell.value.value for cell in line[1:]] for line in table.cells}
    assert list(cells) == [grid.in_words(one) for one in [(0.75, 0.1), (1.5, 0.1), (1.5, 0.2), (3.0, 0.1)]]
    assert [*cells.values()] == [[20.0, 1.0], [24.0, 1.0], [22.5, 4.5], [22.0, 6.0]]


def test_without_scores_of_validation_its_loss_decides() -> None:
    runs = [
        fake_record(position, settings={KEYS[0]: rate, KEYS[1]: 0.1}, sweeps=["recipe_tiny"],
                    training={**fake_record().training.model_dump(), "validation_loss": loss})
        for position, losses in (("absolute", (3.0, 2.0)), ("relative", (1.0, 2.5)))
        for rate, loss in zip((1.0, 2.0), losses, strict=True)
    ]  # fmt: skip
    (grid,) = recipes(run_groups(runs))
    assert [grid.best(label) for label in grid.labels] == [(2.0, 0.1), (1.0, 0.1)]
    assert "by the validation loss, over" in recipe_grids(grid)[0].notes[0].text


def test_files_of_sweeps_are_found_by_name_alone_and_must_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpr.report.recipes.data_dir", lambda name: tmp_path)
    (tmp_path.parent / "outside.yaml").write_text("best_of: [model.dropout]")
    (tmp_path / "broken.yaml").write_text("jobs: [")
    groups = {name: run_groups([fake_record(sweeps=[name])]) for name in ("../outside", "broken")}
    assert list(recipes(groups["../outside"])) == []
    with pytest.raises(RecordError, match="broken.yaml: cannot be read as a sweep .*; mend it"):
        list(recipes(groups["broken"]))


def test_runs_of_other_sweeps_or_of_one_setting_have_no_grid() -> None:
    assert list(recipes(run_groups([run("absolute", (1.5, 0.1), 1), run("relative", (1.5, 0.1), 1)]))) == []
    assert list(recipes(run_groups([fake_record("absolute"), fake_record("relative")]))) == []

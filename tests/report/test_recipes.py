"""The best of a grid of recipes for each variant, against figures by hand."""

from pathlib import Path

import pytest

from rpr.errors import RecordError
from rpr.paths import SCHEMES_DIR
from rpr.records.record import Record
from rpr.report.groups import run_groups
from rpr.report.render import Grid
from rpr.report.tables import recipe_grids
from tests.fake_records import fake_record, fake_score
from tests.report.helpers import row, value

ABSOLUTE, RELATIVE = "absolute (sinusoidal)", "relative, k = 16"
KEYS = ("optim.learning_rate_scale", "model.dropout")  # those of fair
# Validation BLEU by learning rate and dropout. Relative is best at 3.0, 0.1, absolute at 1.5, 0.1.
GRID = {
    "absolute": {(0.75, 0.1): 20.0, (1.5, 0.1): 24.0, (3.0, 0.1): 22.0, (1.5, 0.2): 22.5},
    "relative": {(0.75, 0.1): 21.0, (1.5, 0.1): 25.0, (3.0, 0.1): 28.0, (1.5, 0.2): 27.0},
}


def run(position: str, setting: tuple[float, float], seed: int, **scores: float) -> Record:
    settings = dict(zip(KEYS, setting, strict=True))
    return fake_record(position, seed=seed, settings=settings, scores=scores, sweeps=["fair"])


def grid_of(*more: Record) -> Grid:
    runs = [run(name, one, 1, validation=score) for name, scores in GRID.items() for one, score in scores.items()]
    (grid,) = recipe_grids(run_groups([*runs, *more]))
    return grid


def best(grid: Grid) -> dict[str, str]:
    """The setting of each row, the best first."""
    return {value(line[0]): value(line[1]) for line in grid.cells}


def test_each_variant_has_its_own_best():
    # Two more seeds of each one's best: the choice stays that of seed 1, which every setting has.
    more = [run("relative", (3.0, 0.1), seed, validation=10.0 * seed, test=30.0 + seed) for seed in (2, 3)]
    more += [run("absolute", (1.5, 0.1), seed, validation=9.0 * seed, test=28.0 + 2 * seed) for seed in (2, 3)]
    grid = grid_of(*more)
    chosen = best(grid)
    assert list(chosen.items()) == [
        (ABSOLUTE, "learning_rate_scale 1.5, dropout 0.1 (of 4)"),  # 33.0 on test
        (RELATIVE, "learning_rate_scale 3.0, dropout 0.1 (of 4)"),  # 32.5
    ]
    cells = row(grid, RELATIVE, chosen[RELATIVE])
    assert (cells["n"].value, cells["test_verdict"].value) == ("3", "open (2 seeds)")
    own = cells["validation_change"].value  # 28 - 24, 20 - 18, 30 - 27
    assert (own.value, own.n) == (pytest.approx(3.0), 3)
    assert own.interval.low == pytest.approx(3 - 4.30265 / 3**0.5, abs=0.02), "of one change Dunnett's is the paired t"
    assert cells["test_change"].value.value == pytest.approx(32.5 - 33.0)


def grids_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keys: str, *runs: Record) -> list[Grid]:
    """Those of runs of a sweep whose file has these keys."""
    monkeypatch.setattr("rpr.paths.data_dir", lambda name: tmp_path)
    (tmp_path / "mine.yaml").write_text(f"best_of: [{keys}]")
    return list(recipe_grids(run_groups(run.model_copy(update={"sweeps": ("mine",)}) for run in runs)))


def test_settings_outside_the_grid_and_other_variants_are_not_mixed(tmp_path, monkeypatch):
    def run(position, steps, dropout, **settings):
        settings = {"optim.max_steps": steps, "model.dropout": dropout} | settings
        return fake_record(position, settings=settings, scores={"validation": 20.0 + steps / 100})

    runs = [run(kind, steps, steps / 10_000) for kind in ("absolute", "relative") for steps in (1000, 2000)]
    assert grids_of(monkeypatch, tmp_path, "optim.max_steps", *runs) == [], "they differ in dropout, too"
    runs = [run(kind, steps, 0.1) for kind in ("absolute", "relative") for steps in (1000, 2000)]
    shared = run("relative", 2000, 0.1, **{"position.tables": "shared_by_heads"})
    (grid,) = grids_of(monkeypatch, tmp_path, "optim.max_steps", *runs, shared)
    assert grid.setting == "multi30k_en_de | model small | cpu", "the steps vary"
    assert best(grid) == {
        ABSOLUTE: "max_steps 2000 (of 2)", "relative, k = 16, per head": "max_steps 2000 (of 2)",
        "relative, k = 16, shared by heads": "max_steps 2000 (of 1)",
    }  # fmt: skip
    no_seed_of_both = [run("absolute", 1000, 0.1), run("absolute", 2000, 0.1).model_copy(update={"seed": 2})]
    assert grids_of(monkeypatch, tmp_path, "optim.max_steps", *no_seed_of_both) == []


def test_files_of_sweeps_are_found_by_name_alone_and_must_be_readable(tmp_path, monkeypatch):
    monkeypatch.setattr("rpr.paths.data_dir", lambda name: tmp_path)
    (tmp_path.parent / "outside.yaml").write_text("best_of: [model.dropout]")
    (tmp_path / "broken.yaml").write_text("jobs: [")
    runs = {name: [fake_record("absolute", sweeps=[name])] for name in ("../outside", "broken")}
    assert list(recipe_grids(run_groups(runs["../outside"]))) == []
    with pytest.raises(RecordError, match="broken.yaml: cannot be read as a sweep .*; mend it"):
        run_groups(runs["broken"])
    (tmp_path / "own" / "sweeps").mkdir(parents=True)
    (tmp_path / "own" / "sweeps" / "broken.yaml").write_text("best_of: [model.dropout]")
    monkeypatch.setenv(SCHEMES_DIR, str(tmp_path / "own"))
    assert list(recipe_grids(run_groups(runs["broken"]))) == [], "the user's own file of a name comes first"


def test_the_best_recipe_of_a_language_model_has_the_fewest_bits():
    tries = [(name, rate, bits) for name in ("absolute", "relative") for rate, bits in ((1.0, 2.5), (2.0, 2.0))]
    tries.append(("absolute", 3.0, 3.9))  # less than 2.0 and 2.0 together
    runs = [
        fake_record(name, settings={KEYS[0]: rate, KEYS[1]: 0.1, "data.text": {}}, sweeps=["fair"],
                    scores=[fake_score("validation", bits, "bits_per_byte")])
        for name, rate, bits in tries
    ]  # fmt: skip
    (grid,) = recipe_grids(run_groups(runs))
    assert [*best(grid).values()] == [f"learning_rate_scale 2.0, dropout 0.1 (of {count})" for count in (3, 2)]

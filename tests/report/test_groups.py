"""Groups and variants from fake records: what shares a group, which run counts for a seed, means, changes seed by seed,
why a figure is missing; settings of later versions; which of many variants are shown.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr.records.position import position_of, positions_of
from rpr.records.record import Record, find_records
from rpr.report.grid import legend
from rpr.report.groups import left_out, run_groups, sample_evenly
from rpr.report.learning import Learning, run_key
from rpr.report.plot_style import variant_colours
from rpr.report.plots import bleu_by_length
from rpr.report.tables import build_tables

RESULTS = Path(__file__).resolve().parents[2] / "sweeps" / "results"


def test_of_a_generated_task_exact_match_stands_first_and_is_shown_by_length(make, score, by_length):
    """Of a corpus of sentences it is folded away in the tables, and left out by length."""
    interval = {"low": 70.0, "high": 90.0, "level": 0.95, "kind": "sentences", "method": "Wilson's"}
    scores = [score("test", 30.0), score("long", 20.0), score("test", 81.0, "exact_match", interval=interval)]
    lengths = by_length(50.0, 40.0, 30.0, 20.0, unit="actions of the output")
    lengths["signatures"]["exact_match"] = "unit:sentence"
    for bucket in lengths["buckets"]:
        bucket["scores"].append({"metric": "exact_match", "score": 7.0, "interval": interval})

    def grouped(task):
        runs = [make(kind, scores=scores, by_length=lengths, settings={"data.task": task})
                for kind in ("absolute", "relative")]  # fmt: skip
        [group] = run_groups(runs)
        assert (runs[0].task, runs[0].synthetic, group.task) == (("scan", True, True) if task else (None, False, False))
        tables = build_tables([group])
        places = {column.key: (place, column.priority) for place, column in enumerate(tables.paper[0].columns)}
        return group, tables, places

    _, tables, places = grouped(None)
    assert places["exact_match_test"][1] == 3
    assert "lengths_exact_match" not in [grid.name for grid in tables.lengths]
    group, tables, places = grouped({"kind": "scan", "max_train_length": 22})
    assert places["exact_match_test"] == (places["n"][0] + 1, 0)
    assert "exact match by length, test and long together" in [grid.title for grid in tables.lengths]
    notes = " ".join(note.text for grid in tables.lengths for note in grid.notes)
    assert "longer than any example of the training data, whose longest has 22 actions of the output" in notes
    assert "trainings (Wilson's)" in " ".join(legend([tables.paper[0].only(lambda column: "exact" in column.key)]))
    [axes] = bleu_by_length(group).axes
    assert axes.get_ylabel() == "exact match, percent"
    vertical = [line for line in axes.get_lines() if list(line.get_xdata()) == [1.5, 1.5]]
    assert len(vertical) == 1  # between the buckets of training, 1 to 10 and 11 to 22, and the others


def test_a_variant_is_the_mean_over_its_seeds_and_one_has_the_interval_over_its_sentences(make, score, interval):
    (group,) = run_groups(make("relative", 16, seed=seed, scores={"test": 30.0 + seed}) for seed in (1, 2, 3))
    (variant,) = group.variants
    assert (variant.label, [run.seed for run in variant.finished]) == ("relative, k = 16", [1, 2, 3])
    found = group.score(variant, "test")
    assert (found.value, found.n, found.deviation, found.interval.kind) == (32.0, 3, 1.0, "seeds")
    assert group.score(variant, "long").reason == "not evaluated on long"
    assert group.heading == "multi30k_en_de | model small | 1,800 steps | cpu"
    (group,) = run_groups([make(scores=[score("test", 30.0, interval=interval(29.0, 31.0))])])
    found = group.score(group.variants[0], "test")
    assert (found.n, found.deviation, found.interval.kind) == (1, None, "sentences")


def test_what_decides_a_figure_parts_groups(make):
    def groups(setting, value):
        return run_groups([make("absolute"), make("relative", settings={setting: value})])

    for setting, value in (("optim.warmup_steps", 500), ("model.dropout", 0.3), ("evaluation.beam_size", 1)):
        _, other = sorted(group.variant for group in groups(setting, value))
        assert other.startswith(f"{setting} = ")
    assert len(groups("data.cache_dir", "/elsewhere")) == len(groups("evaluation.bootstrap_samples", 5)) == 1


def test_runs_scored_on_other_splits_are_one(make):
    one = make("relative", scores={"test": 30.0}, settings={"evaluation.test_splits": ["test"]})
    other = make("relative", scores={"validation": 28.0}, settings={"evaluation.test_splits": ["validation"]})
    other = other.model_copy(update={"started": "2026-01-03T00:00:00Z"})
    (group,) = run_groups([one, other])
    (variant,) = group.variants
    assert [group.score(variant, split).value for split in ("test", "validation")] == [30.0, 28.0]


def test_the_newest_run_of_a_seed_counts_and_an_original_before_its_rerun(make):
    def scored(score: float, started: str, **changes: object) -> Record:
        return make(scores={"test": score}, started=started, **changes)

    rerun = scored(3.0, "2026-03-01T00:00:00Z", rerun_of={"run_id": "0" * 8, "started": "2026-01-01T00:00:00Z"})
    (group,) = run_groups([scored(1.0, "2026-01-01T00:00:00Z"), scored(2.0, "2026-02-01T00:00:00Z"), rerun])
    found = group.score(group.variants[0], "test")
    assert (found.value, found.n) == (2.0, 1)


def test_changes_are_seed_by_seed(make):
    runs = [make("absolute", seed=seed, scores={"test": value}) for seed, value in ((1, 20.0), (2, 30.0))]
    runs += [make("relative", seed=seed, scores={"test": value}) for seed, value in ((1, 21.0), (2, 31.5))]
    (group,) = run_groups(runs)
    absolute, relative = group.get("absolute"), group.get("relative", 16)
    change = group.change(relative, absolute, "test", "absolute")
    assert (change.value, change.n) == (1.25, 2)
    assert change.deviation == pytest.approx(0.5 / 2**0.5)
    assert group.change(absolute, absolute, "test", "absolute").value == 0.0
    assert group.change(relative, None, "test", "absolute").reason == "nothing to compare with: absolute: never run"
    # Of other seeds it has no interval.
    (group,) = run_groups([make("absolute", seed=1), make("relative", seed=2), make("relative", seed=3)])
    change = group.change(group.get("relative"), group.get("absolute"), "test", "absolute")
    assert (change.value, change.deviation, change.interval) == (0.0, None, None)


def test_scores_made_in_two_ways_have_no_mean_and_no_change(make, score):
    other = make("relative", seed=2, scores=[score("test", 31.0, signature="another")])
    (group,) = run_groups([make("absolute"), make("relative"), other])
    relative, absolute = group.get("relative"), group.get("absolute")
    assert "scored in different ways" in group.score(relative, "test").reason
    (group,) = run_groups([make("absolute"), make("relative", scores=[score("test", 31.0, num_sentences=7)])])
    relative, absolute = group.get("relative"), group.get("absolute")
    assert group.change(relative, absolute, "test", "absolute").reason == "test: scored in another way than absolute"


def test_a_run_without_result_says_why(make):
    (group,) = run_groups([make("none", status="failed"), make("relative"), make("relative", seed=2, status="running")])
    none, relative = group.get("none"), group.get("relative")
    assert group.score(none, "test").reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert relative.unfinished[0].startswith("seed 2 still running")
    assert group.score(relative, "test").value == 30.0


def test_rows_are_in_the_order_of_the_paper(make):
    kinds = ("relative_values", "none", "absolute_and_relative", "learned", "absolute", "relative_keys")
    runs = [make(kind) for kind in kinds] + [make("relative", k) for k in (16, 2)]
    (group,) = run_groups(runs)
    assert [variant.label for variant in group.variants] == [
        "absolute (sinusoidal)", "absolute (learned)", "none", "relative, k = 2", "relative, k = 16",
        "keys only, k = 16", "values only, k = 16", "sinusoidal + relative, k = 16",
    ]  # fmt: skip


def test_still_learning_comes_with_the_run(make):
    run = make()
    (group,) = run_groups([run], {run_key(run): Learning(0.05, 1800, 2.0)})
    assert group.variants[0].still_learning.fall == 0.05
    assert group.advice == "train at least twice as long: optim.max_steps=3600 (30 min a run)"


# Settings of later versions


@pytest.mark.parametrize("folder, value", [("quick", 10_000), ("quick", "none"), ("multi30k", True)])
def test_a_setting_that_is_not_known_changes_no_committed_row(folder, value):
    """The same value in every record: kinds, labels, colours and tables are as without it."""
    if not (RESULTS / folder).is_dir():
        pytest.skip(f"sweeps/results/{folder} is not committed any more")
    records = [record for _, record in find_records(RESULTS / folder).records]
    assert _shown([_with(record, "rotary", value) for record in records]) == _shown(records)


def test_a_setting_that_is_not_known_marks_its_own_row_alone(make):
    plain = [make("absolute"), make("none"), *(make("relative", k) for k in (0, 2, 16))]
    scheme = _with(make("none", seed=2, scores={"test": 35.0}), "rotary", True)
    scheme = _with(scheme, "name", "rotary")
    before, after = _shown(plain), _shown([*plain, scheme])
    assert after["variants"] == [*before["variants"], ("other", "rotary = True", after["variants"][-1][2])]
    assert after["tables"][-2:] == before["tables"][-2:]  # Tables 2 and 3; Table 1 has a row more
    one, other = positions_of([make("relative"), _with(make("relative"), "rotary_base", 500)])
    assert (one.kind, other.kind, other.label) == ("relative", "other", "relative, k = 16, rotary_base = 500")
    assert (position_of(scheme).kind, position_of(scheme).label) == ("other", "rotary = True")
    assert position_of(_with(make("none"), "name", "mine")).kind == "none"


def _with(record: Record, key: str, value: object) -> Record:
    config = json.loads(json.dumps(record.config))
    config["position"][key] = value
    return record.model_copy(update={"config": config})


def _shown(records: list[Record]) -> dict[str, list[object]]:
    groups = run_groups(records)
    variants: list[object] = []
    for group in groups:
        colours = variant_colours((one.label, one.position.kind, one.position.clip_distance) for one in group.variants)
        variants += [(one.position.kind, one.label, colours[one.label]) for one in group.variants]
    return {"variants": variants, "tables": [(grid.name, len(grid.rows)) for grid in build_tables(groups).paper]}


# Which of many


def test_of_many_variants_each_kind_is_shown_evenly(make):
    (group,) = run_groups([make("absolute"), make("none"), *(make("relative", k) for k in range(20))])
    some = sample_evenly(group.variants, 7)
    assert [one.label for one in some][:2] == ["absolute (sinusoidal)", "none"]
    assert [one.position.clip_distance for one in some][2:] == [0, 5, 10, 14, 19]
    assert sample_evenly(group.variants, 30) == list(group.variants)
    assert sample_evenly([(variant, 1) for variant in group.variants], 1) == [(group.variants[0], 1)]
    assert left_out(7, 22, "variants") == "7 of 22 variants: of each kind, evenly spaced, not chosen by their quality"
    assert left_out(7, 7, "variants") == ""

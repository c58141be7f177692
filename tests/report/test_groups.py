"""Groups and variants from fake records: grouping, scores over seeds, changes, missing figures, unknown settings."""

from __future__ import annotations

import json

import pytest

from rpr.model.positions import Sides
from rpr.records.position import position_of, positions_of
from rpr.records.record import Record
from rpr.report.grid import legend
from rpr.report.grouping import run_groups
from rpr.report.plot_style import variant_colours
from rpr.report.plots import bleu_by_length
from rpr.report.sampling import left_out, sample_evenly
from rpr.report.tables import build_tables
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score
from tests.shapes import scheme


def test_exact_match_comes_first_and_by_length_for_a_task():
    """For a corpus of sentences it is folded in the tables and omitted by length; a task has a table of its own."""
    interval = {"low": 70.0, "high": 90.0, "level": 0.95, "kind": "sentences", "method": "Wilson's"}
    scores = [fake_score("test", 30.0), fake_score("long", 20.0)]
    scores.append(fake_score("test", 81.0, "exact_match", interval=interval))
    lengths = fake_by_length(50.0, 40.0, 30.0, 20.0, unit="actions of the output")
    lengths["signatures"]["exact_match"] = "unit:sentence"
    for bucket in lengths["buckets"]:
        bucket["scores"].append({"metric": "exact_match", "score": 7.0, "interval": interval})

    def grouped(task):
        runs = [fake_record(kind, scores=scores, by_length=lengths, settings={"data.task": task})
                for kind in ("absolute", "relative")]  # fmt: skip
        [group] = run_groups(runs)
        assert (runs[0].task, runs[0].synthetic, group.task) == (("scan", True, True) if task else (None, False, False))
        tables = build_tables([group])
        return group, tables

    _, tables = grouped(None)
    assert {column.key: column.priority for column in tables.paper[0].columns}["exact_match_test"] == 3
    assert tables.tasks == ()
    assert "lengths_exact_match" not in [grid.name for grid in tables.lengths]
    group, tables = grouped({"kind": "scan", "max_train_length": 22})
    [task] = tables.tasks
    assert (tables.paper, group.differences) == ((), ())
    assert [column.key for column in task.columns][:5] == ["position", "n", "test", "test_change", "note"]
    assert [row[2].value.value for row in task.cells] == [81.0, 81.0]
    assert task.cells[0][4].value == "not learned"
    assert tables.lengths[0].title == "exact match by length, test and long together"
    notes = " ".join(note.text for grid in tables.lengths for note in grid.notes)
    assert "longer than any example of the training data, whose longest has 22 actions of the output" in notes
    assert "trainings (Wilson's)" in " ".join(legend([task.only(lambda column: column.key == "test")]))
    [axes] = bleu_by_length(group).axes
    assert axes.get_ylabel() == "exact match, percent"
    vertical = [line for line in axes.get_lines() if list(line.get_xdata()) == [1.5, 1.5]]
    assert len(vertical) == 1  # between the buckets of training, 1 to 10 and 11 to 22, and the others


def test_variant_score_and_interval():
    (group,) = run_groups(fake_record("relative", 16, seed=seed, scores={"test": 30.0 + seed}) for seed in (1, 2, 3))
    (variant,) = group.variants
    assert (variant.label, [run.seed for run in variant.finished]) == ("relative, k = 16", [1, 2, 3])
    found = group.score(variant, "test")
    assert (found.value, found.n, found.deviation, found.interval.kind) == (32.0, 3, 1.0, "seeds")
    assert group.score(variant, "long").reason == "not evaluated on long"
    assert group.heading == "multi30k_en_de | model small | 1,800 steps | cpu"
    (group,) = run_groups([fake_record(scores=[fake_score("test", 30.0, interval=fake_interval(29.0, 31.0))])])
    found = group.score(group.variants[0], "test")
    assert (found.n, found.deviation, found.interval.kind) == (1, None, "sentences")


def test_deciding_settings_separate_groups():
    def groups(setting, value):
        return run_groups([fake_record("absolute"), fake_record("relative", settings={setting: value})])

    for setting, value in (
        ("optim.warmup_steps", 500),
        ("model.dropout", 0.3),
        ("evaluation.beam_size", 1),
        ("hardware.precision", "bf16"),
    ):
        assert f"{setting} = {value}" in [group.variant for group in groups(setting, value)]
    assert len(groups("data.cache_dir", "/elsewhere")) == len(groups("evaluation.bootstrap_samples", 5)) == 1


def test_runs_scored_on_different_splits_are_joined():
    one = fake_record("relative", scores={"test": 30.0}, settings={"evaluation.test_splits": ["test"]})
    other = fake_record("relative", scores={"validation": 28.0}, settings={"evaluation.test_splits": ["validation"]})
    other = other.model_copy(update={"started": "2026-01-03T00:00:00Z"})
    (group,) = run_groups([one, other])
    (variant,) = group.variants
    assert [group.score(variant, split).value for split in ("test", "validation")] == [30.0, 28.0]


def test_runs_whose_matmuls_differed_are_apart_and_unfinished_ones_with_the_others():
    def run(seed, used=None):
        record = fake_record(seed=seed, status="finished" if used else "running")
        if used is None:
            return record
        return record.model_copy(update={"training": record.training.model_copy(update={"matmul_precision": used})})

    [group] = run_groups([run(1, "medium"), run(2, "medium"), run(3)])
    assert (len(group.runs), group.variant) == (3, "")
    found = run_groups([run(1, "highest"), run(2, "medium")])
    assert [group.variant for group in found] == ["matmul_precision = highest", "matmul_precision = medium"]


def test_learned_positions_of_other_lengths_are_other_variants():
    lengths = ((1, 64), (2, 512))
    [group] = run_groups(
        fake_record("learned", seed=n, settings={"position.max_positions": rows}) for n, rows in lengths
    )
    assert [one.label for one in group.variants] == [f"absolute (learned), max_positions = {n}" for n in (64, 512)]
    [group] = run_groups(fake_record(seed=seed, settings={"position.max_positions": seed * 64}) for seed in (1, 2))
    assert [one.label for one in group.variants] == ["relative, k = 16"], "without effect on sinusoids and tables"


def test_sides_that_share_tables_differently_are_rows_of_their_own():
    def sides(tables):
        one = Sides(name="a-b", scheme="sides", encoder=scheme("relative", tables=tables), decoder=scheme("rope"))
        run = fake_record()
        return run.model_copy(update={"config": run.config | {"position": one.model_dump(mode="json")}})

    [group] = run_groups([sides("per_head"), sides("shared_by_heads")])
    words = "relative, k = 2 in the encoder, RoPE in the decoder, encoder.tables = "
    assert {one.label for one in group.variants} == {f"{words}{tables}" for tables in ("per_head", "shared_by_heads")}


def test_newest_original_run_of_a_seed_counts():
    def scored(score: float, started: str, **changes: object) -> Record:
        return fake_record(scores={"test": score}, started=started, **changes)

    rerun = scored(3.0, "2026-03-01T00:00:00Z", rerun_of={"run_id": "0" * 8, "started": "2026-01-01T00:00:00Z"})
    (group,) = run_groups([scored(1.0, "2026-01-01T00:00:00Z"), scored(2.0, "2026-02-01T00:00:00Z"), rerun])
    found = group.score(group.variants[0], "test")
    assert (found.value, found.n) == (2.0, 1)


def test_changes_are_paired_by_seed():
    runs = [fake_record("absolute", seed=seed, scores={"test": value}) for seed, value in ((1, 20.0), (2, 30.0))]
    runs += [fake_record("relative", seed=seed, scores={"test": value}) for seed, value in ((1, 21.0), (2, 31.5))]
    (group,) = run_groups(runs)
    absolute, relative = group.get("absolute"), group.get("relative", 16)
    change = group.change(relative, absolute, "test", "absolute")
    assert (change.value, change.n) == (1.25, 2)
    assert change.deviation == pytest.approx(0.5 / 2**0.5)
    assert group.change(absolute, absolute, "test", "absolute").value == 0.0
    assert group.change(relative, None, "test", "absolute").reason == "nothing to compare with: absolute: never run"
    # Without the same seeds there is no interval.
    (group,) = run_groups([fake_record("absolute", seed=1), *(fake_record("relative", seed=seed) for seed in (2, 3))])
    change = group.change(group.get("relative"), group.get("absolute"), "test", "absolute")
    assert (change.value, change.deviation, change.interval) == (0.0, None, None)


def test_scores_decoded_differently_have_no_mean_and_no_change():
    other = fake_record("relative", seed=2, scores=[fake_score("test", 31.0, signature="another")])
    (group,) = run_groups([fake_record("absolute"), fake_record("relative"), other])
    relative, absolute = group.get("relative"), group.get("absolute")
    assert "scored in different ways" in group.score(relative, "test").reason
    other = fake_record("relative", scores=[fake_score("test", 31.0, num_sentences=7)])
    (group,) = run_groups([fake_record("absolute"), other])
    relative, absolute = group.get("relative"), group.get("absolute")
    assert group.change(relative, absolute, "test", "absolute").reason == "test: scored in another way than absolute"


def test_missing_score_has_a_reason():
    running = fake_record("relative", seed=2, status="running")
    (group,) = run_groups([fake_record("none", status="failed"), fake_record("relative"), running])
    none, relative = group.get("none"), group.get("relative")
    assert group.score(none, "test").reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert relative.unfinished[0].startswith("seed 2 still running")
    assert group.score(relative, "test").value == 30.0


def test_variants_are_in_the_papers_order():
    kinds = ("relative_values", "none", "absolute_and_relative", "learned", "absolute", "relative_keys")
    runs = [fake_record(kind) for kind in kinds] + [fake_record("relative", k) for k in (16, 2)]
    (group,) = run_groups(runs)
    assert [variant.label for variant in group.variants] == [
        "absolute (sinusoidal)", "absolute (learned)", "none", "relative, k = 2", "relative, k = 16",
        "keys only, k = 16", "values only, k = 16", "sinusoidal + relative, k = 16",
    ]  # fmt: skip


def test_unknown_position_setting_marks_only_rows_that_differ():
    plain = [fake_record("absolute"), fake_record("none"), *(fake_record("relative", k) for k in (0, 2, 16))]
    for value in (10_000, "none", True):
        assert _shown([_with(record, "rotary", value) for record in plain]) == _shown(plain)
    scheme = _with(fake_record("none", seed=2, scores={"test": 35.0}), "rotary", True)
    scheme = _with(scheme, "name", "rotary")
    before, after = _shown(plain), _shown([*plain, scheme])
    assert after["variants"] == [*before["variants"], ("other", "rotary = True", after["variants"][-1][2])]
    assert after["tables"][-2:] == before["tables"][-2:]  # Tables 2 and 3; Table 1 has a row more
    one, other = positions_of([fake_record("relative"), _with(fake_record("relative"), "rotary_base", 500)])
    assert (one.kind, other.kind, other.label) == ("relative", "other", "relative, k = 16, rotary_base = 500")
    assert (position_of(scheme).kind, position_of(scheme).label) == ("other", "rotary = True")
    assert position_of(_with(fake_record("none"), "name", "mine")).kind == "none"


def _with(record: Record, key: str, value: object) -> Record:
    config = json.loads(json.dumps(record.config))
    config["position"][key] = value
    return record.model_copy(update={"config": config})


def _shown(records: list[Record]) -> dict[str, list[object]]:
    groups = run_groups(records)
    variants: list[object] = []
    for group in groups:
        colours = variant_colours(group.variants)
        variants += [(one.position.kind, one.label, colours[one.label]) for one in group.variants]
    return {"variants": variants, "tables": [(grid.name, len(grid.rows)) for grid in build_tables(groups).paper]}


def test_sample_evenly_keeps_every_kind():
    runs = [fake_record("absolute"), fake_record("none"), *(fake_record("relative", k) for k in range(20))]
    (group,) = run_groups(runs)
    some = sample_evenly(group.variants, 7)
    assert [one.label for one in some][:2] == ["absolute (sinusoidal)", "none"]
    assert [one.position.clip_distance for one in some][2:] == [0, 5, 10, 14, 19]
    assert sample_evenly(group.variants, 30) == list(group.variants)
    assert sample_evenly([(variant, 1) for variant in group.variants], 1) == [(group.variants[0], 1)]
    assert left_out(7, 22, "variants") == "7 of 22 variants: of each kind, evenly spaced, not chosen by their quality"
    assert left_out(7, 7, "variants") == ""

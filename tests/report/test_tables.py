"""The paper's tables from fake records, cell by cell; speeds, lengths and statements with their verdicts."""

from __future__ import annotations

import json

import pytest

from rpr import paper
from rpr.records.measurement import Measurement
from rpr.records.record import find_records
from rpr.report.groups import run_groups
from rpr.report.learning import Learning, run_key
from rpr.report.lengths import length_grids
from rpr.report.scoring import scoring_notes
from rpr.report.speed import ratio_to_absolute, read_benches, steps_per_second
from rpr.report.statements import statements
from rpr.report.tables import build_tables, summary_grid
from tests.shapes import scheme


def runs(make, *, seeds=(1, 2, 3), **options):
    """Every kind of positions; +0.3 BLEU over absolute with a small deviation, order lost at k = 0."""
    scores = {"absolute": 29.7, "none": 16.7, "relative_keys": 30.0, "relative_values": 29.5, "learned": 29.0}
    made = [make(kind, seed=s, scores={"test": v + s / 10}, **options) for kind, v in scores.items() for s in seeds]
    for k, value in ((0, 16.7), (1, 29.7), (2, 30.0), (16, 30.0), (32, 30.0)):
        made += [make("relative", k, seed=s, scores={"test": value + s / 10}, **options) for s in seeds]
    return made


def grids(records, learning=None):
    return {grid.name: grid for grid in build_tables(run_groups(records, learning)).grids}


def row(grid, *labels):
    """The cells of a row by column key."""
    for line in grid.cells:
        named = {column.key: cell for column, cell in zip(grid.columns, line, strict=True)}
        if [named[column.key].value for column in grid.columns if column.label] == list(labels):
            return named
    raise AssertionError(f"no row {labels} in {grid.name}")


def value(cell):
    return cell.value.value if isinstance(cell.value, Measurement) else cell.value


def test_table_2_has_the_papers_rows_and_ours(make):
    table = grids(runs(make))["table2"]
    assert [line[0].value for line in table.cells] == ["0", "1", "2", "4", "16", "32", "64", "256"]
    zero = row(table, "0")
    assert [value(zero[key]) for key in ("n", "paper", "paper_change")] == ["3", 12.5, -13.3]
    assert value(zero["test_change"]) == pytest.approx(-13.3)
    assert zero["agreement"].value == "agrees"
    assert row(table, "32")["paper"].value.reason == "the paper's Table 2 has no row for this k"
    assert row(table, "64")["test"].value.reason == "never run"
    assert value(row(table, "64")["n"]) == "0"
    assert row(table, "16")["agreement"].value == ""  # the row that changes are from


def test_table_3_and_table_1(make):
    found = grids(runs(make))
    neither = row(found["table3"], "no", "no")
    assert (value(neither["paper"]), value(neither["test_change"])) == (12.5, pytest.approx(-13.3))
    assert row(found["table3"], "yes", "no")["agreement"].value == "agrees"
    model = "small, 1,800 steps"
    relative = row(found["table1"], model, "EN-DE", "relative")
    assert (value(relative["paper"]), value(relative["paper_change"])) == (26.8, 0.3)
    assert value(relative["test_change"]) == pytest.approx(0.3)
    assert row(found["table1"], model, "EN-DE", "absolute (learned)")["paper"].value.reason == "not in the paper"


def test_every_variant_is_in_a_table(make):
    odd = make("absolute_and_relative", 4, scores={"test": 30.0})
    groups = run_groups([*runs(make), odd, make("relative_keys", 2)])
    shown = {line.variant.label for line in build_tables(groups).lines if line.variant is not None}
    assert shown == {variant.label for group in groups for variant in group.variants}
    # Several relative positions alone have no Table 1, a single one has.
    assert next(iter(grids([make("relative", k) for k in (2, 16)]))) == "table2"
    assert next(iter(grids([make("relative", 16)]))) == "table1"


def test_french_is_another_row_of_table_1(make):
    french = {"data.name": "multi30k_en_fr", "data.target_language": "fr"}
    records = [make(kind, settings=settings) for settings in ({}, french) for kind in ("absolute", "relative")]
    table = grids(records)["table1"]
    assert [line[1].value for line in table.cells] == ["EN-DE", "EN-DE", "EN-FR", "EN-FR"]
    assert value(row(table, "small, 1,800 steps", "EN-FR", "relative")["paper"]) == 38.7


def test_validation_decides_where_it_was_scored(make):
    records = [make("relative", k, scores={"validation": 20.0 + k, "test": 30.0}) for k in (0, 16)]
    table = grids(records)["table2"]
    assert table.rows[0].decided_on == "validation"
    assert value(row(table, "0")["validation_change"]) == -16.0


def test_ours_less_the_papers_needs_its_corpus_its_test_set_and_its_bleu(make, score):
    wmt = {"data.name": "wmt14_en_de", "data.train_limit": None}
    data = make().data.model_dump(mode="json") | {"name": "wmt14_en_de", "train_pairs": 4_500_000}
    scores = [score("validation", 25.0, test_set="newstest2013")]
    scores.append(score("validation", 25.9, "bleu_tok_split", test_set="newstest2013"))
    records = [make("relative", k, settings=wmt, data=data, scores=scores) for k in (0, 16)]
    assert value(row(grids(records)["table2"], "16")["difference"]) == pytest.approx(0.1)
    line = grids([make("relative", k) for k in (0, 16)])["table2"].rows[0]
    assert line.difference().reason == "another corpus: multi30k_en_de; the paper's: WMT 2014"


def test_differs_says_data_model_steps_and_the_test_set(make):
    cell = row(grids(runs(make))["table2"], "16")["differs"]
    assert cell.value.startswith("smaller: data, model, steps")
    assert "test set: test_2016_flickr; the paper: newstest2013" in cell.remarks[0]


def test_a_run_that_is_still_learning_is_marked_and_decides_nothing(make):
    records = runs(make)
    learning = {
        run_key(run): Learning(0.02, 1800, 2.0) for run in records if run.setting("position.clip_distance") == 16
    }
    table = grids(records, learning)["table2"]
    assert row(table, "16")["note"].value == "still learning"
    assert "optim.max_steps=3600" in row(table, "16")["note"].remarks[0]
    assert row(table, "0")["agreement"].value == "not decided"
    assert row(table, "0")["agreement"].remarks == ("not decided: still learning",)


def test_the_summary_has_every_variant(make):
    (group,) = run_groups(runs(make))
    grid = summary_grid(group, group.variants)
    assert [line[0].value for line in grid.cells] == [variant.label for variant in group.variants]
    assert value(row(grid, "absolute (sinusoidal)")["paper_change"]) == -0.3
    assert value(row(grid, "none")["paper"]) == 12.5


# Scores and speeds


def test_rows_scored_in_two_ways_are_a_warning(make, score):
    records = [make("absolute"), make("relative", scores=[score("test", 31.0, beam_size=1)])]
    (group,) = run_groups(records)
    warnings = [note.text for note in scoring_notes(group) if note.severity == "warning"]
    assert warnings == ["not comparable: the rows of test were scored in different ways (sacreBLEU)"]
    assert [note.severity for note in scoring_notes(run_groups([make()])[0])].count("warning") == 0


def cpu(make, position, speed, cores):
    run = make(position, steps_per_second=speed, settings={"hardware.accelerator": "cpu"})
    return run.model_copy(update={"training": run.training.model_copy(update={"cores_used": cores})})


@pytest.mark.parametrize("cores, ratio, reason", [
    ((2.0, 1.95), 0.9, None),
    ((2.0, 1.5), None, "1.50 cores worked on it and 2.00 on absolute: other work slowed one of them"),
    ((None, 2.0), None, "CPU utilisation was not recorded for one of the two runs, so their speeds are not comparable"),
])  # fmt: skip
def test_speeds_are_compared_only_where_as_many_cores_worked(make, cores, ratio, reason):
    (group,) = run_groups([cpu(make, "absolute", 2.0, cores[0]), cpu(make, "relative", 1.8, cores[1])])
    found = ratio_to_absolute(group, group.get("relative"))
    assert (found.value, found.reason) == (ratio if ratio is None else pytest.approx(ratio), reason)


def test_the_speed_of_a_run_that_shared_its_device_does_not_count(make):
    def group(*jobs):
        absolute, relative = jobs
        runs = [
            make("absolute", seed=seed).model_copy(update={"concurrent_jobs": n}) for seed, n in enumerate(absolute)
        ]
        runs.append(make("relative", steps_per_second=9.0).model_copy(update={"concurrent_jobs": relative}))
        return run_groups(runs)[0]

    shared = group((1, 1), 2)
    found = ratio_to_absolute(shared, shared.get("relative"))
    assert (found.value, found.reason) == (None, "no speed: 2 jobs of the sweep shared the device")
    shared = group((3, 2), 1)
    found = ratio_to_absolute(shared, shared.get("relative"))
    assert found.reason == "absolute: no speed: 3 jobs of the sweep shared the device"
    some = group((None, 2), 1)
    found = ratio_to_absolute(some, some.get("relative"))
    assert found.value is not None and steps_per_second(some.get("absolute")).n == 1


def test_speeds_of_two_devices_are_not_compared(make):
    (group,) = run_groups([make("absolute"), make("relative", device="a GPU")])
    found = ratio_to_absolute(group, group.get("relative"))
    assert found.reason == "no finished absolute (sinusoidal) run on this device and precision to compare with"
    table = grids([make("absolute"), make("relative")])["speed"]
    row_of = row(table, "small", "multi30k_en_de, 1,800 steps, cpu", "relative, k = 16")
    assert (value(row_of["ratio"]), value(row_of["paper"]), row_of["agreement"].value) == (1.0, 0.93, "not decided")


def bench(variants=("absolute", "relative"), **changes):
    config = {
        "model": {"name": "base"}, "data": {"vocabulary_size": 32768}, "variants": list(variants), "sentences": 128,
        "hardware": {"precision": "32", "matmul_precision": "highest"}, "length": 30, "rounds": 7,
    }  # fmt: skip
    step = [
        {"variant": name, "steps_per_second": 1.0, "relative_speed": 0.94, "min": 0.92, "max": 0.95}
        for name in variants
    ]
    return {"device": "a CPU", "config": config, "step": step} | changes


def test_bench_documents_decide_the_papers_seven_percent(make, tmp_path):
    (tmp_path / "step.json").write_text(json.dumps(bench()))
    (tmp_path / "other.json").write_text(json.dumps(bench(("relative", "absolute"))))
    (tmp_path / "bad.json").write_text(json.dumps(bench(step=[{"variant": "absolute"}])))
    (tmp_path / "list.json").write_text("[1]")
    benches, problems = read_benches(find_records(tmp_path).others)
    assert [one.variant for one in benches] == ["absolute", "relative"]
    (problem,) = problems
    assert "bad.json: not a valid rpr-cli bench document (step.0.steps_per_second" in problem
    speed = {grid.name: grid for grid in build_tables(run_groups([make()]), benches).grids}["speed"]
    found = row(speed, "base", "128 sentences of 30, 32,768 tokens", "relative")
    assert (found["agreement"].value, found["measured"].value, value(found["n"])) == ("agrees", "in turn", "7")
    assert value(found["paper"]) == paper.RELATIVE_SPEED


# By length


def test_scores_by_length(make, by_length):
    records = [make("relative", seed=seed, by_length=by_length(50.0 + seed, 40.0, 30.0, 20.0)) for seed in (1, 2)]
    (group,) = run_groups([*records, make("absolute")])
    sacrebleu, chrf = length_grids(group)
    assert [column.heading for column in sacrebleu.columns] == ["position", "1–10", "11–22", "23–30*", "over 30*"]
    assert [cell.value for cell in sacrebleu.cells[0]] == ["sentences", "50", "40", "7", "20"]
    relative = row(sacrebleu, "relative, k = 16")
    assert (value(relative["length_1_10"]), relative["length_1_10"].value.n) == (51.5, 2)
    assert row(sacrebleu, "absolute (sinusoidal)")["length_1_10"].value.reason == "not scored by source length"
    assert "fewer than 10 sentences, which say little: 23–30" in [note.text for note in sacrebleu.notes]
    assert (chrf.name, value(row(chrf, "relative, k = 16")["length_1_10"])) == ("lengths_chrf", 71.5)
    # Scored in two ways they are a warning.
    records = [make("relative", by_length=by_length(50.0)), make("absolute", by_length=by_length(50.0, beam_size=1))]
    grid = next(length_grids(run_groups(records)[0]))
    assert [note.severity for note in grid.notes].count("warning") == 1


# Statements


def said(records, learning=None):
    return [str(one) for group in run_groups(records, learning) for one in statements(group)]


def test_statements_have_figures_seeds_and_verdicts(make):
    found = said(runs(make))
    assert found[0] == (
        "Relative, k = 16 on test: 0.3 BLEU more than absolute (sinusoidal): 30.2 and 29.9 (3 seeds); the paper: +0.3. "
        "Agrees."
    )
    assert any(one.startswith("Relative, k = 0: 13.3 BLEU less than relative, k = 16") for one in found)
    assert any(one.startswith("No positions at all: 13.3 BLEU less") for one in found)
    assert any("From k = 2 to k = 32 the scores lie within 0.0 BLEU" in one for one in found)
    assert any(one.startswith("Relative values alone, k = 16: 0.5 BLEU less than keys and values") for one in found)


def test_one_seed_decides_nothing_and_what_is_still_learning_is_said_first(make):
    records = runs(make, seeds=(1,))
    assert said(records)[0].endswith("the paper: +0.3. Not decided: one seed.")
    found = said(records, {run_key(run): Learning(0.05, 1800, 2.0) for run in records})
    assert found[0] == (
        "Every variant was still learning when training ended: the validation loss fell by 5.0% over the last tenth of "
        "the steps. No comparison with them is decided; train at least twice as long: optim.max_steps=3600 (30 min a "
        "run)."
    )
    assert found[1].endswith("Not decided: still learning.")


def test_runs_without_result_are_counted_and_too_little_learned_is_said(make):
    found = said([make(), make("none", status="failed"), make("absolute", status="running")])
    assert "2 of 3 runs have no result: 1 failed, 1 running." in found
    found = said([make("relative", k, scores={"test": 1.0}) for k in (0, 16)])
    assert any("too little is learned to compare" in one for one in found)


def test_schemes_beyond_the_paper_are_ranked_with_their_intervals(make):
    def run(choice, seed, score):
        position = scheme(choice).model_dump(mode="json")
        made = make("relative", seed=seed, scores={"test": score})
        return made.model_copy(update={"config": {**made.config, "position": position}})

    schemes = [run("rope", 1, 21.0), run("rope", 2, 23.0), run("t5", 1, 30.0), run("none", 1, 4.0)]
    (ranking,) = [one for one in said(schemes) if one.startswith("By score")]
    assert ranking == "By score on test, best first: T5 30.0; RoPE 22.0 [9.3, 34.7]; none 4.0."
    assert not [one for one in said(schemes[2:]) if one.startswith("By score")]

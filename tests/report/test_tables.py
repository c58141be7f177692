"""The paper's tables from fake records, cell by cell; speeds, and scores by length."""

import json

import pytest

from rpr import paper
from rpr.records.record import Git, find_records
from rpr.report.agreement import EQUAL_TOKENS
from rpr.report.build import build_report
from rpr.report.grouping import run_groups
from rpr.report.learning import learning_of, run_key
from rpr.report.lengths import length_grid
from rpr.report.speed import ratio_to_absolute, read_benches, steps_per_second
from rpr.report.tables import build_tables
from rpr.tables.render import terminal
from tests.fake_records import fake_by_length, fake_record
from tests.report.helpers import grids, grids_of, group_of, row, runs, summary_of, value


def test_table2_has_the_papers_rows_and_ours():
    table = grids(runs())["table2"]
    assert [line[0].value for line in table.cells] == ["0", "1", "2", "4", "16", "32", "64", "256"]
    zero, sixteen = row(table, "0"), row(table, "16")
    assert [value(zero[key]) for key in ("n", "paper", "paper_change")] == ["3", 12.5, -13.3]
    assert value(zero["test_change"]) == pytest.approx(-13.3)
    assert (zero["agreement"].value, sixteen["agreement"].value) == ("agrees", ""), "changes are relative to k = 16"
    assert row(table, "32")["paper"].value.reason == "not in the paper"
    assert (value(row(table, "64")["n"]), row(table, "64")["test"].value.reason) == ("0", "never run")
    assert sixteen["differs"].value.startswith("smaller model, data, steps; other ")
    assert "test set: test_2016_flickr; the paper: newstest2013" in sixteen["differs"].remarks[0]


def test_table3_and_table1():
    french = {"data.name": "multi30k_en_fr", "data.target_language": "fr"}
    found = grids([*runs(), *(fake_record(kind, settings=french) for kind in ("absolute", "relative"))])
    neither = row(found["table3"], "no", "no")
    assert (value(neither["paper"]), value(neither["test_change"])) == (12.5, pytest.approx(-13.3))
    assert row(found["table3"], "yes", "no")["agreement"].value == "agrees"
    model = "small, 1,800 steps"
    relative = row(found["table1"], model, "EN-DE", "relative")
    assert (value(relative["paper"]), value(relative["paper_change"])) == (26.8, 0.3)
    assert value(relative["test_change"]) == pytest.approx(0.3)
    assert row(found["table1"], model, "EN-DE", "absolute (learned)")["paper"].value.reason == "not in the paper"
    assert value(row(found["table1"], model, "EN-FR", "relative")["paper"]) == 38.7


def test_every_variant_is_in_a_table():
    versions = [fake_record("relative", 4, seed=seed, schemes={"relative": str(seed) * 64}) for seed in (1, 2)]
    more = [fake_record("absolute_and_relative", 4), fake_record("relative_keys", 2), *versions]
    groups = run_groups([*runs(), *more])
    lines = [line for grid in build_tables(groups).sections["paper"] for line in grid.rows]
    every = {variant.label for group in groups for variant in group.variants}
    assert len(every) == len(runs()) / 3 + len(more), "every version of a scheme's code is a variant"
    assert {line.variant.label for line in lines if line.variant.records} == every
    # Only a single relative variant has a Table 1.
    assert next(iter(grids([fake_record("relative", k) for k in (2, 16)]))) == "table2"
    assert next(iter(grids([fake_record("relative", 16)]))) == "table1"
    # In a terminal all are in one table.
    grid = summary_of(groups[0])
    assert {line[0].value for line in grid.cells} == every
    assert value(row(grid, "absolute (sinusoidal)")["paper_change"]) == -0.3
    assert value(row(grid, "none")["paper"]) == 12.5


RANDOM = {"position.random_positions": 512}


@pytest.mark.parametrize("beside", [True, False], ids=["beside the paper's", "alone"])
def test_what_the_paper_does_not_have_is_no_row_of_its_tables(beside):
    """Random positions are no setting of the paper's schemes, nor is another version of their code."""
    random = [fake_record("relative", k, settings=RANDOM) for k in (0, 2, 16)]
    random.append(fake_record("relative_keys", 16, settings=RANDOM))
    plain = runs() if beside else [fake_record("absolute")]
    [group] = run_groups([*plain, *random])
    found = {grid.name: grid for grid in build_tables([group]).sections["paper"]}
    shown = [line.variant.label for line in found["table1"].rows]
    assert sum("random positions below 512" in label for label in shown) == 4
    assert all("random" not in line.variant.label for name in found.keys() - {"table1"} for line in found[name].rows)
    for cells in found["table1"].cells:
        if "random" in cells[2].value:
            columns = [column.key for column in found["table1"].columns]
            assert cells[columns.index("paper")].value.reason == "not in the paper"
            assert "agreement" not in columns or not cells[columns.index("agreement")].value


def test_tables_2_and_3_are_of_the_base_model_and_german():
    def changed(**settings):
        scores = {"test": 30.0, "validation": 29.0}
        kinds = (("relative", 4), ("relative", 16), ("none", 16))
        return [fake_record(kind, k, scores=scores, settings=settings) for kind, k in kinds]

    french = changed(**{"data.target_language": "fr"})
    found = grids(french)
    assert row(found["table2"], "16")["paper"].value.reason == "the paper's 38.7 is on newstest2014"
    assert "agreement" not in row(found["table3"], "no", "no")
    big = grids(changed(**{"model.name": "big"}))
    assert "(the paper's base in brackets)" in row(big["table2"], "16")["differs"].remarks[0]
    own = fake_record("relative", 8, settings={"model.name": "big"})
    assert "table2" not in grids([own]), "k = 8 is the big model's own, of Table 1"
    sixteen = fake_record("relative", 16, settings={"model.name": "big"}, scores={"validation": 31.0})
    assert value(row(grids([own, sixteen])["table2"], "16")["validation"]) == 31.0
    # In a terminal changes are relative to its own k, for which the paper's Table 2 has no figure.
    group = group_of([own, sixteen, fake_record("absolute", settings={"model.name": "big"})])
    found = row(summary_of(group), "relative, k = 16")
    assert value(found["paper"]) == 25.8 and found["paper_change"].value.reason == "not in the paper"


def test_verdicts_are_on_the_split_of_the_tables_that_they_are_about():
    records = [
        fake_record(kind, k, seed=seed, scores={"test": test + seed / 10, "validation": validation + seed / 10})
        for kind, k, test, validation in (("relative", 16, 30.0, 30.0), ("relative_keys", 16, 25.0, 30.0))
        for seed in (1, 2, 3)
    ]
    assert row(grids(records)["table3"], "no", "yes")["agreement"].value == "agrees"


def test_rows_of_a_checkout_with_uncommitted_changes_are_marked():
    records = [run.model_copy(update={"git": Git(commit="feed", dirty=run.seed > 1)}) for run in runs()]
    remark = "seed 2, 3: trained from uncommitted changes, so no commit names the code"
    assert row(grids(records)["table2"], "16")["note"].remarks[0] == remark
    assert terminal(summary_of(group_of(records))).count(remark.split(",")[0]) == 1
    assert "uncommitted" not in terminal(summary_of(group_of(runs())))


def test_rows_that_may_still_have_been_learning_say_so():
    run = fake_record("absolute")
    unknown = "whether it was still learning is not known: no validation before the last tenth of the steps in the "
    unknown += "metrics.jsonl beside the record"
    assert [unknown in cell.remarks for cell in grids([run])["table1"].cells[0]].count(True) == 1
    validated = {run_key(run): learning_of(run, {900: 1.0, 1000: 1.0})}
    assert group_of([run], validated).variants[0].caveats == ()
    [both] = group_of([run, run.model_copy(update={"seed": 2})], validated).variants
    assert both.caveats == (unknown.replace(":", " of 1 of its 2 seeds:"),)


def test_tokens_of_language_models_are_those_of_full_batches():
    settings = {"data.text": {}, "optim.max_tokens_per_microbatch": 1000, "optim.microbatches_per_step": 2}
    tables = build_tables(run_groups([fake_record(settings=settings)]))
    [note] = [note.text for note in tables.main[0].notes if "tokens" in note.text]
    assert note.startswith("every row was trained on at most 3,600,000 tokens") and EQUAL_TOKENS in tables.rules
    settings["data.context_length"] = 300  # three windows, not 1,000 tokens
    origin = {"run": "runs/a", "run_id": "1a", "settings_id": "2b", "seed": 1, "positions": "RoPE", "steps": 9}
    more = fake_record(settings=settings | {"origin": origin | {"weights": "3c"}})
    tables = build_tables(run_groups([fake_record(settings=settings), more]))
    [note] = [note.text for note in tables.main[0].notes if "tokens" in note.text]
    without = "those that started from another run's weights not counting that run's"
    assert note == f"trained on at most 3,240,000 tokens, {without}" and EQUAL_TOKENS not in tables.rules
    pieces = fake_record(settings=settings | {"data.tokenizer": "bpe", "data.vocabulary_size": 4096})
    notes = build_tables(run_groups([fake_record(settings=settings), pieces])).main[0].notes
    assert "trained on at most 3,240,000 tokens, each row's of its own vocabulary" in [note.text for note in notes]


def speed_ratio(*runs):
    group = group_of(runs)
    return ratio_to_absolute(group, group.get("relative"))


NOT_ALIKE = "no absolute (sinusoidal) run of the same seed, device, precision and attention"


@pytest.mark.parametrize("absolute, relative, reason", [
    ({}, {}, None),
    ({}, {"concurrent_jobs": 2}, "no speed: 2 jobs of the sweep shared the device"),
    ({"concurrent_jobs": 3}, {}, "absolute: no speed: 3 jobs of the sweep shared the device"),
    ({"concurrent_jobs": None}, {}, "absolute: no speed: whether other jobs shared the device was not recorded"),
    ({}, {"device": "a GPU"}, NOT_ALIKE),
    ({"seed": 2}, {}, NOT_ALIKE),
    ({}, {"settings": {"hardware.attention": "dense"}}, NOT_ALIKE),
])  # fmt: skip
def test_speeds_of_different_circumstances_are_not_compared(absolute, relative, reason):
    found = speed_ratio(fake_record("absolute", **absolute), fake_record("relative", **relative))
    assert (found.value, found.reason) == (None if reason else 1.0, reason)


def test_speed_of_a_run_on_a_shared_device_is_ignored():
    runs = [fake_record("absolute", seed=1), fake_record("absolute", seed=2, concurrent_jobs=2)]
    assert speed_ratio(*runs, fake_record("relative")).value == 1.0
    assert steps_per_second(group_of(runs).get("absolute")).n == 1


def test_speed_of_whole_runs_decides_nothing():
    table = grids([fake_record("absolute"), fake_record("relative")])["speed"]
    found = row(table, "small", "multi30k_en_de, 1,800 steps, cpu", "relative, k = 16")
    assert found["settings"].value == "float32"
    assert (value(found["ratio"]), value(found["paper"]), found["agreement"].value) == (1.0, 0.93, "not decided")


def test_label_of_table_1_leaves_out_only_the_papers_k():
    for k, label in ((16, "sinusoidal + relative"), (160, "sinusoidal + relative, k = 160")):
        [line] = grids([fake_record("absolute_and_relative", k)])["table1"].rows
        assert line.labels[-1] == label


def test_speeds_are_compared_seed_by_seed():
    def three(position, *speeds):
        return [fake_record(position, seed=seed, steps_per_second=speed) for seed, speed in enumerate(speeds)]

    found = speed_ratio(*three("absolute", 1.0, 2.0, 4.0), *three("relative", 2.0, 2.0, 2.0))
    assert (found.value, found.n, found.deviation) == (pytest.approx(3.5 / 3), 3, pytest.approx(0.7637626))
    fewer = [*three("absolute", 2.0, 3.0), *three("relative", 1.0, 2.0, 3.0)]
    assert (speed_ratio(*fewer).value, speed_ratio(*fewer).n) == (pytest.approx(7 / 12), 2)
    found = row(grids(fewer)["speed"], "small", "multi30k_en_de, 1,800 steps, cpu", "relative, k = 16")
    assert (found["n"].value, found["ratio"].remarks) == ("3", ("2 of 3 seeds",))


def bench(variants=("absolute", "relative"), **changes):
    config = {
        "model": {"name": "base"}, "data": {"vocabulary_size": 32768}, "variants": list(variants), "sentences": 128,
        "hardware": {"precision": "32", "matmul_precision": "highest"}, "length": 30, "rounds": 7,
    }  # fmt: skip
    step = {"steps_per_second": 1.0, "relative_speed": 0.94, "min": 0.92, "max": 0.95}
    return {"device": "a CPU", "config": config, "step": [{"variant": name, **step} for name in variants]} | changes


def test_bench_documents_decide_the_papers_speed(tmp_path):
    (tmp_path / "step.json").write_text(json.dumps(bench()))
    (tmp_path / "other.json").write_text(json.dumps(bench(("relative", "absolute"))))
    (tmp_path / "bad.json").write_text(json.dumps(bench(step=[{"variant": "absolute"}])))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "none.json").write_text(json.dumps(bench(())))
    benches, problems = read_benches(find_records(tmp_path).others)
    assert [one.labels[-1] for one in benches] == ["absolute", "relative"]
    assert "bad.json: not a valid rpr-cli bench document (step.0.steps_per_second" in problems[0]
    assert "none.json: not a valid rpr-cli bench document (config.variants" in problems[1] and len(problems) == 2
    speed = grids_of(run_groups([fake_record()]), benches)["speed"]
    found = row(speed, "base", "128 sentences of 30, vocabulary 32,768", "relative")
    assert value(found["device"]) == "a CPU"
    assert (found["agreement"].value, found["measured"].value, value(found["n"])) == ("agrees", "interleaved", "7")
    assert value(found["paper"]) == paper.RELATIVE_SPEED


def test_a_bench_without_memory_for_one_variant_has_the_others(tmp_path):
    rows = [*bench()["step"], {"variant": "fire", "problem": "out of memory"}]
    (tmp_path / "step.json").write_text(json.dumps(bench(step=rows)))
    benches, problems = read_benches(find_records(tmp_path).others)
    assert [one.labels[-1] for one in benches] == ["absolute", "relative", "fire"] and not problems
    speed = grids_of(run_groups([fake_record()]), benches)["speed"]
    found = row(speed, "base", "128 sentences of 30, vocabulary 32,768", "fire")
    assert [found[key].value.reason for key in ("steps_per_second", "ratio")] == ["out of memory"] * 2
    assert found["agreement"].value == ""


def test_benches_of_models_of_one_name_are_told_apart_by_their_sizes(tmp_path):
    for width in (256, 512):
        document = bench()
        document["config"]["model"] |= {"d_model": width, "d_ff": 2048}
        (tmp_path / f"{width}.json").write_text(json.dumps(document))
    benches, _ = read_benches(find_records(tmp_path).others)
    assert [one.settings for one in benches[1::2]] == ["float32; d_model 256", "float32; d_model 512"]


def test_only_a_bench_of_the_papers_k_is_beside_its_speed(tmp_path):
    for k in (16, 2):
        document = bench()
        document["config"]["model"] |= {"relative_defaults": {"clip_distance": k}}
        (tmp_path / f"{k}.json").write_text(json.dumps(document))
    benches, _ = read_benches(find_records(tmp_path).others)
    assert [one.papers_model for one in benches] == [False, True, False, False]


def test_scores_by_length():
    lengths = {seed: fake_by_length(50.0 + seed, 40.0, 30.0, 20.0) for seed in (1, 2)}
    records = [fake_record("relative", seed=seed, by_length=found) for seed, found in lengths.items()]
    [sacrebleu] = length_grid(group_of([*records, fake_record("absolute")]))
    headings = ["1–10 (50)", "11–22 (40)", "23–30* (7)", "over 30* (20)"]
    assert [column.heading for column in sacrebleu.columns] == ["position", "n", *headings]
    relative = row(sacrebleu, "relative, k = 16")
    assert (value(relative["length_1_10"]), relative["length_1_10"].value.n) == (51.5, 2)
    assert (relative["n"].value, relative["length_1_10"].remarks) == ("2", ())
    [more] = length_grid(group_of([*records, fake_record("relative", seed=3)]))
    assert row(more, "relative, k = 16")["length_1_10"].remarks == ("2 of 3 seeds",)
    assert row(sacrebleu, "absolute (sinusoidal)")["length_1_10"].value.reason == "not scored at this length"
    assert "fewer than 10 sentences, which say little: 23–30" in [note.text for note in sacrebleu.notes]
    # Different decoding is a warning.
    other = fake_record("absolute", by_length=fake_by_length(50.0, beam_size=1))
    [grid] = length_grid(group_of([records[0], other]))
    assert [note.severity for note in grid.notes].count("warning") == 1


def rates(position="relative", *, seeds=(1, 2)):
    """Runs of a learning rate that is swept."""
    return [
        fake_record(position, seed=seed, scores={"test": 30.0 + rate}, settings={"optim.learning_rate_scale": rate})
        for rate in (0.5, 1.0, 2.0) for seed in seeds
    ]  # fmt: skip


@pytest.mark.usefixtures("unrendered")
def test_a_swept_setting_is_a_column_of_one_table(tmp_path):
    report = build_report([(tmp_path / f"{n}.json", run) for n, run in enumerate(rates())], tmp_path, "x")
    [table] = report.tables.sections["paper"]
    swept = ["0.5", "1.0", "2.0"]
    assert [[cell.value for cell in line[2:4]] for line in table.cells] == [["relative", rate] for rate in swept]
    assert [column.heading for column in table.columns[:4]] == ["model", "languages", "position", "learning_rate_scale"]
    assert report.tables.sections["speed"][0].cells[0][3].value == "float32; learning_rate_scale 0.5"
    assert "norm" not in [column.key for column in grids([fake_record("absolute")])["table1"].columns]
    head = "position          learning_rate_scale  n"
    assert report.summary.count(head) == 1, "one table on a terminal, too"
    assert [line.split()[4] for line in report.summary.splitlines() if line.startswith("relative, k")] == swept


def test_a_setting_that_other_steps_do_not_vary_is_shown_for_them_too():
    other = fake_record("relative", settings={"optim.max_steps": 3600, "optim.learning_rate_scale": 1.0})
    [table] = build_tables(run_groups([*rates(seeds=(1,)), other])).sections["paper"]
    assert [line[3].value for line in table.cells] == ["0.5", "1.0", "2.0", "1.0"]


def test_a_figure_of_fewer_seeds_than_its_row_says_so():
    records = runs(seeds=(1, 2, 3))
    records = [run for run in records if run.seed < 3 or run.setting("position.name") != "absolute"]
    table = grids(records)["table1"]
    cells = row(table, "small, 1,800 steps", "EN-DE", "relative")
    assert (value(cells["n"]), cells["test"].remarks, cells["test_change"].remarks) == ("3", (), ("2 of 3 seeds",))
    assert row(table, "small, 1,800 steps", "EN-DE", "absolute (sinusoidal)")["test_change"].remarks == ()

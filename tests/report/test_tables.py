"""The paper's tables from fake records, cell by cell; speeds, lengths and statements with their verdicts."""

import json

import pytest

from rpr import paper
from rpr.errors import RecordError
from rpr.records.measurement import Measurement
from rpr.records.record import Git, find_records
from rpr.report import published
from rpr.report.agreement import EQUAL_TOKENS
from rpr.report.build import build_report
from rpr.report.grouping import run_groups
from rpr.report.learning import Learning, run_key
from rpr.report.lengths import length_grid
from rpr.report.plots import ranked
from rpr.report.published import Published, Source
from rpr.report.speed import ratio_to_absolute, read_benches, steps_per_second
from rpr.report.statements import statements
from rpr.report.tables import build_tables, summary_table
from rpr.tables.render import terminal
from tests.fake_records import fake_by_length, fake_record


def runs(*, seeds=(1, 2, 3)):
    """Every kind of positions; relative is 0.3 BLEU over absolute, k = 0 is 13.3 below k = 16."""
    others = {"absolute": 29.7, "none": 16.7, "relative_keys": 30.0, "relative_values": 29.5, "learned": 29.0}
    by_k = {0: 16.7, 1: 29.7, 2: 30.0, 16: 30.0, 32: 30.0}
    means = [*((kind, 16, mean) for kind, mean in others.items()), *(("relative", k, mean) for k, mean in by_k.items())]
    return [fake_record(kind, k, seed=s, scores={"test": mean + s / 10}) for kind, k, mean in means for s in seeds]


def grids(records, learning=None):
    return {grid.name: grid for grid in build_tables(run_groups(records, learning)).grids}


def summary_of(group):
    return summary_table([(variant, group) for variant in group.variants])


def row(grid, *labels):
    """The cells of a row by column key."""
    for line in grid.cells:
        named = {column.key: cell for column, cell in zip(grid.columns, line, strict=True)}
        if [named[column.key].value for column in grid.columns if column.label] == list(labels):
            return named
    raise AssertionError(f"no row {labels} in {grid.name}")


def value(cell):
    return cell.value.value if isinstance(cell.value, Measurement) else cell.value


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
    groups = run_groups([*runs(), fake_record("absolute_and_relative", 4), fake_record("relative_keys", 2)])
    lines = [line for grid in build_tables(groups).sections["paper"] for line in grid.rows]
    every = {variant.label for group in groups for variant in group.variants}
    assert {line.variant.label for line in lines if line.variant.records} == every
    # Only a single relative variant has a Table 1.
    assert next(iter(grids([fake_record("relative", k) for k in (2, 16)]))) == "table2"
    assert next(iter(grids([fake_record("relative", 16)]))) == "table1"
    # In a terminal all are in one table.
    grid = summary_of(groups[0])
    assert {line[0].value for line in grid.cells} == every
    assert value(row(grid, "absolute (sinusoidal)")["paper_change"]) == -0.3
    assert value(row(grid, "none")["paper"]) == 12.5


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
    [group] = run_groups([own, sixteen, fake_record("absolute", settings={"model.name": "big"})])
    found = row(summary_of(group), "relative, k = 16")
    assert value(found["paper"]) == 25.8 and found["paper_change"].value.reason == "not in the paper"


def test_verdicts_are_on_the_split_of_the_tables_that_they_are_about():
    records = [
        fake_record(kind, k, seed=seed, scores={"test": test + seed / 10, "validation": validation + seed / 10})
        for kind, k, test, validation in (("relative", 16, 30.0, 30.0), ("relative_keys", 16, 25.0, 30.0))
        for seed in (1, 2, 3)
    ]
    assert row(grids(records)["table3"], "no", "yes")["agreement"].value == "agrees"


def falling(run, fall):
    """How a run ended that was still learning, and had learned the order of words."""
    return Learning(fall, 2 * fall, 1800, 2.0 if run.setting("position.name") == "none" else 1.0)


def test_still_learning_variant_is_marked_and_undecided():
    records = runs()
    sixteen = [run for run in records if run.setting("position.clip_distance") == 16]
    learning = {run_key(run): falling(run, 0.02) for run in sixteen}
    table = grids(records, learning)["table2"]
    assert row(table, "16")["note"].value == "still learning"
    assert "optim.max_steps=3600" in row(table, "16")["note"].remarks[0]
    assert row(table, "0")["agreement"].value == "not decided"
    assert row(table, "0")["agreement"].remarks == ("not decided: still learning",)


def test_rows_of_a_checkout_with_uncommitted_changes_are_marked():
    records = [run.model_copy(update={"git": Git(commit="feed", dirty=run.seed > 1)}) for run in runs()]
    remark = "seed 2, 3: trained from a checkout with uncommitted changes, so no commit names the code"
    (group,) = run_groups(records)
    assert row(grids(records)["table2"], "16")["note"].remarks == (remark,)
    assert terminal(summary_of(group)).count(remark.split(",")[0]) == 1
    assert "uncommitted" not in terminal(summary_of(run_groups(runs())[0]))


@pytest.mark.parametrize("settings, name", [({}, "table1"), ({"data.text": {}}, "documents")])
def test_skipped_steps_are_a_note_of_every_table(settings, name):
    run = fake_record("absolute", settings=settings)
    training = run.training.model_copy(update={"skipped_steps": 1300})
    [cells] = grids([run.model_copy(update={"training": training})])[name].cells
    remark = "seed 1: 1,300 steps, whose gradient was not finite, were skipped"
    assert [cell.remarks for cell in cells if remark in cell.remarks] == [(remark,)]


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
    (group,) = run_groups(runs)
    return ratio_to_absolute(group, group.get("relative"))


@pytest.mark.parametrize("absolute, relative, reason", [
    ({}, {}, None),
    ({}, {"concurrent_jobs": 2}, "no speed: 2 jobs of the sweep shared the device"),
    ({"concurrent_jobs": 3}, {}, "absolute: no speed: 3 jobs of the sweep shared the device"),
    ({"concurrent_jobs": None}, {}, "absolute: no speed: whether other jobs shared the device was not recorded"),
    ({}, {"device": "a GPU"}, "no absolute (sinusoidal) run of the same seed, device and precision"),
    ({"seed": 2}, {}, "no absolute (sinusoidal) run of the same seed, device and precision"),
])  # fmt: skip
def test_speeds_of_different_circumstances_are_not_compared(absolute, relative, reason):
    found = speed_ratio(fake_record("absolute", **absolute), fake_record("relative", **relative))
    assert (found.value, found.reason) == (None if reason else 1.0, reason)


def test_speed_of_a_run_on_a_shared_device_is_ignored():
    runs = [fake_record("absolute", seed=1), fake_record("absolute", seed=2, concurrent_jobs=2)]
    assert speed_ratio(*runs, fake_record("relative")).value == 1.0
    assert steps_per_second(run_groups(runs)[0].get("absolute")).n == 1


def test_speed_of_whole_runs_decides_nothing():
    table = grids([fake_record("absolute"), fake_record("relative")])["speed"]
    found = row(table, "small", "multi30k_en_de, 1,800 steps, cpu", "relative, k = 16")
    assert found["settings"].value == "float32"
    assert (value(found["ratio"]), value(found["paper"]), found["agreement"].value) == (1.0, 0.93, "not decided")


def test_label_of_table_1_leaves_out_only_the_papers_k():
    labels = {
        k: row.labels[-1] for k in (16, 160) for row in grids([fake_record("absolute_and_relative", k)])["table1"].rows
    }
    assert labels == {16: "sinusoidal + relative", 160: "sinusoidal + relative, k = 160"}


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
    step = {"steps_per_second": 1.0, "relative_speed": 0.94, "min": 0.92, "max": 0.95, "resident_megabytes": 600.0}
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
    speed = {grid.name: grid for grid in build_tables(run_groups([fake_record()]), benches).grids}["speed"]
    found = row(speed, "base", "128 sentences of 30, vocabulary 32,768", "relative")
    assert [value(found[key]) for key in ("device", "peak_memory")] == ["a CPU", 600.0]
    assert (found["agreement"].value, found["measured"].value, value(found["n"])) == ("agrees", "interleaved", "7")
    assert value(found["paper"]) == paper.RELATIVE_SPEED


def test_scores_by_length():
    lengths = {seed: fake_by_length(50.0 + seed, 40.0, 30.0, 20.0) for seed in (1, 2)}
    records = [fake_record("relative", seed=seed, by_length=found) for seed, found in lengths.items()]
    (group,) = run_groups([*records, fake_record("absolute")])
    [sacrebleu] = length_grid(group)
    headings = ["1–10 (50)", "11–22 (40)", "23–30* (7)", "over 30* (20)"]
    assert [column.heading for column in sacrebleu.columns] == ["position", "n", *headings]
    relative = row(sacrebleu, "relative, k = 16")
    assert (value(relative["length_1_10"]), relative["length_1_10"].value.n) == (51.5, 2)
    assert (relative["n"].value, relative["length_1_10"].remarks) == ("2", ())
    [more] = length_grid(run_groups([*records, fake_record("relative", seed=3)])[0])
    assert row(more, "relative, k = 16")["length_1_10"].remarks == ("2 of 3 seeds",)
    assert row(sacrebleu, "absolute (sinusoidal)")["length_1_10"].value.reason == "not scored at this length"
    assert "fewer than 10 sentences, which say little: 23–30" in [note.text for note in sacrebleu.notes]
    # Different decoding is a warning.
    other = fake_record("absolute", by_length=fake_by_length(50.0, beam_size=1))
    [grid] = length_grid(run_groups([records[0], other])[0])
    assert [note.severity for note in grid.notes].count("warning") == 1


def sentences(records, learning=None):
    return [str(one) for group in run_groups(records, learning) for one in statements(group)]


def test_statements_have_figures_seeds_and_verdicts():
    def change(label, bleu):
        return f"{label} {bleu} ± 0.0 ({bleu} to {bleu}; 3 seeds)"

    absolute = "absolute (sinusoidal) on test"
    better = [change(label, "+0.3") for label in ("relative, k = 2", "relative, k = 32", "keys only, k = 16")]
    worse = {"values only, k = 16": "-0.2", "absolute (learned)": "-0.7", "none": "-13.0", "relative, k = 0": "-13.0"}
    assert sentences(runs()) == [
        f"Relative, k = 16 against {change(f'{absolute}:', '+0.3')} BLEU; the paper: +0.3. Agrees.",
        f"Better than {absolute}, in BLEU: {', '.join(better)}.",
        f"Worse than {absolute}, in BLEU: {', '.join(change(*pair) for pair in worse.items())}.",
        f"Not decided against {absolute}, in BLEU: {change('relative, k = 1', '0.0')}.",
    ]


def ends(records, losses):
    """How each run ended, by the last validation loss of its kind of positions."""
    return {run_key(run): Learning(0.0, 0.0, 1800, losses[run.setting("position.name")]) for run in records}


def test_corpus_is_not_learned_with_a_loss_like_that_of_no_positions():
    records = runs()
    losses = dict.fromkeys(("absolute", "relative", "relative_keys", "learned"), 1.7) | {"none": 2.0}
    [group] = run_groups(records, ends(records, losses | {"relative_values": 1.981}))
    assert [one.label for one in group.variants if one.unlearned] == ["values only, k = 16"]
    assert all(one.unlearned is None for one in run_groups(records)[0].variants), "the losses are not known"
    [learned] = run_groups(records, ends(records, losses | {"relative_values": 1.979}))
    assert all(one.unlearned is None for one in learned.variants)
    alike = run_groups(records, ends(records, dict.fromkeys([*losses, "relative_values"], 2.0)))[0]
    without_order = {"none", "relative, k = 0"}
    assert {one.label for one in alike.variants if not one.unlearned} == without_order
    values = row({grid.name: grid for grid in build_tables([group]).grids}["table3"], "yes", "no")
    assert (values["note"].value, values["agreement"].value) == ("not learned", "not decided")
    assert "1.981 and 2.000 nats per piece" in values["note"].remarks[0]
    finding = sentences(records, ends(records, losses | {"relative_values": 1.99}))[0]
    assert finding.startswith("Values only, k = 16: not")


def test_model_that_did_not_learn_leaves_the_ranking():
    records = [fake_record(name) for name in ("none", "rope", "alibi", "shape")]
    [group] = run_groups(records, ends(records, {"none": 2.0, "rope": 1.6, "alibi": 1.7, "shape": 1.99}))
    rows, remark = ranked(group)
    assert {one.position.kind for one, _ in rows} == {"none", "rope", "alibi"}
    assert remark.startswith("Without SHAPE, not learned: the validation loss")


def test_statements_of_one_seed_and_still_learning_are_undecided():
    records = runs(seeds=(1,))
    assert sentences(records)[0].endswith("the paper: +0.3. Not decided: one seed.")
    found = sentences(records, {run_key(run): falling(run, 0.05) for run in records})
    assert found[0] == (
        "Still learning when training ended: every variant. The validation loss fell by 5.0% over the last tenth of "
        "the steps. No comparison with such a model is decided; train at least twice as long: optim.max_steps=3600."
    )
    assert found[1].endswith("Not decided: still learning.")


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
    assert [[cell.value for cell in line[2:4]] for line in table.cells] == [
        ["relative", rate] for rate in ("0.5", "1.0", "2.0")
    ]
    assert [column.heading for column in table.columns[:4]] == ["model", "languages", "position", "learning_rate_scale"]
    assert report.tables.sections["speed"][0].cells[0][3].value == "float32; learning_rate_scale 0.5"
    assert "norm" not in [column.key for column in grids([fake_record("absolute")])["table1"].columns]
    head = "position          learning_rate_scale  n"
    assert report.summary.count(head) == 1, "one table on a terminal, too"
    assert [line.split()[4] for line in report.summary.splitlines() if line.startswith("relative, k")] == [
        "0.5",
        "1.0",
        "2.0",
    ]


def test_a_setting_that_other_steps_do_not_vary_is_shown_for_them_too():
    other = fake_record("relative", settings={"optim.max_steps": 3600, "optim.learning_rate_scale": 1.0})
    [table] = build_tables(run_groups([*rates(seeds=(1,)), other])).sections["paper"]
    assert [line[3].value for line in table.cells] == ["0.5", "1.0", "2.0", "1.0"]


def test_a_second_source_of_published_figures_is_data_alone(monkeypatch):
    other = Source("doe", "Doe 2020", "Doe 2020 (a report)", "another corpus: compare the order only")
    figures = [
        Published({"data": "multi30k_en_de", "kind": kind}, "sacrebleu", "test", figure, other)
        for kind, figure in (("none", 11.0), ("learned", 12.5))
    ]
    every = (*published.published(), *figures)
    monkeypatch.setattr(published, "published", lambda: every)
    records = [fake_record(kind, seed=seed, scores={"test": test + seed}) for kind, test in
               (("absolute", 30.0), ("learned", 20.0), ("none", 10.0)) for seed in (1, 2)]  # fmt: skip
    tables = grids(records)
    learned = row(tables["table1"], "small, 1,800 steps", "EN-DE", "absolute (learned)")
    assert (value(learned["doe"]), learned["paper"].value.reason) == (12.5, "not in the paper")
    assert value(row(tables["table3"], "no", "no")["doe"]) == 11.0
    assert "Doe 2020: Doe 2020 (a report); another corpus: compare the order only" in [
        n.text for n in tables["table1"].notes
    ]
    order = "Published order, best first (Doe 2020 (a report)): absolute (learned), none. Here same: absolute (learned)"
    assert any(one.startswith(f"{order} against none +10.0 ± 0.0 (") for one in sentences(records))


def test_any_variant_is_the_baseline_of_a_report():
    records = [fake_record(kind, seed=seed, scores={"test": test + seed}) for kind, test in
               (("absolute", 30.0), ("learned", 20.0), ("none", 10.0)) for seed in (1, 2)]  # fmt: skip
    [group] = run_groups(records, baseline="learned")
    found = [str(one) for one in statements(group)]
    assert found == [
        "Better than absolute (learned) on test, in BLEU: absolute (sinusoidal) +10.0 ± 0.0 (+10.0 to +10.0; 2 seeds).",
        "Worse than absolute (learned) on test, in BLEU: none -10.0 ± 0.0 (-10.0 to -10.0; 2 seeds).",
    ]
    table = {grid.name: grid for grid in build_tables([group]).grids}["table1"]
    assert value(row(table, "small, 1,800 steps", "EN-DE", "absolute (sinusoidal)")["test_change"]) == 10.0
    assert summary_of(group).setting == "Δ: change from absolute (learned)"
    with pytest.raises(RecordError, match="baseline: no run has position=nope"):
        run_groups(records, baseline="nope")
    several = [fake_record("relative", k) for k in (0, 16)]
    with pytest.raises(RecordError, match="^baseline: relative has .*; choose one of relative-k0, relative-k16$"):
        run_groups(several, baseline="relative")
    [group] = run_groups(several, baseline="relative-k16")
    assert group.baseline.label == "relative, k = 16"


def test_of_several_ways_to_share_tables_the_papers_is_compared_with_the_paper():
    runs = [fake_record(kind, k, settings={"model.name": "big", "position.tables": tables})
            for kind, k, tables in (("relative", 8, "per_head"), ("relative", 8, "shared_by_heads"),
                                    ("absolute", 8, "shared_by_heads"))]  # fmt: skip
    [group] = run_groups(runs)
    found = [str(one) for one in statements(group)]
    assert found[0].startswith("Relative, k = 8, shared by heads against absolute (sinusoidal) on test:")
    assert summary_of(group).setting == "Δ: change from relative, k = 8, shared by heads"
    [group] = run_groups(runs[:1])
    assert group.papers_relative.records, "another way if the paper's was not run"
    [group] = run_groups(fake_record(kind, settings={"data.text": {}}) for kind in ("absolute", "relative"))
    assert summary_table([(variant, group) for variant in group.variants]).rows[0].reference is group.baseline


def test_a_figure_of_fewer_seeds_than_its_row_says_so():
    records = runs(seeds=(1, 2, 3))
    records = [run for run in records if run.seed < 3 or run.setting("position.name") != "absolute"]
    table = grids(records)["table1"]
    cells = row(table, "small, 1,800 steps", "EN-DE", "relative")
    assert (value(cells["n"]), cells["test"].remarks, cells["test_change"].remarks) == ("3", (), ("2 of 3 seeds",))
    assert row(table, "small, 1,800 steps", "EN-DE", "absolute (sinusoidal)")["test_change"].remarks == ()


@pytest.mark.parametrize("architecture, unlearned", [("encoder_decoder", True), ("decoder_only", False)])
def test_a_decoder_alone_learns_order_without_positions(architecture, unlearned):
    records = [fake_record(kind, settings={"model.architecture": architecture}) for kind in ("none", "relative")]
    [group] = run_groups(records, {run_key(run): Learning(0.0, 0.0, 1800, 2.0) for run in records})
    assert [bool(variant.unlearned) for variant in group.variants] == [False, unlearned]

"""The paper's tables from made-up records: figures and intervals worked by hand, every reason for a dash, what is told
of runs smaller than the paper's, and the same numbers in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest

from rpr.report.paper_claims import claims
from rpr.report.paper_render import paper_csv, paper_json, paper_latex, paper_markdown, paper_page, paper_terminal
from rpr.report.paper_rows import T_QUANTILES, PaperTable, seeds_interval
from rpr.report.paper_speed import find_benches
from rpr.report.paper_tables import paper_grid, paper_legend, paper_tables
from rpr.report.rows import Cell, summarise
from rpr.report.tables import position_tables

WMT = {"data.name": "wmt14_en_de", "model.name": "base", "optim.max_steps": 100_000}
WMT |= {"model.num_layers": 6, "model.d_model": 512, "model.num_heads": 8, "model.d_ff": 1024}
FRENCH = {"data.name": "wmt14_en_fr", "data.target_language": "fr"}


def rebuilt(records, benches=()):
    return {(table.name, table.setting): table for table in paper_tables(position_tables(records), benches)}


def only(records, name) -> PaperTable:
    [table] = [table for (kind, _), table in rebuilt(records).items() if kind == name]
    return table


def cell(table, labels, name, column=""):
    [row] = [row for row in table.rows if row.labels == labels]
    return row.figure(name, column).cell


def both_splits(validation, test):
    return {"validation": validation, "test": test}


@pytest.fixture
def wmt(make, score):
    """A run on the paper's corpus: 4.5M pairs, newstest2013 and newstest2014, with the group's kind of BLEU."""

    def made(position="relative", k=16, *, bleu=25.0, split_bleu=25.5, pairs=4_500_000, settings=None, **more):
        sets = {"validation": "newstest2013", "test": "newstest2014"}
        scores = [score(split, bleu, test_set=name) for split, name in sets.items()]
        if split_bleu is not None:
            scores += [score(split, split_bleu, "bleu_tok_split", test_set=name) for split, name in sets.items()]
        record = make(position, k, scores=scores, settings=WMT | (settings or {}), **more)
        return record.model_copy(update={"data": record.data.model_copy(update={"train_pairs": pairs})})

    return made


# Intervals


def test_the_t_interval_by_hand():
    # 10, 12, 14: mean 12, sd 2, n 3: 4.303 * 2 / sqrt(3) = 4.96868.
    low, high = seeds_interval(summarise([10.0, 12.0, 14.0]))
    assert (low, high) == (pytest.approx(12 - 4.96868, abs=1e-4), pytest.approx(12 + 4.96868, abs=1e-4))
    # Two seeds, 30 and 32: sd sqrt(2), half the interval 12.706 * sqrt(2) / sqrt(2).
    assert seeds_interval(summarise([30.0, 32.0])) == (pytest.approx(31 - 12.706), pytest.approx(31 + 12.706))
    assert seeds_interval(summarise([30.0])) is None
    assert seeds_interval(Cell(None, reason="x")) is None


@pytest.mark.parametrize("freedom", range(1, 31))
def test_the_quantiles_leave_2_5_percent_above(freedom):
    """Against the integral of Student's density itself, by Simpson's rule from 0 to the quantile."""
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    steps, end = 4000, T_QUANTILES[freedom - 1]
    width = end / steps
    heights = [constant * (1 + (index * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for index in range(steps + 1)]
    area = width / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    assert 0.5 - area == pytest.approx(0.025, abs=3e-5)


def test_beyond_the_last_quantile_the_interval_is_never_too_narrow():
    assert len(T_QUANTILES) == 30
    low, high = seeds_interval(Cell(0.0, 1.0, 100))
    assert high - low == pytest.approx(2 * 2.042 / 10) and 2.042 > 1.984  # 1.984: the quantile for 99


# Table 2


def test_table_2_has_the_papers_rows_and_ours_between_them(make):
    runs = [make("relative", k, scores=both_splits(k + 1.0, k + 2.0)) for k in (0, 8, 16)]
    table = only(runs, "table2")
    assert [row.labels for row in table.rows] == [(k,) for k in ("0", "1", "2", "4", "8", "16", "64", "256")]
    assert [row.figure("paper").cell.value for row in table.rows] == [12.5, 25.5, 25.8, 25.9, None, 25.8, 25.9, 25.8]
    changes = [row.figure("paper_change").cell.value for row in table.rows]
    assert changes == [-13.3, -0.3, 0.0, 0.1, None, 0.0, 0.1, 0.0]
    assert cell(table, ("8",), "paper").reason == "the paper's Table 2 has no row for k = 8"
    assert cell(table, ("4",), "ours", "test").reason == "never run"
    assert (cell(table, ("0",), "ours", "validation").value, cell(table, ("0",), "ours", "test").value) == (1.0, 2.0)
    assert cell(table, ("8",), "change", "validation").value == pytest.approx(9.0 - 17.0)


def test_changes_are_counted_seed_by_seed(make):
    scores = {(0, 1): 20.0, (0, 2): 24.0, (16, 1): 30.0, (16, 2): 32.0}
    runs = [make("relative", k, seed=seed, scores=both_splits(bleu, bleu)) for (k, seed), bleu in scores.items()]
    change = cell(only(runs, "table2"), ("0",), "change", "validation")
    # -10 and -8: mean -9, sd sqrt(2); of the means alone the noise of the two rows would have been added.
    assert (change.value, change.n) == (pytest.approx(-9.0), 2)
    assert change.sd == pytest.approx(2**0.5)
    # With other seeds there are no pairs, and no deviation.
    alone = cell(only([*runs[:2], runs[2]], "table2"), ("0",), "change", "validation")
    assert (alone.value, alone.sd, alone.n) == (pytest.approx(-8.0), None, 1)


def test_a_change_without_its_reference_says_so(make):
    table = only([make("relative", 0), make("relative", 16, status="failed")], "table2")
    reason = cell(table, ("0",), "change", "test").reason
    assert reason == "nothing to count from: k = 16: seed 1 failed: RuntimeError: rank 1 died"
    assert cell(table, ("16",), "ours", "test").reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert cell(table, ("0",), "ours", "validation").reason == "not evaluated on validation"
    assert cell(table, ("16",), "ours", "validation").reason == "seed 1 failed: RuntimeError: rank 1 died"


def test_rows_scored_in_different_ways_have_no_change(make, score):
    runs = [make("relative", 0, scores=[score("test", 20.0, beam_size=1)]), make("relative", 16)]
    assert cell(only(runs, "table2"), ("0",), "change", "test").reason == "test: scored in another way than k = 16"


def test_the_run_that_all_tables_share_stands_in_table_1_alone(make):
    assert {name for name, _ in rebuilt([make("relative", 16)])} == {"table1"}
    assert {name for name, _ in rebuilt([make("relative", 16), make("absolute")])} == {"table1", "speed"}
    assert {name for name, _ in rebuilt([make("relative", 16), make("none")])} == {"table1", "table3"}


def test_each_sharing_of_the_tables_has_tables_of_its_own(make):
    shared = {"position.tables": "shared_by_heads"}
    runs = [make("relative", k, settings=more, scores={"test": bleu}) for k, more, bleu in ((0, {}, 1), (0, shared, 2))]
    runs += [make("relative", 16, settings=more) for more in ({}, shared)]
    found = {
        setting.rpartition(" | ")[2]: table for (name, setting), table in rebuilt(runs).items() if name == "table2"
    }
    assert {setting: cell(table, ("0",), "ours", "test").value for setting, table in found.items()} == {
        "tables per head": 1.0,
        "tables shared by heads": 2.0,
    }
    labels = [row.labels[1] for row in only(runs, "table1").rows if row.records]
    assert labels == ["relative, per head", "relative, shared by heads"]


def test_groups_that_differ_in_what_is_scored_alone_are_one(make):
    settings = [{"evaluation.test_splits": ["test", "long"]}, {"evaluation.test_splits": ["validation", "test"]}]
    records = [make("relative", 0, settings=settings[0]), make("relative", 16, settings=settings[1])]
    assert len(position_tables(records)) == 2
    assert cell(only(records, "table2"), ("0",), "change", "test").value == 0.0
    # The same run in two sweeps: the newer one counts, with the scores that the older one alone has.
    again = [
        make("relative", 0, settings=settings[0], scores={"test": 7.0, "long": 1.0}, started="2026-01-09T00:00:00Z"),
        make("relative", 0, settings=settings[1], scores=both_splits(5.0, 6.0), started="2026-01-08T00:00:00Z"),
    ]
    table = only([*again, records[1]], "table2")
    assert cell(table, ("0",), "ours", "validation") == Cell(5.0, None, 1)
    assert cell(table, ("0",), "ours", "test") == Cell(7.0, None, 1)


# Table 3


def test_table_3_stands_in_the_papers_order(make):
    kinds = {"relative": 31.0, "relative_keys": 30.5, "relative_values": 28.0, "none": 20.0}
    table = only([make(kind, scores=both_splits(bleu, bleu)) for kind, bleu in kinds.items()], "table3")
    assert table.labels == ("a^V", "a^K")
    assert [(row.labels, row.figure("ours", "validation").cell.value) for row in table.rows] == [
        (("yes", "yes"), 31.0),
        (("no", "yes"), 30.5),
        (("yes", "no"), 28.0),
        (("no", "no"), 20.0),
    ]
    changes = [row.figure("change", "validation").cell.value for row in table.rows]
    assert changes == [0.0, -0.5, -3.0, -11.0]
    assert [row.figure("paper_change").cell.value for row in table.rows] == [0.0, 0.0, -0.5, -13.3]
    assert any("does not print its k; 16" in note and "not this table's" not in note for note in paper_legend(table))
    [other] = [
        table for (name, _), table in rebuilt([make("relative_keys", 8), make("none")]).items() if name == "table3"
    ]
    assert other.setting.endswith("| k = 8") and "not this table's 8" in " ".join(paper_legend(other))
    assert cell(other, ("yes", "yes"), "ours", "test").reason == "never run"


# Table 1


def test_table_1_joins_languages_and_models(wmt):
    big = {"model.name": "big", "model.d_model": 1024, "model.d_ff": 4096, "model.num_heads": 16}
    big |= {"optim.max_steps": 300_000, "model.dropout": 0.3}
    runs = [wmt("absolute", bleu=26.0), wmt("relative", bleu=26.4)]
    runs += [wmt("relative", bleu=38.0, settings=FRENCH, pairs=36_000_000)]
    runs += [wmt("relative", 8, bleu=29.0, settings=big)]
    runs += [wmt("relative", 8, bleu=41.0, settings=big | FRENCH | {"model.dropout": 0.1}, pairs=36_000_000)]
    table = only(runs, "table1")
    assert table.setting == "wmt14"
    assert [row.labels for row in table.rows] == [
        (size, position) for size in ("base", "big") for position in ("absolute", "relative")
    ]
    printed = [[row.figure("paper", column).cell.value for column in ("EN-DE", "EN-FR")] for row in table.rows]
    assert printed == [[26.5, 38.2], [26.8, 38.7], [27.9, 41.2], [29.2, 41.5]]
    ours = [[row.figure("ours", column).cell.value for column in ("EN-DE", "EN-FR")] for row in table.rows]
    assert ours == [[26.0, None], [26.4, 38.0], [None, None], [29.0, 41.0]]
    assert cell(table, ("base", "relative"), "change", "EN-DE").value == pytest.approx(0.4)
    assert cell(table, ("base", "relative"), "paper_change", "EN-DE").value == 0.3
    assert cell(table, ("big", "relative"), "change", "EN-DE").reason == "nothing to count from: absolute: never run"
    assert (
        not table.rows[0].smaller and not table.rows[0].differs[:-1]
    )  # the recipe of these records is not the paper's


def test_own_sizes_stand_beside_the_papers_base(make):
    runs = [make(kind) for kind in ("absolute", "relative", "absolute_and_relative", "learned")]
    runs += [make("relative", settings={"optim.max_steps": 900}, scores={"test": 11.0})]
    runs += [make("relative", settings={"optim.warmup_steps": 9}, scores={"test": 12.0})]
    table = only(runs, "table1")
    assert [row.labels[0] for row in table.rows if row.records] == [
        "small, 900 steps",
        *["small, 1,800 steps, A"] * 4,
        "small, 1,800 steps, B",
    ]
    [row] = [row for row in table.rows if row.labels == ("small, 1,800 steps, A", "relative")]
    assert row.figure("paper", "EN-DE").cell.value == 26.8
    assert row.figure("paper", "EN-DE").remark == "the paper's base model, beside which this size stands"
    assert "optim.warmup_steps = 400" in row.remarks[0]
    assert "did not observe" in cell(table, ("small, 1,800 steps, A", "both"), "paper", "EN-DE").reason
    assert cell(table, ("small, 1,800 steps, A", "absolute (learned)"), "paper", "EN-DE").reason == "not in the paper"


def test_table_1_is_of_the_papers_k(make):
    small = only([make("relative", 4, scores={"test": 4.0}), make("relative", 16, scores={"test": 16.0})], "table1")
    assert cell(small, ("small, 1,800 steps", "relative"), "ours", "EN-DE").value == 16.0
    big = {"model.name": "big"}  # k = 8 there
    runs = [make("relative", k, settings=big, scores={"test": float(k)}) for k in (4, 8, 16)]
    assert cell(only(runs, "table1"), ("big, 1,800 steps", "relative"), "ours", "EN-DE").value == 8.0
    without = only([make("relative", 4), make("absolute")], "table1")
    assert cell(without, ("small, 1,800 steps", "relative"), "ours", "EN-DE").reason == "never run"


def test_other_languages_have_a_column_of_their_own(make):
    table = only([make(settings={"data.name": "multi30k_en_cs", "data.target_language": "cs"})], "table1")
    assert table.setting == "multi30k"
    row = next(row for row in table.rows if row.records)
    assert row.figure("ours", "EN-CS").cell.value == 30.0
    assert row.figure("paper", "EN-CS").cell.reason == "the paper has no figure for EN-CS"
    assert row.figure("ours", "EN-DE").cell.reason == "never run"


# The plain difference, and what runs differ in


def test_the_difference_is_of_the_groups_bleu_and_only_on_the_papers_corpus(wmt):
    """One reason for a dash after the other: corpus (by name, by size, cut), test set, kind of BLEU, no figure."""

    def difference(*runs, k="4"):
        return cell(only([wmt("relative", 16), *runs], "table2"), (k,), "difference", "validation")

    assert difference(wmt("relative", 4, bleu=25.0, split_bleu=25.5)).value == pytest.approx(25.5 - 25.9)
    assert difference(wmt("relative", 4, pairs=100_000)).reason.startswith("another corpus: wmt14_en_de")
    assert difference(wmt("relative", 4, split_bleu=None)).reason.startswith("another kind of BLEU")
    assert difference(wmt("relative", 8), k="8").reason == "the paper's Table 2 has no row for k = 8"
    limited = {"data.train_limit": 10}
    cut = [wmt("relative", k, settings=limited) for k in (4, 16)]
    assert cell(only(cut, "table2"), ("4",), "difference", "validation").reason.startswith("another corpus")
    renamed = [
        run.model_copy(update={"scores": tuple(replace(s, test_set="mine") for s in run.scores)})
        for run in (wmt("relative", 4), wmt("relative", 16))
    ]
    reason = cell(only(renamed, "table2"), ("4",), "difference", "validation").reason
    assert reason == "another test set: mine; the paper's: newstest2013"


def test_the_difference_keeps_the_deviation_over_seeds(wmt):
    runs = [wmt("relative", k, seed=seed, split_bleu=25.0 + seed) for k in (4, 16) for seed in (1, 3)]
    found = cell(only(runs, "table2"), ("4",), "difference", "validation")
    assert (found.value, found.n) == (pytest.approx(27.0 - 25.9), 2)
    assert found.sd == pytest.approx(2**0.5)


def test_a_smaller_run_says_so_in_its_row(make, wmt):
    table = only([make("relative", 0), make("relative", 16)], "table2")
    headings, words, cells, footnotes = paper_grid(table)
    assert headings[-1] == "differs" and words[-1] and words[0] and not any(words[1:-1])
    mine = {line[0]: line[-1] for line in cells}
    assert mine["0"].startswith("smaller: data, model, steps") and mine["1"] == ""
    number = int(mine["0"].rpartition("[")[2].rstrip("]"))
    for word in ("29,000 pairs", "num_layers 3 (6)", "1,800 steps; the paper: 100,000", "warm-up steps 400 (4,000)"):
        assert word in footnotes[number - 1]
    assert "  smaller\n" in paper_terminal([table])
    same = only([wmt("relative", 0), wmt("relative", 16)], "table2")
    assert [row.smaller for row in same.rows if row.records] == [False, False]
    assert [way.word for way in same.rows[0].differs] == ["recipe"]
    for less in ({"optim.max_steps": 99_999}, {"model.num_layers": 5}):
        shorter = only([wmt("relative", k, settings=less) for k in (0, 16)], "table2")
        assert shorter.rows[0].smaller
    more = only([wmt("relative", k, settings={"model.d_ff": 2048}) for k in (0, 16)], "table2").rows[0]
    assert not more.smaller and "model" in [way.word for way in more.differs]


def test_synthetic_runs_are_called_so_everywhere(make):
    tables = list(
        rebuilt(
            [make(kind, k, synthetic=True) for kind, k in (("absolute", 16), ("relative", 16), ("relative", 0))]
        ).values()
    )
    assert {table.name for table in tables} == {"table1", "table2", "speed"}
    for table in tables:
        assert table.synthetic and "synthetic" in paper_markdown(table) and "SYNTHETIC" in paper_markdown(table)
    assert "  synthetic\n" in paper_terminal(tables)


def test_a_run_cut_short_and_a_failed_seed_are_told(make):
    runs = [make("relative", 16, seed=1, steps=900), make("relative", 16, seed=2, status="failed"), make("none")]
    row = only(runs, "table3").rows[0]
    assert any("stopped at step 900 of 1,800" in way.text for way in row.differs)
    assert row.remarks == ("seed 2 failed: RuntimeError: rank 1 died",)
    assert "[1]" in paper_grid(only(runs, "table3"))[2][0][1]


# Speed


def bench(relative_speed=0.95, **changes):
    model = {"name": "base", "num_layers": 6, "d_model": 512}
    hardware = {"precision": "32", "matmul_precision": "highest"}
    config = {"model": model, "data": {"vocabulary_size": 8000}, "hardware": hardware, "rounds": 15}
    config |= {"variants": ["absolute", "relative"], "sentences": 128, "length": 30}
    rows = [("absolute", 2.0, 1.0, 1.0, 1.0), ("relative", 1.9, relative_speed, 0.91, 0.99)]
    names = ("variant", "steps_per_second", "relative_speed", "min", "max")
    return {"device": "a CPU", "config": config, "step": [dict(zip(names, row, strict=True)) for row in rows]} | changes


def test_speeds_of_whole_runs_and_of_turns_stand_in_one_table_and_say_which(make, tmp_path):
    (tmp_path / "step.json").write_text(json.dumps(bench()))
    benches, problems = find_benches(tmp_path)
    assert problems == []
    runs = [make("absolute", seed=seed, steps_per_second=speed) for seed, speed in ((1, 2.0), (2, 3.0))]
    runs += [make("relative", seed=seed, steps_per_second=speed) for seed, speed in ((1, 2.0), (2, 2.5))]
    tables = rebuilt(runs, benches)
    [table] = [table for (name, _), table in tables.items() if name == "speed"]
    whole, turns = table.rows
    assert (whole.labels[3], turns.labels[3]) == ("runs", "in turn")
    assert whole.figure("steps_per_second", "absolute").cell.value == pytest.approx(2.5)
    assert whole.figure("ratio", "relative").cell.value == pytest.approx(0.9)  # 2 / 2.5 and 2.5 / 2.5
    ratio = turns.figure("ratio", "relative")
    assert (ratio.cell.value, ratio.low, ratio.high, ratio.spread) == (0.95, 0.91, 0.99, "range over rounds")
    text = paper_markdown(table)
    assert "0.95 (0.91 to 0.99)" in text and "15 rounds (step.json)" in text and "0.93" in text
    assert "device: 2 threads of a CPU, precision 32-true, products highest; the paper: P100 GPUs" in text
    # The ratio of the seeds' speeds to the mean of the absolute runs, in the rows of Table 2 and 3 as well.
    assert [table.name for table in tables.values()] == ["table1", "speed"]


def test_runs_that_were_timed_and_never_scored_fill_the_speed_table_alone(make):
    runs = [make(kind, scores={}) for kind in ("absolute", "relative")]
    assert [table.name for table in rebuilt(runs).values() if table.measured] == ["speed"]


def test_peers_documents_have_a_ratio_for_each_round(tmp_path):
    """0.8, 1.0 and 0.9 within the rounds: the median is 0.9; of the medians, 1.6 to 2.0 would be another figure."""
    speeds = [(1, 2.0, 1.6), (2, 1.0, 1.0), (3, 4.0, 3.6)]
    common = {"size": "small", "threads": 2, "matmul": "highest", "timed_steps": 20}
    lines = [
        {"round": number, "label": label, "steps_per_s": speed, **common}
        for number, absolute, relative in speeds
        for label, speed in (("ours", absolute), ("ours:positions=relative", relative), ("other", 1.0))
    ]
    (tmp_path / "peers.json").write_text(json.dumps(lines))
    [found] = find_benches(tmp_path)[0]
    assert (found.ratio, found.low, found.high, found.rounds) == (pytest.approx(0.9), 0.8, 1.0, 3)
    assert (found.absolute, found.relative) == (2.0, 1.6)


def test_documents_that_hold_no_such_speed_are_passed_over_and_damaged_ones_told(tmp_path):
    (tmp_path / "record.json").write_text('{"schema": 1}')
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "deep.json").write_text(100_000 * "[")
    (tmp_path / "other.json").write_text(json.dumps(bench() | {"config": bench()["config"] | {"variants": ["none"]}}))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "step.json").write_text(json.dumps(bench()))
    assert find_benches(tmp_path) == ([], [])
    (tmp_path / "bad.json").write_text(json.dumps(bench(step=[{"variant": "absolute"}])))
    [problem] = find_benches(tmp_path)[1]
    assert problem.startswith(str(tmp_path / "bad.json")) and "step.0.steps_per_second: Field required" in problem
    assert "\n" not in problem


# Formats


@pytest.fixture
def sweep(make, score, interval):
    """Everything at once: several seeds, one seed with its interval, failed and missing runs, names to escape."""
    evil = {"data.name": "a_b&<%|_en_de"}
    runs = [
        make("relative", k, seed=seed, settings=evil, scores=both_splits(20.0 + k + seed, 21.0 + k))
        for k in (0, 16)
        for seed in (1, 2)
    ]
    runs.append(make("relative", 4, settings=evil, scores=[score("test", 30.0, interval=interval(28.04, 31.96))]))
    runs += [make("absolute", settings=evil), make("none", settings=evil, status="failed")]
    return [table for table in paper_tables(position_tables(runs)) if table.measured]


def test_csv_and_json_hold_the_same_numbers(sweep):
    lines = list(csv.DictReader(io.StringIO(paper_csv(sweep))))
    figures = [figure for table in sweep for row in paper_json(table)["rows"] for figure in row["figures"]]
    assert len(lines) == len(figures) > 100
    for line, figure in zip(lines, json.loads(json.dumps(figures, allow_nan=False)), strict=True):
        for name in ("mean", "sd", "low", "high"):
            assert (float(line[name]) if line[name] else None) == figure[name]
        assert int(line["n"]) == figure["n"]
        assert (line["missing_because"] or None) == figure["missing_because"]
        assert (line["column"], line["figure"], line["test_set"]) == (
            figure["column"],
            figure["figure"],
            figure["test_set"],
        )
        assert (figure["mean"] is None) == bool(line["missing_because"])


def test_which_interval_is_which(sweep):
    [table] = [table for table in sweep if table.name == "table2"]
    text = paper_markdown(table)
    # Seeds: 21 and 22 on validation, so 21.5 with half 12.706 * 0.7071 / 1.4142; one seed: its bootstrap.
    assert "21.5 ± 0.7 (15.1 to 27.9)" in text and "30.0 [28.0, 32.0]" in text
    legend = " ".join(paper_legend(table))
    assert "the 95% interval of the mean over trainings with other seeds (Student's t, n - 1)" in legend
    assert "interval of one run over the sentences of its test set, not over trainings (a bootstrap, 1,000" in legend
    spreads = {
        (row.labels[0], one.column): one.spread for row in table.rows for one in row.figures if one.name == "ours"
    }
    assert spreads["0", "validation"] == "t interval over seeds" and spreads["4", "test"] == "bootstrap over sentences"
    assert spreads["64", "test"] == ""


def test_signs_dashes_and_counts(sweep):
    [table] = [table for table in sweep if table.name == "table2"]
    headings, _, cells, footnotes = paper_grid(table)
    lines = {line[0]: dict(zip(headings[:7], line, strict=False)) for line in cells}
    assert headings[:4] == ["k", "n", "paper", "change"]
    assert (lines["0"]["n"], lines["4"]["n"], lines["64"]["n"]) == ("2", "1", "0")
    assert [line[3] for line in cells] == ["-13.3", "-0.3", "0.0", "+0.1", "0.0", "+0.1", "0.0"]
    assert lines["16"]["validation"].startswith("37.5 ±")
    dashes = {text for line in cells for text in line if text.startswith("–")}
    assert dashes and all(0 < int(text.split("[")[1].rstrip("]")) <= len(footnotes) for text in dashes)


def test_markup_is_escaped_and_a_minus_is_no_hyphen(sweep):
    latex = "\n".join(map(paper_latex, sweep))
    assert r"a\_b\&\textless{}\%\textbar{}" in latex and "$-$13.3" in latex
    assert not re.search(r"[ (]-\d", latex)
    assert r"a\textasciicircum{}V" in latex and r"\toprule" in latex and r"\bottomrule" in latex
    assert latex.count(r"\begin{tabular}") == len(sweep) == latex.count(r"\end{table}")
    page = paper_page("a <b>", sweep)
    assert page.startswith("# a &lt;b>: the paper's tables") and r"a_b&amp;&lt;%\|" in page


def test_every_line_of_a_grid_has_its_columns(sweep):
    for table in sweep:
        headings, words, cells, _ = paper_grid(table)
        assert all(len(line) == len(headings) == len(words) for line in cells)
        for row in paper_markdown(table).splitlines():
            if row.startswith("| "):
                assert row.replace(r"\|", "").count("|") == len(headings) + 1


def test_the_terminal_says_each_thing_once_within_its_width(sweep):
    text = paper_terminal(sweep)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("the group's practice splits compounds") == text.count("ours: sacreBLEU") == 1
    assert text.count("] never run") == 1 and paper_terminal([]) == ""


def test_the_order_of_the_records_changes_nothing(make):
    runs = [make("relative", k, seed=seed) for k in (0, 16) for seed in (2, 1)] + [make("absolute")]
    one, other = (paper_tables(position_tables(records)) for records in (runs, runs[::-1]))
    assert list(map(paper_markdown, one)) == list(map(paper_markdown, other))
    assert paper_csv(one) == paper_csv(other)


def test_empty_translations_are_told_in_one_line(make, score):
    runs = [make("relative", k, scores=[score("test", 30.0, empty_hypotheses=k)]) for k in (0, 4, 16)]
    notes = [note for note in paper_legend(only(runs, "table2")) if "empty" in note]
    assert notes == ["empty translations of test, scored as they are: 4 to 16 of 1,000 of 2 runs"]


# What agrees


def verdicts(make, changes):
    """Of k = 0, and of k = 4 (where the paper has 0.1 from k = 16), by the change of each seed."""
    runs = [make("relative", 16, seed=seed, scores=both_splits(30.0, 30.0)) for seed in (1, 2, 3)]
    for k, by_seed in changes.items():
        runs += [
            make("relative", k, seed=seed, scores=both_splits(30.0 + change, 30.0))
            for seed, change in enumerate(by_seed, start=1)
        ]
    return {claim.text.split("k = ")[1].split(" on")[0]: claim.verdict for claim in claims([only(runs, "table2")])}


def test_verdicts_by_hand(make):
    # Three seeds: half the interval is 4.303 * sd / sqrt(3) = 2.484 sd. The paper: k = 0 far below, k = 4 level.
    assert verdicts(make, {0: (-9.0, -8.0, -7.0), 4: (-0.1, 0.0, 0.1)}) == {"0": "agrees", "4": "agrees"}
    assert verdicts(make, {0: (7.0, 8.0, 9.0), 4: (-3.1, -3.0, -2.9)}) == {"0": "disagrees", "4": "disagrees"}
    assert verdicts(make, {0: (-2.0, 0.0, 1.0), 4: (-2.0, 0.0, 2.0)}) == {"0": "open", "4": "open"}
    # One seed, or other seeds than the reference has, tell nothing.
    assert verdicts(make, {0: (-9.0,)}) == {"0": "open"}


def test_a_claim_names_both_figures_and_how_sure_ours_is(make):
    runs = [make("relative", 16, seed=seed, scores={"test": 30.0}) for seed in (1, 2)]
    runs += [make("relative", 0, seed=seed, scores={"test": 19.0 + seed}) for seed in (1, 2)]
    [claim] = claims([only(runs, "table2")])
    # -10 and -9: half the interval is 12.706 * 0.7071 / 1.4142 = 6.353.
    assert claim.text == (
        "multi30k_en_de | model small | 1,800 steps | cpu: k = 0 on test: -9.5 BLEU from k = 16 "
        "(2 seeds, 95% interval -15.9 to -3.1); the paper: -13.3"
    )


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.91, 0.99), "agrees"), ((0.9, 1.1), "open"), ((1.01, 1.1), "disagrees")]
)
def test_a_speed_agrees_where_relative_was_slower_in_every_round(tmp_path, ends, verdict):
    document = bench()
    document["step"][1] |= {"min": ends[0], "max": ends[1]}
    (tmp_path / "step.json").write_text(json.dumps(document))
    [claim] = claims(paper_tables([], find_benches(tmp_path)[0]))
    assert claim.verdict == verdict and "the paper: 0.93" in claim.text

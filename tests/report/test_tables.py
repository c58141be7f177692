"""Tables: means, deviations and ratios worked by hand, missing cells and reasons, order, and no mixing of groups."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from rpr.errors import RecordError
from rpr.records.record import Record
from rpr.report.render import as_json, csv_rows, latex, markdown, terminal
from rpr.report.rows import Cell, summarise
from rpr.report.tables import position_tables
from rpr.report.text import escape_markdown


def one(records):
    [table] = position_tables(records)
    return table


def test_mean_and_sample_deviation_by_hand():
    # 1, 2, 6: mean 3; squared deviations 4 + 1 + 9 = 14, over n - 1 = 2 is 7.
    cell = summarise([1.0, 2.0, 6.0])
    assert (cell.value, cell.n) == (3.0, 3)
    assert cell.sd == pytest.approx(7**0.5)
    assert summarise([5.0]) == Cell(5.0, None, 1)


def test_a_cell_without_a_figure_has_a_reason():
    with pytest.raises(AssertionError, match="a missing cell has a reason"):
        Cell(None)


def test_speed_is_relative_to_the_mean_of_the_absolute_runs(make):
    table = one(
        [
            make("absolute", seed=1, steps_per_second=2.0),
            make("absolute", seed=2, steps_per_second=3.0),
            make("relative", seed=1, steps_per_second=2.0),
            make("relative", seed=2, steps_per_second=2.5),
        ]
    )
    relative = table.row("relative", 16)
    # Baseline (2 + 3) / 2 = 2.5; ratios 0.8 and 1.0.
    assert relative.relative_speed.value == pytest.approx(0.9)
    assert relative.relative_speed.sd == pytest.approx(0.02**0.5)
    assert relative.steps_per_second.value == pytest.approx(2.25)
    assert table.row("absolute").relative_speed.value == pytest.approx(1.0)


@pytest.mark.parametrize("ours, theirs, compared", [
    (0.92, 1.0, True), (1.0, 0.92, True), (None, 1.0, False), (0.5, None, False), (0.5, 1.0, False), (2.0, 1.1, False),
])  # fmt: skip
def test_speed_is_not_compared_where_other_work_took_the_cores(make, ours, theirs, compared):
    def run(kind, cores):
        record = make(kind)
        config = record.config | {"hardware": record.config["hardware"] | {"accelerator": "cpu"}}
        training = record.training.model_copy(update={"cores_used": cores})
        return record.model_copy(update={"training": training, "config": config})

    ratio = one([run("absolute", theirs), run("relative", ours)]).row("relative").relative_speed
    assert (ratio.value is not None) == compared
    if ours is None or theirs is None:
        assert ratio.reason.startswith("how many cores worked on it, or on absolute, was not recorded: other work may")
    elif not compared:
        assert ratio.reason == (
            f"{ours:.2f} cores worked on it and {theirs:.2f} on absolute: other work ran beside one of them"
        )


def test_speed_without_a_comparable_baseline_is_a_dash_with_its_reason(make, document):
    alone = one([make("relative")]).rows[0]
    assert alone.relative_speed.reason.startswith(
        "no finished absolute (sinusoidal) run of this corpus, model and hardware"
    )
    elsewhere = one([make("relative"), make("absolute", device="another CPU")])
    assert "on this device and precision" in elsewhere.row("relative").relative_speed.reason
    fields = document("absolute")
    fields["training"]["precision"] = "bf16-mixed"
    other_precision = one([make("relative"), Record.model_validate(fields)])
    assert other_precision.row("relative").relative_speed.value is None
    unmeasured = one([make("relative", steps_per_second=None), make("absolute")]).row("relative")
    assert unmeasured.relative_speed.reason == unmeasured.steps_per_second.reason == "speed not measured"


def test_order_of_rows(make):
    shuffled = [
        ("relative_values", 16),
        ("relative", 256),
        ("none", 16),
        ("absolute_and_relative", 16),
        ("relative", 0),
    ]
    shuffled += [("learned", 16), ("relative", 16), ("relative_keys", 16), ("relative", 2), ("absolute", 16)]
    table = one([make(position, k) for position, k in shuffled])
    assert [row.label for row in table.rows] == [
        "absolute (sinusoidal)",
        "absolute (learned)",
        "none",
        "relative, k = 0",
        "relative, k = 2",
        "relative, k = 16",
        "relative, k = 256",
        "keys only, k = 16",
        "values only, k = 16",
        "sinusoidal + relative, k = 16",
    ]


def test_the_papers_column(make):
    positions = [("absolute", 16), ("none", 16), ("relative", 0), ("relative", 8), ("relative", 16), ("relative", 32)]
    positions += [("relative_keys", 16), ("relative_values", 16), ("relative_values", 8), ("absolute_and_relative", 16)]
    table = one([make(position, k) for position, k in positions])
    assert {row.label: row.paper.value for row in table.rows} == {
        "absolute (sinusoidal)": None,
        "none": 12.5,
        "relative, k = 0": 12.5,
        "relative, k = 8": None,
        "relative, k = 16": 25.8,
        "relative, k = 32": None,
        "keys only, k = 16": 25.8,
        "values only, k = 16": 25.3,
        "values only, k = 8": None,
        "sinusoidal + relative, k = 16": None,
    }
    assert "26.5 on another test set, newstest2014" in table.row("absolute").paper.reason


def test_failed_and_running_runs_are_rows_with_dashes(make):
    table = one([make("absolute"), make("relative", status="failed"), make("relative", 4, status="running")])
    failed, running = table.row("relative", 16), table.row("relative", 4)
    assert table.cell(failed).reason == "seed 1 failed: RuntimeError: rank 1 died"
    assert table.cell(running).reason == "seed 1 still running, or killed (started 2026-01-02T03:04:05Z)"
    text = terminal(table)
    assert "] seed 1 failed: RuntimeError: rank 1 died" in text
    assert not re.search(r"(?<![\d.])0\.0", text)


def test_a_failed_seed_beside_finished_ones_lowers_n_and_is_told(make):
    runs = [make(seed=1, scores={"test": 30.0}), make(seed=2, scores={"test": 32.0}), make(seed=3, status="failed")]
    row = one(runs).rows[0]
    assert one(runs).cell(row).n == 2
    assert "seed 3 failed: RuntimeError: rank 1 died" in row.remarks


def test_a_split_that_was_not_evaluated_is_a_dash_with_its_reason(make):
    table = one([make("absolute", scores={"test": 30.0, "long": 20.0}), make("relative", scores={"test": 31.0})])
    assert table.cell(table.row("relative"), "long").reason == "not evaluated on long"
    assert table.cell(table.row("absolute"), "long").value == 20.0


@pytest.mark.parametrize(
    "settings",
    [{"data.name": "wmt14_en_de"}, {"model.name": "base"}, {"optim.max_steps": 900}, {"optim.warmup_steps": 9}],
    ids=str,
)
def test_different_groups_are_never_in_one_table(make, settings):
    tables = position_tables([make("absolute"), make("relative", settings=settings), make("relative", 4)])
    assert sorted(len(table.rows) for table in tables) == [1, 2]
    assert len({table.heading for table in tables}) == 2
    # The run that stands alone takes no baseline from the other table.
    [alone] = [table for table in tables if len(table.rows) == 1]
    assert alone.rows[0].relative_speed.value is None


def test_hardware_separates_tables(document):
    records = []
    for name in ("cpu", "gpu"):
        fields = document(settings={"hardware.name": name})
        records.append(Record.model_validate(fields))
    assert [table.hardware for table in position_tables(records)] == ["cpu", "gpu"]


def test_settings_that_decide_nothing_do_not_separate(make):
    assert len(position_tables([make("absolute", settings={"data.cache_dir": "/elsewhere"}), make("relative")])) == 1


def test_sharing_of_tables_separates_rows_and_is_named(make):
    table = one([make(), make(settings={"position.tables": "shared_by_heads"})])
    assert {row.label for row in table.rows} == {"relative, k = 16, per head", "relative, k = 16, shared by heads"}
    assert any("shared by heads" in difference for difference in table.differences)


def test_a_scheme_this_room_does_not_know_is_not_called_none(make):
    table = one([make("none"), make("none", settings={"position.rotary": True})])
    assert [row.label for row in table.rows] == ["none", "rotary = True"]
    assert table.rows[1].paper.value is None


def test_metrics_and_test_sets_have_their_own_columns(make, score):
    scores = [score("test", 30.0), score("test", 31.0, "bleu_tok_split"), score("test", 29.0, test_set="another")]
    table = one([make(scores=scores)])
    assert [(column.metric, column.test_set) for column in table.columns] == [
        ("sacrebleu", "another"),
        ("sacrebleu", "test_2016_flickr"),
        ("bleu_tok_split", "test_2016_flickr"),
    ]


def test_the_signature_is_printed_once_and_different_ones_are_told(make, score):
    same = one([make("absolute"), make("relative")])
    assert terminal(same).count("tok:13a") == 1
    assert not any("NOT COMPARABLE" in note for note in same.notes)
    other = make("relative", scores=[score("test", 30.0, signature="nrefs:1|tok:none")])
    assert any("NOT COMPARABLE: the rows of sacreBLEU on test" in note for note in one([make("absolute"), other]).notes)
    fewer = make("relative", scores=[score("test", 30.0, num_sentences=10)])
    assert any("scored on 10 or 1,000 sentences" in note for note in one([make("absolute"), fewer]).notes)


@pytest.mark.parametrize("change", [{"signature": "other"}, {"num_sentences": 10}, {"beam_size": 1}], ids=str)
def test_seeds_scored_in_different_ways_have_no_mean(make, score, change):
    table = one([make(seed=1), make(seed=2, scores=[score("test", 30.0, **change)])])
    assert "scored in different ways" in table.cell(table.rows[0]).reason


def test_a_seed_counts_once(make):
    runs = [
        make(seed=1, scores={"test": 1.0}, started="2026-01-01"),
        make(seed=1, scores={"test": 3.0}, started="2026-01-02"),
    ]
    assert one(runs).cell(one(runs).rows[0]) == Cell(3.0, None, 1)


def test_synthetic_data_is_named_in_the_heading_and_in_every_row(make):
    table = one([make("absolute", synthetic=True), make("relative", synthetic=True)])
    text = terminal(table)
    assert "synthetic" in text.splitlines()[0]
    rows = [line for line in text.splitlines() if line.startswith(("absolute (sinusoidal) ", "relative, k = 16 "))][:2]
    assert len(rows) == 2
    assert all(line.rstrip().endswith("synthetic") for line in rows)
    renamed = one([make("absolute", synthetic=True, settings={"data.name": "mine"})])
    assert renamed.heading.startswith("mine (synthetic)") or renamed.heading.startswith("synthetic")


def test_differences_from_the_paper_are_named(make):
    text = " ".join(one([make()]).differences)
    for word in ("29,000 pairs", "num_layers 3 (6)", "1,800 steps", "test_2016_flickr", "sacreBLEU"):
        assert word in text


def test_steps_that_were_left_out_are_named(make):
    record = make()
    skipped = record.training.model_copy(update={"skipped_steps": 3})
    lines = one([record.model_copy(update={"training": skipped})]).differences
    assert f"{record.name}: 3 steps changed nothing, as their gradient was not finite" in lines
    assert not any("changed nothing" in line for line in one([record]).differences)


def test_nothing_to_report_is_refused():
    with pytest.raises(RecordError, match="no run record to report; run `rpr-cli sweep"):
        position_tables([])


def test_the_terminal_is_100_columns_wide_and_keeps_the_headline(make, score):
    scores = [
        score(split, 30.0, metric) for split in ("test", "long", "validation") for metric in ("sacrebleu", "chrf")
    ]
    runs = [make(kind, seed=seed, scores=scores) for kind in ("absolute", "relative", "none") for seed in (1, 2)]
    lines = terminal(one([*runs, make("absolute_and_relative", scores=scores)])).splitlines()
    assert max(map(len, lines)) <= 100
    assert "BLEU test" in lines[2]


def test_csv_has_an_empty_field_and_a_reason_for_a_missing_figure(make):
    lines = list(csv.DictReader(io.StringIO(csv_rows([one([make("absolute"), make("relative", 8, status="failed")])]))))
    missing = [line for line in lines if line["missing_because"]]
    assert missing
    assert all(line["mean"] == line["sd"] == "" and line["n"] == "0" for line in missing)
    assert [line["mean"] for line in lines if line["figure"] == "sacrebleu"] == ["30.0", ""]


def test_json_has_null_for_a_missing_figure(make):
    document = json.loads(json.dumps(as_json(one([make("relative", status="failed")])), allow_nan=False))
    assert document["rows"][0]["steps_per_second"]["mean"] is None
    assert document["rows"][0]["runs"][0]["status"] == "failed"


def test_markup_in_names_is_escaped(make):
    table = one([make(settings={"data.name": "<script>|x_1&"})])
    assert "<script>" not in markdown(table)
    assert r"&lt;script>\|x" in markdown(table)
    assert r"\textless{}script\textgreater{}\textbar{}x\_1\&" in latex(table)
    assert escape_markdown("a|b\n*c*") == r"a\|b \*c\*"


def test_rendering_twice_gives_the_same_text_whatever_the_order_of_the_records(make):
    runs = [make(seed=2), make("absolute"), make(seed=1)]
    for renderer in (terminal, markdown, latex):
        assert renderer(one(runs)) == renderer(one(runs[::-1]))


def test_one_run_shows_its_interval_and_several_seeds_their_deviation(make, score, interval):
    alone = one([make(scores=[score("test", 37.75, interval=interval(36.44, 39.06))])])
    for renderer in (terminal, markdown, latex):
        assert "37.8 [36.4, 39.1]" in renderer(alone)
        text = " ".join(renderer(alone).split())
        assert "interval of one run over the sentences of its test set, not over trainings (a bootstrap, 1,000" in text
    assert as_json(alone)["rows"][0]["scores"][0]["interval"] == interval(36.44, 39.06)
    [line] = [line for line in csv.DictReader(io.StringIO(csv_rows([alone]))) if line["figure"] == "sacrebleu"]
    assert (line["mean"], line["low"], line["high"]) == ("37.75", "36.44", "39.06")
    runs = [make(seed=seed, scores=[score("test", 30.0 + seed, interval=interval(29, 35))]) for seed in (1, 3)]
    several = markdown(one(runs))
    assert "32.0 ± 1.4" in several and "[29" not in several and "not over trainings" not in several


def test_records_without_intervals_have_no_column_for_them(make):
    table = one([make()])
    assert "low" not in csv_rows([table]).splitlines()[0].split(",")
    assert "interval" not in json.dumps(as_json(table)) and "by_length" not in as_json(table)


def test_a_narrow_terminal_leaves_intervals_to_the_files_and_says_so(make, score, interval):
    sets = [("test", "one"), ("test", "two"), ("long", "two")]
    scores = [score(split, 30.0, test_set=name, interval=interval(29, 31)) for split, name in sets]
    runs = [make(kind, scores=scores) for kind in ("absolute_and_relative", "absolute")]
    text = terminal(one(runs))
    assert max(map(len, text.splitlines())) <= 100
    assert "[29.0, 31.0]" not in text and "the intervals over the test sentences are in report.md" in text


def test_settings_that_only_add_to_what_is_said_do_not_separate(make):
    told = {"evaluation.bootstrap_samples": 500, "evaluation.length_buckets": [5]}
    assert len(position_tables([make("absolute"), make("relative", settings=told)])) == 1
    # Nor does a setting that came later, with the value of what was done before.
    later = {"optim.ema_decay": None, "optim.non_finite": "stop"}
    assert len(position_tables([make("absolute"), make("relative", settings=later)])) == 1
    assert len(position_tables([make("absolute"), make("relative", settings={"optim.ema_decay": 0.9})])) == 2


def test_empty_translations_are_told(make, score):
    table = one(
        [make(scores=[score("test", 30.0, empty_hypotheses=3), score("test", 50.0, "chrf", empty_hypotheses=3)])]
    )
    assert [note for note in table.notes if "empty" in note] == [
        "multi30k_en_de-small-relative-k16-s1: 3 of 1,000 translations of test are empty"
    ]
    none = one([make(scores=[score("test", 30.0, empty_hypotheses=0)])])
    assert not any("empty" in note for note in none.notes)


def test_the_three_bleus_have_columns_and_names_of_their_own(make, score):
    metrics = ("bleu_tok", "chrf", "bleu_tok_split", "sacrebleu")
    table = one([make(scores=[score("test", 30.0, metric, signature=f"of {metric}") for metric in metrics])])
    assert [column.metric for column in table.columns] == ["sacrebleu", "chrf", "bleu_tok_split", "bleu_tok"]
    header = markdown(table).split("| position")[1].splitlines()[0]
    assert "| BLEU test | chrf test | bleu_tok_split test | bleu_tok test |" in header
    names = ("sacreBLEU", "chrF", "BLEU, Moses tokens, compounds split", "bleu_tok")
    for name, metric in zip(names, ("sacrebleu", "chrf", "bleu_tok_split", "bleu_tok"), strict=True):
        assert f"{name} on test (test_2016_flickr, 1,000 sentences): of {metric}, beam 4" in " ".join(table.notes)

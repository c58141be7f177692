"""The score table in its forms, from fake records, cell by cell; the findings below it."""

import re

import pytest

from rpr.records.record import Git, RerunOf
from rpr.report.groups import Beside, differences, papers_settings, run_key
from rpr.report.page import build_report
from rpr.report.render import Cell
from rpr.report.tables import findings
from tests.fake_records import fake_record, fake_score
from tests.report.helpers import grids, group_of, row, runs, value

ABSOLUTE, PAPERS = "absolute (sinusoidal)", "relative, k = 16"


def test_rows_are_best_first_with_change_and_verdict_against_one_baseline():
    table = grids(runs(seeds=(1, 2, 3)), published=True)["scores"]
    scores = [line[2].value.value for line in table.cells]
    assert scores == sorted(scores, reverse=True) and len(scores) == 10
    none, absolute = row(table, "none"), row(table, ABSOLUTE)
    assert value(none["test_change"]) == pytest.approx(value(none["test"]) - value(absolute["test"]))
    assert [cells["test_verdict"].value for cells in (none, absolute, row(table, PAPERS))] == [
        "worse", "baseline", "better"
    ]  # fmt: skip
    assert absolute["test_change"].value == "" and value(row(table, PAPERS)["paper_change"]) == 0.3


def test_papers_tables_are_the_score_table_of_its_rows():
    found = grids(runs(), published=True)
    assert [line[0].value for line in found["table2"].cells] == ["0", "1", "2", "4", "16", "32", "64", "256"]
    k0, k4 = row(found["table2"], "0"), row(found["table2"], "4")
    assert (value(k0["paper"]), k0["test_verdict"].value, k4["test"].value.reason) == (12.5, "worse", "never run")
    assert len(found["table3"].cells) == 4
    assert value(row(found["table3"], "no", "no")["paper"]) == 12.5
    labels = [[cell.value for cell in line[:3]] for line in found["table1"].cells]
    assert labels == [["small, 1,800 steps", "EN-DE", kind] for kind in (ABSOLUTE, "relative")]


def test_own_corpora_show_nothing_of_the_paper(tmp_path):
    """But with paper=true."""
    records = [(tmp_path / f"{number}.json", run) for number, run in enumerate(runs(settings={"data.name": "mine"}))]
    for published in (None, True):
        report = build_report(records, tmp_path / "out", "x", published=published)
        texts = [path.read_text() for path in report.files] + [report.summary(100, 40)]
        said = [bool(re.search("the paper|Shaw|26.8", text.split("</style>")[-1])) for text in texts]
        assert any(said) is (published is True), [path.name for path in report.files]


def test_runs_differ_from_the_papers_configuration():
    run = fake_record("relative", settings={"data.name": "multi30k_en_de", "optim.max_steps": 5000})
    found = differences([run], "base", "en_de")
    assert "max_steps 5,000 (100,000)" in found and "name multi30k_en_de (wmt14_en_de)" in found
    assert not any(text.startswith(("clip_distance", "seed", "path")) for text in found)
    assert papers_settings("big", "en_fr")["model.dropout"] == 0.1 != papers_settings("big", "en_de")["model.dropout"]


def test_tasks_say_how_many_seeds_solve_them():
    def run(position, seed, long):
        scores = [fake_score("test", 99.0, "exact_match"), fake_score("long", long, "exact_match")]
        task = {"kind": "reverse", "max_train_length": 20, "max_long_length": 40}
        return fake_record(position, seed=seed, scores=scores, settings={"data.task": task, "data.name": "reverse"})

    rows = {"absolute": (1.0, 2.0, 3.0), "relative": (99.0, 20.0, 96.0)}
    group = group_of(run(name, seed, long) for name, values in rows.items() for seed, long in enumerate(values))
    table = grids(group.runs)["scores"]
    assert table.title == "exact match on long"
    assert [row(table, label)["long_solved"].value for label in (PAPERS, ABSOLUTE)] == ["2 of 3", "0 of 3"]
    assert "test: lengths up to 20 symbols of the input, as in training; long: up to 40" in table.notes
    assert group.baseline.unlearned() == ""


def test_notes_of_a_row_are_footnotes(tmp_path, monkeypatch):
    """A rerun shows that a result is repeated, and its original counts; a file's seeds were fixed before any run."""
    monkeypatch.setattr("rpr.report.groups.sweep_files", lambda: {"mine": tmp_path / "mine.yaml"})
    (tmp_path / "mine.yaml").write_text("jobs: ['seed=1,2']")
    runs = [fake_record("relative", seed=seed) for seed in (1, 2)]
    falling = {run_key(run): Beside(curves={"validation/loss": {900: 3.1, 1000: 3.0}}) for run in runs}
    chips = [fake_record("absolute", seed=seed, device="A") for seed in (1, 2)]
    rerun = runs[1].model_copy(update={"rerun_of": RerunOf(run_id="b", started=runs[1].started)})
    for others, beside, notes in (
        ([rerun], {}, {}),
        ([], falling, {"still learning": "still learning: the validation loss fell by more than 1% and 0.005 nats"}),
        ([fake_record("relative", seed=3, status="interrupted")], {}, {"incomplete": "seed 3: interrupted"}),
        ([runs[0].model_copy(update={"git": Git(commit="feed", dirty=True), "started": "2026-01-09"})], {},
         {"uncommitted": "seed 1: trained from uncommitted"}),
        ([fake_record("relative", seed=4, sweeps=["mine"])], {}, {"more seeds": "seed 4: not among the seeds of the"}),
        (chips, {}, {"other chip": f"seed 1, 2: on {runs[0].device}, absolute (sinusoidal) on A"}),
    ):  # fmt: skip
        note = row(grids([*runs, *others], beside)["scores"], PAPERS).get("note", Cell(""))
        assert note.value == ", ".join(notes) and len(note.remarks) == len(notes)
        assert all(remark.startswith(why) for remark, why in zip(note.remarks, notes.values(), strict=True))


def test_changes_of_several_widths_stand_side_by_side():
    """Of one corpus, whatever their steps: the ladder."""
    sizes = [{"model.d_model": width, "optim.max_steps": 10 * width} for width in (128, 64)]
    table = grids([run for settings in sizes for run in runs(settings=settings)])["sizes"]
    cells = row(table, "none")
    assert [cells[f"verdict_{width}"].value for width in (64, 128)] == ["worse", "worse"]
    assert value(cells["change_64"]) == pytest.approx(-13.0, abs=0.1)
    assert "sizes" not in grids(runs())


def test_findings_are_counts_of_one_baseline_and_say_where_k_matters():
    counts, of_k, _ = findings(group_of(runs()))
    assert counts == "Against absolute (sinusoidal) on test: 4 better, 4 worse, 1 open."
    assert of_k == "Against k = 16: k = 0, 1 are worse; k = 2, 32 are open."
    zero = group_of(fake_record(name, scores={"test": 0.0}) for name in ("absolute", "relative"))
    assert findings(zero)[0] == "No row is compared: absolute (sinusoidal) has not learned (BLEU below 1)."

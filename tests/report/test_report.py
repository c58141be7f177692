"""A whole report: equal bytes when made twice, every file there and well formed, everything escaped; the summary of at
most 40 lines of 100 columns.
"""

from __future__ import annotations

import csv
import json
import re
from xml.etree import ElementTree

import pytest

from rpr.commands import report as command
from rpr.compose.composition import compose
from rpr.config.commands import ReportConfig
from rpr.errors import RecordError
from rpr.records.record import find_records, write_record
from rpr.report.build import MOST_LINES, build_report
from rpr.validation import validate

EVIL = "<script>alert('$x$')</script>"


@pytest.fixture
def runs(tmp_path, make):
    """A small sweep on disk: three values of k over two seeds, a baseline, a failed run; curves and translations."""
    root = tmp_path / "runs"
    records = [
        make("relative", k, seed=seed, scores={"test": 10.0 + k + seed, "long": 5.0 + k})
        for k in (0, 2, 16)
        for seed in (1, 2)
    ]
    records += [make("absolute", scores={"test": 25.0, "long": 9.0}), make("none", status="failed")]
    for record in records:
        folder = root / record.name
        write_record(folder / "record.json", record)
        lines = [
            {"step": step, "train/loss": 9.0 - step / 100, "validation/loss": 8.0 - step / 100} for step in (100, 200)
        ]
        lines.append({"step": 200, "validation/bleu": 20.0})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for kind, text in (("sources", "a dog"), ("references", "ein Hund"), ("hypotheses", f"{record.name} {EVIL}")):
            (folder / f"test.{kind}.txt").write_text(f"{text}\n" * 7)
    return root


def report(runs, out, **options):
    found = find_records(runs)
    return build_report(found.records, out, f"A report {EVIL}", found.problems, **options)


def test_two_reports_are_equal_byte_for_byte(runs, tmp_path):
    first, second = report(runs, tmp_path / "1"), report(runs, tmp_path / "2")
    assert [path.name for path in first.files] == [path.name for path in second.files]
    for one, other in zip(first.files, second.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert first.everything == second.everything
    assert first.summary.split("\n")[:-1] == second.summary.split("\n")[:-1]  # the last names the folder


def test_all_files_are_there_and_well_formed(runs, tmp_path):
    built = report(runs, tmp_path / "out")
    names = ["report.md", "report.csv", "report.json", "report.tex", "index.html"]
    names += ["bleu_by_k.svg", "speed.svg", "learning_curves.svg"]
    assert {path.name for path in built.files} == set(names) == {path.name for path in (tmp_path / "out").iterdir()}
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == built.document
    assert len(list(csv.reader((tmp_path / "out" / "report.csv").open()))) > 5
    for path in (tmp_path / "out").glob("*.svg"):
        ElementTree.fromstring(path.read_text())


def test_sentences_titles_and_names_are_escaped(runs, tmp_path, make):
    built = report(runs, tmp_path / "out")
    for path in built.files:
        if path.suffix in (".html", ".md", ".svg"):
            assert "<script>" not in path.read_text(), path.name
    assert "&lt;script&gt;alert(&#39;$x$&#39;)&lt;/script&gt;" in (tmp_path / "out" / "index.html").read_text()
    evil = make(settings={"data.name": EVIL}, command=EVIL, device=EVIL)
    write_record(tmp_path / "evil" / "record.json", evil)
    for path in build_report([(tmp_path / "evil" / "record.json", evil)], tmp_path / "out2", "x", [EVIL]).files:
        if path.suffix in (".html", ".md", ".svg"):
            assert "<script>" not in path.read_text(), path.name


def test_the_summary_is_one_screen(runs, tmp_path):
    built = report(runs, tmp_path / "out")
    lines = built.summary.split("\n")
    assert len(lines) <= MOST_LINES and max(map(len, lines[:-1])) <= 100  # a path of the last line is not cut
    assert lines[0].endswith(": 7 of 8 runs finished")
    assert "Findings" in lines
    assert sum(line.startswith("- ") for line in lines) <= 5
    assert any(line.startswith("These runs differ from the paper's in data, model") for line in lines)
    assert "index.html" in lines[-1] and "verbose=true" in lines[-1]


@pytest.mark.parametrize("groups", [1, 2, 3, 12])
def test_the_summary_of_many_groups_and_variants_is_one_screen(tmp_path, make, groups):
    records = [
        (tmp_path / f"{steps}-{k}.json", make("relative", k, settings={"optim.max_steps": 1000 + steps}))
        for steps in range(groups)
        for k in range(40)
    ]
    lines = build_report(records, tmp_path / "out", "x", show_samples=False).summary.split("\n")
    assert len(lines) <= MOST_LINES and max(map(len, lines[:-1])) <= 100
    more = [line for line in lines if line.endswith("more variants, in the page") or "of runs, in the page" in line]
    assert more  # whatever is left out is counted


def test_everything_is_at_most_100_columns(runs, tmp_path):
    assert max(map(len, report(runs, tmp_path / "out").everything.split("\n"))) <= 100


def test_the_page_shows_findings_failures_commands_and_samples(runs, tmp_path):
    report(runs, tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "1 of 8 runs have no result: 1 failed." in text
    assert "seed 1 failed: RuntimeError: rank 1 died" in text
    assert "rpr-cli train position=relative position.clip_distance=16 seed=2" in text
    # Lines (2 i + 1) 7 // 6 + 1 for i = 0, 1, 2 of the 7 lines of test: 2, 4, 6.
    assert re.findall(r"test, line (\d+)", text) == ["2", "4", "6"]
    report(runs, tmp_path / "bare", show_samples=False)
    assert "test, line" not in (tmp_path / "bare" / "index.html").read_text()


def test_several_tables_have_their_own_plots(runs, tmp_path, make):
    for position in ("absolute", "relative"):
        write_record(runs / f"w{position}" / "record.json", make(position, settings={"data.name": "wmt14_en_de"}))
    built = report(runs, tmp_path / "out")
    names = {path.name for path in built.files}
    assert {"bleu_by_k-wmt14_en_de-small-1800-cpu.svg", "bleu_by_k-multi30k_en_de-small-1800-cpu.svg"} <= names
    assert len(names) == len(built.files)
    assert [table["name"] for table in built.document["tables"]].count("table1") == 2


def test_files_beside_a_record_in_a_flat_folder_carry_its_name(tmp_path, make):
    write_record(tmp_path / "table2" / "k16.json", make())
    (tmp_path / "table2" / "k16.metrics.jsonl").write_text('{"step": 1, "validation/loss": 3.0}\n')
    built = build_report(find_records(tmp_path / "table2").records, tmp_path / "out", "x")
    assert any(path.name == "learning_curves.svg" for path in built.files)


def test_damaged_metrics_are_a_problem_and_no_end(runs, tmp_path):
    path = next(runs.glob("*absolute*")) / "metrics.jsonl"
    path.write_text("{\n" + path.read_text())
    built = report(runs, tmp_path / "out")
    assert len(built.problems) == 1
    assert "metrics.jsonl:1: not JSON" in built.problems[0]
    assert "Not in this report: 1 file that cannot be read." in built.summary


def test_no_records_and_no_place_are_refused(runs, tmp_path):
    with pytest.raises(RecordError, match="no run record to report; run `rpr-cli sweep"):
        build_report([], tmp_path / "out", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file: cannot write the report .* choose another directory"):
        report(runs, tmp_path / "file")


def test_scores_by_length_have_tables_and_a_plot(tmp_path, make, by_length):
    records = [
        make("absolute", by_length=by_length(40, 30, 10, 2)),
        make("relative", by_length=by_length(41, 31, 25, 20)),
    ]
    for record in records:
        write_record(tmp_path / "runs" / record.name / "record.json", record)
    found = find_records(tmp_path / "runs")
    built = [build_report(found.records, tmp_path / out, "x") for out in ("1", "2")]
    names = {path.name for path in built[0].files}
    assert "bleu_by_length.svg" in names
    for one, other in zip(built[0].files, built[1].files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    page, text = (tmp_path / "1" / "index.html").read_text(), (tmp_path / "1" / "report.md").read_text()
    for heading in ("sacreBLEU by source length, test and long together", "chrF by source length"):
        assert heading in page and heading in text
    assert "lengths_chrf" in (tmp_path / "1" / "report.csv").read_text()


@pytest.mark.parametrize("sweeps, hint", [
    (("table2", "mine"), "; did you mean table2? (available: mine, table2)"),
    ((), "; none of its runs belongs to a sweep: omit sweep"),
])  # fmt: skip
def test_a_sweep_that_no_run_belongs_to(tmp_path, make, sweeps, hint):
    write_record(tmp_path / "runs" / "one" / "record.json", make(sweeps=list(sweeps)))
    config = validate(
        ReportConfig, compose("report", ["sweep=tabel2", f"runs_dir={tmp_path}/runs", f"output_dir={tmp_path}/reports"])
    )
    with pytest.raises(RecordError) as caught:
        command.run(config)
    assert str(caught.value) == f"sweep: no run below {tmp_path}/runs belongs to 'tabel2'{hint}"
    assert not (tmp_path / "reports").exists()

"""A whole report: its files, escaping, the summary that fits its window; the page of all results."""

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rpr.errors import RecordError
from rpr.paths import data_dir
from rpr.records.record import find_records, write_record
from rpr.report.page import Report, build_report, read_remarks
from tests.fake_records import fake_by_length, fake_record, write_run

EVIL = "<script>alert('$x$')</script>"


def report(runs: Path, out: Path, **changes: bool) -> Report:
    found = find_records(runs)
    return build_report(found.records, out, f"A report {EVIL}", found.problems, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small sweep with curves and translations: three values of k with two seeds, a baseline and a failed run full of
    markup.
    """
    root = tmp_path_factory.mktemp("runs")
    records = [
        fake_record("relative", k, seed=seed, scores={"test": 10.0 + k + seed, "long": 5.0 + k})
        for k in (0, 2, 16)
        for seed in (1, 2)
    ]
    records.append(fake_record("absolute", scores={"test": 25.0, "long": 9.0}, by_length=fake_by_length(40, 30, 10, 2)))
    records.append(fake_record("none", status="failed", command=EVIL, device=EVIL, error=f"rank 1 died {EVIL}"))
    for one in records:
        path = root / f"{one.name}-{one.seed}/record.json"
        write_run(path, one, "a dog", "ein Hund", f"{one.name} {EVIL}")
    return root


@pytest.fixture(scope="module")
def built(runs, tmp_path_factory):
    return report(runs, tmp_path_factory.mktemp("report"))


@pytest.mark.usefixtures("unrendered")
def test_remarks_beside_records_are_shown_wherever_the_report_is_read(runs, tmp_path):
    (tmp_path / "remarks.txt").write_text(f"scored before {EVIL}\n\nsecond\n")
    remarks, beside = [f"scored before {EVIL}", "second"], [(tmp_path / "record.json", fake_record())]
    assert read_remarks(tmp_path) == read_remarks(tmp_path, beside) == remarks
    assert read_remarks(tmp_path.parent, beside) == [f"{tmp_path.name}: {line}" for line in remarks]
    shown = report(runs, tmp_path / "out", remarks=remarks)
    page = (tmp_path / "out" / "index.html").read_text()
    assert html.escape(remarks[0], quote=False) in page.replace("&#39;", "'") and EVIL not in page
    assert shown.document["remarks"] == remarks and "second" in shown.markdown.partition("Remarks")[2]


@pytest.mark.slow
def test_report_is_reproducible(runs, built, tmp_path):
    again = report(runs, tmp_path)
    assert [path.name for path in again.files] == [path.name for path in built.files]
    for one, other in zip(again.files, built.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_all_files_exist_and_are_well_formed(built):
    folder = built.files[0].parent
    names = ["report.md", "report.json", "report.tex", "index.html"]
    names += ["scores_by_position.svg", "bleu_by_length.svg", "learning_curves.svg"]
    assert {path.name for path in built.files} == set(names) == {path.name for path in folder.iterdir()}
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(built.document))
    for path in folder.glob("*.svg"):
        ElementTree.fromstring(path.read_text())
    page, text = (folder / "index.html").read_text(), (folder / "report.md").read_text()
    assert re.findall(r"!\[.*\]\((.*)\)", text) == ["scores_by_position.svg", "bleu_by_length.svg"]
    # Findings, failures, commands, and lines (2 i + 1) 7 // 6 + 1 for i = 0, 1, 2 of the 7 lines of test.
    assert "none-k16-s1: failed: rank 1 died" in page and "to remove it: rpr-cli runs remove" in page
    assert "rpr-cli train position=relative position.clip_distance=16 seed=2" in page
    assert re.findall(r"test, line (\d+)", page) == ["2", "4", "6"]


def test_sentences_titles_and_names_are_escaped(built, tmp_path):
    evil = fake_record(settings={"data.name": EVIL}, command=EVIL, device=EVIL)
    write_record(tmp_path / "evil" / "record.json", evil)
    other = build_report([(tmp_path / "evil" / "record.json", evil)], tmp_path / "out2", "x", [EVIL])
    for path in (*built.files, *other.files):
        if path.suffix in (".html", ".md", ".svg"):
            assert path.read_text().count("<script>") == (path.suffix == ".html"), path.name  # that sorts tables
    page = next(path for path in built.files if path.name == "index.html").read_text()
    assert "&lt;script&gt;alert(&#39;$x$&#39;)&lt;/script&gt;" in page


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("width, height", [(80, 24), pytest.param(140, 50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder, pinned", [
    ("multi30k", ("absolute (sinusoidal)", "relative, k = 16", "RoPE", "T5", "Transformer-XL", "SHAPE")),
    ("length_generalisation", ("absolute (sinusoidal)", "relative, k = 16")),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (("lm_length", ("RoPE",)), ("fair", ()))),
])  # fmt: skip
def test_summary_of_committed_sweeps_fits_its_window(folder, pinned, width, height, tmp_path):
    """With the baseline, the paper's row, the best and the worst, and one baseline throughout."""
    found = find_records(data_dir("sweeps") / "results" / folder)
    lines = build_report(found.records, tmp_path, "x").summary(width, height).split("\n")
    assert len(lines) < height and max(map(len, lines[:-1])) <= width
    for label in pinned:
        assert any(re.match(rf"{re.escape(label)}  ", line) for line in lines), label
    if folder == "multi30k":
        [row] = [line for line in lines if line.startswith("relative, k = 16  ")]
        assert row.split()[4:] == ["5", "37.7", "+1.3", "(+0.7", "to", "+2.0)", "+0.3", "better"]
        assert "Against absolute (sinusoidal) on test: 9 better, 4 worse, 7 open." in lines
        assert "Against k = 16: k = 0, 1 are worse; k = 2, 4, 64, 256 are open." in lines


@pytest.mark.usefixtures("unrendered")
def test_plots_per_group_also_as_pdf_and_damaged_metrics_are_reported(tmp_path):
    for data in ("multi30k_en_de", "wmt14_en_de"):
        for position in ("absolute", "relative"):
            one = fake_record(position, settings={"data.name": data})
            write_record(tmp_path / "runs" / one.name / "record.json", one)
    (tmp_path / "runs" / one.name / "metrics.jsonl").write_text('{\n{"step": 1, "validation/loss": 3.0}\n')
    built = report(tmp_path / "runs", tmp_path / "out", pdf=True)
    pictures = {path.name: path.read_text() for path in built.files if path.suffix in (".svg", ".pdf")}
    names = {name[:-4] for name in pictures}
    assert pictures == {f"{name}.{kind}": f"<{kind}></{kind}>" for name in names for kind in ("svg", "pdf")} and names
    names = {path.name for path in built.files}
    assert len(names) == len(built.files) and "scores_by_position-wmt14_en_de-small-1800-cpu.svg" in names
    assert [table["name"] for table in built.document["tables"]] == ["scores", "scores", "table1"], "of WMT14"
    [problem] = built.problems
    assert "metrics.jsonl:1: not a line of metrics" in problem
    assert "Not in this report: 1 file(s) that cannot be read." in built.summary(80, 24)


@pytest.mark.usefixtures("unrendered")
def test_no_records_and_an_unwritable_directory_are_errors(runs, tmp_path):
    with pytest.raises(RecordError, match="no run record to report; run `rpr-cli sweep"):
        build_report([], tmp_path / "out", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file: cannot write the report .* choose another directory"):
        report(runs, tmp_path / "file")

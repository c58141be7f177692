"""Plots, page and report: byte-equal when made twice, everything escaped, complete, and no network."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rpr.command_config import ReportConfig
from rpr.commands import report as command
from rpr.composition import compose
from rpr.errors import RecordError
from rpr.records.record import find_records, write_record
from rpr.report import drawing, plots
from rpr.report.page import Chapter, Sample, html_page
from rpr.report.report import build_report
from rpr.report.tables import position_tables
from rpr.sections import validated

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
    assert first.text == second.text


def test_all_files_are_there_and_well_formed(runs, tmp_path):
    built = report(runs, tmp_path / "out")
    names = ["report.md", "report.csv", "report.json", "report.tex", "index.html"]
    names += ["paper.md", "paper.csv", "paper.tex"]
    names += [f"{plot}.{kind}" for plot in ("bleu_by_k", "speed", "learning_curves") for kind in ("svg", "png")]
    assert {path.name for path in built.files} == set(names) == {path.name for path in (tmp_path / "out").iterdir()}
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == built.document
    assert len(list(csv.reader((tmp_path / "out" / "report.csv").open()))) > 5
    assert (tmp_path / "out" / "speed.png").read_bytes().startswith(b"\x89PNG")
    for path in (tmp_path / "out").glob("*.svg"):
        ElementTree.fromstring(path.read_text())


class Tags(HTMLParser):
    """Collects tags and ids, and checks that tags close in the order in which they opened."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_self_contained_closed_and_without_script(runs, tmp_path):
    report(runs, tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "object"}
    assert all(link.startswith("#") for link in tags.links)
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
    assert len(tags.ids) == len(set(tags.ids))
    assert "url(http" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_sentences_titles_and_names_are_escaped(runs, tmp_path, make):
    built = report(runs, tmp_path / "out")
    for path in built.files:
        if path.suffix in (".html", ".md", ".svg"):
            assert "<script>" not in path.read_text(), path.name
    assert "&lt;script&gt;alert(&#x27;$x$&#x27;)&lt;/script&gt;" in (tmp_path / "out" / "index.html").read_text()
    evil = make(settings={"data.name": EVIL}, command=EVIL, device=EVIL)
    write_record(tmp_path / "evil" / "record.json", evil)
    for path in build_report([(tmp_path / "evil" / "record.json", evil)], tmp_path / "out2", "x", [EVIL]).files:
        if path.suffix in (".html", ".md", ".svg"):
            assert "<script>" not in path.read_text(), path.name


def test_the_page_shows_findings_failures_commands_and_samples(runs, tmp_path):
    report(runs, tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "1 of 8 runs has no result: 1 failed." in text
    assert "seed 1 failed: RuntimeError: rank 1 died" in text
    assert "rpr-cli train position=relative position.clip_distance=16 seed=2" in text
    # Lines (2 i + 1) 7 // 6 + 1 for i = 0, 1, 2 of the 7 lines of test: 2, 4, 6.
    assert re.findall(r"<dt>test, line (\d+)</dt>", text) == ["2", "4", "6"]
    assert "Sample translations" not in html_page(
        "x", [Chapter(position_tables(r for _, r in find_records(runs).records)[0])]
    )


def test_an_empty_hypothesis_is_shown_as_empty(make):
    sample = Sample("test", 1, "a", "b", (("none", ""),))
    text = html_page("x", [Chapter(position_tables([make()])[0], samples=(sample,))])
    assert "<dd><em>empty</em></dd>" in text


def test_several_tables_have_their_own_plots(runs, tmp_path, make):
    for position in ("absolute", "relative"):
        write_record(runs / f"w{position}" / "record.json", make(position, settings={"data.name": "wmt14_en_de"}))
    built = report(runs, tmp_path / "out")
    names = {path.name for path in built.files}
    assert {"bleu_by_k-wmt14_en_de-small-1800-cpu.svg", "bleu_by_k-multi30k_en_de-small-1800-cpu.svg"} <= names
    assert len(names) == len(built.files)
    assert len(built.document["tables"]) == 2


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
    assert "metrics.jsonl:1: not JSON" in built.text


def test_no_records_and_no_place_are_refused(runs, tmp_path):
    with pytest.raises(RecordError, match="no run record to report; run `rpr-cli sweep"):
        build_report([], tmp_path / "out", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file: the report cannot be written .* choose another folder"):
        report(runs, tmp_path / "file")


def test_plots_without_figures_are_none(make):
    [table] = position_tables([make("absolute"), make("relative", status="failed")])
    assert plots.bleu_by_k(table) is None
    assert plots.speed(table) is None
    assert plots.learning_curves(table, []) is None


def test_the_curve_holds_the_papers_figures_and_ours(make):
    ours = {0: 11.0, 2: 30.0, 8: 31.0}
    [table] = position_tables([make("relative", k, scores={"test": bleu}) for k, bleu in ours.items()])
    [axes] = plots.bleu_by_k(table).axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert list(ours.values()) in drawn
    assert [12.5, 25.5, 25.8, 25.9, 25.8, 25.9, 25.8] in drawn
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2", "4", "8", "16", "64", "256"]
    assert axes.get_ylim()[0] == 0


def test_learning_curves_are_means_over_the_steps_that_all_seeds_have(make):
    [table] = position_tables([make()])
    series = [((100, 10.0), (200, 20.0)), ((100, 12.0), (200, 24.0), (300, 30.0))]
    curves = [plots.Curve("relative, k = 16", "relative", 16, {"validation/bleu": points}) for points in series]
    [axes] = plots.learning_curves(table, curves).axes
    assert list(axes.lines[0].get_xdata()) == [100, 200]
    assert list(axes.lines[0].get_ydata()) == [11.0, 22.0]


def test_an_inline_svg_has_its_own_ids_and_follows_the_pages_colours(make):
    [table] = position_tables([make()])
    text = drawing.inlined(drawing.rendered(plots.bleu_by_k(table), "svg").decode(), "first", 'a "plot" <1>')
    ElementTree.fromstring(text)
    assert text.startswith('<svg role="img" aria-label="a &quot;plot&quot; &lt;1>"')
    assert set(re.findall(r'\bid="(\w+)-', text)) == {"first"}
    assert f"var({drawing.variable(drawing.INK)}, {drawing.INK})" in text
    assert "2018" not in re.sub(r"<path[^>]*>", "", text)
    assert not re.search(r'<svg\b[^>]* width="', text)


def test_scores_by_length_have_a_file_tables_and_a_plot(tmp_path, make, by_length):
    records = [
        make("absolute", by_length=by_length(40, 30, 10, 2)),
        make("relative", by_length=by_length(41, 31, 25, 20)),
    ]
    for record in records:
        write_record(tmp_path / "runs" / record.name / "record.json", record)
    found = find_records(tmp_path / "runs")
    built = [build_report(found.records, tmp_path / out, "x") for out in ("1", "2")]
    names = {path.name for path in built[0].files}
    assert {"by_length.csv", "bleu_by_length.svg", "bleu_by_length.png"} <= names
    for one, other in zip(built[0].files, built[1].files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    page, text = (tmp_path / "1" / "index.html").read_text(), (tmp_path / "1" / "report.md").read_text()
    for heading in ("sacreBLEU by source length, test and long together", "chrF by source length"):
        assert heading in page and heading in text
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and len(tags.ids) == len(set(tags.ids))
    assert "longer than any training source (22 pieces)" in (tmp_path / "1" / "bleu_by_length.svg").read_text()
    assert "chrF by length, intervals and deviations are in report.md" in built[0].text
    assert max(map(len, built[0].text.splitlines())) <= 100


@pytest.mark.parametrize("sweeps, hint", [
    (("table2", "mine"), "; did you mean table2? (available: mine, table2)"),
    ((), "; none of its runs is of a sweep: leave sweep out"),
])  # fmt: skip
def test_a_sweep_that_no_run_belongs_to(tmp_path, make, sweeps, hint):
    write_record(tmp_path / "runs" / "one" / "record.json", make(sweeps=list(sweeps)))
    config = validated(
        ReportConfig, compose("report", ["sweep=tabel2", f"runs_dir={tmp_path}/runs", f"out_dir={tmp_path}/reports"])
    )
    with pytest.raises(RecordError) as caught:
        command.run(config)
    assert str(caught.value) == f"sweep: no run below {tmp_path}/runs belongs to 'tabel2'{hint}"
    assert not (tmp_path / "reports").exists()

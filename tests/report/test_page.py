"""The parts of the HTML page, without a browser: findings and contents of several tables, the paper's tables, what is
folded and what must not, settings said once, and pictures of what positions learned, also when they are not to be had.
"""

from __future__ import annotations

import re

import pytest

from rpr.records.record import find_records, write_record
from rpr.report import drawing
from rpr.report.findings import findings
from rpr.report.page import MOST_PAPER_TABLES, Chapter, html_page
from rpr.report.page_runs import MOST_IN_ONE_LIST, runs_part
from rpr.report.page_tables import items, main_table, paper_part
from rpr.report.paper_tables import paper_tables
from rpr.report.position_page import position_page
from rpr.report.report import build_report
from rpr.report.tables import position_tables
from tests.report.test_position_page import made_up


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_findings_of_one_table_stand_at_the_top_and_once(make):
    [table] = position_tables([make("relative", scores={"test": 30.0}), make("absolute", scores={"test": 20.0})])
    html = html_page("x", [Chapter(table)])
    [finding] = [line for line in findings(table) if "above absolute" in line]
    assert html.count(finding) == 1 and html.index(finding) < html.index("<h2>")
    assert "<nav" not in html, "one table needs no contents"


def test_findings_of_several_tables_lead_to_their_chapters(make):
    runs = [
        make(position, scores={"test": score}, settings={"data.name": data})
        for data in ("multi30k_en_de", "wmt14_en_de")
        for position, score in (("relative", 30.0), ("absolute", 20.0))
    ]
    tables = position_tables(runs)
    html = html_page("x", [Chapter(table) for table in tables])
    top, first, second = re.split(r'<section id="t\d"', html)
    assert text_of(top).count("10.0 above absolute") == 2
    assert text_of(first).count("10.0 above absolute") == text_of(second).count("10.0 above absolute") == 1
    assert re.findall(r'<a href="#(t\d)">', top) == ["t1", "t2", "t1", "t2"], "findings, then contents"
    assert re.findall(r'<a href="#(t\d-runs)">([^<]*)<', top) == [("t1-runs", "2 runs"), ("t2-runs", "2 runs")]
    assert 'id="t1-runs"' in first and 'id="t2-runs"' in second


def test_a_long_list_says_how_many_are_left_out():
    assert items(["a", "<b>"]) == "<li>a</li><li>&lt;b&gt;</li>"
    assert items([str(n) for n in range(1300)], most=2) == "<li>0</li><li>1</li><li>and 1,298 more, in report.json</li>"


def test_what_forbids_comparing_is_never_folded(make, score):
    runs = [
        make("relative", scores=[score("test", 30.0)]),
        make("absolute", scores=[score("test", 20.0, num_sentences=7)]),
    ]
    [table] = position_tables(runs)
    html = main_table(table, "t1")
    assert "NOT COMPARABLE" in text_of(html)
    assert "NOT COMPARABLE" not in text_of("".join(re.findall(r"<details.*?</details>", html, re.DOTALL)))
    assert "sacreBLEU on test" in text_of("".join(re.findall(r"<details.*?</details>", html, re.DOTALL)))


def test_marks_lead_to_footnotes_and_other_brackets_stay(make, interval, score):
    runs = [
        make("relative", scores=[score("test", 30.0, interval=interval(29.0, 31.0))]),
        make("absolute", status="failed", error="a list [7] of things"),
    ]
    [table] = position_tables(runs)
    html = main_table(table, "t1")
    assert 'href="#t1-note-1"' in html and 'id="t1-note-1"' in html
    assert "<td>30.0<small> [29.0, 31.0]</small></td>" in html
    assert "a list [7] of things" in html
    [table] = position_tables([make("relative", settings={"position.shape": [7]}, status="failed")])
    assert "shape\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}[7]" in main_table(table, "t1")
    assert "[a, b]: 95% interval of one run over the test sentences" in html


def test_other_metrics_are_folded_and_none_is_lost(make, score):
    scores = [score("test", 30.0), score("test", 51.5, "chrf"), score("test", 28.5, "bleu_tok")]
    [table] = position_tables([make("relative", scores=scores)])
    html = main_table(table, "t1")
    first, _, rest = html.partition("<details")
    assert "30.0" in first and "51.5" not in first and "28.5" not in first
    assert "51.5" in rest and "28.5" in rest and "Other metrics: chrf; bleu_tok" in rest


def test_settings_that_all_runs_share_stand_once(make):
    runs = [make("relative", k, seed=seed) for k in (2, 4) for seed in (1, 2)]
    [table] = position_tables(runs)
    html = runs_part(table)
    assert html.count("model.d_ff=512") == 1 and "The same for all 4 runs" in html
    for run in runs:
        assert html.count(run.command) == 1
    assert html.count("settings: position.clip_distance=2 seed=1") == 1
    assert html.count("position.name=") == 1, "shared, so not said again"
    # All of a run's configuration can be had from the page: what is shared and what is its own.
    shared = re.search(r'<pre class="settings">(.*?)</pre>', html, re.DOTALL)[1]
    keys = {line.partition("=")[0] for line in shared.splitlines()} | {"position.clip_distance", "seed"}
    assert {f"{section}.{name}" for section in ("model", "data", "optim") for name in runs[0].config[section]} <= keys


def test_a_setting_that_some_run_lacks_or_has_of_another_type_is_not_shared(make):
    runs = [make("relative", 2, settings={"hardware.x": 1}), make("relative", 4, settings={"hardware.x": 1.0})]
    html = runs_part(position_tables(runs)[0])
    assert "settings: hardware.x=1 position" in html and "settings: hardware.x=1.0 position" in html
    [table] = position_tables([make("relative", 2), make("relative", 4, settings={"hardware.x": "y"})])
    assert "settings: hardware.x=&quot;y&quot; position.clip_distance=4" in runs_part(table)


def test_many_runs_are_folded_by_variant(make):
    runs = [make("relative", 2, seed=seed) for seed in range(MOST_IN_ONE_LIST)]
    runs += [make("none", seed=1), make("none", seed=2, status="failed")]
    html = runs_part(position_tables(runs)[0])
    assert "<summary>none: 2 runs, <span" in html and "1 without a result" in html
    assert f"<summary>relative, k = 2: {MOST_IN_ONE_LIST} runs</summary>" in html
    assert "<summary>relative, k = 2" not in runs_part(position_tables(runs[:MOST_IN_ONE_LIST])[0])


def test_the_papers_tables_stand_after_the_findings_and_many_are_folded(make):
    tables = position_tables([make("relative", scores={"test": 30.0}), make("absolute", scores={"test": 20.0})])
    paper = [table for table in paper_tables(tables) if table.measured]
    assert paper
    html = html_page("x", [Chapter(tables[0])], paper=paper)
    assert html.index('id="findings"') < html.index('id="paper"') < html.index('id="t1"')
    for table in paper:
        assert table.title in html
    many = html_page("x", [Chapter(tables[0])], paper=[paper[0]] * (MOST_PAPER_TABLES + 2))
    sections = many[many.index('id="paper"') : many.index('id="t1"')]
    assert sections.count("<h3>") == MOST_PAPER_TABLES and sections.count(f"<summary>{paper[0].title}") == 2
    part = text_of(paper_part(paper[0], "p", folded=False))
    assert "26.8" in part and "30.0" in part, "the paper's base model and ours"


def test_the_papers_tables_say_what_their_brackets_are(make, interval, score):
    one = [make(kind, scores=[score("test", 30.0, interval=interval(29.0, 31.0))]) for kind in ("relative", "absolute")]
    several = [make("relative", seed=seed, scores={"test": 30.0 + seed}) for seed in (1, 2, 3)]
    for runs, mark, words in (
        (one, "[29.0, 31.0]", "[a, b]: bootstrap over"),
        (several, " to ", "(a to b): t interval"),
    ):
        table = next(table for table in paper_tables(position_tables(runs)) if table.measured)
        part = paper_part(table, "p", folded=False)
        assert mark in "".join(re.findall(r"<small>(.*?)</small>", part)) and words in part


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.svg"
    drawing.save(position_page(made_up(), "Norms of a run", "k = 3"), path)
    return path.read_text()


def page_of(folder, out):
    built = build_report(find_records(folder).records, out, "x")
    return built, (out / "index.html").read_text()


def test_the_picture_of_a_runs_folder_is_in_the_page(tmp_path, make, picture):
    write_record(tmp_path / "runs" / "a" / "record.json", make())
    built, html = page_of(tmp_path / "runs", tmp_path / "0")
    assert "What positions learned" not in html
    (tmp_path / "runs" / "a" / "positions.svg").write_text(picture)
    built, html = page_of(tmp_path / "runs", tmp_path / "1")
    assert built.problems == ()
    assert "<summary>relative, k = 16: multi30k_en_de-small-relative-k16-s1</summary>" in html
    assert "Norms of a run" in html and f"var({drawing.variable(drawing.INK)}" in html
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) and any(name.startswith("learned-1-") for name in ids)


def test_in_a_flat_folder_the_picture_carries_the_records_name(tmp_path, make, picture):
    write_record(tmp_path / "table2" / "k16.json", make())
    (tmp_path / "table2" / "k16.positions.svg").write_text(picture)
    assert "Norms of a run" in page_of(tmp_path / "table2", tmp_path / "out")[1]


def test_a_picture_that_could_run_something_is_a_problem_and_not_shown(tmp_path, make, picture):
    write_record(tmp_path / "runs" / "a" / "record.json", make())
    bad = tmp_path / "runs" / "a" / "positions.svg"
    bad.write_text(picture.replace("</svg>", "<script>alert(1)</script></svg>"))
    built, html = page_of(tmp_path / "runs", tmp_path / "out")
    assert built.problems == (
        f"{bad}: an element <script>, which no plot has; write it again with `rpr-cli report run=...`",
    )
    assert "What positions learned" not in html and "<script" not in html
    assert "an element &lt;script&gt;, which no plot has" in html[html.index("Not in this report") :]


def test_one_picture_a_variant_and_not_too_many(tmp_path, make, picture):
    runs = [make("relative", k, seed=seed) for k in range(8) for seed in (1, 2)]
    for run in runs:
        write_record(tmp_path / "runs" / run.name / "record.json", run)
        (tmp_path / "runs" / run.name / "positions.svg").write_text(picture)
    html = page_of(tmp_path / "runs", tmp_path / "out")[1]
    shown = re.findall(r"<summary>relative, k = (\d): [^<]*-s(\d)</summary>", html)
    assert len(shown) == 6 and {seed for _, seed in shown} == {"1"}
    assert (shown[0][0], shown[-1][0]) == ("0", "7")
    assert "6 of 8 variants with a picture are shown" in html


def test_the_page_forbids_scripts_and_fetching_by_its_own_policy(make):
    html = html_page("x", [Chapter(position_tables([make()])[0])])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None and policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_the_same_input_gives_the_same_bytes(make):
    tables = position_tables([make("relative", k, by_length=None) for k in (0, 2)])
    assert html_page("x", [Chapter(t) for t in tables]) == html_page("x", [Chapter(t) for t in tables])

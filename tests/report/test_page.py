"""The parts of the HTML page, without a browser: findings, tables, folding, settings, pictures of learned positions."""

import base64
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rpr.records.record import find_records, write_record
from rpr.report import html as pages
from rpr.report.build import build_report
from rpr.report.contents import Chapter, Report
from rpr.report.groups import run_groups
from rpr.report.html import html_page
from rpr.report.score_table import Tables, build_tables
from tests.fake_records import fake_record, fake_score
from tests.report.helpers import group_of


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def folded(html: str) -> str:
    return text_of("".join(re.findall(r"<details.*?</details>", html, re.DOTALL)))


def page(runs, **changes) -> str:
    groups = run_groups(runs)
    chapters = tuple(map(Chapter, groups))
    report = Report("x", Path(), chapters, build_tables(groups), (), [])
    return html_page(replace(report, **changes))


def runs_of(html: str) -> str:
    return html[html.index('id="t1-runs"') :]


def test_findings_come_first_then_the_scores():
    runs = [fake_record("relative", scores={"test": 30.0}), fake_record("absolute", scores={"test": 20.0})]
    html = page(runs)
    places = [html.index(f'id="{name}"') for name in ("findings", "contents", "scores", "t1")]
    assert places == sorted(places)
    assert "Against absolute (sinusoidal) on test, of 1 row: 1 open." in text_of(html[places[0] : places[1]])
    [table] = build_tables(run_groups(runs)).sections["scores"]
    many = page(runs, tables=Tables({"scores": (table,) * (pages.MOST_TABLES + 2)}))
    sections = many[many.index('<section id="scores"') : many.index('<section id="t1"')]
    assert sections.count("<h3 ") == pages.MOST_TABLES and sections.count(f"<summary>{table.title}") == 2


def test_first_plot_is_of_the_largest_group():
    groups = run_groups(
        [*(fake_record(one, settings={"data.name": "wmt14_en_de"}) for one in ("rope", "t5")), fake_record("absolute")]
    )
    look = {"caption": "", "svg": b"<svg/>"}
    speed = SimpleNamespace(name="scores_by_position", description="speed", **look)
    curve = SimpleNamespace(name="bleu_by_k", description="curve", **look)
    chapters = (Chapter(groups[0], plots=(speed,)), Chapter(groups[1], plots=(curve,)))
    html = html_page(Report("x", Path(), chapters, Tables({}), (), []))
    assert re.findall(r'<img [^>]*alt="([^"]*)"', html) == ["curve", "speed"]
    assert 'href="#first">curve</a>' in html


def test_long_list_of_problems_is_cut_and_counted():
    problems = [f"<{number}>" for number in range(pages.MOST_ITEMS + 1298)]
    html = page([fake_record()], problems=problems)
    listed = html[html.index('<ul class="problems">') :]
    assert listed.count("<li>") == pages.MOST_ITEMS + 1
    assert "<li>&lt;0&gt;</li>" in listed and "<li>and 1,298 more, in report.json</li>" in listed
    assert '<a href="#problems">1,358 problems: not everything is in this report</a>' in html
    assert "#problems" not in page([fake_record()])


def test_translations_that_are_no_whole_ones_are_said():
    runs = [
        fake_record(kind, scores=[fake_score("test", 30.0, empty_hypotheses=1, unfinished_hypotheses=cut)])
        for kind, cut in (("relative", 0), ("absolute", 120))
    ]
    shown = text_of(page(runs))
    assert "test: empty translations, scored as they are: up to 1 in a run" in shown
    assert "test: translations without an end within the length limit, scored as they are: up to 120 in a run" in shown


def test_warnings_are_never_folded_and_other_metrics_are_in_json_alone():
    scores = [fake_score("test", 30.0), fake_score("test", 51.5, "chrf")]
    words = "not comparable: the rows of test were scored in different ways"
    for changed in ({"num_sentences": 7}, {"beam_size": 1}, {"length_penalty": 1.0}, {"precision": "bf16"}):
        other = fake_record("absolute", scores=[fake_score("test", 20.0, **changed)])
        html = page([fake_record("relative", scores=scores), other])
        assert words in text_of(html) and "not comparable" not in folded(html) and "nrefs:1" in folded(html)
    assert "30.0" in html and "51.5" not in html
    alike = [fake_record(kind, scores=scores) for kind in ("relative", "absolute")]
    assert "not comparable" not in page(alike)


def test_record_of_one_run_is_shown_and_how_others_differ():
    runs = [fake_record("relative", k, seed=seed) for k in (2, 4) for seed in (1, 2)]
    html = runs_of(page(runs))
    assert html.count("model.d_ff=512") == html.count("position.name=") == html.count("git.commit=") == 1
    for run in runs:
        assert html.count(run.command) == 1
    differences = re.findall(r"\nposition.clip_distance=4\nrun_id=.*\nseed=2</pre>", html)
    assert len(differences) == 1
    first = re.search(r'<pre class="settings">(.*?)</pre>', html, re.DOTALL)[1]
    keys = {line.partition("=")[0] for line in first.splitlines()}
    assert {f"{section}.{name}" for section in ("model", "data", "optim") for name in runs[0].config[section]} <= keys
    assert {"device", "versions.torch", "data.key", "started"} <= keys
    html = runs_of(page([fake_record("relative", k, settings={"hardware.x": x}) for k, x in ((2, 1), (4, 1.0))]))
    assert "\nhardware.x=1.0\n" in html, "1 and 1.0 are different values"
    failed = fake_record("relative", 4, settings={"hardware.x": "y"}, status="failed")
    html = runs_of(page([fake_record("relative", 2), failed]))
    assert '\nhardware.x="y"\n' in html and '\nerror="RuntimeError: rank 1 died"\n' in html


def test_runs_are_folded_by_variant():
    runs = [fake_record("relative", 2, seed=seed) for seed in range(3)]
    html = runs_of(page([*runs, fake_record("none", seed=1), fake_record("none", seed=2, status="failed")]))
    assert "<summary>none: 2 runs, <span" in html and "1 without a result" in html
    assert "<summary>relative, k = 2: 3 runs</summary>" in html


def page_of(folder, out):
    built = build_report(find_records(folder).records, out, "x")
    return built, (out / "index.html").read_text()


@pytest.mark.usefixtures("unrendered")
def test_pictures_of_learned_positions(tmp_path):
    """They are read from a run's folder, unless they are links."""
    run, other = tmp_path / "runs" / "a", tmp_path / "other" / "b"
    write_record(run / "record.json", fake_record())
    write_record(other / "record.json", fake_record())
    for path in (run / "positions.svg", other / "positions.svg"):
        assert "What positions learned" not in page_of(path.parent, tmp_path / "out")[1]
        path.write_text("<svg/>")
        built, html = page_of(path.parent, tmp_path / "out")
        assert built.problems == ()
        assert "<summary>relative, k = 16: multi30k_en_de-small-relative-k16-s1</summary>" in html
        assert f'<img src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}"' in html
    path = run / "positions.svg"
    path.unlink()
    path.symlink_to(other / "positions.svg")
    assert "What positions learned" not in page_of(run, tmp_path / "out")[1]


def test_one_picture_per_variant_up_to_a_limit(tmp_path):
    runs = [fake_record("relative", k, seed=seed) for k in range(8) for seed in (1, 2)]
    for run in runs:
        (tmp_path / f"{run.name}.svg").write_text("<svg/>")
    pictures, remark = pages.learned_pictures(group_of(runs), lambda run, name: tmp_path / f"{run.name}.svg")
    shown = [re.fullmatch(r"relative, k = (\d): .*-s(\d)", caption).groups() for caption, _ in pictures]
    assert len(shown) == 6 and {seed for _, seed in shown} == {"1"}
    assert (shown[0][0], shown[-1][0]) == ("0", "7")
    assert remark.startswith("6 of 8 rows with a picture are shown")


def test_content_security_policy_forbids_scripts_and_requests():
    html = page([fake_record()])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy[1].replace("&#39;", "'").startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert html.index("Content-Security-Policy") < html.index("<style>")

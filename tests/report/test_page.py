"""The HTML page, without a browser: what comes first, what is folded, what a record shows, and its one script."""

import base64
import hashlib
import html
import re
from pathlib import Path

import pytest

from rpr.records.record import find_records, write_record
from rpr.report import page as pages
from rpr.report.groups import run_groups
from rpr.report.page import Chapter, Report, build_report
from rpr.report.tables import Tables
from tests.fake_records import fake_record, fake_score


def page(runs) -> str:
    groups = run_groups(runs)
    return pages.html_page(Report("x", Path(), [*map(Chapter, groups)], Tables(groups)))


def unfolded(text: str) -> str:
    inner = re.compile(r"<details(?:(?!<details|</details>).)*</details>", re.DOTALL)
    while inner.search(text):
        text = inner.sub("", text)
    return text


def runs_of(runs) -> str:
    return html.unescape(page(runs).partition('id="s1-1-runs"')[2])


def test_findings_and_the_ranked_table_come_first_and_details_are_folded():
    scores = [fake_score("test", 30.0), fake_score("test", 51.5, "chrf"), fake_score("validation", 29.25)]
    text = page([fake_record("relative", scores=scores), fake_record("absolute", scores={"test": 20.0})])
    places = [text.index(words) for words in ('<ul class="findings">', "<table>", "<details")]
    assert places == sorted(places)
    first = text[places[1] : places[2]]
    assert first.index("relative, k\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}16") < first.index("absolute (sinusoidal)")
    assert "30.0" in first and "+10.0" in first and "29.2" not in first and "29.2" in text[places[2] :]
    assert "51.5" not in text
    assert "nrefs:1" not in unfolded(text) and "nrefs:1" in text


def test_only_the_script_of_the_policys_hash_runs():
    text = page([fake_record()])
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_warnings_are_never_folded():
    other = fake_record("absolute", scores=[fake_score("test", 20.0, beam_size=1)])
    text = page([fake_record("relative", scores=[fake_score("test", 30.0)]), other])
    assert "not comparable: the rows of test were scored in different ways" in unfolded(text)
    assert "not comparable" not in page([fake_record("relative"), fake_record("absolute")])


def test_record_of_one_run_is_shown_and_how_others_differ():
    runs = [fake_record("relative", k, seed=seed) for k in (2, 4) for seed in (1, 2)]
    text = runs_of(runs)
    assert text.count("model.d_ff=512") == text.count("position.name=") == text.count("git.commit=") == 1
    assert all(text.count(run.command) == 1 for run in runs)
    assert len(re.findall(r"\nposition.clip_distance=4\nrun_id=.*\nseed=2</pre>", text)) == 1
    for key in ("optim.max_steps", "data.name", "device", "versions.torch", "data.key", "started"):
        assert text.count(f"\n{key}=") == 1
    failed = fake_record("relative", 4, settings={"hardware.x": "y"}, status="failed")
    text = runs_of([fake_record("relative", 2), failed])
    assert '<span class="status failed">' in text
    assert '\nhardware.x="y"\n' in text and '\nerror="RuntimeError: rank 1 died"\n' in text


@pytest.mark.usefixtures("unrendered")
def test_pictures_of_learned_positions_are_read_unless_they_are_links(tmp_path):
    def built():
        build_report(find_records(tmp_path / "runs").records, tmp_path / "out", "x")
        return (tmp_path / "out" / "index.html").read_text()

    run, picture = tmp_path / "runs" / "a", tmp_path / "picture.svg"
    write_record(run / "record.json", fake_record())
    picture.write_text("<svg/>")
    (run / "positions.svg").symlink_to(picture)
    assert "What positions learned" not in built()
    (run / "positions.svg").unlink()
    picture.rename(run / "positions.svg")
    assert f'<img src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}"' in built()

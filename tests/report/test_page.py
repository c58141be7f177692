"""The HTML page, without a browser: what is never folded, what a record shows, its one script, its translations."""

import base64
import hashlib
import html
import re
from pathlib import Path

import pytest

from rpr.records.record import find_records, write_record
from rpr.report import page as pages
from rpr.report.groups import Beside, run_groups, run_key
from rpr.report.page import Chapter, Report, build_report
from rpr.report.tables import Tables
from tests.fake_records import fake_record, fake_score
from tests.report.helpers import group_of


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
    text = runs_of([runs[0], fake_record("relative", 4, settings={"hardware.x": "y"}, status="failed")])
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


# Sample translations


@pytest.fixture
def beside(tmp_path):
    """What is beside a run, and a function that writes its translations."""

    def of(run):
        return Beside(tmp_path / run.run_id / "record.json")

    def write(run, split="test", lines=6, source="source", hypothesis="hypothesis"):
        for kind, text in (("sources", source), ("references", "reference"), ("hypotheses", hypothesis)):
            file = of(run).path.with_name(f"{split}.{kind}.txt")
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{text} {n}\n" for n in range(1, lines + 1)))

    return of, write


def samples_of(runs, beside):
    return pages.samples(group_of(runs, {run_key(run): beside(run) for run in runs}))


def test_lines_are_evenly_spaced_from_the_first_finished_run(beside):
    of, write = beside
    failed, first, second = fake_record(seed=1, status="failed"), fake_record(seed=2), fake_record(seed=3)
    odd = "first\u2028and\x0bsame"  # separators that do not end a line
    for run, text in ((failed, "failed"), (first, odd), (second, "second")):
        write(run, hypothesis=text)
    write(first, split="long", lines=2, hypothesis="long")
    found = samples_of([failed, first, second], of)
    # Of 6 lines one from the middle of each third, of 2 lines both.
    assert [one[:2] for one in found] == [("test", 2), ("test", 4), ("test", 6), ("long", 1), ("long", 2)]
    assert found[0][2:] == ("source 2", "reference 2", [("relative, k = 16", f"{odd} 2")])


def test_translations_of_other_sources_or_of_other_lengths_are_not_shown(beside):
    of, write = beside
    runs = [fake_record("absolute"), fake_record("none"), fake_record("relative", 2), fake_record("relative", 4)]
    write(runs[0])
    write(runs[1], source="another source")
    write(runs[2])
    of(runs[2]).path.with_name("test.hypotheses.txt").write_text("one line\n")
    found = samples_of(runs, of)
    assert [label for label, _ in found[0][-1]] == ["absolute (sinusoidal)"]
    assert samples_of([fake_record()], of) == []

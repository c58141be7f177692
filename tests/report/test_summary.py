"""The page of all records: every group of runs, the paper's tables, verdicts and limits from the records alone, links
that lead somewhere, and the setting of `rpr-cli report` that writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rpr import app
from rpr.errors import RecordError
from rpr.records.record import write_record
from rpr.report.summary import results_markdown


def both(validation, test):
    return {"validation": validation, "test": test}


@pytest.fixture
def root(tmp_path, make):
    """Two folders: a sweep with its page and a picture, and measurements with a page alone; one damaged record."""
    root = tmp_path / "results"
    runs = [
        make("relative", k, seed=seed, scores=both(20.0 + k / 2 + seed, 21.0)) for k in (0, 16) for seed in (1, 2, 3)
    ]
    runs += [make("absolute", seed=1, scores={"test": 20.0}), make("none", status="failed")]
    for run in runs:
        write_record(root / "captions" / f"{run.name}.json", run)
    (root / "captions" / "report.md").write_text("# Captions | and more\n\ntext\n")
    (root / "captions" / "bleu_by_k.png").write_bytes(b"")
    (root / "memory").mkdir()
    (root / "memory" / "memory.md").write_text("no heading\n")
    (root / "torn").mkdir()
    (root / "torn" / "one.json").write_text('{"schema": 1, "name": "x"')
    return root


def test_the_page_holds_what_was_run_and_the_papers_tables(root):
    page = results_markdown(root)
    assert page == results_markdown(root) and page.endswith("\n") and "\n\n\n" not in page
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings[0] == "# Results"
    assert [line for line in headings if line.startswith("## ")] == [
        "## What was run",
        "## What agrees with the paper, and what does not",
        "## What this scale cannot tell",
        "## The paper's tables",
        "## Findings, group by group",
        "## The folders",
        "## Not on this page",
    ]
    [line] = [line for line in page.splitlines() if line.startswith("| multi30k_en_de")]
    assert "| 29,000 | small | 1,800 | cpu |" in line and "| 1, 2, 3 | 7 of 8 | 0123abc |" in line
    assert line.endswith("| [captions](results/captions) |")
    for number in (1, 2, 3):
        assert f"### Table {number}: " in page
    assert page.count("Self-Attention with Relative Position Representations") == 2  # of the scores, of the speeds
    assert "torn/one.json: truncated or not JSON" in page


def test_every_link_leads_somewhere(root):
    links = re.findall(r"\]\(([^)]+)\)", results_markdown(root))
    assert len(links) == 4 and all((root.parent / link).exists() for link in links)
    elsewhere = root.parent / "docs" / "deep"
    elsewhere.mkdir(parents=True)
    moved = re.findall(r"\]\(([^)]+)\)", results_markdown(root, elsewhere))
    assert moved == [f"../../{link}" for link in links] and all((elsewhere / link).exists() for link in moved)
    page = results_markdown(root)
    assert r"- captions: [Captions \| and more](results/captions/report.md), [bleu_by_k](results/" in page
    assert "- memory: [memory.md](results/memory/memory.md)" in page


def part(page, heading):
    return page.split(f"# {heading}\n")[1].split("\n#")[0]


def test_verdicts_stand_under_their_headings(root, make):
    page = results_markdown(root)
    # k = 0 is 8 below k = 16 for every seed, which the paper has as 13.3 below.
    agrees = part(page, "Agrees with the paper")
    assert "k = 0 on validation: -8.0 BLEU from k = 16 (3 seeds, 95% interval -8.0 to -8.0); the paper: -13.3" in agrees
    assert part(page, "Does not agree with the paper").strip() == "Nothing."
    assert "small, 1,800 steps, EN-DE: relative: +1.0 BLEU from absolute (no interval: one seed, or" in part(
        page, "Cannot be told from these runs"
    )
    for seed in (1, 2, 3):
        run = make("relative", 0, seed=seed, scores=both(40.0 + seed, 21.0), started="2027-01-01T00:00:00Z")
        write_record(root / "captions" / f"{run.name}.json", run)
    assert "k = 0 on validation: +12.0 BLEU" in part(results_markdown(root), "Does not agree with the paper")


def test_what_the_scale_cannot_tell_comes_from_the_records(root, make, by_length):
    limits = part(results_markdown(root), "What this scale cannot tell")
    for sentence in (
        "The longest training has 1,800 steps, 1.8% of the base model's 100,000",
        "of the corpora here the largest has 29,000 pairs",
        "1 of 3 measured rows have one seed",
        "No run was scored on newstest2014 or newstest2013.",
        "No finished run has the paper's model base or big.",
        "No run translates to French",
        "Every run was on a CPU (2 threads of a CPU)",
    ):
        assert sentence in limits
    french = {"data.target_language": "fr", "data.name": "multi30k_en_fr", "model.name": "base"}
    for k in (20, 21, 64):
        more = make("relative", k, settings=french, device="1 x NVIDIA H100", by_length=by_length(1, 2, 3, 4))
        write_record(root / "captions" / f"more-{k}.json", more)
    limits = part(results_markdown(root), "What this scale cannot tell")
    assert "French" not in limits and "on a CPU" not in limits and "model big." in limits
    assert (
        "no training source has more than 22 pieces, so nothing is clipped in the encoder at k = 21, 64, and" in limits
    )


def test_no_record_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no run record to report"):
        results_markdown(tmp_path)


def report(root: Path, *overrides: str) -> int:
    return app.main(["report", f"runs_dir={root}", f"out_dir={root.parent / 'out'}", *overrides])


def test_the_command_writes_the_page_and_the_papers_tables(root, capsys):
    page = root.parent / "RESULTS.md"
    assert report(root, f"results={page}") == 0
    assert page.read_text() == results_markdown(root)
    told = capsys.readouterr()
    assert f"written: {page}" in told.err
    assert told.out.startswith("Table 1: BLEU by model, position and language\n")
    assert {"paper.md", "paper.csv", "paper.tex"} <= {path.name for path in (root.parent / "out" / "all").iterdir()}


def test_the_page_is_of_all_records(root, capsys):
    assert report(root, "results=x.md", "sweep=table2") == 2
    assert "results: x.md is a page of all records under runs_dir; leave out sweep" in capsys.readouterr().err
    (root.parent / "file").write_text("")
    assert report(root, f"results={root.parent}/file/x.md") == 2
    assert re.search(r"results: .*/file/x.md cannot be written .*; name another file", capsys.readouterr().err)

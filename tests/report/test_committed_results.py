"""Rendering the committed records again gives the committed tables and pages byte for byte (`make results`)."""

import json
import re
from pathlib import Path

import pytest

from rpr.records.record import METRICS_NAME, find_records
from rpr.records.scores import BITS_PER_BYTE
from rpr.report.committed import TESTS_NAME, paired_page, render_report, thinned
from rpr.report.paired import from_json
from rpr.report.results_page import results_markdown
from rpr.tables.grid import number

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))
TESTED = sorted(SWEEPS.rglob(TESTS_NAME))
REMEDY = "render it again: make results"
DECIDED = ("length_generalisation", "lm_length", "multi30k")  # with several seeds
METRICS = sorted(SWEEPS.rglob(f"*.{METRICS_NAME}"))


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("folder", REPORTED, ids=lambda folder: folder.name)
def test_committed_tables_match_their_records_and_findings_their_intervals(folder, tmp_path):
    """What a finding calls better or worse, or counts for an order, has an interval that excludes zero beside it."""
    assert all(record.status == "finished" for _, record in find_records(folder).records)
    render_report(folder, tmp_path)
    pictures = re.findall(r"!\[.*\]\((.*)\)", (tmp_path / "report.md").read_text("utf-8"))
    assert pictures and all((tmp_path / name).is_file() for name in pictures)
    for name in ("report.md", "report.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), f"{folder.name}/{name}: {REMEDY}"
    groups = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["groups"]
    findings = [finding for group in groups for finding in group["findings"]]
    claims = [(one, finding["text"]) for finding in findings for one in finding["comparisons"]]
    decided = [one for one, _ in claims if one["verdict"] != "not decided"]
    assert decided or folder.name not in DECIDED
    for one, text in claims:
        interval = one["interval"]
        if one["verdict"] == "not decided":
            assert one["why"]
            continue
        assert interval["kind"] == "seeds" and interval["level"] == 0.95 and one["n"] > 1
        of_documents = one["metric"] == BITS_PER_BYTE  # less is better
        assert interval["low"] > 0 if (one["verdict"] == "better") != of_documents else interval["high"] < 0
        ends = (number(interval[end], 3 if of_documents else 1, signed=True) for end in ("low", "high"))
        assert " to ".join(ends) in text


def test_results_page_matches_the_records():
    assert REPORTED
    page = (SWEEPS / "RESULTS.md").read_text(encoding="utf-8")
    assert page == results_markdown(SWEEPS / "results"), REMEDY


@pytest.mark.parametrize("document", TESTED, ids=lambda path: path.parent.name)
def test_paired_tests_match_their_document_and_the_records(document):
    assert document.with_suffix(".md").read_text(encoding="utf-8") == paired_page(document), REMEDY
    scores = {
        (record.name, one.split, one.metric): one.score
        for _, record in find_records(document.parent).records
        for one in record.scores
    }
    for family in from_json(document.read_text(encoding="utf-8")).tests:
        by_run = {system.run: system.score for system in family.scores}
        for name, score in by_run.items():
            assert score == pytest.approx(scores[name, family.split, family.metric], abs=0.0051)
        for one in family.comparisons:
            assert one.difference == pytest.approx(by_run[one.run] - by_run[one.baseline], abs=0.0151)


def test_four_of_five_seeds_of_the_headline_are_significant():
    """README's sentence: as one family of five pairs, by both tests after Holm's correction, here by hand."""
    family = from_json((SWEEPS / "results" / "multi30k" / TESTS_NAME).read_text(encoding="utf-8")).tests[0]
    randomisation = sorted(one.p_randomisation for one in family.comparisons)
    assert randomisation == [0.0002, 0.0056, 0.0057, 0.0159, 0.0817]
    corrected = [0.0002 * 5, 0.0056 * 4, 0.0056 * 4, 0.0159 * 2, 0.0817]
    assert sorted(p for _, _, p in family.corrected) == pytest.approx(corrected)
    assert [verdict is not None for verdict in family.verdicts] == [True] * 4 + [False]


def test_committed_metrics_and_pages_are_small():
    assert METRICS
    assert [page for page in SWEEPS.rglob("index.html") if page.stat().st_size > 2**20] == []
    assert [path.name for path in METRICS if path.read_text(encoding="utf-8") != thinned(path)] == [], REMEDY

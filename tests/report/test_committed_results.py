"""Reports of the committed records: their figures are the golden ones (tests/golden/report_values.csv), whatever a
page looks like.
"""

import csv
import json
import re
from pathlib import Path

import pytest

from rpr.records.record import find_records
from rpr.report.committed import render_report, results_markdown

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
REPORTED = sorted(path.parent for path in SWEEPS.rglob("report.md"))
TESTED = sorted(SWEEPS.rglob("compare.json"))
GOLDEN = list(csv.DictReader((SWEEPS.parent / "tests/golden/report_values.csv").open(encoding="utf-8")))
DECIDED = ("length_generalisation", "multi30k")  # with several seeds
FOLDERS = [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name != "multi30k")) for one in REPORTED]


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("folder", FOLDERS)
def test_committed_figures_are_the_golden_ones_and_verdicts_those_of_their_intervals(folder, tmp_path):
    """What is called better or worse has an interval that excludes zero beside it."""
    assert all(record.status == "finished" for _, record in find_records(folder).records)
    render_report(folder, tmp_path)
    pictures = re.findall(r"!\[.*\]\((.*)\)", (tmp_path / "report.md").read_text("utf-8"))
    assert pictures and all((tmp_path / name).is_file() for name in pictures)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    golden = [row for row in GOLDEN if row["sweep"] == folder.name]
    assert {_golden(row) for row in golden} <= set(_measurements(report["tables"]))
    rows = [(row, "bits" in json.dumps(table["columns"])) for table in report["tables"] for row in table["rows"]]
    verdicts = [(row, key, bits) for row, bits in rows for key in row if key.endswith("_verdict")]
    decided = [(row, key, bits) for row, key, bits in verdicts if row[key] in ("better", "worse")]
    assert decided or folder.name not in DECIDED
    for row, key, bits in decided:
        change = row[key.replace("_verdict", "_change")]
        assert change["n"] > 2 and change["interval"]["kind"] == "seeds" and change["interval"]["level"] == 0.95
        assert (row[key] == "better") is (change["value"] < 0 if bits else change["value"] > 0)
        assert not change["interval"]["low"] <= 0 <= change["interval"]["high"]


def _golden(row):
    return tuple(row[name] and f"{float(row[name]):.6g}" for name in ("n", "mean", "sd", "low", "high"))


def _measurements(tree):
    """Every measured figure of a report.json, as in `_golden`."""
    if isinstance(tree, list):
        return [one for part in tree for one in _measurements(part)]
    if not isinstance(tree, dict):
        return []
    if tree.get("value") is None:
        return _measurements([*tree.values()])
    interval = tree["interval"] or {"low": None, "high": None}
    figures = (tree["n"], tree["value"], tree["deviation"], interval["low"], interval["high"])
    return [tuple("" if figure is None else f"{figure:.6g}" for figure in figures)]


@pytest.mark.parametrize("document", TESTED, ids=lambda path: path.parent.name)
def test_paired_tests_match_their_document_and_the_records(document):
    scores = {
        (record.name, one.split, one.metric): one.score
        for _, record in find_records(document.parent).records
        for one in record.scores
    }
    for family in json.loads(document.read_text(encoding="utf-8"))["tests"]:
        by_run = {system["run"]: system["score"] for system in family["scores"]}
        for name, score in by_run.items():
            assert score == pytest.approx(scores[name, family["split"], family["metric"]], abs=0.0051)
        for one in family["comparisons"]:
            assert one["difference"] == pytest.approx(by_run[one["run"]] - by_run[one["baseline"]], abs=0.0151)


# sweeps/RESULTS.md and the README's results

PAGE = (SWEEPS / "RESULTS.md").read_text(encoding="utf-8")
README = (SWEEPS.parent / "README.md").read_text(encoding="utf-8").split("## Results\n")[1].split("\n## ")[0]


def rows(page: str) -> list[list[str]]:
    """The cells of each table row."""
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in page.splitlines() if line.startswith("|")]


def test_every_number_of_a_table_is_rendered_from_the_records():
    assert rows(PAGE) == rows(results_markdown(SWEEPS)), "render it again: make results"


def test_the_readmes_answers_are_those_of_the_page():
    by_label = {row[0]: row for row in rows(PAGE)}
    assert "+1.3 BLEU (+0.7 to +2.0)" in README and by_label["relative, k = 16"]
    changes = [row[3] for row in rows(PAGE) if row[0] == "relative, k = 16" and len(row) > 4]
    assert changes[0] == "+1.3 (+0.7 to +2.0)"
    assert next(row for row in rows(PAGE) if row[0] == "0")[3].startswith("-10.1")
    for label, change in (("keys only, k = 16", "-0.203"), ("KERPLE", "-0.165")):
        assert next(row for row in rows(PAGE) if len(row) == 8 and row[0] == label)[3].startswith(change)
    assert "0.165 to 0.203 bits" in README
    longest = {row[0]: row[3].split()[0] for row in rows(PAGE) if len(row) == 4 and row[1].count("to")}
    assert (longest["ALiBi"][:3], longest["relative, k = 16"], longest["RoPE"]) == ("1.3", "1.56", "4.98")

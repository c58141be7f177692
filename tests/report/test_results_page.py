"""sweeps/RESULTS.md and the README's results: their figures are those of the committed records, and they stay short."""

import re
from pathlib import Path

from rpr.report.committed import results_markdown

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = ROOT / "sweeps"
PAGE = (SWEEPS / "RESULTS.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").split("## Results\n")[1].split("\n## ")[0]
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?")


def rows(page: str) -> list[list[str]]:
    """The cells of each table row."""
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in page.splitlines() if line.startswith("|")]


def test_every_number_of_a_table_is_rendered_from_the_records():
    assert rows(PAGE) == rows(results_markdown(SWEEPS)), "render it again: make results"


def test_answers_can_be_read():
    """At most 120 lines; no sentence with more than three numbers; the README's answers in 25 numbers."""
    assert len(PAGE.splitlines()) <= 120
    prose = [line for line in PAGE.splitlines() if line and line[0] not in "|!" and "](measured/speed.md)" not in line]
    for sentence in (
        sentence for line in prose for sentence in re.split(r"(?<=[.:;?]) ", re.sub(r"\(.*?\)", "", line))
    ):
        assert len(NUMBER.findall(re.sub(r"k = \d+", "", sentence))) <= 3, sentence
    assert len(NUMBER.findall(README)) <= 25


def test_the_readmes_answers_are_those_of_the_page():
    by_label = {row[0]: row for row in rows(PAGE)}
    assert "+1.3 BLEU (+0.7 to +2.0)" in README and by_label["relative, k = 16"]
    changes = [row[3] for row in rows(PAGE) if row[0] == "relative, k = 16" and len(row) > 4]
    assert changes[0] == "+1.3 (+0.7 to +2.0)"
    assert next(row for row in rows(PAGE) if row[0] == "0")[3].startswith("-10.1")
    for label, change in (("keys only, k = 16", "-0.203"), ("KERPLE", "-0.165")):
        assert next(row for row in rows(PAGE) if len(row) == 7 and row[0] == label)[3].startswith(change)
    assert "0.165 to 0.203 bits" in README
    longest = {row[0]: row[3].split()[0] for row in rows(PAGE) if len(row) == 4 and row[1].count("to")}
    assert (longest["ALiBi"][:3], longest["relative, k = 16"], longest["RoPE"]) == ("1.3", "1.56", "4.98")

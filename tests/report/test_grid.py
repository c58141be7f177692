"""Grids and their renderers against tables written by hand: signs, footnotes, warnings, escaping, what a narrow
terminal leaves out; and that a column, added in one place, is in all six formats of a report.
"""

from __future__ import annotations

import csv
import io
import json

import pytest

from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.record import write_record
from rpr.records.scores import Interval
from rpr.report import lines
from rpr.report.build import build_report
from rpr.report.grid import Cell, Column, Grid, Note, figure_text, layout, legend, number
from rpr.report.render import as_csv, as_json, escape_latex, escape_markdown, latex, markdown, terminal

SENTENCES = Interval(29.0, 31.0, 0.95, kind="sentences", samples=1000, seed=1, method="bootstrap")


def make_grid(*, notes=()):
    columns = (
        Column("position", "position", lambda row: row[0], label=True),
        Column("test", "test", lambda row: row[1]),
        Column("change", "change", lambda row: row[2], signed=True, priority=1),
        Column("words", "differs", lambda row: row[3], words=True, priority=2),
        Column("chrf", "chrF", lambda row: row[1], priority=3),
    )
    rows = (
        ("a|b", single(30.04, SENTENCES), single(-0.04), Cell("data", ("all of it",))),
        ("c & d", mean([10.0, 12.0]), single(1.26), ""),
        ("<e>", missing("never run"), missing("never run"), Cell("x", ("all of it",))),
    )
    return Grid("table2", "A title", columns, rows, "a setting", tuple(notes))


def test_mean_over_seeds_by_hand():
    one = mean([10.0, 12.0])
    assert (one.value, one.n) == (11.0, 2)
    assert one.deviation == pytest.approx(2**0.5)
    assert one.interval.kind == "seeds"
    assert (one.interval.low, one.interval.high) == pytest.approx((11 - 12.706, 11 + 12.706))
    assert mean([3.0]) == Measurement(3.0, 1)
    for wrong in ({"value": None}, {"value": 1.0, "reason": "why"}):
        with pytest.raises(AssertionError, match="a missing figure has a reason"):
            Measurement(**wrong)


def test_numbers_and_their_intervals_over_seeds_and_over_sentences():
    assert [number(value, 1, signed=True) for value in (1.26, -0.04, -1.26)] == ["+1.3", "0.0", "-1.3"]
    assert number(1234.5, 0, signed=False) == "1,234"
    assert figure_text(single(30.04, SENTENCES), 1) == ("30.0", "[29.0, 31.0]")
    assert figure_text(mean([10.0, 12.0]), 1) == ("11.0 ± 1.4", "(-1.7 to 23.7)")
    assert figure_text(missing("why"), 1) == ("–", "")
    assert [line.split(":")[0] for line in legend([make_grid()])] == ["±", "(a to b)", "[a, b]"]


def test_footnotes_are_numbered_once():
    page = layout(make_grid())
    assert page.footnotes == ("all of it", "never run")
    assert [[shown.marks for shown in line] for line in page.lines] == [
        [(), (), (), (1,), ()],
        [(), (), (), (), ()],
        [(), (2,), (2,), (1,), (2,)],
    ]


def test_a_narrow_terminal_leaves_out_columns_then_intervals():
    wide = terminal(make_grid(), 200).split("\n")
    assert wide[0].split() == ["position", "test", "change", "differs", "chrF"]
    assert "30.0 [29.0, 31.0]" in wide[2]
    narrow = terminal(make_grid(), 34).split("\n")
    assert narrow[0].split() == ["position", "test", "change"]
    assert narrow[2].split() == ["a|b", "30.0", "0.0"]
    assert max(map(len, narrow)) <= 34
    assert terminal(make_grid(), 10).split("\n")[0].split() == ["position", "test"]


def test_markdown_folds_what_is_read_second_and_shows_warnings():
    text = markdown(make_grid(notes=[Note("look out", "warning"), Note("by the way")]))
    head, _, folded = text.partition("<details>")
    assert "**Warning:** look out" in head and "by the way" in folded
    assert "| a\\|b | 30.0 [29.0, 31.0] | 0.0 | data [1] |" in head
    assert "| position | chrF |" in folded and "- [2] never run" in folded
    assert "&lt;e>" in text


def test_latex_escapes_and_has_a_minus():
    text = latex(make_grid())
    assert r"c \& d & 11.0 $\pm$ 1.4" in text and "($-$1.7 to 23.7)" in text
    assert r"\textless{}e\textgreater{} & -- [2]" in text
    assert escape_latex("a-b -1") == "a-b $-$1"


def test_csv_has_a_line_for_each_figure_and_never_a_number_for_a_missing_one():
    lines = list(csv.DictReader(io.StringIO(as_csv([make_grid()]))))
    assert len(lines) == 3 * 4
    missing_line = next(line for line in lines if (line["row"], line["column"]) == ("<e>", "test"))
    assert (missing_line["value"], missing_line["missing_because"]) == ("", "never run")
    first = lines[0]
    assert (first["value"], first["low"], first["interval"]) == ("30.04", "29.0", "sentences")
    assert next(line for line in lines if line["column"] == "words")["text"] == "data"


def test_json_has_every_figure_by_its_key():
    found = json.loads(json.dumps(as_json(make_grid()), allow_nan=False))
    assert found["rows"][0]["test"]["interval"]["method"] == "bootstrap"
    assert found["rows"][2]["test"] == {
        "value": None, "n": 0, "deviation": None, "interval": None, "missing_because": "never run",
    }  # fmt: skip
    assert found["rows"][0]["words"] == {"text": "data", "remarks": ["all of it"]}


def test_hostile_text_is_inert():
    assert escape_markdown("<b>|`#*") == "&lt;b>\\|\\`\\#\\*"
    assert "\x1b" not in escape_markdown("\x1b[2J")


def test_a_column_added_in_one_place_is_in_all_six_formats(make, tmp_path, monkeypatch):
    column = Column("luck", "luck", lambda line: single(777.5))
    monkeypatch.setattr(lines, "AFTER_THE_SCORES", (*lines.AFTER_THE_SCORES, column))
    records = []
    for k in (0, 16):
        record = make("relative", k)
        path = tmp_path / "runs" / record.name / "record.json"
        write_record(path, record)
        records.append((path, record))
    report = build_report(records, tmp_path / "out", "A report")
    texts = {
        name: (tmp_path / "out" / name).read_text() for name in ("report.md", "report.csv", "report.tex", "index.html")
    }
    texts |= {"terminal": report.everything, "json": json.dumps(report.document)}
    assert {name: "luck" in text and "777.5" in text for name, text in texts.items()} == dict.fromkeys(texts, True)

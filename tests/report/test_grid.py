"""Grids and their renderers against tables written by hand."""

import json
import math
import random

import pytest

from rpr.io.escape import escape_markdown
from rpr.records.measurement import Measurement, mean, missing, p_value, single
from rpr.records.scores import Interval
from rpr.report.render import (
    Cell,
    Column,
    Grid,
    as_json,
    escape_latex,
    figure_text,
    grid_of,
    latex,
    legend,
    markdown,
    number,
    terminal,
)

SENTENCES = Interval(29.0, 31.0, 0.95, kind="sentences", samples=1000, seed=1, method="bootstrap")


def cells_of(row):
    yield Column("position", "position", kind="label"), row[0]
    yield Column("test", "test"), row[1]
    yield Column("change", "change", signed=True, priority=1), row[2]
    yield Column("words", "differs", kind="words", priority=2), row[3]
    yield Column("chrf", "chrF", priority=3), row[1]


def make_grid(rows=None, **about):
    three = (
        ("a|b", single(30.04, SENTENCES), single(-0.04), Cell("data", ("all of it",))),
        ("c & d", mean([10.0, 12.0]), single(1.26), ""),
        ("<e>", missing("never run"), missing("never run"), Cell("x", ("all of it",))),
    )
    return grid_of("table2", "A title", rows or three, cells_of, setting="a setting", **about)


@pytest.mark.parametrize("values, bounds, ends", [
    ([82.0, 95.0, 99.0], (0, 100), (36.4106, 99.5689)), ([0.0, 0.0, 41.6], (0, 100), (0.1089, 95.9648)),
    ([100.0, 100.0], (0, 100), (100 - 12.7062 / 2, 100.0)), ([0.0] * 3, (-100, 100), (-1.4341, 1.4341)),
    ([0.0] * 3, (0, 100), (0, 4.3027 / 3)), ([2.0] * 3, (-100, 100), (0.5655, 3.4337)),
])  # fmt: skip
def test_interval_of_shares_stays_within_their_bounds(values, bounds, ends):
    found, plain = mean(values, *bounds, 1.0), mean(values)
    assert (found.value, found.deviation, found.n) == (plain.value, plain.deviation, plain.n)
    assert (found.interval.low, found.interval.high) == pytest.approx(ends, abs=1e-4)


def test_p_value_is_that_of_the_interval():
    """Below 0.05 where the interval excludes zero; by a table of Student's t where it is known."""
    draw = random.Random(3)
    for _ in range(300):
        values = [draw.gauss(20, 25) for _ in range(draw.choice((2, 3, 5)))]
        for change in (mean(values), mean(values, -100, 100, 0.1)):
            assert (p_value(change) < 0.05) == (not change.interval.low <= 0 <= change.interval.high)
    assert p_value(mean([math.sqrt(3), 2 * math.sqrt(3), 0])) == pytest.approx(0.2254, abs=1e-4)  # t = sqrt(3), 2
    assert [p_value(mean([value, value])) for value in (0, 1)] == [1, 0]
    for single_seed in (mean([3.0]), single(3.0, mean([1.0, 2.0]).interval)):
        with pytest.raises(ValueError, match="no interval over seeds"):
            p_value(single_seed)


def test_figures_with_intervals_over_seeds_and_sentences():
    assert [number(value, 1, signed=True) for value in (1.26, -0.04, -1.26)] == ["+1.3", "0.0", "-1.3"]
    assert figure_text(single(30.04, SENTENCES), 1) == ("30.0", "(29.0 to 31.0)†")
    assert figure_text(mean([10.0, 12.0]), 1) == ("11.0", "(-1.7 to 23.7)")
    ends = Measurement(-0.8, 3, interval=Interval(-1.6, -0.01, 0.95, kind="seeds"))
    assert figure_text(ends, 1, signed=True) == ("-0.8", "(-1.6 to -0.0)"), "it excludes zero"
    assert figure_text(missing("why"), 1) == ("–", "")
    assert [line.split(":")[0] for line in legend([make_grid()])] == ["(a to b)", "(a to b)†"]


def test_markdown_escapes_cells_and_never_folds_warnings():
    grid = make_grid(notes=["by the way"], warnings=["look out"])
    head, _, folded = markdown(grid).partition("<details>")
    assert "**Warning:** look out" in head and "by the way" in folded and "look out" in terminal(grid)
    assert "| a\\|b | 30.0 (29.0 to 31.0)† | 0.0 | data [1] |" in head and "&lt;e>" in head


@pytest.mark.parametrize("text, escaped", [
    ("![x](http://h/p.png)", r"![x\](http:\//h/p.png)"), ("[x][y] [z]", r"[x\][y] [z]"), ("\\](h)", r"\\\](h)"),
    ("[1]: h", r"[1\]: h"), ("[1]:\nh 'a title'", r"[1\]: h 'a title'"), ("[^1]: some words", r"\[^1]: some words"),
    ("a_WWW.h.org ftp://h", r"a_WWW\.h.org ftp:\//h"), ("<http://h>", r"&lt;http:\//h>"),
    *((text, text) for text in ("0.3 [0.1, 0.2] (2 seeds) [1]", "[a, b]: the 95% interval", "a: b/c", "wwwx.")),
])  # fmt: skip
def test_markdown_of_a_record_makes_no_link(text, escaped):
    assert escape_markdown(text) == escaped


def test_latex_fits_a_column():
    """The main figures, an interval of a change below it, no footnotes."""
    change = Measurement(-1.26, 3, interval=Interval(-2.0, -0.5, 0.95, kind="seeds"))
    columns = Column("position", "position", kind="label"), Column("c", "change", signed=True)
    text = latex(Grid("x", "", columns, [[Cell("c & d"), Cell(change)], [Cell("<e>"), Cell(missing("x"))]]))
    assert r"c \& d & $-$1.3 \\" in text and r" & \tiny ($-$2.0 to $-$0.5) \\" in text
    assert r"\textless{}e\textgreater{} & -- \\" in text and "differs" not in latex(make_grid())
    assert escape_latex("a-b -1") == "a-b $-$1"
    assert text.count(r"\label{tab:") == 1 and r"\toprule" in text and "[1]" not in text


def test_json_has_every_figure_by_key():
    found = json.loads(json.dumps(as_json(make_grid()), allow_nan=False))
    assert found["rows"][0]["test"]["interval"]["method"] == "bootstrap"
    assert found["rows"][2]["test"] == {
        "value": None, "n": 0, "deviation": None, "interval": None, "missing_because": "never run",
    }  # fmt: skip

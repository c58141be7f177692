"""Grids and their renderers against tables written by hand."""

import json
import math
import random

import pytest

from rpr.io.escape import escape_markdown
from rpr.records.measurement import Measurement, mean, mean_of_shares, missing, p_value, single
from rpr.records.scores import Interval
from rpr.report.render import (
    Cell,
    Column,
    Grid,
    as_json,
    escape_latex,
    figure_text,
    latex,
    legend,
    markdown,
    number,
    terminal,
)

SENTENCES = Interval(29.0, 31.0, 0.95, kind="sentences", samples=1000, seed=1, method="bootstrap")


def make_grid(*, notes=(), warnings=(), rows=None):
    columns = (
        Column("position", "position", lambda row: row[0], kind="label"),
        Column("test", "test", lambda row: row[1]),
        Column("change", "change", lambda row: row[2], signed=True, priority=1),
        Column("words", "differs", lambda row: row[3], kind="words", priority=2),
        Column("chrf", "chrF", lambda row: row[1], priority=3),
    )
    three = (
        ("a|b", single(30.04, SENTENCES), single(-0.04), Cell("data", ("all of it",))),
        ("c & d", mean([10.0, 12.0]), single(1.26), ""),
        ("<e>", missing("never run"), missing("never run"), Cell("x", ("all of it",))),
    )
    return Grid("table2", "A title", columns, rows or three, "a setting", tuple(notes), tuple(warnings))


@pytest.mark.parametrize("values, bounds, ends", [
    ([82.0, 95.0, 99.0], (0, 100), (36.4106, 99.5689)), ([0.0, 0.0, 41.6], (0, 100), (0.1089, 95.9648)),
    ([40.0, 60.0], (-100, 100), None), ([100.0, 100.0], (0, 100), (100 - 12.7062 / 2, 100.0)),
    ([0.0] * 3, (-100, 100), (-1.4341, 1.4341)), ([0.0] * 3, (0, 100), (0, 4.3027 / 3)),
    ([2.0] * 3, (-100, 100), (0.5655, 3.4337)),
])  # fmt: skip
def test_interval_of_shares_stays_within_their_bounds(values, bounds, ends):
    found, plain = mean_of_shares(values, 1.0, *bounds), mean(values)
    assert (found.value, found.deviation, found.n) == (plain.value, plain.deviation, plain.n)
    low, high = found.interval.low, found.interval.high
    assert bounds[0] <= low <= found.value <= high <= bounds[1]
    if ends is not None:
        assert (low, high) == pytest.approx(ends, abs=1e-4)
    else:  # by the definition: a t interval of the logit of the mean, as a share of the range
        share, half = 0.75, 12.7062 * 2**0.5 * 10 / 200 / 2**0.5 / (0.75 * 0.25)
        logit = math.log(share / (1 - share))
        expected = [-100 + 200 / (1 + math.exp(-(logit + side * half))) for side in (-1, 1)]
        assert (low, high) == pytest.approx(expected, abs=1e-3)


def test_p_value_is_that_of_the_interval():
    """Below 0.05 where the interval excludes zero; by a table of Student's t where it is known."""
    draw = random.Random(3)
    for _ in range(300):
        values = [draw.gauss(20, 25) for _ in range(draw.choice((2, 3, 5)))]
        for change in (mean(values), mean_of_shares(values, 0.1, -100, 100)):
            assert (p_value(change) < 0.05) == (not change.interval.low <= 0 <= change.interval.high)
    assert p_value(mean([math.sqrt(3), 2 * math.sqrt(3), 0])) == pytest.approx(0.2254, abs=1e-4)  # t = sqrt(3), 2
    assert [p_value(mean([value, value])) for value in (0, 1)] == [1, 0]
    for single_seed in (mean([3.0]), single(3.0, mean([1.0, 2.0]).interval)):
        with pytest.raises(ValueError, match="no interval over seeds"):
            p_value(single_seed)


def test_mean_over_seeds():
    one = mean([10.0, 12.0])
    assert (one.value, one.n) == (11.0, 2)
    assert one.deviation == pytest.approx(2**0.5)
    assert one.interval.kind == "seeds"
    assert (one.interval.low, one.interval.high) == pytest.approx((11 - 12.7062, 11 + 12.7062), abs=1e-4)
    assert mean([3.0]) == Measurement(3.0, 1)
    bounded = mean([99.0, 100.0], 0, 100).interval
    assert (bounded.low, bounded.high) == (pytest.approx(99.5 - 12.7062 / 2, abs=1e-4), 100)
    for wrong in ({"value": None}, {"value": 1.0, "reason": "why"}):
        with pytest.raises(AssertionError, match="a missing figure has a reason"):
            Measurement(**wrong)


def test_figures_with_intervals_over_seeds_and_sentences():
    assert [number(value, 1, signed=True) for value in (1.26, -0.04, -1.26)] == ["+1.3", "0.0", "-1.3"]
    assert number(1234.5, 0, signed=False) == "1,234"
    assert figure_text(single(30.04, SENTENCES), 1) == ("30.0", "(29.0 to 31.0)†")
    assert figure_text(mean([10.0, 12.0]), 1) == ("11.0", "(-1.7 to 23.7)")
    ends = Measurement(-0.8, 3, interval=Interval(-1.6, -0.01, 0.95, kind="seeds"))
    assert figure_text(ends, 1, signed=True) == ("-0.8", "(-1.6 to -0.0)"), "it excludes zero"
    assert figure_text(missing("why"), 1) == ("–", "")
    assert [line.split(":")[0] for line in legend([make_grid()])] == ["(a to b)", "(a to b)†"]


def test_terminal_aligns_columns_above_their_notes():
    lines = terminal(make_grid(notes=["by the way"], warnings=["look out"])).split("\n")
    assert lines[:2] == ["A title", "a setting"] and lines[-2:] == ["look out", "by the way"]
    assert lines[2].split() == ["position", "test", "change", "differs"], "of priority 3: in JSON alone"
    assert lines[3].startswith("a|b       30.0 (29.0 to 31.0)†     0.0  data [1]")


def test_markdown_folds_notes_and_shows_warnings():
    text = markdown(make_grid(notes=["by the way"], warnings=["look out"]))
    head, _, folded = text.partition("<details>")
    assert "**Warning:** look out" in head and "by the way" in folded
    assert "| a\\|b | 30.0 (29.0 to 31.0)† | 0.0 | data [1] |" in head
    assert "chrF" not in text and "- [2] never run" in folded, "of priority 3: in JSON alone"
    assert "&lt;e>" in text


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
    text = latex(make_grid(rows=(("c & d", mean([10.0, 12.0]), change, ""), ("<e>", missing("x"), missing("x"), ""))))
    assert r"c \& d & 11.0 \\" in text and r"\textless{}e\textgreater{} & -- \\" in text and "differs" not in text
    assert escape_latex("a-b -1") == "a-b $-$1"
    assert text.count(r"\label{tab:") == 1 and r"\toprule" in text and "[1]" not in text
    position = Column("position", "position", str, kind="label")
    signed = latex(Grid("x", "", (position, Column("c", "change", lambda row: change, signed=True)), ("a",)))
    assert r"a & $-$1.3 \\" in signed and r" & \tiny ($-$2.0 to $-$0.5) \\" in signed


def test_json_has_every_figure_by_key():
    found = json.loads(json.dumps(as_json(make_grid()), allow_nan=False))
    assert found["rows"][0]["test"]["interval"]["method"] == "bootstrap"
    assert found["rows"][2]["test"] == {
        "value": None, "n": 0, "deviation": None, "interval": None, "missing_because": "never run",
    }  # fmt: skip
    assert found["rows"][0]["words"] == {"text": "data", "remarks": ["all of it"]}

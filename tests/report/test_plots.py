"""Plots: error bars are what the caption says, many variants do not crowd a plot, and words fit beside the lines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rpr.records.scores import Interval
from rpr.report import drawing, plots
from rpr.report.rows import Cell
from rpr.report.tables import position_tables


def within(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, level=0.95, samples=1000, seed=1, method="a bootstrap")


def segments(axes):
    """The ends of all error bars, rounded."""
    return [
        (round(float(line[0][1]), 3), round(float(line[1][1]), 3))
        for bars in axes.collections
        for line in bars.get_segments()
    ]


@pytest.mark.parametrize(
    "cell, bar",
    [
        (Cell(30.0, 0.5, 3), (0.5, 0.5)),
        (Cell(30.0, None, 1, interval=within(29.0, 32.0)), (1.0, 2.0)),
        (Cell(30.0, None, 1, interval=within(30.5, 32.0)), (0.0, 2.0)),  # the score lies outside of it
        (Cell(30.0, None, 1), None),
        (Cell(None, reason="failed"), None),
    ],
)
def test_an_error_bar_by_hand(cell, bar):
    assert drawing.bar(cell) == bar


def test_the_caption_says_which_error_bars_there_are():
    several, one, none = Cell(30.0, 0.5, 3), Cell(30.0, None, 1, interval=within(29.0, 31.0)), Cell(30.0, None, 1)
    assert drawing.bar_words([none]) == ""
    assert drawing.bar_words([several, none]) == "bars: ± standard deviation over the seeds"
    assert drawing.bar_words([one]) == "bars: 95% interval over the test sentences (one seed)"
    assert drawing.bar_words([one, several]) == (
        "bars: ± standard deviation over the seeds, or 95% interval over the test sentences (one seed)"
    )


def test_bleu_by_k_has_the_interval_of_one_seed_and_the_deviation_of_several(make, score, interval):
    runs = [
        make("relative", 0, scores=[score("test", 12.0, interval=interval(11.0, 14.0))]),
        *(make("relative", 2, seed=seed, scores={"test": 30.0 + 2 * seed}) for seed in (1, 2, 3)),
        make("absolute", scores=[score("test", 20.0, interval=interval(19.5, 20.25))]),
    ]
    [table] = position_tables(runs)
    [axes] = plots.bleu_by_k(table).axes
    # 32, 34, 36: mean 34, standard deviation 2.
    assert sorted(segments(axes)) == [(11.0, 14.0), (19.5, 20.25), (32.0, 36.0)]
    assert axes.get_xlabel() == (
        "clip distance k\nbars: ± standard deviation over the seeds, or 95% interval over the test sentences (one seed)"
    )
    assert axes.get_ylim()[1] > 36


def test_without_intervals_there_are_no_bars_and_no_words(make):
    [axes] = plots.bleu_by_k(position_tables([make("relative", 2)])[0]).axes
    assert segments(axes) == [] and axes.get_xlabel() == "clip distance k"


def test_of_many_variants_a_plot_shows_some_and_says_so(make, by_length):
    lengths = by_length(40, 30, 20, 10)
    runs = [make(kind, k, by_length=lengths) for kind in ("relative", "relative_keys") for k in range(40)]
    [table] = position_tables([*runs, make("absolute", by_length=lengths)])
    curves = [
        plots.Curve(row.label, row.position.kind, row.position.clip_distance, {"validation/bleu": ((1, 2.0), (2, 3.0))})
        for row in plots.lines_of(table)
    ]
    drawn = {plot.name: plot for plot in plots.all_plots(table, curves)}
    assert set(drawn) == {"bleu_by_k", "bleu_by_length", "speed", "learning_curves"}
    assert len(plots.lines_of(table)) == 12 and plots.lines_of(table)[0].label == "absolute (sinusoidal)"
    for name, words in (
        ("speed", "24 of 81 variants have a bar"),
        ("learning_curves", "12 of 81 variants have a line"),
    ):
        assert words in drawn[name].caption
        assert any(text.get_text().startswith(words) for text in drawn[name].figure.texts)
    assert len(drawn["speed"].figure.axes[0].patches) == 24
    assert len(drawn["bleu_by_length"].figure.axes[0].get_lines()) >= 12
    # Of 43 values of k (0 to 39, 64 and 256 of the paper) at most 24 have their number.
    assert len(drawn["bleu_by_k"].figure.axes[0].get_xticks()) <= 24
    assert "of 81" not in drawn["bleu_by_k"].caption, "which leaves none out"


def test_few_variants_are_all_shown_and_nothing_is_said(make):
    [table] = position_tables([make("relative", 2), make("absolute")])
    assert all("of each kind" not in plot.caption for plot in plots.all_plots(table, []))
    assert plots.lines_of(table) == list(table.rows)


def test_words_beside_the_lines_lie_inside_the_figure_and_apart():
    with drawing.styled():
        figure, (axes,) = drawing.new_figure((8.4, 4.6), "x", "y", (0.1, 0.79))
        names = [f"sinusoidal + relative, k = {k}, shared by heads and layers" for k in range(10)]
        axes.set_ylim(0, 10)
        drawing.label_ends(axes, [(5.0, name, drawing.INK) for name in names])
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = sorted((text.get_window_extent(renderer) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 10
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))


def test_names_of_bars_lie_inside_the_figure(make):
    runs = [make("absolute_and_relative", 16, settings={"position.tables": "shared_by_heads_and_layers"})]
    runs += [make("absolute_and_relative", 16), make("absolute")]
    figure = plots.speed(position_tables(runs)[0])
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with drawing.styled():
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [label.get_window_extent(renderer) for label in figure.axes[0].get_yticklabels()]
    assert min(box.x0 for box in boxes) >= 0
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "1.00   (2.00 steps/s)" in words

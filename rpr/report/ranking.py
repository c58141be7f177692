"""The scores of all position schemes of a group, best first, as a plot."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rpr import paper
from rpr.model.positions import SCHEMES
from rpr.records.measurement import Measurement
from rpr.report.groups import TABULATED, Group, Variant
from rpr.report.plot_style import (
    DASHED,
    LINE,
    PAPER,
    WHITE,
    bar_words,
    error_bars,
    new_figure,
    plain,
    set_margins,
    styled,
    text_width,
    variant_colours,
)
from rpr.report.published import Source
from rpr.report.sampling import left_out, sample_evenly
from rpr.report.tables import published_figures
from rpr.tables.grid import figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 24


class Plot(NamedTuple):
    """A plot for a page, and for a phone; `remark` says what it leaves out, the caption what its marks mean."""

    title: str
    remark: str
    caption: str
    figure: Figure
    narrow: Figure


def ranked(group: Group) -> tuple[list[tuple[Variant, Measurement]], str]:
    """The variants with a score on the group's split, best first, and a line about those left out (MOST_ROWS are shown
    at most). Empty without at least two that the paper does not have.

    Of a translation corpus without the rows of the paper's Tables 2 and 3, except for relative positions with its k
    (without it, the largest), and without models that did not learn. Of a generated task every variant, whatever they
    are.
    """
    if group.documents:
        return [], ""
    scored = [(one, score) for one in group.variants if (score := group.score(one, group.split)).value is not None]
    unlearned = [one for one, _ in scored if one.unlearned and not group.task]
    scored = [row for row in scored if row[0] not in unlearned]
    relative = [one for one, _ in scored if one.position.kind == "relative"]
    papers = paper.MODELS[group.size].clip_distance
    best = next((one for one in relative if one.position.clip_distance == papers), relative[-1] if relative else None)
    rows = [row for row in scored if group.task or row[0] is best or row[0].position.kind not in TABULATED]
    others = sum(one.position.kind not in SCHEMES["vectors"].colours() for one, _ in rows)
    if len(rows) < 2 or (others < 2 and not group.task):
        return [], ""
    shown = sample_evenly(rows, MOST_ROWS)
    remarks = [left_out(len(shown), len(rows), "schemes have a row")]
    remarks += [f"Without {one.label}, {one.unlearned}" for one in unlearned]
    return sorted(shown, key=lambda row: -(row[1].value or 0.0)), "; ".join(filter(None, remarks))


def scores_by_position(group: Group) -> Plot | None:
    """The plot, its narrow version, and their texts; None without schemes to rank."""
    rows, remark = ranked(group)
    if not rows:
        return None
    published = published_figures(group)
    absolute = next((row for row in rows if row[0].position.kind == "absolute"), None)
    words = [f"Dashed: {absolute[0].label}."] if absolute is not None else []
    if any(one.unlearned for one, _ in rows):
        words.append("Hollow: did not learn the task.")
    if published:
        words.append(f"Grey diamonds: {'; '.join(one.citation for one in published)}; compare the order only.")
    wide, narrow = (_draw(group, rows, absolute, published, remark, narrow=narrow) for narrow in (False, True))
    return Plot(_title(group), remark, " ".join(words), wide, narrow)


def _title(group: Group, *, narrow: bool = False) -> str:
    """`sacreBLEU on test, best first`."""
    beyond = group.split == "long" and not narrow
    where = "beyond the training lengths" if beyond else f"on {group.split}"
    return f"{'Exact match' if group.task else 'sacreBLEU'} {where}, best first"


def _draw(
    group: Group,
    rows: Sequence[tuple[Variant, Measurement]],
    absolute: tuple[Variant, Measurement] | None,
    published: Mapping[Source, Sequence[tuple[Variant, float]]],
    remark: str,
    *,
    narrow: bool,
) -> Figure:
    """A dot for each scheme at its score, with the deviation over seeds or the interval over sentences; for a task also
    published accuracies of other models.
    """
    colours = variant_colours(group.variants)
    figures = {one.label: figure for some in published.values() for one, figure in some}
    labels = [textwrap.fill(one.label, 18 if narrow else 30) for one, _ in rows]
    heights = [0.13 + LINE * (label.count("\n") + 1) for label in labels]
    places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    below = [bar_words(score for _, score in rows), "" if narrow else remark]
    with styled():
        size = (3.5 if narrow else 7.4, 1.5 + sum(heights))
        figure, (axes,) = new_figure(size, _title(group, narrow=narrow), group.heading)
        for place, (one, score) in zip(places, rows, strict=True):
            colour = colours[one.label]
            if (other := figures.get(one.label)) is not None:
                axes.plot([other], [place], color=PAPER, marker="D", ms=5, zorder=2)
            error_bars(axes, [(place, score)], colour, 1.6, across=True)
            filled = WHITE if one.unlearned else colour
            axes.plot([score.value or 0.0], [place], color=colour, mfc=filled, marker="o", ms=6, zorder=6)
            words = figure_text(score, 1)[0]
            axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
        if absolute is not None:
            axes.axvline(absolute[1].value or 0.0, color=colours[absolute[0].label], lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, map(plain, labels), linespacing=1.0)
        axes.set_ylim(sum(heights), 0)
        if group.task:
            axes.set_xlim(-2, 102)
        axes.set_xlabel("\n".join(textwrap.fill(line, 34 if narrow else 60) for line in below if line))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        right = max(text_width(text.get_text(), 9.5) for text in axes.texts) + 0.08
        set_margins(figure, right=right, beside=1.01)
    return figure

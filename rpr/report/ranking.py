"""The scores of all position schemes of a group, best first, as a plot."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rpr import paper
from rpr.model.positions import SCHEMES
from rpr.records.measurement import Measurement
from rpr.report.grid import figure_text
from rpr.report.groups import Group, Variant
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
from rpr.report.sampling import sample_evenly
from rpr.report.tasks import published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 24
TABULATED = ("relative", "relative_keys", "relative_values")  # of the paper's Tables 2 and 3


def ranked(group: Group) -> list[tuple[Variant, Measurement]]:
    """The variants with a score on the group's split, best first; empty without at least two that are not the paper's.

    Of a translation corpus without the rows of the paper's Tables 2 and 3, except for relative positions with its k
    (without it, the largest). Of a generated task every variant, whatever they are.
    """
    relative = [one for one in group.variants if one.position.kind == "relative"]
    best = group.get("relative", paper.MODELS[group.size].clip_distance) or next(reversed(relative), None)
    shown = [one for one in group.variants if group.task or one is best or one.position.kind not in TABULATED]
    scored = [(one, score) for one in shown if (score := group.score(one, group.split)).value is not None]
    others = sum(one.position.kind not in SCHEMES["vectors"].colours() for one, _ in scored)
    if len(scored) < 2 or (others < 2 and not group.task):
        return []
    return sorted(scored, key=lambda item: -(item[1].value or 0.0))


def title(group: Group, *, narrow: bool = False) -> str:
    """`sacreBLEU on test, best first`."""
    beyond = group.split == "long" and not narrow
    where = "beyond the training lengths" if beyond else f"on {group.split}"
    return f"{'Exact match' if group.task else 'sacreBLEU'} {where}, best first"


def caption(group: Group) -> str:
    """The meaning of the marks in the plot."""
    lines = ["Dashed: absolute (sinusoidal)."] if group.get("absolute") is not None else []
    if any(one.unlearned for one, _ in ranked(group)):
        lines.append("Hollow: did not learn the task.")
    if sources := published(group):
        lines.append(f"Grey diamonds: {'; '.join(one.source for one in sources)}; compare the order only.")
    return " ".join(lines)


def scores_by_position(group: Group, remark: str = "", *, narrow: bool = False) -> Figure | None:
    """A dot for each scheme at its score, with the deviation over seeds or the interval over sentences; for a task also
    published accuracies of other models. None without schemes to rank.
    """
    rows = sample_evenly(ranked(group), MOST_ROWS)
    if not rows:
        return None
    colours = variant_colours(group.variants)
    figures = {kind: figure for one in published(group) for kind, figure in one.figures.items()}
    labels = [textwrap.fill(one.label, 18 if narrow else 30) for one, _ in rows]
    heights = [0.13 + LINE * (label.count("\n") + 1) for label in labels]
    with styled():
        size = (3.9 if narrow else 7.4, 1.3 + sum(heights))
        figure, (axes,) = new_figure(size, title(group, narrow=narrow), group.heading)
        places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
        for place, (one, score) in zip(places, rows, strict=True):
            colour = colours[one.label]
            if (other := figures.get(one.position.kind)) is not None:
                axes.plot([other], [place], color=PAPER, marker="D", ms=5, zorder=2)
            error_bars(axes, [(place, score)], colour, 1.6, across=True)
            filled = WHITE if one.unlearned else colour
            axes.plot([score.value], [place], color=colour, mfc=filled, marker="o", ms=6, zorder=6)
            words = figure_text(score, 1)[0]
            axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
        absolute = group.score(group.get("absolute"), group.split).value
        if absolute is not None:
            axes.axvline(absolute, color=colours["absolute (sinusoidal)"], lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, map(plain, labels), linespacing=1.0)
        axes.set_ylim(sum(heights), 0)
        if group.task:
            axes.set_xlim(-2, 102)
        axes.set_xlabel("\n".join(filter(None, (bar_words(score for _, score in rows), remark))))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        right = max(text_width(text.get_text(), 9.5) for text in axes.texts) + 0.08
        set_margins(figure, right=right, beside=1.01)
    return figure

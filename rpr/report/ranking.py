"""The scores of all position schemes of a group, best first, as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpr import paper
from rpr.model.positions import SCHEMES
from rpr.records.measurement import Measurement
from rpr.report.groups import TABULATED, Group, Variant
from rpr.report.plot_style import (
    COLUMN,
    DASHED,
    LINE,
    PAPER,
    WHITE,
    WIDE,
    bar_words,
    error_bars,
    folded,
    new_figure,
    plain,
    set_words_below,
    styled,
    variant_colours,
)
from rpr.report.sampling import left_out, sample_evenly
from rpr.report.tables import published_figures
from rpr.tables.grid import figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 24


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


def title(group: Group) -> str:
    """`sacreBLEU on test, best first`."""
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    return f"{'Exact match' if group.task else 'sacreBLEU'} {where}, best first"


def texts(group: Group) -> tuple[str, str]:
    """What the plot leaves out, and what its marks mean."""
    rows, remark = ranked(group)
    words = [f"Dashed: {one.label}." for one, _ in rows if one.position.kind == "absolute"][:1]
    if any(one.unlearned for one, _ in rows):
        words.append("Hollow: did not learn the task.")
    if published := published_figures(group):
        words.append(f"Grey diamonds: {'; '.join(one.citation for one in published)}; compare the order only.")
    return remark, " ".join(words)


def draw(group: Group, width: float = WIDE) -> Figure | None:
    """A dot for each scheme at its score, with the deviation over seeds or the interval over sentences, and published
    figures of which the order can be compared; None without schemes to rank.
    """
    rows, remark = ranked(group)
    if not rows:
        return None
    colours = variant_colours(group.variants)
    published = {one.label: figure for figures in published_figures(group).values() for one, figure in figures}
    labels = [folded(one.label, 30 if width > COLUMN else 18) for one, _ in rows]
    heights = [0.13 + LINE * (label.count("\n") + 1) for label in labels]
    places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    with styled():
        figure, [axes] = new_figure(width, 1.7 + sum(heights), title(group), group.heading)
        for place, (one, score) in zip(places, rows, strict=True):
            colour = colours[one.label]
            if (other := published.get(one.label)) is not None:
                axes.plot([other], [place], color=PAPER, marker="D", ms=5, zorder=2)
            error_bars(axes, [(place, score)], colour, 1.6, across=True)
            filled = WHITE if one.unlearned else colour
            axes.plot([score.value or 0.0], [place], color=colour, mfc=filled, marker="o", ms=6, zorder=6)
            value = figure_text(score, 1)[0]
            axes.text(1.01, place, value, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
        for one, score in [row for row in rows if row[0].position.kind == "absolute"][:1]:
            axes.axvline(score.value or 0.0, color=colours[one.label], lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, map(plain, labels), linespacing=1.0)
        axes.set_ylim(sum(heights), 0)
        if group.task:
            axes.set_xlim(-2, 102)
        set_words_below(axes, bar_words(score for _, score in rows), remark)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    return figure

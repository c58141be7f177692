"""The plots of a group: BLEU against k, by scheme, by length and by context, learning curves.

Each function returns None if there is nothing to plot. `width`: WIDE, or COLUMN for a column of a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.model.positions import SCHEMES
from rpr.records.measurement import Measurement, single
from rpr.records.scores import LengthBucket, pooled
from rpr.report.contexts import CONTEXTS, bits_by_context
from rpr.report.groups import TABULATED, Group, Variant
from rpr.report.lengths import buckets, length_score
from rpr.report.plot_style import (
    COLOURS,
    COLUMN,
    DASHED,
    LINE,
    PAPER,
    WHITE,
    WIDE,
    as_pdf,
    bar_words,
    draw_points,
    error_bars,
    folded,
    new_figure,
    plain,
    reach,
    rendered,
    set_places,
    set_words_below,
    styled,
    variant_colours,
    variant_looks,
)
from rpr.report.published import curves as published_curves
from rpr.report.recipes import CHANGES, Recipes, change_by_recipe
from rpr.report.sampling import left_out, lines_of, sample_evenly
from rpr.report.tables import published_figures
from rpr.tables.grid import figure_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINES = ("absolute", "learned", "none")
MOST_TICKS, MOST_ROWS = 24, 24
FIRST = ("bleu_by_k", "bits_by_context", "scores_by_position")  # plots that may be the first of a page
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
Curves = dict[str, dict[int, float]]  # of each training metric its values by step


@dataclass(frozen=True)
class Picture:
    """An SVG image with its name, its alternative text and its caption.

    `narrow`: in the width of a column, for a phone, if the image may be the first of a page; `pdf`: if asked for.
    """

    name: str
    description: str
    caption: str
    svg: bytes
    narrow: bytes | None = None
    pdf: bytes | None = None


def all_plots(
    group: Group, runs: Sequence[tuple[Variant, Curves]], grids: Sequence[Recipes] = (), *, pdf: bool = False
) -> list[Picture]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant.

    Args:
        grids: those of recipes; the plot of one is with its first group.
        pdf: also as PDF in the width of a column.
    """
    lines = left_out(len(lines_of(group)), len(group.variants), "variants have a line")
    by_k = [f"Solid: {group.development}; dashed: long."] if group.column("long") else []
    by_k.append("Grey: the paper's Table 2, which prints no error.")
    means = "A line for each variant, the mean over its seeds."
    schemes, caption = _ranking_texts(group)
    by_length = "exact_match_by_length" if group.task else "bleu_by_length"
    drawn: list[tuple[str, str, str, str, Callable[[float], Figure | None]]] = [
        ("bleu_by_k", "BLEU by clip distance", "", " ".join(by_k), lambda width: bleu_by_k(group, width)),
        ("scores_by_position", ranking_title(group), schemes, caption, lambda width: scores_by_position(group, width)),
        (by_length, _length_title(group), lines, "", lambda width: bleu_by_length(group, lines, width)),
        ("bits_by_context", CONTEXTS, lines, means, lambda width: bits_by_context(group, lines, width)),
        *(
            ("change_by_recipe", CHANGES, "", "", partial(change_by_recipe, grid))
            for grid in grids
            if grid.group is group
        ),
        ("learning_curves", "Learning curves", lines, means, lambda width: learning_curves(group, runs, lines, width)),
    ]
    return [
        Picture(
            name,
            "; ".join(filter(None, (f"{title}: {group.heading}", remark))),
            caption,
            rendered(figure),
            rendered(column) if name in FIRST and (column := draw(COLUMN)) is not None else None,
            as_pdf(column) if pdf and (column := draw(COLUMN)) is not None else None,
        )
        for name, title, remark, caption, draw in drawn
        if (figure := draw(WIDE)) is not None
    ]


def bleu_by_k(group: Group, width: float = WIDE) -> Figure | None:
    """Our sacreBLEU against k on test and, dashed, on long; variants without k as horizontal lines, the paper in grey.

    Error bars: the standard deviation over several seeds, or one run's interval over sentences. None for a task, on
    which the paper has no figure, or if no relative run has a score. The k axis is categorical: 0 has no logarithm, and
    every k gets the same space.
    """
    series = list(_series(group)) if group.translation else []
    ours = {k for *_, points in series for k, _ in points if k is not None}
    if not ours:
        return None
    ks = sorted({*ours, *paper.TABLE2})
    best_first = sorted(series, key=lambda one: -(one[2][-1][1].value or 0.0))
    papers: dict[str, Any] = {"color": PAPER, "marker": "o"}
    looks = {label: look for label, look, _ in best_first} | {f"the paper: EN-DE, {paper.TABLE2_TEST_SET}": papers}
    with styled():
        figure, [axes] = new_figure(width, 0.3 * width + 1.8, "BLEU by clip distance", group.heading, looks)
        axes.plot([ks.index(k) for k in paper.TABLE2], list(paper.TABLE2.values()), **papers, ms=4, zorder=2)
        set_places(axes, list(map(str, ks)), most=MOST_TICKS if width > COLUMN else MOST_TICKS // 2)
        beside = len(ks) - 0.62  # right of all k, where the error bars of horizontal lines stand next to each other
        for _, look, points in series:
            if points[0][0] is None:
                axes.axhline(points[0][1].value or 0.0, **look, lw=1.3, alpha=0.9, zorder=1)
                error_bars(axes, [(beside, points[0][1])], look["color"])
                beside += 0.1
            else:
                draw_points(axes, [(ks.index(k), score) for k, score in points if k is not None], look, 2.2)
        axes.set_xlim(-0.35, len(ks))
        scores = [score for *_, points in series for _, score in points]
        tops = [(one.value or 0.0) + (reach(one) or (0.0, 0.0))[1] for one in scores]
        axes.set_ylim(0, max([*tops, *paper.TABLE2.values()]) * 1.05 + 1)
        set_words_below(axes, "clip distance k", bar_words(scores))
        axes.set_ylabel("BLEU (ours: sacreBLEU)")
    return figure


def _series(group: Group) -> Iterator[tuple[str, dict[str, Any], list[tuple[int | None, Measurement]]]]:
    """Label, look and points over k of the relative variants of each table sharing, then of the baselines, which have
    one point without k; on every split with a score.
    """
    shades = (COLOURS["relative"], COLOURS["absolute_and_relative"], COLOURS["other"])
    relative = [one for one in group.variants if one.position.kind == "relative"]
    families = []
    for sharing, colour in zip(group.sharings, shades, strict=False):
        name = "relative" if len(group.sharings) == 1 else f"relative, {str(sharing).replace('_', ' ')}"
        families.append((name, colour, [one for one in relative if one.position.tables == sharing]))
    families += [(kind, COLOURS[kind], [one for one in (group.get(kind),) if one is not None]) for kind in _BASELINES]
    for name, colour, variants in families:
        for split in [group.development, *(["long"] if group.column("long") else [])]:
            scores = [(one.position.clip_distance, group.score(one, split)) for one in variants]
            if points := [point for point in scores if point[1].value is not None]:
                look = {"color": colour, "ls": DASHED if split == "long" else "-"}
                if points[0][0] is not None:
                    look |= {"marker": "o", "mfc": WHITE if split == "long" else colour}
                yield f"{name}, {split}", look, points


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


def ranking_title(group: Group) -> str:
    """`sacreBLEU on test, best first`."""
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    return f"{'Exact match' if group.task else 'sacreBLEU'} {where}, best first"


def _ranking_texts(group: Group) -> tuple[str, str]:
    """What the plot leaves out, and what its marks mean."""
    rows, remark = ranked(group)
    words = [f"Dashed: {one.label}." for one, _ in rows if one.position.kind == "absolute"][:1]
    if any(one.unlearned for one, _ in rows):
        words.append("Hollow: did not learn the task.")
    if published := published_figures(group):
        words.append(f"Grey diamonds: {'; '.join(one.citation for one in published)}; compare the order only.")
    return remark, " ".join(words)


def scores_by_position(group: Group, width: float = WIDE) -> Figure | None:
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
        figure, [axes] = new_figure(width, 1.7 + sum(heights), ranking_title(group), group.heading)
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


def _length_title(group: Group) -> str:
    return "Exact match by length" if group.task else "BLEU by source length"


def bleu_by_length(group: Group, remark: str = "", width: float = WIDE) -> Figure | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any.

    Lengths beyond all training examples are shaded. The axis is categorical: every bucket gets the same space.
    """
    columns = buckets(group)
    by_label = {one.label: [length_score(one, group.metric, bucket) for bucket in columns] for one in lines_of(group)}
    last = {  # the value of the longest bucket with a score
        label: known[-1]
        for label, scores in by_label.items()
        if (known := [score.value for score in scores if score.value is not None])
    }
    if not last:
        return None
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    looks = variant_looks(one for one in group.variants if one.label in last)
    ranked = {label: looks[label] for label in sorted(last, key=lambda label: -last[label])}
    with styled():
        title = f"{_length_title(group)}, {pooled(by_length.splits)}"
        figure, [axes] = new_figure(width, 0.3 * width + 2.1, title, group.heading, ranked)
        beyond = [place for place, bucket in enumerate(columns) if bucket.beyond_training]
        names = [f"{bucket.label}\n{count}" for bucket, count in columns.items()]
        set_places(axes, names, beyond[0] if beyond else None, most=len(names) if width > COLUMN else 6)
        for number, label in enumerate(last):
            shift = _ROOM * (number - (len(last) - 1) / 2) / max(len(last), 2)
            draw_points(axes, [(place + shift, one) for place, one in enumerate(by_label[label])], looks[label])
        published = _draw_published(axes, group, columns, looks)
        axes.set_ylim(bottom=0)
        bars = bar_words(score for label in last for score in by_label[label] if score.value is not None)
        shaded = f"shaded: {by_length.longest_in_words}" if beyond else ""
        set_words_below(axes, f"{by_length.unit}; below: sentences", shaded, bars, *published, remark)
        axes.set_ylabel("exact match, percent" if group.task else "BLEU (sacreBLEU)")
    return figure


def _draw_published(
    axes: Axes, group: Group, columns: Iterable[LengthBucket], looks: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Published curves of the same task and schemes, grey, with the markers and dashes of ours; their sources."""
    run, sources = group.runs[0], dict[str, None]()
    facts = {"task": run.task, "max_train_length": run.setting("data.task.max_train_length")}
    first_of_kind = {one.position.kind: one.label for one in reversed(group.variants) if one.label in looks}
    for kind, label in first_of_kind.items() if run.task else ():
        for (source, _), figures in published_curves("length", facts | {"kind": kind}).items():
            places = [(_place(columns, length), single(figure)) for length, figure in figures.items()]
            if points := [(place, figure) for place, figure in places if place is not None]:
                draw_points(axes, points, looks[label] | {"color": PAPER}, 1.2)
                sources[f"grey: {source.citation}; {source.protocol}"] = None
    return [*sources]


def _place(columns: Iterable[LengthBucket], length: int) -> float | None:
    """Where a length stands on the axis of buckets, each of width 1 around its number; None in one without an end."""
    for place, bucket in enumerate(columns):
        first, last = bucket.shortest, bucket.longest
        if last is not None and first <= length <= last:
            return place - 0.5 + (length - first + 0.5) / (last - first + 1)
    return None


def learning_curves(
    group: Group, runs: Sequence[tuple[Variant, Curves]], remark: str = "", width: float = WIDE
) -> Figure | None:
    """Validation BLEU and loss against the step, one line per variant (the mean over seeds); None without any."""
    panels = [("validation/bleu", "validation BLEU"), ("validation/loss", "loss (thin: training)")]
    panels = [(name, title) for name, title in panels if any(curves.get(name) for _, curves in runs)]
    if not panels:
        return None
    means = _means(runs)
    looks = variant_looks(variant for variant, _ in runs)
    with styled():
        height = (3.3 if width > COLUMN else 2.0) * len(panels) + 0.7
        figure, all_axes = new_figure(width, height, "Learning curves", group.heading, looks, (len(panels), 1))
        for axes, (name, title) in zip(all_axes, panels, strict=True):
            for label, series in means.items():
                if name == "validation/loss":
                    thin = {"color": looks[label]["color"], "lw": 0.6, "alpha": 0.35, "zorder": 2}
                    losses = series.get("train/loss", {})
                    axes.plot([*losses], [*losses.values()], **thin)
                points = series.get(name, {})
                every = -(-len(points) // 20) or None
                axes.plot([*points], [*points.values()], **looks[label], lw=1.6, ms=3.2, markevery=every, zorder=3)
            axes.set_ylabel(title)
            if name == "validation/loss":
                _crop_losses(axes, means)
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
        set_words_below(all_axes[-1], "step", remark)
    return figure


def _means(runs: Sequence[tuple[Variant, Curves]]) -> dict[str, Curves]:
    """The mean curves of each variant, at the steps that all its seeds share."""
    members: dict[str, list[Curves]] = {}
    for variant, curves in runs:
        members.setdefault(variant.label, []).append(curves)
    means: dict[str, Curves] = {label: {} for label in members}
    for label, of_seeds in members.items():
        for name in sorted({name for curves in of_seeds for name in curves}):
            seeds = [curves[name] for curves in of_seeds if curves.get(name)]
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            means[label][name] = {step: sum(seed[step] for seed in seeds) / len(seeds) for step in steps}
    return means


def _crop_losses(axes: Axes, means: Mapping[str, Curves]) -> None:
    # The first training losses are far above all others; the axis ends at the highest validation loss.
    seen, trained = (
        [value for series in means.values() for value in series.get(name, {}).values()]
        for name in ("validation/loss", "train/loss")
    )
    low, high = min([*seen, *trained]), max(seen)
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)

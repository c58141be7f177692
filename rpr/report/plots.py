"""The plots of a group: scores by position, by k, by length and by context, and learning curves.

Each function returns None if there is nothing to plot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.kinds import TASK, TRANSLATION
from rpr.records.measurement import Measurement, single
from rpr.records.scores import LengthBucket, pooled
from rpr.report import plot_style as style
from rpr.report.groups import Group, Variant
from rpr.report.lengths import ABSENT, CONTEXTS, WINDOWS, buckets, by_context, context_lengths
from rpr.report.published import Source, published_curves, published_figures
from rpr.report.samples import lines_of, selected
from rpr.tables.grid import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = "scores_by_position|bleu_by_k|bleu_by_length|exact_match_by_length|bits_by_context|learning_curves"
FILE = re.compile(rf"({_NAMES})(-.*)?\.(svg|pdf)")  # of a plot, with the name of its group
MOST_ROWS = 24
_FAR = 3.0  # the axis of scores ends this many times the distance from the best score to the median below the best
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
_Lines = dict[str, list[tuple[float, Measurement]]]  # the points of each label
Curves = dict[str, dict[int, float]]  # of each training metric its values by step


def all_plots(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> list[style.Plot]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant."""
    plots = (scores_by_position(group), bleu_by_k(group), bits_by_context(group), scores_by_length(group))
    return [plot for plot in (*plots, learning_curves(group, runs)) if plot is not None]


def ranked(group: Group) -> tuple[list[tuple[Variant, Measurement]], str]:
    """The variants with a score on the group's split, best first, and a line about those left out, as MOST_ROWS are
    shown at most and none that was scored in another way than the baseline. Empty without at least two.
    """
    scores = [(variant, group.score(variant, group.split)) for variant in group.variants]
    known = [row for row in scores if row[1].value is not None]
    key = group.column(group.split)
    apart = [row[0].label for row in known if "another way" in str(group.change(row[0], key).reason)]
    shown, remark = selected(group, [row for row in known if row[0].label not in apart], MOST_ROWS, "rows are drawn")
    remarks = [remark, f"without {', '.join(apart)}, scored in another way" if apart else ""]
    shown.sort(key=lambda row: group.kind.best_first(row[1].value or 0.0))
    return (shown, "; ".join(filter(None, remarks))) if len(shown) > 1 else ([], "")


def scores_by_position(group: Group) -> style.Plot | None:
    """A dot for each row with its 95% bar, best first, and published figures to compare the order with."""
    rows, remark = ranked(group)
    if not rows:
        return None
    colours, published = style.variant_colours(group.variants), published_figures(group)
    figures = {variant.label: figure for of_source in published.values() for variant, figure in of_source}
    baseline = next((row for row in rows if row[0] is group.baseline), None)
    nearest, farthest = _ends(rows, baseline, group)
    labels = [style.folded(variant.label, 24) for variant, _ in rows]
    room = [0.1 + style.LINE * (label.count("\n") + 1) for label in labels]

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        places = [sum(room[:row]) + height / 2 for row, height in enumerate(room)]
        for place, (variant, score) in zip(places, rows, strict=True):
            look: dict[str, Any] = {"color": colours[variant.label], "zorder": 6}
            value = score.value or 0.0
            if (other := figures.get(variant.label)) is not None:
                axes.plot([other], [place], color=style.PAPER, marker="D", ms=5, zorder=2)
            if min(nearest, farthest) <= value <= max(nearest, farthest):
                style.error_bars(axes, [(place, score)], look["color"], 1.6, across=True)
                axes.plot(
                    [value], [place], marker="o", ms=6, mfc=style.WHITE if group.unlearned(variant) else None, **look
                )
            else:
                axes.plot(
                    [farthest], [place], marker=">" if group.kind.lower_is_better else "<", ms=6, clip_on=False, **look
                )
            axes.text(1.04, place, number(value, group.digits), transform=axes.get_yaxis_transform(), va="center")
        if baseline is not None:
            axes.axvline(baseline[1].value or 0.0, color=colours[baseline[0].label], lw=1.0, ls=style.DASHED, zorder=1)
        axes.set_yticks(places, map(style.plain, labels), linespacing=1.0)
        axes.set_ylim(sum(room), 0)
        axes.set_xlim(*sorted((nearest, farthest)))
        axes.tick_params(axis="y", length=0, pad=9)
        axes.spines["left"].set_visible(False)

    values = [score.value or 0.0 for _, score in rows]
    marks = [style.BARS, *([f"Dashed: {baseline[0].label}."] if baseline else [])]
    marks += (
        ["Arrows: beyond the axis."] if any((value - farthest) * (nearest - farthest) < 0 for value in values) else []
    )
    marks += ["Hollow: not learned."] if any(group.unlearned(variant) for variant, _ in rows) else []
    if published:
        marks.append(f"Grey diamonds: {'; '.join(source.citation for source in published)}; compare the order only.")
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    title = f"{group.kind.heading[:1].upper()}{group.kind.heading[1:]} {where}, best first"
    return style.Plot(
        "scores_by_position", title, group.heading, draw, height=0.4 + sum(room), remark=remark, caption=" ".join(marks)
    )


def _ends(
    rows: Sequence[tuple[Variant, Measurement]], baseline: tuple[Variant, Measurement] | None, group: Group
) -> tuple[float, float]:
    """The ends of the axis on the side of the best and of the worst score. Rows far below the others would press these
    together: they lie beyond the axis.
    """
    if group.kind.shares:
        return 102.0, -2.0
    values = [score.value or 0.0 for _, score in rows]
    sign = 1 if values[0] >= values[-1] else -1
    least = values[0] - _FAR * (values[0] - median(values)) if len(values) > 4 else values[-1]
    kept = [row for row in rows if sign * ((row[1].value or 0.0) - least) >= 0 or row is baseline]
    reached = [style.bar(score) for _, score in kept]
    low, high = min(low for low, _ in reached), max(high for _, high in reached)
    margin = 0.04 * (high - low) or 1.0
    return (high + margin, low - margin) if sign == 1 else (low - margin, high + margin)


def bleu_by_k(group: Group) -> style.Plot | None:
    """Our sacreBLEU against k, the paper's in grey, and horizontal lines for variants without k; None unless relative
    positions have a score with two values of k.

    The k axis is categorical: 0 has no logarithm, and every k gets the same space.
    """
    by_k = {one.position.clip_distance: one for one in reversed(group.variants) if one.position.kind == "relative"}
    scores = {k: group.score(by_k[k], group.development) for k in sorted(k for k in by_k if k is not None)}
    ours = {k: score for k, score in scores.items() if score.value is not None}
    if group.kind is not TRANSLATION or len(ours) < 2:
        return None
    table2 = {k: single(figure) for k, figure in paper.TABLE2.items()} if group.published else {}
    ks = sorted({*ours, *table2})
    levels = {one.label: one for one in map(group.get, ("absolute", "learned", "none")) if one.records}
    looks = {"relative": style.look(style.COLOURS["relative"])}
    looks |= {"the paper, EN-DE": style.look(style.PAPER)} if table2 else {}
    looks |= {label: style.look(style.COLOURS[one.position.kind], "") for label, one in levels.items()}

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        style.set_places(axes, list(map(str, ks)))
        curves: _Lines = {"relative": [(ks.index(k), score) for k, score in ours.items()]}
        curves |= {"the paper, EN-DE": [(ks.index(k), figure) for k, figure in table2.items()]} if table2 else {}
        for label, variant in levels.items():
            score = group.score(variant, group.development)
            curves[label] = [(-0.5, replace(score, interval=None)), (len(ks) - 0.5, score)]
        axes.set_xlabel("clip distance k")
        axes.set_ylabel("BLEU")
        style.draw_lines(axes, curves, looks)

    caption = f"Ours: sacreBLEU on {group.development}. {style.BARS}"
    caption += " Grey: the paper's Table 2, which prints no error." if table2 else ""
    return style.Plot("bleu_by_k", "BLEU by clip distance", group.heading, draw, caption=caption)


def scores_by_length(group: Group) -> style.Plot | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any.

    Lengths beyond all training examples are shaded. The axis is categorical: every bucket gets the same space.
    """
    columns, (variants, remark) = buckets(group), lines_of(group)
    keys = [(group.metric, *bucket.key) for bucket in columns]
    scores = {variant.label: [variant.measured(key, ABSENT) for key in keys] for variant in variants}
    shown = [variant for variant in variants if any(score.value is not None for score in scores[variant.label])]
    if not shown:
        return None
    curves: _Lines = {}
    for at, variant in enumerate(shown):
        shift = _ROOM * (at - (len(shown) - 1) / 2) / max(len(shown), 2)
        curves[variant.label] = [(place + shift, score) for place, score in enumerate(scores[variant.label])]
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    beyond = next((place for place, bucket in enumerate(columns) if bucket.beyond_training), None)
    published, looks = _published(group, [*columns], shown), style.variant_looks(shown, group.variants)

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        style.set_places(axes, [f"{bucket.label}\n{count}" for bucket, count in columns.items()], beyond)
        for points in (points for by_label in published.values() for points in by_label.values()):
            axes.plot(*zip(*points, strict=True), color=style.PAPER, marker="o", ms=4, lw=1.2, zorder=2)
        if group.kind.shares:
            axes.set_ylim(-3, 104)  # of percent no bar says more than 100
        axes.set_xlabel(f"{by_length.unit}; below: sentences")
        axes.set_ylabel(group.kind.heading)
        style.draw_lines(axes, curves, looks)

    caption = [style.BARS, "" if beyond is None else f"Shaded: {by_length.longest_in_words}."]
    caption += [f"Grey: {source.citation}; {source.protocol}." for source in published]
    name, what = (
        ("exact_match_by_length", "Exact match by") if group.kind is TASK else ("bleu_by_length", "BLEU by source")
    )
    title, height = f"{what} length, {pooled(by_length.splits)}", _height(shown)
    return style.Plot(name, title, group.heading, draw, 1, height, remark, " ".join(filter(None, caption)))


def _published(
    group: Group, columns: Sequence[LengthBucket], variants: Sequence[Variant]
) -> dict[Source, dict[str, list[tuple[int, float]]]]:
    """Published curves of the same task and schemes, at lengths with a bucket of their own."""
    run = group.runs[0]
    facts = {"task": run.task, "max_train_length": run.setting("data.task.max_train_length")}
    facts |= {"architecture": run.setting("model.architecture") or "encoder_decoder"}
    places = {one.shortest: place for place, one in enumerate(columns) if one.shortest == one.longest}
    found: dict[Source, dict[str, list[tuple[int, float]]]] = {}
    for (source, _), by_label in (
        published_curves(variants, facts) if run.task is not None and group.published else {}
    ).items():
        for label, figures in by_label.items():
            points = [(places[length], figure.value or 0.0) for length, figure in figures.items() if length in places]
            if points:
                found.setdefault(source, {})[label] = points
    return found


def bits_by_context(group: Group) -> style.Plot | None:
    """Bits per byte against the length of the context, a panel for each kind of windows; None with fewer than two
    lengths. Lengths beyond that of training are shaded. Every length gets the same space.
    """
    (variants, remark), scored = lines_of(group), by_context(group)
    keys = context_lengths(scored)
    lengths = sorted({length for _, length in keys})
    if len(lengths) < 2:
        return None
    kinds = [kind for kind in WINDOWS if any(kind == windows for windows, _ in keys)]
    trained = max(context.training_length for context in scored)
    beyond = next((at for at, length in enumerate(lengths) if length > trained), None)

    def draw(panels: Sequence[Axes]) -> None:
        for axes, kind in zip(panels, kinds, strict=True):
            style.set_places(axes, [f"{length:,}" for length in lengths], beyond)
            of_kind = [(scored[0].split, kind, length) for length in lengths]
            curves = {one.label: [*enumerate(one.measured(key, ABSENT) for key in of_kind)] for one in variants}
            style.draw_lines(axes, curves, style.variant_looks(variants, group.variants), log=True)
            axes.set_title(f"{kind} windows", loc="left", fontsize=10)
            axes.set_ylabel("bits per byte")
        panels[-1].set_xlabel("tokens of context")

    caption = f"Less is better. {style.BARS}"
    caption += "" if beyond is None else f" Shaded: longer than in training, {trained:,} tokens."
    about = (len(kinds), _height(variants), remark, caption)
    return style.Plot("bits_by_context", CONTEXTS, group.heading, draw, *about)


def learning_curves(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> style.Plot | None:
    """Validation loss and BLEU against the step, one line per variant (the mean over seeds); None without any."""
    titles = {"validation/loss": "validation loss", "validation/bleu": "validation BLEU"}
    curved = [run for variant, _ in runs for run in variant.finished or variant.records]
    if len({str(run.setting("evaluation.validation_sentences")) for run in curved} - {"0"}) > 1:
        del titles["validation/bleu"]  # of other sentences it has no mean
    titles = {name: title for name, title in titles.items() if any(curves.get(name) for _, curves in runs)}
    if not titles:
        return None
    means, looks = _means(runs), style.variant_looks((variant for variant, _ in runs), group.variants)

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            points = {label: series.get(name, {}) for label, series in means.items()}
            lines = {label: [(step, single(mean)) for step, mean in of.items()] for label, of in points.items()}
            axes.set_ylabel(title)
            style.draw_lines(axes, lines, looks, most_marks=20)
            axes.set_xlim(left=0)
        panels[-1].set_xlabel("step")

    about = (len(titles), _height([*means]), lines_of(group)[1], "A line for each row, the mean over its seeds.")
    return style.Plot("learning_curves", "Learning curves", group.heading, draw, *about)


def _height(lines: Sequence[Any]) -> float:
    """Of a panel with a label at the end of each line, in inches."""
    return max(3.0, 0.16 * len(lines) + 1)


def _means(runs: Sequence[tuple[Variant, Curves]]) -> dict[str, Curves]:
    """The mean curves of each variant, at the steps that all its seeds share."""
    means: dict[str, Curves] = {}
    for label in dict.fromkeys(variant.label for variant, _ in runs):
        of_seeds = [curves for variant, curves in runs if variant.label == label]
        means[label] = {}
        for name in sorted({name for curves in of_seeds for name in curves}):
            seeds = [curves[name] for curves in of_seeds if curves.get(name)]
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            means[label][name] = {step: sum(seed[step] for seed in seeds) / len(seeds) for step in steps}
    return means

"""The plots of a group: BLEU against k, by scheme, by length and by context, learning curves.

Each function returns None if there is nothing to plot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.model.positions import SCHEMES
from rpr.records.measurement import Measurement
from rpr.records.scores import LengthBucket, pooled
from rpr.report import plot_style as style
from rpr.report.groups import Group, Variant
from rpr.report.lengths import ABSENT, bits_by_context, buckets
from rpr.report.published import published_curves
from rpr.report.samples import lines_of, sampled
from rpr.report.tables import published_figures
from rpr.tables.grid import figure_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BASELINES = ("absolute", "learned", "none")
_NAMES = "bleu_by_k|scores_by_position|bleu_by_length|exact_match_by_length|bits_by_context|learning_curves"
FILE = re.compile(rf"({_NAMES})(-.*)?\.(svg|pdf)")  # of a plot, with the name of its group
MOST_ROWS = 24
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
Curves = dict[str, dict[int, float]]  # of each training metric its values by step


def all_plots(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> list[style.Plot]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant."""
    plots = (bleu_by_k(group), scores_by_position(group), scores_by_length(group), bits_by_context(group))
    return [plot for plot in (*plots, learning_curves(group, runs)) if plot is not None]


def bleu_by_k(group: Group) -> style.Plot | None:
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
    best_first = sorted(series, key=lambda line: -(line[2][-1][1].value or 0.0))
    drawn = [variant for variants in _families(group).values() for variant in variants]
    others = [variant for variant in group.variants if variant not in drawn]  # of other tables, length or code
    alike = [row for row in others if row.position.kind in _BASELINES or row.label.startswith("relative, ")]
    left_out = "; ".join(f"Without {variant.label}" for variant in alike)
    papers: dict[str, Any] = {"color": style.PAPER, "marker": "o"}
    looks = {label: look for label, look, _ in best_first} | {f"the paper: EN-DE, {paper.TABLE2_TEST_SET}": papers}

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        axes.plot([ks.index(k) for k in paper.TABLE2], list(paper.TABLE2.values()), **papers, ms=4, zorder=2)
        style.set_places(axes, list(map(str, ks)))
        beside = len(ks) - 0.62  # right of all k, where the error bars of horizontal lines stand next to each other
        for _, look, points in series:
            if points[0][0] is None:
                axes.axhline(points[0][1].value or 0.0, **look, lw=1.3, alpha=0.9, zorder=1)
                style.error_bars(axes, [(beside, points[0][1])], look["color"])
                beside += 0.1
            else:
                style.draw_points(axes, [(ks.index(k), score) for k, score in points if k is not None], look, 2.2)
        axes.set_xlim(-0.35, len(ks))
        scores = [score for *_, points in series for _, score in points]
        tops = [(score.value or 0.0) + (style.reach(score) or (0.0, 0.0))[1] for score in scores]
        axes.set_ylim(0, max([*tops, *paper.TABLE2.values()]) * 1.05 + 1)
        style.set_words_below(axes, "clip distance k", style.bar_words(scores), left_out)
        axes.set_ylabel("BLEU (ours: sacreBLEU)")

    caption = f"Solid: {group.development}; dashed: long. " if group.column("long") else ""
    caption += "Grey: the paper's Table 2, which prints no error."
    return style.Plot(
        "bleu_by_k", "BLEU by clip distance", group.heading, draw, looks, remark=left_out, caption=caption
    )


def _families(group: Group) -> dict[str, list[Variant]]:
    """The relative variants, one for each k, and the baselines, by kind."""
    by_k: dict[int | None, Variant] = {}
    for variant in group.variants:
        if variant.position.kind == "relative":
            by_k.setdefault(variant.position.clip_distance, variant)
    return {"relative": [*by_k.values()], **{kind: [group.get(kind)] for kind in _BASELINES}}


def _series(group: Group) -> Iterator[tuple[str, dict[str, Any], list[tuple[int | None, Measurement]]]]:
    """Label, look and points over k of relative variants, then of baselines (one point, without k), on each split."""
    for kind, variants in _families(group).items():
        colour = style.COLOURS[kind]
        for split in [group.development, *(["long"] if group.column("long") else [])]:
            scores = [(variant.position.clip_distance, group.score(variant, split)) for variant in variants]
            if points := [point for point in scores if point[1].value is not None]:
                look = {"color": colour, "ls": style.DASHED if split == "long" else "-"}
                if points[0][0] is not None:
                    look |= {"marker": "o", "mfc": style.WHITE if split == "long" else colour}
                yield f"{kind}, {split}", look, points


def ranked(group: Group) -> tuple[list[tuple[Variant, Measurement]], str]:
    """The variants with a score on the group's split, best first, and a line about those left out (MOST_ROWS are shown
    at most). Empty without at least two that the paper does not have.

    Of a translation corpus without the rows of the paper's Tables 2 and 3, except for relative positions with its k
    (without it, the largest), and without models that did not learn. Of a generated task every variant, whatever they
    are.
    """
    if group.documents:
        return [], ""
    scores = [(variant, group.score(variant, group.split)) for variant in group.variants]
    known = [(variant, score) for variant, score in scores if score.value is not None]
    unlearned = [variant for variant, _ in known if variant.unlearned and not group.task]
    first = group.baseline if group.baseline in (row[0] for row in known) else known[0][0] if known else None
    apart = [row[0] for row in known if first and group.change(row[0], first, group.split).value is None]
    scored = [row for row in known if row[0] not in (*unlearned, *apart)]
    relative = [variant for variant, _ in scored if variant.position.kind == "relative"]
    kept = [group.papers_relative] if group.papers_relative in relative else relative[-1:]
    rows = [row for row in scored if group.task or row[0] in kept or row[0].position.kind not in paper.TABULATED]
    others = sum(variant.position.kind not in SCHEMES["vectors"].colours() for variant, _ in rows)
    if len(rows) < 2 or (others < 2 and not group.task):
        return [], ""
    shown, remark = sampled(rows, MOST_ROWS, "schemes have a row")
    remarks = [remark, *(f"Without {variant.label}, {variant.unlearned}" for variant in unlearned)]
    remarks += [f"Without {variant.label}, scored in another way" for variant in apart]
    return sorted(shown, key=lambda row: -(row[1].value or 0.0)), "; ".join(filter(None, remarks))


def scores_by_position(group: Group) -> style.Plot | None:
    """A dot for each scheme with its error bar, and published figures to compare the order with; None without any."""
    rows, remark = ranked(group)
    if not rows:
        return None
    colours, published = style.variant_colours(group.variants), published_figures(group)
    figures = {variant.label: figure for of_source in published.values() for variant, figure in of_source}
    absolute = [row for row in rows if row[0].position.kind == "absolute"][:1]
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"

    labels = [style.folded(variant.label, 21) for variant, _ in rows]
    room = [0.13 + style.LINE * (label.count("\n") + 1) for label in labels]

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        places = [sum(room[:row]) + height / 2 for row, height in enumerate(room)]
        for place, (variant, score) in zip(places, rows, strict=True):
            colour = colours[variant.label]
            if (other := figures.get(variant.label)) is not None:
                axes.plot([other], [place], color=style.PAPER, marker="D", ms=5, zorder=2)
            style.error_bars(axes, [(place, score)], colour, 1.6, across=True)
            filled = style.WHITE if variant.unlearned else colour
            axes.plot([score.value or 0.0], [place], color=colour, mfc=filled, marker="o", ms=6, zorder=6)
            value = figure_text(score, 1)[0]
            axes.text(1.01, place, value, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
        for variant, score in absolute:
            axes.axvline(score.value or 0.0, color=colours[variant.label], lw=1.0, ls=style.DASHED, zorder=1)
        axes.set_yticks(places, map(style.plain, labels), linespacing=1.0)
        axes.set_ylim(sum(room), 0)
        if group.task:
            axes.set_xlim(-2, 102)
        style.set_words_below(axes, style.bar_words(score for _, score in rows), remark)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)

    marks = [f"Dashed: {variant.label}." for variant, _ in absolute]
    if any(variant.unlearned for variant, _ in rows):
        marks.append("Hollow: did not learn the task.")
    if published:
        marks.append(f"Grey diamonds: {'; '.join(source.citation for source in published)}; compare the order only.")
    title = f"{'Exact match' if group.task else 'sacreBLEU'} {where}, best first"
    height, caption = 0.9 + sum(room), " ".join(marks)
    return style.Plot("scores_by_position", title, group.heading, draw, {}, 1, 1, remark, caption, height)


def scores_by_length(group: Group) -> style.Plot | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any.

    Lengths beyond all training examples are shaded. The axis is categorical: every bucket gets the same space.
    """
    columns, (variants, remark) = buckets(group), lines_of(group)
    keys = [(group.metric, *bucket.key) for bucket in columns]
    by_label = {variant.label: [variant.measured(key, ABSENT) for key in keys] for variant in variants}
    known = {label: [one.value for one in scores if one.value is not None] for label, scores in by_label.items()}
    last = {label: values[-1] for label, values in known.items() if values}  # of the longest bucket with a score
    if not last:
        return None
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    looks = style.variant_looks(variant for variant in group.variants if variant.label in last)
    name = "exact_match_by_length" if group.task else "bleu_by_length"
    title = f"{'Exact match by' if group.task else 'BLEU by source'} length, {pooled(by_length.splits)}"

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        beyond = [place for place, bucket in enumerate(columns) if bucket.beyond_training]
        names = [f"{bucket.label}\n{count}" for bucket, count in columns.items()]
        style.set_places(axes, names, beyond[0] if beyond else None)
        for number, label in enumerate(last):
            shift = _ROOM * (number - (len(last) - 1) / 2) / max(len(last), 2)
            points = [(place + shift, score) for place, score in enumerate(by_label[label])]
            style.draw_points(axes, points, looks[label])
        published = _draw_published(axes, group, columns, looks)
        axes.set_ylim(0, 104 if group.task else None)  # of percent no bar says more than 100
        bars = style.bar_words(score for label in last for score in by_label[label] if score.value is not None)
        shaded = f"shaded: {by_length.longest_in_words}" if beyond else ""
        style.set_words_below(axes, f"{by_length.unit}; below: sentences", shaded, bars, *published, remark)
        axes.set_ylabel("exact match, percent" if group.task else "BLEU (sacreBLEU)")

    best_first = {label: looks[label] for label in sorted(last, key=lambda label: -last[label])}
    return style.Plot(name, title, group.heading, draw, best_first, remark=remark)


def _draw_published(
    axes: Axes, group: Group, columns: Iterable[LengthBucket], looks: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Published curves of the same task and schemes, in grey, at lengths with a bucket of their own; their sources."""
    run, sources = group.runs[0], dict[str, None]()
    if run.task is None:
        return []
    facts = {"task": run.task, "max_train_length": run.setting("data.task.max_train_length")}
    facts |= {"architecture": run.setting("model.architecture") or "encoder_decoder"}
    places = {bucket.shortest: place for place, bucket in enumerate(columns) if bucket.shortest == bucket.longest}
    variants = [variant for variant in group.variants if variant.label in looks]
    for (source, _), by_label in published_curves(variants, facts).items():
        for label, figures in by_label.items():
            if points := [(places[length], figure) for length, figure in figures.items() if length in places]:
                style.draw_points(axes, points, looks[label] | {"color": style.PAPER}, 1.2)
                sources[f"grey: {source.citation}; {source.protocol}"] = None
    return [*sources]


def learning_curves(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> style.Plot | None:
    """Validation BLEU and loss against the step, one line per variant (the mean over seeds); None without any."""
    smoothed = ", smoothed labels" if group.runs[0].setting("optim.label_smoothing") else ""  # validation's are not
    titles = {"validation/bleu": "validation BLEU", "validation/loss": f"loss (thin: training{smoothed})"}
    titles = {name: title for name, title in titles.items() if any(curves.get(name) for _, curves in runs)}
    remark = lines_of(group)[1]
    curved = [run for variant, _ in runs for run in variant.finished or variant.records]
    sentences = {str(run.setting("evaluation.validation_sentences")) for run in curved} - {"0"}
    if len(sentences) > 1 and "validation/bleu" in titles:
        del titles["validation/bleu"]
        remark = "; ".join(filter(None, (remark, "no validation BLEU: it is of other sentences in some runs")))
    if not titles:
        return None
    means, looks = _means(runs), style.variant_looks(variant for variant, _ in runs)

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            for label, series in means.items():
                points = series.get(name, {})
                every = -(-len(points) // 20) or None
                axes.plot([*points], [*points.values()], **looks[label], lw=1.6, ms=3.2, markevery=every, zorder=3)
            axes.set_ylabel(title)
            axes.set_xlim(left=0)
            if name == "validation/bleu":
                axes.set_ylim(bottom=0)
                continue
            # The first training losses are far above all others; the axis ends at the highest validation loss.
            bottom, top = axes.get_ylim()
            for label, series in means.items():
                losses = series.get("train/loss", {})
                axes.plot([*losses], [*losses.values()], color=looks[label]["color"], lw=0.6, alpha=0.35, zorder=2)
                bottom = min([bottom, *losses.values()])
            axes.set_ylim(bottom, top)
        style.set_words_below(panels[-1], "step", remark)

    about = (group.heading, draw, looks, len(titles), 1, remark, style.MEANS)
    return style.Plot("learning_curves", "Learning curves", *about)


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

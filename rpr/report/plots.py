"""The plots of a group: BLEU against k, by scheme (rpr.report.ranking), by length and by context, learning curves.

Each function returns None if there is nothing to plot. `width`: WIDE, or COLUMN for a column of a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.records.measurement import Measurement
from rpr.records.scores import pooled
from rpr.report import ranking
from rpr.report.contexts import CONTEXTS, bits_by_context
from rpr.report.groups import Group, Variant
from rpr.report.lengths import Bucket, buckets, length_score
from rpr.report.plot_style import (
    COLOURS,
    COLUMN,
    DASHED,
    PAPER,
    WHITE,
    WIDE,
    as_pdf,
    bar_words,
    error_bars,
    new_figure,
    reach,
    rendered,
    set_words_below,
    shade_beyond,
    styled,
    variant_looks,
)
from rpr.report.published import curves as published_curves
from rpr.report.recipes import CHANGES, Recipes, change_by_recipe
from rpr.report.sampling import left_out, lines_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINES = ("absolute", "learned", "none")
MOST_TICKS = 24
FIRST = ("bleu_by_k", "bits_by_context", "scores_by_position")  # plots that may be the first of a page
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
Curves = dict[str, tuple[tuple[int, float], ...]]  # (step, value) pairs of each training metric


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
    by_k += ["Grey: the paper's Table 2, which prints no error.", *_learning(group)]
    means = "A line for each variant, the mean over its seeds."
    schemes, caption = ranking.texts(group)
    by_length = "exact_match_by_length" if group.task else "bleu_by_length"
    drawn: list[tuple[str, str, str, str, Callable[[float], Figure | None]]] = [
        ("bleu_by_k", "BLEU by clip distance", "", " ".join(by_k), lambda width: bleu_by_k(group, width)),
        ("scores_by_position", ranking.title(group), schemes, caption, lambda width: ranking.draw(group, width)),
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


def _learning(group: Group) -> Iterator[str]:
    falling = [variant.label for variant in group.variants if variant.still_learning is not None]
    if len(falling) == len(group.variants) > 1:
        yield "Every variant was still learning when its training ended."
    elif falling:
        yield f"Still learning when the training ended: {'; '.join(falling)}."


@dataclass(frozen=True)
class _Series:
    """The scores of one split: over k, or, with k None, a baseline's horizontal line."""

    name: str
    split: str
    colour: str
    points: tuple[tuple[int | None, Measurement], ...]

    @property
    def look(self) -> dict[str, Any]:
        dashed = self.split == "long"
        look = {"color": self.colour, "ls": DASHED if dashed else "-"}
        if self.points[0][0] is None:
            return look
        return look | {"marker": "o", "mfc": WHITE if dashed else self.colour, "mec": self.colour}


def bleu_by_k(group: Group, width: float = WIDE) -> Figure | None:
    """Our sacreBLEU against k on test and, dashed, on long; variants without k as horizontal lines, the paper in grey.

    Error bars: the standard deviation over several seeds, or one run's interval over sentences. None for a task, on
    which the paper has no figure, or if no relative run has a score. The k axis is categorical: 0 has no logarithm, and
    every k gets the same space.
    """
    series = list(_series(group)) if group.translation else []
    if all(k is None for one in series for k, _ in one.points):
        return None
    ks = sorted({k for one in series for k, _ in one.points if k is not None} | set(paper.TABLE2))
    place = {k: index for index, k in enumerate(ks)}
    papers: dict[str, Any] = {"color": PAPER, "marker": "o"}
    best_first = sorted(series, key=lambda one: -(one.points[-1][1].value or 0.0))
    looks = {f"{one.name}, {one.split}": one.look for one in best_first}
    looks[f"the paper: EN-DE, {paper.TABLE2_TEST_SET}"] = papers
    with styled():
        figure, [axes] = new_figure(width, 0.3 * width + 1.8, "BLEU by clip distance", group.heading, looks)
        axes.plot([place[k] for k in paper.TABLE2], list(paper.TABLE2.values()), **papers, ms=4, zorder=2)
        for one in series:
            # The error bars of horizontal lines are next to each other at the right, beyond all k.
            baseline = one.points[0][0] is None
            at = len(ks) - 0.62 + 0.12 * (_BASELINES.index(one.name) if baseline else 0)
            points = [(at if k is None else place[k], score) for k, score in one.points]
            if baseline:
                axes.axhline(points[0][1].value or 0.0, **one.look, lw=1.3, alpha=0.9, zorder=1)
            else:
                axes.plot(*_xy(points), **one.look, lw=2.2, ms=5, zorder=4)
            error_bars(axes, points, one.colour)
        every = -(-len(ks) // (MOST_TICKS if width > COLUMN else MOST_TICKS // 2))
        axes.set_xticks(range(0, len(ks), every), [str(k) for k in ks[::every]])
        axes.set_xlim(-0.35, len(ks) - 0.25)
        scores = [score for one in series for _, score in one.points]
        tops = [(one.value or 0.0) + (reach(one) or (0.0, 0.0))[1] for one in scores]
        axes.set_ylim(0, max([*tops, *paper.TABLE2.values()]) * 1.05 + 1)
        set_words_below(axes, "clip distance k", bar_words(scores))
        axes.set_ylabel("BLEU (ours: sacreBLEU)")
        axes.grid(visible=False, axis="x")
    return figure


def _series(group: Group) -> Iterable[_Series]:
    """The curve of each kind of table sharing, then the baselines, each on every split with a score."""
    shades = (COLOURS["relative"], COLOURS["absolute_and_relative"], COLOURS["other"])
    relative = [one for one in group.variants if one.position.kind == "relative"]
    members = []
    for sharing, colour in zip(group.sharings, shades, strict=False):
        name = "relative" if len(group.sharings) == 1 else f"relative, {str(sharing).replace('_', ' ')}"
        members.append((name, colour, [one for one in relative if one.position.tables == sharing]))
    members += [(kind, COLOURS[kind], [one for one in (group.get(kind),) if one is not None]) for kind in _BASELINES]
    splits = [group.development, *(["long"] if group.column("long") else [])]
    for name, colour, variants in members:
        for split in splits:
            scores = [(one.position.clip_distance, group.score(one, split)) for one in variants]
            if points := tuple(point for point in scores if point[1].value is not None):
                yield _Series(name, split, colour, points)


def _xy(points: Sequence[tuple[float, Measurement]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [one.value or 0.0 for _, one in points]


def _length_title(group: Group) -> str:
    return "Exact match by length" if group.task else "BLEU by source length"


def bleu_by_length(group: Group, remark: str = "", width: float = WIDE) -> Figure | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any.

    Lengths beyond all training examples are shaded. The axis is categorical: every bucket gets the same space.
    """
    columns = buckets(group)
    scores = {
        variant.label: [length_score(variant, group.metric, bucket) for bucket in columns]
        for variant in lines_of(group)
    }
    points = {
        label: [(index, score) for index, score in enumerate(by_bucket) if score.value is not None]
        for label, by_bucket in scores.items()
    }
    points = {label: known for label, known in points.items() if known}
    if not points:
        return None
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    looks = variant_looks(one for one in group.variants if one.label in points)
    ranked = sorted(points, key=lambda label: -(points[label][-1][1].value or 0.0))
    with styled():
        title = f"{_length_title(group)}, {pooled(by_length.splits)}"
        figure, [axes] = new_figure(
            width, 0.3 * width + 2.1, title, group.heading, {label: looks[label] for label in ranked}
        )
        beyond = [index for index, bucket in enumerate(columns) if bucket.first.beyond_training]
        shade_beyond(axes, beyond[0] if beyond else None, len(columns))
        for number, (label, known) in enumerate(points.items()):
            shift = _ROOM * (number - (len(points) - 1) / 2) / max(len(points), 2)
            shifted = [(index + shift, score) for index, score in known]
            axes.plot(*_xy(shifted), **looks[label], lw=1.6, ms=4, zorder=4)
            error_bars(axes, shifted, looks[label]["color"], 1.0)
        published = _draw_published(axes, group, columns, looks)
        counts = ["–" if bucket.num_sentences is None else f"{bucket.num_sentences:,}" for bucket in columns]
        ticks = [f"{bucket.first.label}\n{count}" for bucket, count in zip(columns, counts, strict=True)]
        every = 1 if width > COLUMN else -(-len(columns) // 6)
        axes.set_xticks(range(0, len(columns), every), ticks[::every])
        axes.set_ylim(bottom=0)
        bars = bar_words(score for known in points.values() for _, score in known)
        shaded = f"shaded: {by_length.longest_in_words}" if beyond else ""
        set_words_below(axes, f"{by_length.unit}; below: sentences", shaded, bars, *published, remark)
        axes.set_ylabel("exact match, percent" if group.task else "BLEU (sacreBLEU)")
    return figure


def _draw_published(
    axes: Axes, group: Group, columns: Sequence[Bucket], looks: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Published curves of the same task and schemes, grey, with the markers and dashes of ours; their sources."""
    run, sources = group.runs[0], dict[str, None]()
    facts = {"task": run.task, "max_train_length": run.setting("data.task.max_train_length")}
    first_of_kind = {one.position.kind: one.label for one in reversed(group.variants) if one.label in looks}
    for kind, label in first_of_kind.items() if run.task else ():
        for (source, _), figures in published_curves("length", facts | {"kind": kind}).items():
            points = [
                (
                    index
                    - 0.5
                    + (length - bucket.first.shortest + 0.5) / (bucket.first.longest - bucket.first.shortest + 1),
                    figure,
                )
                for index, bucket in enumerate(columns)
                for length, figure in figures.items()
                if bucket.first.longest is not None and bucket.first.shortest <= length <= bucket.first.longest
            ]
            if points:
                axes.plot(*zip(*points, strict=True), **(looks[label] | {"color": PAPER}), lw=1.2, ms=4, zorder=3)
                sources[f"grey: {source.citation}; {source.protocol}"] = None
    return [*sources]


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
                    axes.plot(*_steps(series.get("train/loss", ())), **thin)
                points = series.get(name, ())
                every = -(-len(points) // 20) or None
                axes.plot(*_steps(points), **looks[label], lw=1.6, ms=3.2, markevery=every, zorder=3)
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
            seeds = [dict(curves[name]) for curves in of_seeds if curves.get(name)]
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            means[label][name] = tuple((step, sum(seed[step] for seed in seeds) / len(seeds)) for step in steps)
    return means


def _steps(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _crop_losses(axes: Axes, means: Mapping[str, Curves]) -> None:
    # The first training losses are far above all others; the axis ends at the highest validation loss.
    seen, trained = (
        [value for series in means.values() for _, value in series.get(name, ())]
        for name in ("validation/loss", "train/loss")
    )
    low, high = min([*seen, *trained]), max(seen)
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)

"""The plots of a group: BLEU against k, by scheme (rpr.report.ranking), by length, speed, learning curves.

Each function returns None if there is nothing to plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.records.measurement import Measurement
from rpr.records.scores import pooled
from rpr.report import ranking
from rpr.report.contexts import bits_by_context
from rpr.report.groups import Group, Variant
from rpr.report.lengths import buckets, length_score
from rpr.report.plot_style import (
    COLOURS,
    DASHED,
    GRID,
    INK,
    LINE,
    MUTED,
    PAPER,
    WHITE,
    as_pdf,
    bar_words,
    error_bars,
    label_ends,
    legend_below,
    new_figure,
    plain,
    reach,
    rendered,
    set_margins,
    styled,
    text_width,
    variant_looks,
)
from rpr.report.sampling import left_out, lines_of, sample_evenly
from rpr.report.speed import ratio_to_absolute, steps_per_second

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINES = ("absolute", "learned", "none")
MOST_BARS, MOST_TICKS = 24, 24
_WIDE, _NARROW = (7.4, 4.5), (3.5, 4.1)  # inches
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
Curves = dict[str, tuple[tuple[int, float], ...]]  # (step, value) pairs of each training metric


@dataclass(frozen=True)
class Picture:
    """An SVG image with its name, its alternative text and its caption.

    `narrow`: the version for a phone, if the image would be illegible there. `pdf`: for a column
    of a paper, if asked for.
    """

    name: str
    description: str
    caption: str
    svg: bytes
    narrow: bytes | None = None
    pdf: bytes | None = None


def all_plots(group: Group, runs: Sequence[tuple[Variant, Curves]], *, pdf: bool = False) -> list[Picture]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant.

    Args:
        pdf: also as PDF in the width of a column.
    """
    total = len(group.variants)
    lines = left_out(len(lines_of(group)), total, "variants have a line")
    bars = left_out(min(MOST_BARS, total), total, "variants have a bar")
    by_k = [f"Solid: {group.development}; dashed: long."] if group.column("long") else []
    by_k += ["Grey: the paper's Table 2, which prints no error.", *_learning(group)]
    ratios = (
        "Beside each bar: the ratio, and the steps per second. Whiskers: ± the standard deviation, where there are "
        "several seeds. Dashed: the paper's relative positions."
    )
    means = "A line for each variant, the mean over its seeds."
    by_position = ranking.scores_by_position(group)
    found = [
        ("bleu_by_k", "BLEU by clip distance", "", " ".join(by_k), bleu_by_k(group), bleu_by_k(group, narrow=True)),
        *([] if by_position is None else [("scores_by_position", *by_position)]),
        (by_length_name(group), _length_title(group), lines, "", bleu_by_length(group, lines), None),
        (
            "bits_by_context",
            "Bits per byte by length of the context",
            lines,
            means,
            bits_by_context(group, lines),
            None,
        ),
        ("speed", "Steps per second relative to absolute", bars, ratios, speed(group, bars), None),
        ("learning_curves", "Learning curves", lines, means, learning_curves(group, runs, lines), None),
    ]
    columns = {
        by_length_name(group): lambda: bleu_by_length(group, narrow=True),
        "bits_by_context": lambda: bits_by_context(group, narrow=True),
        "speed": lambda: speed(group, narrow=True),
        "learning_curves": lambda: learning_curves(group, runs, narrow=True),
    }

    def column(name: str, narrow: Figure | None) -> bytes | None:
        figure = narrow if narrow is not None or not pdf else columns[name]()
        return as_pdf(figure) if pdf and figure is not None else None

    return [
        Picture(
            name,
            "; ".join(filter(None, (f"{title}: {group.heading}", remark))),
            caption,
            rendered(figure),
            None if narrow is None else rendered(narrow),
            column(name, narrow),
        )
        for name, title, remark, caption, figure, narrow in found
        if figure is not None
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
    def label(self) -> str:
        return f"{self.name}, {self.split}"

    @property
    def dashes(self) -> Any:
        return DASHED if self.split == "long" else "-"


def bleu_by_k(group: Group, *, narrow: bool = False) -> Figure | None:
    """Our sacreBLEU against k on test and, dashed, on long; variants without k as horizontal lines, the paper in grey.

    Error bars: the standard deviation over several seeds, or one run's interval over sentences. None for a task, on
    which the paper has no figure, or if no relative run has a score. The k axis is categorical: 0 has no logarithm, and
    every k gets the same space.
    """
    found = [] if group.task or group.documents else list(_series(group))
    if all(k is None for one in found for k, _ in one.points):
        return None
    ks = sorted({k for one in found for k, _ in one.points if k is not None} | set(paper.TABLE2))
    place = {k: index for index, k in enumerate(ks)}
    with styled():
        figure, (axes,) = new_figure(_NARROW if narrow else _WIDE, "BLEU by clip distance", group.heading)
        papers = f"paper, {paper.TABLE2_TEST_SET}" if narrow else f"the paper: EN-DE, {paper.TABLE2_TEST_SET}"
        axes.plot(
            [place[k] for k in paper.TABLE2], list(paper.TABLE2.values()), color=PAPER, marker="o", ms=4, zorder=2
        )
        ends = [(paper.TABLE2[256], papers, PAPER)]
        for one in found:
            # The error bars of horizontal lines are next to each other at the right, beyond all k.
            baseline = one.points[0][0] is None
            at = len(ks) - 0.62 + 0.12 * (_BASELINES.index(one.name) if baseline else 0)
            points = [(at if k is None else place[k], figure_) for k, figure_ in one.points]
            if baseline:
                axes.axhline(points[0][1].value or 0.0, color=one.colour, lw=1.3, ls=one.dashes, alpha=0.9, zorder=1)
            else:
                filled = WHITE if one.split == "long" else one.colour
                look: dict[str, Any] = {"color": one.colour, "ls": one.dashes, "mfc": filled, "mec": one.colour}
                axes.plot(*_xy(points), **look, lw=2.2, marker="o", ms=5, zorder=4)
            error_bars(axes, points, one.colour)
            ends.append((points[-1][1].value or 0.0, one.label, one.colour))
        every = -(-len(ks) // (MOST_TICKS // 2 if narrow else MOST_TICKS))
        axes.set_xticks(range(0, len(ks), every), [str(k) for k in ks[::every]])
        axes.set_xlim(-0.35, len(ks) - 0.25)
        figures = [figure_ for one in found for _, figure_ in one.points]
        tops = [(one.value or 0.0) + (reach(one) or (0.0, 0.0))[1] for one in figures]
        axes.set_ylim(0, max([*tops, *paper.TABLE2.values()]) * 1.05 + 1)
        axes.set_xlabel(
            "clip distance k" if narrow else "\n".join(filter(None, ("clip distance k", bar_words(figures))))
        )
        axes.set_ylabel("BLEU (ours: sacreBLEU)")
        axes.grid(visible=False, axis="x")
        if narrow:
            legend_below(
                figure,
                {text: {"color": colour, "ls": DASHED if text.endswith(", long") else "-"} for _, text, colour in ends},
            )
        else:
            label_ends([(axes, ends)])
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


def by_length_name(group: Group) -> str:
    """The file name of the plot by length, for what it shows."""
    return "exact_match_by_length" if group.task else "bleu_by_length"


def _length_title(group: Group) -> str:
    return "Exact match by length" if group.task else "BLEU by source length"


def bleu_by_length(group: Group, remark: str = "", *, narrow: bool = False) -> Figure | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any.

    Lengths beyond all training examples are shaded. The axis is categorical: every bucket gets the same space.
    """
    columns = buckets(group)
    scores = {
        variant.label: [length_score(variant, group.metric, bucket) for bucket in columns]
        for variant in lines_of(group)
    }
    scores = {label: some for label, some in scores.items() if any(one.value is not None for one in some)}
    if not scores:
        return None
    one = next(run.by_length for run in group.finished if run.by_length is not None)
    looks = variant_looks(one for one in group.variants if one.label in scores)
    with styled():
        title = _length_title(group) if narrow else f"{_length_title(group)}, {pooled(one.splits)}"
        size = (_NARROW[0], 2.9 + LINE * len(scores)) if narrow else (8.4, 5.0)
        figure, (axes,) = new_figure(size, title, group.heading)
        beyond = [index for index, bucket in enumerate(columns) if bucket.first.beyond_training]
        if beyond:
            axes.axvspan(beyond[0] - 0.5, len(columns) - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
            axes.axvline(beyond[0] - 0.5, color=MUTED, lw=1.0, ls=DASHED, zorder=1)
            if not narrow:
                axes.set_title(f"shaded: {one.longest_in_words}", loc="right", fontsize=8.5)
        ends = []
        for number, (label, some) in enumerate(scores.items()):
            shift = _ROOM * (number - (len(scores) - 1) / 2) / max(len(scores), 2)
            points = [(index + shift, figure_) for index, figure_ in enumerate(some) if figure_.value is not None]
            axes.plot(*_xy(points), **looks[label], lw=1.6, ms=4, zorder=4)
            error_bars(axes, points, looks[label]["color"], 1.0)
            ends.append((points[-1][1].value or 0.0, label, looks[label]["color"]))
        counts = ["–" if bucket.num_sentences is None else f"{bucket.num_sentences:,}" for bucket in columns]
        ticks = [
            bucket.first.label if narrow else f"{bucket.first.label}\n{count}"
            for bucket, count in zip(columns, counts, strict=True)
        ]
        every = -(-len(columns) // 6) if narrow else 1
        axes.set_xticks(range(0, len(columns), every), ticks[::every])
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(bottom=0)
        bars = bar_words(one for some in scores.values() for one in some)
        words = (one.unit,) if narrow else (f"{one.unit}; below: sentences", bars, remark)
        axes.set_xlabel("\n".join(filter(None, words)))
        axes.set_ylabel("exact match, percent" if group.task else "BLEU (sacreBLEU)")
        axes.grid(visible=False, axis="x")
        if narrow:
            legend_below(figure, looks)
        else:
            label_ends([(axes, ends)])
    return figure


def speed(group: Group, remark: str = "", *, narrow: bool = False) -> Figure | None:
    """Steps/s relative to the absolute baseline, one bar per variant, and the paper's 0.93; None without any or for a
    task.
    """
    if group.task:
        return None
    having = [(one, ratio) for one in group.variants if (ratio := ratio_to_absolute(group, one)).value is not None]
    shown = sample_evenly(having, MOST_BARS)
    if all(variant.position.kind == "absolute" for variant, _ in shown):
        return None
    with styled():
        title = "Steps/s relative to absolute" if narrow else "Steps per second relative to absolute (sinusoidal)"
        figure, (axes,) = new_figure((_NARROW[0] if narrow else 8.4, 1.3 + 0.33 * len(shown)), title, group.heading)
        places, values = range(len(shown)), [ratio.value or 0.0 for _, ratio in shown]
        colours = [COLOURS[variant.position.kind] for variant, _ in shown]
        axes.barh(places, values, height=0.62, color=colours, zorder=2)
        error_bars(axes, [(at, ratio) for at, (_, ratio) in enumerate(shown)], INK, 1.2, across=True)
        for index, (variant, _) in enumerate(shown):
            steps = steps_per_second(variant).value
            words = f"{values[index]:.2f}" + ("" if steps is None or narrow else f"   ({steps:.2f} steps/s)")
            axes.text(1.01, index, words, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
        axes.axvline(paper.RELATIVE_SPEED, color=PAPER, lw=1.6, ls=DASHED, zorder=3)
        axes.annotate(
            f"the paper's relative: {paper.RELATIVE_SPEED}", (paper.RELATIVE_SPEED, 1.0), (0, 3),
            ("data", "axes fraction"), "offset points", ha="center", va="bottom", color=MUTED, fontsize=9,
        )  # fmt: skip
        axes.set_yticks(places, [plain(variant.label) for variant, _ in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, max([1.0, *((one.value or 0.0) + (one.deviation or 0.0) for _, one in shown)]) * 1.05)
        axes.set_xlabel(remark)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        right = max(text_width(text.get_text(), 9.5) for text in axes.texts) + 0.08
        set_margins(figure, above=0.75, right=right, beside=1.01)
    return figure


def learning_curves(
    group: Group, runs: Sequence[tuple[Variant, Curves]], remark: str = "", *, narrow: bool = False
) -> Figure | None:
    """Validation BLEU and loss against the step, one line per variant (the mean over seeds); None without any."""
    panels = [("validation/bleu", "validation BLEU"), ("validation/loss", "loss (thin: training)")]
    panels = [(name, title) for name, title in panels if any(curves.get(name) for _, curves in runs)]
    if not panels:
        return None
    means = _means(runs)
    looks = variant_looks(variant for variant, _ in runs)
    with styled():
        size = (_NARROW[0], 2.0 * len(panels) + 0.9 + LINE * len(looks)) if narrow else (8.4, 3.6 * len(panels) + 0.7)
        figure, all_axes = new_figure(size, "Learning curves", group.heading, len(panels))
        named = []
        for axes, (name, title) in zip(all_axes, panels, strict=True):
            ends: list[tuple[float, str, str]] = []
            for label, series in means.items():
                if name == "validation/loss":
                    thin = {"color": looks[label]["color"], "lw": 0.6, "alpha": 0.35, "zorder": 2}
                    axes.plot(*_steps(series.get("train/loss", ())), **thin)
                if points := series.get(name, ()):
                    markevery = -(-len(points) // 20)
                    axes.plot(*_steps(points), **looks[label], lw=1.6, ms=3.2, markevery=markevery, zorder=3)
                    ends.append((points[-1][1], label, looks[label]["color"]))
            axes.set_ylabel(title)
            if name == "validation/loss":
                _crop_losses(axes, means.values())
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            named.append((axes, ends))
        all_axes[-1].set_xlabel("\n".join(filter(None, ("step", remark))))
        if narrow:
            legend_below(figure, looks)
        else:
            label_ends(named)
    return figure


def _means(runs: Sequence[tuple[Variant, Curves]]) -> dict[str, Curves]:
    """The mean curves of each variant, at the steps that all its seeds share."""
    members: dict[str, list[Curves]] = {}
    for variant, curves in runs:
        members.setdefault(variant.label, []).append(curves)
    means: dict[str, Curves] = {label: {} for label in members}
    for label, some in members.items():
        for name in sorted({name for one in some for name in one}):
            seeds = [dict(one[name]) for one in some if one.get(name)]
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            means[label][name] = tuple((step, sum(seed[step] for seed in seeds) / len(seeds)) for step in steps)
    return means


def _steps(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _crop_losses(axes: Axes, means: Iterable[Curves]) -> None:
    # The first training losses are far above all others; the axis ends at the highest validation loss.
    found = list(means)
    seen = [value for series in found for _, value in series.get("validation/loss", ())]
    trained = [value for series in found for _, value in series.get("train/loss", ())]
    low, high = min([*seen, *trained]), max(seen)
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)

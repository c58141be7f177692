"""The plots of a group: scores by position, by k, by length and by context, and learning curves; their style is one
figure that is legible on a phone, on a page and in a column of a paper.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.kinds import TASK, TRANSLATION
from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.measurement import Measurement, single
from rpr.records.position import OTHER
from rpr.records.scores import pooled
from rpr.report.by_context import ABSENT, CONTEXTS, WINDOWS, buckets, by_context, context_lengths
from rpr.report.groups import Group, Variant
from rpr.report.published import published_curves, published_figures
from rpr.report.render import number
from rpr.report.samples import lines_of, selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# PAPER: published figures are always grey.
INK, MUTED, GRID, PAPER, WHITE = "#1b1f24", "#5d6670", "#e4e7eb", "#8b939d", "#ffffff"
COLOURS = {**COLOURS_OF_KINDS, OTHER: "#444c56"}
WIDTH = 5.2  # inches: 390 pixels of a phone show ten points as nine
LINE = 0.165  # height of a line of text in inches
BARS = "Bars: the 95% interval over the seeds, or of one seed that over its test set."
DASHED: Any = (0, (4, 2))
MARKERS, DASHES = "osD^vPX*<>hdp8H", ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
# Curves over k: light to dark blue in the order of k.
K_SHADES = ("#4b9ad3", "#3f90cc", "#3385c3", "#2879b7", "#1d6ca9", "#135e99", "#0c4f86", "#093f70", "#072e58")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "rpr",
    # Text stays text; a browser without the first font uses the next, of nearly the same width.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), WHITE),
}
_DECIMALS = re.compile(rb"-?\d+\.\d{3,}")
_NAMES = "scores_by_position|bleu_by_k|bleu_by_length|exact_match_by_length|bits_by_context|learning_curves|recall_map"
FILE = re.compile(rf"({_NAMES})(-.*)?\.(svg|pdf)")  # of a plot, with the name of its group
MOST_ROWS = 24
_SPLITS_OF_K = ("validation", "test")
_FAR = 3.0  # the axis of scores ends this many times the distance from the best score to the median below the best
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
Points = Sequence[tuple[float, Measurement]]
Curves = dict[str, dict[int, float]]  # of each training metric its values by step


def styled() -> AbstractContextManager[None]:
    """A context for creating and saving figures, independent of the user's matplotlib settings."""
    import matplotlib

    # The user's matplotlibrc must not change a figure: start from matplotlib's own defaults.
    defaults: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if "backend" not in key}
    return matplotlib.rc_context(defaults | _STYLE)


@dataclass(frozen=True)
class Plot:
    """A plot: panels below each other, of `height` inches each, which `draw` fills."""

    name: str
    title: str
    heading: str  # what it is of, below the title
    draw: Callable[[Sequence[Axes]], None]
    panels: int = 1
    height: float = 3.0
    remark: str = ""  # what it leaves out
    caption: str = ""  # what its marks mean

    @property
    def description(self) -> str:
        """Its alternative text."""
        return "; ".join(filter(None, (f"{self.title}: {self.heading}", self.remark)))

    @cached_property
    def svg(self) -> bytes:
        return rendered(self.figure())

    def figure(self) -> Figure:
        """The figure, which matplotlib lays out."""
        from matplotlib.figure import Figure

        with styled():
            figure = Figure(figsize=(WIDTH, 0.6 + self.panels * self.height), layout="constrained")
            subtitle = textwrap.shorten(self.heading, 72, placeholder=" …")
            figure.suptitle(plain(f"{self.title}\n"), x=0.02, ha="left", fontsize=12, fontweight="bold")
            below = 1 - 0.27 / figure.get_figheight()
            figure.text(0.02, below, plain(subtitle), fontsize=9, va="top", color=MUTED)
            self.draw([*figure.subplots(self.panels, 1, squeeze=False).flat])
        return figure


def as_pdf(figure: Figure) -> bytes:
    """The figure as PDF, reproducibly, with its text as text."""
    out = io.BytesIO()
    with styled():
        figure.savefig(out, format="pdf", metadata={"CreationDate": None})
    return out.getvalue()


def rendered(figure: Figure) -> bytes:
    """The figure as SVG, reproducibly, with coordinates of two decimals."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    # Not figure.savefig, which draws everything twice: once for the layout, once for the file.
    with styled():
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None})
    # The names of clip paths are hashes of unrounded coordinates, whose last bits vary with the machine.
    names = {name: b"clip%d" % at for at, name in enumerate(re.findall(rb'<clipPath id="(\w+)"', out.getvalue()))}
    numbered = re.sub(rb'(?<=["#])p[0-9a-f]{10}(?=[")])', lambda found: names.get(found[0], found[0]), out.getvalue())
    short = re.sub(rb' (?:d|x|y|transform)="[^"]*"', lambda found: _DECIMALS.sub(_two_decimals, found[0]), numbered)
    return re.sub(rb"\n +", b"\n", short)


def _two_decimals(number: re.Match[bytes]) -> bytes:
    return b"%g" % round(float(number[0]), 2)


def folded(text: str, width: int) -> str:
    """In lines of at most this many characters, none of which ends inside `k = 16`."""
    joined = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return "\n".join(textwrap.wrap(joined, width, break_long_words=False)).replace("\N{NO-BREAK SPACE}", " ")


def plain(text: str) -> str:
    """Escape text so that matplotlib shows it literally: a dollar would start math mode."""
    return text.replace("$", r"\$")


def variant_colours(variants: Iterable[Variant]) -> dict[str, str]:
    """A colour for each variant's label: that of its kind, for relative positions shaded in the order of k."""
    known = [(variant.label, variant.position.kind, variant.position.clip_distance) for variant in variants]
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[last if len(ks) == 1 else round(at * last / (len(ks) - 1))] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


def _looks(labels: Iterable[str], group: Group) -> dict[str, dict[str, Any]]:
    colours, marks = variant_colours(group.variants), zip(cycle(MARKERS), cycle(DASHES), strict=False)
    return {label: {"color": colours[label], "marker": mark, "ls": dashes} for label, (mark, dashes) in zip(
        dict.fromkeys(labels), marks, strict=False)}  # fmt: skip


def error_bars(axes: Axes, points: Points, colour: str, width: float = 1.2, *, across: bool = False) -> None:
    """The 95% bars of points at (x, measurement) or, across, of points at (measurement, y)."""
    style: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": width, "capsize": 2.5, "zorder": 5}
    for place, figure in points:
        if figure.value is not None and figure.interval is not None:
            low, high = _bar(figure)
            ends = [[figure.value - low], [high - figure.value]]
            if across:
                axes.errorbar([figure.value], [place], xerr=ends, **style)
            else:
                axes.errorbar([place], [figure.value], yerr=ends, **style)


def _bar(figure: Measurement) -> tuple[float, float]:
    value = figure.value or 0.0
    if figure.interval is None:
        return value, value
    return min(value, figure.interval.low), max(value, figure.interval.high)  # a skewed bootstrap is beside the score


def draw_lines(
    axes: Axes,
    curves: Mapping[str, Points],
    looks: Mapping[str, Mapping[str, Any]],
    *,
    log: bool = False,
    most_marks: int = 1000,
) -> None:
    """A line with error bars for each label, through its points that are not missing, and the label beside its end, at
    the right edge of the axes. Labels that would overlap are moved apart.
    """
    # 1. The lines.
    ends: dict[str, tuple[float, float]] = {}
    for label, points in curves.items():
        known = [(at, figure.value, figure) for at, figure in points if figure.value is not None]
        if known:
            marks = -(-len(known) // most_marks)
            axes.plot(*zip(*(point[:2] for point in known), strict=True), **looks[label], lw=1.6, ms=4, markevery=marks)
            error_bars(axes, [(at, figure) for at, _, figure in known], looks[label]["color"])
            ends[label] = known[-1][:2]
    if log:
        _set_log_scale(axes)
    # 2. Places of the labels as shares of the height: neighbours that overlap give way to each other.
    axes.get_ylim()  # matplotlib sets the limits only now
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = {label: float(to_axes.transform(end)[1]) for label, end in ends.items()}
    order = sorted(ends, key=wanted.__getitem__)
    figure: Any = axes.get_figure()
    height = figure.get_figheight() / len(figure.axes) - 0.9  # inches
    room = [(folded(label, 22).count("\n") + 1) * LINE * 0.87 / height for label in order]
    places = [wanted[label] for label in order]
    for _ in range(200):
        for at in range(len(order) - 1):
            overlap = max(0.0, (room[at] + room[at + 1]) / 2 - (places[at + 1] - places[at]))
            places[at : at + 2] = places[at] - overlap / 2, places[at + 1] + overlap / 2
    shift = (min(0.0, 1.02 - places[-1]) or max(0.0, -0.05 - places[0])) if places else 0.0
    # 3. The labels, each with a thin line to its end.
    for label, place in zip(order, places, strict=True):
        colour, where = looks[label]["color"], (1.04, place + shift)
        leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkB": 3, "alpha": 0.7, "relpos": (0, 0.5)}
        about: dict[str, Any] = {"color": colour, "va": "center", "fontsize": 8.5, "annotation_clip": False}
        about |= {"textcoords": "axes fraction", "arrowprops": leader}
        axes.annotate(plain(folded(label, 22)), ends[label], where, **about)


def _set_log_scale(axes: Axes) -> None:
    """A vertical log axis with few, plain numbers, if its range is more than a factor of two."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    low, high = axes.dataLim.intervaly
    if 0 < 2 * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _set_places(axes: Axes, names: Sequence[str], beyond: int | None = None) -> None:
    """A categorical horizontal axis, with the same room for every name, of which as many are printed as fit.
    `beyond`: the first of the places beyond training, which are shaded; None: no place is.
    """
    longest = max(len(line) for name in names for line in name.split("\n"))
    every = math.ceil(0.11 * longest * len(names) / (WIDTH - 2.2))
    axes.set_xticks(range(0, len(names), every), names[::every])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(visible=False, axis="x")
    if beyond is not None:
        axes.axvspan(beyond - 0.5, len(names) - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
        axes.axvline(beyond - 0.5, color=MUTED, lw=1.0, ls=DASHED, zorder=1)


def all_plots(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> list[Plot]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant."""
    plots = (scores_by_position(group), bleu_by_k(group), bits_by_context(group), scores_by_length(group))
    return [plot for plot in (*plots, learning_curves(group, runs)) if plot is not None]


def ranked(group: Group) -> tuple[list[tuple[Variant, Measurement]], str]:
    """The variants with a score on the group's split, best first, and a line about those left out, as MOST_ROWS are
    shown at most and none that was scored in another way than the baseline. Empty without at least two.
    """
    scores = [(variant, group.score(variant, group.split)) for variant in group.variants]
    known, key = [row for row in scores if row[1].value is not None], group.column(group.split)
    apart = [row[0].label for row in known if "another way" in str(group.change(row[0], key).reason)]
    shown, remark = selected(group, [row for row in known if row[0].label not in apart], MOST_ROWS, "rows are drawn")
    remarks = [remark, f"without {', '.join(apart)}, scored in another way" if apart else ""]
    shown.sort(key=lambda row: group.kind.best_first(row[1].value or 0.0))
    return (shown, "; ".join(filter(None, remarks))) if len(shown) > 1 else ([], "")


def scores_by_position(group: Group) -> Plot | None:
    """A dot for each row with its 95% bar, best first, and published figures to compare the order with."""
    rows, remark = ranked(group)
    if not rows:
        return None
    kind, colours, published = group.kind, variant_colours(group.variants), published_figures(group)
    figures = {variant.label: figure for of_source in published.values() for variant, figure in of_source}
    baseline = next((row for row in rows if row[0] is group.baseline), None)
    nearest, farthest = _ends(rows, baseline, group)
    labels = [folded(variant.label, 24) for variant, _ in rows]
    room = [0.1 + LINE * (label.count("\n") + 1) for label in labels]

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        places = [sum(room[:row]) + height / 2 for row, height in enumerate(room)]
        for place, (variant, score) in zip(places, rows, strict=True):
            value, mark = score.value or 0.0, dict[str, Any](color=colours[variant.label], zorder=6, ms=6)
            if (other := figures.get(variant.label)) is not None:
                axes.plot([other], [place], color=PAPER, marker="D", ms=5, zorder=2)
            if min(nearest, farthest) <= value <= max(nearest, farthest):
                error_bars(axes, [(place, score)], colours[variant.label], 1.6, across=True)
                axes.plot([value], [place], marker="o", mfc=WHITE if group.unlearned(variant) else None, **mark)
            else:
                axes.plot([farthest], [place], marker=">" if kind.lower_is_better else "<", clip_on=False, **mark)
            axes.text(1.04, place, number(value, kind.digits), transform=axes.get_yaxis_transform(), va="center")
        if baseline is not None:
            axes.axvline(baseline[1].value or 0.0, color=colours[baseline[0].label], lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, map(plain, labels), linespacing=1.0)
        axes.set_ylim(sum(room), 0)
        axes.set_xlim(*sorted((nearest, farthest)))
        axes.tick_params(axis="y", length=0, pad=9)
        axes.spines["left"].set_visible(False)

    beyond = any(((score.value or 0.0) - farthest) * (nearest - farthest) < 0 for _, score in rows)
    unlearned = any(group.unlearned(variant) for variant, _ in rows)
    marks = [BARS, *([f"Dashed: {baseline[0].label}."] if baseline else [])]
    marks += ["Arrows: beyond the axis."] * beyond + ["Hollow: not learned."] * unlearned
    if published:
        marks.append(f"Grey diamonds: {'; '.join(source.citation for source in published)}; compare the order only.")
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    title = f"{kind.heading[:1].upper()}{kind.heading[1:]} {where}, best first"
    return Plot("scores_by_position", title, group.heading, draw, 1, 0.4 + sum(room), remark, " ".join(marks))


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
    reached = [_bar(row[1]) for row in rows if sign * ((row[1].value or 0.0) - least) >= 0 or row is baseline]
    low, high = min(low for low, _ in reached), max(high for _, high in reached)
    margin = 0.04 * (high - low) or 1.0
    return (high + margin, low - margin) if sign == 1 else (low - margin, high + margin)


def bleu_by_k(group: Group) -> Plot | None:
    """Our sacreBLEU against k, the paper's in grey, and horizontal lines for variants without k; None unless relative
    positions have a score with two values of k. Every k gets the same space, as 0 has no logarithm.
    """
    by_k = {
        variant.position.clip_distance: variant
        for variant in reversed(group.variants)
        if variant.position.kind == "relative"
    }
    # The split of the paper's Table 2, validation, unless fewer variants were scored on it.
    known = {name: sum(group.score(row, name).value is not None for row in by_k.values()) for name in _SPLITS_OF_K}
    split = max(_SPLITS_OF_K, key=known.__getitem__)
    scores = {k: group.score(by_k[k], split) for k in sorted(k for k in by_k if k is not None)}
    ours = {k: score for k, score in scores.items() if score.value is not None}
    if group.kind is not TRANSLATION or len(ours) < 2:
        return None
    table2 = {k: single(figure) for k, figure in paper.TABLE2.items()} if group.published else {}
    ks = sorted({*ours, *table2})
    curves: dict[str, Points] = {"relative": [(ks.index(k), score) for k, score in ours.items()]}
    looks: dict[str, dict[str, Any]] = {"relative": {"color": COLOURS["relative"], "marker": "o"}}
    if table2:
        curves["the paper, EN-DE"] = [(ks.index(k), figure) for k, figure in table2.items()]
        looks["the paper, EN-DE"] = {"color": PAPER, "marker": "o"}
    for variant in (candidate for candidate in map(group.get, ("absolute", "learned", "none")) if candidate.records):
        score = group.score(variant, split)
        curves[variant.label] = [(-0.5, replace(score, interval=None)), (len(ks) - 0.5, score)]
        looks[variant.label] = {"color": COLOURS[variant.position.kind]}

    def draw(panels: Sequence[Axes]) -> None:
        _set_places(panels[0], list(map(str, ks)))
        panels[0].set_xlabel("clip distance k")
        panels[0].set_ylabel("BLEU")
        draw_lines(panels[0], curves, looks)

    caption = f"Ours: sacreBLEU on {split}. {BARS}"
    caption += " Grey: the paper's Table 2, which prints no error." if table2 else ""
    return Plot("bleu_by_k", "BLEU by clip distance", group.heading, draw, caption=caption)


def scores_by_length(group: Group) -> Plot | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant, and published curves at
    lengths with a bucket of their own; None without any. Lengths beyond all training examples are shaded.
    """
    columns, (variants, remark) = buckets(group), lines_of(group)
    keys = [(group.kind.metric, *bucket.key) for bucket in columns]
    scores = {variant.label: [variant.measured(key, ABSENT) for key in keys] for variant in variants}
    shown = [variant for variant in variants if any(score.value is not None for score in scores[variant.label])]
    if not shown:
        return None
    curves: dict[str, Points] = {}
    for at, variant in enumerate(shown):
        shift = _ROOM * (at - (len(shown) - 1) / 2) / max(len(shown), 2)
        curves[variant.label] = [(place + shift, score) for place, score in enumerate(scores[variant.label])]
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    beyond = next((place for place, bucket in enumerate(columns) if bucket.beyond_training), None)
    places = {bucket.shortest: place for place, bucket in enumerate(columns) if bucket.shortest == bucket.longest}
    grey = {
        source: [points for figures in by_label.values()
                 if (points := [(places[n], figure.value or 0.0) for n, figure in figures.items() if n in places])]
        for source, by_label in (published_curves(group, shown) if group.published else {}).items()
    }  # fmt: skip
    looks = _looks((variant.label for variant in shown), group)

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        _set_places(axes, [f"{bucket.label}\n{count}" for bucket, count in columns.items()], beyond)
        for points in (points for of_source in grey.values() for points in of_source):
            axes.plot(*zip(*points, strict=True), color=PAPER, marker="o", ms=4, lw=1.2, zorder=2)
        if group.kind.shares:
            axes.set_ylim(-3, 104)  # of percent no bar says more than 100
        axes.set_xlabel(f"{by_length.unit}; below: sentences")
        axes.set_ylabel(group.kind.heading)
        draw_lines(axes, curves, looks)

    caption = [BARS, "" if beyond is None else f"Shaded: {by_length.longest_in_words}."]
    caption += [f"Grey: {source.citation}; {source.protocol}." for source, points in grey.items() if points]
    name, what = ("exact_match", "Exact match by") if group.kind is TASK else ("bleu", "BLEU by source")
    title, words = f"{what} length, {pooled(by_length.splits)}", " ".join(filter(None, caption))
    return Plot(f"{name}_by_length", title, group.heading, draw, 1, _height(shown), remark, words)


def bits_by_context(group: Group) -> Plot | None:
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
            _set_places(axes, [f"{length:,}" for length in lengths], beyond)
            of_kind = [(scored[0].split, kind, length) for length in lengths]
            curves = {
                variant.label: [*enumerate(variant.measured(key, ABSENT) for key in of_kind)] for variant in variants
            }
            draw_lines(axes, curves, _looks(curves, group), log=True)
            axes.set_title(f"{kind} windows", loc="left", fontsize=10)
            axes.set_ylabel("bits per byte")
        panels[-1].set_xlabel("tokens of context")

    caption = f"Less is better. {BARS}"
    caption += "" if beyond is None else f" Shaded: longer than in training, {trained:,} tokens."
    about = (len(kinds), _height(variants), remark, caption)
    return Plot("bits_by_context", CONTEXTS, group.heading, draw, *about)


def learning_curves(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> Plot | None:
    """Validation loss and BLEU against the step, one line per variant, the mean over its seeds at the steps that all of
    them have; None without any.
    """
    titles = {"validation/loss": "validation loss", "validation/bleu": "validation BLEU"}
    curved = [run for variant, _ in runs for run in variant.finished or variant.records]
    if len({str(run.setting("evaluation.validation_sentences")) for run in curved} - {"0"}) > 1:
        del titles["validation/bleu"]  # of other sentences it has no mean
    titles = {name: title for name, title in titles.items() if any(curves.get(name) for _, curves in runs)}
    if not titles:
        return None
    looks = _looks((variant.label for variant, _ in runs), group)

    def means(label: str, name: str) -> Points:
        seeds = [curves[name] for variant, curves in runs if variant.label == label and curves.get(name)]
        steps = sorted(set[int]().union(*seeds).intersection(*seeds))
        return [(step, single(sum(seed[step] for seed in seeds) / len(seeds))) for step in steps]

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            axes.set_ylabel(title)
            draw_lines(axes, {label: means(label, name) for label in looks}, looks, most_marks=20)
            axes.set_xlim(left=0)
        panels[-1].set_xlabel("step")

    about = (len(titles), _height([*looks]), lines_of(group)[1], "A line for each row, the mean over its seeds.")
    return Plot("learning_curves", "Learning curves", group.heading, draw, *about)


def _height(lines: Sequence[Any]) -> float:
    return max(3.0, 0.16 * len(lines) + 1)

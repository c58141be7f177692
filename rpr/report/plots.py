"""The plots of a group: scores by position, by length and by context, learning curves, and a map of recall; their style
is one figure that is legible on a phone, on a page and in a column of a paper.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Any

from rpr.data.generated.recall import by_pairs_and_distance
from rpr.kinds import TASK
from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.measurement import Measurement, single
from rpr.records.position import OTHER
from rpr.records.scores import pooled
from rpr.report.by_context import ABSENT, CONTEXTS, WINDOWS, buckets, by_context, context_lengths
from rpr.report.groups import Group, Variant
from rpr.report.published import published_figures
from rpr.report.render import number
from rpr.report.samples import FileOf, lines_of, selected, texts_of

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
# Of relative positions: light to dark blue in the order of k.
K_SHADES = ("#4b9ad3", "#3f90cc", "#3385c3", "#2879b7", "#1d6ca9", "#135e99", "#0c4f86", "#093f70", "#072e58")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "rpr",
    # Text stays text; a browser without the first font uses the next, of nearly the same width.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"), MUTED),
}
_NAMES = "scores_by_position|bleu_by_length|exact_match_by_length|bits_by_context|learning_curves|recall_map"
FILE = re.compile(rf"({_NAMES})(-.*)?\.(svg|pdf)")  # of a plot, with the name of its group
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")
MOST_ROWS = 24
_FAR = 3.0  # the axis of scores ends this many times the distance from the best score to the median below the best
_MOST_MARKS = 20  # of a line over numbers
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
_PAIRS, _TOKENS = 4, 8  # of a cell of the map of recall
Points = Sequence[tuple[float, Measurement]]
Looks = Mapping[str, Mapping[str, Any]]  # of each label's line
Curves = dict[str, dict[int, float]]  # of each training metric its values by step


def styled() -> AbstractContextManager[None]:
    """A context for creating and saving figures, in which the user's matplotlibrc has no effect."""
    import matplotlib

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
    text = out.getvalue().decode()
    for at, name in enumerate(re.findall(r'<clipPath id="(\w+)"', text)):
        text = text.replace(f'"{name}"', f'"clip{at}"').replace(f"#{name})", f"#clip{at})")
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda numbers: _DECIMALS.sub(_rounded, numbers[0]), text)
    return re.sub(r"\n +", "\n", text).encode()


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2):g}"


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


def all_plots(group: Group, runs: Sequence[tuple[Variant, Curves]], file_of: FileOf) -> list[Plot]:
    """Every plot for which the group has data; `runs` are those of `lines_of`, each with its variant."""
    plots = (scores_by_position(group), bits_by_context(group), scores_by_length(group))
    every = (*plots, learning_curves(group, runs), recall_map(group, file_of))
    return [plot for plot in every if plot is not None]


def _error_bars(axes: Axes, points: Points, colour: str, width: float = 1.2, *, across: bool = False) -> None:
    """The 95% bars of points at (x, measurement) or, across, of points at (measurement, y)."""
    for place, figure in points:
        if figure.value is not None and figure.interval is not None:
            low, high = _bar(figure)
            where = (figure.value, place) if across else (place, figure.value)
            ends: Any = {"xerr" if across else "yerr": [[figure.value - low], [high - figure.value]]}
            axes.errorbar(*where, **ends, fmt="none", ecolor=colour, elinewidth=width, capsize=2.5, zorder=5)


def _bar(figure: Measurement) -> tuple[float, float]:
    value = figure.value or 0.0
    if figure.interval is None:
        return value, value
    return min(value, figure.interval.low), max(value, figure.interval.high)  # a skewed bootstrap is beside the score


# Dots


def scores_by_position(group: Group) -> Plot | None:
    """A dot for each row with its 95% bar, best first, and published figures to compare the order with. Rows far below
    the others would press these together: they are arrows at the end of the axis.
    """
    rows, remark = ranked(group)
    if not rows:
        return None
    kind, colours, published = group.kind, variant_colours(group.variants), published_figures(group)
    figures = {variant.label: figure for of_source in published.values() for variant, figure in of_source}
    baseline = next((score for variant, score in rows if variant is group.baseline), None)
    low, high = _ends(rows, group)
    labels = [folded(variant.label, 24) for variant, _ in rows]
    room = [0.1 + LINE * (label.count("\n") + 1) for label in labels]

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        places = [sum(room[:row]) + height / 2 for row, height in enumerate(room)]
        for place, (variant, score) in zip(places, rows, strict=True):
            value, mark = score.value or 0.0, dict[str, Any](color=colours[variant.label], zorder=6, ms=6)
            if (other := figures.get(variant.label)) is not None:
                axes.plot([other], [place], color=PAPER, marker="D", ms=5, zorder=2)
            if low <= value <= high:
                _error_bars(axes, [(place, score)], colours[variant.label], 1.6, across=True)
                axes.plot([value], [place], marker="o", mfc=WHITE if group.unlearned(variant) else None, **mark)
            else:
                axes.plot(
                    [min(max(low, value), high)], [place], marker="<" if value < low else ">", clip_on=False, **mark
                )
            axes.text(1.04, place, number(value, kind.digits), transform=axes.get_yaxis_transform(), va="center")
        if baseline is not None:
            axes.axvline(baseline.value or 0.0, color=colours[group.baseline.label], lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, map(plain, labels), linespacing=1.0)
        axes.set_ylim(sum(room), 0)
        axes.set_xlim(low, high)
        axes.tick_params(axis="y", length=0, pad=9)
        axes.spines["left"].set_visible(False)

    marks = [BARS, *([f"Dashed: {group.baseline.label}."] if baseline else [])]
    marks += ["Arrows: beyond the axis."] * any(not low <= (score.value or 0.0) <= high for _, score in rows)
    marks += ["Hollow: not learned."] * any(group.unlearned(variant) for variant, _ in rows)
    if published:
        marks.append(f"Grey diamonds: {'; '.join(source.citation for source in published)}; compare the order only.")
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    title = f"{kind.heading[:1].upper()}{kind.heading[1:]} {where}, best first"
    return Plot("scores_by_position", title, group.heading, draw, 1, 0.4 + sum(room), remark, " ".join(marks))


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


def _ends(rows: Sequence[tuple[Variant, Measurement]], group: Group) -> tuple[float, float]:
    """The ends of the axis, which leaves out rows that are several times farther from the best than half of them are,
    but never the baseline.
    """
    if group.kind.shares:
        return -2.0, 102.0
    values = [score.value or 0.0 for _, score in rows]
    most = _FAR * abs(values[0] - median(values)) if len(rows) > 4 else math.inf
    bars = [_bar(score) for (variant, score), value in zip(rows, values, strict=True)
            if abs(values[0] - value) <= most or variant is group.baseline]  # fmt: skip
    low, high = min(low for low, _ in bars), max(high for _, high in bars)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


# Lines


@dataclass(frozen=True)
class _Lines:
    """A panel with a line for each label, over numbers or over the places of `names`, which have equal room."""

    ylabel: str
    curves: Mapping[str, Points]
    names: Sequence[str] = ()
    beyond: int | None = None  # the first of the places beyond training, which are shaded
    title: str = ""
    log: bool = False  # whether the vertical axis is logarithmic if it has more than a factor of two
    shares: bool = False

    def draw(self, axes: Axes, looks: Looks) -> None:
        """The lines with their 95% bars, through the points that are not missing, and the label of each beside its
        end, at the right edge of the axes. Labels that would overlap are moved apart.
        """
        # 1. The axes.
        axes.set_ylabel(self.ylabel)
        axes.set_title(self.title, loc="left", fontsize=10)
        if self.names:
            self._set_places(axes)
        if self.shares:
            axes.set_ylim(-3, 104)  # of percent no bar says more than 100
        # 2. The lines.
        ends: dict[str, tuple[float, float]] = {}
        for label, measured in self.curves.items():
            known = [(at, figure.value, figure) for at, figure in measured if figure.value is not None]
            if known:
                every = 1 if self.names else -(-len(known) // _MOST_MARKS)
                places, values, figures = zip(*known, strict=True)
                axes.plot(places, values, **looks[label], lw=1.6, ms=4, markevery=every)
                _error_bars(axes, [*zip(places, figures, strict=True)], looks[label]["color"])
                ends[label] = known[-1][:2]
        low, high = axes.dataLim.intervaly
        if self.log and 0 < 2 * low < high:  # with few, plain numbers
            from matplotlib.ticker import LogLocator, NullLocator

            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:g}")
        # 3. Places of the labels as shares of the height: neighbours that overlap give way to each other.
        axes.get_ylim()  # matplotlib sets the limits only now
        to_axes = axes.transData + axes.transAxes.inverted()
        shares = {label: float(to_axes.transform(end)[1]) for label, end in ends.items()}
        order = sorted(ends, key=shares.__getitem__)
        figure: Any = axes.get_figure()
        height = figure.get_figheight() / len(figure.axes) - 0.9  # inches
        room = [(folded(label, 22).count("\n") + 1) * LINE * 0.87 / height for label in order]
        at_edge = [shares[label] for label in order]
        for at in [*range(len(order) - 1)] * 200:
            overlap = max(0.0, (room[at] + room[at + 1]) / 2 - (at_edge[at + 1] - at_edge[at]))
            at_edge[at : at + 2] = at_edge[at] - overlap / 2, at_edge[at + 1] + overlap / 2
        shift = (min(0.0, 1.02 - at_edge[-1]) or max(0.0, -0.05 - at_edge[0])) if order else 0.0
        # 4. The labels, each with a thin line to its end.
        for label, share in zip(order, at_edge, strict=True):
            colour, where = looks[label]["color"], (1.04, share + shift)
            leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkB": 3, "alpha": 0.7, "relpos": (0, 0.5)}
            about: dict[str, Any] = {"color": colour, "va": "center", "fontsize": 8.5, "annotation_clip": False}
            about |= {"textcoords": "axes fraction", "arrowprops": leader}
            axes.annotate(plain(folded(label, 22)), ends[label], where, **about)
        if not self.names:
            axes.set_xlim(left=0)

    def _set_places(self, axes: Axes) -> None:
        """As many names are printed as fit."""
        count, longest = len(self.names), max(len(line) for name in self.names for line in name.split("\n"))
        every = math.ceil(0.11 * longest * count / (WIDTH - 2.2))
        axes.set_xticks(range(0, count, every), self.names[::every])
        axes.set_xlim(-0.5, count - 0.5)
        axes.grid(visible=False, axis="x")
        if self.beyond is not None:
            axes.axvspan(self.beyond - 0.5, count - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
            axes.axvline(self.beyond - 0.5, color=MUTED, lw=1.0, ls=DASHED, zorder=1)


def _line_plot(
    name: str, title: str, group: Group, panels: Sequence[_Lines], xlabel: str, caption: str, remark: str
) -> Plot:
    """Panels with lines of the same variants below each other."""
    labels, colours = panels[0].curves, variant_colours(group.variants)
    marks = zip(labels, cycle(MARKERS), cycle(DASHES), strict=False)
    looks = {label: {"color": colours[label], "marker": mark, "ls": dashes} for label, mark, dashes in marks}

    def draw(every: Sequence[Axes]) -> None:
        for axes, panel in zip(every, panels, strict=True):
            panel.draw(axes, looks)
        every[-1].set_xlabel(xlabel)

    height = max(3.0, 0.16 * len(labels) + 1)
    return Plot(name, title, group.heading, draw, len(panels), height, remark, caption)


def scores_by_length(group: Group) -> Plot | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without
    any. Lengths beyond all training examples are shaded.
    """
    # 1. Our lines, side by side within each bucket.
    columns, (variants, remark) = buckets(group), lines_of(group)
    keys = [(group.kind.metric, *bucket.key) for bucket in columns]
    shown = [variant for variant in variants if any(variant.measured(key, ABSENT).value is not None for key in keys)]
    if not shown:
        return None
    curves: dict[str, Points] = {}
    for at, variant in enumerate(shown):
        shift = _ROOM * (at - (len(shown) - 1) / 2) / max(len(shown), 2)
        curves[variant.label] = [(place + shift, variant.measured(key, ABSENT)) for place, key in enumerate(keys)]
    # 2. The panel.
    by_length = next(run.by_length for run in group.finished if run.by_length is not None)
    beyond = next((place for place, bucket in enumerate(columns) if bucket.beyond_training), None)
    caption = [BARS, *([f"Shaded: {by_length.longest_in_words}."] if beyond is not None else [])]
    names = [f"{bucket.label}\n{count}" for bucket, count in columns.items()]
    panel = _Lines(group.kind.heading, curves, names, beyond, shares=group.kind.shares)
    name, what = ("exact_match", "Exact match by") if group.kind is TASK else ("bleu", "BLEU by source")
    title, xlabel = f"{what} length, {pooled(by_length.splits)}", f"{by_length.unit}; below: sentences"
    return _line_plot(f"{name}_by_length", title, group, [panel], xlabel, " ".join(caption), remark)


def bits_by_context(group: Group) -> Plot | None:
    """Bits per byte against the length of the context, a panel for each kind of windows; None with fewer than two
    lengths. Lengths beyond that of training are shaded. Every length gets the same space.
    """
    (variants, remark), scored = lines_of(group), by_context(group)
    keys = context_lengths(scored)
    lengths = sorted({length for _, length in keys})
    if len(lengths) < 2:
        return None
    trained, names = max(context.training_length for context in scored), [f"{length:,}" for length in lengths]
    beyond = next((at for at, length in enumerate(lengths) if length > trained), None)
    panels = []
    for kind in (kind for kind in WINDOWS if any(kind == windows for windows, _ in keys)):
        of_kind = [(scored[0].split, kind, length) for length in lengths]
        curves = {variant.label: [*enumerate(variant.measured(key, ABSENT) for key in of_kind)] for variant in variants}
        panels.append(_Lines("bits per byte", curves, names, beyond, f"{kind} windows", log=True))
    caption = f"Less is better. {BARS}"
    caption += "" if beyond is None else f" Shaded: longer than in training, {trained:,} tokens."
    return _line_plot("bits_by_context", CONTEXTS, group, panels, "tokens of context", caption, remark)


def learning_curves(group: Group, runs: Sequence[tuple[Variant, Curves]]) -> Plot | None:
    """Validation loss and BLEU against the step, one line per variant, the mean over its seeds at the steps that all of
    them have; None without any.
    """
    curved = [run for variant, _ in runs for run in variant.finished or variant.records]
    counts = {str(run.setting("evaluation.validation_sentences")) for run in curved} - {"0"}
    panels = []
    for name in ("loss", "bleu") if len(counts) < 2 else ("loss",):  # BLEU of other sentences has no mean
        by_label: dict[str, list[dict[int, float]]] = {variant.label: [] for variant, _ in runs}
        for variant, curves in runs:
            by_label[variant.label] += [curve] if (curve := curves.get(f"validation/{name}")) else []
        means: dict[str, Points] = {}
        for label, seeds in by_label.items():
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            means[label] = [(step, single(sum(seed[step] for seed in seeds) / len(seeds))) for step in steps]
        if any(means.values()):
            panels.append(_Lines(f"validation {'BLEU' if name == 'bleu' else name}", means))
    caption, remark = "A line for each row, the mean over its seeds.", lines_of(group)[1]
    about = (group, panels, "step", caption, remark)
    return _line_plot("learning_curves", "Learning curves", *about) if panels else None


# Cells


def recall_map(group: Group, file_of: FileOf) -> Plot | None:
    """The right answers of data=recall on test and long by the number of pairs and by the distance from a query to its
    key, a panel for each variant; None of another task, or without answers.
    """
    if group.runs[0].setting("data.task.kind") != "recall":
        return None
    variants, remark = lines_of(group)
    shares: dict[str, dict[tuple[int, int], float]] = {}
    for variant in variants:
        right, asked = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        texts = (texts_of([run], split, file_of) for run in variant.finished for split in ("test", "long"))
        for (pairs, distance), counts in (one for of in texts if of for one in by_pairs_and_distance(*of).items()):
            right[pairs // _PAIRS, distance // _TOKENS] += counts[0]
            asked[pairs // _PAIRS, distance // _TOKENS] += counts[1]
        if asked:
            shares[variant.label] = {cell: 100 * right[cell] / asked[cell] for cell in asked}
    if not shares:
        return None
    rows, columns = (1 + max(cell[side] for share in shares.values() for cell in share) for side in (0, 1))

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (label, share) in zip(panels, shares.items(), strict=True):
            cells = [[share.get((row, column), float("nan")) for column in range(columns)] for row in range(rows)]
            axes.pcolormesh(cells, vmin=0, vmax=100, cmap="viridis")
            axes.grid(visible=False)
            axes.set_title(label, fontsize=9, loc="left")
            axes.set_xticks(range(columns + 1), [str(_TOKENS * place) for place in range(columns + 1)])
            axes.set_yticks(range(0, rows + 1, 2), [str(_PAIRS * place) for place in range(0, rows + 1, 2)])
            axes.set_ylabel("pairs")
        panels[-1].set_xlabel("tokens from the key to its query")

    words = "Yellow: every answer is right; dark blue: none. White: no such query."
    return Plot("recall_map", "Recall by pairs and distance", group.heading, draw, len(shares), 1.7, remark, words)

"""The style of all plots: one figure that is legible on a phone, on a page and in a column of a paper.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.measurement import Measurement
from rpr.records.position import OTHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rpr.report.groups import Variant

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


def folded(text: str, width: int) -> str:
    """In lines of at most this many characters, none of which ends inside `k = 16`."""
    joined = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    lines = textwrap.wrap(joined, width, break_long_words=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def plain(text: str) -> str:
    """Escape text so that matplotlib shows it literally: a dollar would start math mode."""
    return text.replace("$", r"\$")


def set_places(axes: Axes, names: Sequence[str], beyond: int | None = None) -> None:
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


def draw_lines(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, Measurement]]],
    looks: Mapping[str, Mapping[str, Any]],
    *,
    log: bool = False,
    most_marks: int = 1000,
) -> None:
    """A line with error bars for each label, through its points (x, measurement) that are not missing, and the label
    beside its end, at the right edge of the axes. Labels that would overlap are moved apart.
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
        colour = looks[label]["color"]
        leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkB": 3, "alpha": 0.7, "relpos": (0, 0.5)}
        about: dict[str, Any] = {"color": colour, "va": "center", "fontsize": 8.5, "annotation_clip": False}
        where: Any = (1.04, place + shift)
        words = plain(folded(label, 22))
        axes.annotate(words, ends[label], where, textcoords="axes fraction", arrowprops=leader, **about)


def _set_log_scale(axes: Axes) -> None:
    """A vertical log axis with few, plain numbers, if its range is more than a factor of two."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    low, high = axes.dataLim.intervaly
    if 0 < 2 * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def bar(figure: Measurement) -> tuple[float, float]:
    """The ends of a figure's error bar: its 95% interval, or the figure itself without one."""
    value = figure.value or 0.0
    if figure.interval is None:
        return value, value
    return min(value, figure.interval.low), max(value, figure.interval.high)  # a skewed bootstrap is beside the score


def error_bars(
    axes: Axes, points: Iterable[tuple[float, Measurement]], colour: str, width: float = 1.2, *, across: bool = False
) -> None:
    """Draw the error bars of points at (x, measurement) or, across, of points at (measurement, y)."""
    style: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": width, "capsize": 2.5, "zorder": 5}
    for place, figure in points:
        if figure.value is not None and figure.interval is not None:
            low, high = bar(figure)
            ends = [[figure.value - low], [high - figure.value]]
            if across:
                axes.errorbar([figure.value], [place], xerr=ends, **style)
            else:
                axes.errorbar([place], [figure.value], yerr=ends, **style)


def look(colour: str, marker: str = "o", dashes: Any = "-") -> dict[str, Any]:
    """How a line is drawn."""
    return {"color": colour, "marker": marker, "ls": dashes}


def variant_colours(variants: Iterable[Variant]) -> dict[str, str]:
    """A colour for each variant's label: that of its kind, for relative positions shaded in the order of k."""
    known = [(variant.label, variant.position.kind, variant.position.clip_distance) for variant in variants]
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[last if len(ks) == 1 else round(at * last / (len(ks) - 1))] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


def variant_looks(variants: Iterable[Variant], among: Iterable[Variant]) -> dict[str, dict[str, Any]]:
    """How the line of each variant's label is drawn: colour, marker and dashes, to be told apart in grey too; the
    colours are those among all of these variants.
    """
    colours, labels = variant_colours(among), dict.fromkeys(variant.label for variant in variants)
    marks = zip(labels, cycle(MARKERS), cycle(DASHES), strict=False)
    return {label: look(colours[label], marker, dashes) for label, marker, dashes in marks}


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

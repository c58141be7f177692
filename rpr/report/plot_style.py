"""The style of all plots, and their reproducible rendering: the same figure always gives the same bytes.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.measurement import Measurement
from rpr.records.position import OTHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rpr.report.groups import Variant

# PAPER: the paper's figures are always grey.
INK, MUTED, GRID, PAPER, WHITE = "#1b1f24", "#5d6670", "#e4e7eb", "#8b939d", "#ffffff"
COLOURS = {**COLOURS_OF_KINDS, OTHER: "#444c56"}
WIDE, COLUMN = 8.4, 3.5  # inches: the width of a figure for a page, and for a column of a paper
MEANS = "A line for each variant, the mean over its seeds."
BARS = "Bars: ± the standard deviation over the seeds, or of one seed its 95% interval."
FIRST = ("bleu_by_k", "bits_by_context", "scores_by_position")  # plots that may be the first of a page
LINE = 0.165  # height of a line of text in inches
DASHED: Any = (0, (4, 2))
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


def styled() -> AbstractContextManager[None]:
    """A context for creating and saving figures, independent of the user's matplotlib settings."""
    import matplotlib

    # The user's matplotlibrc must not change a figure: start from matplotlib's own defaults.
    defaults: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if "backend" not in key}
    return matplotlib.rc_context(defaults | _STYLE)


@dataclass(frozen=True)
class Plot:
    """A plot that can be drawn in any width: WIDE, or COLUMN for a column of a paper."""

    name: str
    title: str
    heading: str  # what it is of, below the title
    draw: Callable[[Sequence[Axes]], None]
    looks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the line of each label, for the legend
    panels: int = 1
    columns: int = 1  # panels beside each other if there is room
    remark: str = ""  # what it leaves out
    caption: str = ""  # what its marks mean
    height: float | None = None  # of a row of panels in inches, if it is not the usual one

    @property
    def description(self) -> str:
        """Its alternative text."""
        return "; ".join(filter(None, (f"{self.title}: {self.heading}", self.remark)))

    @cached_property
    def svg(self) -> bytes:
        return rendered(self.figure())

    @cached_property
    def narrow(self) -> bytes | None:
        """In the width of a column, for a phone, if it may be the first of a page."""
        return rendered(self.figure(COLUMN)) if self.name in FIRST else None

    def figure(self, width: float = WIDE) -> Figure:
        """The figure, which matplotlib lays out, with the legend beside the panels, or in a COLUMN below them."""
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        beside = width > COLUMN
        columns = self.columns if beside else 1
        rows = -(-self.panels // columns)
        looks = {folded(label, 26 if beside else 40): look for label, look in self.looks.items()}
        legend = 0.2 * sum(label.count("\n") + 1 for label in looks)
        drawn = 0.8 + rows * (self.height or (3.2 if beside else 2.3))
        height = max(drawn, 0.9 + legend) if beside else drawn + legend
        title = textwrap.fill(self.title, int(9.5 * width))
        subtitle = textwrap.shorten(self.heading, int(12.5 * width), placeholder=" …")
        below = 1 - (0.27 + 0.2 * title.count("\n")) / height
        with styled():
            figure = Figure(figsize=(width, height), layout="constrained")
            # The empty last line is that of the subtitle.
            figure.suptitle(f"{plain(title)}\n", x=0.08 / width, ha="left", fontsize=12, fontweight="bold")
            figure.text(0.08 / width, below, plain(subtitle), fontsize=9, va="top", color=MUTED)
            if looks:
                lines = [Line2D([], [], lw=1.8, ms=4, label=plain(label), **look) for label, look in looks.items()]
                place: Any = "outside right center" if beside else "outside lower left"
                figure.legend(handles=lines, loc=place, frameon=False, fontsize=9, handlelength=3, labelspacing=0.35)
            axes = [*figure.subplots(rows, columns, squeeze=False).flat]
            for empty in axes[self.panels :]:
                empty.set_axis_off()
            self.draw(axes[: self.panels])
        return figure


def folded(text: str, width: int) -> str:
    """In lines of at most this many characters, none of which ends inside `k = 16`."""
    joined = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    lines = textwrap.wrap(joined, width, break_long_words=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _width(axes: Axes) -> float:
    """That of a panel in inches."""
    figure: Any = axes.get_figure(root=True)
    return float(figure.get_figwidth() / axes.get_gridspec().ncols)  # type: ignore[union-attr]


def set_words_below(axes: Axes, *lines: str) -> None:
    """Label the horizontal axis with these lines, folded to its width."""
    axes.set_xlabel("\n".join(textwrap.fill(line, int(9 * _width(axes))) for line in lines if line))


def set_places(axes: Axes, names: Sequence[str], beyond: int | None = None, *, rotation: float = 0) -> None:
    """A categorical horizontal axis, with the same room for every name, of which as many are printed as fit.
    `beyond`: the first of the places beyond training, which are shaded; None: no place is.
    """
    longest = 2 if rotation else max(len(line) for name in names for line in name.split("\n"))
    every = math.ceil(0.13 * longest * len(names) / _width(axes))
    axes.set_xticks(range(0, len(names), every), names[::every], rotation=rotation)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(visible=False, axis="x")
    if beyond is not None:
        axes.axvspan(beyond - 0.5, len(names) - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
        axes.axvline(beyond - 0.5, color=MUTED, lw=1.0, ls=DASHED, zorder=1)


def draw_points(
    axes: Axes, points: Iterable[tuple[float, Measurement]], look: Mapping[str, Any], width: float = 1.6
) -> None:
    """A line through the points that are not missing, with their error bars."""
    known = [(at, figure.value, figure) for at, figure in points if figure.value is not None]
    axes.plot([at for at, *_ in known], [value for _, value, _ in known], **look, lw=width, ms=4, zorder=4)
    error_bars(axes, [(at, figure) for at, _, figure in known], look["color"])


def set_log_scale(panels: Sequence[Axes]) -> None:
    """Vertical log axes with few, plain numbers, if the range of all panels is more than a factor of two."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    ends = [end for axes in panels for end in axes.dataLim.intervaly]
    for axes in panels if 0 < 2 * min(ends) < max(ends) else ():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def plain(text: str) -> str:
    """Escape text so that matplotlib shows it literally: a dollar would start math mode."""
    return text.replace("$", r"\$")


def reach(figure: Measurement) -> tuple[float, float] | None:
    """How far the error bar reaches below and above: by the deviation over seeds, or one run's interval; or None."""
    if figure.value is None:
        return None
    if figure.deviation is not None:
        return (figure.deviation, figure.deviation)
    if figure.interval is None:
        return None
    # With a skewed bootstrap the score itself can be outside the interval.
    return (max(0.0, figure.value - figure.interval.low), max(0.0, figure.interval.high - figure.value))


def error_bars(
    axes: Axes, points: Iterable[tuple[float, Measurement]], colour: str, width: float = 1.2, *, across: bool = False
) -> None:
    """Draw the error bars of points at (x, measurement) or, across, of points at (measurement, y)."""
    known = [(at, figure.value, *bar) for at, figure in points if (bar := reach(figure)) is not None]
    if known:
        places, values, below, above = zip(*known, strict=True)
        look: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": width, "capsize": 3, "zorder": 5}
        if across:
            axes.errorbar(values, places, xerr=[below, above], **look)
        else:
            axes.errorbar(places, values, yerr=[below, above], **look)


def bar_words(figures: Iterable[Measurement]) -> str:
    """The meaning of the error bars of these measurements; empty without any."""
    known = list(figures)
    interval = next((figure.interval for figure in known if figure.interval and figure.deviation is None), None)
    kinds = ["± standard deviation over the seeds"] if any(figure.deviation is not None for figure in known) else []
    if interval is not None:
        kinds.append(f"{interval.level:.0%} interval over the {interval.unit} (one seed)")
    return "bars: " + ", or ".join(kinds) if kinds else ""


def variant_colours(variants: Iterable[Variant]) -> dict[str, str]:
    """A colour for each variant's label: that of its kind, for relative positions shaded in the order of k."""
    known = [(variant.label, variant.position.kind, variant.position.clip_distance) for variant in variants]
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[last if len(ks) == 1 else round(at * last / (len(ks) - 1))] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


MARKERS, DASHES = "osD^vPX*<>hdp8H", ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))


def variant_looks(variants: Iterable[Variant]) -> dict[str, dict[str, Any]]:
    """How the line of each variant's label is drawn: colour, marker and dashes, to be told apart in grey too."""
    looks: dict[str, dict[str, Any]] = {}
    for label, colour in variant_colours(variants).items():
        at = len(looks)
        looks[label] = {"color": colour, "marker": MARKERS[at % len(MARKERS)], "ls": DASHES[at % len(DASHES)]}
    return looks


def as_pdf(figure: Figure) -> bytes:
    """The figure as PDF, reproducibly, with its text as text."""
    out = io.BytesIO()
    with styled():
        figure.savefig(out, format="pdf", metadata={"CreationDate": None})
    return out.getvalue()


def rendered(figure: Figure) -> bytes:
    """The figure as SVG, reproducibly."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    # Not figure.savefig, which draws everything twice: once for the layout, once for the file.
    with styled():
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None})
    # The names of clip paths are hashes of unrounded coordinates, whose last bits vary with the layout solver; the
    # drawn coordinates have six digits. So clip paths are numbered instead.
    names = {name: b"clip%d" % at for at, name in enumerate(re.findall(rb'<clipPath id="(\w+)"', out.getvalue()))}
    numbered = re.sub(rb'(?<=["#])p[0-9a-f]{10}(?=[")])', lambda found: names.get(found[0], found[0]), out.getvalue())
    # Two decimals of coordinates are enough. The L of each further point of a line, the style of each marker and all
    # indentation repeat what is known: without them pages, which embed all plots, are a third smaller.
    drawn = re.sub(rb' (?:d|x|y|transform)="[^"]*"', lambda found: _DECIMALS.sub(_two_decimals, found[0]), numbered)
    drawn = _LINES.sub(lambda found: found[0].replace(b"\nL ", b""), re.sub(rb"\n +", b"\n", drawn))
    return _MARKERS.sub(lambda found: b"<g%b%b>" % found.group(1, 3) + found[2].replace(found[3], b""), drawn)


_DECIMALS = re.compile(rb"-?\d+\.\d{3,}")
_LINES = re.compile(rb'[ML] [^A-Za-z"]*(?:L [^A-Za-z"]*)+')  # the points of a path up to another command
_MARKERS = re.compile(rb'<g( clip-path="[^"]*")>(\n<use [^<>]*?( style="[^"]*")/>(?:\n<use [^<>]*\3/>)*)(?=\n</g>)')


def _two_decimals(number: re.Match[bytes]) -> bytes:
    return b"%g" % round(float(number[0]), 2)

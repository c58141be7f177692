"""The style of all plots, and their reproducible rendering: the same figure always gives the same bytes.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
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
LINE = 0.165  # height of a line of text in inches
DASHED: Any = (0, (4, 2))
_WORDS_AT = 1.042  # start of the text to the right of the axes, in widths of the axes
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
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": WHITE,
    "axes.facecolor": WHITE,
    "savefig.facecolor": WHITE,
}


def styled() -> AbstractContextManager[None]:
    """A context for creating and saving figures, independent of the user's matplotlib settings."""
    import matplotlib

    # The user's matplotlibrc must not change a figure: start from matplotlib's own defaults.
    defaults: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if "backend" not in key}
    return matplotlib.rc_context(defaults | _STYLE)


def new_figure(size: tuple[float, float], title: str, subtitle: str, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A titled figure of a size in inches, with panels stacked vertically; `set_margins` places them.

    Call it inside `styled()`, which sets all colours and fonts.
    """
    from matplotlib.figure import Figure

    width, height = size
    figure = Figure(figsize=size)
    figure.suptitle(title, x=0.1 / width, y=1 - 0.05 / height, ha="left", va="top", fontsize=12, fontweight="bold")
    subtitle = textwrap.shorten(subtitle, int(12.8 * width), placeholder=" …")
    figure.text(0.1 / width, 1 - 0.29 / height, plain(subtitle), fontsize=9, va="top", color=MUTED)
    return figure, [axes for (axes,) in figure.subplots(panels, 1, sharex=True, squeeze=False)]


def set_margins(
    figure: Figure, *, above: float = 0.57, below: float = 0.0, right: float = 0.12, beside: float = 1.0
) -> None:
    """Set the margins; tick labels and axis labels must already be in the figure.

    They are computed from the numbers of lines and text widths; matplotlib's layouts draw everything twice to measure.

    Args:
        above: space in inches for the titles.
        below: space in inches below the horizontal axis label.
        right: space in inches for text to the right of the axes, which starts at `beside` widths of the axes.
    """
    width, height = figure.get_size_inches()
    axis = figure.axes[-1].xaxis
    ticks = max(label.get_text().count("\n") for label in axis.get_ticklabels()) + 1
    words = axis.get_label_text()
    lines = ticks + (words.count("\n") + 1 if words else 0)
    figure.subplots_adjust(bottom=(0.16 + LINE * lines + below) / height, top=1 - above / height, hspace=0.08)
    # Only now, since the height determines the number of ticks.
    levels = max(text_width(label.get_text(), 10) for axes in figure.axes for label in axes.get_yticklabels())
    left = levels + (0.36 if figure.axes[0].get_ylabel() else 0.15)
    figure.subplots_adjust(left=left / width, right=(left + (width - left - right) / beside) / width)


def text_width(text: str, size: float) -> float:
    """The width in inches of the widest line, for a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def plain(text: str) -> str:
    """Escape text so that matplotlib shows it literally: a dollar would start math mode."""
    return text.replace("$", r"\$")


def label_ends(panels: Sequence[tuple[Axes, Sequence[tuple[float, str, str]]]]) -> None:
    """Label each line at its right end, moving close labels apart, with a leader to the line's end.

    Labels have the text colour, which is always legible; leaders have the line's colour. Sets the margins, so call it
    last.

    Args:
        panels: all axes of a figure with (level, label, colour) of their lines.
    """
    figure: Any = panels[0][0].figure
    named = [(axes, [(level, _folded(text), colour) for level, text, colour in sorted(ends)]) for axes, ends in panels]
    right = max(text_width(words, 9) for _, ends in named for _, words, _ in ends) + 0.08
    above = 0.75 if panels[0][0].get_title(loc="right") else 0.57
    set_margins(figure, above=above, right=right, beside=_WORDS_AT)
    for axes, ends in named:
        _label(axes, ends, axes.get_position().height * figure.get_figheight())


def _folded(text: str) -> str:
    return "\n".join(textwrap.wrap(text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), 24))


def _label(axes: Axes, ends: Sequence[tuple[float, str, str]], height: float) -> None:
    """Label axes of a height in inches, given their line ends in ascending order."""
    low, high = axes.get_ylim()
    line_height = LINE * (high - low) / height
    placed: list[tuple[float, float, str, str]] = []
    for level, words, colour in ends:
        half = line_height * (words.count("\n") + 1) / 2
        at = max(level, placed[-1][0] + half) if placed else max(level, low + half)
        placed.append((at + half, level, words, colour))
    # Labels pushed beyond the top move back down.
    ceiling = high + line_height
    for index in range(len(placed) - 1, -1, -1):
        top, level, words, colour = placed[index]
        placed[index] = (min(top, ceiling), level, words, colour)
        ceiling = placed[index][0] - line_height * (words.count("\n") + 1)
    transform = axes.get_yaxis_transform()
    for top, level, words, colour in placed:
        at = top - line_height * (words.count("\n") + 1) / 2
        axes.plot([1.003, 1.02], [level, at], transform=transform, color=colour, lw=1.0, clip_on=False, zorder=1)
        axes.plot([1.02, 1.034], [at, at], transform=transform, color=colour, lw=2.6, clip_on=False, zorder=1)
        look: dict[str, Any] = {"color": INK, "fontsize": 9, "va": "center", "linespacing": 1.0}
        axes.text(_WORDS_AT, at, plain(words), transform=transform, **look)


def reach(one: Measurement) -> tuple[float, float] | None:
    """The extent of the error bar below and above a point; None if its error is unknown.

    For several seeds the standard deviation, for one the record's interval over sentences.
    """
    if one.value is None:
        return None
    if one.deviation is not None:
        return (one.deviation, one.deviation)
    if one.interval is None:
        return None
    # With a skewed bootstrap the score itself can be outside the interval.
    return (max(0.0, one.value - one.interval.low), max(0.0, one.interval.high - one.value))


def error_bars(
    axes: Axes, points: Iterable[tuple[float, Measurement]], colour: str, width: float = 1.3, *, across: bool = False
) -> None:
    """Draw the error bars of points at (x, measurement) or, across, of points at (measurement, y)."""
    known = [(at, one.value, *bar) for at, one in points if (bar := reach(one)) is not None]
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
    level = next((f"{one.interval.level:.0%}" for one in known if one.interval and one.deviation is None), None)
    kinds = ["± standard deviation over the seeds"] if any(one.deviation is not None for one in known) else []
    if level is not None:
        kinds.append(f"{level} interval over the sentences (one seed)")
    return "bars: " + ",\nor ".join(kinds) if kinds else ""


def legend_below(figure: Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """A legend below the axes, for narrow figures, of the look of each label."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], lw=1.8, ms=4, label=plain(text), **look) for text, look in looks.items()]
    columns = 2 if max(map(len, looks)) < 20 else 1
    rows = -(-len(handles) // columns)
    set_margins(figure, below=0.1 + LINE * rows)
    figure.legend(
        handles=handles,
        loc="lower left",
        ncols=columns,
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
        labelspacing=0.25,
    )


def variant_colours(variants: Iterable[Variant]) -> dict[str, str]:
    """A colour for each variant's label: that of its kind, for relative positions shaded in the order of k."""
    known = [(one.label, one.position.kind, one.position.clip_distance) for one in variants]
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[last if len(ks) == 1 else round(at * last / (len(ks) - 1))] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


MARKERS, DASHES = "osD^vPX*", ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))


def variant_looks(variants: Iterable[Variant]) -> dict[str, dict[str, Any]]:
    """How the line of each variant's label is drawn: colour, marker and dashes, to be told apart in grey too."""
    looks: dict[str, dict[str, Any]] = {}
    for label, colour in variant_colours(variants).items():
        at = len(looks)
        looks[label] = {"color": colour, "marker": MARKERS[at % len(MARKERS)], "ls": DASHES[at % len(DASHES)]}
    return looks


def as_pdf(figure: Figure) -> bytes:
    """The figure as PDF, reproducibly, with its text as text."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    out = io.BytesIO()
    with styled():
        canvas: Any = FigureCanvasPdf(figure)
        canvas.print_pdf(out, metadata={"CreationDate": None})
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
    # Two decimals of coordinates are enough; without the others, and without indentation, pages, which embed all plots,
    # are a sixth smaller.
    rounded = re.sub(rb' (?:d|x|y|transform)="[^"]*"', lambda found: _DECIMALS.sub(_two_decimals, found[0]), numbered)
    return re.sub(rb"\n +", b"\n", rounded)


_DECIMALS = re.compile(rb"-?\d+\.\d{3,}")


def _two_decimals(number: re.Match[bytes]) -> bytes:
    return b"%g" % round(float(number[0]), 2)

"""The look of every plot, and how a figure becomes a file: the same figure gives the same bytes every time.

matplotlib is imported inside the functions, since the command line imports this package for every sub-command.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.io.atomic import replace_file
from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.measurement import Measurement
from rpr.records.position import OTHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER, WHITE = "#1b1f24", "#5d6670", "#e4e7eb", "#8b939d", "#ffffff"  # the paper is always grey
COLOURS = {**COLOURS_OF_KINDS, OTHER: "#444c56"}
LINE = 0.165  # inches: the height of a line of text
_WORDS_AT = 1.042  # where words beside the axes begin, in widths of the axes
# Curves over k: light to dark blue, so that the order of k is the order of the shades.
K_SHADES = ("#4b9ad3", "#3f90cc", "#3385c3", "#2879b7", "#1d6ca9", "#135e99", "#0c4f86", "#093f70", "#072e58")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "rpr",
    # Text stays text; a browser without the first font takes the next of nearly the same width.
    "svg.fonttype": "none",
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
    """The context in which a figure is made and saved, whatever the user's own matplotlib settings are."""
    import matplotlib

    # The user's matplotlibrc must not change a figure: start from matplotlib's own defaults.
    defaults: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if "backend" not in key}
    return matplotlib.rc_context(defaults | _STYLE)


def new_figure(size: tuple[float, float], title: str, subtitle: str, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A titled figure of a size in inches, with its panels one above the other; `set_margins` gives them their places.

    Call it inside `styled()`, which decides every colour and font.
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
    """Gives everything its room: the tick labels and words of the axes are in the figure already.

    It is figured out from lines and widths of text; a layout by matplotlib draws everything twice to measure it.

    Args:
        above: room in inches for the titles.
        below: room in inches for what stands under the words of the horizontal axis.
        right: room in inches for words beside the axes, which begin at `beside` widths of the axes.
    """
    width, height = figure.get_size_inches()
    axis = figure.axes[-1].xaxis
    ticks = max(label.get_text().count("\n") for label in axis.get_ticklabels()) + 1
    words = axis.get_label_text()
    lines = ticks + (words.count("\n") + 1 if words else 0)
    figure.subplots_adjust(bottom=(0.16 + LINE * lines + below) / height, top=1 - above / height, hspace=0.08)
    # Only now, as the height decides how many ticks there are.
    levels = max(text_width(label.get_text(), 10) for axes in figure.axes for label in axes.get_yticklabels())
    left = levels + (0.36 if figure.axes[0].get_ylabel() else 0.15)
    figure.subplots_adjust(left=left / width, right=(left + (width - left - right) / beside) / width)


def text_width(text: str, size: float) -> float:
    """In inches, of the widest line in a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar would start its mathematics."""
    return text.replace("$", r"\$")


def label_ends(panels: Sequence[tuple[Axes, Sequence[tuple[float, str, str]]]]) -> None:
    """Names each line at its right end, moved apart where ends are close, a leader running to the level it names.

    The words are in the colour of the text, which is legible where a line's colour is not; the leader has the line's.
    It sets the margins, so everything else is in the figure already.

    Args:
        panels: all axes of a figure with (level, name, colour) of their lines.
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
    """The labels of axes of a height in inches, their levels ascending."""
    low, high = axes.get_ylim()
    line_height = LINE * (high - low) / height
    placed: list[tuple[float, float, str, str]] = []
    for level, words, colour in ends:
        half = line_height * (words.count("\n") + 1) / 2
        at = max(level, placed[-1][0] + half) if placed else max(level, low + half)
        placed.append((at + half, level, words, colour))
    # Pushed beyond the top: come back down from there.
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
    """How far the error bar reaches below and above a measured point; None where nothing is known of its error.

    Over several seeds: the standard deviation. For one: the record's interval over the sentences.
    """
    if one.value is None:
        return None
    if one.deviation is not None:
        return (one.deviation, one.deviation)
    if one.interval is None:
        return None
    # Of a skewed bootstrap the score itself can lie outside the interval.
    return (max(0.0, one.value - one.interval.low), max(0.0, one.interval.high - one.value))


def error_bars(axes: Axes, points: Iterable[tuple[float, Measurement]], colour: str, width: float = 1.3) -> None:
    known = [(x, one.value, *bar) for x, one in points if (bar := reach(one)) is not None]
    if known:
        xs, ys, below, above = zip(*known, strict=True)
        look: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": width, "capsize": 3, "zorder": 5}
        axes.errorbar(xs, ys, yerr=[below, above], **look)


def bar_words(figures: Iterable[Measurement]) -> str:
    """What the error bars of these figures are; empty where there are none."""
    known = list(figures)
    level = next((f"{one.interval.level:.0%}" for one in known if one.interval and one.deviation is None), None)
    kinds = ["± standard deviation over the seeds"] if any(one.deviation is not None for one in known) else []
    if level is not None:
        kinds.append(f"{level} interval over the test sentences (one seed)")
    return f"bars: {', or '.join(kinds)}" if kinds else ""


def variant_colours(variants: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """A colour for each (label, kind, k): of its kind, and for relative positions a shade in the order of k."""
    known = list(variants)
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[last if len(ks) == 1 else round(at * last / (len(ks) - 1))] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG; the same figure gives the same bytes every time."""
    replace_file(path, rendered(figure))


def rendered(figure: Figure) -> bytes:
    """The figure as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    # Not figure.savefig, which draws everything twice: for the layout, and again for the file.
    with styled():
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None})
    # The names of clip paths are hashes of unrounded coordinates, and the solver behind a layout does not always end
    # with the same last bits; what is drawn has six digits. So they are numbered instead.
    names = {name: b"clip%d" % at for at, name in enumerate(re.findall(rb'<clipPath id="(\w+)"', out.getvalue()))}
    return re.sub(rb'(?<=["#])p[0-9a-f]{10}(?=[")])', lambda found: names.get(found[0], found[0]), out.getvalue())

"""The look of every plot, and how a figure becomes a file: the same figure gives the same bytes every time.

matplotlib is imported inside the functions, since the command line imports this package for every sub-command.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.records.record import replace_file
from rpr.report.inline_svg import inline
from rpr.report.rows import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart in every common kind of colour blindness; the paper is always grey.
INK, MUTED, GRID, PAPER, WHITE = "#1b1f24", "#5d6670", "#e4e7eb", "#8b939d", "#ffffff"
COLOURS = {
    "relative": "#0072b2",
    "absolute": "#d55e00",
    "learned": "#009e73",
    "none": "#b8608f",
    "relative_keys": "#b07a00",
    "relative_values": "#3a9bd0",
    "absolute_and_relative": "#4b3f99",
    "other": "#444c56",
}
# Curves over k: light to dark blue, so that the order of k is the order of the shades.
K_SHADES = ("#4b9ad3", "#3f90cc", "#3385c3", "#2879b7", "#1d6ca9", "#135e99", "#0c4f86", "#093f70", "#072e58")
# The page swaps each colour for a CSS variable with another value in dark mode, so that one drawing is legible in both.
_DARK_COLOURS = ("#4aa8e0", "#ff8a3d", "#2fc79a", "#e08cbc", "#e0aa3e", "#7cc4ee", "#a397f0", "#aab4be")
_DARK_SHADES = ("#2f6c9c", "#3576a8", "#3c81b4", "#458dc1", "#529acd", "#66a9d9", "#84bde6", "#a9d3f2", "#cfe7fa")
DARK = {INK: "#e6e9ec", MUTED: "#9aa4af", GRID: "#2c333b", PAPER: "#7d8791", WHITE: "#15181c"}
DARK |= zip(COLOURS.values(), _DARK_COLOURS, strict=True)
DARK |= zip(K_SHADES, _DARK_SHADES, strict=True)
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "rpr",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
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


def new_figure(
    size: tuple[float, float], title: str, subtitle: str, margins: tuple[float, float], panels: int = 1
) -> tuple[Figure, list[Axes]]:
    """A titled figure with its panels one above the other; `margins`: left and right edge as fractions of the width.

    Call it inside `styled()`, which decides every colour and font.
    """
    from matplotlib.figure import Figure

    width, height = size
    figure = Figure(figsize=size)
    all_axes = figure.subplots(panels, 1, sharex=True, squeeze=False)
    room = 0.86 if panels == 1 else 1.1
    left, right = margins
    figure.subplots_adjust(left=left, right=right, top=1 - room / height, bottom=0.58 / height, hspace=0.18)
    figure.text(0.02, 1 - 0.2 / height, title, fontsize=13, fontweight="bold", va="top", color=INK)
    figure.text(0.02, 1 - 0.5 / height, plain(shorten(subtitle, int(13 * width))), fontsize=9.5, va="top", color=MUTED)
    return figure, [axes for (axes,) in all_axes]


def plain(text: str) -> str:
    """Text that matplotlib shows as it stands: a dollar would start its mathematics."""
    return text.replace("$", r"\$")


def label_ends(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Names each line at its right end, moved apart where ends are close, a leader running to the level it names.

    The words are in the colour of the text, which is legible where a line's colour is not; the leader has the line's.
    Where the longest words need it, the figure grows to the right.
    """
    _make_room(axes, [line for _, text, _ in labels for line in text.split("\n")])
    low, high = axes.get_ylim()
    height = axes.get_position().height * axes.figure.get_figheight()  # type: ignore[union-attr]
    line_height = 0.17 * (high - low) / height
    placed: list[tuple[float, float, str, str]] = []
    for level, text, colour in sorted(labels):
        half = line_height * (text.count("\n") + 1) / 2
        at = max(level, placed[-1][0] + half) if placed else max(level, low + half)
        placed.append((at + half, level, text, colour))
    # Pushed beyond the top: come back down from there.
    ceiling = high + line_height
    for index in range(len(placed) - 1, -1, -1):
        top, level, text, colour = placed[index]
        placed[index] = (min(top, ceiling), level, text, colour)
        ceiling = placed[index][0] - line_height * (text.count("\n") + 1)
    transform = axes.get_yaxis_transform()
    for top, level, text, colour in placed:
        at = top - line_height * (text.count("\n") + 1) / 2
        axes.plot([1.003, 1.02], [level, at], transform=transform, color=colour, lw=1.0, clip_on=False, zorder=1)
        axes.plot([1.02, 1.034], [at, at], transform=transform, color=colour, lw=2.6, clip_on=False, zorder=1)
        axes.text(1.042, at, plain(text), transform=transform, color=INK, fontsize=9, va="center", linespacing=1.05)


def _make_room(axes: Axes, lines: Sequence[str]) -> None:
    figure, box = axes.figure, axes.get_position()
    assert figure is not None
    width = figure.get_figwidth()  # type: ignore[union-attr]
    needed = width * (box.x1 + 0.042 * box.width) + text_width(max(map(len, lines), default=0), 9) + 0.1
    if needed > width:
        figure.set_figwidth(needed)  # type: ignore[union-attr]
        figure.subplots_adjust(left=box.x0 * width / needed, right=box.x1 * width / needed)


def text_width(characters: int, size: float) -> float:
    """About how many inches so many characters of a size in points take, a little too many."""
    return characters * 0.6 * size / 72


def bar(cell: Cell) -> tuple[float, float] | None:
    """How far the error bar reaches below and above a measured point; None where nothing is known of its error.

    Over several seeds: the standard deviation. For one: the record's interval over the sentences.
    """
    if cell.value is None:
        return None
    if cell.sd is not None:
        return (cell.sd, cell.sd)
    if cell.interval is None:
        return None
    # Of a skewed bootstrap the score itself can lie outside the interval.
    return (max(0.0, cell.value - cell.interval.low), max(0.0, cell.interval.high - cell.value))


def bar_words(cells: Iterable[Cell]) -> str:
    """What the error bars of these cells are; empty where there are none."""
    known = [cell for cell in cells if cell.value is not None]
    level = next((f"{cell.interval.level:.0%}" for cell in known if cell.interval is not None), None)
    kinds = ["± standard deviation over the seeds"] if any(cell.sd is not None for cell in known) else []
    if level is not None:
        kinds.append(f"{level} interval over the test sentences (one seed)")
    return f"bars: {', or '.join(kinds)}" if kinds else ""


def note(figure: Figure, text: str) -> None:
    """A line at the foot of the figure, below the axis' name, for which the panels move up."""
    height = figure.get_figheight()
    figure.subplots_adjust(bottom=figure.subplotpars.bottom + 0.24 / height)
    figure.text(0.02, 0.08 / height, plain(text), fontsize=9, va="bottom", color=MUTED)


def variant_colours(variants: Sequence[tuple[str, str, int | None]]) -> dict[str, str]:
    """A colour for each (label, kind, k): of its kind, and for relative positions a shade in the order of k."""
    ks = sorted({k for _, kind, k in variants if kind == "relative" and k is not None})
    shades = {}
    for index, k in enumerate(ks):
        shades[k] = K_SHADES[-1 if len(ks) == 1 else round(index * (len(K_SHADES) - 1) / (len(ks) - 1))]
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in variants}


def shorten(text: str, width: int) -> str:
    """At most `width` characters, an ellipsis in place of what is left out."""
    return text if len(text) <= width else text[: width - 1] + "…"


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG or PNG, by the ending of `path`; the same figure gives the same bytes every time."""
    replace_file(path, rendered(figure, path.suffix.removeprefix(".")))


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of the figure as "svg" or "png"."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    metadata: dict[str, Any] = {"svg": {"Date": None}, "png": {"Software": None}}[kind]
    out = io.BytesIO()
    with styled():
        FigureCanvasAgg(figure)
        figure.savefig(out, format=kind, dpi=180, metadata=metadata)
    return out.getvalue()


def variable(colour: str) -> str:
    """The name of the CSS variable that stands for a colour of the palette."""
    return f"--plot-{colour.removeprefix('#')}"


def inlined(svg: str, prefix: str, description: str) -> str:
    """A drawing of ours as an svg element for a page, colours left to the page's CSS variables.

    Raises:
        RecordError: the file holds something that no drawing of ours has.
    """
    return inline(svg, prefix, description, {colour: f"var({variable(colour)}, {colour})" for colour in DARK})

"""The look of every plot, and how a figure becomes a file: the same figure gives the same bytes every time.

matplotlib is imported inside the functions, since the command line imports this package for every sub-command.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.results.record import replace_file

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
K_SHADES = ("#62aadd", "#4b9ad3", "#368ac8", "#257aba", "#196aab", "#115b9a", "#0c4c87", "#093d70", "#072e58")
# The page swaps each colour for a CSS variable with another value in dark mode, so that one drawing is legible in both.
_DARK_COLOURS = ("#4aa8e0", "#ff8a3d", "#2fc79a", "#e08cbc", "#e0aa3e", "#7cc4ee", "#a397f0", "#aab4be")
_DARK_SHADES = ("#24557f", "#2b6594", "#3376a9", "#3d88bd", "#4b9acf", "#61acdd", "#80bfe8", "#a5d2f1", "#cfe7fa")
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
    """Names each line at its right end, moved apart where ends are close, a leader running to the level it names."""
    low, high = axes.get_ylim()
    height = axes.get_position().height * axes.figure.get_figheight()  # type: ignore[union-attr]
    line_height = 0.155 * (high - low) / height
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
        axes.text(
            1.027, at, plain(text), transform=transform, color=colour, fontsize=8.5, va="center", linespacing=1.05
        )


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
    replace_file(path, _bytes(figure, path.suffix.removeprefix(".")))


def _bytes(figure: Figure, kind: str) -> bytes:
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


def svg_text(figure: Figure, prefix: str, description: str) -> str:
    """The SVG element alone, for a page: ids made its own by `prefix`, colours left to the page's CSS variables."""
    text = _bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    # In one pass: a replaced colour must not be replaced again.
    text = re.sub("|".join(DARK), lambda match: f"var({variable(match[0])}, {match[0]})", text)
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    # Width and height in points would not follow the page's width; the viewBox keeps the proportions.
    text = re.sub(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

"""One page of what a run's position representations learned, a panel for each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rpr.evaluation.position_numbers import (
    AbsoluteTable,
    LayerAttention,
    LayerTables,
    PositionNumbers,
    TableNumbers,
    mean_over_heads,
)
from rpr.report.drawing import COLOURS, INK, K_SHADES, PAPER, WHITE, shorten, styled
from rpr.report.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

T = TypeVar("T", LayerTables, LayerAttention, AbsoluteTable)
PANELS_PER_LINE = 6
NO_TABLES = "This run has no relative tables: nothing to draw."
KINDS = (("K", COLOURS["relative"]), ("V", COLOURS["absolute"]))
_DASHED: Any = (0, (4, 2))
# All lengths in inches.
_PANEL_HEIGHT, _STRIP_HEIGHT, _HEAD_HEIGHT, _ABOVE, _BELOW = 1.25, 0.8, 0.135, 0.27, 0.42


def position_page(numbers: PositionNumbers, title: str, subtitle: str) -> Figure:
    """The whole page; the same numbers give the same figure."""
    widest = max(sum(layer.stack == stack.stack for layer in numbers.attention) for stack in numbers.stacks)
    with styled():
        sheet = Sheet(max(2, min(widest, PANELS_PER_LINE)))
        sheet.text(title, size=14, colour=INK, weight="bold", below=0.32)
        sheet.text(shorten(subtitle, int(13 * sheet.width)), below=0.4)
        if numbers.tables:
            _norms(sheet, numbers.tables)
            _cosines(sheet, numbers.tables)
        else:
            sheet.heading("1  Norm of each vector of the relative tables", NO_TABLES)
            sheet.heading("2  Cosine similarity of the vectors of neighbouring offsets", NO_TABLES)
        _attention(sheet, numbers)
        if numbers.absolute:
            _absolute(sheet, numbers.absolute)
        return sheet.finish()


def _in_lines(entries: Sequence[T]) -> list[list[T]]:
    """At most PANELS_PER_LINE beside each other, each stack from a line of its own."""
    stacks = dict.fromkeys(entry.stack for entry in entries)
    lines = []
    for stack in stacks:
        mine = [entry for entry in entries if entry.stack == stack]
        lines += [mine[start : start + PANELS_PER_LINE] for start in range(0, len(mine), PANELS_PER_LINE)]
    return lines


def _grid(sheet: Sheet, entries: Sequence[T], labels: tuple[str, str], draw: Callable[[Axes, T], None]) -> None:
    """A panel for each entry, its label above it; all panels share their y axis, whose numbers stand at the left."""
    everyone = []
    lines = _in_lines(entries)
    if all(len(line) == 1 for line in lines):  # one of each stack: side by side
        lines = [list(entries)]
    for number, line in enumerate(lines, start=1):
        sheet.top += _ABOVE
        for column, entry in enumerate(line):
            axes = sheet.panel(column, _PANEL_HEIGHT)
            draw(axes, entry)
            axes.set_title(entry.label, loc="left", fontsize=9, color=INK, pad=4)
            if column:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel(labels[1], fontsize=9)
            if number == len(lines):
                axes.set_xlabel(labels[0], fontsize=9)
            everyone.append(axes)
        sheet.top += _PANEL_HEIGHT + 0.25
    low = min(axes.get_ylim()[0] for axes in everyone)
    high = max(axes.get_ylim()[1] for axes in everyone)
    for axes in everyone:
        axes.set_ylim(low, high)
    sheet.top += _BELOW - 0.2


def _kinds(tables: LayerTables) -> list[tuple[str, str, TableNumbers]]:
    """(K or V, colour, numbers) of the tables that the layer has."""
    both = zip(KINDS, (tables.keys, tables.values), strict=True)
    return [(kind, colour, table) for (kind, colour), table in both if table is not None]


def _legend(sheet: Sheet, tables: Sequence[LayerTables], initial: str | None) -> None:
    """At the right of the heading that comes next."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, lw=2, label=f"$w^{kind}$") for kind, colour, _ in _kinds(tables[0])]
    if initial is not None:
        handles.append(Line2D([], [], color=PAPER, lw=1.2, ls=_DASHED, label=initial))
    axes = sheet.axes(sheet.right - 3.0, 3.0, 0.25, 0.1)
    axes.set_axis_off()
    axes.legend(handles=handles, loc="center right", ncols=3, frameon=False, fontsize=9, borderaxespad=0.0)


def _heads(axes: Axes, xs: Sequence[float], rows: Sequence[Sequence[float | None]], colour: str) -> None:
    """A light line for each head and the mean over them; a single head, or one shared by all, is the mean itself."""
    marker = "o" if len(xs) <= 3 else ""
    if len(rows) > 1:
        for row in rows:
            axes.plot(xs, _numbers(row), color=colour, lw=0.7, alpha=0.35, marker=marker, ms=3, zorder=2)
    axes.plot(xs, mean_over_heads(rows), color=colour, lw=1.9, marker=marker, ms=3.5, zorder=4)


def _numbers(values: Sequence[float | None]) -> list[float]:
    """What matplotlib leaves a gap for is NaN."""
    return [math.nan if value is None else value for value in values]


def _offset_axis(axes: Axes, clip_distance: int) -> None:
    axes.set_xlim(-clip_distance - 0.5, clip_distance + 0.5)
    half = clip_distance // 2
    axes.set_xticks(sorted({-clip_distance, -half, 0, half, clip_distance}))


def _sharing(tables: Sequence[LayerTables]) -> str:
    heads = max(len(table.norms) for entry in tables for _, _, table in _kinds(entry))
    return "Light: each head; full: their mean." if heads > 1 else "All heads share one table."


def _norms(sheet: Sheet, tables: Sequence[LayerTables]) -> None:
    _legend(sheet, tables, "root mean square before training")
    sheet.heading(
        "1  Norm of each vector of the relative tables",
        "By offset j - i (key minus query) from -k to k; the outermost vectors also serve every distance beyond. "
        f"{_sharing(tables)} In the decoder no query sees a later key, so vectors of j > i stay as they began.",
    )

    def draw(axes: Axes, entry: LayerTables) -> None:
        for _, colour, table in _kinds(entry):
            k = table.clip_distance
            _heads(axes, range(-k, k + 1), table.norms, colour)
            axes.axhline(table.expected_initial_norm, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
            _offset_axis(axes, k)
        highest = (max([table.expected_initial_norm, *map(max, table.norms)]) for _, _, table in _kinds(entry))
        axes.set_ylim(0, 1.08 * max(highest))

    _grid(sheet, tables, ("offset j - i", "norm"), draw)


def _cosines(sheet: Sheet, tables: Sequence[LayerTables]) -> None:
    heading = "2  Cosine similarity of the vectors of neighbouring offsets"
    if _kinds(tables[0])[0][2].clip_distance == 0:
        sheet.heading(heading, "k = 0: there is one vector for every pair of positions, and it has no neighbour.")
        return
    _legend(sheet, tables, None)
    sheet.heading(
        heading,
        "Of offsets r and r + 1, drawn between the two. 1: the same direction, the two are hardly told apart; "
        f"0: unrelated, as on average before training. {_sharing(tables)}",
    )

    def draw(axes: Axes, entry: LayerTables) -> None:
        axes.axhline(0, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
        for _, colour, table in _kinds(entry):
            k = table.clip_distance
            _heads(axes, [offset + 0.5 for offset in range(-k, k)], table.cosines, colour)
            _offset_axis(axes, k)
        axes.margins(y=0.08)

    _grid(sheet, tables, ("between the offsets j - i", "cosine"), draw)


def _attention(sheet: Sheet, numbers: PositionNumbers) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    sentences = f"{numbers.num_sentences:,} validation sentence{'s' if numbers.num_sentences > 1 else ''}"
    sheet.heading(
        "3  Mean attention by signed distance",
        "At distance d = j - i: the mean of the attention of query i to key i + d, over all pairs of a sentence and a "
        f"query for which that key exists ({sentences}; padding is neither query "
        "nor key; in the decoder no query sees a later key). Curves: the mean over heads, light: each head, dashed: "
        "attention spread evenly over what a query sees. Colours: each head. Distances that fewer than one query in "
        "a hundred has are left out.",
    )
    shown = {stack.stack: stack.often for stack in numbers.stacks}
    highest = {stack.stack: 0.0 for stack in numbers.stacks}
    for layer in numbers.attention:
        present = [value or 0.0 for head in layer.attention for value in head[shown[layer.stack]]]
        highest[layer.stack] = max(highest[layer.stack], *present)
    shades = [WHITE, K_SHADES[0], K_SHADES[4], K_SHADES[-1]]
    # By the square root, so that a tenth is told from nothing where another head gives one place nearly all.
    look = {
        "cmap": LinearSegmentedColormap.from_list("attention", shades),
        "norm": PowerNorm(0.5, vmin=0.0, vmax=max(highest.values())),
    }
    first_line, image = sheet.top + _ABOVE, None
    for line in _in_lines(numbers.attention):
        height = _HEAD_HEIGHT * max(4, len(line[0].attention))
        sheet.top += _ABOVE
        for column, layer in enumerate(line):
            strip, cells = sheet.panel(column, _STRIP_HEIGHT), sheet.panel(column, height, down=_STRIP_HEIGHT + 0.05)
            image = _layer_attention(strip, cells, layer, numbers, shown[layer.stack], look)
            strip.set_ylim(0, highest[layer.stack] * 1.05)
            if column:
                strip.tick_params(labelleft=False)
                cells.tick_params(labelleft=False)
            else:
                strip.set_ylabel("attention", fontsize=9)
                cells.set_ylabel("head", fontsize=9)
        sheet.top += _STRIP_HEIGHT + height + _BELOW + 0.12
    assert image is not None, "a model has layers"
    bar = sheet.axes(sheet.right + 0.16, 0.13, _STRIP_HEIGHT + height, first_line - sheet.top)
    sheet.figure.colorbar(image, cax=bar)
    bar.grid(visible=False)


def _layer_attention(
    strip: Axes, cells: Axes, layer: LayerAttention, numbers: PositionNumbers, shown: slice, look: dict[str, Any]
) -> AxesImage:
    """Curves above, and below a row of coloured cells for each head."""
    distances = range(-numbers.max_distance, numbers.max_distance + 1)[shown]
    rows = [_numbers(head[shown]) for head in layer.attention]
    even = _numbers(numbers.stack(layer.stack).even_attention[shown])
    _heads(strip, distances, rows, KINDS[0][1])
    strip.plot(distances, even, color=INK, lw=1.0, ls=_DASHED, zorder=5)
    strip.set_title(layer.label, loc="left", fontsize=9, color=INK, pad=4)
    strip.tick_params(labelbottom=False)
    # Not interpolated: the file keeps the cells themselves, sharp at every size.
    extent = (distances[0] - 0.5, distances[-1] + 0.5, len(rows) + 0.5, 0.5)
    image = cells.imshow(rows, aspect="auto", interpolation="none", extent=extent, **look)
    cells.grid(visible=False)
    cells.set_yticks(range(1, len(rows) + 1, 1 + len(rows) // 5))
    cells.set_xlabel("distance j - i", fontsize=9)
    for axes in (strip, cells):
        axes.set_xlim(extent[:2])
    return image


def _absolute(sheet: Sheet, tables: Sequence[AbsoluteTable]) -> None:
    sheet.heading(
        "4  Norm of each vector of the learned absolute tables",
        "By position, up to twice the longest measured sentence, whose end is the upright line. Positions that no "
        "training sentence reached stay as they began.",
    )

    def draw(axes: Axes, entry: AbsoluteTable) -> None:
        shown = entry.norms[: 2 * entry.longest]
        axes.plot(range(len(shown)), shown, color=COLOURS["learned"], lw=1.6)
        axes.axvline(entry.longest - 0.5, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
        axes.set_xlim(-0.5, len(shown) - 0.5)
        axes.set_ylim(0, max(shown) * 1.08)

    _grid(sheet, tables, ("position", "norm"), draw)

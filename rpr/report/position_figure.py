"""A figure of what a run's position representations learned, with one panel per layer."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rpr.analysis.position_numbers import (
    AbsoluteTable,
    LayerAttention,
    LayerBias,
    LayerTables,
    PositionNumbers,
    TableNumbers,
    mean_over_heads,
)
from rpr.report.plot_style import COLOURS, INK, K_SHADES, MUTED, PAPER, WHITE, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage

T = TypeVar("T", LayerTables, LayerAttention, AbsoluteTable, LayerBias)
PANELS_PER_LINE = 6
NO_TABLES = "This run has no relative tables: nothing to draw."
KINDS = (("K", COLOURS["relative"]), ("V", COLOURS["absolute"]))
_DASHED: Any = (0, (4, 2))
_LINE, _CURVES, _HEAD = 1.75, 0.8, 0.135  # heights in inches: a line of panels, the curves above the heads, each head

# A part of the figure: its heading, its explanation, the height of its panels, and the function that draws them.
_Part = tuple[str, str, float, "Callable[[SubFigure], None] | None"]


def position_figure(numbers: PositionNumbers, title: str, subtitle: str) -> Figure:
    """The whole figure; the same numbers give the same figure."""
    from matplotlib.figure import Figure

    widest = max(sum(layer.stack == stack.stack for layer in numbers.attention) for stack in numbers.stacks)
    width = max(9.6, 1.6 + 2.3 * min(widest, PANELS_PER_LINE))
    parts: list[_Part] = [(title, textwrap.shorten(subtitle, int(13 * width), placeholder=" …"), 0.0, None)]
    if numbers.tables:
        parts += [_norms(numbers.tables), _cosines(numbers.tables)]
    else:
        parts.append(("1  Norm of each vector of the relative tables", NO_TABLES, 0.0, None))
        parts.append(("2  Cosine similarity of the vectors of neighbouring offsets", NO_TABLES, 0.0, None))
    parts.append(_attention(numbers))
    if numbers.absolute:
        parts.append(_absolute(numbers.absolute))
    if numbers.biases:
        parts.append(_biases(numbers, 4 + bool(numbers.absolute)))
    texts = ["\n".join(textwrap.wrap(explanation, int(13.2 * width))) for _, explanation, _, _ in parts]
    heights = [
        height for text, part in zip(texts, parts, strict=True) for height in (0.6 + 0.165 * text.count("\n"), part[2])
    ]
    shown = [height for height in heights if height]
    with styled():
        figure = Figure(figsize=(width, sum(shown)), layout="constrained")
        strips = iter(figure.subfigures(len(shown), 1, height_ratios=shown, squeeze=False).flat)
        for number, (text, (heading, _, height, draw)) in enumerate(zip(texts, parts, strict=True)):
            strip, size = next(strips), 12 if number else 14
            look: dict[str, Any] = {"va": "top", "transform": strip.transSubfigure}
            inch = 1 / (0.6 + 0.165 * text.count("\n"))
            strip.text(0.01, 1 - 0.1 * inch, plain(heading), fontsize=size, fontweight="bold", **look)
            strip.text(0.01, 1 - 0.36 * inch, plain(text), fontsize=9.5, color=MUTED, **look)
            if draw is not None and height:
                draw(next(strips))
    return figure


def _in_lines(entries: Sequence[T]) -> list[list[T]]:
    """Lines of at most PANELS_PER_LINE panels; each stack starts a new line, unless every stack has only one panel."""
    lines = []
    for stack in dict.fromkeys(entry.stack for entry in entries):
        mine = [entry for entry in entries if entry.stack == stack]
        lines += [mine[start : start + PANELS_PER_LINE] for start in range(0, len(mine), PANELS_PER_LINE)]
    return lines if any(len(line) > 1 for line in lines) else [[entry for line in lines for entry in line]]


def _panels(
    figure: SubFigure, lines: Sequence[Sequence[T]], labels: tuple[str, str], ratios: Sequence[float] = (1.0,)
) -> Iterator[tuple[T, list[Axes]]]:
    """The axes of each entry, one below the other for each of `ratios`, labelled at the edges of their line."""
    columns = max(map(len, lines))
    # The last line of a stack can be shorter than the others.
    grid = figure.subplots(len(lines) * len(ratios), columns, height_ratios=[*ratios] * len(lines), squeeze=False)
    for number, line in enumerate(lines):
        rows = grid[number * len(ratios) : (number + 1) * len(ratios)]
        for column in range(columns):
            mine = [row[column] for row in rows]
            if column >= len(line):
                for axes in mine:
                    axes.set_axis_off()
                continue
            for axes in mine:
                axes.tick_params(labelsize=8, length=2.5, labelleft=column == 0)
            mine[0].set_title(line[column].label, loc="left", fontsize=9, color=INK, pad=4)
            mine[-1].set_xlabel(labels[0], fontsize=9)
            if column == 0:
                mine[0].set_ylabel(labels[1], fontsize=9)
            yield line[column], mine


def _one_scale(all_axes: Sequence[Axes], bottom: float | None = None) -> None:
    low = min(axes.get_ylim()[0] for axes in all_axes) if bottom is None else bottom
    high = max(axes.get_ylim()[1] for axes in all_axes)
    for axes in all_axes:
        axes.set_ylim(low, high)


def _kinds(tables: LayerTables) -> list[tuple[str, str, TableNumbers]]:
    """(K or V, colour, numbers) of the layer's tables."""
    both = zip(KINDS, (tables.keys, tables.values), strict=True)
    return [(kind, colour, table) for (kind, colour), table in both if table is not None]


def _legend(figure: SubFigure, tables: Sequence[LayerTables], initial: str | None) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, lw=2, label=f"$w^{kind}$") for kind, colour, _ in _kinds(tables[0])]
    if initial is not None:
        handles.append(Line2D([], [], color=PAPER, lw=1.2, ls=_DASHED, label=initial))
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=9)


def _heads(axes: Axes, xs: Sequence[float], rows: Sequence[Sequence[float | None]], colour: str) -> None:
    """A light line for each head and a full one for their mean; with a single head or a shared table only the mean."""
    marker = "o" if len(xs) <= 3 else ""
    if len(rows) > 1:
        for row in rows:
            axes.plot(xs, _numbers(row), color=colour, lw=0.7, alpha=0.35, marker=marker, ms=3, zorder=2)
    axes.plot(xs, mean_over_heads(rows), color=colour, lw=1.9, marker=marker, ms=3.5, zorder=4)


def _numbers(values: Sequence[float | None]) -> list[float]:
    """None becomes NaN, for which matplotlib leaves a gap."""
    return [math.nan if value is None else value for value in values]


def _offset_axis(axes: Axes, clip_distance: int) -> None:
    axes.set_xlim(-clip_distance - 0.5, clip_distance + 0.5)
    half = clip_distance // 2
    axes.set_xticks(sorted({-clip_distance, -half, 0, half, clip_distance}))


def _sharing(tables: Sequence[LayerTables]) -> str:
    heads = max(len(table.norms) for entry in tables for _, _, table in _kinds(entry))
    return "Light: each head; full: their mean." if heads > 1 else "All heads share one table."


def _norms(tables: Sequence[LayerTables]) -> _Part:
    lines = _in_lines(tables)

    def draw(figure: SubFigure) -> None:
        _legend(figure, tables, "root mean square before training")
        everyone = []
        for entry, [axes] in _panels(figure, lines, ("offset j - i", "norm")):
            for _, colour, table in _kinds(entry):
                k = table.clip_distance
                _heads(axes, range(-k, k + 1), table.norms, colour)
                axes.axhline(table.expected_initial_norm, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
                _offset_axis(axes, k)
            everyone.append(axes)
        _one_scale(everyone, bottom=0)

    explanation = (
        "By offset j - i (key minus query) from -k to k; the outermost vectors also serve every distance beyond. "
        f"{_sharing(tables)} In the decoder no query sees a later key, so vectors of j > i stay as they began."
    )
    return "1  Norm of each vector of the relative tables", explanation, 0.3 + _LINE * len(lines), draw


def _cosines(tables: Sequence[LayerTables]) -> _Part:
    heading, lines = "2  Cosine similarity of the vectors of neighbouring offsets", _in_lines(tables)
    if _kinds(tables[0])[0][2].clip_distance == 0:
        return heading, "k = 0: there is one vector for every pair of positions, and it has no neighbour.", 0.0, None

    def draw(figure: SubFigure) -> None:
        _legend(figure, tables, None)
        everyone = []
        for entry, [axes] in _panels(figure, lines, ("between the offsets j - i", "cosine")):
            axes.axhline(0, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
            for _, colour, table in _kinds(entry):
                k = table.clip_distance
                _heads(axes, [offset + 0.5 for offset in range(-k, k)], table.cosines, colour)
                _offset_axis(axes, k)
            axes.margins(y=0.08)
            everyone.append(axes)
        _one_scale(everyone)

    explanation = (
        "Of offsets r and r + 1, drawn between the two. 1: the same direction, the two are hardly told apart; "
        f"0: unrelated, as on average before training. {_sharing(tables)}"
    )
    return heading, explanation, 0.3 + _LINE * len(lines), draw


def _attention(numbers: PositionNumbers) -> _Part:
    lines = _in_lines(numbers.attention)
    heads = _HEAD * max(4, *(len(layer.attention) for layer in numbers.attention))
    shown = {stack.stack: stack.often for stack in numbers.stacks}
    highest = {
        stack: max(
            value or 0.0
            for layer in numbers.attention
            if layer.stack == stack
            for head in layer.attention
            for value in head[often]
        )
        for stack, often in shown.items()
    }

    def draw(figure: SubFigure) -> None:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        # On a square-root scale, so that a tenth is distinguishable from zero next to a head that attends to one place.
        look = {
            "cmap": LinearSegmentedColormap.from_list("attention", [WHITE, K_SHADES[0], K_SHADES[4], K_SHADES[-1]]),
            "norm": PowerNorm(0.5, vmin=0.0, vmax=max(highest.values())),
        }
        image, cells = None, []
        for layer, (curves, heads_) in _panels(figure, lines, ("distance j - i", "attention"), (_CURVES, heads)):
            image = _layer_attention(curves, heads_, layer, numbers, shown[layer.stack], look)
            curves.set_ylim(0, highest[layer.stack] * 1.05)
            cells.append(heads_)
        assert image is not None, "a model has layers"
        bar = figure.colorbar(image, ax=cells, aspect=40, pad=0.01)
        bar.ax.grid(visible=False)
        bar.ax.tick_params(labelsize=8, length=2.5)

    sentences = f"{numbers.num_sentences:,} validation sentence{'s' if numbers.num_sentences > 1 else ''}"
    explanation = (
        "At distance d = j - i: the mean of the attention of query i to key i + d, over all pairs of a sentence and a "
        f"query for which that key exists ({sentences}; padding is neither query "
        "nor key; in the decoder no query sees a later key). Curves: the mean over heads, light: each head, dashed: "
        "attention spread evenly over what a query sees. Colours: each head. Distances that fewer than one query in "
        "a hundred has are left out."
    )
    return "3  Mean attention by signed distance", explanation, (_CURVES + heads + 0.85) * len(lines), draw


def _layer_attention(
    curves: Axes, cells: Axes, layer: LayerAttention, numbers: PositionNumbers, shown: slice, look: dict[str, Any]
) -> AxesImage:
    """Draw the curves and, below them, a row of coloured cells per head."""
    distances = range(-numbers.max_distance, numbers.max_distance + 1)[shown]
    rows = [_numbers(head[shown]) for head in layer.attention]
    _heads(curves, distances, rows, KINDS[0][1])
    even = _numbers(numbers.stack(layer.stack).even_attention[shown])
    curves.plot(distances, even, color=INK, lw=1.0, ls=_DASHED, zorder=5)
    curves.tick_params(labelbottom=False)
    # Not interpolated: the file stores the cells themselves, sharp at every size.
    extent = (distances[0] - 0.5, distances[-1] + 0.5, len(rows) + 0.5, 0.5)
    image = cells.imshow(rows, aspect="auto", interpolation="none", extent=extent, **look)
    cells.grid(visible=False)
    cells.set_yticks(range(1, len(rows) + 1, 1 + len(rows) // 5))
    if curves.get_ylabel():
        cells.set_ylabel("head", fontsize=9)
    for axes in (curves, cells):
        axes.set_xlim(extent[:2])
        axes.locator_params("x", integer=True)
    return image


def _absolute(tables: Sequence[AbsoluteTable]) -> _Part:
    lines = _in_lines(tables)

    def draw(figure: SubFigure) -> None:
        everyone = []
        for entry, [axes] in _panels(figure, lines, ("position", "norm")):
            shown = entry.norms[: 2 * entry.longest]
            axes.plot(range(len(shown)), shown, color=COLOURS["learned"], lw=1.6)
            axes.axvline(entry.longest - 0.5, color=PAPER, lw=1.2, ls=_DASHED, zorder=1)
            axes.set_xlim(-0.5, len(shown) - 0.5)
            everyone.append(axes)
        _one_scale(everyone, bottom=0)

    explanation = (
        "By position, up to twice the longest measured sentence, whose end is the upright line. Positions that no "
        "training sentence reached stay as they began."
    )
    return "4  Norm of each vector of the learned absolute tables", explanation, _LINE * len(lines), draw


def _biases(numbers: PositionNumbers, number: int) -> _Part:
    lines = _in_lines(numbers.biases)

    def draw(figure: SubFigure) -> None:
        for entry, [axes] in _panels(figure, lines, ("distance j - i", "bias")):
            often = numbers.stack(entry.stack).often
            distances = range(-numbers.max_distance, numbers.max_distance + 1)[often]
            _heads(axes, distances, [head[often] for head in entry.bias], KINDS[0][1])

    explanation = (
        "What is added to the score of query i and key i + d, after the scale. Light: each head; full: their mean. "
        "Distances that fewer than one query in a hundred has are left out."
    )
    return f"{number}  Bias by signed distance", explanation, 0.3 + _LINE * len(lines), draw

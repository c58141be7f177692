"""A figure of what a run's position representations learned, with one panel per layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rpr.report.plot_style import COLOURS, DASHED, INK, K_SHADES, MUTED, PAPER, WHITE, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = NDArray[np.float64]
Entry = dict[str, Any]  # one of the lists of rpr.analysis.positions.measure
PANELS_PER_LINE = 6
NO_TABLES = "This run has no relative tables: nothing to draw."
TABLES = (("keys", "K", COLOURS["relative"]), ("values", "V", COLOURS["absolute"]))
_LINE, _CURVES, _HEAD = 1.75, 0.8, 0.135  # heights in inches: a line of panels, the curves above the heads, each head
_RARE = "Distances that fewer than one query in a hundred has are left out."


@dataclass(frozen=True)
class _Part:
    """A part of the figure: a panel for each entry, drawn by `draw` into axes of these `heights` (in inches), one below
    the other. Single axes have one scale, from `bottom`, or from the lowest value.
    """

    heading: str
    words: str
    entries: Sequence[Entry]
    labels: tuple[str, str]
    draw: Callable[[list[Axes], Entry], None]
    bottom: float | None = 0.0
    heights: tuple[float, ...] = (_LINE - 0.5,)

    @property
    def lines(self) -> list[list[Entry]]:
        """At most PANELS_PER_LINE panels; each stack starts a new line, unless every stack has only one panel."""
        lines = []
        for stack in dict.fromkeys(entry["stack"] for entry in self.entries):
            mine = [entry for entry in self.entries if entry["stack"] == stack]
            lines += [mine[start : start + PANELS_PER_LINE] for start in range(0, len(mine), PANELS_PER_LINE)]
        return lines if any(len(line) > 1 for line in lines) else [[entry for line in lines for entry in line]]


def position_figure(numbers: Entry, title: str, subtitle: str) -> Figure:
    """The whole figure; the same numbers give the same figure."""
    from matplotlib.figure import Figure

    parts = [*_parts(numbers)]
    widest = max(len(line) for part in parts for line in part.lines)
    width = max(9.6, 1.6 + 2.3 * widest)
    heads = [(title, textwrap.shorten(subtitle, int(13 * width), placeholder=" …"))]
    heads += [
        (f"{number}  {part.heading}", "\n".join(textwrap.wrap(part.words, int(13.2 * width))))
        for number, part in enumerate(parts, 1)
    ]
    heights: list[float] = []
    for (_, words), part in zip(heads, [None, *parts], strict=True):
        heights.append(0.6 + 0.165 * words.count("\n"))
        if part is not None and part.entries:
            heights.append(0.3 + (sum(part.heights) + 0.5) * len(part.lines))
    with styled():
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        strips = iter(
            zip(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat, heights, strict=True)
        )
        for number, (heading, words) in enumerate(heads):
            strip, height = next(strips)
            look: dict[str, Any] = {"va": "top", "transform": strip.transSubfigure}
            size = 12 if number else 14
            strip.text(0.01, 1 - 0.1 / height, plain(heading), fontsize=size, fontweight="bold", **look)
            strip.text(0.01, 1 - 0.36 / height, plain(words), fontsize=9.5, color=MUTED, **look)
            if number and parts[number - 1].entries:
                _draw(parts[number - 1], next(strips)[0])
    return figure


def _draw(part: _Part, figure: SubFigure) -> None:
    """The panels of a part, labelled at the edges of their line."""
    lines, each = part.lines, len(part.heights)
    columns = max(map(len, lines))
    grid = figure.subplots(len(lines) * each, columns, height_ratios=[*part.heights] * len(lines), squeeze=False)
    drawn = []
    for number, line in enumerate(lines):
        for column in range(columns):
            panel: list[Axes] = [*grid[number * each : (number + 1) * each, column]]
            if column >= len(line):  # the last line of a stack can be shorter than the others
                for axes in panel:
                    axes.set_axis_off()
                continue
            for axes in panel:
                axes.tick_params(labelsize=8, length=2.5, labelleft=column == 0)
            panel[0].set_title(label(line[column]), loc="left", fontsize=9, color=INK, pad=4)
            panel[-1].set_xlabel(part.labels[0], fontsize=9)
            if column == 0:
                panel[0].set_ylabel(part.labels[1], fontsize=9)
            part.draw(panel, line[column])
            drawn.append(panel)
    if each == 1:
        ends = [panel[0].get_ylim() for panel in drawn]
        for panel in drawn:
            panel[0].set_ylim(
                min(low for low, _ in ends) if part.bottom is None else part.bottom, max(high for _, high in ends)
            )
    handles, labels = drawn[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    if images := drawn[0][-1].images:
        bar = figure.colorbar(images[0], ax=[panel[-1] for panel in drawn], aspect=40, pad=0.01)
        bar.ax.grid(visible=False)
        bar.ax.tick_params(labelsize=8, length=2.5)


def label(entry: Entry) -> str:
    """`encoder layer 1`, `decoder layers 1 to 6, shared`, `source positions`, `windows of 64 tokens`."""
    if "bits_per_byte" in entry:
        return f"windows of {entry['last'][-1]:,} tokens"
    if (layers := entry.get("layers")) is None:
        return "source positions" if entry["stack"] == "encoder" else "target positions"
    if len(layers) == 1:
        return f"{entry['stack']} layer {layers[0]}"
    return f"{entry['stack']} layers {layers[0]} to {layers[-1]}, shared"


def often(pairs: Sequence[int]) -> slice:
    """The distances that at least 1% of the queries have; means over fewer pairs are too noisy.

    Pairs decrease with distance, so these are contiguous and include 0.
    """
    places = [place for place, count in enumerate(pairs) if 100 * count >= pairs[len(pairs) // 2]]
    return slice(places[0], places[-1] + 1)


def _parts(numbers: Entry) -> Iterator[_Part]:
    tables, shown = numbers["tables"], {stack["stack"]: often(stack["pairs"]) for stack in numbers["stacks"]}
    of_all = [table for entry in tables for _, _, table in _tables(entry)]
    sharing = "All heads share one table."
    if any(len(table["norms"]) > 1 for table in of_all):
        sharing = "Light: each head; full: their mean."

    def norms(panel: list[Axes], entry: Entry) -> None:
        for kind, colour, table in _tables(entry):
            _heads(panel[0], range(-_k(table), _k(table) + 1), table["norms"], colour, f"$w^{kind}$")
            _offset_axis(panel[0], _k(table))
        look: dict[str, Any] = {"color": PAPER, "lw": 1.2, "ls": DASHED, "zorder": 1}
        panel[0].axhline(table["expected_initial_norm"], **look, label="root mean square before training")

    words = (
        "By offset j - i (key minus query) from -k to k; the outermost vectors also serve every distance beyond. "
        f"{sharing} In the decoder no query sees a later key, so vectors of j > i stay as they began."
    )
    heading = "Norm of each vector of the relative tables"
    yield _Part(heading, words if tables else NO_TABLES, tables, ("offset j - i", "norm"), norms)

    def cosines(panel: list[Axes], entry: Entry) -> None:
        panel[0].axhline(0, color=PAPER, lw=1.2, ls=DASHED, zorder=1)
        for kind, colour, table in _tables(entry):
            places = [offset + 0.5 for offset in range(-_k(table), _k(table))]
            _heads(panel[0], places, table["cosines"], colour, f"$w^{kind}$")
            _offset_axis(panel[0], _k(table))
        panel[0].margins(y=0.08)

    words = (
        "Of offsets r and r + 1, drawn between the two. 1: the same direction, the two are hardly told apart; "
        f"0: unrelated, as on average before training. {sharing}"
    )
    with_neighbours = [entry for entry in tables if any(_k(table) for _, _, table in _tables(entry))]
    if not with_neighbours:
        words = (
            "k = 0: there is one vector for every pair of positions, and it has no neighbour." if tables else NO_TABLES
        )
    heading = "Cosine similarity of the vectors of neighbouring offsets"
    yield _Part(heading, words, with_neighbours, ("between the offsets j - i", "cosine"), cosines, None)
    yield _attention(numbers, shown)

    def absolute(panel: list[Axes], entry: Entry) -> None:
        values = entry["absolute"][: 2 * entry["longest"]]
        panel[0].plot(range(len(values)), values, color=COLOURS["learned"], lw=1.6)
        panel[0].axvline(entry["longest"] - 0.5, color=PAPER, lw=1.2, ls=DASHED, zorder=1)
        panel[0].set_xlim(-0.5, len(values) - 0.5)

    words = (
        "By position, up to twice the longest measured sentence, whose end is the upright line. Positions that no "
        "training sentence reached stay as they began."
    )
    heading = "Norm of each vector of the learned absolute tables"
    if numbers["absolute"]:
        yield _Part(heading, words, numbers["absolute"], ("position", "norm"), absolute)

    def bias(panel: list[Axes], entry: Entry) -> None:
        places = shown[entry["stack"]]
        _heads(panel[0], _distances(numbers)[places], [head[places] for head in entry["bias"]], TABLES[0][2])

    words = f"What is added to the score of query i and key i + d. Light: each head; full: their mean. {_RARE}"
    if numbers["biases"]:
        yield _Part("Bias by signed distance", words, numbers["biases"], ("distance j - i", "bias"), bias, None)

    def losses(panel: list[Axes], entry: Entry) -> None:
        edges = [entry["first"][0] - 0.5, *(last + 0.5 for last in entry["last"])]
        panel[0].stairs(entry["bits_per_byte"], edges, baseline=None, color=COLOURS["relative"], lw=1.6)
        panel[0].axvline(entry["trained"] + 0.5, color=PAPER, lw=1.2, ls=DASHED, zorder=1)
        panel[0].set_xscale("log", base=2)
        panel[0].set_xticks(entry["last"], [f"{last:,}" for last in entry["last"]])
        panel[0].minorticks_off()
        panel[0].set_xlim(edges[0], max(edges[-1], entry["trained"] + 0.5))

    for entry in numbers["losses"]:
        meaning = (
            f"Bits per byte of {entry['num_bytes']:,} bytes in {entry['num_windows']:,} windows inside validation "
            "documents; less is better. Every token is predicted from those before it in the window and one more. "
            f"Upright line: the windows of training, {entry['trained']:,} tokens."
        )
        yield _Part("Loss by position in the window", meaning, [entry], ("position", "bits per byte"), losses, None)


def _attention(numbers: Entry, shown: dict[str, slice]) -> _Part:
    layers, distances = numbers["attention"], _distances(numbers)
    even = {stack["stack"]: stack["even_attention"] for stack in numbers["stacks"]}
    highest: dict[str, float] = {}
    for layer in layers:
        values = [value or 0.0 for head in layer["attention"] for value in head[shown[layer["stack"]]]]
        highest[layer["stack"]] = max(highest.get(layer["stack"], 0.0), *values)

    def draw(panel: list[Axes], layer: Entry) -> None:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        curves, cells = panel
        places = shown[layer["stack"]]
        rows = np.array([head[places] for head in layer["attention"]], dtype=float)
        _heads(curves, distances[places], rows, TABLES[0][2])
        expected = np.array(even[layer["stack"]], dtype=float)[places]
        curves.plot(distances[places], expected, color=INK, lw=1.0, ls=DASHED, zorder=5)
        curves.tick_params(labelbottom=False)
        curves.set_ylim(0, highest[layer["stack"]] * 1.05)
        # Not interpolated: the file stores the cells themselves, sharp at every size. On a square-root scale, so that a
        # tenth is distinguishable from zero next to a head that attends to one place.
        colours = LinearSegmentedColormap.from_list("attention", [WHITE, K_SHADES[0], K_SHADES[4], K_SHADES[-1]])
        extent = (distances[places][0] - 0.5, distances[places][-1] + 0.5, len(rows) + 0.5, 0.5)
        scale = PowerNorm(0.5, vmin=0.0, vmax=max(highest.values()))
        cells.imshow(rows, aspect="auto", interpolation="none", extent=extent, cmap=colours, norm=scale)
        cells.grid(visible=False)
        cells.set_yticks(range(1, len(rows) + 1, 1 + len(rows) // 5))
        if curves.get_ylabel():
            cells.set_ylabel("head", fontsize=9)
        for axes in panel:
            axes.set_xlim(extent[:2])
            axes.locator_params("x", integer=True)

    count = numbers["num_sentences"]
    return _Part(
        "Mean attention by signed distance",
        "At distance d = j - i: the mean of the attention of query i to key i + d, over all pairs of a sequence and a "
        f"query for which that key exists ({count:,} validation sentences or windows of documents; padding is neither "
        "query nor key; in the decoder no query sees a later key). Curves: the mean over heads, light: each head, "
        f"dashed: attention spread evenly over what a query sees. Colours: each head. {_RARE}",
        layers,
        ("distance j - i", "attention"),
        draw,
        heights=(_CURVES, _HEAD * max(4, *(len(layer["attention"]) for layer in layers))),
    )


def _tables(entry: Entry) -> list[tuple[str, str, Entry]]:
    """(K or V, colour, numbers) of the entry's tables."""
    return [(kind, colour, entry[key]) for key, kind, colour in TABLES if entry[key] is not None]


def _k(table: Entry) -> int:
    return (len(table["norms"][0]) - 1) // 2


def _distances(numbers: Entry) -> range:
    return range(-numbers["max_distance"], numbers["max_distance"] + 1)


def _heads(
    axes: Axes, xs: Sequence[float], values: Sequence[Sequence[float | None]] | Array, colour: str, name: str = ""
) -> None:
    """A light line for each head and a full one for their mean; with a single head or a shared table only the mean."""
    marker = "o" if len(xs) <= 3 else ""
    rows = np.array(values, dtype=float)  # None becomes NaN, for which matplotlib leaves a gap
    if len(rows) > 1:
        for row in rows:
            axes.plot(xs, row, color=colour, lw=0.7, alpha=0.35, marker=marker, ms=3, zorder=2)
    mean = np.ma.masked_invalid(rows).mean(axis=0)
    axes.plot(xs, mean, color=colour, label=name, lw=1.9, marker=marker, ms=3.5, zorder=4)


def _offset_axis(axes: Axes, k: int) -> None:
    axes.set_xlim(-k - 0.5, k + 0.5)
    axes.set_xticks(sorted({-k, -(k // 2), 0, k // 2, k}))

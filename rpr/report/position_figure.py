"""A figure of what a run's position representations learned, with one panel per layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rpr.analysis.positions import DEFINITIONS
from rpr.report.plot_style import COLOURS, DASHED, INK, K_SHADES, MUTED, PAPER, WHITE, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = NDArray[np.float64]
Entry = dict[str, Any]  # one of the lists of rpr.analysis.positions.measure
PANELS_PER_LINE = 6
TABLES = (("keys", "K", COLOURS["relative"]), ("values", "V", COLOURS["absolute"]))
_HEAD = 0.135  # height in inches of the line of a head
_REFERENCE: dict[str, Any] = {"color": PAPER, "lw": 1.2, "ls": DASHED, "zorder": 1}
_HEADS = "Light: each head; full: their mean."
_RARE = "Distances that fewer than one query in a hundred has are left out."


@dataclass(frozen=True)
class _Part:
    """A panel of this height (in inches) for each entry, on a scale from `bottom`, or from the lowest value."""

    heading: str
    words: str
    entries: Sequence[Entry]
    labels: tuple[str, str]
    draw: Callable[[Axes, Entry], None]
    bottom: float | None = 0.0
    height: float = 1.25

    @property
    def lines(self) -> list[list[Entry]]:
        """At most PANELS_PER_LINE panels each."""
        starts = range(0, len(self.entries), PANELS_PER_LINE)
        return [[*self.entries[start : start + PANELS_PER_LINE]] for start in starts]


def position_figure(numbers: Entry, title: str, subtitle: str) -> Figure:
    """The whole figure; the same numbers give the same figure."""
    from matplotlib.figure import Figure

    parts = [part for part in _parts(numbers) if part.entries]
    width = max(9.6, 1.6 + 2.3 * max(len(line) for part in parts for line in part.lines))
    texts = [textwrap.fill(part.words, int(13 * width)) for part in parts]
    sizes = [(text.count("\n"), part.height, len(part.lines)) for part, text in zip(parts, texts, strict=True)]
    heights = [0.8 + 0.17 * words_height + (height + 0.55) * lines for words_height, height, lines in sizes]
    left: dict[str, Any] = {"x": 0.08 / width, "ha": "left"}
    with styled():
        figure = Figure(figsize=(width, 0.5 + sum(heights)), layout="constrained")
        subtitle = textwrap.shorten(subtitle, int(11 * width), placeholder=" …")
        figure.suptitle(plain(f"{title}\n{subtitle}"), fontsize=12, fontweight="bold", **left)
        strips = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False).flat
        for number, (part, text, strip) in enumerate(zip(parts, texts, strips, strict=True), 1):
            strip.suptitle(plain(f"{number}  {part.heading}"), fontsize=12, **left)
            strip.supxlabel(plain(text), fontsize=9.5, color=MUTED, **left)
            _draw(part, strip)
    return figure


def _draw(part: _Part, figure: SubFigure) -> None:
    """The panels of a part on one scale, labelled at the edges of their line."""
    grid = figure.subplots(len(part.lines), max(map(len, part.lines)), squeeze=False, sharey=True)
    for row, line in zip(grid, part.lines, strict=True):
        for axes in row[len(line) :]:  # the last line can be shorter than the others
            axes.set_axis_off()
        for axes, entry in zip(row, line, strict=False):
            axes.tick_params(labelsize=8, length=2.5)
            axes.set_title(label(entry), loc="left", fontsize=9, color=INK, pad=4)
            axes.set_xlabel(part.labels[0], fontsize=9)
            part.draw(axes, entry)
        row[0].set_ylabel(part.labels[1], fontsize=9)
    first = grid[0, 0]
    if first.images:
        bar = figure.colorbar(first.images[0], ax=grid, aspect=40, pad=0.01)
        bar.ax.grid(visible=False)
        bar.ax.tick_params(labelsize=8, length=2.5)
    elif part.bottom is not None:
        first.set_ylim(bottom=part.bottom)
    handles, labels = first.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=9)


def label(entry: Entry) -> str:
    """`encoder layer 1`, `decoder layers 1 to 6, shared`, `decoder layers 1, 4, shared`, `windows of 64 tokens`."""
    if "bits_per_byte" in entry:
        return f"windows of {entry['last'][-1]:,} tokens"
    if (layers := entry.get("layers")) is None:
        return "source positions" if entry["stack"] == "encoder" else "target positions"
    if len(layers) == 1:
        return f"{entry['stack']} layer {layers[0]}"
    together = layers == [*range(layers[0], layers[-1] + 1)]
    named = f"{layers[0]} to {layers[-1]}" if together else ", ".join(map(str, layers))
    return f"{entry['stack']} layers {named}, shared"


def often(pairs: Sequence[int]) -> slice:
    """The distances that at least 1% of the queries have, which are contiguous; means over fewer are too noisy."""
    places = [place for place, count in enumerate(pairs) if 100 * count >= pairs[len(pairs) // 2]]
    return slice(places[0], places[-1] + 1)


def _parts(numbers: Entry) -> Iterator[_Part]:
    tables, shown = numbers["tables"], {stack["stack"]: often(stack["pairs"]) for stack in numbers["stacks"]}

    def of_vectors(axes: Axes, entry: Entry, name: str, shift: float = 0.0) -> None:
        for kind, colour, table in _tables(entry):
            k = _k(table)
            places = [at - k + shift for at in range(len(table[name][0]))]
            _heads(axes, places, table[name], colour, f"$w^{kind}$")
            axes.set_xlim(-k - 0.5, k + 0.5)
            axes.set_xticks(sorted({-k, -(k // 2), 0, k // 2, k}))

    def norms(axes: Axes, entry: Entry) -> None:
        of_vectors(axes, entry, "norms")
        initial = _tables(entry)[-1][-1]["expected_initial_norm"]
        axes.axhline(initial, **_REFERENCE, label="root mean square before training")

    heading = "Norm of each vector of the relative tables"
    explanation = f"{_HEADS} In the decoder no query sees a later key, so vectors of j > i stay as they began."
    yield _Part(heading, _defined("norms", explanation), tables, ("offset j - i", "norm"), norms)

    def cosines(axes: Axes, entry: Entry) -> None:
        axes.axhline(0, **_REFERENCE)
        of_vectors(axes, entry, "cosines", 0.5)
        axes.margins(y=0.08)

    heading = "Cosine similarity of the vectors of neighbouring offsets"
    explanation = f"1: the two are hardly told apart; 0: unrelated, as on average before training. {_HEADS}"
    neighbours = [entry for entry in tables if any(_k(table) for _, _, table in _tables(entry))]
    axis = ("between the offsets j - i", "cosine")
    yield _Part(heading, _defined("cosines", explanation), neighbours, axis, cosines, None)
    yield from _attention(numbers, shown)

    def absolute(axes: Axes, entry: Entry) -> None:
        values = entry["absolute"][: 2 * entry["longest"]]
        axes.plot(range(len(values)), values, color=COLOURS["learned"], lw=1.6)
        axes.axvline(entry["longest"] - 0.5, **_REFERENCE)
        axes.set_xlim(-0.5, len(values) - 0.5)

    heading = "Norm of each vector of the learned absolute tables"
    explanation = "Drawn up to twice its length, which is the upright line. "
    explanation += "Positions that no training sentence reached stay as they began."
    yield _Part(heading, _defined("absolute", explanation), numbers["absolute"], ("position", "norm"), absolute)

    def bias(axes: Axes, entry: Entry) -> None:
        places = shown[entry["stack"]]
        _heads(axes, _distances(numbers)[places], [head[places] for head in entry["bias"]], TABLES[0][2])

    explanation, axis = _defined("bias", f"{_HEADS} {_RARE}"), ("distance j - i", "bias")
    yield _Part("Bias by signed distance", explanation, numbers["biases"], axis, bias, None)

    def losses(axes: Axes, entry: Entry) -> None:
        edges = [entry["first"][0] - 0.5, *(last + 0.5 for last in entry["last"])]
        axes.stairs(entry["bits_per_byte"], edges, baseline=None, color=COLOURS["relative"], lw=1.6)
        axes.axvline(entry["trained"] + 0.5, **_REFERENCE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(entry["last"], [f"{last:,}" for last in entry["last"]])
        axes.minorticks_off()
        axes.set_xlim(edges[0], max(edges[-1], entry["trained"] + 0.5))

    explanation = "".join(
        f"Of {entry['num_bytes']:,} bytes in {entry['num_windows']:,} windows; less is better. Upright line: "
        f"`trained`, {entry['trained']:,}."
        for entry in numbers["losses"]
    )
    heading, axis = "Loss by position in the window", ("position", "bits per byte")
    yield _Part(heading, _defined("losses", explanation), numbers["losses"], axis, losses, None)


def _attention(numbers: Entry, shown: dict[str, slice]) -> Iterator[_Part]:
    layers, distances = numbers["attention"], _distances(numbers)
    even = {stack["stack"]: stack["even_attention"] for stack in numbers["stacks"]}

    def by_head(layer: Entry) -> Array:
        return np.array([head[shown[layer["stack"]]] for head in layer["attention"]], dtype=float)

    highest = max(float(np.nanmax(by_head(layer))) for layer in layers)

    def set_distances(axes: Axes, places: slice) -> tuple[float, float]:
        ends = distances[places][0] - 0.5, distances[places][-1] + 0.5
        axes.set_xlim(*ends)
        axes.locator_params("x", integer=True)
        return ends

    def curves(axes: Axes, layer: Entry) -> None:
        places = shown[layer["stack"]]
        _heads(axes, distances[places], by_head(layer), TABLES[0][2])
        expected = np.array(even[layer["stack"]], dtype=float)[places]
        axes.plot(distances[places], expected, color=INK, lw=1.0, ls=DASHED, zorder=5)
        set_distances(axes, places)

    def heads(axes: Axes, layer: Entry) -> None:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        rows = by_head(layer)
        ends = set_distances(axes, shown[layer["stack"]])
        # Not interpolated: the file stores the cells themselves, sharp at every size. On a square-root scale, so that a
        # tenth is distinguishable from zero next to a head that attends to one place.
        colours = LinearSegmentedColormap.from_list("attention", [WHITE, K_SHADES[0], K_SHADES[4], K_SHADES[-1]])
        look: dict[str, Any] = {"cmap": colours, "norm": PowerNorm(0.5, vmin=0.0, vmax=highest)}
        axes.imshow(rows, aspect="auto", interpolation="none", extent=(*ends, len(rows) + 0.5, 0.5), **look)
        axes.grid(visible=False)
        axes.set_yticks(range(1, len(rows) + 1, 1 + len(rows) // 5))

    heading, axis = "Mean attention by signed distance", ("distance j - i", "attention")
    explanation = (
        f"Of {numbers['num_sentences']:,} validation sentences or windows of documents. {_HEADS} Dashed: as if spread "
        f"evenly over what a query sees. {_RARE}"
    )
    yield _Part(heading, _defined("attention", explanation), layers, axis, curves)
    heading, axis = "Mean attention of each head", ("distance j - i", "head")
    height = _HEAD * max(4, *(len(layer["attention"]) for layer in layers))
    yield _Part(heading, "The same, in colours: dark where a head attends most.", layers, axis, heads, height=height)


def _defined(key: str, more: str) -> str:
    return f"{DEFINITIONS[key][0].upper()}{DEFINITIONS[key][1:]}. {more}"


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

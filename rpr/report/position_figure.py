"""A figure of what a run's position representations learned, with one panel per layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rpr.report.plots import COLOURS, DASHED, INK, MUTED, PAPER, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = dict[str, Any]  # one of the lists of rpr.checks.positions.measure, whose DEFINITIONS say what the numbers are
PANELS_PER_LINE, HEIGHT = 6, 1.8  # inches of a panel with its title and labels
_REFERENCE: dict[str, Any] = {"color": PAPER, "lw": 1.2, "ls": DASHED, "zorder": 1}
_HEADS = "Light: each head; full: their mean."


class _Part(NamedTuple):
    """A panel for each entry of one kind of numbers."""

    heading: str
    words: str
    entries: Sequence[Entry]
    labels: tuple[str, str]
    draw: Callable[[Axes, Entry], None]


def position_figure(numbers: Entry, title: str, subtitle: str) -> Figure:
    """The whole figure; the same numbers give the same figure."""
    from matplotlib.figure import Figure

    parts = [part for part in _parts(numbers) if part.entries]
    lines = [-(-len(part.entries) // PANELS_PER_LINE) for part in parts]
    columns = [min(len(part.entries), PANELS_PER_LINE) for part in parts]
    width, heights = max(9.6, 1.6 + 2.3 * max(columns)), [0.8 + HEIGHT * of_part for of_part in lines]
    left: dict[str, Any] = {"x": 0.08 / width, "ha": "left"}
    with styled():
        figure = Figure(figsize=(width, 0.5 + sum(heights)), layout="constrained")
        subtitle = textwrap.shorten(subtitle, int(11 * width), placeholder=" …")
        figure.suptitle(plain(f"{title}\n{subtitle}"), fontsize=12, fontweight="bold", **left)
        strips = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False).flat
        for part, strip, rows, in_row in zip(parts, strips, lines, columns, strict=True):
            strip.suptitle(plain(part.heading), fontsize=12, **left)
            strip.supxlabel(plain(part.words), fontsize=9.5, color=MUTED, **left)
            grid = strip.subplots(rows, in_row, squeeze=False, sharey=True)
            for axes in grid.flat[len(part.entries) :]:
                axes.set_axis_off()
            for axes, entry in zip(grid.flat, part.entries, strict=False):
                axes.tick_params(labelsize=8, length=2.5)
                axes.set_title(label(entry), loc="left", fontsize=9, color=INK, pad=4)
                axes.set_xlabel(part.labels[0], fontsize=9)
                part.draw(axes, entry)
            for axes in grid[:, 0]:
                axes.set_ylabel(part.labels[1], fontsize=9)
            if part.labels[1] != "bias":
                grid[0, 0].set_ylim(bottom=0)
            if named := grid[0, 0].get_legend_handles_labels()[0]:
                strip.legend(handles=named, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def label(entry: Entry) -> str:
    """`encoder layer 1`, `decoder layers 1 to 6, shared`, `decoder layers 1, 4, shared`."""
    if (layers := entry.get("layers")) is None:
        return "source positions" if entry["stack"] == "encoder" else "target positions"
    if len(layers) == 1:
        return f"{entry['stack']} layer {layers[0]}"
    together = layers == [*range(layers[0], layers[-1] + 1)]
    named = f"{layers[0]} to {layers[-1]}" if together else ", ".join(map(str, layers))
    return f"{entry['stack']} layers {named}, shared"


def _parts(numbers: Entry) -> Iterator[_Part]:
    farthest, stacks = numbers["max_distance"], {stack["stack"]: stack for stack in numbers["stacks"]}

    def by_distance(axes: Axes, entry: Entry, name: str = "bias") -> None:
        """At the distances that at least 1% of the queries have; means over fewer are too noisy."""
        stack = stacks[entry["stack"]]
        often = 100 * np.array(stack["pairs"]) >= stack["pairs"][farthest]
        distances = np.arange(-farthest, farthest + 1)[often]
        _heads(axes, distances, np.array(entry[name], dtype=float)[:, often], COLOURS["relative"])
        if name == "attention":
            even = np.array(stack["even_attention"], dtype=float)[often]
            axes.plot(distances, even, color=INK, lw=1.0, ls=DASHED, zorder=5)
            axes.locator_params("x", integer=True)

    def norms(axes: Axes, entry: Entry) -> None:
        for key, kind, colour in (("keys", "K", COLOURS["relative"]), ("values", "V", COLOURS["absolute"])):
            if (table := entry[key]) is not None:
                k = (len(table["norms"][0]) - 1) // 2
                _heads(axes, range(-k, k + 1), np.array(table["norms"]), colour, f"$w^{kind}$")
                axes.set_xticks(sorted({-k, -(k // 2), 0, k // 2, k}))
                initial = table["expected_initial_norm"]
        axes.axhline(initial, **_REFERENCE, label="root mean square before training")

    def absolute(axes: Axes, entry: Entry) -> None:
        values = entry["absolute"][: 2 * entry["longest"]]
        axes.plot(range(len(values)), values, color=COLOURS["learned"], lw=1.6)
        axes.axvline(entry["longest"] - 0.5, **_REFERENCE)

    words = f"Of {numbers['num_sentences']:,} validation sentences or windows of documents. {_HEADS} Dashed: as if "
    words += "spread evenly."
    heading, labels = "Mean attention by signed distance", ("distance j - i", "attention")
    yield _Part(heading, words, numbers["attention"], labels, lambda axes, entry: by_distance(axes, entry, "attention"))
    words = f"{_HEADS} In the decoder vectors of j > i stay as they began."
    heading = "Norm of each vector of the relative tables"
    yield _Part(heading, words, numbers["tables"], ("offset j - i", "norm"), norms)
    words = (
        "Drawn up to twice the longest sentence, which is the upright line. Positions never reached stay as they began."
    )
    heading = "Norm of each vector of the learned absolute tables"
    yield _Part(heading, words, numbers["absolute"], ("position", "norm"), absolute)
    yield _Part("Bias by signed distance", _HEADS, numbers["biases"], ("distance j - i", "bias"), by_distance)


def _heads(axes: Axes, xs: Sequence[int] | np.ndarray[Any, Any], rows: Any, colour: str, name: str = "") -> None:
    marker = "o" if len(xs) <= 3 else ""
    for row in rows if len(rows) > 1 else ():
        axes.plot(xs, row, color=colour, lw=0.7, alpha=0.35, marker=marker, ms=3, zorder=2)
    mean = np.ma.masked_invalid(rows).mean(axis=0)
    axes.plot(xs, mean, color=colour, label=name, lw=1.9, marker=marker, ms=3.5, zorder=4)

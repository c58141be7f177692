"""The plot of a table's scores by source length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rpr.records.scores import HEADLINE_METRIC, pooled
from rpr.report.drawing import GRID, MUTED, bar, bar_words, label_ends, new_figure, styled, variant_colours
from rpr.report.rows import Cell, LengthTable, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 0.5  # of the width of a bucket, for the bars of all variants beside each other


def bleu_by_length(table: Table) -> Figure | None:
    """sacreBLEU by source length, a line per variant; None without any.

    Bars: one run's 95% interval over the sentences, or ± the standard deviation over several seeds. What is longer than
    every training source is shaded. The axis is categorical: each bucket has the same room.
    """
    lengths = next((one for one in table.by_length if one.metric == HEADLINE_METRIC), None)
    if lengths is None:
        return None
    rows = [row for row in table.rows if any(cell.value is not None for cell in lengths.cells[row.label])]
    colours = variant_colours([(row.label, row.position.kind, row.position.clip_distance) for row in rows])
    with styled():
        title = f"BLEU by source length, {pooled(lengths.splits)}"
        figure, (axes,) = new_figure((8.4, 5.0), title, table.heading, (0.08, 0.745))
        figure.subplots_adjust(bottom=0.17)
        _shade(axes, lengths)
        ends = []
        for number, row in enumerate(rows):
            shift = _ROOM * (number - (len(rows) - 1) / 2) / max(len(rows), 2)
            points = [
                (index + shift, cell) for index, cell in enumerate(lengths.cells[row.label]) if cell.value is not None
            ]
            _line(axes, points, colours[row.label])
            ends.append((points[-1][1].value or 0.0, row.label, colours[row.label]))
        axes.set_xticks(range(len(lengths.columns)), [_tick(lengths, index) for index in range(len(lengths.columns))])
        axes.set_xlim(-0.5, len(lengths.columns) - 0.5)
        axes.set_ylim(bottom=0)
        cells = [cell for line in lengths.cells.values() for cell in line]
        axes.set_xlabel("\n".join(["pieces of the source, EOS included; below: sentences", bar_words(cells)]).strip())
        axes.set_ylabel("BLEU (sacreBLEU)")
        axes.grid(visible=False, axis="x")
        label_ends(axes, ends)
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, Cell]], colour: str) -> None:
    xs, ys = [x for x, _ in points], [cell.value or 0.0 for _, cell in points]
    axes.plot(xs, ys, color=colour, lw=1.6, marker="o", ms=3.5, zorder=4)
    bars = [(x, y, *reach) for (x, cell), y in zip(points, ys, strict=True) if (reach := bar(cell)) is not None]
    if bars:
        at, middle, below, above = zip(*bars, strict=True)
        axes.errorbar(at, middle, yerr=[below, above], fmt="none", ecolor=colour, elinewidth=1.1, capsize=2, zorder=3)


def _tick(lengths: LengthTable, index: int) -> str:
    column = lengths.columns[index]
    count = "–" if column.num_sentences is None else f"{column.num_sentences:,}"
    return f"{column.label}\n{count}"


def _shade(axes: Axes, lengths: LengthTable) -> None:
    first = next((index for index, column in enumerate(lengths.columns) if column.beyond_training), None)
    if first is None:
        return
    axes.axvspan(first - 0.5, len(lengths.columns) - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
    axes.annotate(
        f"longer than any training source ({lengths.longest_training_source} pieces)",
        (first - 0.5, 1.0), (4, 3), ("data", "axes fraction"), "offset points",
        ha="left" if first < len(lengths.columns) - 1 else "right", va="bottom", color=MUTED, fontsize=8.5,
    )  # fmt: skip

"""The plots of a table: BLEU against k, by length, speed, learning curves; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rpr import paper
from rpr.report import length_plot
from rpr.report.drawing import (
    COLOURS,
    INK,
    MUTED,
    PAPER,
    WHITE,
    bar,
    bar_words,
    label_ends,
    new_figure,
    note,
    plain,
    styled,
    text_width,
    variant_colours,
)
from rpr.report.rows import Cell, Row, Table
from rpr.report.selection import few, left_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHED: Any = (0, (4, 2))
_LEVEL_STYLES: tuple[tuple[str, Any], ...] = (("test", "-"), ("long", _DASHED))
MOST_LINES, MOST_BARS, MOST_TICKS = 12, 24, 24


@dataclass(frozen=True)
class Curve:
    """One run's measurements while it trained: a name per run, (step, value) per quantity."""

    label: str
    kind: str
    clip_distance: int | None
    series: Mapping[str, tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Plot:
    """A plot with the name of its file and what is said of it: in place of it, and below it on the page."""

    name: str
    description: str
    caption: str
    figure: Figure


def lines_of(table: Table) -> list[Row]:
    """The variants that have a line of their own where each variant has one."""
    return few(table.rows, lambda row: row.position.kind, MOST_LINES)


def all_plots(table: Table, curves: Sequence[Curve]) -> list[Plot]:
    """Every plot that the table has figures for; `curves` are of the runs of `lines_of`."""
    lines = lines_of(table)
    some = left_out(len(lines), len(table.rows), "variants have a line")
    bars = left_out(min(MOST_BARS, len(table.rows)), len(table.rows), "variants have a bar")
    drawn: list[tuple[str, str, str, str, Callable[[], Figure | None]]] = [
        (
            "bleu_by_k",
            "BLEU by clip distance",
            f"Solid: test; dashed: long. Grey: {paper.SOURCE}, Table 2, which prints no error.",
            "",
            lambda: bleu_by_k(table),
        ),
        ("bleu_by_length", "BLEU by source length", "", some, lambda: _by_length(table, lines)),
        (
            "speed",
            "Steps per second relative to absolute",
            "Beside each bar: the ratio, and the steps per second. Whiskers: ± the standard deviation, where there are "
            "several seeds. Dashed: the paper's relative positions.",
            bars,
            lambda: speed(table),
        ),
        (
            "learning_curves",
            "Learning curves",
            "A line for each variant, the mean over its seeds.",
            some,
            lambda: learning_curves(table, curves),
        ),
    ]
    plots = []
    for name, title, caption, remark, draw in drawn:
        if (figure := draw()) is not None:
            if remark:
                with styled():
                    note(figure, remark)
            words = " ".join(filter(None, (caption, f"{remark}." if remark else "")))
            plots.append(Plot(name, f"{title}: {table.heading}", words, figure))
    return plots


def _by_length(table: Table, rows: Sequence[Row]) -> Figure | None:
    return length_plot.bleu_by_length(replace(table, rows=tuple(rows)))


def bleu_by_k(table: Table) -> Figure | None:
    """Our sacreBLEU against k on test and, dashed, on long; variants without k as levels, the paper's curve in grey.

    Error bars: the standard deviation over several seeds, or one run's interval over the sentences. None where no
    relative run has a score. The k axis is categorical: 0 has no logarithm, and each k deserves its room.
    """
    by_sharing: dict[str | None, list[Row]] = {}
    for row in table.rows:
        if row.position.kind == "relative" and any(
            table.cell(row, split).value is not None for split in ("test", "long")
        ):
            by_sharing.setdefault(row.position.tables, []).append(row)
    if not by_sharing:
        return None
    ours = {row.position.clip_distance for rows in by_sharing.values() for row in rows} - {None}
    ks = sorted({k for k in ours if k is not None} | set(paper.TABLE2))
    place = {k: index for index, k in enumerate(ks)}
    with styled():
        figure, (axes,) = new_figure((8.4, 4.9), "BLEU by clip distance", table.heading, (0.09, 0.79))
        labels: list[tuple[float, str, str]] = []
        cells: list[Cell] = []
        axes.plot(
            [place[k] for k in paper.TABLE2],
            list(paper.TABLE2.values()),
            color=PAPER,
            lw=1.5,
            marker="o",
            ms=4,
            zorder=2,
        )
        labels.append((paper.TABLE2[256], f"the paper: EN-DE,\n{paper.TABLE2_TEST_SET}", MUTED))
        shades = (COLOURS["relative"], COLOURS["absolute_and_relative"], COLOURS["other"])
        for (sharing, rows), colour in zip(
            sorted(by_sharing.items(), key=lambda item: str(item[0])), shades, strict=False
        ):
            name = f"relative, {str(sharing).replace('_', ' ')}" if len(by_sharing) > 1 else "relative"
            for split, style, width in (("test", "-", 2.4), ("long", _DASHED, 1.8)):
                points = [
                    (place[row.position.clip_distance or 0], cell)
                    for row in rows
                    if (cell := table.cell(row, split)).value is not None
                ]
                if points:
                    _line(axes, points, colour, style, width)
                    cells += [cell for _, cell in points]
                    labels.append((points[-1][1].value or 0.0, f"{name}, {split}", colour))
        for number, kind in enumerate(("absolute", "learned", "none")):
            level_row = table.row(kind)
            for split, style in _LEVEL_STYLES:
                level = table.cell(level_row, split) if level_row else None
                if level is not None and level.value is not None:
                    axes.axhline(level.value, color=COLOURS[kind], lw=1.3, ls=style, alpha=0.9, zorder=1)
                    _error_bars(axes, [(len(ks) - 0.62 + 0.12 * number, level)], COLOURS[kind])
                    cells.append(level)
                    labels.append((level.value, f"{kind}, {split}", COLOURS[kind]))
        every = -(-len(ks) // MOST_TICKS)
        axes.set_xticks(range(0, len(ks), every), [str(k) for k in ks[::every]])
        axes.set_xlim(-0.35, len(ks) - 0.25)
        tops = [(cell.value or 0.0) + reach[1] for cell in cells if (reach := bar(cell)) is not None]
        highest = max([*tops, *(height for height, _, _ in labels)])
        axes.set_ylim(0, highest * 1.05 + 1)
        axes.set_xlabel("\n".join(filter(None, ("clip distance k", bar_words(cells)))))
        figure.subplots_adjust(bottom=0.78 / figure.get_figheight())
        axes.set_ylabel("BLEU (ours: sacreBLEU)")
        axes.grid(visible=False, axis="x")
        label_ends(axes, labels)
    return figure


def _line(axes: Axes, points: Sequence[tuple[float, Cell]], colour: str, style: Any, width: float) -> None:
    xs, ys = [x for x, _ in points], [cell.value or 0.0 for _, cell in points]
    filled = colour if style == "-" else WHITE
    axes.plot(xs, ys, color=colour, ls=style, lw=width, marker="o", ms=6, mfc=filled, mec=colour, mew=1.5, zorder=4)
    _error_bars(axes, points, colour)


def _error_bars(axes: Axes, points: Sequence[tuple[float, Cell]], colour: str) -> None:
    known = [(x, cell.value, reach) for x, cell in points if (reach := bar(cell)) is not None]
    if known:
        xs, ys, reaches = zip(*known, strict=True)
        below, above = zip(*reaches, strict=True)
        axes.errorbar(xs, ys, yerr=[below, above], fmt="none", ecolor=colour, elinewidth=1.3, capsize=3.5, zorder=5)


def speed(table: Table) -> Figure | None:
    """Steps/s relative to the absolute baseline, a bar per variant, and the paper's 0.93; None without any."""
    rows = [row for row in table.rows if row.relative_speed.value is not None]
    rows = few(rows, lambda row: row.position.kind, MOST_BARS)
    if not rows or all(row.position.kind == "absolute" for row in rows):
        return None
    with styled():
        names = max(2.2, text_width(max(len(row.label) for row in rows), 10))  # inches for the names at the left
        size = (6.2 + names, 1.6 + 0.33 * len(rows))
        title = "Steps per second relative to absolute (sinusoidal)"
        figure, (axes,) = new_figure(size, title, table.heading, (names / size[0], 1 - 1.8 / size[0]))
        values = [row.relative_speed.value or 0.0 for row in rows]
        sds = [row.relative_speed.sd or 0.0 for row in rows]
        axes.barh(range(len(rows)), values, height=0.62, color=[COLOURS[row.position.kind] for row in rows], zorder=2)
        for index, (value, sd) in enumerate(zip(values, sds, strict=True)):
            if sd:
                axes.errorbar([value], [index], xerr=[sd], fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=3)
            steps = rows[index].steps_per_second.value
            words = f"{value:.2f}" if steps is None else f"{value:.2f}   ({steps:.2f} steps/s)"
            axes.text(1.01, index, words, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9.5)
        axes.axvline(paper.RELATIVE_SPEED, color=PAPER, lw=1.6, ls=_DASHED, zorder=3)
        where = (paper.RELATIVE_SPEED, 1.0)
        axes.annotate(
            f"the paper's relative: {paper.RELATIVE_SPEED}", where, (0, 3), ("data", "axes fraction"), "offset points",
            ha="center", va="bottom", color=MUTED, fontsize=9,
        )  # fmt: skip
        axes.set_yticks(range(len(rows)), [plain(row.label) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, max([1.0, *(value + sd for value, sd in zip(values, sds, strict=True))]) * 1.05)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
    return figure


def learning_curves(table: Table, curves: Sequence[Curve]) -> Figure | None:
    """Validation BLEU and loss against the step, a line per variant (the mean of its seeds); None without any curve."""
    panels = [
        ("validation/bleu", "validation BLEU"),
        ("validation/loss", "loss: validation, and training as a thin line"),
    ]
    panels = [(name, title) for name, title in panels if any(curve.series.get(name) for curve in curves)]
    if not panels:
        return None
    means = _mean_by_label(curves)
    colours = variant_colours([(curve.label, curve.kind, curve.clip_distance) for curve in means])
    with styled():
        size = (8.4, 3.7 * len(panels) + 0.7)
        figure, all_axes = new_figure(size, "Learning curves", table.heading, (0.08, 0.745), panels=len(panels))
        for axes, (name, title) in zip(all_axes, panels, strict=True):
            ends: list[tuple[float, str, str]] = []
            for curve in means:
                points, colour = curve.series.get(name, ()), colours[curve.label]
                if name == "validation/loss":
                    axes.plot(*_xy(curve.series.get("train/loss", ())), color=colour, lw=0.6, alpha=0.35, zorder=2)
                if points:
                    marker = "o" if len(points) <= 20 else ""
                    axes.plot(*_xy(points), color=colour, lw=1.6, marker=marker, ms=2.8, zorder=3)
                    ends.append((points[-1][1], curve.label, colour))
            axes.set_title(title, loc="left", fontsize=10, color=MUTED)
            if name == "validation/loss":
                _crop_losses(axes, means)
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            label_ends(axes, ends)
        all_axes[-1].set_xlabel("step")
    return figure


def _mean_by_label(curves: Sequence[Curve]) -> list[Curve]:
    """One curve per variant: the mean at the steps that all of its seeds have."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.label, []).append(curve)
    means = []
    for members in groups.values():
        series = {}
        for name in sorted({name for member in members for name in member.series}):
            runs = [dict(member.series[name]) for member in members if member.series.get(name)]
            steps = sorted(set[int]().union(*runs).intersection(*runs)) if runs else []
            series[name] = tuple((step, sum(run[step] for run in runs) / len(runs)) for step in steps)
        means.append(Curve(members[0].label, members[0].kind, members[0].clip_distance, series))
    return means


def _xy(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _crop_losses(axes: Axes, curves: Sequence[Curve]) -> None:
    # The first training losses are far above all that follows; the axis goes as high as the validation losses do.
    seen = [value for curve in curves for _, value in curve.series.get("validation/loss", ())]
    trained = [value for curve in curves for _, value in curve.series.get("train/loss", ())]
    low, high = min([*seen, *trained]), max(seen)
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)

"""The plots of a table: BLEU against k, speed, learning curves; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpr.results import paper
from rpr.results.drawing import (
    COLOURS,
    INK,
    MUTED,
    PAPER,
    WHITE,
    label_ends,
    new_figure,
    plain,
    styled,
    variant_colours,
)
from rpr.results.rows import Cell, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHED: Any = (0, (4, 2))
_LEVEL_STYLES: tuple[tuple[str, Any], ...] = (("test", "-"), ("long", _DASHED))


@dataclass(frozen=True)
class Curve:
    """One run's measurements while it trained: a name per run, (step, value) per quantity."""

    label: str
    kind: str
    clip_distance: int | None
    series: Mapping[str, tuple[tuple[int, float], ...]]


def bleu_by_k(table: Table) -> Figure | None:
    """Our sacreBLEU against k on test and, dashed, on long; variants without k as levels, the paper's curve in grey.

    None where no relative run has a score. The k axis is categorical: 0 has no logarithm, and each k deserves its room.
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
        figure, (axes,) = new_figure((8.4, 4.6), "BLEU by clip distance", table.heading, (0.09, 0.79))
        labels: list[tuple[float, str, str]] = []
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
                    labels.append((points[-1][1].value or 0.0, f"{name}, {split}", colour))
        for kind in ("absolute", "learned", "none"):
            level_row = table.row(kind)
            for split, style in _LEVEL_STYLES:
                level = table.cell(level_row, split).value if level_row else None
                if level is not None:
                    axes.axhline(level, color=COLOURS[kind], lw=1.3, ls=style, alpha=0.9, zorder=1)
                    labels.append((level, f"{kind}, {split}", COLOURS[kind]))
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        axes.set_xlim(-0.35, len(ks) - 0.75)
        axes.set_ylim(0, max(level for level, _, _ in labels) * 1.08 + 1)
        axes.set_xlabel("clip distance k")
        axes.set_ylabel("BLEU (ours: sacreBLEU)")
        axes.grid(visible=False, axis="x")
        label_ends(axes, labels)
    return figure


def _line(axes: Axes, points: Sequence[tuple[int, Cell]], colour: str, style: Any, width: float) -> None:
    xs, ys = [x for x, _ in points], [cell.value or 0.0 for _, cell in points]
    filled = colour if style == "-" else WHITE
    axes.plot(xs, ys, color=colour, ls=style, lw=width, marker="o", ms=6, mfc=filled, mec=colour, mew=1.5, zorder=4)
    several = [(x, cell.value, cell.sd) for x, cell in points if cell.value is not None and cell.sd is not None]
    if several:
        xs_sd, ys_sd, sds = zip(*several, strict=True)
        axes.errorbar(xs_sd, ys_sd, yerr=sds, fmt="none", ecolor=colour, elinewidth=1.3, capsize=3.5, zorder=5)


def speed(table: Table) -> Figure | None:
    """Steps/s relative to the absolute baseline, a bar per variant, and the paper's 0.93; None without any."""
    rows = [row for row in table.rows if row.relative_speed.value is not None]
    if not rows or all(row.position.kind == "absolute" for row in rows):
        return None
    with styled():
        size = (8.4, 1.7 + 0.33 * len(rows))
        title = "Steps per second relative to absolute (sinusoidal)"
        figure, (axes,) = new_figure(size, title, table.heading, (0.27, 0.96))
        values = [row.relative_speed.value or 0.0 for row in rows]
        sds = [row.relative_speed.sd or 0.0 for row in rows]
        axes.barh(range(len(rows)), values, height=0.62, color=[COLOURS[row.position.kind] for row in rows], zorder=2)
        for index, (value, sd) in enumerate(zip(values, sds, strict=True)):
            if sd:
                axes.errorbar([value], [index], xerr=[sd], fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=3)
            axes.text(value + sd + 0.012, index, f"{value:.2f}", va="center", color=INK, fontsize=9.5)
        axes.axvline(paper.RELATIVE_SPEED, color=PAPER, lw=1.6, ls=_DASHED, zorder=3)
        where = (paper.RELATIVE_SPEED, 1.0)
        axes.annotate(
            f"the paper's relative: {paper.RELATIVE_SPEED}", where, (0, 3), ("data", "axes fraction"), "offset points",
            ha="center", va="bottom", color=MUTED, fontsize=9,
        )  # fmt: skip
        axes.set_yticks(range(len(rows)), [plain(row.label) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, max([1.0, *(value + sd for value, sd in zip(values, sds, strict=True))]) * 1.1)
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

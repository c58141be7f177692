"""Bits per byte of language models by the length of the context, and by position: tables and a plot.

Two ways to evaluate one checkpoint stand side by side: in separate windows most tokens have a short context, so a model
can gain with length without using a longer context at all (Press et al. 2022, appendix B); a sliding window shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rpr.records.measurement import Measurement, single
from rpr.records.scores import ByContext
from rpr.report.groups import Group, Key, Variant, change
from rpr.report.plot_style import (
    COLUMN,
    PAPER,
    WIDE,
    draw_points,
    new_figure,
    set_log_scale,
    set_places,
    set_words_below,
    styled,
    variant_looks,
)
from rpr.report.published import curves
from rpr.report.sampling import lines_of
from rpr.tables.grid import Column, Grid, Note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
ABSENT = "not scored at this length"


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length, its paired differences, and the table by position; none if no finished run was scored so."""
    scored = _scored(group)
    if not scored:
        return
    notes, split, baseline = tuple(_notes(scored)), scored[0].split, group.baseline
    lengths: dict[Key, str] = {
        (split, windows, length): f"{length:,}" + ", sliding" * (windows == "sliding")
        for windows, length in _lengths(scored)
    }
    places = {one.last: one.first for found in scored for one in found.by_position}
    positions: dict[Key, str] = {
        (split, "position", last): "–".join(f"{end:,}" for end in dict.fromkeys((places[last], last)))
        for last in sorted(places)
    }
    longest = max(one.length for found in scored for one in found.scores)

    def bits(variant: Variant, key: Key) -> Measurement:
        return variant.measured(key, ABSENT)

    def changed(variant: Variant, key: Key) -> Measurement:
        return change(variant, baseline, key, baseline.label if baseline else "", ABSENT)

    def grid(name: str, title: str, headings: dict[Key, str], *more: Note, changes: bool = False) -> Grid:
        columns = [Column("position", "position", lambda variant: variant.label, label=True)]
        for key, heading in headings.items():
            read = partial(changed if changes else bits, key=key)
            columns.append(Column("_".join(map(str, key[1:])), heading, read, digits=3, signed=changes))
        rows = tuple(one for one in group.variants if not (changes and one is baseline))
        return Grid(name, f"{title}, {split}", tuple(columns), rows, group.heading, (*notes, *more), group.synthetic)

    yield grid("contexts", CONTEXTS, lengths)
    if baseline is not None and len(group.variants) > 1:
        how = Note(
            f"minus {baseline.label}, seed by seed: below zero is better; with one common seed without an interval"
        )
        yield grid("context_changes", f"{CONTEXTS}: change from {baseline.label}", lengths, how, changes=True)
    yield grid("by_position", f"Bits per byte by position in windows of {longest:,} side by side", positions)


def _scored(group: Group) -> list[ByContext]:
    """What each finished run has of the first split that any run of the group was scored on."""
    every = [by_context for run in group.finished for by_context in run.by_context]
    return [by_context for by_context in every if by_context.split == every[0].split]


def _lengths(scored: Sequence[ByContext]) -> list[tuple[str, int]]:
    return sorted({(one.windows, one.length) for found in scored for one in found.scores})


def _notes(scored: Sequence[ByContext]) -> Iterator[Note]:
    first = scored[0]
    yield Note(
        f"every length is scored on the same {first.num_bytes:,} bytes of {first.num_documents:,} documents of "
        f"{first.test_set}; trained at {first.training_length:,} tokens; less is better"
    )
    if first.stride is not None:
        yield Note(
            f"sliding: a window every {first.stride:,} tokens, of which only the last {first.stride:,} are scored"
        )
    if len({(one.test_set, one.num_bytes, one.training_length) for one in scored}) > 1:
        yield Note(
            "not comparable: the rows were scored on different bytes, or trained at different lengths", "warning"
        )


@dataclass(frozen=True)
class _Panel:
    """Curves over the length of the context, by label, of models trained at `trained` tokens (None: of several)."""

    title: str
    curves: dict[str, dict[int, Measurement]]
    trained: int | None
    unit: str
    remarks: tuple[str, ...]
    look: dict[str, Any]


def bits_by_context(group: Group, remark: str = "", width: float = WIDE) -> Figure | None:
    """Bits per byte against the length of the context, a panel for each kind of windows, and below them, in panels of
    their own since their unit differs, published curves of the same schemes; None with fewer than two lengths of ours.

    Lengths beyond that of training are shaded. The axes are categorical: every length gets the same space.
    """
    variants, scored = lines_of(group), _scored(group)
    keys = _lengths(scored)
    if len({length for _, length in keys}) < 2:
        return None
    kinds = [kind for kind in WINDOWS if any(kind == windows for windows, _ in keys)]
    ours = [_measured(variants, scored, kind, remark if kind == kinds[-1] else "") for kind in kinds]
    panels = [*ours, *(panel for kind in kinds if (panel := _published(variants, kind)) is not None)]
    looks = variant_looks(variants)
    with styled():
        rows = -(-len(panels) // len(kinds))
        shape = (rows, len(kinds)) if width > COLUMN else (rows * len(kinds), 1)
        figure, all_axes = new_figure(width, 0.8 + 3.0 * shape[0], CONTEXTS, group.heading, looks, shape)
        for axes, panel in zip(all_axes, panels, strict=False):
            lengths = sorted({length for points in panel.curves.values() for length in points})
            beyond = next((at for at, n in enumerate(lengths) if panel.trained and n > panel.trained), None)
            set_places(axes, [f"{length:,}" for length in lengths], beyond, rotation=45)
            for label, points in panel.curves.items():
                draw_points(axes, [(lengths.index(n), one) for n, one in points.items()], looks[label] | panel.look)
            axes.set_title(panel.title, loc="left", fontsize=10)
            axes.set_ylabel(panel.unit)
            set_words_below(axes, "tokens of context", *panel.remarks)
        bounds = [bound for axes in all_axes[: len(ours)] for bound in axes.get_ylim()]
        for axes in all_axes[: len(ours)]:
            axes.set_ylim(min(bounds), max(bounds))
        for place, axes in enumerate(all_axes):
            if place < len(panels):
                set_log_scale(axes)
            else:
                axes.set_axis_off()
    return figure


def _measured(variants: Sequence[Variant], scored: Sequence[ByContext], kind: str, remark: str) -> _Panel:
    trained = {found.training_length for found in scored}
    longest = max(trained) if len(trained) == 1 else None
    shaded = f"shaded: longer than in training ({longest:,} tokens)" if longest else ""
    keys = {length: (scored[0].split, kind, length) for _, length in _lengths(scored)}
    points = {one.label: {n: one.measured(key, ABSENT) for n, key in keys.items()} for one in variants}
    return _Panel(f"{kind} windows", points, longest, "bits per byte; less is better", (shaded, remark), {})


def _published(variants: Sequence[Variant], kind: str) -> _Panel | None:
    """The published curve of the first variant of each kind of positions, of the shortest training that has curves."""
    labels = {one.position.kind: one.label for one in reversed(variants)}
    found = [
        (trained, source, label, figures)
        for positions, label in labels.items()
        for (source, trained), figures in curves("length", {"windows": kind, "kind": positions}).items()
        if len(figures) > 1
    ]
    shortest = min((trained for trained, *_ in found), default=None)
    shown = [(source, label, figures) for trained, source, label, figures in found if trained == shortest]
    if not shown:
        return None
    points = {label: {length: single(one) for length, one in figures.items()} for _, label, figures in shown}
    sources = "; ".join(dict.fromkeys(f"{source.heading}, trained at {shortest:,}" for source, *_ in shown))
    return _Panel(f"published, {kind} windows", points, shortest, "perplexity", (f"grey: {sources}",), {"color": PAPER})

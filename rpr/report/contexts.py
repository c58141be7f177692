"""Bits per byte of language models by the length of the context, and by position: two tables and a plot.

Two ways to evaluate one checkpoint stand side by side: in separate windows most tokens have a short context, so a model
can gain with length without using a longer context at all (Press et al. 2022, appendix B); a sliding window shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.scores import ByContext, ContextScore, PositionScore
from rpr.report.groups import Group, Variant
from rpr.report.plot_style import (
    COLUMN,
    WIDE,
    error_bars,
    new_figure,
    set_words_below,
    shade_beyond,
    styled,
    variant_looks,
)
from rpr.report.sampling import lines_of
from rpr.tables.grid import Column, Grid, Note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
Key = tuple[str, int]  # ("separate" | "sliding", its length), or ("position", the last one of a range)


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length and the one by position; none if no finished run was scored so."""
    scored = _scored(group.variants)
    if not scored:
        return
    columns = [Column("position", "position", lambda variant: variant.label, label=True)]
    for windows, length in _lengths(scored):
        heading = f"{length:,}" if windows == "separate" else f"{length:,}, sliding"
        read = partial(bits_per_byte, key=(windows, length))
        columns.append(Column(f"{windows}_{length}", heading, read, digits=3))
    notes = tuple(_notes(scored))
    title = f"{CONTEXTS}, {scored[0].split}"
    yield Grid("contexts", title, tuple(columns), group.variants, group.heading, notes, group.synthetic)
    places = {one.last: one for found in scored for one in found.by_position}
    columns = columns[:1]
    for last, place in sorted(places.items()):
        heading = f"{place.first:,}" if place.first == last else f"{place.first:,}–{last:,}"
        columns.append(Column(f"at_{last}", heading, partial(bits_per_byte, key=("position", last)), digits=3))
    longest = max(one.length for found in scored for one in found.scores)
    title = f"Bits per byte by position in windows of {longest:,} side by side, {scored[0].split}"
    yield Grid("by_position", title, tuple(columns), group.variants, group.heading, notes, group.synthetic)


def bits_per_byte(variant: Variant, key: Key) -> Measurement:
    """A variant's bits per byte: of one run with its interval over documents, or the mean over seeds."""
    found = {(way, number): score for number, way, score in _scores(variant, key)}
    if not found:
        return missing("not scored at this length" if variant.finished else variant.why_not())
    if len({way for way, _ in found}) > 1:
        return missing("the seeds were scored on different bytes, so they have no mean")
    scores = list(found.values())
    if len(scores) == 1:
        return single(scores[0].bits_per_byte, getattr(scores[0], "interval", None))
    return mean([score.bits_per_byte for score in scores])


def _scores(variant: Variant, key: Key) -> Iterator[tuple[int, tuple[Any, ...], ContextScore | PositionScore]]:
    """The scores of each seed's run, with the run's number and what it was scored on."""
    for number, found in enumerate(_scored([variant])):
        way = (found.test_set, found.num_bytes, found.num_documents, found.training_length)
        if key[0] == "position":
            yield from ((number, way, one) for one in found.by_position if one.last == key[1])
        else:
            stride = found.stride if key[0] == "sliding" else None
            yield from ((number, (*way, stride), one) for one in found.scores if (one.windows, one.length) == key)


def _scored(variants: Sequence[Variant]) -> list[ByContext]:
    """What each finished run has of the first split that any was scored on."""
    found = [one for variant in variants for run in variant.finished for one in run.by_context]
    return [one for one in found if one.split == found[0].split]


def _lengths(scored: Sequence[ByContext]) -> list[Key]:
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


def bits_by_context(group: Group, remark: str = "", width: float = WIDE) -> Figure | None:
    """Bits per byte against the length of the context, a panel for each kind of windows; None without any.

    Lengths beyond that of training are shaded. The axis is categorical: every length gets the same space.
    """
    scored = _scored(group.variants)
    keys = _lengths(scored)
    panels = [windows for windows in WINDOWS if any(kind == windows for kind, _ in keys)]
    if not panels:
        return None
    lengths = sorted({length for _, length in keys})
    trained = {found.training_length for found in scored}
    variants = lines_of(group)
    looks = variant_looks(variants)
    with styled():
        shape = (1, len(panels)) if width > COLUMN else (len(panels), 1)
        figure, all_axes = new_figure(width, 0.8 + 3.2 * shape[0], CONTEXTS, group.heading, looks, shape)
        beyond = [place for place, length in enumerate(lengths) if len(trained) == 1 and length > max(trained)]
        for axes, windows in zip(all_axes, panels, strict=True):
            shade_beyond(axes, beyond[0] if beyond else None, len(lengths))
            for variant in variants:
                scores = [bits_per_byte(variant, (windows, length)) for length in lengths]
                points = [(place, score) for place, score in enumerate(scores) if score.value is not None]
                places, levels = [place for place, _ in points], [score.value or 0.0 for _, score in points]
                axes.plot(places, levels, **looks[variant.label], lw=1.6, ms=4, zorder=4)
                error_bars(axes, points, looks[variant.label]["color"], 1.0)
            axes.set_title(f"{windows} windows", loc="left", fontsize=10)
            axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
        bounds = [bound for axes in all_axes for bound in axes.get_ylim()]
        for axes in all_axes:
            axes.set_ylim(min(bounds), max(bounds))
        all_axes[0].set_ylabel("bits per byte; less is better")
        shaded = f"shaded: longer than in training ({max(trained):,} tokens)" if beyond else ""
        set_words_below(all_axes[-1], "tokens of context", shaded, remark)
    return figure

"""Bits per byte of language models by the length of the context, and by position: tables and a plot.

Two ways to evaluate one checkpoint stand side by side: in separate windows most tokens have a short context, so a model
can gain with length without using a longer context at all (Press et al. 2022, appendix B); a sliding window shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.scores import ByContext, ContextScore, PositionScore
from rpr.report.groups import Group, Variant, paired_change
from rpr.report.plot_style import (
    COLUMN,
    PAPER,
    WIDE,
    error_bars,
    new_figure,
    set_log_scale,
    set_words_below,
    shade_beyond,
    styled,
    variant_looks,
)
from rpr.report.published import Source, curves
from rpr.report.sampling import lines_of
from rpr.tables.grid import Column, Grid, Note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
Key = tuple[str, int]  # ("separate" | "sliding", its length), or ("position", the last one of a range)


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length, its paired differences, and the table by position; none if no finished run was scored so."""
    scored = [found for variant in group.variants for found in _scored(group, variant).values()]
    if not scored:
        return
    notes, split = tuple(_notes(scored)), scored[0].split
    lengths = {
        (windows, length): f"{length:,}" + ", sliding" * (windows == "sliding") for windows, length in _lengths(scored)
    }
    places = {("position", one.last): (one.first, one.last) for found in scored for one in found.by_position}
    positions = {key: "–".join(f"{end:,}" for end in dict.fromkeys(places[key])) for key in sorted(places)}
    longest = max(one.length for found in scored for one in found.scores)

    def grid(name: str, title: str, headings: dict[Key, str], *more: Note, change: bool = False) -> Grid:
        columns = [Column("position", "position", lambda variant: variant.label, label=True)]
        for key, heading in headings.items():
            read = partial(bits_change if change else bits_per_byte, group, key=key)
            columns.append(Column("_".join(map(str, key)), heading, read, digits=3, signed=change))
        rows = tuple(one for one in group.variants if not (change and one is group.baseline))
        return Grid(name, f"{title}, {split}", tuple(columns), rows, group.heading, (*notes, *more), group.synthetic)

    yield grid("contexts", CONTEXTS, lengths)
    if (baseline := group.baseline) is not None and len(group.variants) > 1:
        how = Note(
            f"minus {baseline.label}, seed by seed: below zero is better; with one common seed without an interval"
        )
        yield grid("context_changes", f"{CONTEXTS}: change from {baseline.label}", lengths, how, change=True)
    yield grid("by_position", f"Bits per byte by position in windows of {longest:,} side by side", positions)


def bits_per_byte(group: Group, variant: Variant, key: Key) -> Measurement:
    """A variant's bits per byte: of one run with its interval over documents, or the mean over seeds."""
    scores = _scores(group, variant, key)
    if not scores:
        return missing("not scored at this length" if variant.finished else variant.why_not())
    if len({way for way, _ in scores.values()}) > 1:
        return missing("the seeds were scored on different bytes, so they have no mean")
    if len(scores) == 1:
        [(_, score)] = scores.values()
        return single(score.bits_per_byte, getattr(score, "interval", None))
    return mean([score.bits_per_byte for _, score in scores.values()])


def bits_change(group: Group, variant: Variant, key: Key) -> Measurement:
    """A variant's bits per byte minus the baseline's, paired by seed."""
    assert group.baseline is not None, "a change is from a baseline"
    both = [_scores(group, one, key) for one in (variant, group.baseline)]
    measured = [bits_per_byte(group, one, key) for one in (variant, group.baseline)]
    if gone := next((one for one in measured if one.value is None), None):
        return gone
    if len({way for scores in both for way, _ in scores.values()}) > 1:
        return missing(f"scored on other bytes than {group.baseline.label}")
    return paired_change(*({seed: score.bits_per_byte for seed, (_, score) in scores.items()} for scores in both))


def _scores(
    group: Group, variant: Variant, key: Key
) -> dict[int, tuple[tuple[Any, ...], ContextScore | PositionScore]]:
    """The score of each seed's run, with what it was scored on."""
    found: dict[int, tuple[tuple[Any, ...], ContextScore | PositionScore]] = {}
    for seed, scored in _scored(group, variant).items():
        stride = scored.stride if key[0] == "sliding" else None
        way = (scored.test_set, scored.num_bytes, scored.num_documents, scored.training_length, stride)
        by_key: dict[Key, ContextScore | PositionScore] = {("position", one.last): one for one in scored.by_position}
        by_key |= {(one.windows, one.length): one for one in scored.scores}
        if key in by_key:
            found[seed] = (way, by_key[key])
    return found


def _scored(group: Group, variant: Variant) -> dict[int, ByContext]:
    """What each finished run has of the first split that any run of the group was scored on, by seed."""
    split = next((one.split for run in group.finished for one in run.by_context), None)
    return {run.seed: one for run in variant.finished for one in run.by_context if one.split == split}


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
    """Bits per byte against the length of the context, a panel for each kind of windows, and below them, in panels of
    their own since their unit differs, published curves of the same schemes; None with fewer than two lengths of ours.

    Lengths beyond that of training are shaded. The axes are categorical: every length gets the same space.
    """
    variants = lines_of(group)
    scored = [found for variant in group.variants for found in _scored(group, variant).values()]
    keys = _lengths(scored)
    windows = [kind for kind in WINDOWS if any(kind == windows for windows, _ in keys)]
    lengths = sorted({length for _, length in keys})
    if len(lengths) < 2:
        return None
    trained = {found.training_length for found in scored}
    looks = variant_looks(variants)
    published = {kind: of_kind for kind in windows if (of_kind := _published(variants, kind))}
    with styled():
        rows = 1 + bool(published)
        shape = (rows, len(windows)) if width > COLUMN else (rows * len(windows), 1)
        figure, all_axes = new_figure(width, 0.8 + 3.0 * shape[0], CONTEXTS, group.heading, looks, shape)
        ours, theirs = all_axes[: len(windows)], all_axes[len(windows) :]
        first = next((at for at, length in enumerate(lengths) if len(trained) == 1 and length > max(trained)), None)
        for axes, kind in zip(ours, windows, strict=True):
            shade_beyond(axes, first, len(lengths))
            for variant in variants:
                scores = [bits_per_byte(group, variant, (kind, length)) for length in lengths]
                points = [(place, score) for place, score in enumerate(scores) if score.value is not None]
                places, levels = [place for place, _ in points], [score.value or 0.0 for _, score in points]
                axes.plot(places, levels, **looks[variant.label], lw=1.6, ms=4, zorder=4)
                error_bars(axes, points, looks[variant.label]["color"], 1.0)
            axes.set_title(f"{kind} windows", loc="left", fontsize=10)
            axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
        bounds = [bound for axes in ours for bound in axes.get_ylim()]
        for axes in ours:
            axes.set_ylim(min(bounds), max(bounds))
            set_log_scale(axes)
        ours[0].set_ylabel("bits per byte; less is better")
        shaded = f"shaded: longer than in training ({max(trained):,} tokens)" if first is not None else ""
        set_words_below(ours[-1], "tokens of context", shaded, remark)
        for axes, kind in zip(theirs, windows, strict=True) if theirs else ():
            _draw_published(axes, kind, published.get(kind, {}), looks)
    return figure


Curve = tuple[Source, int, dict[int, float]]  # the length of training, and the figures by length


def _published(variants: Sequence[Variant], windows: str) -> dict[str, Curve]:
    """By label, the published curve of the first variant of each kind, of the shortest training that has curves."""
    by_kind = {one.position.kind: one.label for one in reversed(variants)}
    found = {
        label: (source, length, figures)
        for kind, label in by_kind.items()
        for (source, length), figures in sorted(
            curves("length", {"windows": windows, "kind": kind}).items(), key=lambda item: -item[0][1]
        )
        if len(figures) > 1
    }
    shortest = min((length for _, length, _ in found.values()), default=0)
    return {label: curve for label, curve in found.items() if curve[1] == shortest}


def _draw_published(axes: Axes, windows: str, found: dict[str, Curve], looks: dict[str, dict[str, Any]]) -> None:
    """Grey, with the markers and dashes of our lines."""
    if not found:
        axes.set_axis_off()
        return
    lengths = sorted({length for _, _, figures in found.values() for length in figures})
    trained = next(length for _, length, _ in found.values())
    shade_beyond(axes, next((place for place, length in enumerate(lengths) if length > trained), None), len(lengths))
    for label, (_, _, figures) in found.items():
        places = [lengths.index(length) for length in figures]
        axes.plot(places, list(figures.values()), **(looks[label] | {"color": PAPER}), lw=1.4, ms=4, zorder=4)
    set_log_scale(axes)
    axes.set_ylabel("perplexity")
    axes.set_title(f"published, {windows} windows", loc="left", fontsize=10)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45)
    sources = "; ".join(
        dict.fromkeys(f"{source.heading}, trained at {length:,}" for source, length, _ in found.values())
    )
    set_words_below(axes, f"tokens of context; grey: {sources}")

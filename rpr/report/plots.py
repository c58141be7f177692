"""The plots of a group, legible on a phone, on a page and in a column of a paper: scores by position, by length and by
context, learning curves, and a map of recall; and the figure of what one run's positions learned.

matplotlib is imported inside functions, since the command line imports this package for every subcommand.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from rpr.data.generated.recall import by_pairs_and_distance
from rpr.errors import RprError
from rpr.kinds import TASK, TEXT
from rpr.model.positions import COLOURS as COLOURS_OF_KINDS
from rpr.records.files import Texts, read_translations
from rpr.records.measurement import Measurement, single
from rpr.records.position import OTHER
from rpr.records.scores import pooled
from rpr.report.groups import OTHERWISE, Group, Key, Variant, published_figures
from rpr.report.render import number
from rpr.report.tables import CONTEXTS, WINDOWS, buckets, by_context, context_lengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# PAPER: published figures are always grey.
INK, MUTED, GRID, PAPER, WHITE = "#1b1f24", "#5d6670", "#e4e7eb", "#8b939d", "#ffffff"
COLOURS = {**COLOURS_OF_KINDS, OTHER: "#444c56"}
WIDTH = 5.2  # inches: 390 pixels of a phone show ten points as nine
LINE = 0.165  # height of a line of text in inches
BARS = "Bars: the 95% interval over the seeds, or of one seed that over its test set."
DASHED: Any = (0, (4, 2))
MARKERS, DASHES = "osD^vPX*<>hdp8H", ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
# Of relative positions: light to dark blue in the order of k.
K_SHADES = ("#4b9ad3", "#3f90cc", "#3385c3", "#2879b7", "#1d6ca9", "#135e99", "#0c4f86", "#093f70", "#072e58")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "rpr",
    "text.parse_math": False,  # a dollar of a label is one
    # Text stays text; a browser without the first font uses the next, of nearly the same width.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"), MUTED),
}
MOST_ROWS, MOST_VARIANTS = 24, 12  # with a dot; with a line in a plot, or with translations
_FAR = 3.0  # the axis of scores ends this many times the distance from the best score to the median below the best
_MOST_MARKS = 20  # of a line over numbers
_ROOM = 0.5  # share of a length bucket's width over which the points of all variants are spread
_PAIRS, _TOKENS = 4, 8  # of a cell of the map of recall
Points = Sequence[tuple[float, Measurement]]


def styled() -> AbstractContextManager[None]:
    """A context for creating and saving figures, in which the user's matplotlibrc has no effect."""
    import matplotlib

    defaults: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if "backend" not in key}
    return matplotlib.rc_context(defaults | _STYLE)


@dataclass(frozen=True)
class Plot:
    """A plot: panels below each other, of `height` inches each, which `draw` fills."""

    name: str
    title: str
    heading: str  # what it is of, below the title
    draw: Callable[[Sequence[Axes]], None]
    panels: int = 1
    height: float = 3.0
    caption: str = ""  # what its marks mean, and what it leaves out

    @property
    def description(self) -> str:
        """Its alternative text."""
        return f"{self.title}: {self.heading}"

    @cached_property
    def svg(self) -> bytes:
        return rendered(self.figure())

    def figure(self) -> Figure:
        """The figure, which matplotlib lays out."""
        from matplotlib.figure import Figure

        with styled():
            figure = Figure(figsize=(WIDTH, 0.6 + self.panels * self.height), layout="constrained")
            subtitle = textwrap.shorten(self.heading, 72, placeholder=" …")
            figure.suptitle(f"{self.title}\n", x=0.02, ha="left", fontsize=12, fontweight="bold")
            below = 1 - 0.27 / figure.get_figheight()
            figure.text(0.02, below, subtitle, fontsize=9, va="top", color=MUTED)
            self.draw([*figure.subplots(self.panels, 1, squeeze=False).flat])
        return figure


def rendered(figure: Figure, kind: str = "svg") -> bytes:
    """The figure as SVG or PDF, reproducibly, with its text as text."""
    out = io.BytesIO()
    with styled():
        figure.savefig(out, format=kind, metadata={"Date" if kind == "svg" else "CreationDate": None})
    return out.getvalue()


def folded(text: str, width: int) -> str:
    """In lines of at most this many characters, none of which ends inside `k = 16`."""
    joined = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return "\n".join(textwrap.wrap(joined, width, break_long_words=False)).replace("\N{NO-BREAK SPACE}", " ")


def variant_colours(variants: Iterable[Variant]) -> dict[str, str]:
    """A colour for each variant's label: that of its kind, for relative positions shaded in the order of k."""
    known = [(variant.label, variant.position.kind, variant.position.clip_distance) for variant in variants]
    ks = sorted({k for _, kind, k in known if kind == "relative" and k is not None})
    last = len(K_SHADES) - 1
    shades = {k: K_SHADES[round(at * last / (len(ks) - 1)) if len(ks) > 1 else last] for at, k in enumerate(ks)}
    return {label: shades[k] if kind == "relative" and k is not None else COLOURS[kind] for label, kind, k in known}


def all_plots(group: Group) -> list[Plot]:
    """Every plot for which the group has data."""
    plots = (scores_by_position, scores_by_length, learning_curves, bits_by_context, recall_map)
    return [drawn for plot in plots if (drawn := plot(group)) is not None]


def lines_of(group: Group, given: Sequence[Variant] = (), most: int = MOST_VARIANTS) -> tuple[list[Variant], str]:
    """At most `most` of the group's or the given variants, in their order, and a sentence if others are left out."""
    variants = given or group.variants
    if len(variants) <= most:
        return list(variants), ""
    scores = {variant: score for variant in variants if (score := variant.measured(group.key).value) is not None}
    best = sorted(scores, key=lambda variant: group.kind.best_first(scores[variant]))
    pinned = [variant for variant in (group.baseline, group.papers_relative) if variant in variants]
    shown = [*dict.fromkeys([*pinned, *best[-1:], *best, *variants])][:most]
    which = "baseline, the paper's, the worst, and the best"
    return [row for row in variants if row in shown], f"{most} of {len(variants):,} rows are drawn: {which}."


def own_file(path: Path) -> bool:
    """Whether it is a regular file: a link in an untrusted run directory could expose any file on the page."""
    return path.is_file() and not path.is_symlink()


def texts_of(paths: Iterable[Path], split: str) -> Texts | None:
    """The texts beside the first record that has all three, which can be read; None without one."""
    for path in paths:
        if not any(path.with_name(f"{split}.{kind}.txt").is_symlink() for kind in Texts._fields):
            with suppress(RprError):
                return read_translations(path, split)
    return None


def _ends(figure: Measurement) -> tuple[float, float]:
    value, interval = figure.value or 0.0, figure.interval
    return (min(value, interval.low), max(value, interval.high)) if interval else (value, value)


# Dots


def scores_by_position(group: Group) -> Plot | None:
    """A dot for each row scored as the baseline, best first, with its 95% bar, and published figures to compare the
    order with; none of fewer than two. Rows far from the others are arrows at the end of the axis.
    """
    # 1. The rows, and the published figures of some.
    kind, colours = group.kind, variant_colours(group.variants)
    scores = {row: value for row in group.variants if (value := row.measured(group.key).value) is not None
              and OTHERWISE not in str(row.change(group.key).reason)}  # fmt: skip
    if len(scores) < 2:
        return None
    rows, left_out = lines_of(group, [*scores], MOST_ROWS)
    rows.sort(key=lambda row: kind.best_first(scores[row]))
    published = published_figures(group)
    figures = {row: figure for of_source in published.values() for row, figure in of_source}
    # 2. The limits of the axis: beyond them are rows several times farther from the best than half of the rows.
    best, ends = scores[rows[0]], {row: _ends(row.measured(group.key)) for row in rows}
    far = _FAR * abs(best - median(scores[row] for row in rows)) if len(rows) > 4 else math.inf
    near = [ends[row] for row in rows if row is group.baseline or abs(best - scores[row]) <= far]
    low, high = min(low for low, _ in near), max(high for _, high in near)
    margin = 0.04 * (high - low) or 1.0
    low, high = (-2.0, 102.0) if kind.shares else (low - margin, high + margin)
    # 3. The dots, each with room for the lines of its label.
    labels = [folded(row.label, 24) for row in rows]
    room = [0.1 + LINE * (label.count("\n") + 1) for label in labels]

    def draw(panels: Sequence[Axes]) -> None:
        [axes] = panels
        places = [sum(room[:row]) + height / 2 for row, height in enumerate(room)]
        for place, row in zip(places, rows, strict=True):
            value, colour = scores[row], colours[row.label]
            if row in figures:
                axes.plot([figures[row]], [place], color=PAPER, marker="D", ms=5, zorder=2)
            if (within := low <= value <= high) and ends[row] != (value, value):
                bar: Any = [[value - ends[row][0]], [ends[row][1] - value]]
                axes.errorbar(value, place, xerr=bar, fmt="none", ecolor=colour, elinewidth=1.6, capsize=2.5, zorder=5)
            mark: Any = {"color": colour, "zorder": 6, "ms": 6, "clip_on": within}
            mark |= {"marker": "o" if within else "<" if value < low else ">"}
            axes.plot([min(max(low, value), high)], [place], mfc=WHITE if row.unlearned() else None, **mark)
            axes.text(1.04, place, number(value, kind.digits), transform=axes.get_yaxis_transform(), va="center")
            if row is group.baseline:
                axes.axvline(value, color=colour, lw=1.0, ls=DASHED, zorder=1)
        axes.set_yticks(places, labels, linespacing=1.0)
        axes.set(xlim=(low, high), ylim=(sum(room), 0))
        axes.tick_params(axis="y", length=0, pad=9)
        axes.spines["left"].set_visible(False)

    # 4. What the marks mean.
    marks = [BARS, *(f"Dashed: {row.label}." for row in rows if row is group.baseline)]
    marks += ["Arrows: beyond the axis."] * any(not low <= scores[row] <= high for row in rows)
    marks += ["Hollow: not learned."] * any(row.unlearned() for row in rows)
    cited = "; ".join(source.citation for source in published)
    marks += [f"Grey diamonds: {cited}; compare the order only."] * bool(cited)
    marks += [left_out] * bool(left_out)
    where = "beyond the training lengths" if group.split == "long" else f"on {group.split}"
    title = f"{kind.heading[:1].upper()}{kind.heading[1:]} {where}, best first"
    return Plot("scores_by_position", title, group.heading, draw, 1, 0.4 + sum(room), " ".join(marks))


# Lines


def _line_plot(
    name: str, title: str, group: Group, panels: Mapping[tuple[str, str], Mapping[str, Points]], xlabel: str,
    caption: str, names: Sequence[str] = (), beyond: int | None = None,
) -> Plot | None:  # fmt: skip
    """Panels below each other, by the label of their y axis and their title, with a line for each label, over numbers
    or over the places of `names`, which have equal room and are shaded from the first one `beyond` training on. None
    without lines.
    """
    panels = {words: curves for words, curves in panels.items() if any(curves.values())}
    labels, colours = next(iter(panels.values()), {}), variant_colours(group.variants)
    marks: Any = zip(labels, cycle(MARKERS), cycle(DASHES), strict=False)
    looks = {label: {"color": colours[label], "marker": mark, "ls": dashes} for label, mark, dashes in marks}
    height, count = max(3.0, 0.16 * len(labels) + 1), len(names)

    def draw_panel(axes: Axes, ylabel: str, heading: str, curves: Mapping[str, Points]) -> None:
        # 1. The axes, with as many names as fit.
        axes.set_ylabel(ylabel)
        axes.set_title(heading, loc="left", fontsize=10)
        if names:
            longest = max(len(line) for name in names for line in name.split("\n"))
            every = math.ceil(0.11 * longest * count / (WIDTH - 2.2))
            axes.set_xticks(range(0, count, every), names[::every])
            axes.set_xlim(-0.5, count - 0.5)
            axes.grid(visible=False, axis="x")
        if beyond is not None:
            axes.axvspan(beyond - 0.5, count - 0.5, color=GRID, alpha=0.7, lw=0, zorder=0)
            axes.axvline(beyond - 0.5, color=MUTED, lw=1.0, ls=DASHED, zorder=1)
        # 2. The lines through the points that are not missing, with their 95% bars.
        ends: dict[str, tuple[float, float]] = {}
        for label, measured in curves.items():
            known = [(at, figure.value, _ends(figure)) for at, figure in measured if figure.value is not None]
            if known:
                places, values, bars = map(np.array, zip(*known, strict=True))
                every = 1 if names else -(-len(known) // _MOST_MARKS)
                axes.plot(places, values, **looks[label], lw=1.6, ms=4, markevery=every)
                wide = bars[:, 0] < bars[:, 1]
                lengths = np.abs(bars.T - values)[:, wide]
                bar: Any = {"ecolor": looks[label]["color"], "elinewidth": 1.2, "capsize": 2.5, "zorder": 5}
                axes.errorbar(places[wide], values[wide], lengths, fmt="none", **bar)
                ends[label] = known[-1][:2]
        if names and group.kind.shares:
            axes.set_ylim(-3.0, 104.0)  # of percent no bar says more than 100
        elif names and 0 < 2 * axes.dataLim.y0 < axes.dataLim.y1 and ylabel.startswith("bits"):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        # 3. The labels at the right edge, each with a thin line to its end: neighbours that overlap give way.
        axes.get_ylim()  # matplotlib sets the limits only now
        to_axes = axes.transData + axes.transAxes.inverted()
        at_edge = {label: float(to_axes.transform(end)[1]) for label, end in ends.items()}
        order = sorted(ends, key=at_edge.__getitem__)
        inches = height + 0.6 / len(panels) - 0.9
        room = {label: (folded(label, 22).count("\n") + 1) * LINE * 0.87 / inches for label in order}
        for low, high in [*pairwise(order)] * 200:
            overlap = max(0.0, (room[low] + room[high]) / 2 - (at_edge[high] - at_edge[low]))
            at_edge[low], at_edge[high] = at_edge[low] - overlap / 2, at_edge[high] + overlap / 2
        shift = (min(0.0, 1.02 - at_edge[order[-1]]) or max(0.0, -0.05 - at_edge[order[0]])) if order else 0.0
        for label in order:
            colour = looks[label]["color"]
            leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkB": 3, "alpha": 0.7, "relpos": (0, 0.5)}
            about: dict[str, Any] = {"color": colour, "va": "center", "fontsize": 8.5, "annotation_clip": False}
            about |= {"textcoords": "axes fraction", "arrowprops": leader}
            axes.annotate(folded(label, 22), ends[label], (1.04, at_edge[label] + shift), **about)
        if not names:
            axes.set_xlim(left=0)

    def draw(every: Sequence[Axes]) -> None:
        for axes, (words, curves) in zip(every, panels.items(), strict=True):
            draw_panel(axes, *words, curves)
        every[-1].set_xlabel(xlabel)

    caption = f"{caption} {lines_of(group)[1]}".rstrip()
    return Plot(name, title, group.heading, draw, len(panels), height, caption) if panels else None


def _curves(group: Group, keys: Sequence[Key], spread: float = 0.0) -> dict[str, Points]:
    rows = [row for row in lines_of(group)[0] if any(key in row.measurements for key in keys)]
    shifts = [spread * (at - (len(rows) - 1) / 2) / max(len(rows), 2) for at in range(len(rows))]
    return {row.label: [(at + shift, row.measured(key)) for at, key in enumerate(keys)]
            for row, shift in zip(rows, shifts, strict=True)}  # fmt: skip


def scores_by_length(group: Group) -> Plot | None:
    """sacreBLEU by source length (for tasks exact match by task length), one line per variant; None without any."""
    columns = buckets(group)
    scored = next((run.by_length for run in group.finished if run.by_length is not None), None)
    if scored is None:
        return None
    curves = _curves(group, [(group.kind.metric, *bucket.key) for bucket in columns], _ROOM)
    beyond = next((place for place, bucket in enumerate(columns) if bucket.beyond_training), None)
    caption = BARS if beyond is None else f"{BARS} Shaded: {scored.longest_in_words}."
    names = [f"{bucket.label}\n{count}" for bucket, count in columns.items()]
    name, what = ("exact_match", "Exact match by") if group.kind is TASK else ("bleu", "BLEU by source")
    title, xlabel = f"{what} length, {pooled(scored.splits)}", f"{scored.unit}; below: sentences"
    panels = {(group.kind.heading, ""): curves}
    return _line_plot(f"{name}_by_length", title, group, panels, xlabel, caption, names, beyond)


def bits_by_context(group: Group) -> Plot | None:
    """Bits per byte by length of the context, a panel for each kind of windows; None with fewer than two lengths."""
    scored = by_context(group)
    lengths = sorted({length for _, length in context_lengths(scored)})
    if len(lengths) < 2:
        return None
    trained, names = max(context.training_length for context in scored), [f"{length:,}" for length in lengths]
    beyond = next((at for at, length in enumerate(lengths) if length > trained), None)
    caption = f"Less is better. {BARS}"
    caption += "" if beyond is None else f" Shaded: longer than in training, {trained:,} tokens."
    panels = {("bits per byte", f"{kind} windows"): _curves(group, [(scored[0].split, kind, at) for at in lengths])
              for kind in WINDOWS}  # fmt: skip
    return _line_plot("bits_by_context", CONTEXTS, group, panels, "tokens of context", caption, names, beyond)


def learning_curves(group: Group) -> Plot | None:
    """Validation loss, and BLEU or the loss's change, by step: the mean over the seeds at the steps of all of them."""
    rows = [row for row in lines_of(group)[0] if any(of_run.curves for of_run in row.beside.values())]
    counts = {str(run.setting("evaluation.validation_sentences")) for row in rows for run in row.records} - {"0"}
    means: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for name in ("loss", "BLEU") if len(counts) < 2 else ("loss",):  # BLEU of other sentences has no mean
        of_rows = means[f"validation {name}", ""] = {}
        for row in rows:
            seeds = [curve for one in row.beside.values() if (curve := one.curves.get(f"validation/{name.lower()}"))]
            steps = sorted(set[int]().union(*seeds).intersection(*seeds))
            of_rows[row.label] = {step: fmean(seed[step] for seed in seeds) for step in steps}
    losses = means["validation loss", ""]
    if base := losses.get(group.baseline.label) if group.kind is TEXT else None:
        changes = {label: {step: loss - base[step] for step, loss in curve.items() if step in base}
                   for label, curve in losses.items()}  # fmt: skip
        means["change of the loss", f"from {group.baseline.label}"] = changes
    panels = {panel: {label: [(step, single(mean)) for step, mean in curve.items()] for label, curve in curves.items()}
              for panel, curves in means.items()}  # fmt: skip
    name, caption = "change_by_step" if base else "learning_curves", "A line for each row, the mean over its seeds."
    return _line_plot(name, "Learning curves", group, panels, "step", caption)


# Cells


def recall_map(group: Group) -> Plot | None:
    """The right answers of data=recall on test and long by pairs and by distance to the key; None of another task."""
    # 1. The share of right answers in each cell, by row.
    variants, left_out = lines_of(group)
    shares: dict[str, np.ndarray[Any, Any]] = {}
    for variant in variants if group.runs[0].setting("data.task.kind") == "recall" else ():
        texts = (texts_of([run.path], split) for run in variant.beside.values() for split in ("test", "long"))
        cells = [(*place, *counts) for of in texts if of for place, counts in by_pairs_and_distance(*of).items()]
        if cells:
            pairs, distances, right, asked = np.array(cells).T
            of_axes = (pairs, _PAIRS), (distances, _TOKENS)
            ends: Any = [np.arange(0, places.max() + step + 1, step) for places, step in of_axes]
            found, every = (np.histogram2d(pairs, distances, ends, weights=counts)[0] for counts in (right, asked))
            shares[variant.label] = np.divide(100 * found, every, out=np.full(found.shape, np.nan), where=every > 0)

    # 2. A panel for each row.
    def draw(panels: Sequence[Axes]) -> None:
        for axes, (label, share) in zip(panels, shares.items(), strict=True):
            rows, columns = share.shape
            axes.pcolormesh(share, vmin=0, vmax=100, cmap="viridis")
            axes.grid(visible=False)
            axes.set_title(label, fontsize=9, loc="left")
            axes.set_xticks(range(columns + 1), [str(_TOKENS * place) for place in range(columns + 1)])
            axes.set_yticks(range(0, rows + 1, 2), [str(_PAIRS * place) for place in range(0, rows + 1, 2)])
            axes.set_ylabel("pairs")
        panels[-1].set_xlabel("tokens from the key to its query")

    words = "Yellow: every answer is right; dark blue: none. White: no such query."
    about = (group.heading, draw, len(shares), 1.7, f"{words} {left_out}".rstrip())
    return Plot("recall_map", "Recall by pairs and distance", *about) if shares else None


# What one run's positions learned: rows of panels of rpr.checks.positions.measure, whose DEFINITIONS say what they show

Entry = dict[str, Any]
PANELS_PER_LINE, HEIGHT = 6, 2.1  # inches of a panel with its title and labels
_REFERENCE: dict[str, Any] = {"color": PAPER, "lw": 1.2, "ls": DASHED, "zorder": 1}
_PARTS = {  # each begins a row: the labels of its axes
    "attention": ("mean attention", "signed distance j - i"),
    "tables": ("norm of each relative vector", "offset j - i"),
    "absolute": ("norm of each learned vector", "position"),
    "biases": ("bias", "signed distance j - i"),
}


def position_figure(numbers: Entry, title: str, subtitle: str) -> Figure:
    """The whole figure; the same numbers give the same figure."""
    from matplotlib.figure import Figure

    farthest, stacks = numbers["max_distance"], {stack["stack"]: stack for stack in numbers["stacks"]}

    def draw(axes: Axes, entry: Entry) -> None:
        # 1. Norms of tables and of learned vectors.
        for key, kind, colour in (("keys", "ᴷ", COLOURS["relative"]), ("values", "ⱽ", COLOURS["absolute"])):
            if (table := entry.get(key)) is not None:
                k = (len(table["norms"][0]) - 1) // 2
                _heads(axes, range(-k, k + 1), np.array(table["norms"]), colour, f"w{kind}")
                axes.axhline(table["expected_initial_norm"], **_REFERENCE)
        if values := entry.get("absolute"):
            axes.plot(values[: 2 * entry["longest"]], color=COLOURS["learned"], lw=1.6)
            axes.axvline(entry["longest"] - 0.5, **_REFERENCE, label="longest sentence")
        # 2. Attention and biases, at the distances that at least 1% of the queries have: fewer are too noisy.
        if by_distance := entry.get("attention") or entry.get("bias"):
            stack = stacks[entry["stack"]]
            often = 100 * np.array(stack["pairs"]) >= stack["pairs"][farthest]
            distances = np.arange(-farthest, farthest + 1)[often]
            _heads(axes, distances, np.array(by_distance, dtype=float)[:, often], COLOURS["relative"])
            if "attention" in entry:
                even = np.array(stack["even_attention"], dtype=float)[often]
                axes.plot(distances, even, color=INK, lw=1.0, ls=DASHED, zorder=5, label="as if spread evenly")

    # 3. The rows of panels.
    panels = [(numbers[name][at : at + PANELS_PER_LINE], *labels) for name, labels in _PARTS.items()
              for at in range(0, len(numbers[name]), PANELS_PER_LINE)]  # fmt: skip
    columns = max(len(entries) for entries, *_ in panels)
    size = max(9.6, 1.6 + 2.3 * columns), 1 + HEIGHT * len(panels)
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        subtitle = textwrap.shorten(subtitle, int(11 * size[0]), placeholder=" …")
        figure.suptitle(f"{title}\n{subtitle}", fontsize=12, fontweight="bold", x=0.01, ha="left")
        # 4. What is light, full and grey.
        words = f"Of {numbers['num_sentences']:,} validation sentences or windows of documents. Light: each head; full:"
        words += " their mean; grey: the root mean square before training. Vectors never reached stay as they began."
        figure.supxlabel(textwrap.fill(words, int(12 * size[0])), fontsize=9.5, color=MUTED, x=0.01, ha="left")
        rows = figure.subplots(len(panels), columns, squeeze=False, sharey="row")
        for row, (entries, ylabel, xlabel) in zip(rows, panels, strict=True):
            row[0].set_ylabel(ylabel, fontsize=9)
            for axes in row[len(entries) :]:
                axes.set_axis_off()
            for axes, entry in zip(row, entries, strict=False):
                draw(axes, entry)
                axes.tick_params(labelsize=8, length=2.5)
                axes.set_title(label(entry), loc="left", fontsize=9, color=INK, pad=4)
                axes.set_xlabel(xlabel, fontsize=9)
                axes.locator_params("x", integer=True)
            if row[0].get_legend_handles_labels()[0]:
                row[0].legend(frameon=False, fontsize=8)
    return figure


def label(entry: Entry) -> str:
    """`encoder layer 1`; `decoder layers 1, 4, shared`."""
    if (layers := entry.get("layers")) is None:
        return f"{entry['stack']} positions"
    several = len(layers) > 1
    return f"{entry['stack']} layer{'s' * several} {', '.join(map(str, layers))}{', shared' * several}"


def _heads(axes: Axes, xs: Any, rows: Any, colour: str, name: str | None = None) -> None:
    marker = "o" if len(xs) <= 3 else ""
    for row in rows if len(rows) > 1 else ():
        axes.plot(xs, row, color=colour, lw=0.7, alpha=0.35, marker=marker, ms=3, zorder=2)
    mean = np.ma.masked_invalid(rows).mean(axis=0)
    axes.plot(xs, mean, color=colour, label=name, lw=1.9, marker=marker, ms=3.5, zorder=4)

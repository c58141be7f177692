"""Tables by length of the source and, of language models, by length of the context and position in it.

Two ways to evaluate one checkpoint by context stand side by side: in separate windows most tokens have a short context,
so a model can gain with length without using a longer context at all (Press et al. 2022, appendix B); a sliding window
shows that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from rpr.records.measurement import mean, missing, single
from rpr.records.scores import (
    BITS_PER_BYTE,
    METRIC_NAMES,
    ByContext,
    ByLength,
    LengthBucket,
    counted,
    how_scored_by_context,
    how_scored_by_length,
    pooled,
    search_in_words,
)
from rpr.report.groups import Group, Key, Variant, never_run
from rpr.report.render import DASH, Cell, Column, Grid, marked

WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
ABSENT = "not scored at this length"
UNIGRAM = "unigram entropy of the corpus"
FEW = 10  # buckets with fewer sentences are flagged
_ROW = (
    Column("position", "position", lambda variant: variant.label, label=True),
    Column("n", "n", lambda variant: str(len(variant.finished))),
)


def _grid(
    name: str,
    title: str,
    group: Group,
    headings: Mapping[Key, str],
    notes: Sequence[str],
    warnings: Sequence[str],
    folded: Collection[Key] = (),
    *,
    changes: bool = False,
) -> Grid:
    """A row for each variant, and for each key of its scores a column, or with `changes` one of changes."""

    def read(variant: Variant, key: Key) -> Cell:
        if not variant.records:
            return Cell(single(group.unigram or 0.0))
        figure = group.change(variant, key, ABSENT) if changes else variant.measured(key, ABSENT)
        return marked(figure, len(variant.finished))

    shown, digits = [*_ROW], group.kind.digits
    for key, heading in headings.items():
        column = f"length_{key[1]}_{key[2] or 'up'}" if isinstance(key[1], int) else f"{key[1]}_{key[2]}"
        priority = 3 if key in folded else 0
        shown.append(Column(column, heading, partial(read, key=key), digits, signed=changes, priority=priority))
    rows = [variant for variant in group.variants if not (changes and variant is group.baseline)]
    rows += [never_run(UNIGRAM)] if group.unigram is not None and name == "contexts" else []
    about = (title, tuple(shown), tuple(rows), group.heading, tuple(notes), tuple(warnings), group.synthetic)
    grid = Grid(name, *about)
    return grid.without_empty_columns() if changes else grid


def buckets(group: Group) -> dict[LengthBucket, str]:
    """Every bucket of the finished runs, the shortest first, with its number of sentences: a dash if they differ."""
    by_key: dict[tuple[int, int], list[LengthBucket]] = {}
    for bucket in (bucket for by_length in _scored(group) for bucket in by_length.buckets):
        by_key.setdefault(bucket.key, []).append(bucket)
    counts = {key: {bucket.num_sentences for bucket in alike} for key, alike in by_key.items()}
    return {by_key[key][-1]: f"{count:,}" if not more else DASH for key, (count, *more) in sorted(counts.items())}


def _scored(group: Group) -> list[ByLength]:
    return [run.by_length for run in group.finished if run.by_length is not None]


def length_grid(group: Group) -> Iterator[Grid]:
    """The group's metric by length; nothing if no finished run has such scores."""
    scored, shown, metric = _scored(group), buckets(group), group.kind.metric
    if not any(variant.measurements.get((metric, *bucket.key)) for variant in group.variants for bucket in shown):
        return
    first = scored[0]
    ways = {how_scored_by_length(by_length, metric) for by_length in scored}
    unlike = len(ways) > 1 or DASH in shown.values()
    warnings = ["not comparable: the rows differ in how or on which sets they were scored"] if unlike else []
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    together = ", all together" if len(first.splits) > 1 else ""
    notes = [f"lengths are {first.unit}, with the number of sentences in brackets; {sets}{together}"]
    for signature in sorted({str(by_length.signatures.get(metric)) for by_length in scored}):
        notes.append(f"{METRIC_NAMES[metric]}: {signature}, {search_in_words(first)}")
    notes += [f"*: {first.longest_in_words}"] if any(bucket.beyond_training for bucket in shown) else []
    few = [bucket.label for bucket, count in shown.items() if count != DASH and bucket.num_sentences < FEW]
    notes += [f"fewer than {FEW} sentences, which say little: {', '.join(few)}"] if few else []
    headings: dict[Key, str] = {
        (metric, *bucket.key): f"{bucket.label}{'*' * bucket.beyond_training} ({count})"
        for bucket, count in shown.items()
    }
    title = f"{METRIC_NAMES[metric]} by {first.axis}, {pooled(first.splits)}"
    yield _grid("lengths", title, group, headings, notes, warnings)


def by_context(group: Group) -> list[ByContext]:
    """What each finished run has of the group's split, or of the first one that any run was scored on so."""
    every = [by_context for run in group.finished for by_context in run.by_context]
    shown = min((by_context.split for by_context in every), key=lambda split: split != group.split, default="")
    return [by_context for by_context in every if by_context.split == shown]


def context_lengths(scored: Sequence[ByContext]) -> list[tuple[str, int]]:
    return sorted({(score.windows, score.length) for context in scored for score in context.scores})


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length, that of changes, and the table by position; none if no finished run was scored so."""
    if not (scored := by_context(group)):
        return
    first, split, baseline = scored[0], scored[0].split, group.baseline
    # 1. Notes.
    same = f"every length is scored on the same {first.num_bytes:,} bytes of "
    same += f"{counted(first.num_documents, BITS_PER_BYTE)} of {first.test_set}"
    notes = [f"{same}; trained at {first.training_length:,} tokens; less is better"]
    how = "on different bytes, with other longest windows, or trained at different lengths"
    warnings = [f"not comparable: the rows were scored {how}"] if len({*map(how_scored_by_context, scored)}) > 1 else []
    strides = sorted({context.stride for context in scored if context.stride is not None})
    every = " or ".join(f"{stride:,}" for stride in strides)
    notes += [f"sliding: a window every {every} tokens, of which only the last {every} are scored"] if strides else []
    of_strides = ["not comparable: sliding windows of different strides"] if len(strides) > 1 else []
    # 2. By length. A page shows at once the length of training, the first of at least four times that, and the longest.
    lengths = sorted({length for _, length in context_lengths(scored)})
    least = {factor * context.training_length for context in scored for factor in (1, 4)}
    telling = {lengths[-1], *(next((length for length in lengths if length >= factor), 0) for factor in least)}
    headings: dict[Key, str] = {
        (split, windows, length): f"{length:,}" + ", sliding" * (windows == "sliding")
        for windows, length in context_lengths(scored)
    }
    folded = {key for key in headings if key[2] not in telling}
    unlike = [*of_strides, *warnings]
    yield _grid("contexts", f"{CONTEXTS}, {split}", group, headings, notes, unlike, folded)
    if baseline.records and len(group.variants) > 1:
        how = f"change from {baseline.label}, below zero is better; none of or from a row that is worse than the "
        title = f"{CONTEXTS}: change from {baseline.label}, {split}"
        below = [*notes, f"{how}unigram entropy of the corpus"]
        yield _grid("context_changes", title, group, headings, below, unlike, folded, changes=True)
    yield from _evaluation_grid(group, scored, notes[1:], of_strides)
    # 3. By position.
    places = {place.last: place.first for context in scored for place in context.by_position}
    positions: dict[Key, str] = {
        (split, "position", last): "–".join(f"{n:,}" for n in dict.fromkeys((places[last], last)))
        for last in sorted(places)
    }
    title = f"Bits per byte by position in windows of {lengths[-1]:,} side by side, {split}"
    counts = " or ".join(f"{count:,}" for count in sorted({context.num_tokens // lengths[-1] for context in scored}))
    few = f"of {counts} windows, so that a position by itself is {counts} tokens, the same for all seeds: the "
    few += "intervals do not show how much other tokens would differ"
    yield _grid("by_position", title, group, positions, [few], warnings)


def _evaluation_grid(
    group: Group, scored: Sequence[ByContext], notes: Sequence[str], warnings: Sequence[str]
) -> Iterator[Grid]:
    """How each run's scores change with the length of separate and of sliding windows beyond the training length, and
    what of it depends on the kind; nothing if there are no two such lengths of both.
    """
    least, split = max(max(context.training_length, context.stride or 0) for context in scored), scored[0].split
    both = set.intersection(*({n for kind, n in context_lengths(scored) if kind == windows} for windows in WINDOWS))
    longer = sorted(length for length in both if length > least)
    if len(longer) < 2:
        return
    ends = longer[0], longer[-1]

    def change(kinds: Sequence[str], variant: Variant) -> Cell:
        """Of the first kind of windows, less that of the second if there is one."""
        keys = [(split, windows, length) for windows in kinds for length in ends]
        if lacking := [figure for key in keys if (figure := variant.measured(key, ABSENT)).value is None]:
            return Cell(lacking[0])
        scores = [variant.scores[key] for key in keys]
        signs = (-1, 1, 1, -1)
        changes = [
            sum(sign * of_key[seed].value for sign, of_key in zip(signs, scores, strict=False))
            for seed in sorted(set.intersection(*map(set, scores)))
        ]
        return marked(mean(changes) if changes else missing(ABSENT), len(variant.finished))

    columns = [*_ROW]
    for kinds in (WINDOWS[:1], WINDOWS[1:], WINDOWS):
        key, heading = "_less_".join(kinds), " less ".join(kinds)
        columns.append(Column(key, heading, partial(change, kinds), group.kind.digits, signed=True))
    title = f"Change of bits per byte from {ends[0]:,} to {ends[1]:,} tokens of context by evaluation, {split}"
    below = "the first tokens of a separate window have short contexts, and longer windows have fewer of them; below "
    below += "zero: fewer bits with longer contexts, or in separate than in sliding windows; run by run"
    notes = (below, *notes)
    about = (title, tuple(columns), group.variants, group.heading, tuple(notes), tuple(warnings), group.synthetic)
    yield Grid("by_evaluation", *about)

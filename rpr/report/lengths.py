"""Scores by length of the source and, of language models, by length of the context and position in it: tables, a plot.

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
from rpr.tables.grid import DASH, Cell, Column, Grid, Note, marked

WINDOWS = ("separate", "sliding")
CONTEXTS = "Bits per byte by length of the context"
ABSENT = "not scored at this length"
UNIGRAM = "unigram entropy of the corpus"
FEW = 10  # buckets with fewer sentences are flagged
_ROW = (
    Column("position", "position", lambda variant: variant.label, label=True),
    Column("n", "n", lambda variant: str(len(variant.finished))),
)


def buckets(group: Group) -> dict[LengthBucket, str]:
    """Every bucket of the finished runs, the shortest first, with its number of sentences: a dash if they differ."""
    by_key: dict[tuple[int, int], list[LengthBucket]] = {}
    for bucket in (bucket for by_length in _scored(group) for bucket in by_length.buckets):
        by_key.setdefault(bucket.key, []).append(bucket)
    counts = {key: {bucket.num_sentences for bucket in alike} for key, alike in by_key.items()}
    return {by_key[key][-1]: f"{count:,}" if not more else DASH for key, (count, *more) in sorted(counts.items())}


def length_grid(group: Group) -> Iterator[Grid]:
    """The group's metric by length; nothing if no finished run has such scores."""
    scored, shown, metric = _scored(group), buckets(group), group.metric
    if not any(variant.measurements.get((metric, *bucket.key)) for variant in group.variants for bucket in shown):
        return
    headings: dict[Key, str] = {
        (metric, *bucket.key): f"{bucket.label}{'*' * bucket.beyond_training} ({count})"
        for bucket, count in shown.items()
    }
    title = f"{METRIC_NAMES[metric]} by {scored[0].axis}, {pooled(scored[0].splits)}"
    yield _grid("lengths", title, group, headings, tuple(_notes(shown, scored, metric)))


def _grid(
    name: str,
    title: str,
    group: Group,
    headings: Mapping[Key, str],
    notes: tuple[Note, ...],
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

    shown = [*_ROW]
    for key, heading in headings.items():
        column = f"length_{key[1]}_{key[2] or 'up'}" if isinstance(key[1], int) else f"{key[1]}_{key[2]}"
        priority = 3 if key in folded else 0
        shown.append(Column(column, heading, partial(read, key=key), group.digits, signed=changes, priority=priority))
    rows = [variant for variant in group.variants if not (changes and variant is group.baseline)]
    rows += [never_run(UNIGRAM)] if group.unigram is not None and name == "contexts" else []
    grid = Grid(name, title, tuple(shown), tuple(rows), group.heading, notes, group.synthetic)
    return grid.without_empty_columns() if changes else grid


def _scored(group: Group) -> list[ByLength]:
    return [run.by_length for run in group.finished if run.by_length is not None]


def _notes(shown: Mapping[LengthBucket, str], scored: Sequence[ByLength], metric: str) -> Iterator[Note]:
    first = scored[0]
    if len({how_scored_by_length(by_length, metric) for by_length in scored}) > 1 or DASH in shown.values():
        yield Note("not comparable: the rows differ in how or on which sets they were scored", "warning")
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    together = ", all together" if len(first.splits) > 1 else ""
    yield Note(f"lengths are {first.unit}, with the number of sentences in brackets; {sets}{together}")
    for signature in sorted({str(by_length.signatures.get(metric)) for by_length in scored}):
        yield Note(f"{METRIC_NAMES[metric]}: {signature}, {search_in_words(first)}")
    if any(bucket.beyond_training for bucket in shown):
        yield Note(f"*: {first.longest_in_words}")
    few = [bucket.label for bucket, count in shown.items() if count != DASH and bucket.num_sentences < FEW]
    if few:
        yield Note(f"fewer than {FEW} sentences, which say little: {', '.join(few)}")


def context_grids(group: Group) -> Iterator[Grid]:
    """The table by length, its paired differences, and the table by position; none if no finished run was scored so."""
    scored, baseline = by_context(group), group.baseline
    if not scored:
        return
    (about, *warnings), split = _context_notes(scored), scored[0].split
    notes = (about, *_sliding_notes(scored), *warnings)
    lengths: dict[Key, str] = {
        (split, windows, length): f"{length:,}" + ", sliding" * (windows == "sliding")
        for windows, length in context_lengths(scored)
    }
    folded = {key for key in lengths if key[2] not in _telling(scored)}
    yield _grid("contexts", f"{CONTEXTS}, {split}", group, lengths, notes, folded)
    if baseline.records and len(group.variants) > 1:
        how = f"change from {baseline.label}, below zero is better; none of or from a row that is worse than the "
        how += "unigram entropy of the corpus"
        title = f"{CONTEXTS}: change from {baseline.label}, {split}"
        yield _grid("context_changes", title, group, lengths, (*notes, Note(how)), folded, changes=True)
    yield from _evaluation_grid(group, scored)
    longest = max(score.length for by_context in scored for score in by_context.scores)
    places = {place.last: place.first for by_context in scored for place in by_context.by_position}
    positions: dict[Key, str] = {
        (split, "position", last): "–".join(f"{n:,}" for n in dict.fromkeys((places[last], last)))
        for last in sorted(places)
    }
    title = f"Bits per byte by position in windows of {longest:,} side by side, {split}"
    counts = " or ".join(f"{count:,}" for count in sorted({each.num_tokens // longest for each in scored}))
    few = f"of {counts} windows, so that a position by itself is {counts} tokens, the same for all seeds: the "
    few += "intervals do not show how much other tokens would differ"
    yield _grid("by_position", title, group, positions, (Note(few), *warnings))


def _evaluation_grid(group: Group, scored: Sequence[ByContext]) -> Iterator[Grid]:
    """How each run's scores change with the length of separate and of sliding windows beyond the training length, and
    what of it depends on the kind; nothing if there are no two such lengths of both.
    """
    least, split = max(max(each.training_length, each.stride or 0) for each in scored), scored[0].split
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
        of_keys = [variant.scores[key] for key in keys]
        seeds = sorted(set.intersection(*map(set, of_keys)))
        of_kinds = [
            [far[seed].value - near[seed].value for seed in seeds]
            for near, far in zip(of_keys[::2], of_keys[1::2], strict=True)
        ]
        changes = [first - sum(second) for first, *second in zip(*of_kinds, strict=True)]
        return marked(mean(changes) if changes else missing(ABSENT), len(variant.finished))

    columns = [*_ROW]
    for kinds in (WINDOWS[:1], WINDOWS[1:], WINDOWS):
        key, heading = "_less_".join(kinds), " less ".join(kinds)
        columns.append(Column(key, heading, partial(change, kinds), group.digits, signed=True))
    title = f"Change of bits per byte from {ends[0]:,} to {ends[1]:,} tokens of context by evaluation, {split}"
    about = "the first tokens of a separate window have short contexts, and longer windows have fewer of them; below "
    about += "zero: fewer bits with longer contexts, or in separate than in sliding windows; run by run"
    notes = (Note(about), *_sliding_notes(scored))
    yield Grid("by_evaluation", title, tuple(columns), group.variants, group.heading, notes, group.synthetic)


def by_context(group: Group) -> list[ByContext]:
    """What each finished run has of the group's split, or of the first one that any run was scored on so."""
    every = [by_context for run in group.finished for by_context in run.by_context]
    shown = min((by_context.split for by_context in every), key=lambda split: split != group.split, default="")
    return [by_context for by_context in every if by_context.split == shown]


def context_lengths(scored: Sequence[ByContext]) -> list[tuple[str, int]]:
    return sorted({(score.windows, score.length) for context in scored for score in context.scores})


def _telling(scored: Sequence[ByContext]) -> set[int]:
    """The lengths that a page shows at once: that of training, the first of at least four times that, the longest."""
    lengths = sorted({length for _, length in context_lengths(scored)})
    trained = [context.training_length for context in scored]
    longer = [next((length for length in lengths if length >= factor * of), 0) for of in trained for factor in (1, 4)]
    return {*longer, lengths[-1]}


def _context_notes(scored: Sequence[ByContext]) -> Iterator[Note]:
    first = scored[0]
    documents = f"{counted(first.num_documents, BITS_PER_BYTE)} of {first.test_set}"
    same = f"every length is scored on the same {first.num_bytes:,} bytes of {documents}"
    yield Note(f"{same}; trained at {first.training_length:,} tokens; less is better")
    if len(set(map(how_scored_by_context, scored))) > 1:
        how = "on different bytes, with other longest windows, or trained at different lengths"
        yield Note(f"not comparable: the rows were scored {how}", "warning")


def _sliding_notes(scored: Sequence[ByContext]) -> Iterator[Note]:
    strides = sorted({by_context.stride for by_context in scored if by_context.stride is not None})
    if strides:
        every = " or ".join(f"{stride:,}" for stride in strides)
        yield Note(f"sliding: a window every {every} tokens, of which only the last {every} are scored")
    if len(strides) > 1:
        yield Note("not comparable: sliding windows of different strides", "warning")

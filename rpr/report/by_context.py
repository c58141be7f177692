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


def _grid(
    group: Group, name: str, title: str, columns: Sequence[Column], notes: Sequence[str], warnings: Sequence[str]
) -> Grid:
    """A row for each variant, by context also the unigram entropy, and among changes not the baseline."""
    changes = name == "context_changes"
    rows = [variant for variant in group.variants if not (changes and variant is group.baseline)]
    rows += [never_run(UNIGRAM)] if group.unigram is not None and name == "contexts" else []
    labels = (
        Column("position", "position", lambda variant: variant.label, label=True),
        Column("n", "n", lambda variant: str(len(variant.finished))),
    )
    about = (tuple(rows), group.heading, tuple(notes), tuple(warnings), group.synthetic)
    grid = Grid(name, title, (*labels, *columns), *about)
    return grid.without_empty_columns() if changes else grid


def _columns(
    group: Group, headings: Mapping[Key, str], folded: Collection[Key] = (), *, changes: bool = False
) -> Iterator[Column]:
    """A column for each key of scores or, with `changes`, of changes; only report.json has those `folded`."""

    def read(key: Key, variant: Variant) -> Cell:
        if not variant.records:
            return Cell(single(group.unigram or 0.0))
        figure = group.change(variant, key, ABSENT) if changes else variant.measured(key, ABSENT)
        return marked(figure, len(variant.finished))

    for key, heading in headings.items():
        name = f"length_{key[1]}_{key[2] or 'up'}" if isinstance(key[1], int) else f"{key[1]}_{key[2]}"
        priority = 3 if key in folded else 0
        yield Column(name, heading, partial(read, key), group.kind.digits, signed=changes, priority=priority)


def buckets(group: Group) -> dict[LengthBucket, str]:
    """Every bucket of the finished runs, the shortest first, with its number of sentences: a dash if they differ."""
    by_key: dict[tuple[int, int], list[LengthBucket]] = {}
    for bucket in (bucket for run in group.finished if run.by_length for bucket in run.by_length.buckets):
        by_key.setdefault(bucket.key, []).append(bucket)
    counts = {key: {bucket.num_sentences for bucket in alike} for key, alike in by_key.items()}
    return {by_key[key][-1]: f"{count:,}" if not more else DASH for key, (count, *more) in sorted(counts.items())}


def length_grid(group: Group) -> Iterator[Grid]:
    """The group's metric by length; nothing if no finished run has such scores."""
    shown, metric = buckets(group), group.kind.metric
    scored = [run.by_length for run in group.finished if run.by_length is not None]
    if not any(variant.measurements.get((metric, *bucket.key)) for variant in group.variants for bucket in shown):
        return
    first = scored[0]
    # 1. What was scored, and how.
    sets = ", ".join(f"{split} ({name})" for split, name in zip(first.splits, first.test_sets, strict=True))
    notes = [f"lengths are {first.unit}, with the number of sentences in brackets; {sets}"]
    for signature in sorted({str(by_length.signatures.get(metric)) for by_length in scored}):
        notes.append(f"{METRIC_NAMES[metric]}: {signature}, {search_in_words(first)}")
    notes += [f"*: {first.longest_in_words}"] if any(bucket.beyond_training for bucket in shown) else []
    unlike = len({how_scored_by_length(by_length, metric) for by_length in scored}) > 1 or DASH in shown.values()
    warnings = ["not comparable: the rows differ in how or on which sets they were scored"] if unlike else []
    # 2. The table.
    headings: dict[Key, str] = {
        (metric, *bucket.key): f"{bucket.label}{'*' * bucket.beyond_training} ({count})"
        for bucket, count in shown.items()
    }
    title = f"{METRIC_NAMES[metric]} by {first.axis}, {pooled(first.splits)}"
    yield _grid(group, "lengths", title, [*_columns(group, headings)], notes, warnings)


def by_context(group: Group) -> list[ByContext]:
    """What each finished run has of the group's split, or of the first one that any run was scored on so."""
    every = [by_context for run in group.finished for by_context in run.by_context]
    shown = min((by_context.split for by_context in every), key=lambda split: split != group.split, default="")
    return [by_context for by_context in every if by_context.split == shown]


def context_lengths(scored: Sequence[ByContext]) -> list[tuple[str, int]]:
    return sorted({(score.windows, score.length) for context in scored for score in context.scores})


def context_grids(group: Group) -> Iterator[Grid]:
    """The tables by length, of its changes, by evaluation and by position; none if no finished run was scored so."""
    if not (scored := by_context(group)):
        return
    first, split, baseline, windows = scored[0], scored[0].split, group.baseline, context_lengths(scored)
    lengths = sorted({length for _, length in windows})
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
    least = {factor * context.training_length for context in scored for factor in (1, 4)}
    telling = {lengths[-1], *(next((length for length in lengths if length >= factor), 0) for factor in least)}
    headings: dict[Key, str] = {(split, *of): f"{of[1]:,}" + ", sliding" * (of[0] == "sliding") for of in windows}
    about = (headings, {key for key in headings if key[2] not in telling})
    unlike = [*of_strides, *warnings]
    yield _grid(group, "contexts", f"{CONTEXTS}, {split}", [*_columns(group, *about)], notes, unlike)
    if baseline.records and len(group.variants) > 1:
        below = f"change from {baseline.label}, below zero is better; none of or from a row that is worse than the "
        title = f"{CONTEXTS}: change from {baseline.label}, {split}"
        columns = [*_columns(group, *about, changes=True)]
        yield _grid(group, "context_changes", title, columns, [*notes, below + UNIGRAM], unlike)
    # 3. By evaluation, beyond the training length.
    longest = max(max(context.training_length, context.stride or 0) for context in scored)
    longer = [length for length in lengths if length > longest and all((kind, length) in windows for kind in WINDOWS)]
    if len(longer) > 1:
        ends = longer[0], longer[-1]
        title = f"Change of bits per byte from {ends[0]:,} to {ends[1]:,} tokens of context by evaluation, {split}"
        more = "the first tokens of a separate window have short contexts, and longer windows have fewer of them; "
        more += "below zero: fewer bits with longer contexts, or in separate than in sliding windows; run by run"
        columns = [*_changes_with_length(group, split, ends)]
        yield _grid(group, "by_evaluation", title, columns, [more, *notes[1:]], of_strides)
    # 4. By position.
    places = {place.last: place.first for context in scored for place in context.by_position}
    positions: dict[Key, str] = {
        (split, "position", last): "–".join(f"{n:,}" for n in dict.fromkeys((places[last], last)))
        for last in sorted(places)
    }
    title = f"Bits per byte by position in windows of {lengths[-1]:,} side by side, {split}"
    counts = " or ".join(f"{count:,}" for count in sorted({context.num_tokens // lengths[-1] for context in scored}))
    few = f"of {counts} windows, so that a position by itself is {counts} tokens, the same for all seeds: the "
    few += "intervals do not show how much other tokens would differ"
    yield _grid(group, "by_position", title, [*_columns(group, positions)], [few], warnings)


def _changes_with_length(group: Group, split: str, ends: tuple[int, int]) -> Iterator[Column]:
    """How each run's scores change between two lengths in separate windows, in sliding ones, and the first less the
    second.
    """

    def change(kinds: Sequence[str], variant: Variant) -> Cell:
        keys = [(split, windows, length) for windows in kinds for length in ends]
        if lacking := [figure for key in keys if (figure := variant.measured(key, ABSENT)).value is None]:
            return Cell(lacking[0])
        by_seed = [variant.scores[key] for key in keys]
        changes = [
            sum(sign * scores[seed].value for sign, scores in zip((-1, 1, 1, -1), by_seed, strict=False))
            for seed in sorted(set.intersection(*map(set, by_seed)))
        ]
        return marked(mean(changes) if changes else missing(ABSENT), len(variant.finished))

    for kinds in (WINDOWS[:1], WINDOWS[1:], WINDOWS):
        read = partial(change, kinds)
        yield Column("_less_".join(kinds), " less ".join(kinds), read, group.kind.digits, signed=True)

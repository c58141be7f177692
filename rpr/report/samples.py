"""Which variants and sentences are shown where there are too many, and what each variant made of the sentences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rpr.errors import RprError
from rpr.records.files import Texts, has_translations, read_translations
from rpr.records.record import Record, run_file
from rpr.report.groups import Group, Variant

SAMPLES_PER_SPLIT, SAMPLES_PER_OWN_SPLIT = {"test": 3, "long": 2}, 2
MOST_VARIANTS = 12  # with a line in a plot, or with translations

PathOf = Callable[[Record], Path]  # of a run's record


def lines_of(group: Group) -> tuple[list[Variant], str]:
    """The variants that get a line in plots with one line per variant, and a line on the others."""
    return selected(group, group.variants, MOST_VARIANTS)


def selected(group: Group, variants: Sequence[Variant], most: int) -> tuple[list[Variant], str]:
    """At most `most` of the variants, in their order, and a remark if others are left out.

    The baseline and the paper's own row are always among them; then come the best and the worst, the best of each kind,
    and the others.
    """
    if len(variants) <= most:
        return list(variants), ""
    scores = {variant: score for variant in variants if (score := variant.score(group.split).value) is not None}
    best = sorted(scores, key=lambda variant: group.kind.best_first(scores[variant]))
    pinned = [variant for variant in (group.baseline, group.papers_relative) if variant in variants]
    of_kinds = {variant.position.kind: variant for variant in reversed(best)}.values()  # the best of each
    order = dict.fromkeys([*pinned, *best[:1], *best[-1:], *(row for row in best if row in of_kinds), *variants])
    shown = [*order][:most]
    which = "baseline, the paper's, best, worst, then the best of each kind"
    return [row for row in variants if row in shown], f"{most} of {len(variants):,} rows are drawn: {which}"


class Sample(NamedTuple):
    """One sentence of a test set with each variant's translation as (label, text)."""

    split: str
    number: int
    source: str
    reference: str
    hypotheses: tuple[tuple[str, str], ...]


def samples(group: Group, path_of: PathOf) -> tuple[Sample, ...]:
    """Evenly spaced lines of each test split, for at most MOST_VARIANTS variants that have translations of its first
    one's sources.
    """
    sentences: list[Sample] = []
    for split, count in (SAMPLES_PER_SPLIT | dict.fromkeys(group.own_splits, SAMPLES_PER_OWN_SPLIT)).items():
        every = {variant.label: texts_of(variant.finished, split, path_of) for variant in lines_of(group)[0]}
        read = {label: texts for label, texts in every.items() if texts is not None}
        sources, references, _ = next(iter(read.values()), ([], [], []))
        for line in sorted({(2 * at + 1) * len(sources) // (2 * count) for at in range(count)} if sources else ()):
            made = tuple((label, made[line]) for label, (other, _, made) in read.items() if other == sources)
            sentences.append(Sample(split, line + 1, sources[line], references[line], made))
    return tuple(sentences)


def own_file(path: Path) -> bool:
    """Whether it is a regular file: a link in an untrusted run directory could expose any file on the page."""
    return path.is_file() and not path.is_symlink()


def texts_of(runs: Sequence[Record], split: str, path_of: PathOf) -> Texts | None:
    """The texts of the first run that has all three; None without one, or if they cannot be read."""
    for path in map(path_of, runs):
        linked = any(run_file(path, f"{split}.{kind}.txt").is_symlink() for kind in Texts._fields)
        if not linked and has_translations(path, split):
            try:
                return read_translations(path, split)
            except RprError:
                return None
    return None

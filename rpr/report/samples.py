"""Which variants and sentences are shown where there are too many, and what each variant made of the sentences."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpr.records.record import Record
from rpr.report.groups import Group, Variant

SAMPLES_PER_SPLIT, SAMPLES_PER_OWN_SPLIT = {"test": 3, "long": 2}, 2
MOST_VARIANTS = 12  # with a line in a plot, or with translations

FileOf = Callable[[Record, str], Path]  # of a run, the path of the file of a name


def lines_of(group: Group) -> tuple[list[Variant], str]:
    """The variants that get a line in plots with one line per variant, and a line on the others."""
    return selected(group, group.variants, MOST_VARIANTS, "rows are drawn")


def selected(group: Group, items: Sequence[Any], most: int, what: str) -> tuple[list[Any], str]:
    """At most `most` variants, or tuples that begin with one, in their order, and a remark if others are left out.

    The baseline and the paper's own row are always among them; then come the best and the worst, the best of each kind,
    and the others.
    """
    if len(items) <= most:
        return list(items), ""
    variants = [item[0] if isinstance(item, tuple) else item for item in items]
    scores = {at: group.score(variant, group.split).value for at, variant in enumerate(variants)}
    known = {at: score for at, score in scores.items() if score is not None}
    best = sorted(known, key=lambda at: group.kind.best_first(known[at]))
    pinned = [at for at, variant in enumerate(variants) if variant in (group.baseline, group.papers_relative)]
    of_kinds = {variants[at].position.kind: at for at in reversed(best)}.values()  # the best place of each
    order = dict.fromkeys([*pinned, *best[:1], *best[-1:], *(at for at in best if at in of_kinds), *scores])
    shown = [items[at] for at in sorted([*order][:most])]
    return shown, f"{most} of {len(items):,} {what}: baseline, the paper's, best, worst, then the best of each kind"


class Sample(NamedTuple):
    """One sentence of a test set with each variant's translation as (label, text)."""

    split: str
    number: int
    source: str
    reference: str
    hypotheses: tuple[tuple[str, str], ...]


def samples(group: Group, file_of: FileOf) -> tuple[Sample, ...]:
    """Evenly spaced lines of each test split, for at most MOST_VARIANTS variants that have translations of its first
    one's sources.
    """
    sentences: list[Sample] = []
    for split, count in (SAMPLES_PER_SPLIT | dict.fromkeys(group.own_splits, SAMPLES_PER_OWN_SPLIT)).items():
        every = {variant.label: texts_of(variant.finished, split, file_of) for variant in lines_of(group)[0]}
        read = {label: texts for label, texts in every.items() if texts is not None}
        sources, references, _ = next(iter(read.values()), ([], [], []))
        for line in sorted({(2 * at + 1) * len(sources) // (2 * count) for at in range(count)} if sources else ()):
            made = tuple((label, made[line]) for label, (other, _, made) in read.items() if other == sources)
            sentences.append(Sample(split, line + 1, sources[line], references[line], made))
    return tuple(sentences)


def own_file(path: Path) -> bool:
    """Whether it is a regular file: a link in an untrusted run directory could expose any file on the page."""
    return path.is_file() and not path.is_symlink()


def texts_of(runs: Sequence[Record], split: str, file_of: FileOf) -> tuple[list[str], ...] | None:
    """Sources, references and hypotheses of the first run that has all three; None without one, or if their numbers of
    lines differ.
    """
    names = [f"{split}.{name}.txt" for name in ("sources", "references", "hypotheses")]
    of_runs = ([file_of(run, name) for name in names] for run in runs)
    files = next((paths for paths in of_runs if all(map(own_file, paths))), [])
    # Split at newlines only: splitlines() would also split at unusual separators inside real sentences.
    whole = (path.read_text(encoding="utf-8", errors="replace") for path in files)
    texts = tuple(text.removesuffix("\n").split("\n") for text in whole)
    return texts if len({*map(len, texts)}) == 1 else None

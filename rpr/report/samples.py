"""Which variants and sentences are shown where there are too many, and what each variant made of the sentences."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from rpr.records.record import Record
from rpr.records.translations import evenly_spaced
from rpr.report.groups import Group, Variant

SAMPLES_PER_SPLIT, SAMPLES_PER_OWN_SPLIT = {"test": 3, "long": 2}, 2
MOST_VARIANTS = 12  # with a line in a plot, or with translations

FileOf = Callable[[Record, str], Path]  # of a run, the path of the file of a name


def lines_of(group: Group) -> tuple[list[Variant], str]:
    """The variants that get a line in plots with one line per variant, and a line on the others."""
    return sampled(group.variants, MOST_VARIANTS, "variants have a line")


def sampled(items: Sequence[Any], most: int, what: str) -> tuple[list[Any], str]:
    """At most so many items, as `sample_evenly` has them, and a line that says that others are left out, if any are."""
    shown, remark = sample_evenly(items, most), f"{what}: of each kind, evenly spaced, not chosen by their quality"
    return shown, f"{len(shown)} of {len(items):,} {remark}" if len(shown) < len(items) else ""


def sample_evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` variants, or tuples that begin with one: of each kind evenly spaced ones, with the first and last.

    The choice never depends on results. Kinds get places in turn, so a kind with many items leaves room for others.
    """
    if len(items) <= most:
        return list(items)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        variant = item[0] if isinstance(item, tuple) else item
        places.setdefault(variant.position.kind, []).append(place)
    turns = zip_longest(*([kind] * len(of_kind) for kind, of_kind in places.items()))
    room = Counter(islice((kind for turn in turns for kind in turn if kind is not None), most))
    shown = (place for kind, of_kind in places.items() for place in evenly_spaced(of_kind, room[kind]))
    return [items[place] for place in sorted(shown)]


class Sample(NamedTuple):
    """One sentence of a test set with each variant's translation as (label, text)."""

    split: str
    number: int
    source: str
    reference: str
    hypotheses: tuple[tuple[str, str], ...]


class Samples(NamedTuple):
    """Sample sentences of a group; the remarks are about variants that are not shown."""

    sentences: tuple[Sample, ...] = ()
    remarks: tuple[str, ...] = ()


def samples(group: Group, file_of: FileOf) -> Samples:
    """Evenly spaced lines of each test split, for at most MOST_VARIANTS variants that have translations."""
    sentences: list[Sample] = []
    remarks: dict[str, None] = {}
    for split, count in (SAMPLES_PER_SPLIT | dict.fromkeys(group.own_splits, SAMPLES_PER_OWN_SPLIT)).items():
        having = [(one, run) for one in group.variants if (run := _translated(one, split, file_of)) is not None]
        shown, remark = sampled(having, MOST_VARIANTS, "variants are shown")
        read = [(variant, texts) for variant, run in shown if (texts := _texts(run, split, file_of)) is not None]
        if not read:
            continue
        sources, references, _ = read[0][1]
        # Translations of another source text (the corpus changed between runs) cannot be shown next to these.
        alike = {variant.label: made for variant, (other, _, made) in read if other == sources}
        for line in sorted({(2 * index + 1) * len(sources) // (2 * count) for index in range(count)}):
            hypotheses = tuple((label, made[line]) for label, made in alike.items())
            sentences.append(Sample(split, line + 1, sources[line], references[line], hypotheses))
        remarks[remark] = None
        if others := [variant.label for variant, _ in shown if variant.label not in alike]:
            remarks[f"{split}: not shown, as their files do not fit the others': {'; '.join(others)}"] = None
    return Samples(tuple(sentences), tuple(remark for remark in remarks if remark))


def own_file(path: Path) -> bool:
    """Whether it is a regular file: a link in an untrusted run directory could expose any file on the page."""
    return path.is_file() and not path.is_symlink()


def _files(run: Record, split: str, file_of: FileOf) -> list[Path]:
    return [file_of(run, f"{split}.{name}.txt") for name in ("sources", "references", "hypotheses")]


def _translated(variant: Variant, split: str, file_of: FileOf) -> Record | None:
    """The variant's first finished run with all three files."""
    return next((run for run in variant.finished if all(map(own_file, _files(run, split, file_of)))), None)


def _texts(run: Record, split: str, file_of: FileOf) -> tuple[list[str], ...] | None:
    """Sources, references and hypotheses; None if their numbers of lines differ."""
    # Split at newlines only: splitlines() would also split at unusual separators inside real sentences.
    whole = (path.read_text(encoding="utf-8", errors="replace") for path in _files(run, split, file_of))
    texts = tuple(text.removesuffix("\n").split("\n") for text in whole)
    return texts if len(set(map(len, texts))) == 1 else None

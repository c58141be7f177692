"""The translations of a run's test sets: text files for people, and a compressed copy that is kept with its record.

A record in a flat folder (sweeps/results/) has the copy as NAME.hypotheses.json.xz. Sources and references are the same
for all runs on a corpus: they are in texts-HASH.json.xz, once per folder.
"""

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.records.record import RECORD_NAME, run_file

ARCHIVE_NAME = "hypotheses.json.xz"
_T = TypeVar("_T")


class Texts(NamedTuple):
    """A line for each sentence of a test set."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]


def write_split(run_dir: Path, split: str, texts: Texts) -> None:
    """The text files of a split: SPLIT.sources.txt and so on."""
    for kind, lines in texts._asdict().items():
        replace_file(run_dir / f"{split}.{kind}.txt", "".join(line + "\n" for line in lines))


def write_archive(run_dir: Path, by_split: Mapping[str, Texts]) -> None:
    """The compressed copy of all splits."""
    shared = _packed({split: [texts.sources, texts.references] for split, texts in by_split.items()})
    name = f"texts-{hashlib.sha256(shared).hexdigest()[:12]}.json.xz"
    replace_file(run_dir / name, lzma.compress(shared))
    own = {"texts": name, "hypotheses": {split: texts.hypotheses for split, texts in by_split.items()}}
    replace_file(run_dir / ARCHIVE_NAME, lzma.compress(_packed(own)))


def has_translations(record: Path, split: str) -> bool:
    """Whether the run of a record file has the translations of a split, as text files or in the copy."""
    return all(file.is_file() for file in _text_files(record, split)) or split in _archived(record)


def read_translations(record: Path, split: str) -> Texts:
    """The texts of a split; raises DataError if they are missing, unreadable, or of different numbers of lines."""
    files = _text_files(record, split)
    if all(file.is_file() for file in files):
        # Split only at newlines: splitlines() also splits at unusual separators that occur in real sentences.
        sources, references, hypotheses = (_text(file).removesuffix("\n").split("\n") for file in files)
        texts = Texts(sources, references, hypotheses)
    elif (archived := _archived(record).get(split)) is not None:
        texts = archived
    else:
        raise DataError(
            f"{_shown(record)}: has no {split}.hypotheses.txt with its sources and references; they are written when a "
            "run is scored: omit it, choose other splits=[...], or move its folder away and train it again"
        )
    if len(texts.hypotheses) != len(texts.references):
        raise DataError(
            f"{_shown(record)}: {len(texts.hypotheses)} hypotheses for {len(texts.references)} references of {split}; "
            "the files were changed: omit it, or move its folder away and train it again"
        )
    return texts


def evenly_spaced(items: Sequence[_T], at_most: int) -> list[_T]:
    """At most so many of the items, in their order, including the first and (of several) the last."""
    if len(items) <= at_most or at_most < 2:
        return list(items[:at_most])
    return [items[round(number * (len(items) - 1) / (at_most - 1))] for number in range(at_most)]


def _packed(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode()


def _text_files(record: Path, split: str) -> list[Path]:
    return [run_file(record, f"{split}.{kind}.txt") for kind in Texts._fields]


def _shown(record: Path) -> Path:
    return record.parent if record.name == RECORD_NAME else record


def _archived(record: Path) -> dict[str, Texts]:
    """The splits of the compressed copy; empty without one."""
    path = run_file(record, ARCHIVE_NAME)
    if not path.is_file():
        return {}
    own = _unpacked(path)
    shared = _unpacked(path.with_name(Path(str(own.get("texts"))).name))
    try:
        return {split: Texts(shared[split][0], shared[split][1], made) for split, made in own["hypotheses"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: does not fit its {own.get('texts')} ({error}); restore both, or omit the run"
        ) from None


def _unpacked(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); restore it, or omit the run") from None
    if not isinstance(document, dict):
        raise DataError(f"{path}: is not a copy of translations; restore it, or omit the run")
    return document


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); restore it, or omit the run") from None

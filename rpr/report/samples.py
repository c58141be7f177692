"""Sentences of a test set with what each variant made of them, and where its words differ from the reference's."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from rpr.records.record import Record
from rpr.report.rows import Row, Table
from rpr.report.selection import few, left_out

SAMPLES_PER_SPLIT = {"test": 3, "long": 2}
MOST_VARIANTS = 12  # beside each other; of more, a line says how many are left out
MOST_WORDS = 400  # of a sentence longer than this the words are not compared: it would take long, and none is read

Kind = Literal["same", "added", "moved", "missing"]
FileOf = Callable[[Record, str], Path]


@dataclass(frozen=True)
class Sample:
    """One sentence of a test set with what each variant made of it."""

    split: str
    number: int
    source: str
    reference: str
    hypotheses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Samples:
    """The sentences of a table, and lines about the variants that are not beside them."""

    sentences: tuple[Sample, ...] = ()
    remarks: tuple[str, ...] = ()


def samples(table: Table, file_of: FileOf) -> Samples:
    """Evenly spaced lines of each test split, of at most MOST_VARIANTS variants that have translations.

    Args:
        file_of: the path of a run's file by the file's name.
    """
    sentences: list[Sample] = []
    remarks: dict[str, None] = {}
    for split, count in SAMPLES_PER_SPLIT.items():
        having = [(row, run) for row in table.rows if (run := _translated(row, split, file_of)) is not None]
        shown = few(having, lambda pair: pair[0].position.kind, MOST_VARIANTS)
        read = [(row, texts) for row, run in shown if (texts := _texts(run, split, file_of)) is not None]
        if not read:
            continue
        sources, references, _ = read[0][1]
        # Another source text (a corpus that changed between runs) cannot stand beside this one.
        alike = [(row, hypotheses) for row, (other, _, hypotheses) in read if other == sources]
        for line in sorted({(2 * index + 1) * len(sources) // (2 * count) for index in range(count)}):
            hypotheses = tuple((row.label, texts[line]) for row, texts in alike)
            sentences.append(Sample(split, line + 1, sources[line], references[line], hypotheses))
        remarks[left_out(len(shown), len(having), "variants are shown")] = None
        if other_text := [row.label for row, _ in shown if row not in [mine for mine, _ in alike]]:
            remarks[f"{split}: not shown, as their files do not fit the others': {'; '.join(other_text)}"] = None
    return Samples(tuple(sentences), tuple(remark for remark in remarks if remark))


def _files(run: Record, split: str, file_of: FileOf) -> list[Path]:
    return [file_of(run, f"{split}.{name}.txt") for name in ("sources", "references", "hypotheses")]


def _translated(row: Row, split: str, file_of: FileOf) -> Record | None:
    """The row's first finished run that has all three files."""
    finished = (run for run in row.records if run.status == "finished")
    return next((run for run in finished if all(_own(path) for path in _files(run, split, file_of))), None)


def _own(path: Path) -> bool:
    """A file, and no link: in a run's folder of another person it could lead to any file, which the page would show."""
    return path.is_file() and not path.is_symlink()


def _texts(run: Record, split: str, file_of: FileOf) -> tuple[list[str], list[str], list[str]] | None:
    """Sources, references and hypotheses; None where their numbers of lines differ."""
    # Split at newlines alone: splitlines() would also cut at the odd separators that real sentences contain.
    texts = [
        path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
        for path in _files(run, split, file_of)
    ]
    return (texts[0], texts[1], texts[2]) if len({len(lines) for lines in texts}) == 1 else None


def compared(reference: str, hypothesis: str) -> list[tuple[Kind, str]]:
    """The hypothesis in pieces, and between them what it lacks of the reference.

    "same": where the reference has it; "moved": in the reference too, but at another place; "added": not in the
    reference; "missing": in the reference only. Without the missing pieces the text is the hypothesis.
    """
    wanted, made = _words(reference), _words(hypothesis)
    if max(len(wanted), len(made)) > MOST_WORDS:
        return [("same", hypothesis)]
    matcher = SequenceMatcher(None, [word for word, _ in wanted], [word for word, _ in made], autojunk=False)
    steps = [step for step in matcher.get_opcodes() if step[0] != "equal"]
    absent = Counter(word for _, start, end, _, _ in steps for word, _ in wanted[start:end])
    new = Counter(word for _, _, _, start, end in steps for word, _ in made[start:end])
    elsewhere = absent & new
    leaving, coming = elsewhere.copy(), elsewhere.copy()
    before = hypothesis[: len(hypothesis) - len(hypothesis.lstrip())]
    pieces: list[tuple[Kind, str]] = [("same", before)] if before else []
    for tag, start, end, first, last in matcher.get_opcodes():
        if tag == "equal":
            pieces += [("same", word + space) for word, space in made[first:last]]
            continue
        absent_here = [place for place in range(start, end) if not _taken(leaving, wanted[place][0])]
        pieces += _missing(wanted, absent_here, spaced=not pieces or pieces[-1][1][-1:].isspace())
        pieces += [("moved" if _taken(coming, word) else "added", word + space) for word, space in made[first:last]]
    return _joined(pieces)


def _missing(words: Sequence[tuple[str, str]], places: Sequence[int], *, spaced: bool) -> list[tuple[Kind, str]]:
    """Words of the reference as one piece, apart from what stands before; `spaced`: that ends with a space."""
    text = ""
    for place in places:
        apart = place == 0 or words[place - 1][1]
        text += (" " if apart and (text or not spaced) else "") + words[place][0]
    return [("missing", text + (" " if spaced else ""))] if text else []


def _taken(words: Counter[str], word: str) -> bool:
    if not words[word]:
        return False
    words[word] -= 1
    return True


def _words(text: str) -> list[tuple[str, str]]:
    """Words and punctuation marks, each with the space that follows it."""
    found = []
    for chunk, space in re.findall(r"(\S+)(\s*)", text):
        parts = _parts(chunk)
        found += [(part, "") for part in parts[:-1]] + [(parts[-1], space)]
    return found


def _parts(chunk: str) -> list[str]:
    """Punctuation before and after a word stands alone; so does every character of a script without spaces."""
    start, end = 0, len(chunk)
    while start < end and _alone(chunk[start]):
        start += 1
    while end > start and _alone(chunk[end - 1]):
        end -= 1
    middle = re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|[^\u3040-\u30ff\u3400-\u9fff]+", chunk[start:end])
    return [*chunk[:start], *middle, *chunk[end:]]


def _alone(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def _joined(pieces: Sequence[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Neighbours of one kind are one piece."""
    joined: list[tuple[Kind, str]] = []
    for kind, text in pieces:
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined

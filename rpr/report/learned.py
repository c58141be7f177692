"""Pictures of what the positions of a table's runs learned, where `rpr-cli report run=...` has drawn them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rpr.errors import RecordError
from rpr.io.escape import visible
from rpr.records.record import Record
from rpr.report import drawing
from rpr.report.rows import Row, Table
from rpr.report.selection import few, left_out

PICTURE_NAME = "positions.svg"
MOST_PICTURES = 6  # each is a fifth of a megabyte


@dataclass(frozen=True)
class Learned:
    """The svg element of each variant that has one, and a line about those that are left out."""

    pictures: tuple[tuple[str, str], ...]
    remark: str


def learned(table: Table, file_of: Callable[[Record, str], Path], prefix: str, problems: list[str]) -> Learned | None:
    """One picture a variant, of its first run that has one; None where none has.

    Args:
        file_of: the path of a run's file by the file's name.
        prefix: of the ids in the pictures.
        problems: a line is added for each file that the page cannot take.
    """
    having: dict[str, tuple[Row, Record, Path]] = {}
    for row in table.rows:
        for run in row.records:
            path = file_of(run, PICTURE_NAME)
            if row.label not in having and path.is_file():
                having[row.label] = (row, run, path)
    shown = few([*having.values()], lambda entry: entry[0].position.kind, MOST_PICTURES)
    pictures: list[tuple[str, str]] = []
    for row, run, path in shown:
        label = f"{row.label}: {run.name}"
        try:
            svg = path.read_text(encoding="utf-8", errors="replace")
            number = len(pictures) + 1
            pictures.append((label, drawing.inlined(svg, f"{prefix}-{number}", f"what positions learned, {label}")))
        except RecordError as error:
            problems.append(visible(f"{path}: {error}; write it again with `rpr-cli report run=...`"))
    if not pictures:
        return None
    return Learned(tuple(pictures), left_out(len(shown), len(having), "variants with a picture are shown"))

"""What several commands need to print their tables."""

from __future__ import annotations

from itertools import takewhile

from rpr.report.grid import Grid
from rpr.report.render import terminal, wrapped

_BEFORE = 3  # characters that two texts share, shown before the first in which they differ


def titled(grid: Grid) -> str:
    """A table for a terminal below its title, with its notes."""
    notes = [("", note.text) for note in grid.notes]
    return "\n".join([*wrapped([("", grid.title)]), terminal(grid), *wrapped(notes)])


def shortened(text: str, width: int, other: str = "") -> str:
    """The text in `width` characters: both its ends, or from where it differs from `other`, if that is later."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    head = width - 1 - tail
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    if alike < head or text == other:
        return f"{text[:head]}…{text[len(text) - tail :]}"
    rest = "…" + text[alike - _BEFORE :]
    return rest if len(rest) <= width else rest[: width - 1] + "…"

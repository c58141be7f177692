"""Helpers of several commands for printing tables."""

from __future__ import annotations

from itertools import takewhile

from rpr.report.grid import Grid
from rpr.report.render import terminal, wrapped

_CONTEXT = 3  # common characters of two texts shown before the first difference


def titled(grid: Grid) -> str:
    """A table for a terminal, with its title above and its notes below."""
    notes = [("", note.text) for note in grid.notes]
    return "\n".join([*wrapped([("", grid.title)]), terminal(grid), *wrapped(notes)])


def shortened(text: str, width: int, other: str = "") -> str:
    """The text in `width` characters: both ends, or the part from its first difference to `other`, if that is later."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    head = width - 1 - tail
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    if common < head or text == other:
        return f"{text[:head]}…{text[len(text) - tail :]}"
    rest = "…" + text[common - _CONTEXT :]
    return rest if len(rest) <= width else rest[: width - 1] + "…"

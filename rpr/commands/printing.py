"""A table as commands print it."""

from __future__ import annotations

from rpr.tables.grid import Grid
from rpr.tables.render import terminal, wrapped


def titled(grid: Grid) -> str:
    """A table for a terminal, with its title above and its notes below."""
    notes = [("", note.text) for note in grid.notes]
    return "\n".join([*wrapped([("", grid.title)]), terminal(grid), *wrapped(notes)])

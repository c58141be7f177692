"""Tables as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from rpr.tables.grid import Grid, legend
from rpr.tables.render import shows_intervals, terminal, wrapped


def titled(grid: Grid) -> str:
    """A table for a terminal, with its title above and its notes below."""
    notes = [("", note.text) for note in grid.notes]
    return "\n".join([*wrapped([("", grid.title)]), terminal(grid), *wrapped(notes)])


def with_legend(grids: Sequence[Grid]) -> str:
    """Tables for a terminal, and below them the meaning of their symbols."""
    signs = wrapped([("", line) for line in legend(grids, shows_intervals)])
    return "\n\n".join([*map(titled, grids), *(["\n".join(signs)] if signs else [])])

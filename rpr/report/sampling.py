"""Which items are shown where there are too many for a plot, a page or a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpr.report.groups import Group, Variant

MOST_LINES = 12


def lines_of(group: Group) -> list[Variant]:
    """The variants that get a line in plots with one line per variant."""
    return sample_evenly(group.variants, MOST_LINES)


def sample_evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items: for each kind of positions evenly spaced ones, including its first and last.

    The choice never depends on results. Kinds get places in turn, so a kind with many items leaves room for others.

    Args:
        items: variants, or tuples whose first element is one.
    """
    if len(items) <= most:
        return list(items)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        variant = item[0] if isinstance(item, tuple) else item
        places.setdefault(variant.position.kind, []).append(place)
    room, free = dict.fromkeys(places, 0), most
    while free:
        for kind, mine in places.items():
            if free and room[kind] < len(mine):
                room[kind] += 1
                free -= 1
    return [items[place] for place in sorted(p for kind, mine in places.items() for p in _spaced(mine, room[kind]))]


def _spaced(places: Sequence[int], count: int) -> list[int]:
    if count <= 1:
        return list(places[:count])
    return [places[round(index * (len(places) - 1) / (count - 1))] for index in range(count)]


def left_out(shown: int, of: int, what: str) -> str:
    """One line saying that items are left out; empty if none are."""
    return "" if shown == of else f"{shown} of {of:,} {what}: of each kind, evenly spaced, not chosen by their quality"

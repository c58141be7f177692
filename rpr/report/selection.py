"""Which of many variants are shown where not all can be: never by how good they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def few(items: Sequence[T], kind: Callable[[T], str], most: int) -> list[T]:
    """At most `most` of the items, in their order: of each kind evenly spaced ones, its first and last among them.

    Kinds share the room in turn, so that one with many items leaves room for the others.
    """
    if len(items) <= most:
        return list(items)
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(kind(item), []).append(place)
    room = dict.fromkeys(places, 0)
    free = most
    while free:
        for name, mine in places.items():
            if free and room[name] < len(mine):
                room[name] += 1
                free -= 1
    return [items[place] for place in sorted(p for name, mine in places.items() for p in _spaced(mine, room[name]))]


def _spaced(places: Sequence[int], count: int) -> list[int]:
    if count <= 1:
        return list(places[:count])
    return [places[round(index * (len(places) - 1) / (count - 1))] for index in range(count)]


def left_out(shown: int, of: int, what: str) -> str:
    """One line that says so; empty where nothing is left out."""
    return (
        "" if shown == of else f"{shown} of {of:,} {what}: of each kind, evenly spaced and not chosen by their quality"
    )

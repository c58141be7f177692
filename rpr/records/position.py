"""The position variant of a run, as its record has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from rpr.config import POSITION_KINDS, position_kind
from rpr.records.record import Record

SHARING = {
    "per_head": "per head",
    "shared_by_heads": "shared by heads",
    "shared_by_heads_and_layers": "shared by heads and layers",
}
_KNOWN_SETTINGS = {"name", "absolute", "max_positions", "relative_keys", "relative_values", "clip_distance", "tables"}
_OFF = (False, None, "", "none")  # values by which a setting that this version does not know changes nothing


@dataclass(frozen=True)
class Position:
    """A position variant: what one row of a table is about. `other`: settings of schemes not known here."""

    absolute: str
    relative_keys: bool
    relative_values: bool
    clip_distance: int | None
    tables: str | None
    other: tuple[tuple[str, str], ...] = ()

    @property
    def relative(self) -> bool:
        return self.relative_keys or self.relative_values

    @cached_property
    def kind(self) -> str:
        """The variant's name, as in conf/position/."""
        if self.other:
            return "other"
        kind = position_kind(self.absolute, self.relative_keys, self.relative_values)
        return kind if kind in POSITION_KINDS else "other"

    @property
    def label(self) -> str:
        """The row's name in words, without the sharing of the tables."""
        which = {(True, True): "relative", (True, False): "keys only", (False, True): "values only", (False, False): ""}
        relative = which[self.relative_keys, self.relative_values]
        if self.absolute == "none":
            words = relative or ("" if self.other else "none")
        else:
            words = f"{self.absolute} + {relative}" if relative else f"absolute ({self.absolute})"
        parts = [words] if words else []
        if self.clip_distance is not None:
            parts.append(f"k = {self.clip_distance}")
        parts += [f"{key} = {value}" for key, value in self.other]
        return ", ".join(parts)

    @property
    def order(self) -> tuple[int, str, int, str]:
        """Rows stand: absolute, learned, none, relative by ascending k, keys only, values only, both, anything else."""
        kinds = (
            "absolute",
            "learned",
            "none",
            "relative",
            "relative_keys",
            "relative_values",
            "absolute_and_relative",
            "other",
        )
        clip_distance = -1 if self.clip_distance is None else self.clip_distance
        return (
            kinds.index(self.kind),
            self.label if self.kind == "other" else "",
            clip_distance,
            f"{self.tables} {self.label}",
        )


def position_of(record: Record) -> Position:
    """The variant of one run, as `positions_of` has it."""
    return positions_of([record])[0]


def positions_of(records: Sequence[Record]) -> list[Position]:
    """The variant of each run; k and sharing count only where there is a relative table.

    Settings that this version does not know (a record of a later one) tell variants apart where they differ among
    these records, and describe a scheme of a name that is not known either. Where all records have the same, or a
    value that switches them off, they change nothing.
    """
    unknown = [
        {key: str(value) for key, value in run.config["position"].items() if _switched_on(key, value)}
        for run in records
    ]
    keys = {key for one in unknown for key in one}
    varying = {key for key in keys if len({one.get(key) for one in unknown}) > 1}
    return [_position(run, one, varying) for run, one in zip(records, unknown, strict=True)]


def _switched_on(key: str, value: object) -> bool:
    return key not in _KNOWN_SETTINGS and value not in _OFF


def _position(record: Record, unknown: Mapping[str, str], varying: Set[str]) -> Position:
    settings: Mapping[str, object] = record.config["position"]
    own_scheme = settings["name"] not in POSITION_KINDS
    return Position(
        str(settings["absolute"]),
        bool(settings["relative_keys"]),
        bool(settings["relative_values"]),
        record.clip_distance,
        str(settings["tables"]) if record.relative else None,
        tuple(sorted((key, value) for key, value in unknown.items() if own_scheme or key in varying)),
    )

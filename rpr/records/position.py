"""The position variant of a run, as its record has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rpr.config import POSITION_KINDS, position_kind
from rpr.records.record import Record

SHARING = {
    "per_head": "per head",
    "shared_by_heads": "shared by heads",
    "shared_by_heads_and_layers": "shared by heads and layers",
}
_KNOWN_POSITION = {"name", "absolute", "max_positions", "relative_keys", "relative_values", "clip_distance", "tables"}


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

    @property
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
    """The variant a run belongs to; k and sharing only count where there is a relative table."""
    settings: Mapping[str, object] = record.config["position"]
    other = tuple(sorted((key, str(value)) for key, value in settings.items() if key not in _KNOWN_POSITION))
    return Position(
        str(settings["absolute"]),
        bool(settings["relative_keys"]),
        bool(settings["relative_values"]),
        record.clip_distance,
        str(settings["tables"]) if record.relative else None,
        other,
    )

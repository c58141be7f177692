"""Vectors added to the embeddings (Vaswani et al. 2017), and to keys and values (Shaw et al. 2018)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rpr.model.lazy_torch import Device, Tensor
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register

SHARING = {
    "per_head": "per head",
    "shared_by_heads": "shared by heads",
    "shared_by_heads_and_layers": "shared by heads and layers",
}
# Okabe and Ito's palette, distinguishable with every common kind of colour blindness.
_COLOURS = {
    "absolute": "#d55e00",
    "learned": "#009e73",
    "none": "#b8608f",
    "relative": "#0072b2",
    "relative_keys": "#b07a00",
    "relative_values": "#3a9bd0",
    "absolute_and_relative": "#4b3f99",
}


@register
class Vectors(Scheme):
    """Absolute positions, the paper's relative positions with clip distance k, both, or none."""

    TITLE = "relative tables"
    VERSION = "1"
    ORDER = 0

    scheme: Literal["vectors"]
    relative_keys: bool
    relative_values: bool
    clip_distance: int = Field(ge=0)
    tables: Literal["per_head", "shared_by_heads", "shared_by_heads_and_layers"]

    @classmethod
    def colours(cls) -> Mapping[str, str]:
        return _COLOURS

    @property
    def has_tables(self) -> bool:
        return self.relative_keys or self.relative_values

    @property
    def kind(self) -> str:
        if not self.has_tables:
            return {"sinusoidal": "absolute"}.get(self.absolute, self.absolute)
        if self.absolute != "none":
            return "absolute_and_relative"
        if self.relative_keys and self.relative_values:
            return "relative"
        return "relative_keys" if self.relative_keys else "relative_values"

    @property
    def label(self) -> str:
        """As in the paper's tables; how relative tables are shared is added by reports where it varies."""
        which = {(True, True): "relative", (True, False): "keys only", (False, True): "values only", (False, False): ""}
        relative = which[self.relative_keys, self.relative_values]
        tables = relative or "none"
        if self.absolute != "none":
            tables = f"{self.absolute} + {relative}" if relative else f"absolute ({self.absolute})"
        k = [f"k = {self.clip_distance}"] if self.has_tables else []
        return ", ".join([tables, *k, *self.common_details()])

    @property
    def k(self) -> int | None:
        return self.clip_distance if self.has_tables else None

    @property
    def sharing(self) -> str | None:
        return self.tables if self.has_tables else None

    def identity(self, site: Site | None = None) -> dict[str, Any]:
        unread = () if self.has_tables else ("clip_distance", "tables")
        return {name: value for name, value in super().identity(site).items() if name not in unread}

    @property
    def tracked(self) -> Mapping[str, Any]:
        return {
            "keys": self.relative_keys,
            "values": self.relative_values,
            "absolute": self.absolute,
            "tables": self.sharing,
        }

    @property
    def ordered(self) -> bool:
        beside = self.absolute != "none" or self.key_offset != "none"
        return beside or (self.has_tables and self.clip_distance > 0)

    @property
    def has_bias(self) -> bool:
        return False

    @property
    def shared_by_layers(self) -> bool:
        return self.tables == "shared_by_heads_and_layers"

    def parameters(self, site: Site) -> dict[str, Tensor]:
        from rpr.model.vectors import relative_table

        names = [name for name, used in (("keys", self.relative_keys), ("values", self.relative_values)) if used]
        heads = site.num_heads if self.tables == "per_head" else None
        return {name: relative_table(self.clip_distance, site.d_head, heads) for name in names}

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        return Tables(parameters.get("keys"), parameters.get("values"))

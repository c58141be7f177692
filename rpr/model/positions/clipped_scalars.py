"""A learned bias for each clipped distance, added to the score before the scale: the cheapest learned positions.

Ontanon et al. 2022 (arXiv 2108.04378): rel-b, one bias for all heads of a layer; with vectors added to the keys as in
Shaw et al. 2018, rel-eb.
"""

# Shape suffixes: R = 2k+1 rows, D head width.

from typing import ClassVar, Literal

from pydantic import Field

from rpr.model.lazy_torch import Device, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register


@register
class ClippedScalars(Scheme):
    """Clipped scalars, alone or with relative keys that all heads share."""

    TITLE = "clipped scalars"
    VERSION = "1"
    COLOUR = "#7a5c00"
    PUBLISHED: ClassVar = {"keys": (False, "with relative keys"), "clip_distance": (None, "k = {}")}

    scheme: Literal["clipped_scalars"]
    clip_distance: int = Field(ge=0)
    keys: bool

    @property
    def k(self) -> int | None:
        return self.clip_distance

    @property
    def ordered(self) -> bool:
        return self.absolute != "none" or self.clip_distance > 0

    def parameters(self, site: Site) -> dict[str, Tensor]:
        from rpr.model.vectors import relative_table

        scalars = {"scalars": torch.zeros(2 * self.clip_distance + 1)}
        return scalars | ({"keys": relative_table(self.clip_distance, site.d_head, None)} if self.keys else {})

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        bias_R = parameters["scalars"] * site.d_head**-0.5
        return Tables(keys=parameters.get("keys"), bias=bias_R.expand(site.num_heads, -1))

"""xPos: RoPE whose queries and keys also grow and shrink with their position, so that scores decay with the distance.

Sun et al. 2022 (arXiv 2212.10554): pair i of a query at position m is multiplied by z_i^(m / 512), of a key at n by
z_i^(-n / 512), z_i = (2i / width + 0.4) / 1.4. For causal attention: later keys would grow. Linear scaling is of the
positions in both.
"""

# Shape suffixes: B batch, H heads, P positions, D head width, W half of the rotated width.

from typing import Literal

from pydantic import PositiveFloat

from rpr.model.lazy_torch import Tensor, torch
from rpr.model.positions.rope import Rope
from rpr.model.positions.scheme import ByName, Rotation, Site, register


@register
class XPos(Rope):
    """xPos with the settings of RoPE."""

    TITLE = "xPos"
    VERSION = "1"
    COLOUR = "#c2491d"
    CAUSAL_ONLY = True

    scheme: Literal["xpos"]  # type: ignore[assignment]
    gamma: PositiveFloat
    scale_base: PositiveFloat

    def details(self) -> list[str]:
        gamma = [] if self.gamma == 0.4 else [f"gamma {self.gamma:g}"]
        return [*super().details(), *gamma, *([] if self.scale_base == 512 else [f"scale base {self.scale_base:g}"])]

    def rotation(self, site: Site) -> Rotation | None:
        return None

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        q, k = super().prepare(q, k, positions, parameters, site)
        rotation = self._rotation(site)
        width, scaled_P = rotation.width, positions.double() / rotation.linear_scale
        pairs_W = torch.arange(0, width, 2, device=q.device, dtype=torch.float64) / width
        growth_PW = ((pairs_W + self.gamma) / (1 + self.gamma)) ** (scaled_P[:, None] / self.scale_base)
        of_dimensions = growth_PW.repeat_interleave(2, 1) if self.layout == "interleaved" else growth_PW.repeat(1, 2)
        growth_PD = torch.nn.functional.pad(of_dimensions, (0, site.d_head - width), value=1.0)
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide) * growth_PD.to(wide), k.to(wide) / growth_PD.to(wide)
        return q, k

"""PoPE, polar coordinate positions: the size of each dimension of q and k is content, and its angle position.

Gopalakrishnan et al. 2025 (arXiv 2509.10534): the score is the sum over d of softplus(q_d) softplus(k_d) cos((j - i)
theta_d + delta_hd), over sqrt(D), theta_d = base^(-d / D) for d = 0 .. D - 1. Each dimension is a pair of its own, so q
and k have twice the width. delta starts at 0 and is not clamped: the published clamp to [-2 pi, 0] in the forward pass
has its edge there, above which there is no gradient.
"""

# Shape suffixes: B batch, H heads, P positions, D head width.

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from rpr.model.lazy_torch import Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, register


@register
class Pope(Scheme):
    """PoPE, with one delta for each dimension of each head of a layer."""

    TITLE = "PoPE"
    VERSION = "1"
    COLOUR = "#7a6a00"

    scheme: Literal["pope"]
    base: float = Field(gt=1)

    def details(self) -> list[str]:
        return [] if self.base == 10_000 else [f"base {self.base:g}"]

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {"delta": torch.zeros(site.num_heads, site.d_head)}

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        wide, width = torch.promote_types(q.dtype, torch.float32), site.d_head
        frequencies_D = self.base ** -(torch.arange(width, device=q.device, dtype=torch.float64) / width)
        angles_PD = (positions.double()[:, None] * frequencies_D).remainder(2 * math.pi).to(wide)
        shifted_HPD = angles_PD + parameters["delta"].to(wide)[:, None]
        q, k = (torch.nn.functional.softplus(x.to(wide)) for x in (q, k))
        q = torch.cat([q * angles_PD.cos(), q * angles_PD.sin()], dim=-1)
        return q, torch.cat([k * shifted_HPD.cos(), k * shifted_HPD.sin()], dim=-1)

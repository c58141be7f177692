"""PoPE, polar coordinate positions: the size of each dimension of q and k is content, and its angle position.

Gopalakrishnan et al. 2025 (arXiv 2509.10534): the score is the sum over d of softplus(q_d) softplus(k_d) cos((j - i)
theta_d + delta_hd), over sqrt(D), theta_d = base^(-d / D) for d = 0 .. D - 1. Each dimension is a pair of its own, so q
and k have twice the width. delta starts at 0 and is not clamped: the published clamp to [-2 pi, 0] in the forward pass
has its edge there, above which there is no gradient.
"""

# Shape suffixes: B batch, H heads, P positions, D head width.

import math
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from rpr.model.lazy_torch import Dtype, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, register


@register
class Pope(Scheme):
    """PoPE, with one delta for each dimension of each head of a layer."""

    TITLE = "PoPE"
    VERSION = "1"
    COLOUR = "#7a6a00"
    PUBLISHED: ClassVar = {"base": (10_000, "base {:g}")}

    scheme: Literal["pope"]
    base: float = Field(gt=1)

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {"delta": torch.zeros(site.num_heads, site.d_head)}

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        delta_2HD = torch.nn.functional.pad(parameters["delta"].to(wide)[None], (0, 0, 0, 0, 1, 0))  # of q 0
        turn_2HP2D = (_angles(self.base, site.d_head, positions, wide) + delta_2HD[:, :, None, None]).cos()
        sizes_2BHPD = torch.nn.functional.softplus(torch.stack([q, k]).to(wide))
        q, k = (sizes_2BHPD[..., None, :] * turn_2HP2D[:, None]).flatten(-2).to(q.dtype)
        return q, k


@lru_cache(maxsize=4)  # the same for all layers; a tensor is its own key
def _angles(base: float, width: int, positions_P: Tensor, dtype: Dtype) -> Tensor:
    with torch.inference_mode(False):
        frequencies_D = base ** -(torch.arange(width, device=positions_P.device, dtype=torch.float64) / width)
        angles_PD = positions_P.double()[:, None] * frequencies_D
        return torch.stack([angles_PD, angles_PD - math.pi / 2], dim=1).remainder(2 * math.pi).to(dtype)

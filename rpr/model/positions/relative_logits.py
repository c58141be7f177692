"""Relative logits of the Inkling models (Thinking Machines, 2026): the paper's key table with a query of its own.

b_ij = r_i . P[i - j] is added to the scaled score, r = W_r x of width `rank` for each head, P shared by the heads of a
layer; 0 from the distance `extent` on. Published for causal attention; in an encoder P has rows for both directions.

Inkling 2 multiplies q and r (not k) by a learned scale for each dimension of a head, then shortens r, q and k to a norm
of at most t: by min(1, t / (norm + 1e-6)). Its global layers have `query_log_scale` of q and r after that. Its
convolutions, norm of values and sinks of each token are not positions, and not here.
"""

# Shape suffixes: B batch, H heads, P positions, R = 2 extent + 1 rows, X rank.

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from rpr.model.lazy_torch import Device, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register


@register
class RelativeLogits(Scheme):
    """Relative logits, one W_r and one P per layer."""

    TITLE = "relative logits"
    VERSION = "1"
    COLOUR = "#00519c"
    PUBLISHED: ClassVar = {
        "rank": (16, "rank {}"),
        "extent": (1024, "extent {}"),
        "clip_logits": (None, "r clipped at {:g}"),
        "clip_queries": (None, "q and k clipped at {:g}"),
    }

    scheme: Literal["relative_logits"]
    rank: PositiveInt
    extent: PositiveInt
    clip_logits: PositiveFloat | None = None
    clip_queries: PositiveFloat | None = None

    @property
    def reach(self) -> int | None:
        return self.extent

    @property
    def ordered(self) -> bool:
        return self.absolute != "none" or self.extent > 1

    @property
    def has_bias(self) -> bool:
        return False

    def projections(self, site: Site) -> dict[str, Tensor]:
        bound = (6.0 / (site.d_model + site.num_heads * self.rank)) ** 0.5  # Glorot, as W^Q
        return {"w_r": torch.empty(site.num_heads * self.rank, site.d_model).uniform_(-bound, bound)}

    def parameters(self, site: Site) -> dict[str, Tensor]:
        directions = self.extent if site.causal else 2 * self.extent - 1  # distances -(extent - 1) .. 0 or extent - 1
        p = {"p": torch.empty(directions, self.rank).normal_(std=0.02)}
        r = {} if self.clip_logits is None else {"r_scale": torch.ones(site.num_heads, self.rank)}
        return p | r | ({} if self.clip_queries is None else {"q_scale": torch.ones(site.num_heads, site.d_head)})

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        later = self.extent if site.causal else 1  # rows of distances that do not occur, or are out of reach
        return Tables(keys=torch.nn.functional.pad(parameters["p"], (0, 0, 1, later)))

    def distance_queries(self, projected: ByName, parameters: ByName, site: Site) -> Tensor | None:
        r = projected["w_r"]
        r_BHPX = r.view(*r.shape[:2], site.num_heads, self.rank).transpose(1, 2)
        return r_BHPX if self.clip_logits is None else _clipped(r_BHPX, self.clip_logits, parameters["r_scale"])

    @property
    def grows_distance_queries(self) -> bool:
        return self.clip_logits is not None

    @property
    def changes_queries(self) -> bool:
        return self.clip_queries is not None

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        if self.clip_queries is None:
            return q, k
        return _clipped(q, self.clip_queries, parameters["q_scale"]), _clipped(k, self.clip_queries)


def _clipped(x_BHPX: Tensor, longest: float, scale_HX: Tensor | None = None) -> Tensor:
    """Shortened to a norm, after a scale, in float32 or wider."""
    wide_BHPX = x_BHPX.to(torch.promote_types(x_BHPX.dtype, torch.float32))
    if scale_HX is not None:
        wide_BHPX = wide_BHPX * scale_HX.to(wide_BHPX.dtype)[:, None]
    norm_BHP1 = torch.linalg.vector_norm(wide_BHPX, dim=-1, keepdim=True)
    clipped_BHPX: Tensor = wide_BHPX * (longest / (norm_BHP1 + 1e-6)).clamp(max=1.0)
    return clipped_BHPX.to(x_BHPX.dtype)

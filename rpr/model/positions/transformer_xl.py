"""Transformer-XL's relative positions: a key for the distance, from sinusoids, and two learned query biases.

Dai et al. 2019 (arXiv 1901.02860), section 3.3: q.k + q.t + u.k + v.t with t = W_R R, R the sinusoid of i - j.
Per head that is (q + u).(k + t) + (v - u).t: a query bias, a key table and a bias by distance.
"""

# Shape suffixes: H heads, D head width, M model width, P positions, R = 2 max_distance + 1 rows.

from functools import lru_cache
from typing import Literal

from rpr.model.lazy_torch import Device, Dtype, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register


@register
class TransformerXL(Scheme):
    """Transformer-XL's positions; W_R, u and v are per layer (the authors' code may share u and v)."""

    TITLE = "Transformer-XL"
    VERSION = "1"
    COLOUR = "#23756c"

    scheme: Literal["transformer_xl"]

    def parameters(self, site: Site) -> dict[str, Tensor]:
        bound = (6.0 / (2 * site.d_model)) ** 0.5  # Glorot, for W_R as a single matrix [M, M]
        shape = (site.num_heads, site.d_model, site.d_head)
        heads = (site.num_heads, site.d_head)
        return {
            "w_r": torch.empty(shape).uniform_(-bound, bound),
            "u": torch.zeros(heads),
            "v": torch.zeros(heads),
        }

    def problem(self, site: Site) -> str | None:
        if self.query_log_scale:  # u would grow with the queries, v would not
            return "query_log_scale: is not defined for Transformer-XL, whose biases act as queries; leave it out"
        return super().problem(site)

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        w_r_HMD = parameters["w_r"]
        sinusoids_RM = _sinusoids(site.d_model, 0 if site.causal else max_distance, max_distance, w_r_HMD.dtype, device)
        difference_HD1 = (parameters["v"] - parameters["u"])[..., None]
        with torch.autocast(device.type, enabled=False):  # tables stay as exact as learned ones
            keys_HRD = torch.matmul(sinusoids_RM, w_r_HMD)
            bias_HR = (keys_HRD @ difference_HD1)[..., 0] * site.d_head**-0.5
        if site.causal:
            pad = torch.nn.functional.pad
            keys_HRD, bias_HR = pad(keys_HRD, (0, 0, 0, max_distance)), pad(bias_HR, (0, max_distance))
        return Tables(keys=keys_HRD, bias=bias_HR)

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        return q + parameters["u"][:, None].to(q.dtype), k


@lru_cache(maxsize=4)  # the same for all layers
def _sinusoids(d_model: int, last: int, farthest: int, dtype: Dtype, device: Device) -> Tensor:
    with torch.inference_mode(False):
        before_R = -torch.arange(-farthest, last + 1, device=device, dtype=torch.float64)  # i - j
        frequencies = 10_000.0 ** (-torch.arange(0, d_model, 2, device=device, dtype=torch.float64) / d_model)
        angles = before_R[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)

"""FoX, the Forgetting Transformer: each token has a forget gate, by which all earlier keys lose weight.

Lin et al. 2025 (arXiv 2503.02130): the sum of log sigmoid(w_h x_l + b_h) over l = j+1 .. i is added to the scaled score
of query i and key j. That is c_i - c_j with running sums c; c_i is the same for all keys, so -c_j is a bias per key.
"""

# Shape suffixes: B batch, H heads, P positions.

from typing import ClassVar, Literal

from rpr.model.lazy_torch import Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, register


@register
class Fox(Scheme):
    """Forget gates, for causal attention."""

    TITLE = "FoX"
    VERSION = "1"
    COLOUR = "#a3387d"
    CAUSAL_ONLY = True
    PUBLISHED: ClassVar = {"initial_bias": (5, "initial bias {:g}")}

    scheme: Literal["fox"]
    initial_bias: float

    def projections(self, site: Site) -> dict[str, Tensor]:
        bound = (6.0 / (site.d_model + site.num_heads)) ** 0.5  # Glorot
        return {"gate": torch.empty(site.num_heads, site.d_model).uniform_(-bound, bound)}

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {"bias": torch.full((site.num_heads,), self.initial_bias)}

    def key_bias(self, projected: ByName, parameters: ByName, site: Site, before: Tensor) -> Tensor:
        gate_BPH = projected["gate"].to(before.dtype) + parameters["bias"].to(before.dtype)
        kept_BHP = torch.nn.functional.logsigmoid(gate_BPH).transpose(1, 2)
        return before[..., None] - kept_BHP.cumsum(-1)

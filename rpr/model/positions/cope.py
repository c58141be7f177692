"""CoPE: positions are counts of the tokens between key and query that a gate of their score lets pass.

Golovneva et al. 2024 (arXiv 2405.18719): g_ij = sigmoid(s_ij), p_ij = the sum of g_il over l = j .. i, at most the
number of positions less one; q_i . e[p_ij] is added, e interpolated between two rows. For causal attention. Scores and
products are scaled by 1/sqrt(d), which the paper's equations leave out.
"""

# Shape suffixes: B batch, H heads, Q queries, D head width, L positions.

from typing import ClassVar, Literal

from pydantic import Field

from rpr.model.lazy_torch import Tensor, torch
from rpr.model.positions.scheme import ByName, Pairs, Scheme, Site, register


@register
class Cope(Scheme):
    """Contextual positions, one table for each layer."""

    TITLE = "CoPE"
    VERSION = "1"
    COLOUR = "#3f7f93"
    CAUSAL_ONLY = True
    PUBLISHED: ClassVar = {"num_positions": (64, "{} positions")}

    scheme: Literal["cope"]
    num_positions: int = Field(ge=2)

    @property
    def uses_positions(self) -> bool:
        return self.query_log_scale > 0  # it counts tokens

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {"vectors": torch.zeros(self.num_positions, site.d_head)}

    def scores(self, pairs: Pairs, parameters: ByName, site: Site) -> Tensor:
        from rpr.model.vectors import of_counts

        products_BHQL = pairs.q @ (parameters["vectors"] * site.d_head**-0.5).to(pairs.q.dtype).T
        return pairs.scores + of_counts(pairs.scores, pairs.visible, products_BHQL)

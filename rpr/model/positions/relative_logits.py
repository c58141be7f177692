"""Relative logits of the Inkling models (Thinking Machines, 2026): the paper's key table with a query of its own.

b_ij = r_i . P[i - j] is added to the scaled score, r = W_r x of width `rank` for each head, P shared by the heads of a
layer; 0 from the distance `extent` on. Published for causal attention; in an encoder P has rows for both directions.
"""

# Shape suffixes: B batch, H heads, P positions, R = 2 extent + 1 rows, X rank.

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from rpr.model.lazy_torch import Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register


@register
class RelativeLogits(Scheme):
    """Relative logits, one W_r and one P per layer."""

    TITLE = "relative logits"
    VERSION = "1"
    COLOUR = "#00519c"

    scheme: Literal["relative_logits"]
    rank: PositiveInt
    extent: PositiveInt

    def details(self) -> list[str]:
        rank = [] if self.rank == 16 else [f"rank {self.rank}"]
        return [*rank, *([] if self.extent == 1024 else [f"extent {self.extent}"])]

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
        return {"p": torch.empty(directions, self.rank).normal_(std=0.02)}

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: torch.device) -> Tables:
        later = self.extent if site.causal else 1  # rows of distances that do not occur, or are out of reach
        return Tables(keys=torch.nn.functional.pad(parameters["p"], (0, 0, 1, later)))

    def distance_queries(self, projected: ByName, parameters: ByName, site: Site) -> Tensor | None:
        r = projected["w_r"]
        return r.view(*r.shape[:2], site.num_heads, self.rank).transpose(1, 2)

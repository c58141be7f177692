"""KERPLE: a learned kernel of the distance is added to the score.

Chi et al. 2022 (arXiv 2205.09921): -p log(1 + a |i - j|) (logarithmic) or -a |i - j|^p (power), p and a positive and
learned by each head of each layer.
"""

# Shape suffixes: H heads, R = 2 max_distance + 1 rows.

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from rpr.model.positions.scheme import Scheme, Site, Tables, register

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEAST = 0.01  # of p and a, as in the authors' code
LARGEST_POWER = 2.0


@register
class Kerple(Scheme):
    """KERPLE; the same for keys to the left and to the right."""

    TITLE = "KERPLE"
    COLOUR = "#762a83"

    scheme: Literal["kerple"]
    form: Literal["log", "power"]

    def details(self) -> list[str]:
        return [] if self.form == "log" else [self.form]

    def parameters(self, site: Site) -> dict[str, Tensor]:
        import torch

        return {
            "p": torch.empty(site.num_heads, 1).uniform_(0, 2),
            "a": torch.empty(site.num_heads, 1).uniform_(0, 1),
        }

    def distance_tables(
        self, parameters: Mapping[str, Tensor], site: Site, max_distance: int, device: torch.device
    ) -> Tables:
        import torch

        p_H1, a_H1 = _kept(parameters["p"], LARGEST_POWER if self.form == "power" else None), _kept(parameters["a"])
        distance_R = torch.arange(-max_distance, max_distance + 1, device=device, dtype=p_H1.dtype).abs()
        if self.form == "log":
            return Tables(bias=-p_H1 * torch.log1p(a_H1 * distance_R))
        # Distance 0 apart: its power is 0, but the gradient of its logarithm is not finite.
        powers_HR = distance_R.clamp(min=1) ** p_H1 * (distance_R > 0)
        return Tables(bias=-a_H1 * powers_HR)


def _kept(x: Tensor, largest: float | None = None) -> Tensor:
    """In the authors' range, with the gradient of x itself: they project the parameters, so that none is stuck."""
    return x + (x.clamp(LEAST, largest) - x).detach()

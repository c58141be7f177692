"""KERPLE: a learned kernel of the distance is added to the score.

Chi et al. 2022 (arXiv 2205.09921): -p log(1 + a |i - j|) (logarithmic) or -a |i - j|^p (power), p and a positive and
learned per head and layer.
"""

# Shape suffixes: H heads, R = 2 max_distance + 1 rows.

from typing import ClassVar, Literal

from rpr.model.lazy_torch import Device, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register

MINIMUM = 0.01  # of p and a, as in the authors' code
MAXIMUM_POWER = 2.0


@register
class Kerple(Scheme):
    """KERPLE, symmetric in the sign of the distance."""

    TITLE = "KERPLE"
    VERSION = "1"
    COLOUR = "#762a83"
    PUBLISHED: ClassVar = {"form": ("log", "{}")}

    scheme: Literal["kerple"]
    form: Literal["log", "power"]

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {
            "p": torch.empty(site.num_heads, 1).uniform_(0, 2),
            "a": torch.empty(site.num_heads, 1).uniform_(0, 1),
        }

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        p_H1, a_H1 = _clamp(parameters["p"], MAXIMUM_POWER if self.form == "power" else None), _clamp(parameters["a"])
        distance_R = torch.arange(-max_distance, max_distance + 1, device=device, dtype=p_H1.dtype).abs()
        if self.form == "log":
            return Tables(bias=-p_H1 * torch.log1p(a_H1 * distance_R))
        # Distance 0 is handled separately: its power is 0, but the gradient of its logarithm is not finite.
        powers_HR = distance_R.clamp(min=1) ** p_H1 * (distance_R > 0)
        return Tables(bias=-a_H1 * powers_HR)


def _clamp(x: Tensor, maximum: float | None = None) -> Tensor:
    """x clamped to the authors' range, with the gradient of x so that none gets stuck (the authors project)."""
    return x + (x.clamp(MINIMUM, maximum) - x).detach()

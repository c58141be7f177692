"""Sinusoids without their mean over the first positions, which shows why post-norm trains absolute positions badly.

Ours, for sweeps/norm.yaml. In sentences of a few dozen tokens the low frequencies hardly move (sine near 0, cosine near
1), so most of the sum of sinusoids is one constant vector, added to every token. Their mean is that vector.
"""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from rpr.model.lazy_torch import Module
from rpr.model.positions.scheme import Scheme, register


@register
class CentredSinusoids(Scheme):
    """Sinusoids minus their mean over positions 0 .. mean_over - 1."""

    TITLE = "centred sinusoids"
    VERSION = "1"
    COLOUR = "#7a6a4f"
    SHIFT_INVARIANT = False
    PUBLISHED: ClassVar = {"mean_over": (40, "mean over {} positions")}

    scheme: Literal["centred"]
    absolute: Literal["sinusoidal"]
    mean_over: PositiveInt

    def embeddings(self, d_model: int) -> Module:
        from rpr.model.vectors import SinusoidalPositions

        return SinusoidalPositions(d_model, mean_over=self.mean_over)

"""SHAPE: sinusoids with a random offset per sentence in training, so that the model learns shift invariance.

Kiyono et al. 2021 (arXiv 2109.05644): an offset from 0 to max_offset, drawn separately for source and target. In
evaluation the offset is fixed, at 500 in the authors' code.
"""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from rpr.model.lazy_torch import Module
from rpr.model.positions.scheme import Scheme, register


@register
class ShiftedAbsolute(Scheme):
    """Shifted absolute positions."""

    TITLE = "SHAPE"
    VERSION = "1"
    COLOUR = "#b5403c"
    SHIFT_INVARIANT = False
    AFTER_TRAINING = frozenset({"evaluation_offset"})

    scheme: Literal["shape"]
    absolute: Literal["sinusoidal"]
    max_offset: PositiveInt
    evaluation_offset: NonNegativeInt

    def details(self) -> list[str]:
        usual = (self.max_offset, self.evaluation_offset) == (500, 500)
        return [] if usual else [f"offsets to {self.max_offset}, {self.evaluation_offset} in evaluation"]

    def embeddings(self, d_model: int) -> Module:
        from rpr.model.vectors import SinusoidalPositions

        return SinusoidalPositions(d_model, max_offset=self.max_offset, evaluation_offset=self.evaluation_offset)

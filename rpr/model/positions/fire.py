"""FIRE: a learned function of the distance relative to the query's position is added to the score.

Li et al. 2024 (arXiv 2310.04418): MLP(psi(i - j) / psi(max(L, i))), psi(x) = log(c x + 1), with a learned c and
threshold L. It depends on the query's position, not on the distance alone. For causal attention. The last bias of the
MLP, the same for all keys, would cancel in the softmax and is left out.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, W width of the hidden layer.

from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from rpr.model.lazy_torch import Dtype, Tensor, torch
from rpr.model.positions.scheme import ByName, Pairs, Scheme, Site, register


@register
class Fire(Scheme):
    """FIRE, with an MLP for each layer."""

    TITLE = "FIRE"
    VERSION = "1"
    COLOUR = "#e0701b"
    CAUSAL_ONLY = True
    SHIFT_INVARIANT = None  # up to the threshold
    ADDS_TO_SCORES = True
    PUBLISHED: ClassVar = {"hidden_width": (32, "hidden width {}")}

    scheme: Literal["fire"]
    hidden_width: PositiveInt
    initial_c: PositiveFloat
    initial_threshold: PositiveFloat

    def details(self) -> list[str]:
        usual = (self.initial_c, self.initial_threshold) == (0.1, 512)
        initial = f"initial c {self.initial_c:g} and threshold {self.initial_threshold:g}"
        return [*super().details(), *([] if usual else [initial])]

    def parameters(self, site: Site) -> dict[str, Tensor]:
        bound = self.hidden_width**-0.5  # torch's default, as in the authors' code
        return {
            "c": torch.tensor(self.initial_c),
            "threshold": torch.tensor(1.0),  # of initial_threshold
            "inner_weight": torch.empty(self.hidden_width).uniform_(-1, 1),
            "inner_bias": torch.empty(self.hidden_width).uniform_(-1, 1),
            "outer_weight": torch.empty(site.num_heads, self.hidden_width).uniform_(-bound, bound),
        }

    def scores(self, pairs: Pairs, parameters: ByName, site: Site) -> Tensor:
        with torch.autocast(pairs.q.device.type, enabled=False):
            c = parameters["c"].abs()
            distances, queries = _distances(pairs.query_positions, pairs.key_positions, c.dtype)
            longest = torch.maximum(queries, (parameters["threshold"] * self.initial_threshold).abs())
            share = torch.log1p(distances * c) / torch.log1p(longest * c)
            inner_WN = torch.addmm(
                parameters["inner_bias"][:, None], parameters["inner_weight"][:, None], share.view(1, -1)
            ).relu_()
            bias_HN = parameters["outer_weight"] @ inner_WN
        # [1, Q, K], or [B, Q, K] where sentences differ.
        bias_BHQK: Tensor = bias_HN.view(site.num_heads, -1, *share.shape[-2:]).transpose(0, 1)
        return pairs.scores + bias_BHQK.to(pairs.scores.dtype)


@lru_cache(maxsize=4)  # the same for all layers; a tensor is its own key
def _distances(queries: Tensor, keys: Tensor, dtype: Dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        return (queries - keys).clamp(min=0).to(dtype), queries.to(dtype)

"""Selective RoPE: queries and keys are rotated by angles that the tokens themselves add up.

Movahedi et al. 2026 (arXiv 2511.17388), as in the authors' module: phi_i = tau times the sum over l <= i of g_l c_l; c
is a depthwise convolution over the last tokens, without activation, of up(down(x)), x with each head's share divided by
its Euclidean norm; tau_w = base^(-2w / D) for the pairs w; the gate g_l = sigmoid(w_h x_l + b_h) of each head is off by
default. For causal attention.
"""

# Shape suffixes: B batch, H heads, P positions, L positions with those before, M model width, W pairs, X rank.

from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from rpr.model.lazy_torch import Device, Dtype, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, register


@register
class SelectiveRope(Scheme):
    """Selective RoPE, over all dimensions of a head."""

    TITLE = "selective RoPE"
    VERSION = "1"
    COLOUR = "#a0502d"
    CAUSAL_ONLY = True
    PUBLISHED: ClassVar = {"base": (500_000, "base {:g}"), "rank": (16, "rank {}"), "gate": (False, "gate")}
    HISTORY: ClassVar[int] = 3  # a kernel of 4 tokens, its own among them

    scheme: Literal["selective_rope"]
    base: float = Field(gt=1)
    rank: PositiveInt
    gate: bool

    def problem(self, site: Site) -> str | None:
        if site.d_head % 2:
            return f"name: {self.name} rotates pairs, and a head has {site.d_head} dimensions; choose other num_heads"
        return super().problem(site)

    def parameters(self, site: Site) -> dict[str, Tensor]:
        def uniform(*shape: int) -> Tensor:  # as torch initialises such a layer: within 1/sqrt(inputs)
            return torch.empty(shape).uniform_(-(shape[1] ** -0.5), shape[1] ** -0.5)

        angles = site.num_heads * site.d_head // 2
        matrices = {"down": uniform(self.rank, site.d_model), "up": uniform(angles, self.rank)}
        gate = {"gate": uniform(site.num_heads, site.d_model), "gate_bias": torch.zeros(site.num_heads)}
        return matrices | {"kernel": uniform(angles, self.HISTORY + 1)} | (gate if self.gate else {})

    def angles(self, projected: ByName, parameters: ByName, site: Site, before: Tensor) -> Tensor:
        from rpr.model.vectors import units

        x_BLM, shape = projected["x"], (site.num_heads, site.d_head // 2)
        x_BLHD = x_BLM.view(*x_BLM.shape[:2], site.num_heads, site.d_head)
        x_BLM = units(x_BLHD).flatten(-2)
        c_BLY = x_BLM @ parameters["down"].T @ parameters["up"].T
        c_BPY = (c_BLY.unfold(1, self.HISTORY + 1, 1) * parameters["kernel"]).sum(-1)
        c_BPHW = c_BPY.view(*c_BPY.shape[:2], *shape)
        if self.gate:
            gate_BLH = (x_BLM @ parameters["gate"].T + parameters["gate_bias"]).sigmoid()
            c_BPHW = c_BPHW * gate_BLH[:, self.HISTORY :, :, None]
        tau_W = _frequencies(self.base, shape[1], before.dtype, before.device)
        sums_BPHW: Tensor = (c_BPHW * tau_W).cumsum(1)
        return before[:, :, None] + sums_BPHW.transpose(1, 2)


@lru_cache(maxsize=4)  # the same for all layers
def _frequencies(base: float, pairs: int, dtype: Dtype, device: Device) -> Tensor:
    with torch.inference_mode(False):
        frequencies_W: Tensor = base ** (-torch.arange(pairs, device=device, dtype=dtype) / pairs)
        return frequencies_W

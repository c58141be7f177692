"""ALiBi: every head subtracts a fixed slope times the distance from the score.

Press et al. 2022 (arXiv 2108.12409): -m_h (i - j) after the scale, m_h = 2^(-8 h / H). Its authors define it for causal
attention; for encoders three forms are in use, selected by `encoder_form`.
"""

# Shape suffixes: H heads, R = 2 max_distance + 1 rows.

import math
from functools import lru_cache
from typing import Any, ClassVar, Literal

from rpr.model.lazy_torch import Device, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register

MASKED = -1e9  # the bias of masked scores


@register
class Alibi(Scheme):
    """ALiBi: causal in the decoder, according to `encoder_form` in the encoder.

    symmetric: -m |j - i|. one_side_per_head: the first half of the heads sees the keys to the left, the other half
    those to the right, with the slopes of H/2 heads each (the author's proposal). asymmetric: symmetric, plus m/2 for
    keys to the left (Ruoss et al. 2023).
    """

    TITLE = "ALiBi"
    VERSION = "1"
    COLOUR = "#4d8a1c"
    PUBLISHED: ClassVar = {"encoder_form": ("symmetric", "{}")}

    scheme: Literal["alibi"]
    encoder_form: Literal["symmetric", "one_side_per_head", "asymmetric"]

    def problem(self, site: Site) -> str | None:
        if self.encoder_form == "one_side_per_head" and not site.causal and site.num_heads % 2:
            return (
                f"encoder_form: one_side_per_head needs an even number of heads, and model.num_heads is "
                f"{site.num_heads}; choose symmetric or asymmetric"
            )
        return None

    def identity(self, site: Site | None = None) -> dict[str, Any]:
        own = super().identity(site)
        if site is not None and site.causal:
            del own["encoder_form"]
        return own

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        return Tables(bias=_bias(site.num_heads, None if site.causal else self.encoder_form, max_distance, device))

    def slopes(self, site: Site) -> tuple[float, ...] | None:
        return tuple(slopes_of(site.num_heads)) if site.causal else None


@lru_cache(maxsize=4)  # the same for all layers
def _bias(num_heads: int, form: str | None, max_distance: int, device: Device) -> Tensor:
    with torch.inference_mode(False):
        distances_R = torch.arange(-max_distance, max_distance + 1, device=device, dtype=torch.float32)
        halves = form == "one_side_per_head"
        slopes = slopes_of(num_heads // 2) * 2 if halves else slopes_of(num_heads)
        slopes_H1 = torch.tensor(slopes).to(device, non_blocking=True)[:, None]  # `device=` would wait for a GPU
        bias_HR = -slopes_H1 * distances_R.abs()
        if halves:
            left, right = bias_HR.chunk(2)
            return torch.cat([left.masked_fill(distances_R > 0, MASKED), right.masked_fill(distances_R < 0, MASKED)])
        return bias_HR + 0.5 * slopes_H1 * (distances_R < 0) if form == "asymmetric" else bias_HR


def slopes_of(num_heads: int) -> list[float]:
    """2^(-8 h / H) for h = 1..H. If H is not a power of two: the slopes of the next lower power, then every second
    slope of the next higher one.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * head / power) for head in range(1, 2 * (num_heads - power), 2)]

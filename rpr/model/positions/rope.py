"""Rotary positions (RoPE): pairs of dimensions of queries and keys are rotated in proportion to the position.

Su et al. 2021 (arXiv 2104.09864), equation 34: pair i at position m is rotated by m base^(-2i / width).
The dot product of a query and a key then depends only on their distance. Not used in encoder-decoder attention.
"""

# Shape suffixes: B batch, H heads, P positions, D head width, W half of the rotated width.

from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rpr.model.lazy_torch import Tensor
from rpr.model.positions.scheme import ByName, Rotation, Scheme, Site, register

_OF_LENGTH = ("yarn", "llama3", "longrope")  # scaling that depends on trained_length


@register
class Rope(Scheme):
    """RoPE on all dimensions of a head or a share of them, with static scaling of positions, base or frequencies.

    p-RoPE (Barbero et al. 2024, arXiv 2410.06205) keeps the highest frequencies of the whole width: with
    `proportion` p, the lowest 1 - p do not rotate. Partial RoPE (`rotated_share`) has all, in fewer dimensions.
    """

    TITLE = "RoPE"
    VERSION = "1"
    COLOUR = "#8c2d04"
    PUBLISHED: ClassVar = {
        "layout": ("half", "{}"),
        "base": (10_000, "base {:g}"),
        "rotated_share": (1, "{:.0%} of the width"),
        "proportion": (1, "p = {:g}"),
    }
    AFTER_TRAINING = frozenset({"scaling", "scaling_factor", "trained_length", "long_factors"})

    scheme: Literal["rope"]
    layout: Literal["half", "interleaved"]
    base: float = Field(gt=1)
    rotated_share: float = Field(gt=0, le=1)
    scaling: Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"]
    scaling_factor: float = Field(ge=1)
    proportion: float = Field(ge=0, le=1)
    trained_length: PositiveInt | None
    long_factors: tuple[PositiveFloat, ...] | None = None

    def details(self) -> list[str]:
        factors = " ".join(f"{factor:g}" for factor in self.long_factors or ())
        scaling = [
            f"{self.scaling} scaling by {self.scaling_factor:g}",
            *([f"trained to {self.trained_length}"] if self.scaling in _OF_LENGTH else []),
            *([f"long factors {factors}"] if self.scaling == "longrope" else []),
        ]
        return [*super().details(), *(scaling if self._scaled else [])]

    def problem(self, site: Site) -> str | None:
        width = self.rotated_share * site.d_head
        share = f"rotated_share: {self.rotated_share:g} of a head's {site.d_head} dimensions is {width:g}"
        if width != round(width) or round(width) % 2:
            return f"{share}, not an even number; dimensions are rotated in pairs: choose another share"
        pairs = round(width) // 2
        if 0 < self.proportion * pairs < 1:
            return f"proportion: {self.proportion:g} of {pairs} pairs rotates none; raise it, or choose position=none"
        if self.scaling in _OF_LENGTH and (self.trained_length or 0) < 2:
            length = "the length in training, in tokens; give position.trained_length="
            return f"trained_length: {self.scaling} scaling needs {length}"
        if self.scaling == "longrope" and len(self.long_factors or ()) != pairs:
            return f"long_factors: longrope scaling needs a number for each of the {pairs} pairs that rotate"
        if self.scaling == "ntk" and width == 2:
            return "scaling: ntk is undefined for a rotated width of 2; choose linear, or wider heads"
        return super().problem(site)

    def identity(self, site: Site | None = None) -> dict[str, Any]:
        unread = ["scaling", "scaling_factor"] if not self._scaled else []
        unread += ["trained_length"] if not self._scaled or self.scaling not in _OF_LENGTH else []
        unread += ["long_factors"] if not self._scaled or self.scaling != "longrope" else []
        return {name: value for name, value in super().identity(site).items() if name not in unread}

    @property
    def _scaled(self) -> bool:
        return self.scaling != "none" and self.scaling_factor != 1

    @property
    def ordered(self) -> bool:
        return self.absolute != "none" or self.proportion > 0

    def rotation(self, site: Site) -> Rotation | None:
        return None if self.query_log_scale or self.key_offset != "none" else self._rotation(site)

    def _rotation(self, site: Site) -> Rotation:
        width = round(self.rotated_share * site.d_head)
        base = self.base
        if self.scaling == "ntk":
            base *= self.scaling_factor ** (width / (width - 2))
        linear = self.scaling_factor if self.scaling == "linear" else 1.0
        rotation = Rotation(width, self.layout == "interleaved", base, linear, self.proportion)
        if self._scaled and self.scaling in _OF_LENGTH and self.trained_length is not None:
            factors = (self.long_factors,) if self.scaling == "longrope" else ()
            scaled: dict[str, Any] = {self.scaling: (*factors, self.scaling_factor, self.trained_length)}
            return rotation._replace(**scaled)
        return rotation

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        from rpr.model.rotation import angles, rotate

        of = self._rotation(site)
        cos_PW, sin_PW = angles(positions, of, q.dtype)
        q, k = (rotate(x, cos_PW, sin_PW, interleaved=of.interleaved) for x in (q, k))
        return q, k

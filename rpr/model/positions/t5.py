"""T5's relative bias: a learned bias for each head and bucket of distances, added to the score.

Raffel et al. 2020 (arXiv 1910.10683), section 2.1, and the authors' code where the paper leaves details open: half of
the buckets hold one distance each, the others grow logarithmically up to max_distance, and the last holds all larger
distances. In the encoder half of the buckets are for keys to the right; in the decoder all are for the past.
"""

# Shape suffixes: H heads, R = 2 max_distance + 1 rows.

from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from rpr.model.lazy_torch import Device, Tensor, torch
from rpr.model.positions.scheme import ByName, Scheme, Site, Tables, register


@register
class T5(Scheme):
    """T5's buckets, with one table for all layers of a stack or one per layer."""

    TITLE = "T5"
    VERSION = "1"
    COLOUR = "#d81b72"
    PUBLISHED: ClassVar = {"one_table": (True, "a table for each layer"), "scaled_queries": (True, "without 1/sqrt(d)")}

    scheme: Literal["t5"]
    buckets: int = Field(ge=4, multiple_of=4)
    max_distance: PositiveInt
    one_table: bool
    scaled_queries: bool

    def details(self) -> list[str]:
        usual = (self.buckets, self.max_distance) == (32, 128)
        return [*([] if usual else [f"{self.buckets} buckets to {self.max_distance}"]), *super().details()]

    def problem(self, site: Site) -> str | None:
        exact = (self.buckets if site.causal else self.buckets // 2) // 2
        if self.max_distance <= exact:
            return (
                f"max_distance: {self.max_distance} leaves no distances for the logarithmic half of "
                f"{self.buckets} buckets; choose more than {exact}"
            )
        return None

    @property
    def reach(self) -> int | None:
        return _edges(self.buckets, self.max_distance)[-1]  # of an encoder, whose buckets are fewer, a smaller one

    @property
    def shared_by_layers(self) -> bool:
        return self.one_table

    def parameters(self, site: Site) -> dict[str, Tensor]:
        return {"buckets": torch.empty(site.num_heads, self.buckets).normal_(std=site.d_model**-0.5)}

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        side = self.buckets if site.causal else self.buckets // 2
        buckets_R = _bucket_of_rows(side, self.max_distance, site.causal, max_distance, device)
        # Not index_select, whose gradient a GPU adds up in any order.
        return Tables(bias=torch.nn.functional.embedding(buckets_R, parameters["buckets"].T).T)

    @property
    def changes_queries(self) -> bool:
        return not self.scaled_queries

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        scale = self.query_scale(site)
        return (q if scale is None else q * scale), k

    def query_scale(self, site: Site) -> float | None:
        return None if self.scaled_queries else site.d_head**0.5


@lru_cache(maxsize=4)  # the same for all layers
def _bucket_of_rows(buckets: int, longest: int, causal: bool, max_distance: int, device: Device) -> Tensor:
    """The bucket of each distance, key minus query position, with as many buckets on a side."""
    with torch.inference_mode(False):
        distances_R = torch.arange(-max_distance, max_distance + 1, device=device)
        size = distances_R.clamp(max=0).neg() if causal else distances_R.abs()
        edges = torch.tensor(_edges(buckets, longest)).to(device, non_blocking=True)  # `device=` would wait for a GPU
        logarithmic = torch.bucketize(size, edges, right=True) + buckets // 2
        bucket_R = torch.where(size < buckets // 2, size, logarithmic)
        return bucket_R if causal else bucket_R + buckets * (distances_R > 0)


@lru_cache
def _edges(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each logarithmic bucket except the first, in integer arithmetic to avoid rounding."""
    exact = buckets // 2
    more = buckets - exact
    edges: list[int] = []
    for step in range(1, more):
        # the least n with log(n / exact) / log(max_distance / exact) >= step / more
        least = edges[-1] if edges else exact
        while least**more * exact**step < max_distance**step * exact**more:
            least += 1
        edges.append(least)
    return tuple(edges)

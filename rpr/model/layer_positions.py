"""A position scheme in the layers of one stack: its parameters, and its hooks applied to them."""

# Shape suffixes: B batch, H heads, P positions, D head width, M model width, X width of a key table.

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model.attention_inputs import AttentionInputs
from rpr.model.positions import Scheme, Site, Tables


class LayerPositions(nn.Module):
    """A scheme's parameters in one self-attention layer, or in all layers that share them."""

    def __init__(self, scheme: Scheme, site: Site) -> None:
        super().__init__()
        self.scheme = scheme
        self.site = site
        projections = scheme.projections(site)
        self._projections = tuple(projections)
        for name, value in {**projections, **scheme.parameters(site)}.items():
            self.register_parameter(name, nn.Parameter(value))

    def at(self, max_distance: int, device: torch.device) -> Tables:
        """The tables for sentences whose positions are at most max_distance apart."""
        return self.scheme.distance_tables(self._learned, self.site, max_distance, device)

    def prepare(self, q_BHPD: Tensor, k_BHPD: Tensor, positions_P: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Prepare queries and keys at these positions (int64; None: 0, 1, ...) for their product."""
        if not self.scheme.changes_queries:
            return q_BHPD, k_BHPD
        if positions_P is None:
            positions_P = torch.arange(q_BHPD.shape[2], device=q_BHPD.device)
        return self.scheme.prepare(q_BHPD, k_BHPD, positions_P, self._learned, self.site)

    def project(self, x_BPM: Tensor) -> dict[str, Tensor]:
        """The scheme's projections of the layer's input, [B, P, width] by name."""
        return {name: F.linear(x_BPM, self._learned[name]) for name in self._projections}

    def distance_queries(self, projected: dict[str, Tensor]) -> Tensor | None:
        """What multiplies the key table in place of the queries, [B, H, P, X]; None: the queries do."""
        return self.scheme.distance_queries(projected, self._learned, self.site)

    def key_bias(self, projected: dict[str, Tensor], before_BH: Tensor | None) -> Tensor | None:
        """The bias of each key, [B, H, P], after a key of that bias (None: from the first position on)."""
        if not self.scheme.has_key_bias:
            return None
        if before_BH is None:
            (x_BPY, *_) = projected.values()
            wide = torch.float64 if x_BPY.dtype == torch.float64 else torch.float32
            before_BH = x_BPY.new_zeros(len(x_BPY), self.site.num_heads, dtype=wide)
        return self.scheme.key_bias(projected, self._learned, self.site, before_BH)

    def inputs(self, x_BPM: Tensor, q_BHPD: Tensor, k_BHPD: Tensor, v_BHPD: Tensor) -> AttentionInputs:
        """What the attention of a layer with input x is computed from, at positions 0, 1, ..."""
        q_BHPD, k_BHPD = self.prepare(q_BHPD, k_BHPD)
        tables = self.at(q_BHPD.shape[2] - 1, q_BHPD.device)
        if not self._projections:
            return AttentionInputs(q_BHPD, k_BHPD, v_BHPD, *tables)
        projected = self.project(x_BPM)
        key_bias = self.key_bias(projected, before_BH=None)
        return AttentionInputs(q_BHPD, k_BHPD, v_BHPD, *tables, self.distance_queries(projected), key_bias)

    @property
    def _learned(self) -> dict[str, Tensor]:
        return dict(self._parameters)  # type: ignore[arg-type]  # none is None


def positions_of_layers(scheme: Scheme, site: Site) -> Sequence[LayerPositions | None]:
    """One for each layer of a stack: the same object if layers share it, None if the scheme does nothing in them."""
    shared: dict[int, LayerPositions] = {}
    of_layers: list[LayerPositions | None] = []
    for one in scheme.of_layers(site.num_layers):
        positions = shared.get(id(one))
        if positions is None and (one.has_tables or one.changes_queries or one.has_projections):
            positions = LayerPositions(one, site)
            if one.shared_by_layers:
                shared[id(one)] = positions
        of_layers.append(positions)
    return of_layers

"""A position scheme in the layers of one stack: its parameters, and its hooks applied to them."""

# Shape suffixes: B batch, H heads, P positions, D head width, M model width, X width of a key table, W angles,
# L positions with those before.

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model.attention.inputs import AttentionInputs, ChangeScores
from rpr.model.positions import Pairs, Scheme, Site, Tables
from rpr.model.rotation import rotate_by
from rpr.model.vectors import rows_of


class GivenPositions(NamedTuple):
    """Ascending positions, int64 [P], at most max_distance apart."""

    positions_P: Tensor
    max_distance: int

    def upto(self, length: int) -> "GivenPositions":
        """Those of the first `length` tokens."""
        return self._replace(positions_P=self.positions_P[:length])

    def rows(self, tables: Tables) -> Tensor | None:
        """The row of each pair of positions in tables, all of as many rows, [P, P]; None without any, or if positions
        are consecutive: their distances are those of 0, 1, ...
        """
        bias = None if tables.bias is None else tables.bias[..., None]
        present = {table.shape[-2] for table in (*tables[:2], bias) if table is not None}
        if not present or self.max_distance == len(self.positions_P) - 1:
            return None
        (num_rows,) = present
        return rows_of(self.positions_P - self.positions_P[:, None], num_rows)


@lru_cache(maxsize=4)
def consecutive(length: int, device: torch.device) -> GivenPositions:
    """0 .. length - 1: the same tensor for all layers, which compute once what they need of it."""
    with torch.inference_mode(False):
        return GivenPositions(torch.arange(length, device=device), length - 1)


@lru_cache(maxsize=4)  # the same tensor for all layers, which compute once what they need of it
def _column(positions_P: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return positions_P[:, None]


def positions_in_training(scheme: Scheme, length: int, device: torch.device) -> GivenPositions | None:
    """A random subset of positions for one forward pass (Ruoss et al. 2023, arXiv 2305.16843); None: 0, 1, ..."""
    if scheme.random_positions is None:
        return None
    last = max(scheme.random_positions, length)
    # Always on the CPU, whose generator a resumed run restores.
    return GivenPositions(torch.randperm(last)[:length].sort().values.to(device, non_blocking=True), last - 1)


class Running:
    """What runs over the text of each hypothesis, by name: its last values, [X, number, ...], 0 before its start."""

    def __init__(self) -> None:
        self._last: dict[str, Tensor] = {}

    def last(self, name: str, number: int, like_XP: Tensor) -> Tensor:
        """The last values before these, [X, P, ...]: [X, number, ...]."""
        if (held := self._last.get(name)) is None:
            return like_XP.new_zeros(len(like_XP), number, *like_XP.shape[2:])
        # After a prompt the hypotheses are alike.
        return held[:, held.shape[1] - number :].repeat_interleave(len(like_XP) // len(held), dim=0)

    def extended(self, name: str, number: int, values_XP: Tensor) -> Tensor:
        """The last values and these, which are the last ones from now on: [X, number + P, ...]."""
        self._last[name] = torch.cat([self.last(name, number, values_XP), values_XP], dim=1)
        return self._last[name]

    def follow(self, lengths_B: Tensor, longest: int) -> None:
        """Keep the last values of each prompt, padded to `longest`."""
        for name, whole in self._last.items():
            ends_BL = lengths_B[:, None] + torch.arange(whole.shape[1] - longest, device=lengths_B.device)
            self._last[name] = whole[torch.arange(len(whole), device=lengths_B.device)[:, None], ends_BL]

    def select(self, hypotheses: Tensor) -> None:
        """Those of other hypotheses, by their rows."""
        self._last = {name: last_X[hypotheses] for name, last_X in self._last.items()}


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
        return self.scheme.distance_tables(self._learned, self.site, max_distance, device)

    def prepare(self, q_BHPD: Tensor, k_BHPD: Tensor, positions_P: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys for their product, at these positions, int64."""
        if self.scheme.changes_queries:
            dtype = q_BHPD.dtype  # which a scheme may leave for float32
            prepared = self.scheme.prepare(q_BHPD, k_BHPD, positions_P, self._learned, self.site)
            q_BHPD, k_BHPD = (x.to(dtype) for x in prepared)
        if self.scheme.query_log_scale:
            q_BHPD = q_BHPD * self._growth(positions_P)[:, None].to(q_BHPD.dtype)
        return q_BHPD, k_BHPD

    def _growth(self, positions: Tensor) -> Tensor:
        growth = ((positions + 1).double() / self.scheme.query_log_floor).clamp(min=1).log()
        return 1 + self.scheme.query_log_scale * growth

    def offset_keys(self, at: str, k_BHPD: Tensor, starts: Tensor, running: Running | None) -> Tensor:
        """Keys of which half of the dimensions are those of the key before, after what ran before, where no text starts
        (bool, broadcastable to [B, 1, P, 1]); unchanged if `key_offset` is not `at` this place.
        """
        if not self.scheme.offsets_keys or self.scheme.key_offset_at != at:
            return k_BHPD
        if running is None:
            previous_BHPD = F.pad(k_BHPD, (0, 0, 1, -1))
        else:
            previous_BHPD = running.extended("key", 1, k_BHPD.transpose(1, 2))[:, :-1].transpose(1, 2)
        first = k_BHPD if self.scheme.key_offset_first == "own" else torch.zeros_like(k_BHPD)
        width = k_BHPD.shape[-1]
        dimensions_D = torch.arange(width, device=k_BHPD.device)
        if self.scheme.key_offset == "slow_pairs":  # of the pairs (i, i + D/2), the upper half
            dimensions_D, width = dimensions_D % (width // 2), width // 2
        return torch.where(dimensions_D >= width // 2, torch.where(starts, first, previous_BHPD), k_BHPD)

    def rotate(
        self, x_BPM: Tensor, q_BHPD: Tensor, k_BHPD: Tensor, hidden: Tensor | None, running: Running | None
    ) -> tuple[Tensor, ...]:
        """Rotate queries and keys by the angles that run over the text: over x but for what is hidden (bool [B, P, 1];
        None: nothing), after what ran before (None: nothing did).
        """
        scheme, history = self.scheme, self.scheme.HISTORY
        wide = torch.promote_types(x_BPM.dtype, torch.float32)
        with torch.autocast(x_BPM.device.type, enabled=False):
            x_BPM = x_BPM.to(wide) if hidden is None else x_BPM.to(wide).masked_fill(hidden, 0.0)
            x_BLM = F.pad(x_BPM, (0, 0, history, 0)) if running is None else running.extended("input", history, x_BPM)
            learned = {name: value.to(wide) for name, value in self._learned.items()}
            projected = {name: F.linear(x_BLM, learned[name]) for name in self._projections} | {"x": x_BLM}
            before_B1H1 = x_BPM.new_zeros(len(x_BPM), 1, self.site.num_heads, 1)
            before_B1H1 = before_B1H1 if running is None else running.last("angle", 1, before_B1H1)
            angles_BHPW = scheme.angles(projected, learned, self.site, before_B1H1[:, 0])
            if running is not None:
                running.extended("angle", 1, angles_BHPW.transpose(1, 2))
            return rotate_by(q_BHPD, k_BHPD, angles_BHPW)

    def of_input(
        self, x_BPM: Tensor, positions_BP: Tensor, before_BH: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """From projections of the layer's input: what multiplies the key table in place of the queries, [B, H, P, X],
        and the bias of each key, [B, H, P], after a key of that bias (None: from the first position on).
        """
        if not self._projections:
            return None, None
        learned = self._learned
        projected = {name: F.linear(x_BPM, learned[name].to(x_BPM.dtype)) for name in self._projections}
        queries = self.scheme.distance_queries(projected, learned, self.site)
        if queries is not None and self.scheme.query_log_scale and self.scheme.grows_distance_queries:
            queries = queries * self._growth(positions_BP)[:, None, :, None].to(queries.dtype)
        if not self.scheme.has_key_bias:
            return queries, None
        if before_BH is None:
            (x_BPY, *_) = projected.values()
            wide = torch.promote_types(x_BPY.dtype, torch.float32)
            before_BH = x_BPY.new_zeros(len(x_BPY), self.site.num_heads, dtype=wide)
        return queries, self.scheme.key_bias(projected, learned, self.site, before_BH)

    def change_scores(self, q_BHQD: Tensor, query_positions: Tensor, key_positions: Tensor) -> ChangeScores | None:
        """The scheme's change of scores for these queries, if it has any."""
        if not self.scheme.has_scores:
            return None

        def change(scores_BHQK: Tensor, visible: Tensor) -> Tensor:
            pairs = Pairs(scores_BHQK, visible, q_BHQD, query_positions, key_positions)
            changed = self.scheme.scores(pairs, self._learned, self.site)
            if changed.shape != scores_BHQK.shape:
                raise ValueError(f"scores returns {list(changed.shape)} from {list(scores_BHQK.shape)}")
            return changed

        return change

    def inputs(
        self, x_BPM: Tensor, q_BHPD: Tensor, k_BHPD: Tensor, v_BHPD: Tensor, given: GivenPositions | None = None,
        hidden: Tensor | None = None, running: Running | None = None,
    ) -> AttentionInputs:  # fmt: skip
        """What the attention of a layer with input x is computed from, at these positions (None: 0, 1, ...); `hidden`
        and `running` as in `rotate`, of whole texts.
        """
        # 1. Queries and keys, turned to their positions.
        positions_P, max_distance = given = given or consecutive(x_BPM.shape[1], x_BPM.device)
        if self.scheme.has_angles:
            q_BHPD, k_BHPD = self.rotate(x_BPM, q_BHPD, k_BHPD, hidden, running)
        q_BHPD, k_BHPD = self.prepare(q_BHPD, k_BHPD, positions_P)
        changes = self.scheme.has_scores and not self.scheme.ADDS_TO_SCORES
        if changes and q_BHPD.shape == v_BHPD.shape:  # each product would copy heads of a projection
            q_BHPD, k_BHPD, v_BHPD = torch.stack([q_BHPD, k_BHPD, v_BHPD])
        # 2. What the scheme adds to products of queries and keys.
        tables = self.at(max_distance, x_BPM.device)
        return AttentionInputs(
            q_BHPD, k_BHPD, v_BHPD, *tables, *self.of_input(x_BPM, positions_P[None]), labels=given.rows(tables),
            change_scores=self.change_scores(q_BHPD, _column(positions_P), positions_P),
            slopes=self.scheme.slopes(self.site), change_adds=self.scheme.ADDS_TO_SCORES,
        )  # fmt: skip

    @property
    def _learned(self) -> dict[str, Tensor]:
        return dict(self._parameters)  # type: ignore[arg-type]  # none is None


def positions_of_layers(scheme: Scheme, site: Site) -> Sequence[LayerPositions | None]:
    """One for each layer of a stack: the same object if layers share it, None if the scheme does nothing in them."""
    made: dict[int, LayerPositions] = {}
    of_layers: list[LayerPositions | None] = []
    for of_layer in scheme.of_layers(site.num_layers):
        if of_layer.acts_in_layers and not (of_layer.shared_by_layers and id(of_layer) in made):
            made[id(of_layer)] = LayerPositions(of_layer, site)
        of_layers.append(made.get(id(of_layer)))
    return of_layers

"""A position scheme in the layers of one stack: its parameters, and its hooks applied to them."""

# Shape suffixes: B batch, H heads, P positions, D head width, M model width, X width of a key table.

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
    """Positions other than 0, 1, ..., ascending int64 [P], at most max_distance apart."""

    positions_P: Tensor
    max_distance: int

    def upto(self, length: int) -> "GivenPositions":
        """Those of the first `length` tokens."""
        return self._replace(positions_P=self.positions_P[:length])

    def rows(self, tables: Tables) -> Tensor | None:
        """The row of each pair of positions in tables, [P, P]; None without any, or if positions are consecutive: their
        distances are those of 0, 1, ...
        """
        if self.max_distance == len(self.positions_P) - 1:
            return None
        present: list[int] = [
            table.shape[1 if name == "bias" else -2] for name, table in tables._asdict().items() if table is not None
        ]
        if not present:
            return None
        assert len(set(present)) == 1, f"tables of {present} rows, of which one label per pair selects rows"
        return rows_of(self.positions_P - self.positions_P[:, None], present[0])


def positions_in_training(scheme: Scheme, length: int, device: torch.device) -> GivenPositions | None:
    """A random subset of positions for one forward pass (Ruoss et al. 2023, arXiv 2305.16843); None: 0, 1, ..."""
    if scheme.random_positions is None:
        return None
    last = max(scheme.random_positions, length)
    # Always on the CPU, whose generator a resumed run restores.
    return GivenPositions(torch.randperm(last)[:length].sort().values.to(device, non_blocking=True), last - 1)


@lru_cache(maxsize=4)
def _positions_upto(length: int, device: torch.device) -> Tensor:
    """0 .. length - 1: the same tensor for all layers, which compute once what they need of it."""
    with torch.inference_mode(False):
        return torch.arange(length, device=device)


class Running:
    """What runs over the text of each hypothesis, by name: its last values, [X, number, ...], 0 before its start."""

    def __init__(self) -> None:
        self._last: dict[str, Tensor] = {}

    def last(self, name: str, number: int, like_XP: Tensor) -> Tensor:
        """The last values before these, [X, P, ...]: [X, number, ...]."""
        held = self._last.get(name)
        if held is None:
            return like_XP.new_zeros(len(like_XP), number, *like_XP.shape[2:])
        return held.repeat_interleave(len(like_XP) // len(held), dim=0)  # after a prompt the hypotheses are alike

    def extend(self, name: str, number: int, values_XP: Tensor, *, prompt: bool) -> None:
        """Append values, [X, P, ...]: of a prompt all are kept, until `follow` knows where each ends."""
        whole = torch.cat([self.last(name, number, values_XP), values_XP], dim=1)
        self._last[name] = whole if prompt else whole[:, -number:]

    def follow(self, lengths_B: Tensor, longest: int) -> None:
        """Keep the last values of each prompt."""
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
        """The tables for sentences whose positions are at most max_distance apart."""
        return self.scheme.distance_tables(self._learned, self.site, max_distance, device)

    @property
    def prepares(self) -> bool:
        """Whether `prepare` does anything."""
        return self.scheme.changes_queries or bool(self.scheme.query_log_scale)

    def prepare(self, q_BHPD: Tensor, k_BHPD: Tensor, positions_P: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Prepare queries and keys at these positions (int64; None: 0, 1, ...) for their product."""
        scheme = self.scheme
        if not self.prepares:
            return q_BHPD, k_BHPD
        if positions_P is None:
            positions_P = _positions_upto(q_BHPD.shape[2], q_BHPD.device)
        if scheme.changes_queries:
            dtype = q_BHPD.dtype  # which a scheme may leave for float32
            prepared = scheme.prepare(q_BHPD, k_BHPD, positions_P, self._learned, self.site)
            width, (q_BHPD, k_BHPD) = q_BHPD.shape[-1], (x.to(dtype) for x in prepared)
            if q_BHPD.shape[-1] != width:  # attention scales by the width of what it gets
                q_BHPD = q_BHPD * (q_BHPD.shape[-1] / width) ** 0.5
        if scheme.query_log_scale:
            q_BHPD = q_BHPD * self._growth(positions_P)[:, None].to(q_BHPD.dtype)
        return q_BHPD, k_BHPD

    def offset_keys(self, k_BHPD: Tensor, before_BH1D: Tensor, starts: Tensor) -> Tensor:
        """Keys of which half of the dimensions are those of the key before, after one key (0: none), where no text
        starts (bool, broadcastable to [B, 1, P, 1]).
        """
        previous_BHPD = torch.cat([before_BH1D, k_BHPD[:, :, :-1]], dim=2)
        first = k_BHPD if self.scheme.key_offset_first == "own" else torch.zeros_like(k_BHPD)
        width = k_BHPD.shape[-1]
        dimensions_D = torch.arange(width, device=k_BHPD.device)
        if self.scheme.key_offset == "slow_pairs":  # of the pairs (i, i + D/2), the upper half
            dimensions_D, width = dimensions_D % (width // 2), width // 2
        return torch.where(dimensions_D >= width // 2, torch.where(starts, first, previous_BHPD), k_BHPD)

    def _growth(self, positions: Tensor) -> Tensor:
        """Of queries at these positions, by `query_log_scale`, in float64."""
        growth = ((positions + 1).double() / self.scheme.query_log_floor).clamp(min=1).log()
        return 1 + self.scheme.query_log_scale * growth

    def rotate(
        self, x_BPM: Tensor, q_BHPD: Tensor, k_BHPD: Tensor, hidden: Tensor | None, running: Running | None, **how: bool
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by the angles that run over the text: over x but for what is hidden (bool [B, P, 1];
        None: nothing), after what ran before (None: from the first position on).
        """
        scheme, history = self.scheme, self.scheme.HISTORY
        wide = torch.promote_types(x_BPM.dtype, torch.float32)
        before = Running() if running is None else running
        with torch.autocast(x_BPM.device.type, enabled=False):
            x_BPM = x_BPM.to(wide) if hidden is None else x_BPM.to(wide).masked_fill(hidden, 0.0)
            x_BLM = torch.cat([before.last("input", history, x_BPM), x_BPM], dim=1)
            learned = {name: value.to(wide) for name, value in self._learned.items()}
            projected = {name: F.linear(x_BLM, learned[name]) for name in self._projections} | {"x": x_BLM}
            like_B1H1 = x_BPM.new_zeros(len(x_BPM), 1, self.site.num_heads, 1)
            angles_BHPW = scheme.angles(projected, learned, self.site, before.last("angle", 1, like_B1H1)[:, 0])
            if running is not None:
                running.extend("input", history, x_BPM, **how)
                running.extend("angle", 1, angles_BHPW.transpose(1, 2), **how)
            return rotate_by(q_BHPD, angles_BHPW), rotate_by(k_BHPD, angles_BHPW)

    def of_input(
        self, x_BPM: Tensor, positions_BP: Tensor, before_BH: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """From projections of the layer's input: what multiplies the key table in place of the queries, [B, H, P, X],
        and the bias of each key, [B, H, P], after a key of that bias (None: from the first position on).
        """
        if not self._projections:
            return None, None
        learned = self._learned
        projected = {name: F.linear(x_BPM, learned[name]) for name in self._projections}
        queries = self.scheme.distance_queries(projected, learned, self.site)
        if queries is not None and self.scheme.query_log_scale and self.scheme.grows_distance_queries:
            queries = queries * self._growth(positions_BP)[:, None, :, None].to(queries.dtype)
        if not self.scheme.has_key_bias:
            return queries, None
        if before_BH is None:
            (x_BPY, *_) = projected.values()
            wide = torch.float64 if x_BPY.dtype == torch.float64 else torch.float32
            before_BH = x_BPY.new_zeros(len(x_BPY), self.site.num_heads, dtype=wide)
        return queries, self.scheme.key_bias(projected, learned, self.site, before_BH)

    def change_scores(self, q_BHQD: Tensor, query_positions: Tensor, key_positions: Tensor) -> ChangeScores:
        """The scheme's change of scores for these queries."""

        def change(scores_BHQK: Tensor, visible: Tensor) -> Tensor:
            pairs = Pairs(scores_BHQK, visible, q_BHQD, query_positions, key_positions)
            changed = self.scheme.scores(pairs, self._learned, self.site)
            if changed.shape != scores_BHQK.shape:
                shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in pairs._asdict().items())
                raise ValueError(f"scores returns {list(changed.shape)} from {shapes}")
            return changed

        return change

    def inputs(
        self,
        x_BPM: Tensor,
        q_BHPD: Tensor,
        k_BHPD: Tensor,
        v_BHPD: Tensor,
        given: GivenPositions | None = None,
        hidden: Tensor | None = None,
        running: Running | None = None,
    ) -> AttentionInputs:
        """What the attention of a layer with input x is computed from, at these positions (None: 0, 1, ...); `hidden`
        and `running` as in `rotate`, of whole texts.
        """
        if self.scheme.has_angles:
            q_BHPD, k_BHPD = self.rotate(x_BPM, q_BHPD, k_BHPD, hidden, running, prompt=True)
        q_BHPD, k_BHPD = self.prepare(q_BHPD, k_BHPD, None if given is None else given.positions_P)
        tables = self.at(q_BHPD.shape[2] - 1 if given is None else given.max_distance, q_BHPD.device)
        labels, change = None if given is None else given.rows(tables), None
        if self.scheme.has_scores:
            at_P = torch.arange(q_BHPD.shape[2], device=q_BHPD.device) if given is None else given.positions_P
            change = self.change_scores(q_BHPD, at_P[:, None], at_P)
        places_P = _positions_upto(x_BPM.shape[1], x_BPM.device) if given is None else given.positions_P
        of_input = self.of_input(x_BPM, places_P[None])
        return AttentionInputs(q_BHPD, k_BHPD, v_BHPD, *tables, *of_input, labels=labels, change_scores=change)

    @property
    def _learned(self) -> dict[str, Tensor]:
        return dict(self._parameters)  # type: ignore[arg-type]  # none is None


def positions_of_layers(scheme: Scheme, site: Site) -> Sequence[LayerPositions | None]:
    """One for each layer of a stack: the same object if layers share it, None if the scheme does nothing in them."""
    shared: dict[int, LayerPositions] = {}
    of_layers: list[LayerPositions | None] = []
    for of_layer in scheme.of_layers(site.num_layers):
        positions = shared.get(id(of_layer))
        if positions is None and of_layer.acts_in_layers:
            positions = LayerPositions(of_layer, site)
            if of_layer.shared_by_layers:
                shared[id(of_layer)] = positions
        of_layers.append(positions)
    return of_layers

"""Step-by-step decoding: the cached state of the pieces so far, for attention of each hypothesis's newest piece.

Keys and values are never reordered. Every step adds one cache slot for each hypothesis of a sentence, and a mask marks
the slots that a hypothesis descends from: choosing other parents changes only this mask, not the cache. A sentence's
hypotheses are then N queries to the same slots, one product instead of N. The table rows follow from each slot's place
alone, so distances are correct at any length. Prompts of a decoder-only model fill the first slots, aligned on the
right: distances are then the same in every row, and a row's positions are its places minus its own offset.
"""

# Shape suffixes: B sentences, N hypotheses of each, X = B N rows, H heads, D head width, M model width, K slots,
# S source length.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model.layer_positions import LayerPositions, Running
from rpr.model.positions import Tables

INITIAL_CAPACITY = 128  # slots of a new cache, and distances that its tables cover; both double when exceeded


class KVCache:
    """Keys and values of one layer's self-attention, in a buffer with spare capacity; with a window of the last slots
    alone, which move to a new one when it is full.
    """

    def __init__(self) -> None:
        self.used = 0  # of the buffer
        self.bias_BHK: Tensor | None = None  # of the keys, where the positions have one
        self.running = Running()
        self._both_2BHKD: Tensor | None = None

    def add(
        self, k_BHND: Tensor, v_BHND: Tensor, bias_BHN: Tensor | None = None, last: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append a slot for each hypothesis: keys and values of the `last` slots (None: all), which alone are kept."""
        batch, heads, more, width = k_BHND.shape
        slots = self.used + more if last is None else last
        of_values = v_BHND.shape[-1]
        v_BHND = F.pad(v_BHND, (0, width - of_values))  # of one width in memory, if keys are wider
        if bias_BHN is not None:
            before = bias_BHN[..., :0] if self.bias_BHK is None else self.bias_BHK[:batch]
            self.bias_BHK = torch.cat([before, bias_BHN], dim=2)[..., -slots:]
        both = self._both_2BHKD
        least, held = max(INITIAL_CAPACITY, 2 * slots), self.used
        # Another buffer if this one is full, or, after a long prompt, far too large for a window.
        if both is None or held + more > both.shape[3] or both.shape[3] > 2 * least:
            self.used = max(0, slots - more)
            self._both_2BHKD = k_BHND.new_empty(2, batch, heads, least, width)
            if both is not None:
                self._both_2BHKD[..., : self.used, :] = both[:, :batch, :, held - self.used : held]
            both = self._both_2BHKD
        self.used += more
        for part, new in zip(both, (k_BHND, v_BHND), strict=True):
            part[:batch, :, self.used - more : self.used] = new
        keys_BHKD, values_BHKD = both[:, :batch, :, self.used - slots : self.used]
        return keys_BHKD, values_BHKD[..., :of_values]

    def align_right(self, offsets_B: Tensor) -> None:
        """Move the slots of each row to the right by its offset."""
        assert self._both_2BHKD is not None
        slots_BK = torch.arange(self.used, device=offsets_B.device) - offsets_B[:, None]
        index = slots_BK.clamp(min=0)[None, :, None, :, None]
        used = self._both_2BHKD[..., : self.used, :]
        used.copy_(torch.take_along_dim(used, index, dim=3))
        if self.bias_BHK is not None:
            self.bias_BHK = torch.take_along_dim(self.bias_BHK, index[0, ..., 0], dim=2)

    def keep(self, places: Tensor, sentences: Tensor) -> None:
        """Move sentence sentences[i] to row places[i]; all other rows keep their contents."""
        if self._both_2BHKD is not None:
            self._both_2BHKD[:, places, :, : self.used] = self._both_2BHKD[:, sentences, :, : self.used]
        if self.bias_BHK is not None:
            self.bias_BHK[places] = self.bias_BHK[sentences]


@dataclass
class DecoderState:
    """The state of decoding, for B sentences with N hypotheses each."""

    visible_BNK: Tensor  # where a hypothesis descends from a slot
    caches: list[KVCache]
    places_K: Tensor  # of the slots: positions plus the sentence's offset
    memories: list[Tensor] = field(default_factory=list)  # keys and values of the source in each layer, [2, B, H, S, D]
    mask_B11S: Tensor | None = None  # false where the source is padded; None if no sentence is
    offsets_B: Tensor | None = None  # None: no sentence has one
    num_prompt: int = 0  # places before the first piece fed
    length: int = 0  # places
    _slots_before: list[int] = field(default_factory=list)  # each place but the prompts'
    _tables: dict[int, tuple[int, Tables]] = field(default_factory=dict)
    _newest_X: Tensor | None = None  # of the step

    @staticmethod
    def begin(batch: int, num_layers: int, device: torch.device) -> DecoderState:
        """One hypothesis per sentence, no piece fed yet."""
        return DecoderState(
            visible_BNK=torch.ones(batch, 1, 0, dtype=torch.bool, device=device),
            caches=[KVCache() for _ in range(num_layers)],
            places_K=torch.empty(0, dtype=torch.int64, device=device),
        )

    def follow_prompts(self, lengths_B: Tensor, longest: int) -> None:
        """Continue prompts, padded on the right to `longest`, whose keys and values are all that the caches hold."""
        self.num_prompt = self.length = longest
        self.places_K = torch.arange(longest, device=lengths_B.device)
        offsets_B = longest - lengths_B
        for cache in self.caches:
            cache.running.follow(lengths_B, longest)
        self.visible_BNK = (self.places_K >= offsets_B[:, None])[:, None]
        if bool(offsets_B.any()):
            self.offsets_B = offsets_B
            for cache in self.caches:
                cache.align_right(offsets_B)

    def advance(self, hypotheses: int) -> None:
        """Add a slot for each of the N hypotheses of a sentence, visible to that hypothesis alone."""
        if self.length == self.num_prompt:  # nothing fed yet: N is free
            self.visible_BNK = self.visible_BNK.expand(-1, hypotheses, -1)
        batch, present, _ = self.visible_BNK.shape
        assert hypotheses == present, f"{hypotheses} hypotheses per sentence fed, but the state has {present}"
        self._slots_before.append(self.visible_BNK.shape[2])
        own_NN = torch.eye(hypotheses, dtype=torch.bool, device=self.visible_BNK.device)
        self.visible_BNK = torch.cat([self.visible_BNK, own_NN.expand(batch, -1, -1)], dim=2)
        self.places_K = torch.cat([self.places_K, self.places_K.new_full((hypotheses,), self.length)])
        self.length += 1
        self._newest_X = None

    def newest_X(self) -> Tensor:
        """The position of the newest piece of each hypothesis, int64: the same object in all layers of a step."""
        batch, hypotheses, _ = self.visible_BNK.shape
        if self._newest_X is None:
            place_X = self.places_K.new_full((batch * hypotheses,), self.length - 1)
            if self.offsets_B is not None:
                place_X -= self.offsets_B.repeat_interleave(hypotheses)
            self._newest_X = place_X
        return self._newest_X

    def bias_of_parents(self, cache: KVCache) -> Tensor | None:
        """The bias of the key before the newest of each hypothesis, [X, H], 0 at its start; None before any key."""
        if cache.bias_BHK is None:
            return None
        bias_BHK = cache.bias_BHK[: len(self.visible_BNK)]
        newest = self.visible_BNK.shape[1]
        descends_BNK = self.visible_BNK[..., :-newest][..., -bias_BHK.shape[2] :]
        slots_K = torch.arange(bias_BHK.shape[2], device=bias_BHK.device)
        last_BN = torch.where(descends_BNK, slots_K, -1).amax(-1)  # slots are in the order of time
        parents_BHN = torch.take_along_dim(bias_BHK, last_BN.clamp(min=0)[:, None], dim=2)
        return parents_BHN.masked_fill(last_BN[:, None] < 0, 0.0).transpose(1, 2).flatten(0, 1)

    def slots_within(self, window: int | None) -> int:
        """How many of the last slots are of the last `window` places."""
        first = 0 if window is None else max(0, self.length - window)
        before = first if first < self.num_prompt else self._slots_before[first - self.num_prompt]
        return self.visible_BNK.shape[2] - before

    def positions(self, slots: int) -> tuple[Tensor, Tensor]:
        """The positions of the newest pieces and of the last slots, [B, 1, N, 1] and [B, 1, 1, K]."""
        batch, hypotheses, _ = self.visible_BNK.shape
        slots_BK = self.places_K[-slots:].expand(batch, -1)
        if self.offsets_B is not None:
            slots_BK = slots_BK - self.offsets_B[:, None]
        return self.newest_X().view(batch, 1, hypotheses, 1), slots_BK[:, None, None]

    def position_vectors(self, positions: nn.Module, pieces_X1: Tensor) -> Tensor:
        """The vectors that `positions` adds to the newest pieces, [1, M] or [X, 1, M]."""
        if self.offsets_B is None:
            vectors: Tensor = positions(self.length - 1, pieces_X1)
            return vectors
        of_all: Tensor = positions(0, pieces_X1.expand(-1, self.length))  # [L, M], or [X, L, M] where pieces differ
        return of_all.expand(len(pieces_X1), -1, -1).take_along_dim(self.newest_X()[:, None, None], dim=1)

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        """Keep and reorder hypotheses, by rows, the same number for each sentence; and where some are done, the
        sentences that stay, in their new order: cheapest if most keep their rows.
        """
        batch = len(self.visible_BNK) if sentences is None else len(sentences)
        num_slots = self.visible_BNK.shape[2]
        self.visible_BNK = self.visible_BNK.flatten(0, 1)[hypotheses].view(batch, len(hypotheses) // batch, num_slots)
        for cache in self.caches:
            cache.running.select(hypotheses)
        if sentences is None:
            return
        places = (sentences != torch.arange(batch, device=sentences.device)).nonzero()[:, 0]
        moved = sentences[places]
        for memory_2BHSD in self.memories:
            memory_2BHSD[:, places] = memory_2BHSD[:, moved]
        for cache in self.caches:
            cache.keep(places, moved)
        if self.mask_B11S is not None:
            self.mask_B11S = self.mask_B11S[sentences]
        if self.offsets_B is not None:
            self.offsets_B = self.offsets_B[sentences]

    def tables(self, positions: LayerPositions) -> Tables:
        """A layer's tables, computed for up to twice the distances needed so far."""
        max_distance, tables = self._tables.get(id(positions), (-1, Tables()))
        if max_distance < self.length - 1:
            max_distance = max(INITIAL_CAPACITY, 2 * self.length)
            tables = positions.at(max_distance, self.places_K.device)
            self._tables[id(positions)] = max_distance, tables
        return tables

    def seen(self, slots: int) -> dict[str, Any]:
        """What the newest pieces see of the last slots, and their distances, as arguments of attention."""
        hypotheses = self.visible_BNK.shape[1]
        distances_K = self.places_K[-slots:] - (self.length - 1)
        mask = self.visible_BNK[:, None, :, -slots:]
        return {"mask": mask, "labels": distances_K, "first_query": slots - hypotheses}


@contextmanager
def float32_matmuls(precision: str | None) -> Iterator[None]:
    """Temporarily set the precision of float32 matmuls; None: no change."""
    before = torch.get_float32_matmul_precision()
    if precision in (None, before):
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def small_products_exact(like: Tensor) -> Iterator[None]:
    """Matmuls of a few rows in plain float32 on a CPU, and without autocast: in bfloat16 each of the many small
    matrices would be repacked for the chip's matrix units, three times slower at 4 x 64 x 60, and less exact.
    """
    device = like.device.type
    if device == "cpu" and torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled("cpu"):
        yield
        return
    with float32_matmuls("highest" if device == "cpu" else None), torch.autocast(device, enabled=False):
        yield

"""The paper's encoder-decoder Transformer: positions in self-attention, none in encoder-decoder attention.

Details that the paper does not state follow tensor2tensor's transformer_base_v1 of the time: post-norm, dropout on each
sublayer's output and on the summed embedding, projections without bias, Glorot-uniform matrices, one embedding matrix
for source, target and softmax, a zero vector as the decoder's first input.
"""

# Shape suffixes: B batch, S source length, T target length, H heads, Q queries, K keys, D head width, M model width,
# V vocabulary, N hypotheses of one source sentence (the beam), X = B N rows of hypotheses.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model import incremental
from rpr.model.attention import Implementation, attend, split_heads
from rpr.model.dropout import Dropout
from rpr.model.incremental import DecoderState, KVCache, Memory
from rpr.model.layer_positions import LayerPositions, positions_of_layers
from rpr.model.positions import AnyScheme, Site, Tables


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that determines a model's parameters and arithmetic."""

    vocabulary_size: int
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    dropout: float
    norm: str  # post | pre
    norm_epsilon: float
    encoder_positions: AnyScheme
    decoder_positions: AnyScheme
    pad: int = 0
    bos: int = 2  # its embedding is the zero vector

    def site(self, *, causal: bool) -> Site:
        """The self-attention of the decoder (causal) or of the encoder."""
        return Site(self.num_layers, self.num_heads, self.d_model, causal)


class SelfAttention(nn.Module):
    """Multi-head self-attention; its position parameters may be shared with other layers."""

    def __init__(self, config: TransformerConfig, positions: LayerPositions | None, *, causal: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.causal = causal
        self.implementation: Implementation = "auto"
        self.qkv = _projection(config.d_model, 3)
        self.output = _projection(config.d_model, 1)
        self.tables = positions  # the name in all existing checkpoints

    def forward(self, x_BQM: Tensor, mask: Tensor | None) -> Tensor:
        q_BHQD, k_BHKD, v_BHKD, tables = self.attended(self.qkv(x_BQM))
        z_BHQD = attend(
            q_BHQD,
            k_BHKD,
            v_BHKD,
            key_table=tables.keys,
            value_table=tables.values,
            bias_table=tables.bias,
            mask=mask,
            causal=self.causal,
            implementation=self.implementation,
        )
        out_BQM: Tensor = self.output(_join(z_BHQD))
        return out_BQM

    def attended(self, qkv_BQM: Tensor) -> tuple[Tensor, Tensor, Tensor, Tables]:
        """q, k, v [B, H, Q, D] prepared for attention, and the tables for their length."""
        q_BHQD, k_BHKD, v_BHKD = split_heads(qkv_BQM, self.num_heads)
        if self.tables is None:
            return q_BHQD, k_BHKD, v_BHKD, Tables()
        q_BHQD, k_BHKD = self.tables.prepare(q_BHQD, k_BHKD, first=0)
        return q_BHQD, k_BHKD, v_BHKD, self.tables.at(q_BHQD.shape[2] - 1, q_BHQD.device)

    def step(self, x_BNM: Tensor, cache: KVCache, state: DecoderState) -> Tensor:
        """The same for the newest piece of each hypothesis."""
        q_BNHD, k_BNHD, v_BNHD = self.qkv(x_BNM).view(*x_BNM.shape[:2], 3, self.num_heads, -1).unbind(2)
        tables = Tables()
        if self.tables is not None:
            # All these pieces are at the same position, so the hook gets hypotheses as its batch axis.
            q, k = (x.flatten(0, 1)[:, :, None] for x in (q_BNHD, k_BNHD))
            q, k = self.tables.prepare(q, k, first=state.length - 1)
            q_BNHD, k_BNHD = q.reshape(q_BNHD.shape), k.reshape(k_BNHD.shape)
            tables = state.tables(self.tables)
        out_BNM: Tensor = self.output(incremental.self_attention(q_BNHD, k_BNHD, v_BNHD, tables, cache, state))
        return out_BNM


class CrossAttention(nn.Module):
    """Encoder-decoder attention: sees order only through the encoder's output (the paper uses no tables here)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.query = _projection(config.d_model, 1)
        self.key_value = _projection(config.d_model, 2)
        self.output = _projection(config.d_model, 1)

    def project_memory(self, memory_BSM: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, [B, H, S, D] each: computed once per decoding."""
        k_BHSD, v_BHSD = (_split(part, self.num_heads) for part in self.key_value(memory_BSM).chunk(2, dim=-1))
        return k_BHSD, v_BHSD

    def forward(self, x_BTM: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q_BHTD = _split(self.query(x_BTM), self.num_heads)
        out: Tensor = self.output(_join(attend(q_BHTD, *memory, mask=mask)))
        return out

    def step(self, x_BNM: Tensor, memory: Memory, state: DecoderState) -> Tensor:
        """The same for the newest piece of each hypothesis."""
        q_BNHD = self.query(x_BNM).view(*x_BNM.shape[:2], self.num_heads, -1)
        out_BNM: Tensor = self.output(incremental.cross_attention(q_BNHD, memory, state))
        return out_BNM


class FeedForward(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTM: Tensor) -> Tensor:
        out: Tensor = self.outer(F.relu(self.inner(x_BTM), inplace=True))
        return out


class Residual(nn.Module):
    """A sublayer, then dropout, add and norm (post-norm); or norm, the sublayer, then dropout and add (pre-norm)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x_BTM: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        summed: Tensor = self.dropout.add(x_BTM, sublayer(self.norm(x_BTM) if self.pre else x_BTM))
        return summed if self.pre else self.norm(summed)


class EncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig, positions: LayerPositions | None) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x_BSM: Tensor, mask: Tensor) -> Tensor:
        x_BSM = self.around_attention(x_BSM, lambda y_BSM: self.self_attention(y_BSM, mask))
        out_BSM: Tensor = self.around_feed_forward(x_BSM, self.feed_forward)
        return out_BSM


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig, positions: LayerPositions | None) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, causal=True)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_cross_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x_BTM: Tensor, memory: tuple[Tensor, Tensor], memory_mask: Tensor) -> Tensor:
        x_BTM = self.around_attention(x_BTM, lambda y_BTM: self.self_attention(y_BTM, None))
        x_BTM = self.around_cross_attention(x_BTM, lambda y_BTM: self.cross_attention(y_BTM, memory, memory_mask))
        out_BTM: Tensor = self.around_feed_forward(x_BTM, self.feed_forward)
        return out_BTM

    def step(self, x_BNM: Tensor, cache: KVCache, memory: Memory, state: DecoderState) -> Tensor:
        """The same for the newest piece of each hypothesis."""
        x_BNM = self.around_attention(x_BNM, lambda y_BNM: self.self_attention.step(y_BNM, cache, state))
        x_BNM = self.around_cross_attention(x_BNM, lambda y_BNM: self.cross_attention.step(y_BNM, memory, state))
        out_BNM: Tensor = self.around_feed_forward(x_BNM, self.feed_forward)
        return out_BNM


class Transformer(nn.Module):
    """The encoder-decoder model; see the module's docstring."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_VM = nn.Parameter(torch.empty(config.vocabulary_size, config.d_model))
        nn.init.normal_(self.embedding_VM, std=config.d_model**-0.5)
        self.source_positions = config.encoder_positions.embeddings(config.d_model)
        self.target_positions = config.decoder_positions.embeddings(config.d_model)
        self.dropout = Dropout(config.dropout)
        of_encoder = positions_of_layers(config.encoder_positions, config.site(causal=False))
        self.encoder = nn.ModuleList([EncoderLayer(config, positions) for positions in of_encoder])
        of_decoder = positions_of_layers(config.decoder_positions, config.site(causal=True))
        self.decoder = nn.ModuleList([DecoderLayer(config, positions) for positions in of_decoder])
        final = nn.LayerNorm if config.norm == "pre" else None
        self.encoder_norm = nn.Identity() if final is None else final(config.d_model, eps=config.norm_epsilon)
        self.decoder_norm = nn.Identity() if final is None else final(config.d_model, eps=config.norm_epsilon)

    def use_attention(self, implementation: Implementation) -> None:
        """Select the implementation of self-attention; parameters and, up to rounding, results do not depend on it."""
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.implementation = implementation

    @property
    def _decoder_layers(self) -> list[DecoderLayer]:
        return [cast(DecoderLayer, layer) for layer in self.decoder]

    def encode(self, source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Encode pieces (with EOS, padded): memory [B, S, M] and its mask, False on padding, bool [B, 1, 1, S]."""
        mask = (source_BS != self.config.pad)[:, None, None, :]
        x_BSM = self._embed(source_BS, self.source_positions, first=0)
        for layer in self.encoder:
            x_BSM = layer(x_BSM, mask)
        memory_BSM: Tensor = self.encoder_norm(x_BSM)
        return memory_BSM, mask

    def decode(self, target_input_BT: Tensor, memory_BSM: Tensor, memory_mask: Tensor) -> Tensor:
        """All target positions at once (training): hidden states [B, T, M]; position t sees the inputs 0..t."""
        x_BTM = self._embed(target_input_BT, self.target_positions, first=0)
        for layer in self._decoder_layers:
            x_BTM = layer(x_BTM, layer.cross_attention.project_memory(memory_BSM), memory_mask)
        hidden_BTM: Tensor = self.decoder_norm(x_BTM)
        return hidden_BTM

    def forward(self, source_BS: Tensor, target_input_BT: Tensor) -> Tensor:
        """Hidden states [B, T, M], from which `logits` computes scores of the next piece."""
        return self.decode(target_input_BT, *self.encode(source_BS))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [..., V], through the shared embedding."""
        return F.linear(hidden, self.embedding_VM)

    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        memory_BSM, mask = self.encode(source_BS)
        projected = [layer.cross_attention.project_memory(memory_BSM) for layer in self._decoder_layers]
        memories = [Memory(k.transpose(-2, -1).contiguous(), v.contiguous()) for k, v in projected]
        return DecoderState.begin(memories, mask[:, 0, 0])

    def next_logits(self, pieces_X1: Tensor, state: DecoderState) -> Tensor:
        """Feed the next piece of every hypothesis (BOS first) and return the scores of the piece after it, [X, V]. The
        rows X are hypotheses, N consecutive ones for each sentence of the state.
        """
        return self.logits(self.next_hidden(pieces_X1, state))

    def next_hidden(self, pieces_X1: Tensor, state: DecoderState) -> Tensor:
        """As `next_logits`, but return the hidden states [X, M]."""
        x_X1M = self._embed(pieces_X1, self.target_positions, first=state.length)
        x_BNM = x_X1M.view(len(state.bias_BNK), -1, x_X1M.shape[2])
        state.advance(x_BNM.shape[1])
        for layer, cache, memory in zip(self._decoder_layers, state.caches, state.memories, strict=True):
            x_BNM = layer.step(x_BNM, cache, memory, state)
        hidden_XM: Tensor = self.decoder_norm(x_BNM).flatten(0, 1)
        return hidden_XM

    def _embed(self, pieces_BT: Tensor, positions: nn.Module | None, *, first: int) -> Tensor:
        x_BTM = F.embedding(pieces_BT, self.embedding_VM) * math.sqrt(self.config.d_model)
        x_BTM = x_BTM.masked_fill((pieces_BT == self.config.bos)[..., None], 0.0)
        if positions is not None:
            x_BTM = x_BTM + positions(first, pieces_BT).to(x_BTM.dtype)
        dropped: Tensor = self.dropout(x_BTM)
        return dropped


def _projection(d_model: int, parts: int) -> nn.Linear:
    """`parts` square projections in one matrix, without bias, each Glorot-uniform on its own."""
    linear = nn.Linear(d_model, parts * d_model, bias=False)
    for block in linear.weight.data.chunk(parts):
        nn.init.xavier_uniform_(block)
    return linear


def _split(x_BTM: Tensor, num_heads: int) -> Tensor:
    """[B, T, M] -> [B, H, T, D]."""
    return x_BTM.view(*x_BTM.shape[:2], num_heads, -1).transpose(1, 2)


def _join(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D] -> [B, T, M]."""
    return x_BHTD.transpose(1, 2).flatten(-2)

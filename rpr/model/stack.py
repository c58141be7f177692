"""The layers of a stack: self-attention, attention to an encoder's output where there is one, and feed-forward.

Details that the paper does not state follow tensor2tensor's transformer_base_v1 of the time: post-norm, dropout on each
sublayer's output, projections without bias, Glorot-uniform matrices. Positions enter self-attention alone.
"""

# Shape suffixes: B batch, S source length, T target length, H heads, Q queries, K keys, D head width, M model width,
# F feed-forward width, N hypotheses of one source sentence (the beam), X = B N rows of hypotheses.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model import devices
from rpr.model.attention import Implementation, attention_of, split_heads
from rpr.model.attention.composition import composed, weights
from rpr.model.attention.inputs import AttentionInputs
from rpr.model.cache import DecoderState, KVCache, small_products_exact
from rpr.model.config import StackShape, TransformerConfig
from rpr.model.layer_positions import GivenPositions, LayerPositions, Running, positions_of_layers
from rpr.model.layers import Dropout, Linear
from rpr.model.packing import Packing
from rpr.model.positions import Scheme, Tables

POSITIONS = 0x706F73  # added to the seed


class Encoded(NamedTuple):
    """An encoder's output [B, S, M], and its mask, bool [B, 1, 1, S], False on padding; None without any."""

    memory_BSM: Tensor
    mask_B11S: Tensor | None


class Reading(NamedTuple):
    """What the layers of a stack read besides their input, of all positions at once."""

    mask: Tensor | None = None  # bool, broadcastable to [B, H, T, T]; False hides a key
    memories: Sequence[tuple[Tensor, Tensor]] | None = None  # keys and values of the source [B, H, S, D], of each layer
    memory_mask: Tensor | None = None  # bool [B, 1, 1, S]
    caches: Sequence[KVCache] | None = None  # get the keys and values of each layer; empty without a `state`
    given: GivenPositions | None = None  # the positions; None: 0, 1, ...
    packing: Packing | None = None  # of rows that are several documents each
    state: DecoderState | None = None  # given, the input is one piece of each hypothesis, after those in the caches


class RMSNorm(nn.RMSNorm):
    """torch's (Zhang and Sennrich 2019, arXiv 1910.07467), with its sums in float32 or wider."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.normalized_shape, self.weight.to(wide), self.eps).to(x.dtype)


def norm_of(config: TransformerConfig) -> nn.Module:
    """The norm of a layer's width, [..., M]."""
    kind = RMSNorm if config.norm_type == "rmsnorm" else nn.LayerNorm
    return kind(config.d_model, eps=config.norm_epsilon)


class SelfAttention(nn.Module):
    """Multi-head self-attention; its position parameters, but not its sink, may be shared with other layers."""

    def __init__(
        self, config: TransformerConfig, positions: LayerPositions | None, scheme: Scheme, *, causal: bool
    ) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.causal = causal
        self.window = scheme.window
        self.sink = nn.Parameter(torch.zeros(config.num_heads)) if scheme.sink else None
        self.implementation: Implementation = "auto"
        self.qkv = _projection(config.d_model, 3)
        self.output = _projection(config.d_model, 1)
        d_head, norms = config.d_model // config.num_heads, ("query", "key") if config.qk_norm else ()
        self.norms = nn.ModuleDict({name: RMSNorm(d_head, eps=config.norm_epsilon) for name in norms})
        self.changes_heads = config.qk_norm or scheme.offsets_keys
        self.tables = positions  # the name in all existing checkpoints

    def forward(self, x_BQM: Tensor, qkv_BQX: Tensor, reading: Reading, cache: KVCache | None) -> Tensor:
        """Of x and its projection `qkv`. `cache` gets the keys and values."""

        def of_documents(x_PTM: Tensor, qkv_PTX: Tensor) -> Tensor:
            given = reading.given and reading.given.upto(x_PTM.shape[1])
            return _join(attention_of(self.inputs(x_PTM, None, given, qkv=qkv_PTX), self.implementation))

        if reading.packing is not None:
            z_BQM = reading.packing.apart(of_documents, x_BQM, qkv_BQX)
        elif reading.state is not None and cache is not None:
            z_BQM = _of_newest(self.newest_inputs(x_BQM, qkv_BQX, cache, reading.state))
        else:
            inputs = self.inputs(x_BQM, reading.mask, reading.given, cache, qkv_BQX)
            if cache is not None:
                cache.add(inputs.k, inputs.v, inputs.key_bias)
            z_BQM = _join(attention_of(inputs, self.implementation))
        out_BQM: Tensor = self.output(z_BQM)
        return out_BQM

    def inputs(
        self,
        x_BQM: Tensor,
        mask: Tensor | None,
        given: GivenPositions | None = None,
        cache: KVCache | None = None,
        qkv: Tensor | None = None,
    ) -> AttentionInputs:
        """What attention is computed from: x projected (already: `qkv`) and prepared, and the tables for its length."""
        q, k, v = split_heads(self.qkv(x_BQM) if qkv is None else qkv, self.num_heads)
        running = None if cache is None else cache.running
        if self.changes_heads:
            q, k = self._changed(q, k, _starts(mask, k), running)
        inputs, hidden_BP1 = AttentionInputs(q, k, v), None if mask is None else ~mask[:, 0, 0, :, None]
        if self.tables is not None:
            inputs = self.tables.inputs(x_BQM, q, k, v, given, hidden_BP1, running)
        return inputs._replace(mask=mask, causal=self.causal, window=self.window, sink=self.sink)

    def _changed(
        self, q_BHPD: Tensor, k_BHPD: Tensor, starts: Tensor, running: Running | None
    ) -> tuple[Tensor, Tensor]:
        """Each head of queries and keys by its root mean square, with a learned gain; keys offset before or after."""
        if self.tables is not None:
            k_BHPD = self.tables.offset_keys("before_norm", k_BHPD, starts, running)
        if self.norms:
            q_BHPD, k_BHPD = self.norms["query"](q_BHPD), self.norms["key"](k_BHPD)
        if self.tables is not None:
            k_BHPD = self.tables.offset_keys("after_norm", k_BHPD, starts, running)
        return q_BHPD, k_BHPD

    def newest_inputs(self, x_BNM: Tensor, qkv_BNX: Tensor, cache: KVCache, state: DecoderState) -> AttentionInputs:
        """As `inputs`, of the newest piece of each hypothesis, which `cache` gets."""
        # 1. Of one position of each row, [X, H, 1, D].
        x_X1M, newest_X = x_BNM.flatten(0, 1)[:, None], state.newest_X()
        q, k, v = qkv_BNX.view(len(x_X1M), 3, self.num_heads, 1, -1).unbind(1)
        if self.changes_heads:
            q, k = self._changed(q, k, (newest_X == 0)[:, None, None, None], cache.running)
        # 2. Positions. Each row has one of its own, so `prepare` gets all rows as one sentence, [1, H, X, D].
        tables, queries, bias = Tables(), None, None
        if (positions := self.tables) is not None:
            if positions.scheme.has_angles:
                q, k = positions.rotate(x_X1M, q, k, None, cache.running)
            prepared = positions.prepare(q.transpose(0, 2), k.transpose(0, 2), newest_X)
            q, k = (part.transpose(0, 2) for part in prepared)
            tables = state.tables(positions)
            queries, bias = positions.of_input(x_X1M, newest_X[:, None], state.bias_of_parents(cache))
        # 3. The hypotheses of each sentence, [B, H, N, D], and the slots that they see.
        q, k, v = (_of_sentences(part, len(x_BNM)) for part in (q, k, v))
        queries = None if queries is None else _of_sentences(queries, len(x_BNM))
        key_bias_BHN = None if bias is None else _of_sentences(bias, len(x_BNM))[..., 0]
        slots = state.slots_within(self.window)
        keys, values = cache.add(k, v, key_bias_BHN, slots)
        change = None if positions is None else positions.change_scores(q, *state.positions(slots))
        return AttentionInputs(
            q, keys, values, *tables, queries, cache.bias_BHK, self.sink, change_scores=change, **state.seen(slots)
        )


class CrossAttention(nn.Module):
    """Encoder-decoder attention: sees order only through the encoder's output (the paper uses no tables here)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.query = _projection(config.d_model, 1)
        self.key_value = _projection(config.d_model, 2)
        self.output = _projection(config.d_model, 1)

    def forward(
        self, q_BTM: Tensor, memory: tuple[Tensor, Tensor], mask_B11S: Tensor | None, *, newest: bool = False
    ) -> Tensor:
        """Of queries, of all positions or of the newest pieces, and of the keys and values of the source."""
        inputs = AttentionInputs(_split(q_BTM, self.num_heads), *memory, mask=mask_B11S)
        out: Tensor = self.output(_of_newest(inputs) if newest else _join(attention_of(inputs)))
        return out

    def weights(self, q_BTM: Tensor, memory: tuple[Tensor, Tensor], mask_B11S: Tensor | None) -> Tensor:
        """The attention weights [B, H, T, S] from the arguments of `forward`."""
        return weights(AttentionInputs(_split(q_BTM, self.num_heads), *memory, mask=mask_B11S))


class FeedForward(nn.Module):
    """Two matrices with biases, or SwiGLU (Shazeer 2020, arXiv 2002.05202): silu(x W_gate) times x W_up, without."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation, gated = config.activation, config.activation == "swiglu"
        self.inner = Linear(config.d_model, (1 + gated) * config.inner_width, bias=not gated)
        self.outer = Linear(config.inner_width, config.d_model, bias=not gated)
        for matrix in (*self.inner.weight.data.chunk(1 + gated), self.outer.weight):
            nn.init.xavier_uniform_(matrix)
        if not gated:
            nn.init.zeros_(self.inner.bias)
            nn.init.zeros_(self.outer.bias)

    def forward(self, inner_BTF: Tensor) -> Tensor:
        """Of the first matrix's product."""
        if self.activation == "swiglu":
            gate_BTF, up_BTF = inner_BTF.chunk(2, dim=-1)
            inner_BTF = F.silu(gate_BTF) * up_BTF
        elif self.activation == "gelu":
            inner_BTF = F.gelu(inner_BTF)
        else:
            inner_BTF = F.relu(inner_BTF)  # in place it would copy the gradient
        out: Tensor = self.outer(inner_BTF)
        return out


class Residual(nn.Module):
    """What is around a sublayer: after it dropout, add and norm (post-norm); or norm before it, then dropout and add
    (pre-norm).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm_of(config)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def before(self, x_BTM: Tensor, first: Linear) -> tuple[Tensor, Tensor, Tensor]:
        """x, what the sublayer reads, and the product of that with the sublayer's first matrix."""
        if self.pre:
            read_BTM = self.norm(x_BTM)
            return x_BTM, read_BTM, first(read_BTM)
        product_BTX, x_BTM = first.beside(x_BTM)
        return x_BTM, x_BTM, product_BTX

    def after(self, x_BTM: Tensor, y_BTM: Tensor) -> Tensor:
        """The sum of the layer's input and the sublayer's output."""
        summed_BTM = self.dropout.add(x_BTM, y_BTM)
        out_BTM: Tensor = summed_BTM if self.pre else self.norm(summed_BTM)
        return out_BTM


class Layer(nn.Module):
    """One layer of a stack; `cross_attention` is None in a stack that attends to no encoder."""

    def __init__(
        self, config: TransformerConfig, positions: LayerPositions | None, scheme: Scheme, shape: StackShape
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, positions, scheme, causal=shape.site.causal)
        self.cross_attention = CrossAttention(config) if shape.cross else None
        self.feed_forward = FeedForward(config)
        self.around_attention = Residual(config)
        self.around_cross_attention = Residual(config) if shape.cross else None
        self.around_feed_forward = Residual(config)

    def forward(
        self, x_BTM: Tensor, reading: Reading, cache: KVCache | None, memory: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        around, attention = self.around_attention, self.self_attention
        x_BTM, read_BTM, qkv_BTX = around.before(x_BTM, attention.qkv)
        x_BTM = around.after(x_BTM, attention(read_BTM, qkv_BTX, reading, cache))
        if (cross := self.cross_attention) is not None and (around_cross := self.around_cross_attention) is not None:
            assert memory is not None
            x_BTM, _, q_BTM = around_cross.before(x_BTM, cross.query)
            newest = reading.state is not None
            x_BTM = around_cross.after(x_BTM, cross(q_BTM, memory, reading.memory_mask, newest=newest))
        x_BTM, _, inner_BTF = self.around_feed_forward.before(x_BTM, self.feed_forward.inner)
        return self.around_feed_forward.after(x_BTM, self.feed_forward(inner_BTF))


def projected_memories(memory_BSM: Tensor, layers: Sequence[Layer]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of the source, [B, H, S, D] each, of all layers; on a GPU by one product."""
    readers = [layer.cross_attention for layer in layers if layer.cross_attention is not None]
    if devices.on_gpu(memory_BSM):
        all_weights = torch.cat([reader.key_value.weight for reader in readers])
        parts = F.linear(memory_BSM, all_weights).chunk(len(readers), dim=-1)
    else:
        parts = tuple(reader.key_value(memory_BSM) for reader in readers)
    halves = (part.chunk(2, dim=-1) for part in parts)
    return [(_split(k_BSM, readers[0].num_heads), _split(v_BSM, readers[0].num_heads)) for k_BSM, v_BSM in halves]


@contextmanager
def apart(config: TransformerConfig) -> Iterator[None]:
    """Draw the parameters of positions from random numbers of their own, so that decoder-only models of one seed start
    with the same other weights whatever their positions. The older architecture draws all from one sequence.
    """
    if config.architecture == "encoder_decoder":
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((torch.initial_seed() + POSITIONS) % 2**63)
        yield


def layers_of(config: TransformerConfig, shape: StackShape) -> nn.ModuleList:
    """The layers of a stack. A list, so that parameters keep the names of all checkpoints: `encoder.0. ...`."""
    with apart(config):
        of_layers = positions_of_layers(shape.scheme, shape.site)
    schemes = shape.scheme.of_layers(config.num_layers)
    return nn.ModuleList(Layer(config, *layer, shape) for layer in zip(of_layers, schemes, strict=True))


def _projection(d_model: int, parts: int) -> Linear:
    linear = Linear(d_model, parts * d_model, bias=False)
    for block in linear.weight.data.chunk(parts):
        nn.init.xavier_uniform_(block)
    return linear


def _starts(mask: Tensor | None, k_BHPD: Tensor) -> Tensor:
    """Where a text starts: at the first position, and after what is hidden from all; [P, 1] or [B, 1, P, 1]."""
    if mask is None:
        return (torch.arange(k_BHPD.shape[2], device=k_BHPD.device) == 0)[:, None]
    return F.pad(~mask, (1, -1), value=True).transpose(-1, -2)


def _split(x_BTM: Tensor, num_heads: int) -> Tensor:
    return x_BTM.view(*x_BTM.shape[:2], num_heads, -1).transpose(1, 2)


def _join(x_BHTD: Tensor) -> Tensor:
    return x_BHTD.transpose(1, 2).flatten(-2)


def _of_newest(inputs: AttentionInputs) -> Tensor:
    """Attention of the newest pieces, [B, N, M]: exact, so that no sentence depends on the others of its batch."""
    with small_products_exact(inputs.q):
        return _join(composed(inputs))


def _of_sentences(x_XH1D: Tensor, batch: int) -> Tensor:
    return x_XH1D.reshape(batch, -1, x_XH1D.shape[1], x_XH1D.shape[-1]).transpose(1, 2)

"""The architectures: stacks of layers that read a source and a target, with one embedding matrix for input and softmax.

Details that the paper does not state follow tensor2tensor's transformer_base_v1 of the time: dropout on the summed
embedding, one embedding matrix for source, target and softmax, a zero vector as the first input of the target.
"""

# Shape suffixes: B batch, S source length, T target length, L positions of a stack, M model width, V vocabulary,
# N hypotheses of one source sentence (the beam), X = B N rows of hypotheses.

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rpr.model.attention import Implementation
from rpr.model.cache import DecoderState
from rpr.model.config import StackShape, TransformerConfig
from rpr.model.layer_positions import positions_in_training
from rpr.model.layers import Dropout, linear
from rpr.model.packing import Packing
from rpr.model.stack import Encoded, Layer, Reading, apart, layers_of, norm_of, projected_memories


class StackModules(NamedTuple):
    """A stack of a model with the position vectors added to its embeddings (None: none) and its final norm."""

    shape: StackShape
    positions: nn.Module | None
    layers: Sequence[Layer]
    norm: nn.Module

    def through(self, x_BLM: Tensor, reading: Reading) -> Tensor:
        """What the layers make of their input, before the last norm, [B, L, M]."""
        for number, layer in enumerate(self.layers):
            cache, memory = (part[number] if part else None for part in (reading.caches, reading.memories))
            x_BLM = layer(x_BLM, reading, cache, memory)
        return x_BLM


class Transformer(nn.Module, ABC):
    """A model of any architecture (`build_model` builds it): hidden states of the target from a source and a target, at
    once or step by step.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_VM = nn.Parameter(torch.empty(config.vocabulary_size, config.d_model))
        nn.init.normal_(self.embedding_VM, std=config.d_model**-0.5)
        shapes = config.stacks()
        # In this order, which random numbers and the optimiser's state follow.
        for shape in shapes:
            with apart(config):
                setattr(self, _POSITIONS[shape.name], shape.scheme.embeddings(config.d_model))
        self.dropout = Dropout(config.dropout)
        for shape in shapes:
            setattr(self, shape.name, layers_of(config, shape))
        for shape in shapes:
            pre = config.norm == "pre"
            setattr(self, f"{shape.name}_norm", norm_of(config) if pre else nn.Identity())

    def stacks(self) -> tuple[StackModules, ...]:
        """The modules of each stack, as `config.stacks()`."""
        names = ((_POSITIONS[shape.name], shape.name, f"{shape.name}_norm") for shape in self.config.stacks())
        modules = ([getattr(self, name) for name in of_stack] for of_stack in names)
        return tuple(map(StackModules, self.config.stacks(), *zip(*modules, strict=True)))

    @abstractmethod
    def inputs(self, source_BS: Tensor, target_input_BT: Tensor) -> tuple[Tensor, ...]:
        """The pieces that each stack reads, [B, L], padded on the right."""

    @abstractmethod
    def forward(
        self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0, padded: bool = True, packed: bool = False
    ) -> Tensor:
        """Hidden states [B, T, M], from which `logits` computes scores of the next piece, of sources with EOS and of
        BOS and the target without its last piece, padded on the right. Position t sees the source and the inputs 0 ..
        t.

        Args:
            shift: as many hidden PAD before the source: all its positions are later.
            padded: False if no source is: then nothing is masked.
            packed: rows are several documents each, one from each BOS on, read as if alone (of a single stack).
        """

    @abstractmethod
    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        """The state before BOS; a sentence's steps do not depend on the other sources."""

    def use_attention(self, implementation: Implementation) -> None:
        """Select the implementation of self-attention; but for rounding, nothing depends on it."""
        for stack in self.stacks():
            for layer in stack.layers:
                layer.self_attention.implementation = implementation

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [..., V], through the shared embedding."""
        return linear(hidden, self.embedding_VM)

    def next_hidden(self, pieces_X1: Tensor, state: DecoderState) -> Tensor:
        """Feed the next piece of every hypothesis (BOS first), N consecutive rows for each sentence of the state: the
        hidden states from which `logits` computes scores of the piece after it, [X, M].
        """
        stack = self.stacks()[-1]
        state.advance(len(pieces_X1) // len(state.visible_BNK))
        vectors = None if stack.positions is None else state.position_vectors(stack.positions, pieces_X1)
        x_BNM = self._embed(pieces_X1, vectors).view(len(state.visible_BNK), -1, self.config.d_model)
        memories = [(k_BHSD[: len(x_BNM)], v_BHSD[: len(x_BNM)]) for k_BHSD, v_BHSD in state.memories]
        reading = Reading(None, memories, state.mask_B11S, state.caches, state=state)
        hidden_XM: Tensor = stack.norm(stack.through(x_BNM, reading)).flatten(0, 1)
        return hidden_XM

    def _hidden(self, stack: StackModules, pieces_BL: Tensor, reading: Reading) -> Tensor:
        """A stack's hidden states before the last norm, [B, L, M]; here its positions are drawn."""
        given, vectors, packing = None, None, reading.packing
        if self.training:
            longest = pieces_BL.shape[1] if packing is None else packing.longest
            given = positions_in_training(stack.shape.scheme, longest, pieces_BL.device)
        if stack.positions is not None:
            at: int | Tensor = 0 if given is None else given.positions_P
            if packing is not None:
                at = packing.places_BL if given is None else given.positions_P[packing.places_BL]
            vectors = stack.positions(at, pieces_BL)
        return stack.through(self._embed(pieces_BL, vectors), reading._replace(given=given))

    def _embed(self, pieces_BL: Tensor, vectors: Tensor | None) -> Tensor:
        """The input of a stack, [B, L, M], with the vectors of the pieces' positions, if any."""
        x_BLM = F.embedding(pieces_BL, self.embedding_VM) * math.sqrt(self.config.d_model)
        if self.config.zero_bos:
            x_BLM = x_BLM.masked_fill((pieces_BL == self.config.bos)[..., None], 0.0)
        if vectors is not None:
            x_BLM = x_BLM + vectors.to(x_BLM.dtype)
        layer = self.stacks()[-1].layers[0]  # which a training step may have rounded
        dropped: Tensor = self.dropout(x_BLM.to(layer.self_attention.qkv.weight.dtype))
        return dropped


_POSITIONS = {"encoder": "source_positions", "decoder": "target_positions"}  # names in all checkpoints


class EncoderDecoder(Transformer):
    """The paper's: an encoder reads the source; a causal decoder reads the target and attends to the encoder's output,
    without positions there.
    """

    def inputs(self, source_BS: Tensor, target_input_BT: Tensor) -> tuple[Tensor, ...]:
        return source_BS, target_input_BT

    def encode(self, source_BS: Tensor, *, padded: bool = True) -> Encoded:
        encoder, _ = self.stacks()
        mask_B11S = (source_BS != self.config.pad)[:, None, None, :] if padded else None
        return Encoded(encoder.norm(self._hidden(encoder, source_BS, Reading(mask_B11S))), mask_B11S)

    def forward(
        self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0, padded: bool = True, packed: bool = False
    ) -> Tensor:
        assert not packed, "of a single stack"
        if shift:
            source_BS = F.pad(source_BS, (shift, 0), value=self.config.pad)
        memory_BSM, mask_B11S = self.encode(source_BS) if padded or shift else self.encode(source_BS, padded=False)
        _, decoder = self.stacks()
        reading = Reading(memories=projected_memories(memory_BSM, decoder.layers), memory_mask=mask_B11S)
        hidden_BTM: Tensor = decoder.norm(self._hidden(decoder, target_input_BT, reading))
        return hidden_BTM

    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        memory_BSM, mask_B11S = self.encode(source_BS)
        _, decoder = self.stacks()
        state = DecoderState.begin(len(source_BS), len(decoder.layers), source_BS.device)
        state.memories += [torch.stack(memory) for memory in projected_memories(memory_BSM, decoder.layers)]
        assert mask_B11S is not None
        state.mask_B11S = None if bool(mask_B11S.all()) else mask_B11S
        return state


class DecoderOnly(Transformer):
    """One causal stack that reads the source, BOS and the target as a single sequence, and returns hidden states of the
    target part alone. Text alone has an empty source, [B, 0], which costs nothing.

    The target of each row follows its own source directly, and all padding is on the right, where causal attention
    never looks: positions count from 0, no mask is needed, and no row depends on the rest of its batch.
    """

    def inputs(self, source_BS: Tensor, target_input_BT: Tensor) -> tuple[Tensor, ...]:
        if not source_BS.shape[1]:
            return (target_input_BT,)
        source, target = source_BS.shape[1], target_input_BT.shape[1]
        lengths_B1 = self._lengths(source_BS)[:, None]
        places_L = torch.arange(source + target, device=source_BS.device)
        # The source's pieces, all places of the target, then the source's padding.
        after_BL = torch.where(places_L < lengths_B1 + target, places_L + (source - lengths_B1), places_L - target)
        from_BL = torch.where(places_L < lengths_B1, places_L, after_BL)
        return (torch.cat([source_BS, target_input_BT], dim=1).gather(1, from_BL),)

    def forward(
        self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0, padded: bool = True, packed: bool = False
    ) -> Tensor:
        (pieces_BL,) = self.inputs(source_BS, target_input_BT)
        (stack,) = self.stacks()
        mask_B11L = None
        if shift:
            pieces_BL = F.pad(pieces_BL, (shift, 0), value=self.config.pad)
            mask_B11L = (pieces_BL != self.config.pad)[:, None, None, :]
        reading = Reading(mask_B11L, packing=Packing.of(pieces_BL == self.config.bos) if packed else None)
        hidden_BLM: Tensor = stack.norm(self._hidden(stack, pieces_BL, reading))[:, shift:]
        if not source_BS.shape[1]:
            return hidden_BLM
        batch, length, _ = hidden_BLM.shape
        firsts_B = torch.arange(0, batch * length, length, device=source_BS.device) + self._lengths(source_BS)
        places_BT = firsts_B[:, None] + torch.arange(target_input_BT.shape[1], device=source_BS.device)
        target_NM = hidden_BLM.flatten(0, 1).index_select(0, places_BT.flatten())
        return target_NM.view(*places_BT.shape, -1)

    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        (stack,) = self.stacks()
        state = DecoderState.begin(len(source_BS), len(stack.layers), source_BS.device)
        if source_BS.shape[1]:
            self._hidden(stack, source_BS, Reading(caches=state.caches))
            state.follow_prompts(self._lengths(source_BS), source_BS.shape[1])
        return state

    def _lengths(self, source_BS: Tensor) -> Tensor:
        return (source_BS != self.config.pad).sum(dim=1)


def build_model(config: TransformerConfig) -> Transformer:
    """A model with new weights."""
    return DecoderOnly(config) if config.architecture == "decoder_only" else EncoderDecoder(config)

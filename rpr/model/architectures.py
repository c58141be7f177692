"""The architectures: stacks of layers that read a source and a target."""

# Shape suffixes: B batch, S source length, T target length, L = S + T, M model width.

import torch
import torch.nn.functional as F
from torch import Tensor

from rpr.model.config import TransformerConfig
from rpr.model.incremental import DecoderState, Memory
from rpr.model.stack import CrossAttention, Encoded, Reading
from rpr.model.transformer import Transformer


class EncoderDecoder(Transformer):
    """The paper's: an encoder reads the source; a causal decoder reads the target and attends to the encoder's output,
    without positions there.
    """

    def inputs(self, source_BS: Tensor, target_input_BT: Tensor) -> tuple[Tensor, ...]:
        return source_BS, target_input_BT

    def encode(self, source_BS: Tensor) -> Encoded:
        encoder, _ = self.stacks()
        mask_B11S = (source_BS != self.config.pad)[:, None, None, :]
        x_BSM = self._hidden(encoder, source_BS, Reading(mask_B11S))
        return Encoded(encoder.norm(x_BSM), mask_B11S)

    def forward(self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0) -> Tensor:
        if shift:
            source_BS = F.pad(source_BS, (shift, 0), value=self.config.pad)
        encoded = self.encode(source_BS)
        _, decoder = self.stacks()
        x_BTM = self._hidden(decoder, target_input_BT, Reading(encoded=encoded))
        hidden_BTM: Tensor = decoder.norm(x_BTM)
        return hidden_BTM

    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        memory_BSM, mask_B11S = self.encode(source_BS)
        _, decoder = self.stacks()
        memories = []
        for layer in decoder.layers.layers:
            assert isinstance(layer.cross_attention, CrossAttention)
            k_BHSD, v_BHSD = layer.cross_attention.project_memory(memory_BSM)
            memories.append(Memory(k_BHSD.transpose(-2, -1).contiguous(), v_BHSD.contiguous()))
        state = DecoderState.begin(len(source_BS), len(memories), like=memories[0].keys_BHDS)
        state.attend_to(memories, mask_B11S[:, 0, 0])
        return state


class DecoderOnly(Transformer):
    """One causal stack that reads the source, BOS and the target as a single sequence, and returns hidden states of the
    target part alone.

    The sequence of each row is contiguous: its target follows its own source directly, and all padding is on the right,
    where causal attention never looks. So positions count from 0 in every row, no mask is needed, and the result for a
    row does not depend on the rest of its batch, whatever the position scheme. Text alone is the case of an empty
    source, [B, 0], which costs nothing.
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

    def forward(self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0) -> Tensor:
        (pieces_BL,) = self.inputs(source_BS, target_input_BT)
        (stack,) = self.stacks()
        mask_B11L = None
        if shift:
            pieces_BL = F.pad(pieces_BL, (shift, 0), value=self.config.pad)
            mask_B11L = (pieces_BL != self.config.pad)[:, None, None, :]
        hidden_BLM: Tensor = stack.norm(self._hidden(stack, pieces_BL, Reading(mask_B11L)))[:, shift:]
        if not source_BS.shape[1]:
            return hidden_BLM
        batch, length, _ = hidden_BLM.shape
        firsts_B = torch.arange(0, batch * length, length, device=source_BS.device) + self._lengths(source_BS)
        places_BT = firsts_B[:, None] + torch.arange(target_input_BT.shape[1], device=source_BS.device)
        target_NM = hidden_BLM.flatten(0, 1).index_select(0, places_BT.flatten())
        return target_NM.view(*places_BT.shape, -1)

    def start_decoding(self, source_BS: Tensor) -> DecoderState:
        (stack,) = self.stacks()
        state = DecoderState.begin(len(source_BS), len(stack.layers), like=self.embedding_VM)
        if source_BS.shape[1]:
            self._hidden(stack, source_BS, Reading(caches=state.caches))
            state.follow_prompts(self._lengths(source_BS), source_BS.shape[1])
        return state

    def _lengths(self, source_BS: Tensor) -> Tensor:
        """The pieces of each source without padding, [B]."""
        return (source_BS != self.config.pad).sum(dim=1)


ARCHITECTURES = {"encoder_decoder": EncoderDecoder, "decoder_only": DecoderOnly}


def build_model(config: TransformerConfig) -> Transformer:
    """A model with new weights."""
    return ARCHITECTURES[config.architecture](config)

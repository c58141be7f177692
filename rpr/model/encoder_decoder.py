"""The paper's encoder-decoder Transformer: positions in self-attention, none in encoder-decoder attention."""

# Shape suffixes: B batch, S source length, T target length, M model width.

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rpr.model.incremental import DecoderState, Memory
from rpr.model.stack import CrossAttention, Encoded
from rpr.model.transformer import Transformer


class EncoderDecoder(Transformer):
    """An encoder reads the source; a causal decoder reads the target and attends to the encoder's output."""

    def inputs(self, source_BS: Tensor, target_input_BT: Tensor) -> tuple[Tensor, ...]:
        return source_BS, target_input_BT

    def encode(self, source_BS: Tensor) -> Encoded:
        encoder, _ = self.stacks()
        mask_B11S = (source_BS != self.config.pad)[:, None, None, :]
        x_BSM = self._hidden(encoder, source_BS, mask_B11S)
        return Encoded(encoder.norm(x_BSM), mask_B11S)

    def forward(self, source_BS: Tensor, target_input_BT: Tensor, *, shift: int = 0) -> Tensor:
        if shift:
            source_BS = F.pad(source_BS, (shift, 0), value=self.config.pad)
        encoded = self.encode(source_BS)
        _, decoder = self.stacks()
        x_BTM = self._hidden(decoder, target_input_BT, encoded=encoded)
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

"""What determines a model: its architecture, sizes and positions. Without torch, for the configuration of runs."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rpr.model.positions import AnyScheme, Scheme, Site

Architecture = Literal["encoder_decoder", "decoder_only"]
Activation = Literal["relu", "gelu", "swiglu"]
NormType = Literal["layernorm", "rmsnorm"]
LONGEST_SCORES = 4096  # tokens of a context, of schemes that change scores: float32 of one head is 64 MiB
WIDEST_TRITON_HEAD = 256  # of the fused kernel: wider tiles do not fit into shared memory


class StackShape(NamedTuple):
    """One stack of layers: its name, positions and self-attention, and whether it also attends to an encoder."""

    name: Literal["encoder", "decoder"]
    scheme: Scheme
    site: Site
    cross: bool

    def too_long(self, longest: int, of_what: str) -> str | None:
        """Why the scheme cannot be used for texts of `longest` tokens; None if it can."""
        if longest <= LONGEST_SCORES or not any(part.has_scores for part in self.scheme.parts):
            return None
        return (
            f"{self.scheme.name} holds the scores of all pairs of tokens, too many for {longest} ({of_what}); at most "
            f"{LONGEST_SCORES}"
        )


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that determines a model's parameters and arithmetic. `num_layers` are those of each stack."""

    vocabulary_size: int
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    dropout: float
    norm: str  # post | pre
    norm_epsilon: float
    encoder_positions: AnyScheme | None  # None without an encoder
    decoder_positions: AnyScheme
    pad: int = 0
    bos: int = 2
    zero_bos: bool = True  # the input of BOS is the zero vector, not its embedding
    architecture: Architecture = "encoder_decoder"
    activation: Activation = "relu"
    norm_type: NormType = "layernorm"
    qk_norm: bool = False

    @property
    def inner_width(self) -> int:
        """Of the feed-forward networks: with a gate, which is a third matrix, 2/3 of d_ff, up to a multiple of 8."""
        return -(-self.d_ff * 2 // 24) * 8 if self.activation == "swiglu" else self.d_ff

    def block_refused(self, by: str) -> str | None:
        """Why an export that knows only LayerNorm, ReLU and GELU cannot hold the layers; None if it can."""
        unknown = {"norm_type": "rmsnorm", "activation": "swiglu", "qk_norm": True}
        setting = next((f"{name}: {value}" for name, value in unknown.items() if getattr(self, name) == value), None)
        return setting and f"model.{setting} has no exact form in {by}; use format=safetensors"

    def stacks(self) -> tuple[StackShape, ...]:
        """Its stacks in the order in which they are computed; the first one reads the source."""
        schemes = {"encoder": self.encoder_positions, "decoder": self.decoder_positions}
        return tuple(
            StackShape(
                name,
                scheme,
                Site(self.num_layers, self.num_heads, self.d_model, causal=name == "decoder"),
                cross=name == "decoder" and self.architecture == "encoder_decoder",
            )
            for name in ("encoder", "decoder")
            if (scheme := schemes[name]) is not None
        )

"""Variants of every position scheme, and of models that use them, as changes for `tests.shapes.changed`."""

from functools import cache
from typing import Any

import pytest

from rpr.model.positions import Scheme
from tests.shapes import scheme

# The equations also rule out known faults: rotating half the width (x-transformers), confusing the two layouts
# (transformers#25199, nanochat#264), T5's bias times sqrt(d) (x-transformers), Transformer-XL's shift in another order
# or with L rows where an encoder needs 2L-1.
VARIANTS: dict[str, dict[str, Any]] = {
    "relative": {"clip_distance": 3},
    "relative_keys": {"tables": "shared_by_heads"},
    "rope": {},
    "rope interleaved": {"layout": "interleaved"},
    "rope partial": {"rotated_share": 0.5, "base": 30.0},
    "rope linear": {"scaling": "linear", "scaling_factor": 2.5},
    "rope ntk": {"scaling": "ntk", "scaling_factor": 4.0},
    "rope p": {"proportion": 0.5},
    "rope yarn": {"scaling": "yarn", "scaling_factor": 4.0, "trained_length": 300, "base": 50.0},
    "rope llama3": {"scaling": "llama3", "scaling_factor": 4.0, "trained_length": 40, "base": 50.0},
    "rope longrope": {"scaling": "longrope", "scaling_factor": 4, "trained_length": 30, "long_factors": (1, 1.5, 2, 3)},
    "xpos": {"scale_base": 9.0},
    "xpos partial": {"rotated_share": 0.75, "layout": "interleaved", "gamma": 0.3},
    "t5": {"buckets": 8, "max_distance": 5},
    "t5 unscaled": {"buckets": 8, "max_distance": 5, "scaled_queries": False, "one_table": False},
    "alibi": {},
    "alibi one side": {"encoder_form": "one_side_per_head"},
    "alibi asymmetric": {"encoder_form": "asymmetric"},
    "kerple": {},
    "kerple power": {"form": "power"},
    "clipped_scalars": {"clip_distance": 2},
    "clipped_scalars keys": {"clip_distance": 2, "keys": True},
    "transformer_xl": {},
    "relative_logits": {"rank": 3, "extent": 4},
    "relative_logits long": {},
    "relative_logits clipped": {
        "rank": 3,
        "extent": 4,
        "clip_logits": 1.1,
        "clip_queries": 1.9,
        "query_log_scale": 0.7,
        "query_log_floor": 3,
    },
    "fox": {},
    "fire": {"initial_threshold": 2.0},
    "cope": {"num_positions": 4},
    "pope": {},
    "selective_rope": {"rank": 3, "base": 7.0},
    "selective_rope gate": {"rank": 2, "gate": True},
    "rope log": {"query_log_scale": 0.7, "query_log_floor": 3},
    "relative_keys log": {"query_log_scale": 0.1, "query_log_floor": 2},
}


@cache
def variant_scheme(variant: str) -> Scheme:
    return scheme(variant.partition(" ")[0], **VARIANTS[variant])


CAUSAL = ("xpos", "fox", "fire", "cope", "selective_rope")  # defined for causal attention only


def both(positions: Scheme) -> dict[str, Any]:
    encoder = scheme("none") if positions.scheme in CAUSAL else positions
    return {"encoder_positions": encoder, "decoder_positions": positions}


RELATIVE = {"relative_keys": True, "relative_values": True}
VECTORS: dict[str, dict[str, Any]] = {
    "none": {},
    "sinusoidal": {"absolute": "sinusoidal"},
    "learned": {"absolute": "learned", "max_positions": 6},  # fewer than pieces
    "relative": RELATIVE,
    "relative_k_0": RELATIVE | {"clip_distance": 0},
    "relative_keys": {"relative_keys": True},
    "relative_values": {"relative_values": True},
    "shared_by_heads": RELATIVE | {"tables": "shared_by_heads"},
    "shared_by_heads_and_layers": RELATIVE | {"tables": "shared_by_heads_and_layers"},
    "sinusoidal_and_relative": RELATIVE | {"absolute": "sinusoidal"},
}
# Of those that differ in numbers alone one is enough in a model: all are in tests/model/test_schemes.py.
IN_MODELS = (
    "rope", "rope partial", "rope log", "xpos", "t5", "t5 unscaled", "alibi", "alibi one side", "kerple", "fox", "fire",
    "clipped_scalars keys", "transformer_xl", "cope", "pope", "selective_rope gate",
)  # fmt: skip
OTHERS = {
    **{name: both(variant_scheme(name)) for name in IN_MODELS},
    "alibi_and_sinusoidal": both(scheme("alibi", absolute="sinusoidal")),
    "shape": both(scheme("shape")),
    "offset": both(scheme("rope", rotated_share=0.5, key_offset="second_half", key_offset_at="before_norm")),
    "offset_own": both(scheme("rope", proportion=0.5, key_offset="slow_pairs", key_offset_first="own")),
    "offset_alone": both(scheme("none", key_offset="second_half")),
    "rope_and_none": both(scheme("pattern")),
    "logits_and_t5": both(scheme("pattern", layers=["relative_logits", "t5"])),
    "relative_and_rope": both(scheme("relative_rope")),
    "relative_window": both(scheme("relative", window=3, sink=True)),
    "rope_window": both(scheme("rope", window=2)),
    "t5_window": both(variant_scheme("t5").model_copy(update={"window": 4, "sink": True})),
    "fox_window": both(scheme("fox", window=3, sink=True)),
    "cope_window": both(scheme("cope", num_positions=4, window=3)),
    "logits_window": both(scheme("relative_logits", rank=3, extent=4, window=3)),
    "none_window": both(scheme("none", window=1, sink=True)),
    "rope_local": both(scheme("rope_local", entries={"rope": {"window": 2, "sink": True}})),
    "relative_and_none": {"encoder_positions": scheme("relative"), "decoder_positions": scheme("none")},
    "alibi_and_rope": {"encoder_positions": scheme("alibi"), "decoder_positions": scheme("rope")},
}
KINDS = {**VECTORS, **OTHERS}
SLOW = "shared_by_heads,rope log,t5 unscaled,alibi one side,alibi_and_sinusoidal,rope_and_none,t5_window,"
SLOW += "fox_window,logits_window,none_window,relative_and_none"  # like others
EACH_KIND = [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW.split(","))) for kind in KINDS]
TODAY = {"norm": "pre", "norm_type": "rmsnorm", "activation": "swiglu", "qk_norm": True}  # a block of today
NORM = {kind: ("post", "pre")[index % 2] for index, kind in enumerate(KINDS)}


def layers_of(kind: str) -> int:
    """How many a test of this kind needs: one where all are alike, but for a few kinds."""
    return 2 if "_" in kind or kind in ("none", "rope") else 1

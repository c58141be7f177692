"""The paper's figures, transcribed by hand; a cell that the paper does not print is absent, never interpolated."""

from typing import Literal, NamedTuple

SOURCE = (
    "Shaw, Uszkoreit and Vaswani, Self-Attention with Relative Position Representations, NAACL 2018 (arXiv 1803.02155)"
)

Size = Literal["base", "big"]

# Table 1: BLEU on newstest2014; "relative" without absolute positions, "absolute" is sinusoidal.
TABLE1_TEST_SET = "newstest2014"
TABLE1 = {
    ("base", "absolute", "en_de"): 26.5,
    ("base", "absolute", "en_fr"): 38.2,
    ("base", "relative", "en_de"): 26.8,
    ("base", "relative", "en_fr"): 38.7,
    ("big", "absolute", "en_de"): 27.9,
    ("big", "absolute", "en_fr"): 41.2,
    ("big", "relative", "en_de"): 29.2,
    ("big", "relative", "en_fr"): 41.5,
}

# Table 2: BLEU by k; EN-DE, base model, no absolute positions. The paper has no rows for k = 8 and k = 32.
TABLE2_TEST_SET = "newstest2013"
TABLE2 = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}

# Table 3: BLEU by (a^V, a^K) = (relative values, relative keys); the test set and setting of Table 2.
TABLE3 = {(True, True): 25.8, (False, True): 25.8, (True, False): 25.3, (False, False): 12.5}
TABLE3_CLIP_DISTANCE = 16  # not printed for Table 3; the base model's k is the natural reading

BLEU_KIND = "kind of BLEU not stated; the group's practice splits compounds (bleu_tok_split here)"


class ModelSettings(NamedTuple):
    """The settings that the paper prints for one size of model."""

    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    clip_distance: int
    tables: str
    steps: int


MODELS = {
    "base": ModelSettings(6, 512, 8, 1024, 16, "per_head", 100_000),
    "big": ModelSettings(6, 1024, 16, 4096, 8, "shared_by_heads", 300_000),
}
TRAIN_PAIRS = {"en_de": 4_500_000, "en_fr": 36_000_000}  # "about 4.5M" and "about 36M"


def size_of(model: str) -> Size:
    """The model of the paper that a model of this name is compared with."""
    return "big" if "big" in model else "base"

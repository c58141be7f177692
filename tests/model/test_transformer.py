"""Parameter counts, gradients, initial values and dropout of the whole model (its equations: test_readable.py)."""

import pytest
import torch
from torch import nn

from rpr.model import stack
from rpr.model.attention import attention_of
from rpr.model.cache import small_products_exact
from rpr.model.transformer import build_model
from tests.model.scheme_variants import KINDS
from tests.shapes import changed, shape

PAD, EOS, BOS = 0, 1, 2
TINY = shape(  # max_positions is less than the length of the sentences
    vocabulary_size=23, num_layers=2, d_model=12, num_heads=2, d_ff=10, dropout=0.0, norm="post", norm_epsilon=1e-6,
    max_positions=6, clip_distance=2,
)  # fmt: skip


def make_model(kind="none", **changes):
    """A float64 model in eval mode; all parameters are random, also those of norms and biases."""
    torch.manual_seed(0)
    model = build_model(changed(TINY, **{**KINDS[kind], **changes})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    for name, parameter in model.named_parameters():
        if name.endswith(("tables.p", "tables.a")):  # of KERPLE, which keeps them positive
            nn.init.uniform_(parameter, 0.1, 1.0)
    return model.requires_grad_(False)


def sentences(*lengths, seed=1, size=TINY.vocabulary_size, eos=EOS):
    """Random pieces of a vocabulary of this size and EOS, padded on the right: [B, S]."""
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(pieces, lengths, strict=True):
        row[: length - 1] = torch.randint(4, size, (length - 1,), generator=generator)
        row[length - 1] = eos
    return pieces


def target_inputs(*lengths, seed=2):
    """The decoder's input in training: BOS and then the pieces."""
    pieces = sentences(*(length + 1 for length in lengths), seed=seed)[:, :-1]
    return torch.cat([torch.full((len(lengths), 1), BOS), pieces], dim=1)[:, : max(lengths)]


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Padding, shifts, and cached decoding, which no later piece can change: tests/checks/test_verification.py


@pytest.mark.parametrize("implementation", ["dense", "blockwise", "composed"])
def test_use_attention_applies_to_all_self_attentions(implementation, monkeypatch):
    model, used = make_model("relative"), []
    source, target = sentences(7, 4), target_inputs(5, 6)
    expected = model(source, target)
    monkeypatch.setattr(stack, "attention_of", lambda *given: used.extend(given[1:]) or attention_of(*given))
    model.use_attention(implementation)
    assert_equal(model(source, target), expected)
    assert used == [implementation] * 4  # two layers per stack


def test_small_products_exact_restores_the_matmul_precision():
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(KeyError), torch.autocast("cpu", torch.bfloat16), small_products_exact(torch.zeros(1)):
        assert torch.get_float32_matmul_precision() == "highest"
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32
        raise KeyError
    assert torch.get_float32_matmul_precision() == "medium"


def count(shape):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(shape).parameters())


BASE = shape(
    vocabulary_size=32_768, num_layers=6, d_model=512, num_heads=8, d_ff=1024, dropout=0.1, norm="post",
    norm_epsilon=1e-6, max_positions=256, relative_keys=True, relative_values=True, clip_distance=16,
)  # fmt: skip


def test_base_model_has_the_number_of_parameters_counted_by_hand():
    embedding = 32_768 * 512  #                              16,777,216
    attention = 4 * 512 * 512  #                              1,048,576  no biases
    feed_forward = 512 * 1024 + 1024 + 1024 * 512 + 512  #    1,050,112
    norm = 2 * 512  #                                             1,024
    tables = 2 * 8 * 33 * 64  #                                  33,792  keys and values, 8 heads, 2 * 16 + 1 rows
    encoder_layer = attention + tables + feed_forward + 2 * norm
    decoder_layer = 2 * attention + tables + feed_forward + 3 * norm
    assert embedding + 6 * (encoder_layer + decoder_layer) == 48_689_152
    assert count(BASE) == 48_689_152


@pytest.mark.parametrize("changes, difference", [
    ({"relative_keys": False}, -12 * 8 * 33 * 64),
    ({"tables": "shared_by_heads"}, -12 * 2 * 7 * 33 * 64),
    ({"tables": "shared_by_heads_and_layers"}, (2 * 2 - 12 * 2 * 8) * 33 * 64),  # one pair per stack
    ({"absolute": "learned"}, 2 * 256 * 512),
    ({"norm": "pre"}, 2 * 2 * 512),  # one final norm per stack
    ({"norm_type": "rmsnorm"}, -6 * 5 * 512),  # no bias
    ({"qk_norm": True}, 12 * 2 * 64),
    ({"activation": "swiglu"}, 12 * (3 * 688 - 2 * 1024) * 512 - 12 * (1024 + 512)),  # 2/3 of 1024 is 682.7; no biases
], ids=str)  # fmt: skip
def test_number_of_parameters_of_other_settings(changes, difference):
    assert count(changed(BASE, **changes)) == 48_689_152 + difference

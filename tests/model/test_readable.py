"""The model that is trained against the readable one, rpr/model/readable.py, in float64: scores and gradients, for
every position scheme, both norms, a block of today; an example of introductions to the paper.
"""

from pathlib import Path

import pytest
import torch

from rpr.model import readable
from rpr.model.transformer import build_model
from tests.model.scheme_variants import EACH_KIND, KINDS, NORM, TODAY, layers_of
from tests.shapes import changed
from tests.small_models import BASIC

SOURCES = [[11, 12, 13, 14, 11, 3], [15, 3]]
TARGETS = [[2, 21, 22], [2, 23, 24, 25, 26]]


def both_models(config):
    """The model that is trained, in float64 with random weights, and the readable one with the same."""
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model, dict(model.named_parameters(remove_duplicate=False))


def assert_same_gradients(model, found, expected, cotangent):
    gradients = (
        torch.autograd.grad(x, [*model.parameters()], cotangent, allow_unused=True, materialize_grads=True)
        for x in (found, expected)
    )
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind, block", [
    *(pytest.param(*kind.values, NORM[kind.values[0]], marks=kind.marks) for kind in EACH_KIND),
    ("rope", "today"), ("relative", "today"), ("offset", "today"),
])  # fmt: skip
def test_production_equals_the_readable_model(kind, block):
    """Of decoder-only models: test_decoder_only.py."""
    of_block = {"post": {}, "pre": {"norm": "pre", "activation": "gelu"}, "today": TODAY | {"zero_bos": False}}
    config = changed(BASIC, **KINDS[kind], **of_block[block], num_layers=layers_of(kind))
    model, weights = both_models(config)
    padded = [
        torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], batch_first=True) for rows in (SOURCES, TARGETS)
    ]
    whole = model.logits(model(*padded))
    pairs = zip(SOURCES, TARGETS, strict=True)
    expected = torch.cat([readable.logits(config, weights, *pair) for pair in pairs])
    found = torch.cat([scores[: len(target)] for scores, target in zip(whole, TARGETS, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert_same_gradients(model, found, expected, torch.randn_like(expected))


def test_rows_of_ten_words_with_k_of_three():
    """The row of w^K and w^V for each pair of words, as docs/reproduce.md has it."""
    rows = readable.of_pairs(torch.arange(7)[:, None], 10)[..., 0].tolist()
    assert rows[0] == [3, 4, 5, 6, 6, 6, 6, 6, 6, 6] and rows[9] == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3]
    page = Path(__file__).parents[2].joinpath("docs", "reproduce.md").read_text(encoding="utf-8")
    assert all(str(row) in page for row in rows)

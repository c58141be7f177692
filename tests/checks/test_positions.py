"""Mean attention by distance against loops over the weights (float64), even attention by hand."""

import itertools
import math

import pytest
import torch

from rpr.checks.positions import attention_weights, measure
from rpr.data.vocabulary import BOS, EOS
from rpr.report.plots import label
from tests import small_models
from tests.model import test_transformer
from tests.shapes import scheme

PIECES = 20
LAYERS = [f"{stack} layer {number}" for stack in ("encoder", "decoder") for number in (1, 2)]


def make_model(*, keys=True, values=True, **changes):
    settings = {"relative_keys": keys, "relative_values": values, "max_positions": 16, **changes}
    return test_transformer.make_model(**settings)


@pytest.fixture
def pairs():
    generator = torch.Generator().manual_seed(4)

    def sentence(length):
        return [*torch.randint(4, PIECES, (length - 1,), generator=generator).tolist(), EOS]

    return [(sentence(source), sentence(target)) for source, target in ((5, 3), (1, 6), (9, 9), (4, 1), (6, 7))]


def measured(model, pairs, **changes):
    return measure(model, pairs, **{"max_distance": 4, "max_tokens_per_batch": 20, **changes})


def by_loops(model, pairs, max_distance):
    """[layer, head, distance]: the weights of each pair of positions (test_trained_run.py), averaged."""
    sums = torch.zeros(4, model.config.num_heads, 2 * max_distance + 1, dtype=torch.float64)
    counts = torch.zeros_like(sums)
    for source, target in pairs:
        with torch.no_grad():
            of_pair = attention_weights(model, torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]]))
        for number, p in enumerate([*of_pair["encoder"], *of_pair["decoder"]]):
            for i, j in itertools.product(range(p.shape[-1]), repeat=2):
                if abs(j - i) <= max_distance and (j <= i or number < 2):
                    sums[number, :, j - i + max_distance] += p[:, i, j]
                    counts[number, :, j - i + max_distance] += 1
    return sums / counts  # NaN where there is no such pair


@pytest.mark.parametrize("choices", [
    {},
    {"norm": "pre"},
    {"tables": "shared_by_heads_and_layers", "clip_distance": 0},
    {"keys": False, "values": False, "absolute": "sinusoidal"},
    {"absolute": "learned", "values": False, "tables": "shared_by_heads"},
])  # fmt: skip
def test_mean_attention_equals_loops(choices, pairs):
    model = make_model(**choices)
    numbers = measured(model, pairs)
    assert [label(layer) for layer in numbers["attention"]] == LAYERS
    expected = by_loops(model, pairs, max_distance=4)
    heads = [[[math.nan if p is None else p for p in head] for head in layer["attention"]]
             for layer in numbers["attention"]]  # fmt: skip
    found = torch.tensor(heads, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14, equal_nan=True)
    assert expected[:2].isfinite().all() and expected[2:, :, :5].isfinite().all()
    assert expected[2:, :, 5:].isnan().all()  # the decoder attends to no later position


def test_even_attention_by_hand():
    """Of equal weights: 1/n in the encoder, 1/(i+1) in the decoder; sentences of 3 and 2 pieces."""
    numbers = measured(make_model(), [([5, 6, EOS], [7, 8, EOS]), ([9, EOS], [10, EOS])], max_distance=3)
    encoder, decoder = numbers["stacks"]
    assert (encoder["pairs"], decoder["pairs"]) == ([0, 1, 3, 5, 3, 1, 0], [0, 1, 3, 5, 0, 0, 0])
    adjacent = (2 / 3 + 1 / 2) / 3
    by_hand = [None, 1 / 3, adjacent, 2 / 5, adjacent, 1 / 3, None]
    assert encoder["even_attention"] == pytest.approx(by_hand, abs=1e-14)
    by_hand = [None, 1 / 3, (1 / 2 + 1 / 3 + 1 / 2) / 3, (1 + 1 / 2 + 1 / 3 + 1 + 1 / 2) / 5, None, None, None]
    assert decoder["even_attention"] == pytest.approx(by_hand, abs=1e-14)


def test_tables_by_sharing(pairs):
    per_head = measured(make_model(), pairs)["tables"]
    assert [label(entry) for entry in per_head] == LAYERS
    assert all(entry["keys"] and entry["values"] and len(entry["keys"]["norms"]) == 2 for entry in per_head)
    model = make_model(tables="shared_by_heads_and_layers", values=False)
    shared = measured(model, pairs)["tables"]
    assert [label(entry) for entry in shared] == ["encoder layers 1, 2, shared", "decoder layers 1, 2, shared"]
    assert [entry["values"] for entry in shared] == [None, None]
    keys = model.decoder[1].self_attention.tables.keys
    assert shared[1]["keys"]["norms"] == [pytest.approx([float((row**2).sum().sqrt()) for row in keys])]


def test_absolute_positions(pairs):
    for absolute in ("none", "sinusoidal"):
        numbers = measured(make_model(keys=False, values=False, absolute=absolute), pairs)
        assert (numbers["tables"], numbers["absolute"]) == ([], [])
    model = make_model(keys=False, values=False, absolute="learned")
    source, target = measured(model, pairs)["absolute"]
    assert (source["longest"], target["longest"]) == (9, 9) and len(source["absolute"]) == 16
    assert target["absolute"][3] == pytest.approx(float((model.target_positions.weight_LM[3] ** 2).sum().sqrt()))
    assert source["absolute"] != target["absolute"]


def test_the_bias_of_transformer_xl_is_that_of_the_paper(pairs):
    """v W_R R(i - j), of which the table of biases has v - u, and the query of the table of keys u."""
    model = small_models.make_model(encoder_positions=scheme("transformer_xl"))
    for entry, layer in zip(measured(model, pairs)["biases"], model.encoder, strict=True):
        own = layer.self_attention.tables
        frequencies = 10_000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
        for distance in range(-4, 5):
            sinusoid = torch.cat([(-distance * frequencies).sin(), (-distance * frequencies).cos()])
            for head in range(4):
                expected = own.v[head].double() @ (sinusoid @ own.w_r[head].double()) / 8**0.5
                assert entry["bias"][head][distance + 4] == pytest.approx(float(expected), abs=1e-5)

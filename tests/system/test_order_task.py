"""Reversing the source, a task that needs only word order. Relative positions with k = 4 learn it; with k = 0 (one
vector for all distances) or without positions the encoder sees a bag of pieces (12.5 BLEU in the paper's Table 2).
"""

import pytest
import torch
import torch.nn.functional as F

from rpr.model.transformer import Transformer
from tests.shapes import shape

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
LENGTH, PIECES, FIRST = 6, 12, 4  # 0 to 3 are PAD, UNK, BOS, EOS
STEPS = 250


def pairs(number, draw):
    source = torch.randint(FIRST, FIRST + PIECES, (number, LENGTH), generator=draw)
    output = source.flip(1)
    inputs = torch.cat([torch.full((number, 1), 2), output[:, :-1]], dim=1)
    return source, inputs, output


def accuracy_after_training(*, relative, clip_distance):
    """The accuracy per piece on new pairs, with teacher forcing."""
    torch.manual_seed(1)
    draw = torch.Generator().manual_seed(2)
    model = Transformer(
        shape(
            vocabulary_size=FIRST + PIECES, num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.0, norm="pre",
            norm_epsilon=1e-6, absolute="none", max_positions=8, relative_keys=relative, relative_values=relative,
            clip_distance=clip_distance, tables="per_head",
        )
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        source, inputs, output = pairs(64, draw)
        loss = F.cross_entropy(model.logits(model(source, inputs)).flatten(0, 1), output.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source, inputs, output = pairs(500, draw)
    with torch.no_grad():
        predicted = model.logits(model(source, inputs)).argmax(dim=-1)
    return float((predicted == output).double().mean())


def test_relative_positions_learn_order():
    assert accuracy_after_training(relative=True, clip_distance=4) > 0.9


@pytest.mark.parametrize("relative", [True, False])
def test_order_is_not_learned_without_positions(relative):
    """Some pieces are guessed by elimination."""
    assert accuracy_after_training(relative=relative, clip_distance=0) < 0.6

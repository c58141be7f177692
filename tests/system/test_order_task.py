"""Checked here: the paper's finding in miniature, without the command line. The task needs order and nothing else: the
target is the source reversed. With relative positions (k = 4) a small Transformer learns it; with k = 0 (one vector for
every distance) or without positions its encoder sees a bag of pieces, and it cannot (the paper's Table 2: 12.5 BLEU
against 25.5 to 25.9).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rpr.model.transformer import Transformer
from tests.shapes import shape

LENGTH, PIECES, FIRST = 6, 12, 4  # 0 to 3 are PAD, UNK, BOS, EOS


def pairs(number: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.randint(FIRST, FIRST + PIECES, (number, LENGTH), generator=draw)
    output = source.flip(1)
    inputs = torch.cat([torch.full((number, 1), 2), output[:, :-1]], dim=1)
    return source, inputs, output


def accuracy_after_training(steps: int, *, relative: bool, clip_distance: int) -> float:
    """The share of right pieces on fresh pairs, each predicted from the true ones before it."""
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
    for _ in range(steps):
        source, inputs, output = pairs(64, draw)
        loss = F.cross_entropy(model.logits(model(source, inputs)).flatten(0, 1), output.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source, inputs, output = pairs(500, draw)
    with torch.no_grad():
        predicted = model.logits(model(source, inputs)).argmax(dim=-1)
    return float((predicted == output).double().mean())


pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 250


@pytest.mark.slow
def test_with_relative_positions_the_order_is_learned() -> None:
    assert accuracy_after_training(STEPS, relative=True, clip_distance=4) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False])
def test_without_order_it_cannot_be(relative: bool) -> None:
    """k = 0 scores what no positions at all score. By elimination some pieces are guessed; far from all."""
    assert accuracy_after_training(STEPS, relative=relative, clip_distance=0) < 0.6

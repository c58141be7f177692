"""Checked here: the label-smoothed loss against a case worked by hand and against the explicit distribution 0.9 and
0.1 / (V - 1); the learning rate against values worked by hand from the formula of Vaswani et al. 2017.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rpr.training.loss import label_smoothed_loss
from rpr.training.schedule import learning_rate


def test_loss_by_hand() -> None:
    """V = 3, probabilities 1/2, 1/4, 1/4, target 0: 0.9 ln 2 + 2 (0.1 / 2) ln 4 = 0.9 ln 2 + 0.2 ln 2 = 1.1 ln 2."""
    logits = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log() + 7.0  # softmax knows no constant
    loss = label_smoothed_loss(logits, torch.tensor([0]), 0.1)
    assert float(loss) == pytest.approx(1.1 * math.log(2), abs=1e-14)
    # The same row three times: a sum, not a mean.
    assert float(label_smoothed_loss(logits.repeat(3, 1), torch.tensor([0, 0, 0]), 0.1)) == pytest.approx(
        3.3 * math.log(2), abs=1e-13
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_and_gradient_against_the_explicit_distribution(smoothing: float) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 11, generator=draw, dtype=torch.float64).requires_grad_()
    targets = torch.randint(0, 11, (7,), generator=draw)
    explicit = torch.full((7, 11), smoothing / 10, dtype=torch.float64)
    explicit[torch.arange(7), targets] = 1 - smoothing
    expected = -(explicit * F.log_softmax(logits, dim=-1)).sum()
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    loss = label_smoothed_loss(logits, targets, smoothing)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "step, expected",
    [
        (1, 512**-0.5 / 4000**1.5),  # 1.746928e-07
        (2000, 0.5 / math.sqrt(512 * 4000)),  # half way up: half the peak
        (4000, 1 / math.sqrt(512 * 4000)),  # the peak: 6.987712e-04
        (16000, 0.5 / math.sqrt(512 * 4000)),  # four times the steps: half the peak
        (100_000, 1 / math.sqrt(512 * 100_000)),  # 1.397542e-04
    ],
)
def test_schedule_of_the_papers_base_model(step: int, expected: float) -> None:
    assert learning_rate(step, d_model=512, warmup_steps=4000, scale=1.0) == pytest.approx(expected, rel=1e-12)


def test_schedule_by_number_and_shape() -> None:
    peak = learning_rate(4000, d_model=512, warmup_steps=4000, scale=1.0)
    assert peak == pytest.approx(6.98771243e-4, rel=1e-8)
    assert learning_rate(4000, d_model=1024, warmup_steps=4000, scale=1.0) == pytest.approx(4.94105884e-4, rel=1e-8)
    rates = [learning_rate(step, d_model=512, warmup_steps=4000, scale=1.0) for step in range(1, 12000)]
    assert max(rates) == peak == rates[3999]
    assert rates[:4000] == sorted(rates[:4000]) and rates[3999:] == sorted(rates[3999:], reverse=True)
    assert learning_rate(77, d_model=512, warmup_steps=4000, scale=2.0) == pytest.approx(2 * rates[76], rel=1e-15)
    with pytest.raises(AssertionError):
        learning_rate(0, d_model=512, warmup_steps=4000, scale=1.0)

"""Checked here: the label-smoothed loss and its gradients against a case worked by hand and against the explicit
distribution 0.9 and 0.1 / (V - 1); the learning rate against values worked by hand from the formula of Vaswani et al.
2017.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rpr.bench.benchmark import peak_bytes
from rpr.training import loss
from rpr.training.loss import label_smoothed_loss
from rpr.training.schedule import learning_rate


def explicit_loss(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """The whole distribution that is aimed at, and all scores, written out."""
    pieces = embedding.shape[0]
    wanted = torch.full((len(targets), pieces), smoothing / (pieces - 1), dtype=hidden.dtype)
    wanted[torch.arange(len(targets)), targets] = 1 - smoothing
    return -(wanted * F.log_softmax(hidden @ embedding.T, dim=-1)).sum()


def test_loss_by_hand() -> None:
    """V = 3, probabilities 1/2, 1/4, 1/4, target 0: 0.9 ln 2 + 2 (0.1 / 2) ln 4 = 0.9 ln 2 + 0.2 ln 2 = 1.1 ln 2."""
    scores = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log() + 7.0  # softmax knows no constant
    itself = torch.eye(3, dtype=torch.float64)
    assert float(label_smoothed_loss(scores, itself, torch.tensor([0]), 0.1)) == pytest.approx(
        1.1 * math.log(2), abs=1e-14
    )
    # The same row three times: a sum, not a mean.
    assert float(label_smoothed_loss(scores.repeat(3, 1), itself, torch.tensor([0, 0, 0]), 0.1)) == pytest.approx(
        3.3 * math.log(2), abs=1e-13
    )


@pytest.mark.parametrize("smoothing, rows", [(0.0, 3), (0.1, 1), (0.1, 3), (0.1, 100), (0.5, 7)])
def test_loss_and_gradients_against_the_explicit_distribution(
    smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of some rows, the last one smaller, or whole; the caller's factor reaches both gradients."""
    monkeypatch.setattr(loss, "CHUNK_ROWS", rows)
    draw = torch.Generator().manual_seed(0)
    hidden, embedding = ((3 * torch.randn(n, 5, generator=draw, dtype=torch.float64)).requires_grad_() for n in (7, 11))
    targets = torch.randint(0, 11, (7,), generator=draw)
    expected = explicit_loss(hidden, embedding, targets, smoothing)
    found = label_smoothed_loss(hidden, embedding, targets, smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(label_smoothed_loss(hidden.detach(), embedding.detach(), targets, smoothing), found)
    for gradient, right in zip(
        torch.autograd.grad(2.5 * found, [hidden, embedding]),
        torch.autograd.grad(2.5 * expected, [hidden, embedding]),
        strict=True,
    ):
        torch.testing.assert_close(gradient, right, rtol=1e-11, atol=1e-12)


def test_large_scores_neither_overflow_nor_vanish() -> None:
    scores = torch.tensor([[500.0, -500.0, 499.0]]).requires_grad_()
    for target in range(3):
        found = label_smoothed_loss(scores, torch.eye(3), torch.tensor([target]), 0.1)
        wide = scores.detach().double().requires_grad_()
        expected = explicit_loss(wide, torch.eye(3, dtype=torch.float64), torch.tensor([target]), 0.1)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
        gradients = torch.autograd.grad(found, scores)[0].double(), torch.autograd.grad(expected, wide)[0]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_scores_are_float32_where_products_are_bfloat16() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, embedding = (torch.randn(n, 32, generator=draw).requires_grad_() for n in (50, 40))
    targets = torch.randint(0, 40, (50,), generator=draw)
    expected = explicit_loss(hidden.double(), embedding.double(), targets, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        found = label_smoothed_loss(hidden, embedding, targets, 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=0)
    gradients = torch.autograd.grad(found, [hidden, embedding])
    for gradient, right in zip(gradients, torch.autograd.grad(expected, [hidden, embedding]), strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - right).norm() < 0.01 * right.norm()


def test_no_rows_have_no_loss_and_a_gradient_of_zero() -> None:
    hidden, embedding = torch.zeros(0, 4).requires_grad_(), torch.randn(6, 4).requires_grad_()
    found = label_smoothed_loss(hidden, embedding, torch.zeros(0, dtype=torch.int64), 0.1)
    assert float(found.detach()) == 0.0
    gradients = torch.autograd.grad(found, [hidden, embedding])
    assert gradients[0].shape == (0, 4) and not gradients[1].any()


def test_the_scores_never_stand_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_ROWS", 64)
    hidden, embedding = torch.randn(1024, 8).requires_grad_(), torch.randn(4000, 8).requires_grad_()
    targets = torch.randint(0, 4000, (1024,))

    def step() -> None:
        torch.autograd.grad(label_smoothed_loss(hidden, embedding, targets, 0.1), [hidden, embedding])

    step()
    assert peak_bytes(step, torch.device("cpu")) < 4 * 1024 * 4000 / 4  # a quarter of one (N, V)


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

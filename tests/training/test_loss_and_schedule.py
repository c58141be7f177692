"""The label-smoothed loss against the explicit distribution 0.9 and 0.1 / (V - 1); the learning rate against values by
hand from the formula of Vaswani et al. 2017.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from rpr.commands.bench import peak_bytes
from rpr.compose.composition import compose_train
from rpr.training import loss
from rpr.training.loss import label_smoothed_loss
from tests.lazy import training_module


def explicit_loss(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """The label-smoothed loss with the whole target distribution and all logits."""
    tokens = embedding.shape[0]
    distribution = torch.full((len(targets), tokens), smoothing / (tokens - 1), dtype=hidden.dtype)
    distribution[torch.arange(len(targets)), targets] = 1 - smoothing
    return -(distribution * F.log_softmax(hidden @ embedding.T, dim=-1)).sum()


@pytest.mark.parametrize("smoothing, rows", [(0.0, 3), (0.1, 1), (0.1, 3), (0.1, 100), (0.5, 7)])
def test_loss_and_gradients_equal_the_explicit_loss(smoothing, rows, monkeypatch):
    """In chunks of some rows, the last one smaller, or whole; scaled gradients are scaled."""
    monkeypatch.setattr(loss, "CHUNK_ROWS", rows)
    draw = torch.Generator().manual_seed(0)
    hidden, embedding = ((3 * torch.randn(n, 5, generator=draw, dtype=torch.float64)).requires_grad_() for n in (7, 11))
    targets = torch.randint(0, 11, (7,), generator=draw)
    expected = explicit_loss(hidden, embedding, targets, smoothing)
    found = label_smoothed_loss(hidden, embedding, targets, smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(label_smoothed_loss(hidden.detach(), embedding.detach(), targets, smoothing), found)
    gradients = (torch.autograd.grad(2.5 * one, [hidden, embedding]) for one in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_large_logits_neither_overflow_nor_vanish():
    logits = torch.tensor([[500.0, -500.0, 499.0]]).requires_grad_()
    for target in range(3):
        found = label_smoothed_loss(logits, torch.eye(3), torch.tensor([target]), 0.1)
        wide = logits.detach().double().requires_grad_()
        expected = explicit_loss(wide, torch.eye(3, dtype=torch.float64), torch.tensor([target]), 0.1)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
        gradients = torch.autograd.grad(found, logits)[0].double(), torch.autograd.grad(expected, wide)[0]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_loss_is_float32_under_bfloat16_autocast():
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


def test_peak_memory_is_less_than_the_logits(monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ROWS", 64)
    hidden, embedding = torch.randn(1024, 8).requires_grad_(), torch.randn(4000, 8).requires_grad_()
    targets = torch.randint(0, 4000, (1024,))

    def step():
        torch.autograd.grad(label_smoothed_loss(hidden, embedding, targets, 0.1), [hidden, embedding])

    step()
    assert peak_bytes(step, torch.device("cpu")) < 4 * 1024 * 4000 / 4  # a quarter of one (N, V)


@pytest.mark.parametrize("step, expected", [
    (1, 512**-0.5 / 4000**1.5),  # 1.746928e-07
    (2000, 0.5 / math.sqrt(512 * 4000)),  # half of the warm-up: half the peak
    (4000, 1 / math.sqrt(512 * 4000)),  # the peak: 6.987712e-04
    (16000, 0.5 / math.sqrt(512 * 4000)),  # four times the steps: half the peak
    (100_000, 1 / math.sqrt(512 * 100_000)),  # 1.397542e-04
])  # fmt: skip
def test_schedule_of_the_base_model(step, expected):
    base = compose_train(["model=base"]).optim
    for scale in (1, 2):
        optim = base.model_copy(update={"learning_rate_scale": scale})
        assert training_module.learning_rate(step, optim, 512) == pytest.approx(scale * expected, rel=1e-12)


@pytest.mark.parametrize("schedule, step, share", [
    ("constant", 1, 0.1), ("constant", 10, 1), ("constant", 11, 1), ("constant", 110, 1),
    ("inverse_sqrt", 5, 0.5), ("inverse_sqrt", 10, 1), ("inverse_sqrt", 40, 0.5),
    ("cosine", 1, 0.1), ("cosine", 10, 1), ("cosine", 60, 0.55), ("cosine", 110, 0.1),
    ("cosine", 35, 0.1 + 0.9 * (1 + 0.5**0.5) / 2),
])  # fmt: skip
def test_learning_rate_of_each_schedule(schedule, step, share):
    words = ["optim.learning_rate=0.02", "optim.learning_rate_scale=null", "optim.warmup_steps=10"]
    optim = compose_train([*words, "optim.max_steps=110", f"optim.schedule={schedule}"]).optim
    assert training_module.learning_rate(step, optim, 512) == pytest.approx(0.02 * share, rel=1e-12)
    warm = optim.model_copy(update={"warmup_steps": 110})  # the schedule is asked for one step more than there are
    assert training_module.learning_rate(110, warm, 512) == pytest.approx(0.02)
    assert training_module.learning_rate(111, warm, 512) > 0


LINEAR = ("qkv", "output", "query", "key_value", "inner", "outer")


def test_weight_decay_shrinks_the_matrices_of_linear_layers_alone(tiny_config):
    words = ("optim.learning_rate=0.1", "optim.learning_rate_scale=null", "optim.warmup_steps=1", "position=learned")
    config = tiny_config(*words, "optim.weight_decay=0.5", "optim.schedule=constant")
    module = training_module.TranslationModule(config, 20)
    module.model.source_positions.add_module("own", torch.nn.Linear(2, 2))  # as a user's scheme may have one
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    configured = module.configure_optimizers()  # held: the schedule refers to its optimiser weakly
    configured["optimizer"].step()
    for name, parameter in module.named_parameters():
        linear = name.endswith(tuple(f"{part}.weight" for part in LINEAR))
        torch.testing.assert_close(parameter, before[name] * (0.95 if linear else 1))

"""The learning-rate schedule of Vaswani et al. 2017."""

from __future__ import annotations


def learning_rate(step: int, *, d_model: int, warmup_steps: int, scale: float) -> float:
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5); step counts from 1."""
    assert step >= 1
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))

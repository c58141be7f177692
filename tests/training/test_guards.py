"""Steps with a non-finite loss or gradient, which stop the run; the gradient's norm and its clipping."""

import math

import pytest
import torch

from rpr.errors import RunError
from rpr.runs.loading import checkpoints
from tests.lazy import fit, training_module

EACH_STEP = ("optim.checkpoint_every_n_steps=1", "optim.warmup_steps=1")


@pytest.fixture
def bad_step(monkeypatch):
    """Step 4 gets an infinite loss in its second microbatch."""
    training_step = training_module.TranslationModule.training_step

    def infinite(self, batch, batch_idx):
        loss = training_step(self, batch, batch_idx)
        return loss * math.inf if self.global_step == 3 and batch_idx % 2 else loss

    monkeypatch.setattr(training_module.TranslationModule, "training_step", infinite)


@pytest.mark.usefixtures("bad_step")
def test_non_finite_gradient_stops_the_run(tiny_config, small_data, tmp_path):
    words = ("optim.max_steps=6", "optim.microbatches_per_step=2", "optim.keep_checkpoints=9")
    with pytest.raises(RunError) as stopped:
        fit.fit(tiny_config(*EACH_STEP, *words), small_data, tmp_path)
    message = str(stopped.value)
    assert message.startswith("step 4: the loss or its gradient is not finite (loss ")
    assert "; the last good checkpoint is step00000003.ckpt; lower optim" in message
    assert [step for step, _ in checkpoints(tmp_path / "checkpoints")] == [1, 2, 3]


def test_non_finite_weights_are_not_saved(tiny_config, small_data, tmp_path):
    config = tiny_config(*EACH_STEP, "optim.max_steps=2", "optim.learning_rate_scale=1e41")
    with pytest.raises(RunError, match=r"^step 1: weights are not finite; there is no checkpoint yet; lower optim"):
        fit.fit(config, small_data, tmp_path)
    assert not checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize("limit", [None, 0.05])
def test_gradient_norm_and_clipping(limit, tiny_config):
    torch.manual_seed(0)
    config = tiny_config(f"optim.gradient_clip_norm={'null' if limit is None else limit}")
    module = training_module.TranslationModule(config, 300)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = torch.cat([p.grad.flatten() for p in module.parameters()])
    module.on_before_optimizer_step(torch.optim.Adam(module.parameters(), fused=True))
    after = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(module.gradient_norm, before.norm())
    torch.testing.assert_close(after, before if limit is None else before * (limit / before.norm()), rtol=1e-4, atol=0)

"""Steps with a non-finite gradient (stopped or skipped), the gradient's norm and its clipping, loss spikes."""

import json
import math
import random
import statistics

import pytest
import torch

from rpr.data.batches import TrainingBatches
from rpr.errors import RunError
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.training import fit, guards
from rpr.training.datamodule import TranslationData
from rpr.training.guards import SPIKE_MEMORY, RunningStats
from rpr.training.module import TranslationModule

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = (
    "optim.max_steps=6", "optim.microbatches_per_step=2", "optim.checkpoint_every_n_steps=1", "optim.keep_checkpoints=9"
)  # fmt: skip
BAD_STEP = 4


@pytest.fixture
def bad_steps(monkeypatch):
    """Each of these steps gets an infinite loss in its second microbatch: step 4, unless a test adds others."""
    training_step, steps = TranslationModule.training_step, [BAD_STEP]

    def infinite(self, batch, batch_idx):
        loss = training_step(self, batch, batch_idx)
        return loss * math.inf if self.global_step + 1 in steps and batch_idx % 2 else loss

    monkeypatch.setattr(TranslationModule, "training_step", infinite)
    return steps


@pytest.mark.usefixtures("bad_steps")
def test_non_finite_gradient_stops_the_run(tiny_config, small_data, tmp_path):
    with pytest.raises(RunError) as stopped:
        fit.fit(tiny_config(*RECIPE), small_data, tmp_path)
    message = str(stopped.value)
    assert message.startswith("step 4: the loss or its gradient is not finite (loss ")
    assert "; the last good checkpoint is step00000003.ckpt; check these pairs, or set optim.non_finite" in message
    assert [step for step, _ in checkpoints(tmp_path / "checkpoints")] == [1, 2, 3]
    report = json.loads((tmp_path / "not_finite_step00000004.json").read_text())
    train = small_data.split("train")
    assert len(report["pairs"]) > 10 and f"{len(report['pairs'])} pairs of the token cache" in message
    config = tiny_config(*RECIPE)
    batches = TrainingBatches(train, config.optim.max_tokens_per_microbatch, 2, config.seed)
    of_step = [int(pair) for part in batches.step_microbatches(BAD_STEP - 1) for pair in part]
    assert [entry["pair"] for entry in report["pairs"]] == of_step
    for entry in report["pairs"]:
        assert small_data.vocabulary.encode(entry["source"], eos=True) == train.row("source", entry["pair"]).tolist()
        assert small_data.vocabulary.encode(entry["target"], eos=True) == train.row("target", entry["pair"]).tolist()


@pytest.mark.usefixtures("bad_steps")
def test_windows_that_begin_inside_a_character_are_written_and_skipped(tiny_config, small_data, tmp_path, monkeypatch):
    cut = "дом".encode()[1:].decode(errors="surrogateescape")
    monkeypatch.setattr(TranslationData, "text_of_pair", lambda self, pair: {"source": "", "target": cut})
    _, _, training = fit.fit(tiny_config(*RECIPE, "optim.non_finite=skip"), small_data, tmp_path)
    assert training.skipped_steps == 1
    report = json.loads((tmp_path / "not_finite_step00000004.json").read_text("utf-8"))
    assert {pair["target"] for pair in report["pairs"]} == {cut}


@pytest.mark.usefixtures("bad_steps")
def test_skipped_step_changes_no_weight_and_is_counted(tiny_config, small_data, tmp_path, capsys):
    config = tiny_config(*RECIPE, "optim.non_finite=skip")
    steps, _, training = fit.fit(config, small_data, tmp_path)
    assert steps == 6 and training.skipped_steps == 1
    assert "the step is skipped, with no weight changed" in capsys.readouterr().err
    before, after, later = (load_checkpoint(tmp_path / "checkpoints" / f"step0000000{n}.ckpt") for n in (3, 4, 5))
    torch.testing.assert_close(after["state_dict"], before["state_dict"], rtol=0, atol=0)
    moments = [one["optimizer_states"][0]["state"] for one in (after, before)]
    torch.testing.assert_close(*moments, rtol=0, atol=0)
    assert any(not torch.equal(later["state_dict"][name], weight) for name, weight in after["state_dict"].items())
    assert after["callbacks"]["Guard"]["skipped_steps"] == 1  # the key of existing checkpoints
    (tmp_path / "checkpoints" / "step00000006.ckpt").unlink()
    assert fit.fit(config, small_data, tmp_path)[2].skipped_steps == 1  # also after resuming


def test_skipped_steps_far_apart_do_not_stop_the_run(tiny_config, small_data, tmp_path, monkeypatch, bad_steps):
    bad_steps.append(2)
    monkeypatch.setattr(guards, "MAX_CONSECUTIVE_SKIPS", 1)
    assert fit.fit(tiny_config(*RECIPE, "optim.non_finite=skip"), small_data, tmp_path)[2].skipped_steps == 2


@pytest.mark.parametrize("scale, step", [("1e41", 2), ("1e38", 4)], ids=["infinite weights", "huge weights"])
def test_diverged_run_is_stopped_despite_skip(scale, step, tiny_config, small_data, tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "MAX_CONSECUTIVE_SKIPS", 2)
    config = tiny_config(
        "optim.max_steps=6", f"optim.learning_rate_scale={scale}", "optim.warmup_steps=1", "optim.non_finite=skip"
    )
    with pytest.raises(RunError, match=rf"^step {step}: .*; there is no checkpoint yet; check these pairs, or lower"):
        fit.fit(config, small_data, tmp_path)


def test_non_finite_weights_are_not_saved(tiny_config, small_data, tmp_path):
    words = ("optim.max_steps=2", "optim.checkpoint_every_n_steps=1", "optim.warmup_steps=1")
    config = tiny_config(*words, "optim.learning_rate_scale=1e41")
    with pytest.raises(RunError, match=r"^step 1: weights are not finite; there is no checkpoint yet; lower optim"):
        fit.fit(config, small_data, tmp_path)
    assert not checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize("limit", [None, 0.05])
def test_gradient_norm_and_clipping(limit, tiny_config):
    torch.manual_seed(0)
    module = TranslationModule(tiny_config(f"optim.gradient_clip_norm={'null' if limit is None else limit}"), 300)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = torch.cat([p.grad.flatten() for p in module.parameters()])
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    module.on_before_optimizer_step(optimizer)
    after = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(module.gradient_norm, before.norm())
    torch.testing.assert_close(after, before if limit is None else before * (limit / before.norm()), rtol=1e-4, atol=0)
    assert optimizer.found_inf == 0


def test_running_stats():
    draw = random.Random(1)
    losses = [5 + draw.gauss(0, 0.2) for _ in range(SPIKE_MEMORY)]
    spread = RunningStats()
    for number, loss in enumerate(losses):
        assert spread.deviations(100.0) is None, number
        spread.add(loss)
    assert spread.mean == pytest.approx(statistics.fmean(losses))
    assert spread.variance == pytest.approx(statistics.pvariance(losses))
    assert spread.deviations(spread.mean + 3 * math.sqrt(spread.variance)) == pytest.approx(3)
    for _ in range(20 * SPIKE_MEMORY):  # old losses lose their weight
        spread.add(2 + draw.gauss(0, 0.1))
    assert spread.mean == pytest.approx(2, abs=0.1) and math.sqrt(spread.variance) == pytest.approx(0.1, abs=0.05)


def test_loss_spike_is_reported_once(tiny_config, small_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guards, "SPIKE_MEMORY", 5)
    loss_sum = TranslationModule._loss_sum

    def jumping(self, batch, smoothing):
        return loss_sum(self, batch, smoothing) * (10 if self.global_step == 7 else 1)

    monkeypatch.setattr(TranslationModule, "_loss_sum", jumping)
    config = tiny_config("optim.max_steps=9", "optim.learning_rate_scale=0.01")
    assert fit.fit(config, small_data, tmp_path)[2].loss_spikes == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "spike" in line]
    assert line.startswith("rpr-cli: step 8: loss spike: ") and "pairs of the token cache: " in line

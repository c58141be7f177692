"""The gradient of a step, in any number of microbatches and ranks, against one computed sentence by sentence without
padding, in float64; dropout's seeds; the stopwatch with a simulated clock.
"""

import itertools
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rpr.config.train import TrainConfig
from rpr.data.batches import BatchDataset, BatchSpec, TrainingBatches, accumulation
from rpr.data.cache import PreparedData as Data
from tests.lazy import callbacks, training_module
from tests.training.test_loss_and_schedule import explicit_loss

STEP = 3
MICROBATCHES = 4


def module_of(config: TrainConfig, data: Data) -> Any:
    return training_module.TranslationModule(config, len(data.vocabulary)).double()


def batches(config: TrainConfig, data: Data, ranks: int, rank: int) -> TrainingBatches:
    budget = config.optim.max_tokens_per_microbatch
    return TrainingBatches(data.split("train"), budget, MICROBATCHES, config.seed, num_devices=ranks, rank=rank)


def gradient_by_sentence(config: TrainConfig, data: Data) -> dict[str, torch.Tensor]:
    """The gradient of the mean smoothed cross entropy over all target tokens of the step."""
    module = module_of(config, data)
    split = data.split("train")
    indices = [int(i) for microbatch in batches(config, data, 1, 0).step_microbatches(STEP) for i in microbatch]
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for index in indices:
        source = torch.tensor(split.row("source", index).astype(int))[None]
        output = torch.tensor(split.row("target", index).astype(int))[None]
        inputs = torch.cat([torch.tensor([[2]]), output[:, :-1]], dim=1)  # BOS, then all but EOS
        hidden = module.model(source, inputs)[0]
        total = total + explicit_loss(hidden, module.model.embedding_VM, output[0], config.optim.label_smoothing)
        tokens += output.shape[1]
    (total / tokens).backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


@pytest.fixture(scope="module")
def expected():
    return {}


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_gradient_does_not_depend_on_microbatches_and_ranks(ranks, tiny_config, small_data, expected):
    """Emulates Lightning, which divides a loss by the number of microbatches, and DDP's mean over the ranks."""
    small = ("optim.max_tokens_per_microbatch=128", "position.clip_distance=3", "model.dropout=0")
    config = tiny_config(*small, f"optim.microbatches_per_step={MICROBATCHES}")
    if not expected:
        expected.update(gradient_by_sentence(config, small_data))
    module = module_of(config, small_data)
    accumulate = accumulation(MICROBATCHES, ranks)
    module._trainer = SimpleNamespace(accumulate_grad_batches=accumulate, world_size=ranks)
    dataset = BatchDataset(small_data.split("train"))
    for rank in range(ranks):
        specs = batches(config, small_data, ranks, rank).step_specs(STEP)
        assert len(specs) == accumulate
        for number, spec in enumerate(specs):
            (module.training_step(dataset[spec], number) / accumulate / ranks).backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)


def test_empty_microbatch_has_zero_gradients(tiny_config, small_data):
    """An epoch's last step may leave a rank without pairs; DDP still waits for its gradients."""
    module = module_of(tiny_config("model.dropout=0"), small_data)
    module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=2)
    spec = batches(module.config, small_data, 1, 0).step_specs(0)[0]
    empty = BatchSpec(spec.indices[:0], spec.step_source_tokens, spec.step_target_tokens)
    loss = module.training_step(BatchDataset(small_data.split("train"))[empty], 0)
    assert float(loss.detach()) == 0.0
    gradients = torch.autograd.grad(loss, [*module.parameters()], allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)


def test_dropout_depends_on_step_rank_and_microbatch_only(tiny_config, small_data):
    module = training_module.TranslationModule(tiny_config(), len(small_data.vocabulary))
    draws, ranks = [], {"accumulate_grad_batches": 2, "world_size": 2}
    for _, step, rank, micro in itertools.product(range(2), repeat=4):
        module._trainer = SimpleNamespace(**ranks, global_step=step, global_rank=rank)
        module.on_train_batch_start(None, step * 2 + micro)
        draws.append(float(torch.rand(())))
    assert draws[:8] == draws[8:] and len(set(draws)) == 8
    other = training_module.TranslationModule(tiny_config("seed=2"), len(small_data.vocabulary))
    other._trainer = SimpleNamespace(**ranks, global_step=0, global_rank=0)
    other.on_train_batch_start(None, 0)
    assert float(torch.rand(())) not in draws


def test_validation_loss_is_of_the_references_alone(tiny_config, small_data):
    """Without label smoothing."""
    module = module_of(tiny_config("optim.label_smoothing=0.1", "model.dropout=0"), small_data).eval()
    batch = BatchDataset(small_data.split("validation"))[[0, 1, 2]]
    module.validation_loss_sum, module.validation_tokens = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        module.validation_step(batch, 0)
        log_p_BTV = module.model.logits(module.model(batch.source_BS, batch.target_input_BT)).log_softmax(-1)
    real_BT = batch.target_output_BT != 0
    expected = -log_p_BTV.gather(2, batch.target_output_BT[..., None])[..., 0][real_BT].sum()
    assert float(module.validation_loss_sum) == pytest.approx(float(expected), rel=1e-5)
    assert module.validation_tokens == int(real_BT.sum())


def test_stopwatch_excludes_warm_up_validation_bleu_and_checkpoints(tiny_config, small_data, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0, of_processor=100.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(callbacks.time, "process_time", lambda: clock.of_processor)
    hardware = tiny_config().hardware
    watch = callbacks.Stopwatch(hardware)

    def translate(module):
        clock.now += 1000.0
        return 12.5

    module = module_of(tiny_config(), small_data)
    module.last_validation_loss = 1.0
    pairs = SimpleNamespace(bytes_per_token=lambda: None)
    metrics = callbacks.Metrics(tmp_path, tiny_config().optim, pairs, watch, translate)
    trainer = SimpleNamespace(accumulate_grad_batches=2, is_global_zero=True, global_step=13, logger=None)
    batch = SimpleNamespace(step_source_tokens=50, step_target_tokens=70)

    def steps(number, seconds):
        for micro in [0, 1] * number:
            clock.now += seconds / 2
            clock.of_processor += 0.75 * seconds  # one core and a half
            watch.on_train_batch_end(trainer, module, None, batch, micro)

    steps(callbacks.WARM_UP_STEPS, 60.0)
    assert watch.reading() == (0.0, 0, 0, 0)
    steps(3, 2.0)
    assert watch.reading() == (6.0, 3, 150, 210)
    watch.on_train_start(trainer, module)
    os.kill(os.getpid(), signal.SIGCONT)  # after Ctrl-Z
    steps(1, 1000.0)
    assert watch.reading() == (6.0, 3, 150, 210)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    watch.on_validation_start(trainer, None)
    clock.now += 1000.0
    watch.on_validation_end(trainer, module)  # before that of Metrics, as in rpr.training.fit
    metrics.on_validation_end(trainer, module)
    steps(1, 2.0)
    watch.pause()  # a checkpoint
    clock.now += 1000.0
    watch.resume()
    steps(1, 2.0)
    assert watch.cores_used == pytest.approx(1.5)
    watch.on_train_end(trainer, None)
    clock.now += 1000.0
    clock.of_processor += 1000.0
    assert watch.reading() == (10.0, 5, 250, 350) and watch.cores_used == pytest.approx(1.5)
    resumed = callbacks.Stopwatch(hardware)
    resumed.load_state_dict(watch.state_dict() | {"earlier_peak": 10**15})
    assert resumed.peak_memory()[0] == 10**15
    assert resumed.reading() == (10.0, 5, 250, 350) and resumed.cores_used == pytest.approx(1.5)
    elsewhere = callbacks.Stopwatch(hardware)
    elsewhere.load_state_dict(watch.state_dict() | {"earlier_peak": 10**15, "device": "1 x another GPU"})
    assert elsewhere.reading() == (0.0, 0, 0, 0) and elsewhere.peak_memory()[0] < 10**15

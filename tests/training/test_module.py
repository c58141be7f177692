"""Checked here: the gradient of a step, however it is cut into microbatches and shared among ranks, against the mean
over the step's target pieces computed sentence by sentence without padding, in float64; the stopwatch against a clock
that is moved by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rpr.config.train import TrainConfig
from rpr.data.batches import TrainingBatches, TranslationDataset, accumulation
from rpr.data.cache import PreparedData as Data
from rpr.training import callbacks
from rpr.training.callbacks import WARM_UP_STEPS, Stopwatch
from rpr.training.module import TranslationModule

STEP = 3
MICROBATCHES = 4
Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


def made(config: TrainConfig, data: Data) -> TranslationModule:
    return TranslationModule(config, len(data.vocabulary)).double()


def batches(config: TrainConfig, data: Data, ranks: int, rank: int) -> TrainingBatches:
    budget = config.optim.max_tokens_per_microbatch
    return TrainingBatches(data.split("train"), budget, MICROBATCHES, config.seed, num_devices=ranks, rank=rank)


def sentence_by_sentence(config: TrainConfig, data: Data) -> dict[str, torch.Tensor]:
    """The gradient of the mean smoothed cross entropy over all target pieces of the step."""
    module = made(config, data)
    split = data.split("train")
    indices = [int(i) for microbatch in batches(config, data, 1, 0).step_microbatches(STEP) for i in microbatch]
    total, pieces = torch.zeros((), dtype=torch.float64), 0
    smoothing, size = config.optim.label_smoothing, len(data.vocabulary)
    for index in indices:
        source = torch.tensor(split.source(index).astype(int))[None]
        output = torch.tensor(split.target(index).astype(int))[None]
        inputs = torch.cat([torch.tensor([[2]]), output[:, :-1]], dim=1)  # BOS, then all but EOS
        log_p = F.log_softmax(module.model.logits(module.model(source, inputs)), dim=-1)[0]
        wanted = torch.full_like(log_p, smoothing / (size - 1))
        wanted[torch.arange(len(wanted)), output[0]] = 1 - smoothing
        total = total - (wanted * log_p).sum()
        pieces += output.shape[1]
    (total / pieces).backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_the_gradient_of_a_step_does_not_depend_on_its_cutting(
    ranks: int, tiny_config: Config, small_data: Data, expected: dict[str, Any]
) -> None:
    """1 rank takes 4 microbatches, 4 ranks one each, 8 ranks half of one each; Lightning divides a microbatch's loss
    by their number, DDP takes the mean over the ranks, both as emulated here.
    """
    config = tiny_config("model.dropout=0", f"optim.microbatches_per_step={MICROBATCHES}", "position.clip_distance=3")
    if not expected:
        expected.update(sentence_by_sentence(config, small_data))
    module = made(config, small_data)
    accumulate = accumulation(MICROBATCHES, ranks)
    module._trainer = SimpleNamespace(accumulate_grad_batches=accumulate, world_size=ranks)  # type: ignore[assignment]
    dataset = TranslationDataset(small_data.split("train"))
    for rank in range(ranks):
        specs = batches(config, small_data, ranks, rank).step_specs(STEP)
        assert len(specs) == accumulate
        for number, spec in enumerate(specs):
            (module.training_step(dataset[spec], number) / accumulate / ranks).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_an_empty_share_of_a_step_has_a_zero_gradient_for_every_parameter(
    tiny_config: Config, small_data: Data
) -> None:
    """An epoch's last step may leave a rank without pairs; DDP still waits for a gradient of each parameter."""
    module = made(tiny_config("model.dropout=0"), small_data)
    module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=2)  # type: ignore[assignment]
    spec = batches(module.config, small_data, 1, 0).step_specs(0)[0]
    empty = TranslationDataset(small_data.split("train"))[
        type(spec)(spec.indices[:0], 0, 0, spec.step_source_tokens, spec.step_target_tokens)
    ]
    loss = module.training_step(empty, 0)
    assert float(loss.detach()) == 0.0
    gradients = torch.autograd.grad(loss, [*module.parameters()], allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)


def test_dropout_is_a_function_of_seed_and_step(tiny_config: Config, small_data: Data) -> None:
    """Each of the microbatches of two steps on two ranks has its own draw, and the same one again."""
    module = TranslationModule(tiny_config(), len(small_data.vocabulary))
    draws = []
    for _ in range(2):
        for step in range(2):
            for rank in range(2):
                for micro in range(2):
                    module._trainer = SimpleNamespace(  # type: ignore[assignment]
                        accumulate_grad_batches=2, world_size=2, global_step=step, global_rank=rank
                    )
                    module.on_train_batch_start(None, step * 2 + micro)  # type: ignore[arg-type]
                    draws.append(float(torch.rand(())))
    assert draws[:8] == draws[8:] and len(set(draws)) == 8


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_stopwatch_leaves_out_warm_up_validation_and_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, processor = Clock(), Clock()
    monkeypatch.setattr(callbacks.time, "perf_counter", clock)
    monkeypatch.setattr(callbacks.time, "process_time", processor)
    watch = Stopwatch()
    trainer: Any = SimpleNamespace(accumulate_grad_batches=2)
    batch: Any = SimpleNamespace(step_source_tokens=50, step_target_tokens=70)

    def steps(number: int, seconds: float) -> None:
        for _ in range(number):
            for micro in range(2):
                clock.now += seconds / 2
                processor.now += 0.75 * seconds  # one core and a half
                watch.on_train_batch_end(trainer, None, None, batch, micro)  # type: ignore[arg-type]

    steps(WARM_UP_STEPS, 60.0)  # slow: must not be seen
    assert watch.reading() == (0.0, 0, 0, 0)
    steps(3, 2.0)
    assert watch.reading() == (6.0, 3, 150, 210)
    watch.on_validation_start(trainer, None)  # type: ignore[arg-type]
    clock.now += 1000.0
    watch.on_validation_end(trainer, None)  # type: ignore[arg-type]
    steps(1, 2.0)
    watch.pause()  # a checkpoint
    clock.now += 1000.0
    watch.resume()
    steps(1, 2.0)
    assert watch.cores_used == pytest.approx(1.5)
    watch.on_train_end(trainer, None)  # type: ignore[arg-type]
    clock.now += 1000.0
    processor.now += 1000.0
    assert watch.reading() == (10.0, 5, 250, 350) and watch.cores_used == pytest.approx(1.5)
    resumed = Stopwatch()
    resumed.load_state_dict(watch.state_dict())
    assert resumed.reading() == (10.0, 5, 250, 350) and resumed.cores_used == pytest.approx(1.5)
    resumed.load_state_dict({key: value for key, value in watch.state_dict().items() if key != "processor_seconds"})
    assert resumed.cores_used is None  # a checkpoint of before it was kept

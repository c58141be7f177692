"""Timings on a simulated clock, memory and FLOPs by hand and as torch counts them."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rpr.cli import app
from rpr.commands import bench as benchmark
from rpr.commands.bench import WARM_UP, peak_bytes, take_turns, training_step
from rpr.compose.composition import compose_train
from rpr.config.commands import BenchConfig
from rpr.validation import validate

CPU = torch.device("cpu")


def bench(*overrides):
    sizes = ["model.d_model=16", "model.num_heads=2", "model.num_layers=1", "model.d_ff=16", "data.vocabulary_size=40"]
    return validate(BenchConfig, app.compose("bench", [*sizes, "sentences=3", "length=5", *overrides]))


def positions(*names):
    return {name: compose_train([f"position={name}"]).position for name in names}


def test_steps_alternate_and_are_compared_within_a_round(monkeypatch):
    clock, called = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(benchmark, "peak_bytes", lambda step, device: step() or 7 * len(called))

    def step_of(name, *durations):
        """A step that takes these durations in turn, after warm-up calls of 9 seconds."""
        left = iter([9.0] * (WARM_UP + 1) + [*durations])

        def step():
            called.append(name)
            clock.now += next(left)

        return step

    # b takes 2, 4 and 1 times as long as a.
    steps = {"a": step_of("a", 1.0, 3.0, 4.0, 4.0, 0.5, 1.5), "b": step_of("b", 4.0, 4.0, 10.0, 22.0, 1.0, 1.0)}
    timings = take_turns(steps, rounds=3, steps_per_round=2, device=CPU)
    warm = WARM_UP + 1  # and once for memory
    assert called == ["a"] * warm + ["b"] * warm + ["a", "a", "b", "b"] * 3
    assert timings == {"a": ([2.0, 4.0, 1.0], 7 * warm), "b": ([4.0, 16.0, 1.0], 7 * 2 * warm)}


def test_a_variant_without_memory_has_no_figures_and_without_the_baseline_none_has(monkeypatch):
    def step_of(_config, position, *_):
        def step():
            if position.name == "absolute":
                raise torch.OutOfMemoryError
            torch.empty(9)

        return step

    monkeypatch.setattr(benchmark, "training_step", step_of)
    for names, problems in ((("absolute", "none"), 2), (("none", "absolute"), 1)):
        rows = benchmark.measure(bench("rounds=1"), "step", 5, positions(*names))
        assert [row.get("problem") for row in rows].count("out of memory") == problems


def test_peak_bytes_of_live_tensors():
    earlier, x = [torch.ones(10_000)], torch.ones(1000, requires_grad=True)

    def step():
        first = torch.empty(1000)  # 4,000 bytes
        second = torch.empty(250, dtype=torch.float64)  # 6,000
        del first  # 2,000
        third = torch.empty(3000, dtype=torch.bfloat16)  # 8,000
        del second, third
        torch.empty(1500)  # 6,000

    def in_place():
        earlier[0] += 1
        earlier.append(torch.empty(100))  # 400 bytes, and they stay
        torch.empty(25)  # 500

    def backward():
        y = x.exp()  # kept for the backward pass, beside the ones and the gradient
        torch.autograd.grad(y, x, torch.ones(1000))

    assert [peak_bytes(work, CPU) for work in (step, in_place, backward)] == [8000, 500, 3 * 4000]


@pytest.mark.parametrize("architecture, source", [("encoder_decoder", 7), ("decoder_only", 11), ("decoder_only", 0)])
def test_step_flops(architecture, source):
    config = bench("model.num_layers=2", "model.d_ff=24", f"model.architecture={architecture}")
    sizes = benchmark.BatchShape(2, source, 11)
    step = training_step(config, positions("absolute")["absolute"], sizes, CPU)
    with FlopCounterMode(display=False) as counted:
        step()
    expected = benchmark.step_flops(config.model, config.data.vocabulary_size, sizes)
    # torch also counts operations of the loss and the embedding.
    assert counted.get_total_flops() == pytest.approx(expected, rel=0.02)

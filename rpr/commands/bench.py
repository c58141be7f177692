"""rpr-cli bench: training steps/s of the position variants, in turn on the same batches in one process."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rpr.config import BenchConfig, ModelConfig, PositionConfig
from rpr.errors import ConfigError
from rpr.model.transformer import Transformer
from rpr.results.paper import RELATIVE_SPEED
from rpr.training import runtime
from rpr.training.loss import label_smoothed_loss
from rpr.training.module import transformer_shape

WARM_UP_STEPS = 3


def run(config: BenchConfig, positions: dict[str, PositionConfig]) -> None:
    """A step is forward, label-smoothed loss, backward and Adam; speeds are relative to the first variant.

    The ratio of a round compares steps taken right after one another, so a machine whose speed drifts still compares
    fairly; the median over rounds is shown with the smallest and largest.
    """
    if config.hardware.num_ranks > 1:
        raise ConfigError(f"hardware={config.hardware.name}: bench runs in one process; choose hardware=cpu or 1xgpu")
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    device = runtime.torch_device(config.hardware)
    torch.manual_seed(config.seed)
    shape = (config.sentences, config.length)
    source = torch.randint(4, config.data.vocabulary_size, shape, device=device)
    target = torch.randint(4, config.data.vocabulary_size, shape, device=device)
    steps = {name: _step(config, config.model, position, source, target) for name, position in positions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARM_UP_STEPS):
            step()
    for done in range(config.rounds):
        for name, step in steps.items():
            _synchronise(device)
            started = time.perf_counter()
            for _ in range(config.steps_per_round):
                step()
            _synchronise(device)
            seconds[name].append((time.perf_counter() - started) / config.steps_per_round)
        print(f"round {done + 1}/{config.rounds}", file=sys.stderr, flush=True)
    baseline = seconds[config.variants[0]]
    rows = []
    for name in config.variants:
        ratios = [base / own for base, own in zip(baseline, seconds[name], strict=True)]
        rows.append(
            {
                "variant": name,
                "steps_per_second": 1 / statistics.median(seconds[name]),
                "relative_speed": statistics.median(ratios),
                "relative_speed_min": min(ratios),
                "relative_speed_max": max(ratios),
            }
        )
    if config.format == "json":
        device_name = runtime.device_name(config.hardware)
        print(json.dumps({"device": device_name, "config": config.model_dump(mode="json"), "rows": rows}, indent=2))
        return
    print(
        f"model={config.model.name}, {config.sentences} sentences of {config.length} pieces, vocabulary "
        f"{config.data.vocabulary_size}, {config.hardware.precision} (products: {config.hardware.matmul_precision}), "
        f"{runtime.device_name(config.hardware)}"
    )
    print(f"{'variant':<24}{'steps/s':>9}   of {config.variants[0]}: median (smallest to largest of {config.rounds})")
    for row in rows:
        print(
            f"{row['variant']:<24}{row['steps_per_second']:>9.2f}   {row['relative_speed']:.3f} "
            f"({row['relative_speed_min']:.3f} to {row['relative_speed_max']:.3f})"
        )
    print(f"the paper: relative at {RELATIVE_SPEED:.2f} of absolute (base model on P100 GPUs)")


def _step(
    config: BenchConfig, model_config: ModelConfig, position: PositionConfig, source: Tensor, target: Tensor
) -> Callable[[], None]:
    model = Transformer(transformer_shape(model_config, position, config.data.vocabulary_size)).to(source.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    bfloat16 = config.hardware.precision == "bf16"

    def step() -> None:
        with torch.autocast(source.device.type, torch.bfloat16, enabled=bfloat16):
            logits = model.logits(model(source, target)).flatten(0, 1).float()
            loss = label_smoothed_loss(logits, target.flatten(), config.optim.label_smoothing) / target.numel()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()

"""rpr-cli bench: what position variants cost, side by side in one process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # memory is counted with torch's profiler, which would talk about it

from rpr.command_config import BenchConfig
from rpr.config import PositionConfig
from rpr.errors import ConfigError
from rpr.paper import RELATIVE_SPEED
from rpr.records.provenance import git_state, versions
from rpr.runs import runtime
from rpr.training import benchmark


def run(config: BenchConfig, positions: dict[str, PositionConfig]) -> None:
    """Measure the parts asked for, and print them as tables or as one JSON document."""
    if config.hardware.num_ranks > 1:
        raise ConfigError(f"hardware={config.hardware.name}: bench runs in one process; choose hardware=cpu or 1xgpu")
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    document: dict[str, Any] = {
        "device": runtime.device_name(config.hardware),
        "git": git_state().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }
    if "step" in config.parts:
        document["step"] = _steps(config, positions)
    if "layer" in config.parts:
        document["layer"] = _layers(config, positions)
    if "gradients" in config.parts:
        document["gradients"] = _gradients(config)
    print(json.dumps(document, indent=2) if config.format == "json" else as_text(document))


def as_text(document: dict[str, Any]) -> str:
    """The document's tables."""
    config = document["config"]
    hardware, model, baseline = config["hardware"], config["model"], config["variants"][0]
    lines = [
        f"{document['device']}, torch {document['versions']['torch']}, precision {hardware['precision']} "
        f"(products: {hardware['matmul_precision']}), attention={hardware['attention']}"
    ]
    if rows := document.get("step"):
        lines += [
            "",
            f"Whole training step: model={model['name']}, {config['sentences']} sentences of {config['length']}, "
            f"vocabulary {config['data']['vocabulary_size']}, k = {model['relative_defaults']['clip_distance']}",
            f"{'variant':<28}{'steps/s':>9}{'speed of ' + baseline:>20}{'(min to max)':>18}{'peak MB':>9}{'ratio':>7}",
        ]
        lines += [
            f"{row['variant']:<28}{row['steps_per_second']:>9.3f}{row['relative_speed']:>20.3f}"
            f"{_range(row):>18}{row['peak_megabytes']:>9.0f}{row['relative_memory']:>7.3f}"
            for row in rows
        ]
        lines.append(f"the paper: relative at {RELATIVE_SPEED:.2f} of absolute (base model on P100 GPUs)")
    if rows := document.get("layer"):
        lines += [
            "",
            f"One self-attention layer with its projections, forward and backward: d {model['d_model']}, "
            f"{model['num_heads']} heads, about {config['layer']['positions']} positions",
            f"{'length':>6}{'batch':>6}{'k':>4} {'':<8}{'variant':<28}{'ms':>9}{'time of ' + baseline:>20}"
            f"{'(min to max)':>18}{'extra MB':>10}",
        ]
        lines += [
            f"{row['length']:>6}{row['batch']:>6}{row['clip_distance']:>4} {'causal' if row['causal'] else '':<8}"
            f"{row['variant']:<28}{1e3 * row['seconds']:>9.2f}{row['relative_time']:>20.3f}"
            f"{_range(row):>18}{row['extra_megabytes']:>10.1f}"
            for row in rows
        ]
    if rows := document.get("gradients"):
        lines += [
            "",
            f"The tables' gradients in bfloat16, length {config['gradients']['length']}, "
            f"k = {config['gradients']['clip_distance']}: error of the whole table against float64",
            f"{'algorithm':<28}{'w^K':>9}{'w^V':>9}",
        ]
        lines += [f"{row['algorithm']:<28}{row['keys']:>9.2%}{row['values']:>9.2%}" for row in rows]
    return "\n".join(lines)


def _range(row: dict[str, Any]) -> str:
    return f"({row['min']:.3f} to {row['max']:.3f})"


def _steps(config: BenchConfig, positions: dict[str, PositionConfig]) -> list[dict[str, Any]]:
    device = runtime.torch_device(config.hardware)
    timings = benchmark.take_turns(
        benchmark.training_steps(config, positions, device),
        rounds=config.rounds,
        steps_per_round=config.steps_per_round,
        device=device,
        progress=lambda done: _tell(f"step: round {done} of {config.rounds}"),
    )
    baseline = timings[config.variants[0]]
    return [
        {
            "variant": name,
            "steps_per_second": 1 / timing.seconds,
            "relative_speed": timing.ratio,
            "min": timing.ratio_min,
            "max": timing.ratio_max,
            "peak_megabytes": timing.peak_bytes / 1e6,
            "relative_memory": timing.peak_bytes / baseline.peak_bytes,
        }
        for name, timing in timings.items()
    ]


def _layers(config: BenchConfig, positions: dict[str, PositionConfig]) -> list[dict[str, Any]]:
    device = runtime.torch_device(config.hardware)
    rows = []
    for case in benchmark.layer_cases(config):
        _tell(f"layer: {asdict(case)}")
        timings = benchmark.take_turns(
            benchmark.layer_steps(config, positions, case, device),
            rounds=config.layer.rounds,
            steps_per_round=config.steps_per_round,
            device=device,
        )
        baseline = timings[config.variants[0]]
        rows += [
            {
                **asdict(case),
                "variant": name,
                "seconds": timing.seconds,
                "relative_time": 1 / timing.ratio,
                "min": 1 / timing.ratio_max,
                "max": 1 / timing.ratio_min,
                "extra_megabytes": (timing.peak_bytes - baseline.peak_bytes) / 1e6,
            }
            for name, timing in timings.items()
        ]
    return rows


def _gradients(config: BenchConfig) -> list[dict[str, Any]]:
    errors = benchmark.table_gradient_errors(
        config.layer.algorithms,
        config.hardware.attention,
        length=config.gradients.length,
        clip_distance=config.gradients.clip_distance,
        d_head=config.model.d_model // config.model.num_heads,
        seed=config.seed,
        device=runtime.torch_device(config.hardware),
    )
    return [{"algorithm": name, **asdict(error)} for name, error in errors.items()]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

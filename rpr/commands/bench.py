"""rpr-cli bench: the cost of position variants, measured side by side in one process."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # memory is measured with torch's profiler, which would log messages

import torch

from rpr.bench import benchmark
from rpr.commands.printing import with_legend
from rpr.config.commands import BenchConfig
from rpr.config.train import check_attention
from rpr.errors import ConfigError
from rpr.model.positions import Positions
from rpr.model.scheme_check import check_hooks
from rpr.paper import RELATIVE_SPEED
from rpr.progress import Progress
from rpr.records.measurement import Measurement, missing, single
from rpr.records.provenance import git_state, versions
from rpr.records.scores import Interval
from rpr.runs import runtime
from rpr.tables.grid import Column, Grid, Note
from rpr.tables.render import wrapped


def run(config: BenchConfig, positions: dict[str, Positions]) -> None:
    """Measure the requested parts, and print them as tables or as one JSON document: when interrupted, as by a time
    limit, those that were measured.
    """
    stacks = [stack for position in positions.values() for stack in config.model.transformer(position, 1).stacks()]
    check_attention(config.hardware, stacks)
    for stack in stacks:
        if problem := stack.too_long(config.longest, "length, context.lengths, layer.lengths"):
            raise ConfigError(f"variants: {problem}")
        check_hooks(stack.scheme, stack.site, config.longest)
    runtime.check_devices(config.hardware)
    runtime.set_up(config.hardware)
    hardware = config.hardware.model_copy(update={"matmul_precision": runtime.matmul_precision(config.hardware)})
    config = config.model_copy(update={"hardware": hardware})  # the document has what was used
    document: dict[str, Any] = {
        "device": runtime.device_name(config.hardware),
        "git": git_state().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }
    size = config.model.d_model * (16 if config.hardware.accelerator == "gpu" else 4)
    rate = benchmark.matmul_rate(config.hardware, runtime.torch_device(config.hardware), size)
    document["products"] = {"size": size, "operations_per_second": rate}
    shape = benchmark.BatchShape(config.sentences, config.length, config.length)
    measures: dict[str, Any] = {"step": partial(_steps, shape, "step"), "context": _contexts, "layer": _layers}
    parts = [part for part in measures if part in config.parts]
    try:
        for part in parts:
            rows = document[part] = []
            for row in measures[part](config, positions, rate):
                rows.append(row)
    except (KeyboardInterrupt, SystemExit):
        if any(document.get(part) for part in parts):
            _print(document, config.format)
        raise
    _print(document, config.format)


def _print(document: dict[str, Any], format: str) -> None:
    print(json.dumps(document, indent=2) if format == "json" else as_text(document), flush=True)


def as_text(document: dict[str, Any]) -> str:
    """The document's tables."""
    config = document["config"]
    hardware, model, layer = (config[part] for part in ("hardware", "model", "layer"))
    versus = f"vs {config['variants'][0]}"
    head = (
        f"{document['device']}, torch {document['versions']['torch']}, precision {hardware['precision']} "
        f"(matmuls: {hardware['matmul_precision']}), attention={hardware['attention']}"
    )
    if products := document.get("products"):
        rate, size = products["operations_per_second"] / 1e12, products["size"]
        head += f"; MFU is relative to a {size} x {size} matmul: {rate:.3g} TFLOP/s"
    variant = Column("variant", "variant", itemgetter("variant"), label=True)
    size = f"vocabulary {config['data']['vocabulary_size']}, k = {model['relative_defaults']['clip_distance']}"
    utilisation = _figures("utilisation", "MFU %", 1, scale=100)
    of_steps = (
        variant,
        _figures("steps_per_second", "steps/s", 3),
        _figures("target_tokens_per_second", "target tokens/s", 0),
        Column("relative_speed", f"speed {versus}", _ratio("relative_speed", config["rounds"]), 3),
        utilisation,
        _figures("peak_megabytes", "peak MB", 0),
        _figures("relative_memory", f"memory {versus}", 3),
    )
    of_layers = (
        _figures("length", "length", 0),
        _figures("batch", "batch", 0),
        _figures("clip_distance", "k", 0),
        Column("causal", "", lambda row: "causal" if row["causal"] else "", words=True),
        variant,
        _figures("seconds", "ms", 2, scale=1e3),
        Column("relative_time", f"time {versus}", _ratio("relative_time", layer["rounds"]), 3),
        utilisation,
        _figures("extra_megabytes", "extra MB", 1),
    )
    grids = [
        Grid(
            "step",
            f"Whole training step: model={model['name']}, {config['sentences']} sentences of {config['length']}, "
            f"{size}",
            _available(document, "step", of_steps),
            tuple(document.get("step", ())),
            notes=(Note(f"the paper: relative at {RELATIVE_SPEED:.2f} of absolute (base model on P100 GPUs)"),),
        ),
        Grid(
            "context",
            f"Whole training step by length of the context: model={model['name']}, decoder-only, {size}",
            _available(document, "context", (*of_layers[:2], *of_steps)),
            tuple(document.get("context", ())),
        ),
        Grid(
            "layer",
            f"One self-attention layer with its projections, forward and backward: d {model['d_model']}, "
            f"{model['num_heads']} heads, about {layer['positions']} positions",
            _available(document, "layer", of_layers),
            tuple(document.get("layer", ())),
            notes=tuple(_without_algorithm(document)),
        ),
    ]
    return "\n\n".join(["\n".join(wrapped([head])), with_legend([grid for grid in grids if grid.rows])])


def _without_algorithm(document: dict[str, Any]) -> Iterator[Note]:
    """The variants, but for the baseline, without a row for an algorithm: no such form, or an interrupted benchmark."""
    rows, config = [row["variant"] for row in document.get("layer", ())], document["config"]
    untimed: dict[str, list[str]] = {}
    for algorithm in config["layer"]["algorithms"] if rows else ():
        for variant in config["variants"][1:] if algorithm != "attend" else ():
            # Of a pattern each kind of layer has a row.
            if not any(re.fullmatch(rf"{re.escape(variant)}(: .*)? \({algorithm}\)", row) for row in rows):
                untimed.setdefault(variant, []).append(algorithm)
    if untimed:
        listed = "; ".join(f"{variant} with {', '.join(without)}" for variant, without in untimed.items())
        yield Note(f"not timed: {listed}")


def _figures(key: str, heading: str, digits: int, scale: float = 1) -> Column:
    def read(row: dict[str, Any]) -> Measurement:
        return missing(row["problem"]) if "problem" in row else single(scale * row[key])

    return Column(key, heading, read, digits)


def _available(document: dict[str, Any], part: str, columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns for which the document has figures: older documents lack some."""
    rows = [row for row in document.get(part, ()) if "problem" not in row]
    return tuple(column for column in columns if all(column.key in row for row in rows))


def _ratio(key: str, rounds: int) -> Callable[[dict[str, Any]], Measurement]:
    """The median over the rounds; the baseline's ratio to itself has no range."""

    def read(row: dict[str, Any]) -> Measurement:
        if "problem" in row:
            return missing(row["problem"])
        if row["min"] == row["max"] == 1:
            return single(row[key])
        return Measurement(row[key], rounds, interval=Interval(row["min"], row["max"], 1.0, kind="rounds"))

    return read


_OUT_OF_MEMORY = {"problem": "out of memory"}  # a row's, in place of figures


def _contexts(config: BenchConfig, positions: dict[str, Positions], rate: float) -> Iterator[dict[str, Any]]:
    """Steps on text alone, at each length of the context."""
    for length in config.context.lengths:
        shape = benchmark.BatchShape(max(1, config.context.positions // length), 0, length)
        for row in _steps(shape, f"context of {length}", config, positions, rate):
            yield {"length": length, "batch": shape.sentences, **row}


def _steps(
    shape: benchmark.BatchShape, what: str, config: BenchConfig, positions: dict[str, Positions], rate: float
) -> list[dict[str, Any]]:
    device, timings = runtime.torch_device(config.hardware), dict[str, benchmark.Timing]()
    with suppress(torch.OutOfMemoryError), Progress(config.rounds, "rounds", what) as bar:
        timings = benchmark.take_turns(
            benchmark.training_steps(config, positions, shape, device),
            rounds=config.rounds,
            steps_per_round=config.steps_per_round,
            device=device,
            progress=lambda done: bar.reach(done, config.rounds),
        )
    operations = benchmark.step_flops(config.model, config.data.vocabulary_size, shape)
    return [
        {
            "variant": name,
            "steps_per_second": 1 / timing.seconds,
            "target_tokens_per_second": shape.sentences * shape.target / timing.seconds,
            "utilisation": operations / (rate * timing.seconds),
            "peak_megabytes": timing.peak_bytes / 1e6,
            "relative_speed": timing.ratio,
            "min": timing.ratio_min,
            "max": timing.ratio_max,
            "relative_memory": timing.peak_bytes / timings[config.variants[0]].peak_bytes,
            "round_seconds": timing.rounds,
        }
        if (timing := timings.get(name)) is not None
        else {"variant": name, **_OUT_OF_MEMORY}
        for name in positions
    ]


def _layers(config: BenchConfig, positions: dict[str, Positions], rate: float) -> Iterator[dict[str, Any]]:
    device = runtime.torch_device(config.hardware)
    cases = list(benchmark.layer_cases(config))
    with Progress(len(cases), "cases", "layer") as bar:
        for case in cases:
            bar.update(0, **asdict(case))
            steps: Mapping[str, Any] = positions
            timings = dict[str, benchmark.Timing]()
            with suppress(torch.OutOfMemoryError):
                steps = benchmark.layer_steps(config, positions, case, device)
                if steps:
                    timings = benchmark.take_turns(
                        steps, rounds=config.layer.rounds, steps_per_round=config.steps_per_round, device=device
                    )
            operations = benchmark.layer_flops(config.model.d_model, case.batch, case.length)
            baseline = next(iter(steps), "")
            for name in steps:
                if (timing := timings.get(name)) is None:
                    yield {**asdict(case), "variant": name, **_OUT_OF_MEMORY}
                    continue
                yield {
                    **asdict(case),
                    "variant": name,
                    "seconds": timing.seconds,
                    "utilisation": operations / (rate * timing.seconds),
                    "relative_time": 1 / timing.ratio,
                    "min": 1 / timing.ratio_max,
                    "max": 1 / timing.ratio_min,
                    "extra_megabytes": (timing.peak_bytes - timings[baseline].peak_bytes) / 1e6,
                    "round_seconds": timing.rounds,
                }
            bar.update()

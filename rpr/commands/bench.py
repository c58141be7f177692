"""rpr-cli bench: the speed and memory of position variants, side by side in one process.

Variants take turns on the same data, so that the comparison stays fair on a machine whose speed drifts: a ratio is the
median over rounds of the ratio within a round. Utilisation (MFU) is relative to the rate of a large matrix product.
"""

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, cast

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # memory is measured with torch's profiler, which would log messages

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from rpr.config.commands import BenchConfig
from rpr.config.train import HardwareConfig, ModelConfig, check_attention
from rpr.errors import ConfigError
from rpr.model.attention import Implementation, attention_of, per_position, split_heads
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions import Positions, Scheme, Site
from rpr.model.scheme_check import check_hooks
from rpr.model.transformer import build_model
from rpr.paper import RELATIVE_SPEED
from rpr.progress import Progress
from rpr.records.provenance import git_state, versions
from rpr.runs import runtime
from rpr.tables.render import wrapped
from rpr.training.loss import label_smoothed_loss

WARM_UP = 3
OUT_OF_MEMORY = {"problem": "out of memory"}  # in a row, in place of figures


def run(config: BenchConfig, positions: dict[str, Positions]) -> None:
    """Measure the requested parts, and print them as tables or as one JSON document: when interrupted, as by a time
    limit, those that were measured.
    """
    # 1. Refuse what cannot run, before any work.
    stacks = [stack for position in positions.values() for stack in config.model.transformer(position, 1).stacks()]
    check_attention(config.hardware, stacks)
    for stack in stacks:
        if problem := stack.too_long(config.longest, "length, context.lengths, layer.lengths"):
            raise ConfigError(f"variants: {problem}")
        check_hooks(stack.scheme, stack.site, config.longest)
    runtime.check_devices(config.hardware)
    # 2. What a reader needs to know of the machine, with the settings that were used.
    runtime.set_up(config.hardware)
    hardware = config.hardware.model_copy(update={"matmul_precision": runtime.matmul_precision(config.hardware)})
    config = config.model_copy(update={"hardware": hardware})
    document: dict[str, Any] = {
        "device": runtime.device_name(config.hardware),
        "git": git_state().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
    }
    size = config.model.d_model * (16 if config.hardware.accelerator == "gpu" else 4)
    rate = matmul_rate(config.hardware, runtime.torch_device(config.hardware), size)
    document["products"] = {"size": size, "operations_per_second": rate}
    # 3. The parts, row by row.
    shape = BatchShape(config.sentences, config.length, config.length)
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


COLUMNS: dict[str, Callable[[Any], str]] = {
    "length": str,
    "batch": str,
    "clip_distance": str,
    "causal": lambda causal: "causal" if causal else "",
    "variant": str,
    "steps_per_second": "{:.3f}".format,
    "target_tokens_per_second": "{:,.0f}".format,
    "seconds": "{:.5f}".format,
    "relative_speed": "{:.3f}".format,
    "relative_time": "{:.3f}".format,
    "min": "{:.3f}".format,
    "max": "{:.3f}".format,
    "utilisation": "{:.1%}".format,
    "peak_megabytes": "{:,.0f}".format,
    "extra_megabytes": "{:,.1f}".format,
    "relative_memory": "{:.3f}".format,
    "problem": str,
}


def as_text(document: dict[str, Any]) -> str:
    """The document's tables."""
    import pandas

    config = document["config"]
    hardware, model, layer = (config[part] for part in ("hardware", "model", "layer"))
    products = document.get("products")  # older documents lack it
    rate = (
        products and f"{products['size']} x {products['size']}: {products['operations_per_second'] / 1e12:.3g} TFLOP/s"
    )
    head = (
        f"{document['device']}, torch {document['versions']['torch']}, precision {hardware['precision']} "
        f"(matmuls: {hardware['matmul_precision']}), attention={hardware['attention']}; "
        f"utilisation is relative to a matmul{f' of {rate}' if rate else ''}; "
        f"relative: vs {config['variants'][0]}, the median over rounds, from min to max; "
        f"the paper: {RELATIVE_SPEED:.2f} of absolute's speed (base, P100 GPUs)"
    )
    titles = {
        "step": f"Training step: model={model['name']}, {config['sentences']} sentences of {config['length']}",
        "context": f"Training step by length of the context: model={model['name']}, decoder-only",
        "layer": f"One self-attention layer, forward and backward: d {model['d_model']}, {model['num_heads']} heads, "
        f"about {layer['positions']} positions",
    }
    parts = ["\n".join(wrapped([head]))]
    for part, title in titles.items():
        if rows := document.get(part):
            shown = {key: form for key, form in COLUMNS.items() if any(key in row for row in rows)}
            cells = [{key: form(row[key]) if key in row else "–" for key, form in shown.items()} for row in rows]
            frame = pandas.DataFrame(cells).rename(columns=lambda key: key.replace("_", " "))
            parts.append(f"{title}\n{frame.to_string(index=False)}")
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Timing:
    """Seconds and memory of one execution, and its speed relative to the first of its group."""

    seconds: float  # median over rounds
    ratio: float  # seconds of the group's first / seconds: above 1 is faster; median over rounds
    ratio_min: float
    ratio_max: float
    peak_bytes: int  # of tensors, above those allocated before
    rounds: tuple[float, ...]  # seconds, in order


def take_turns(
    steps: dict[str, Callable[[], None]],
    *,
    rounds: int,
    steps_per_round: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time all steps in turn, round by round; the first is the baseline. Those that run out of a GPU's memory have no
    timing; raises torch.OutOfMemoryError if the baseline does.
    """
    baseline, *_ = steps
    peaks = {}
    for name, step in steps.items():
        try:
            for _ in range(WARM_UP):
                step()
            peaks[name] = peak_bytes(step, device)
        except torch.OutOfMemoryError:
            if name == baseline:
                raise
    seconds: dict[str, list[float]] = {name: [] for name in peaks}
    for done in range(1, rounds + 1):
        for name, own in seconds.items():
            own.append(_seconds(steps[name], device, steps_per_round))
        progress(done)
    first = seconds[baseline]
    timings = {}
    for name, own in seconds.items():
        ratios = [base / its for base, its in zip(first, own, strict=True)]
        medians = statistics.median(own), statistics.median(ratios)
        timings[name] = Timing(*medians, min(ratios), max(ratios), peaks[name], tuple(own))
    return timings


def _seconds(step: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Of one step, as the mean over a number of times."""
    _synchronise(device)
    started = time.perf_counter()
    for _ in range(times):
        step()
    _synchronise(device)
    return (time.perf_counter() - started) / times


def matmul_rate(hardware: HardwareConfig, device: torch.device, size: int) -> float:
    """FLOP/s of a matmul of two size x size matrices in the model's precision: the median of ten, after three warm-up
    runs. The upper bound for a training step on this device.
    """
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = [_seconds(lambda: torch.mm(a, b), device) for _ in range(13)]
    return 2 * size**3 / statistics.median(seconds[3:])


class BatchShape(NamedTuple):
    """Sentences of a batch, and the tokens of each in source and target."""

    sentences: int
    source: int
    target: int


def step_flops(model: ModelConfig, vocabulary_size: int, shape: BatchShape) -> int:
    """Model FLOPs of a training step: those of the matmuls that the model requires mathematically. With d = d_model,
    f = d_ff, N layers in each stack, a vocabulary of V, a source of S and a target of T positions, the forward pass
    takes 4 N (n d^2 + m d^2 + n m d) where n positions attend to m, 4 N d f for each position and 2 T d V for the
    scores. The encoder has n = m = S, the decoder n = m = T and m = S, a single stack n = m = S + T.

    A multiply-add counts as two; the backward pass takes twice the forward pass. Causal attention counts in full.
    The cost of positions and of recomputation is excluded, so variants compare as their speeds do. The utilisation
    (MFU) is this / (`matmul_rate` * seconds).
    """
    d, f = model.d_model, model.d_ff
    sentences, source, target = shape
    one_stack = model.architecture == "decoder_only"
    attended = [(source + target,) * 2] if one_stack else [(source, source), (target, target), (target, source)]
    attention = sum((queries + keys) * 4 * d * d + 4 * queries * keys * d for queries, keys in attended)
    layer = attention + (source + target) * 4 * d * f
    return 3 * sentences * (model.num_layers * layer + target * 2 * d * vocabulary_size)


def layer_flops(d_model: int, batch: int, length: int) -> int:
    """FLOPs of one self-attention layer with its projections, forward and backward, counted as in `step_flops`."""
    return 3 * batch * length * (8 * d_model * d_model + 4 * length * d_model)


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """The peak memory of tensors during a step, above that before it, in bytes."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    results = recorded.profiler.kineto_results
    changes = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda event: event.start_ns())
    current = peak = 0
    for change in changes:
        current += change.nbytes()
        peak = max(peak, current)
    return peak


def training_steps(
    config: BenchConfig, positions: dict[str, Positions], shape: BatchShape, device: torch.device
) -> dict[str, Callable[[], None]]:
    """A step of each variant on the same batch: forward, label-smoothed loss, backward and Adam."""
    torch.manual_seed(config.seed)
    vocabulary_size, smoothing = config.data.vocabulary_size, config.optim.label_smoothing
    sizes = ((shape.sentences, length) for length in (shape.source, shape.target))
    source, target = (torch.randint(4, vocabulary_size, size, device=device) for size in sizes)

    def step_of(position: Positions) -> Callable[[], None]:
        model = build_model(config.model.transformer(position, vocabulary_size)).to(device)
        model.use_attention(config.hardware.attention)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            with _autocast(config.hardware, device):
                hidden = model(source, target).flatten(0, 1)
                loss = label_smoothed_loss(hidden, model.embedding_VM, target.flatten(), smoothing) / target.numel()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)  # so that a step's memory includes only its own gradients

        return step

    return {name: step_of(position) for name, position in positions.items()}


@dataclass(frozen=True)
class LayerCase:
    """One self-attention layer with its projections, without dropout, norm and residual."""

    batch: int
    length: int
    clip_distance: int
    causal: bool


def layer_cases(config: BenchConfig) -> Iterable[LayerCase]:
    layer = config.layer
    for causal, clip_distance, length in itertools.product(layer.causal, layer.clip_distances, layer.lengths):
        yield LayerCase(max(1, layer.positions // length), length, clip_distance, causal)


def layer_steps(
    config: BenchConfig, positions: dict[str, Positions], case: LayerCase, device: torch.device
) -> dict[str, Callable[[], None]]:
    """Forward and backward of each variant that the case allows, of none if it does not allow the first; those with
    tables once per requested algorithm.

    The keys are variant names, of a pattern with the scheme of each kind of layer, and with the algorithm in brackets
    unless it is `attend` with the hardware's implementation.
    """
    torch.manual_seed(config.seed)
    d_model = config.model.d_model
    x = torch.randn(case.batch, case.length, d_model, device=device, requires_grad=True)
    cotangent = torch.randn(case.batch, case.length, d_model, device=device)
    qkv = nn.Linear(d_model, 3 * d_model, bias=False, device=device)
    output = nn.Linear(d_model, d_model, bias=False, device=device)
    site = Site(1, config.model.num_heads, d_model, case.causal)

    def layer_step(scheme: Scheme, algorithm: str) -> Callable[[], None]:
        implementation = config.hardware.attention if algorithm == "attend" else cast(Implementation, algorithm)
        attend = per_position if algorithm == "per_position" else partial(attention_of, implementation=implementation)
        layer_positions = LayerPositions(scheme, site).to(device)
        parameters = [x, qkv.weight, output.weight, *layer_positions.parameters()]

        def step() -> None:
            with _autocast(config.hardware, device):
                given = layer_positions.inputs(x, *split_heads(qkv(x), site.num_heads))._replace(causal=case.causal)
                y = output(attend(given).transpose(1, 2).flatten(-2))
            torch.autograd.grad(y, parameters, cotangent.to(y.dtype))

        return step

    steps = {}
    for name, position in positions.items():
        parts = (position.decoder if case.causal else position.encoder).parts
        for scheme in parts:
            if scheme.problem(site) is not None:  # of causal attention alone
                continue
            if scheme.k is not None:
                scheme = scheme.model_copy(update={"clip_distance": case.clip_distance})
            for algorithm in sorted(config.layer.algorithms, key=lambda name: name != "attend"):  # the baseline first
                if (not scheme.has_tables and algorithm != "attend") or (algorithm == "triton" and scheme.not_fused):
                    continue
                label = name if len(parts) == 1 else f"{name}: {scheme.label}"
                label = label if algorithm == "attend" else f"{label} ({algorithm})"
                steps[label] = layer_step(scheme, algorithm)
        if not steps:  # nothing to compare with
            break
    return steps


def _autocast(hardware: HardwareConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=hardware.precision == "bf16")


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _contexts(config: BenchConfig, positions: dict[str, Positions], rate: float) -> Iterator[dict[str, Any]]:
    """Steps on text alone, at each length of the context."""
    for length in config.context.lengths:
        shape = BatchShape(max(1, config.context.positions // length), 0, length)
        for row in _steps(shape, f"context of {length}", config, positions, rate):
            yield {"length": length, "batch": shape.sentences, **row}


def _steps(
    shape: BatchShape, what: str, config: BenchConfig, positions: dict[str, Positions], rate: float
) -> list[dict[str, Any]]:
    device, timings = runtime.torch_device(config.hardware), dict[str, Timing]()
    with suppress(torch.OutOfMemoryError), Progress(config.rounds, "rounds", what) as bar:
        timings = take_turns(
            training_steps(config, positions, shape, device),
            rounds=config.rounds,
            steps_per_round=config.steps_per_round,
            device=device,
            progress=lambda done: bar.reach(done, config.rounds),
        )
    operations = step_flops(config.model, config.data.vocabulary_size, shape)
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
        else {"variant": name, **OUT_OF_MEMORY}
        for name in positions
    ]


def _layers(config: BenchConfig, positions: dict[str, Positions], rate: float) -> Iterator[dict[str, Any]]:
    device = runtime.torch_device(config.hardware)
    cases = list(layer_cases(config))
    with Progress(len(cases), "cases", "layer") as bar:
        for case in cases:
            bar.update(0, **asdict(case))
            steps: dict[str, Any] = dict(positions)
            timings = dict[str, Timing]()
            with suppress(torch.OutOfMemoryError):
                steps = layer_steps(config, positions, case, device)
                if steps:
                    timings = take_turns(
                        steps, rounds=config.layer.rounds, steps_per_round=config.steps_per_round, device=device
                    )
            operations = layer_flops(config.model.d_model, case.batch, case.length)
            baseline = next(iter(steps), "")
            for name in steps:
                if (timing := timings.get(name)) is None:
                    yield {**asdict(case), "variant": name, **OUT_OF_MEMORY}
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

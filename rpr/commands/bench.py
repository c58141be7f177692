"""rpr-cli bench: the speed and memory of position variants, side by side in one process.

Variants take turns on the same data, so that the comparison stays fair on a machine whose speed drifts: a ratio is the
median over rounds of the ratio within a round. Utilisation (MFU) is relative to the rate of a large matrix product.
"""

import contextlib
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # memory is measured with torch's profiler, which would log messages

import torch
from torch.profiler import ProfilerActivity, profile

from rpr.commands.printing import table
from rpr.config.commands import BenchConfig
from rpr.config.train import HardwareConfig, ModelConfig, check_attention
from rpr.errors import ConfigError
from rpr.model.attention import attention_of
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions import Positions, Site
from rpr.model.transformer import build_model
from rpr.progress import Progress
from rpr.records.provenance import git_state, versions
from rpr.report.render import DASH, wrapped
from rpr.runs import runtime
from rpr.training.loss import compiled_loss_sum, loss_sum

WARM_UP = 3
TITLES = {  # of parts
    "step": "Training step",
    "context": "Training step by length of the context",
    "attention": "Causal attention of a layer, forward and backward",
}
Step = Callable[[], None]


class BatchShape(NamedTuple):
    """Sentences of a batch, and the tokens of each in source and target."""

    sentences: int
    source: int
    target: int


class Timing(NamedTuple):
    """The seconds of a step in each round, and the peak memory in bytes of tensors, above those allocated before."""

    seconds: list[float]
    peak_bytes: int


def run(config: BenchConfig, positions: dict[str, Positions]) -> None:
    """Measure the variants, and print them as tables or as one JSON document: when interrupted, as by a time
    limit, what was measured.
    """
    # 1. Refuse what cannot run, before any work.
    stacks = [stack for position in positions.values() for stack in config.model.transformer(position, 1).stacks()]
    check_attention(config.hardware, stacks)
    for stack in stacks:
        if problem := stack.too_long(config.longest, "the longest sequence"):
            raise ConfigError(f"variants: {problem}")
    runtime.check_devices(config.hardware)
    # 2. What a reader needs to know of the machine, with the settings that were used.
    runtime.set_up(config.hardware)
    hardware = config.hardware.model_copy(update={"matmul_precision": runtime.matmul_precision(config.hardware)})
    config, device = config.model_copy(update={"hardware": hardware}), runtime.torch_device(hardware)
    size = config.model.d_model * (16 if hardware.accelerator == "gpu" else 4)
    document: dict[str, Any] = {
        "device": runtime.device_name(hardware),
        "git": git_state().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
        "products": {"size": size, "operations_per_second": matmul_rate(hardware, device, size)},
    }
    # 3. A row for each part, length and variant; by length those of one scheme also with windows.
    windowed = dict(positions)
    for (name, position), width in itertools.product(positions.items(), config.context.windows):
        if len(position.decoder.parts) == 1:
            windowed[f"{name}, window {width}"] = position.model_copy(update={"window": width})
    lengths = {part: [config.length] if part == "step" else config.context.lengths for part in config.parts}
    cases = [(part, length) for part in config.parts for length in lengths[part]]
    try:
        with Progress(len(cases), "cases", "bench") as bar:
            for part, length in cases:
                bar.update(0, part=part, length=length)
                variants = positions if part == "step" else windowed
                rows = measure(config, part, length, variants, document["products"]["operations_per_second"], device)
                document.setdefault(part, []).extend(rows)
                bar.update()
    finally:
        if cases[0][0] in document:
            print(json.dumps(document, indent=2) if config.format == "json" else as_text(document), flush=True)


def as_text(document: Mapping[str, Any]) -> str:
    """The document's tables."""
    config, products = document["config"], document["products"]
    hardware, model = config["hardware"], config["model"]
    parts = wrapped([
        f"{document['device']}, torch {document['versions']['torch']}, precision {hardware['precision']} (matmuls: "
        f"{hardware['matmul_precision']}), attention={hardware['attention']}; utilisation is relative to a product of "
        f"{products['size']} x {products['size']} at {products['operations_per_second'] / 1e12:.3g} TFLOP/s; relative: "
        f"vs {config['variants'][0]}, the median over rounds, from min to max"
    ])  # fmt: skip
    for part, title in TITLES.items():
        if rows := document.get(part):
            keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "round_seconds"]
            cells = [[_text(row.get(key, DASH)) for key in keys] for row in rows]
            parts += ["", f"{title}: model={model['name']}, {model['architecture']}"]
            parts += table([key.replace("_", " ") for key in keys], cells, texts=0)
    return "\n".join(parts)


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def measure(
    config: BenchConfig, part: str, length: int, variants: dict[str, Positions], rate: float, device: torch.device
) -> list[dict[str, Any]]:
    """A row for each variant on batches of one length; those out of memory have a problem in place of figures. `rate`:
    operations per second of a large matrix product.
    """
    # 1. Time the variants in turn.
    shape = BatchShape(max(1, config.context.positions // length), 0, length)
    if part == "step":
        shape = BatchShape(config.sentences, length, length)
    operations, step_of = step_flops(config.model, config.data.vocabulary_size, shape), training_step
    if part == "attention":
        operations, step_of = 12 * shape.sentences * length**2 * config.model.d_model, attention_step
    timings: dict[str, Timing] = {}
    with contextlib.suppress(torch.OutOfMemoryError):
        steps = {name: step_of(config, position, shape, device) for name, position in variants.items()}
        timings = take_turns(steps, rounds=config.rounds, steps_per_round=config.steps_per_round, device=device)
    # 2. The rows; without the baseline there is nothing to compare with.
    rows: list[dict[str, Any]] = []
    baseline = timings.get(next(iter(variants)))
    for name in variants:
        row = {"length": length, "batch": shape.sentences, "variant": name}
        if baseline is None or (timing := timings.get(name)) is None:
            rows.append(row | {"problem": "out of memory"})
            continue
        seconds, tokens = statistics.median(timing.seconds), shape.sentences * length
        ratios = [base / taken for base, taken in zip(baseline.seconds, timing.seconds, strict=True)]
        speed = {"steps_per_second": 1 / seconds, "target_tokens_per_second": tokens / seconds}
        rows.append({
            **row,
            **({"seconds": seconds} if part == "attention" else speed),
            "utilisation": operations / (rate * seconds),
            "peak_megabytes": timing.peak_bytes / 1e6,
            "relative_speed": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
            "relative_memory": timing.peak_bytes / baseline.peak_bytes,
            "round_seconds": timing.seconds,
        })  # fmt: skip
    return rows


def take_turns(
    steps: Mapping[str, Step], *, rounds: int, steps_per_round: int, device: torch.device
) -> dict[str, Timing]:
    """Time all steps in turn, round by round. Those that run out of a GPU's memory have no timing."""
    peaks = {}
    for name, step in steps.items():
        with contextlib.suppress(torch.OutOfMemoryError):
            for _ in range(WARM_UP):
                step()
            peaks[name] = peak_bytes(step, device)
    seconds: dict[str, list[float]] = {name: [] for name in peaks}
    for _, name in itertools.product(range(rounds), peaks):
        seconds[name].append(_seconds(steps[name], device, steps_per_round))
    return {name: Timing(seconds[name], peak) for name, peak in peaks.items()}


def _seconds(step: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Of one step, as the mean over a number of times."""
    synchronise: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronise()
    started = time.perf_counter()
    for _ in range(times):
        step()
    synchronise()
    return (time.perf_counter() - started) / times


def matmul_rate(hardware: HardwareConfig, device: torch.device, size: int) -> float:
    """FLOP/s of a matmul of two size x size matrices in the model's precision: the median of ten, after three warm-up
    runs. The upper bound for a training step on this device.
    """
    dtype = torch.bfloat16 if hardware.precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = [_seconds(lambda: torch.mm(a, b), device) for _ in range(13)]
    return 2 * size**3 / statistics.median(seconds[3:])


def step_flops(model: ModelConfig, vocabulary_size: int, shape: BatchShape) -> int:
    """Model FLOPs of a training step: of the matmuls that the model requires, a multiply-add as two, the backward pass
    as twice the forward pass, causal attention in full, positions and recomputation not at all.

    With d = d_model, f = d_ff, N layers in each stack and a vocabulary of V, the forward pass takes
    4 N (n d^2 + m d^2 + n m d) where n positions attend to m, 4 N d f for each position and 2 T d V for the scores.
    """
    d, f = model.d_model, model.d_ff
    sentences, source, target = shape
    one_stack = model.architecture == "decoder_only"
    attended = [(source + target,) * 2] if one_stack else [(source, source), (target, target), (target, source)]
    attention = sum((queries + keys) * 4 * d * d + 4 * queries * keys * d for queries, keys in attended)
    layer = attention + (source + target) * 4 * d * f
    return 3 * sentences * (model.num_layers * layer + target * 2 * d * vocabulary_size)


def peak_bytes(step: Step, device: torch.device) -> int:
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
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return int(max(itertools.accumulate(changes, initial=0)))


def training_step(config: BenchConfig, position: Positions, shape: BatchShape, device: torch.device) -> Step:
    """A step on the same batch for each variant: forward, label-smoothed loss, backward and Adam."""
    torch.manual_seed(config.seed)
    sizes = ((shape.sentences, length) for length in (shape.source, shape.target))
    source, target = (torch.randint(4, config.data.vocabulary_size, size, device=device) for size in sizes)
    model = build_model(config.model.transformer(position, config.data.vocabulary_size)).to(device)
    model.use_attention(config.hardware.attention)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    of_batch = compiled_loss_sum(fixed=True) if config.hardware.compile else loss_sum
    how: dict[str, Any] = {"bfloat16": config.hardware.precision == "bf16", "padded": False, "real": target.numel()}

    def step() -> None:
        loss = of_batch(model, source, target, target, smoothing=config.optim.label_smoothing, **how) / target.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # so that a step's memory includes only its own gradients

    return step


def attention_step(config: BenchConfig, position: Positions, shape: BatchShape, device: torch.device) -> Step:
    """Causal self-attention of the first layer forward and backward, from q, k and v to z."""
    torch.manual_seed(config.seed)
    site = Site(1, config.model.num_heads, config.model.d_model, causal=True)
    scheme = position.decoder.of_layers(1)[0]
    layer = LayerPositions(scheme, site).to(device)
    x = torch.randn(shape.sentences, shape.target, site.d_model, device=device)
    heads = (shape.sentences, site.num_heads, shape.target, site.d_head)
    q, k, v = (torch.randn(heads, device=device, requires_grad=True) for _ in range(3))

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.hardware.precision == "bf16"):
            given = layer.inputs(x, q, k, v)._replace(causal=True, window=scheme.window)
            z = attention_of(given, config.hardware.attention)
        torch.autograd.grad(z.sum(), [q, k, v, *layer.parameters()], allow_unused=True)

    return step

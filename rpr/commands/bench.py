"""rpr-cli bench: the speed and memory of position variants, side by side in one process.

Variants take turns on the same data, so that the comparison stays fair on a machine whose speed drifts: a ratio is the
median over rounds of the ratio within a round.
"""

import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from rpr.config.commands import BenchConfig
from rpr.config.train import ModelConfig, check_attention
from rpr.errors import ConfigError
from rpr.model.attention import attention_of
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions import Positions, Site
from rpr.model.transformer import build_model
from rpr.progress import Progress
from rpr.records.record import Git
from rpr.report.render import DASH, wrapped
from rpr.runs import runtime
from rpr.training.loss import compiled_loss_sum, loss_sum
from rpr.version import versions

WARM_UP = 3
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
    """Measure the variants, and print tables or a JSON document: when interrupted, of what was measured."""
    # 1. Refuse what cannot run, before any work.
    hardware = config.hardware
    stacks = [stack for position in positions.values() for stack in config.model.transformer(position, 1).stacks()]
    check_attention(hardware, stacks)
    for stack in stacks:
        if problem := stack.too_long(config.longest, "the longest sequence"):
            raise ConfigError(f"variants: {problem}")
    runtime.check_devices(hardware)
    # 2. What a reader needs to know of the machine.
    runtime.set_up(hardware)
    document: dict[str, Any] = {
        "device": runtime.device_name(hardware),
        "git": Git.here().model_dump(),
        "versions": versions(),
        "config": config.model_dump(mode="json"),
        "matmul_precision": runtime.matmul_precision(hardware),
    }
    # 3. A row for each part, length and variant; by length those of one scheme also with windows.
    windowed = dict(positions)
    for (name, position), width in itertools.product(positions.items(), config.context.windows):
        if len(position.decoder.parts) == 1:
            windowed[f"{name}, window {width}"] = position.model_copy(update={"window": width})
    try:
        with Progress(None, "lengths", "bench") as bar:
            for part in config.parts:
                by_length = part != "step"
                for length in config.context.lengths if by_length else [config.length]:
                    rows = measure(config, part, length, windowed if by_length else positions)
                    document.setdefault(part, []).extend(rows)
                    bar.update(part=part, length=length)
    finally:
        if config.parts[0] in document:
            print(json.dumps(document, indent=2) if config.format == "json" else as_text(document), flush=True)


def as_text(document: Mapping[str, Any]) -> str:
    """The document's tables."""
    import pandas as pd

    config, model, hardware = document["config"], document["config"]["model"], document["config"]["hardware"]
    blocks = ["\n".join(wrapped([
        f"{document['device']}, torch {document['versions']['torch']}, precision {hardware['precision']} (matmuls: "
        f"{document['matmul_precision']}), attention={hardware['attention']}, model={model['name']}, "
        f"{model['architecture']}; relative: vs {config['variants'][0]}, the median over rounds, from min to max"
    ]))]  # fmt: skip
    for part in config["parts"]:
        if rows := document.get(part):
            frame = pd.DataFrame(rows).drop(columns="round_seconds", errors="ignore")
            blocks.append(f"{part}:\n{frame.to_string(index=False, na_rep=DASH, float_format='{:,.5g}'.format)}")
    return "\n\n".join(blocks)


def measure(config: BenchConfig, part: str, length: int, variants: dict[str, Positions]) -> list[dict[str, Any]]:
    """A row for each variant on batches of one length; those out of memory have a problem in place of figures."""
    # 1. Time the variants in turn.
    shape = BatchShape(max(1, config.context.positions // length), 0, length)
    if part == "step":
        shape = BatchShape(config.sentences, length, length)
    operations, step_of = step_flops(config.model, config.data.vocabulary_size, shape), training_step
    if part == "attention":
        operations, step_of = 12 * shape.sentences * length**2 * config.model.d_model, attention_step
    device = runtime.torch_device(config.hardware)
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
        seconds = statistics.median(timing.seconds)
        ratios = [base / taken for base, taken in zip(baseline.seconds, timing.seconds, strict=True)]
        speed = {"steps_per_second": 1 / seconds, "target_tokens_per_second": shape.sentences * length / seconds}
        row |= {"seconds": seconds} if part == "attention" else speed
        row |= {"teraflops_per_second": operations / seconds / 1e12, "peak_megabytes": timing.peak_bytes / 1e6}
        row |= {"relative_speed": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        row["relative_memory"] = timing.peak_bytes / baseline.peak_bytes
        rows.append(row | {"round_seconds": timing.seconds})
    return rows


def take_turns(
    steps: Mapping[str, Step], *, rounds: int, steps_per_round: int, device: torch.device
) -> dict[str, Timing]:
    """Time all steps in turn, round by round. Those that run out of a GPU's memory have no timing."""
    timings = {}
    for name, step in steps.items():
        with contextlib.suppress(torch.OutOfMemoryError):
            for _ in range(WARM_UP):
                step()
            timings[name] = Timing([], peak_bytes(step, device))
    synchronise: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _, (name, timing) in itertools.product(range(rounds), timings.items()):
        synchronise()
        started = time.perf_counter()
        for _ in range(steps_per_round):
            steps[name]()
        synchronise()
        timing.seconds.append((time.perf_counter() - started) / steps_per_round)
    return timings


def step_flops(model: ModelConfig, vocabulary_size: int, shape: BatchShape) -> int:
    """Model FLOPs of a training step: of the matmuls that the model requires, a multiply-add as two, the backward pass
    as twice the forward pass, causal attention in full, positions and recomputation not at all.
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
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
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

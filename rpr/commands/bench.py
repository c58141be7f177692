"""rpr-cli bench: the speed and memory of position variants, side by side in one process.

Variants take turns on the same data, so that the comparison stays fair on a machine whose speed drifts: a ratio is the
median over rounds of the ratio within a round. Utilisation (MFU) is relative to the rate of a large matrix product.
"""

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
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
from rpr.model.positions import Positions, Scheme, Site
from rpr.model.scheme_check import check_hooks
from rpr.model.transformer import build_model
from rpr.progress import Progress
from rpr.records.provenance import git_state, versions
from rpr.report.render import DASH, wrapped
from rpr.runs import runtime
from rpr.training.step import compiled_loss_sum, loss_sum

WARM_UP = 3
TITLES = {  # of parts
    "step": "Training step",
    "context": "Training step by length of the context",
    "attention": "Causal attention of a layer, forward and backward",
}
Steps = dict[str, Callable[[], None]]  # of each variant


class BatchShape(NamedTuple):
    """Sentences of a batch, and the tokens of each in source and target."""

    sentences: int
    source: int
    target: int


class Case(NamedTuple):
    """What all variants do in turn on batches of one shape: the `part` of the document, how to make their steps, the
    operations of one step, and the target tokens of a batch (None: of attention alone).
    """

    part: str
    shape: BatchShape
    positions: dict[str, Positions]
    steps: Callable[[BenchConfig, dict[str, Positions], BatchShape, torch.device], Steps]
    operations: int
    tokens: int | None


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
        check_hooks(stack.scheme, stack.site, config.longest)
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
    # 3. The cases, a row for each variant.
    cases = [*_cases(config, positions)]
    try:
        with Progress(len(cases), "cases", "bench") as bar:
            for case in cases:
                bar.update(0, part=case.part, length=case.shape.target)
                document.setdefault(case.part, []).extend(_rows(case, config, document["products"], device))
                bar.update()
    finally:
        if cases[0].part in document:
            print(json.dumps(document, indent=2) if config.format == "json" else as_text(document), flush=True)


def as_text(document: dict[str, Any]) -> str:
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
            cells = ([_text(row.get(key, DASH)) for key in keys] for row in rows)
            parts += ["", f"{title}: model={model['name']}, {model['architecture']}"]
            parts += table([key.replace("_", " ") for key in keys], cells, texts=0)
    return "\n".join(parts)


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _cases(config: BenchConfig, positions: dict[str, Positions]) -> Iterator[Case]:
    windowed = {name: _windowed(name, position, config.context.windows) for name, position in positions.items()}
    every = {name: position for of_one in windowed.values() for name, position in of_one.items()}
    for part in config.parts:
        lengths = [config.length] if part == "step" else config.context.lengths
        for length in lengths:
            shape = BatchShape(max(1, config.context.positions // length), 0, length)
            if part == "step":
                shape = BatchShape(config.sentences, length, length)
            if part != "attention":
                variants = positions if part == "step" else every
                operations = step_flops(config.model, config.data.vocabulary_size, shape)
                yield Case(part, shape, variants, training_steps, operations, shape.sentences * length)
            if part == "attention" or (part == "context" and config.context.windows):
                operations = 12 * shape.sentences * length**2 * config.model.d_model
                for variants in windowed.values() if config.context.windows else [positions]:
                    yield Case("attention", shape, variants, attention_steps, operations, None)


def _windowed(name: str, position: Positions, windows: tuple[int, ...]) -> dict[str, Positions]:
    """A variant; if all layers have one scheme, also with these windows."""
    own = windows if len(position.decoder.parts) == 1 else ()
    return {name: position} | {f"{name}, window {W}": position.model_copy(update={"window": W}) for W in own}


def _rows(case: Case, config: BenchConfig, products: dict[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each variant; those that ran out of memory have a problem in place of figures."""
    columns, timings = {"length": case.shape.target, "batch": case.shape.sentences}, dict[str, Timing]()
    try:
        steps = case.steps(config, case.positions, case.shape, device)
        timings = take_turns(steps, rounds=config.rounds, steps_per_round=config.steps_per_round, device=device)
    except torch.OutOfMemoryError:  # of the baseline: without it there is nothing to compare with
        pass
    for name in case.positions:
        if (timing := timings.get(name)) is None:
            yield {**columns, "variant": name, "problem": "out of memory"}
            continue
        seconds, baseline = statistics.median(timing.seconds), next(iter(timings.values()))
        ratios = [base / taken for base, taken in zip(baseline.seconds, timing.seconds, strict=True)]
        speed = {"seconds": seconds}
        if case.tokens is not None:
            speed = {"steps_per_second": 1 / seconds, "target_tokens_per_second": case.tokens / seconds}
        yield {
            **columns,
            "variant": name,
            **speed,
            "utilisation": case.operations / (products["operations_per_second"] * seconds),
            "peak_megabytes": timing.peak_bytes / 1e6,
            "relative_speed": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
            "relative_memory": timing.peak_bytes / baseline.peak_bytes,
            "round_seconds": timing.seconds,
        }


def take_turns(steps: Steps, *, rounds: int, steps_per_round: int, device: torch.device) -> dict[str, Timing]:
    """Time all steps in turn, round by round; the first is the baseline. Those that run out of a GPU's memory have no
    timing; raises torch.OutOfMemoryError if the baseline does.
    """
    peaks = {}
    for name, step in steps.items():
        try:
            for _ in range(WARM_UP):
                step()
            peaks[name] = peak_bytes(step, device)
        except torch.OutOfMemoryError:
            if not peaks:
                raise
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
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return int(max(itertools.accumulate(changes, initial=0)))


def training_steps(
    config: BenchConfig, positions: dict[str, Positions], shape: BatchShape, device: torch.device
) -> Steps:
    """A step of each variant on the same batch: forward, label-smoothed loss, backward and Adam."""
    torch.manual_seed(config.seed)
    vocabulary_size, smoothing = config.data.vocabulary_size, config.optim.label_smoothing
    sizes = ((shape.sentences, length) for length in (shape.source, shape.target))
    source, target = (torch.randint(4, vocabulary_size, size, device=device) for size in sizes)
    how: dict[str, Any] = {"smoothing": smoothing, "bfloat16": config.hardware.precision == "bf16", "padded": False}
    how["real"] = target.numel()
    of_batch = compiled_loss_sum(fixed=True) if config.hardware.compile else loss_sum

    def step_of(position: Positions) -> Callable[[], None]:
        model = build_model(config.model.transformer(position, vocabulary_size)).to(device)
        model.use_attention(config.hardware.attention)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            loss = of_batch(model, source, target, target, **how) / target.numel()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)  # so that a step's memory includes only its own gradients

        return step

    return {name: step_of(position) for name, position in positions.items()}


def attention_steps(
    config: BenchConfig, positions: dict[str, Positions], shape: BatchShape, device: torch.device
) -> Steps:
    """Causal self-attention of a layer forward and backward, from q, k and v to z; of a pattern that of its first."""
    torch.manual_seed(config.seed)
    site = Site(1, config.model.num_heads, config.model.d_model, causal=True)
    x = torch.randn(shape.sentences, shape.target, site.d_model, device=device)
    heads = (shape.sentences, site.num_heads, shape.target, site.d_head)
    q, k, v = (torch.randn(heads, device=device, requires_grad=True) for _ in range(3))

    def step_of(scheme: Scheme) -> Callable[[], None]:
        layer = LayerPositions(scheme, site).to(device)

        def step() -> None:
            with _autocast(config.hardware, device):
                given = layer.inputs(x, q, k, v)._replace(causal=True, window=scheme.window)
                z = attention_of(given, config.hardware.attention)
            torch.autograd.grad(z.sum(), [q, k, v, *layer.parameters()], allow_unused=True)

        return step

    return {name: step_of(position.decoder.of_layers(1)[0]) for name, position in positions.items()}


def _autocast(hardware: HardwareConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=hardware.precision == "bf16")

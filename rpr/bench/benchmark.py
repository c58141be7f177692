"""Measurements for `rpr-cli bench`: whole training steps, one self-attention layer, and the tables' gradients.

What is compared takes its turns on the same numbers in one process, so that a machine whose speed drifts still
compares fairly: a ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from rpr.config.commands import BenchConfig
from rpr.config.train import HardwareConfig
from rpr.model.attention import Implementation, attend, per_position, reference, split_heads
from rpr.model.layer_positions import LayerPositions
from rpr.model.positions import Positions, Site
from rpr.model.transformer import Transformer
from rpr.runs.model_config import transformer_shape
from rpr.training.loss import label_smoothed_loss

WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one execution, and how it compares with the first of its group."""

    seconds: float  # median over rounds
    ratio: float  # of the group's first to this: above 1 is faster than the first; median over rounds
    ratio_min: float
    ratio_max: float
    peak_bytes: int  # of tensors, above what stood before


def take_turns(
    steps: dict[str, Callable[[], None]],
    *,
    rounds: int,
    steps_per_round: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time every step in turn; the first is what the others are compared with."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    peaks = {}
    for name, step in steps.items():
        for _ in range(WARM_UP):
            step()
        peaks[name] = peak_bytes(step, device)
    for done in range(1, rounds + 1):
        for name, step in steps.items():
            _synchronise(device)
            started = time.perf_counter()
            for _ in range(steps_per_round):
                step()
            _synchronise(device)
            seconds[name].append((time.perf_counter() - started) / steps_per_round)
        progress(done)
    first = seconds[next(iter(steps))]
    timings = {}
    for name, own in seconds.items():
        ratios = [base / mine for base, mine in zip(first, own, strict=True)]
        timings[name] = Timing(statistics.median(own), statistics.median(ratios), min(ratios), max(ratios), peaks[name])
    return timings


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """The most that tensors took at one time during a step, above what they took before it."""
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
    now = most = 0
    for change in changes:
        now += change.nbytes()
        most = max(most, now)
    return most


def training_steps(
    config: BenchConfig, positions: dict[str, Positions], device: torch.device
) -> dict[str, Callable[[], None]]:
    """A step of each variant on the same batch: forward, label-smoothed loss, backward and Adam."""
    torch.manual_seed(config.seed)
    shape = (config.sentences, config.length)
    source, target = (torch.randint(4, config.data.vocabulary_size, shape, device=device) for _ in range(2))
    return {name: _training_step(config, position, source, target) for name, position in positions.items()}


def _training_step(config: BenchConfig, position: Positions, source: Tensor, target: Tensor) -> Callable[[], None]:
    model = Transformer(transformer_shape(config.model, position, config.data.vocabulary_size)).to(source.device)
    model.use_attention(config.hardware.attention)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with _autocast(config.hardware, source.device):
            hidden = model(source, target).flatten(0, 1)
            smoothing = config.optim.label_smoothing
            loss = label_smoothed_loss(hidden, model.embedding_VM, target.flatten(), smoothing) / target.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # so that a step's memory holds its own gradients alone

    return step


@dataclass(frozen=True)
class LayerCase:
    """One self-attention layer with its projections, without dropout, norm and residual."""

    batch: int
    length: int
    clip_distance: int
    causal: bool


def layer_cases(config: BenchConfig) -> Iterable[LayerCase]:
    for causal in config.layer.causal:
        for clip_distance in config.layer.clip_distances:
            for length in config.layer.lengths:
                yield LayerCase(max(1, config.layer.positions // length), length, clip_distance, causal)


def layer_steps(
    config: BenchConfig, positions: dict[str, Positions], case: LayerCase, device: torch.device
) -> dict[str, Callable[[], None]]:
    """Forward and backward of each variant; those with tables once for every algorithm asked for.

    A name is the variant's, with the algorithm in brackets where it is not `attend` as the hardware chooses it.
    """
    torch.manual_seed(config.seed)
    d_model = config.model.d_model
    x = torch.randn(case.batch, case.length, d_model, device=device, requires_grad=True)
    cotangent = torch.randn(case.batch, case.length, d_model, device=device)
    qkv = nn.Linear(d_model, 3 * d_model, bias=False, device=device)
    output = nn.Linear(d_model, d_model, bias=False, device=device)
    steps = {}
    for name, position in positions.items():
        site = Site(1, config.model.num_heads, d_model, case.causal)
        scheme = position.decoder if case.causal else position.encoder
        if scheme.k is not None:
            scheme = scheme.model_copy(update={"clip_distance": case.clip_distance})
        for algorithm in config.layer.algorithms if scheme.has_tables else ("attend",):
            if scheme.has_bias and algorithm == "triton":
                continue
            label = name if algorithm == "attend" else f"{name} ({algorithm})"
            of_layer = LayerPositions(scheme, site).to(device)
            steps[label] = _layer_step(config, case, algorithm, qkv, output, of_layer, x, cotangent)
    return steps


def _layer_step(
    config: BenchConfig,
    case: LayerCase,
    algorithm: str,
    qkv: nn.Linear,
    output: nn.Linear,
    positions: LayerPositions,
    x: Tensor,
    cotangent: Tensor,
) -> Callable[[], None]:
    attention = algorithm_named(algorithm, config.hardware.attention)
    parameters = [x, qkv.weight, output.weight, *positions.parameters()]

    def step() -> None:
        with _autocast(config.hardware, x.device):
            q, k, v = split_heads(qkv(x), config.model.num_heads)
            q, k = positions.prepare(q, k, first=0)
            tables = positions.at(case.length - 1, x.device)
            z = attention(
                q, k, v, key_table=tables.keys, value_table=tables.values, bias_table=tables.bias, causal=case.causal
            )
            y = output(z.transpose(1, 2).flatten(-2))
        torch.autograd.grad(y, parameters, cotangent.to(y.dtype))

    return step


@dataclass(frozen=True)
class GradientError:
    """|gradient - exact| / |exact| over a whole table, with the arithmetic in bfloat16 and the exact one in float64."""

    keys: float
    values: float


def table_gradient_errors(
    algorithms: Sequence[str],
    implementation: Implementation,
    *,
    length: int,
    clip_distance: int,
    d_head: int,
    seed: int,
    device: torch.device,
) -> dict[str, GradientError]:
    """How much of both tables' gradients each algorithm keeps in bfloat16; exact is `reference` in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, 1, length, d_head)] * 3 + [(2 * clip_distance + 1, d_head)] * 2 + [(1, 1, length, d_head)]
    narrow = [torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes]

    def gradients(attention: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        q, k, v, key_table, value_table, cotangent = inputs
        tables = [key_table.clone().requires_grad_(), value_table.clone().requires_grad_()]
        z = attention(q, k, v, key_table=tables[0], value_table=tables[1])
        return [gradient.double().cpu() for gradient in torch.autograd.grad(z, tables, cotangent)]

    exact = gradients(reference, [x.double() for x in narrow])
    errors = {}
    for algorithm in algorithms:
        inexact = gradients(algorithm_named(algorithm, implementation), [x.to(device) for x in narrow])
        of_keys, of_values = (
            ((mine - right).norm() / right.norm()).item() for mine, right in zip(inexact, exact, strict=True)
        )
        errors[algorithm] = GradientError(of_keys, of_values)
    return errors


def algorithm_named(name: str, implementation: Implementation) -> Callable[..., Tensor]:
    """`attend` as the hardware configuration has it, the paper's own algorithm, or one implementation of `attend`."""
    if name == "per_position":
        return per_position
    return partial(attend, implementation=implementation if name == "attend" else cast(Implementation, name))


def _autocast(hardware: HardwareConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=hardware.precision == "bf16")


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()

"""Estimated cost of a job: parameters, tokens, and training time from the speed of similar finished runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import ConfigError
from rpr.model.architectures import build_model
from rpr.model.config import TransformerConfig
from rpr.records.record import Record


@dataclass(frozen=True)
class Cost:
    """Of one job. `seconds`: of training alone, None without a similar run; `basis`: what the estimate is based on."""

    parameters: int
    steps: int
    tokens: int  # of each side, padding included; an upper bound
    seconds: float | None
    basis: str

    def __str__(self) -> str:
        time = "time unknown" if self.seconds is None else f"about {duration(self.seconds)}"
        return (
            f"{self.parameters / 1e6:.2f} M parameters, {self.steps:,} steps, at most {_short(self.tokens)} tokens a "
            f"side, {time} ({self.basis})"
        )


def costs(configs: Sequence[TrainConfig], records: Iterable[Record]) -> list[Cost]:
    """The cost of each job; parameters assume a full vocabulary, which a small corpus may not fill."""
    speeds = [(made, speed) for record in records if (speed := _speed(record)) and (made := _config(record))]
    return [_cost(config, speeds) for config in configs]


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.{1 if name == 'h' else 0}f} {name}"
    return f"{seconds / 86_400:.1f} days"


def _cost(config: TrainConfig, speeds: Sequence[tuple[TrainConfig, float]]) -> Cost:
    optim = config.optim
    alike = [(other, speed) for other, speed in speeds if _kind(other) == _kind(config)]
    same = [speed for other, speed in alike if other.position == config.position]
    chosen = same or [speed for _, speed in alike]
    if not chosen:
        basis = "no finished run of this model, batch, corpus and hardware"
    else:
        whose = "the same positions" if same else "other positions"
        runs = f"{len(chosen)} run{'s' if len(chosen) > 1 else ''}"
        basis = f"{statistics.median(chosen):.3g} steps/s, the median of {runs} with {whose}"
    return Cost(
        parameters=_parameters(config.transformer(config.data.vocabulary_size)),
        steps=optim.max_steps,
        tokens=optim.max_steps * optim.microbatches_per_step * optim.max_tokens_per_microbatch,
        seconds=optim.max_steps / statistics.median(chosen) if chosen else None,
        basis=basis,
    )


def _kind(config: TrainConfig) -> tuple[object, ...]:
    hardware = config.hardware.model_dump(exclude={"num_workers"})
    batch = (config.optim.max_tokens_per_microbatch, config.optim.microbatches_per_step)
    return (config.model, batch, config.data.name, tuple(sorted(hardware.items())))


@cache  # seeds share a config, and building a model from it takes 10 ms
def _parameters(config: TransformerConfig) -> int:
    with torch.device("meta"):
        model = build_model(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _speed(record: Record) -> float | None:
    return record.training.steps_per_second if record.status == "finished" and record.training else None


def _config(record: Record) -> TrainConfig | None:
    try:
        return config_from_record(record.config)
    except ConfigError:  # a record of a version with other settings
        return None


def _short(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)

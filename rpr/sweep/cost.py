"""Estimated cost of a job: parameters, tokens, and training time from the speed of similar finished runs."""

import contextlib
import statistics
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import ConfigError
from rpr.model.config import TransformerConfig
from rpr.model.transformer import build_model
from rpr.records.record import Record

Kind = tuple[object, ...]  # what two runs share whose speeds are alike, whatever their positions


class Cost(NamedTuple):
    """`text`: of one job; `seconds`: of training alone, None without a similar run."""

    text: str
    seconds: float | None


def costs(configs: Sequence[TrainConfig], records: Iterable[Record]) -> list[Cost]:
    """The cost of each job; parameters assume a full vocabulary, which a small corpus may not fill."""
    speeds: list[tuple[Kind, TrainConfig, float]] = []
    for record in records:
        alone = record.status == "finished" and record.concurrent_jobs == 1  # on its device
        if alone and record.training and record.training.steps_per_second:
            with contextlib.suppress(ConfigError):  # of a version with other settings
                config = config_from_record(record.config)
                speeds.append((_kind(config), config, record.training.steps_per_second))
    return [_cost(config, speeds) for config in configs]


def _cost(config: TrainConfig, speeds: Sequence[tuple[Kind, TrainConfig, float]]) -> Cost:
    optim = config.optim
    microbatch = max(optim.max_tokens_per_microbatch, config.longest_row)  # which may be alone in it; with padding
    tokens = optim.max_steps * optim.microbatches_per_step * microbatch
    size = f"{_parameters(config.transformer(config.data.vocabulary_size)) / 1e6:.2f} M parameters, "
    side = "" if config.model.architecture == "decoder_only" else " a side"  # there both sides count together
    size += f"{optim.max_steps:,} steps, at most {tokens / 1e6:,.2f} M tokens{side}"
    kind = _kind(config)
    alike = [(other, speed) for its_kind, other, speed in speeds if its_kind == kind]
    same = [speed for other, speed in alike if other.position == config.position]
    chosen = same or [speed for _, speed in alike]
    if not chosen:
        lacking = "no finished run of this model, batch, corpus and hardware has a speed measured alone on its device"
        return Cost(f"{size}, time unknown ({lacking})", None)
    speed, whose = statistics.median(chosen), "the same" if same else "other"
    runs = f"{len(chosen)} run{'s' if len(chosen) > 1 else ''} with {whose} positions"
    seconds = optim.max_steps / speed
    time = timedelta(seconds=round(seconds))
    return Cost(f"{size}, about {time} ({speed:.3g} steps/s, the median of {runs})", seconds)


def _kind(config: TrainConfig) -> Kind:
    hardware = config.hardware.model_dump(exclude={"num_workers"})
    batch = (config.optim.max_tokens_per_microbatch, config.optim.microbatches_per_step, config.data.context_length)
    return (config.model, batch, config.data.name, tuple(sorted(hardware.items())))


class _WithoutDraws(TorchFunctionMode):
    """Tensors of the meta device have no values to draw, but the first draw there imports torch._dynamo, in seconds."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":  # a tensor's or that of nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@cache  # seeds share a config, and building a model from it takes 10 ms
def _parameters(config: TransformerConfig) -> int:
    with torch.device("meta"), _WithoutDraws():
        model = build_model(config)
    return sum(parameter.numel() for parameter in model.parameters())

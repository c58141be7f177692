"""What the jobs of a sweep will cost: by the speed of finished runs like them, else by their arithmetic."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpr.config.train import TrainConfig
from rpr.paths import user_path
from rpr.records.record import find_records, flat

# Operations a second at most: of an A100, and of a CPU's core. Trainings reach some share of that.
PEAK = {"gpu": {"bf16": 312e12, "32": 156e12, "64": 9.7e12}, "cpu": {"bf16": 100e9, "32": 100e9, "64": 50e9}}
SHARES = (0.36, 0.09)
PIECES = 50  # of a sentence, for attention's small part
_SPEED_DEPENDS_ON = (
    "model.architecture", "model.num_layers", "model.d_model", "model.d_ff", "data.name", "data.context_length",
    "optim.max_tokens_per_microbatch", "optim.microbatches_per_step", "hardware.name", "hardware.devices",
    "hardware.num_nodes", "hardware.precision",
)  # fmt: skip


def cost_line(configs: Sequence[TrainConfig]) -> str:
    """`9 jobs, 48 M parameters: 22 to 86 GPU hours, 104 GB of checkpoints`; hours of one GPU, or of one CPU core."""
    # 1. The hours of each job at least and at most.
    measured, known = _measured(configs[0].runs_dir), 0
    hours = defaultdict[str, list[tuple[float, float]]](list)
    sizes = [_size(config) for config in configs]
    for config, (_, operations) in zip(configs, sizes, strict=True):
        hardware = config.hardware
        seconds = [operations / share / PEAK[hardware.accelerator][hardware.precision] for share in SHARES]
        if speeds := measured.get(_like(config.model_dump(mode="json"))):
            known, seconds = known + 1, [config.optim.max_steps * statistics.median(speeds)] * 2
        hours["GPU" if hardware.accelerator == "gpu" else "core"].append((seconds[0] / 3600, seconds[1] / 3600))
    # 2. Their sum in words.
    times = [f"{_words(map(sum, zip(*pairs, strict=True)))} {kind} hours" for kind, pairs in hours.items()]
    times += [f"{known} of them at the speed of runs like them"] if known else []
    pairs = zip(configs, sizes, strict=True)
    disk = sum(12e-9 * parameters * config.optim.kept_checkpoints for config, (parameters, _) in pairs)  # with Adam's
    millions = [extreme(parameters for parameters, _ in sizes) / 1e6 for extreme in (min, max)]
    jobs = f"{len(configs)} job{'s' if len(configs) > 1 else ''}, {_words(millions)} M parameters"
    return f"{jobs}: {', '.join(times)}, {disk:,.3g} GB of checkpoints"


def _words(numbers: Iterable[float]) -> str:
    return " to ".join(dict.fromkeys(f"{float(f'{number:.2g}'):,.10g}" for number in numbers))


def _size(config: TrainConfig) -> tuple[int, float]:
    """The parameters of the matrices, those of positions, norms and biases being few; and the operations of training: 6
    for each parameter and token, and the products of attention.
    """
    model, optim = config.model, config.optim
    attentions, networks = (3, 2) if model.architecture == "encoder_decoder" else (1, 1)  # of a layer in each stack
    layer = 4 * attentions * model.d_model**2 + 2 * networks * model.d_model * model.d_ff
    parameters = config.data.vocabulary_size * model.d_model + model.num_layers * layer
    products = 12 * model.num_layers * attentions * model.d_model * (config.data.context_length or PIECES)
    tokens = optim.max_steps * optim.microbatches_per_step * optim.max_tokens_per_microbatch
    return parameters, tokens * (6.0 * parameters + products)


def _like(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(flat(settings).get(key) for key in _SPEED_DEPENDS_ON)


def _measured(runs_dir: str) -> dict[tuple[Any, ...], list[float]]:
    """Seconds of a device, or a core, for a step of the finished runs."""
    step_seconds = defaultdict[tuple[Any, ...], list[float]](list)
    for _, record in find_records(user_path(runs_dir)).records if user_path(runs_dir).is_dir() else ():
        if (training := record.training) is not None and training.steps_per_second:
            ranks = record.setting("hardware.devices") * record.setting("hardware.num_nodes")
            step_seconds[_like(record.config)].append(ranks * (training.cores_used or 1) / training.steps_per_second)
    return step_seconds

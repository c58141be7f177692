"""What the jobs of a sweep will cost, by their arithmetic."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rpr.config.train import TrainConfig

# Operations a second at most: of an A100, and of a CPU's core. Trainings reach some share of that.
PEAK = {"gpu": {"bf16": 312e12, "32": 156e12, "64": 9.7e12}, "cpu": {"bf16": 100e9, "32": 100e9, "64": 50e9}}
SHARES = (0.36, 0.09)
PIECES = 50  # of a sentence, for attention's small part


def cost_line(configs: Sequence[TrainConfig]) -> str:
    """`9 jobs, 48 M parameters: 22 to 86 GPU hours, 104 GB of checkpoints`; hours of one GPU, or of one CPU core."""
    sizes = [_size(config) for config in configs]
    operations, disk = defaultdict[str, float](float), 0.0
    for config, (parameters, needed) in zip(configs, sizes, strict=True):
        kind = config.hardware.accelerator
        operations[kind] += needed / PEAK[kind][config.hardware.precision] / 3600
        disk += 12e-9 * parameters * config.optim.kept_checkpoints  # with Adam's two moments
    names = {"gpu": "GPU", "cpu": "core"}
    times = [f"{_words(hours / share for share in SHARES)} {names[kind]} hours" for kind, hours in operations.items()]
    millions = _words(extreme(parameters for parameters, _ in sizes) / 1e6 for extreme in (min, max))
    jobs = f"{len(configs)} job{'s' if len(configs) > 1 else ''}, {millions} M parameters"
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

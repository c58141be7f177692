"""How runs differ from the paper's, computed from their complete configuration.

Every recorded setting in a section that affects results is compared with the paper's. A setting that is not listed
here, such as one added later, is reported as a difference; settings that do not affect results are excluded below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from rpr import paper
from rpr.config.data import TextConfig
from rpr.migrations import with_earlier_defaults
from rpr.records.position import shown_settings
from rpr.records.record import Record, flat
from rpr.tasks import TASKS

# Numbers of sentence pairs of the paper's corpora; `paper.TRAIN_PAIRS` has the paper's wording.
_PAIRS: dict[paper.Pair, int] = {"en_de": 4_500_000, "en_fr": 36_000_000}
TOKENS = "optim.padded_tokens_per_step"
SECTIONS = ("model", "position", "data", "optim", "evaluation", "hardware")
_BIG: dict[str, Any] = {"optim.average_checkpoints": 20}
# What the big model's average covers: on the paper's GPUs, 10 minutes were 560 to 600 of 300,000 steps.
_AVERAGED_SHARE = (0.03, 0.05)
_AVERAGE = re.compile(r"average of (?:the last )?(\d+) \(steps (\d+)\b.*?\b(\d+)(?:, \d+% of the training)?\)")
# The paper's settings besides `paper.MODELS` or, where it states none, those of tensor2tensor at that time.
_BASE: dict[str, Any] = {
    "model.architecture": "encoder_decoder",
    "model.activation": "relu",
    "model.dropout": 0.1,
    "model.norm": "post",
    "model.norm_epsilon": 1e-6,
    "data.tokenizer": "bpe",
    "data.vocabulary_size": 32_768,
    "data.max_length": 250,
    "data.train_limit": None,
    "optim.schedule": "inverse_sqrt",
    "optim.warmup_steps": 4_000,
    "optim.learning_rate_scale": 1.0,
    "optim.weight_decay": 0.0,
    "optim.adam_beta1": 0.9,
    "optim.adam_beta2": 0.98,
    "optim.adam_epsilon": 1e-9,
    "optim.label_smoothing": 0.1,
    TOKENS: 8 * 4096,
    "optim.gradient_clip_norm": None,
    "optim.average_checkpoints": 1,
    "optim.ema_decay": None,
    "optim.non_finite": "stop",
    "evaluation.beam_size": 4,
    "evaluation.length_penalty": 0.6,
    "evaluation.max_extra_length": 50,
    "evaluation.min_length": 0,
    "hardware.precision": "32",
    "hardware.matmul_precision": "highest",
    "evaluation.matmul_precision": "highest",
}
# Excluded: names, file locations, the amount of reporting, and what the rows of a table vary (positions, except for the
# sharing of relative tables). The corpus is compared by its name and number of pairs.
NOT_COMPARED = frozenset(
    {
        *("model.name", "model.relative_defaults.clip_distance", "model.relative_defaults.tables"),
        *("data.name", "data.source_language", "data.target_language", "data.hub", "data.hub_config", "data.path"),
        *("data.synthetic", "data.synthetic.seed", "data.synthetic.num_train", "data.synthetic.num_validation"),
        *("data.synthetic.num_test", "data.synthetic.num_long", "data.cache_dir", "data.validation_name"),
        *("data.test_name", "data.task"),
        *(f"data.task.{name}" for task in TASKS.values() for name in task.model_fields),
        *("optim.name", "optim.keep_checkpoints", "optim.validate_every_n_steps"),
        *("optim.max_tokens_per_microbatch", "optim.microbatches_per_step"),  # their product is compared
        *("evaluation.max_tokens_per_batch", "evaluation.validation_sentences", "evaluation.test_splits"),
        *("evaluation.bootstrap_samples", "evaluation.length_buckets", "evaluation.bleu_tokenizer"),
        *("data.text", *(f"data.text.{name}" for name in TextConfig.model_fields), "data.context_length"),
        *("evaluation.text_tokens", "evaluation.context_lengths", "evaluation.stride"),
        *("hardware.name", "hardware.accelerator", "hardware.devices", "hardware.num_nodes", "hardware.attention"),
        *("hardware.num_workers", "hardware.threads"),
    }
)
# Checkpoint intervals matter only if several checkpoints are averaged; for the big model what was averaged is compared.
_OF_AVERAGES = ("optim.checkpoint_every_n_steps", "optim.checkpoint_every_n_minutes")
_SHAPE = ("model.num_layers", "model.d_model", "model.num_heads", "model.d_ff")


@dataclass(frozen=True)
class Difference:
    """One way in which runs differ from the paper's. `kind`: one word for a table's cell; `text`: the details.

    `smaller`: whether it is smaller than in the paper (data, model, steps).
    """

    kind: str
    text: str
    smaller: bool = False


def papers_settings(size: paper.Size, languages: paper.Pair) -> dict[str, Any]:
    """The paper's settings by dotted key."""
    model = paper.MODELS[size]
    printed = {key: getattr(model, key.removeprefix("model.")) for key in _SHAPE}
    printed |= {"position.tables": model.tables, "optim.max_steps": model.steps}
    if size == "base":
        return _BASE | printed
    return _BASE | printed | _BIG | {"model.dropout": 0.3 if languages == "en_de" else 0.1}


def differences(runs: Sequence[Record], size: paper.Size, languages: paper.Pair | None) -> tuple[Difference, ...]:
    """How training and decoding of these runs differ from the paper's model of this size, each difference once."""
    if not runs:
        return ()
    # Most of thousands of runs share their settings and data: only one run of each kind is checked.
    kinds = {(to_json([run.config.get(name) for name in SECTIONS]), _as_run(run)): run for run in runs}
    some = list(kinds.values())
    found = [*_of_data(some, languages)]
    found += [one for run in some for one in _of_settings(run, size, languages or "en_de")]
    found += [one for run in runs for one in _of_the_run(run, size)]
    return tuple(dict.fromkeys(found))


def _as_run(run: Record) -> tuple[Any, ...]:
    data, training = run.data, run.training
    return data and (data.synthetic, data.train_pairs), training and training.matmul_precision


def compared_settings(run: Record) -> dict[str, Any]:
    """Every setting of a run that affects its result, by dotted key; matmul precisions as they were used."""
    settings = flat(with_earlier_defaults({name: run.config.get(name) for name in SECTIONS}))
    if run.training is not None and (used := run.training.matmul_precision) is not None:
        settings["hardware.matmul_precision"] = used
        if settings.get("evaluation.matmul_precision", used) is None:  # as in training
            settings["evaluation.matmul_precision"] = used
    tokens, units = settings.get("optim.max_tokens_per_microbatch"), settings.get("optim.microbatches_per_step")
    if tokens and units:
        settings[TOKENS] = tokens * units
    ignored = set(NOT_COMPARED)
    if settings.get("optim.average_checkpoints") in (None, 1):
        ignored |= {*_OF_AVERAGES}
    about = shown_settings(run)
    return {
        key: value
        for key, value in settings.items()
        if key not in ignored and not (key.startswith("position.") and key.split(".")[1] in about)
    }


def _of_data(runs: Sequence[Record], languages: paper.Pair | None) -> Iterable[Difference]:
    pair = languages or "en_de"
    run, synthetic = runs[0], any(run.synthetic for run in runs)
    # All of WMT 2014, judged by name and number of pairs.
    full = [run.data is not None and 0.85 <= run.data.train_pairs / _PAIRS[pair] <= 1.15 for run in runs]
    if languages and not synthetic and all(full) and {run.data_name for run in runs} == {f"wmt14_{languages}"}:
        return
    words = f"{run.data_name}, SYNTHETIC sentences, no natural language" if synthetic else run.data_name
    pairs = sorted({run.data.train_pairs for run in runs if run.data is not None})
    words += f", {' or '.join(f'{count:,}' for count in pairs)} pairs" if pairs else ""
    theirs = f"WMT 2014 {pair.upper().replace('_', '-')}, {paper.TRAIN_PAIRS[pair]} pairs"
    less = any(count < 0.85 * _PAIRS[pair] for count in pairs)
    yield Difference("synthetic data" if synthetic else "data", f"data: {words}; the paper: {theirs}", less)


_UNKNOWN = "not in its recipe"
_SECTIONS = {"evaluation": "decoding", "hardware": "precision", "position": "positions"}
_KINDS = dict.fromkeys(_SHAPE, "model") | {"optim.max_steps": "steps", "position.tables": "tables"}


def _of_settings(run: Record, size: paper.Size, pair: paper.Pair) -> Iterable[Difference]:
    """One for each kind of settings, with every setting that is not the paper's."""
    papers = papers_settings(size, pair)
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for key, value in compared_settings(run).items():
        theirs = papers.get(key, _UNKNOWN)
        if not (_same(key, value, theirs) or (size == "big" and key in _OF_AVERAGES)):
            kind = _KINDS.get(key) or _SECTIONS.get(key.partition(".")[0], "recipe")
            found.setdefault(kind, {})[key] = (value, theirs)
    for kind, values in found.items():
        listed = ", ".join(
            f"{key.partition('.')[2]} {_value(mine)} ({_value(its)})" for key, (mine, its) in values.items()
        )
        smaller = kind in ("model", "steps") and any(
            isinstance(mine, int) and mine < its for mine, its in values.values()
        )
        yield Difference(kind, f"{kind} (the paper's {size} in brackets): {listed}", smaller)


def _same(key: str, value: Any, theirs: Any) -> bool:
    if theirs == _UNKNOWN:
        return value in (None, False)  # a switch of a later version that is off
    # Records that have no precision of matmuls used exact float32.
    return bool(value == theirs) or (value is None and key.endswith(".matmul_precision"))


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def averaged(run: Record) -> tuple[int, float] | None:
    """How many checkpoints a run's scores are of, and the share of the training they cover; None if not recorded."""
    about = run.scores[0].checkpoint if run.scores else ""
    if found := _AVERAGE.fullmatch(about):
        return int(found[1]), 1 - int(found[2]) / int(found[3])
    return (1, 0.0) if re.fullmatch(r"step \d+", about) else None


def _of_the_run(run: Record, size: paper.Size) -> Iterable[Difference]:
    if (average := averaged(run)) is not None:
        (count, share), wanted = average, run.setting("optim.average_checkpoints")
        words = f"averaged {count} checkpoint{'s' * (count > 1)}" + f" over {share:.0%} of the training" * (count > 1)
        low, high = _AVERAGED_SHARE
        if size == "big" and not (count == _BIG["optim.average_checkpoints"] and low <= share <= high):
            yield Difference("average", f"{words}; the paper: 20 over about 4%")
        elif size != "big" and isinstance(wanted, int) and count < wanted:
            yield Difference("average", f"{words}, as there were no more; its recipe: {wanted}; the paper: none")
    if (origin := run.setting("origin.run_id")) is not None:
        yield Difference("weights", f"{run.name} started from the weights of run {origin}")
    if run.steps is not None and run.steps != run.max_steps:
        yield Difference("steps", f"{run.name} stopped at step {run.steps:,} of {run.max_steps:,}", smaller=True)
    if run.training is not None and run.training.skipped_steps:
        skipped = run.training.skipped_steps
        text = f"{run.name}: {skipped} steps changed no weight, as their gradient was not finite"
        yield Difference("skipped steps", text)

"""How runs differ from the paper's, computed from their complete configuration.

Every recorded setting in a section that affects results is compared with the paper's. A setting that is not listed
here, such as one added later, is reported as a difference; settings that do not affect results are excluded below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from rpr import paper
from rpr.migrations import with_earlier_defaults
from rpr.records.position import shown_settings
from rpr.records.record import Record, flat

TOKENS = "optim.padded_tokens_per_step"
PAIRS, SHARE = "data.train_pairs", "optim.averaged_share"
SECTIONS = ("model", "position", "data", "optim", "evaluation", "hardware")
_SHAPE = ("model.num_layers", "model.d_model", "model.num_heads", "model.d_ff")
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
# What the big model's average covers: on the paper's GPUs, ten minutes were 560 to 600 of 300,000 steps.
_BIG: dict[str, Any] = {"optim.average_checkpoints": 20, SHARE: 0.04}
_NEARLY = {PAIRS: 0.15, SHARE: 0.25}  # how far from the paper's a number may be, as a share of it
# Excluded: names, file locations, the amount of reporting, and what the rows of a table vary (positions, except for the
# sharing of relative tables). Of averaged checkpoints their number and the share of the training that they cover are
# compared, whatever the interval between them.
_EXCLUDED = {
    "model": "name relative_defaults",
    "data": "source_language target_language hub hub_config path synthetic cache_dir validation_name test_name task "
    "text context_length",
    "optim": "name keep_checkpoints validate_every_n_steps checkpoint_every_n_steps checkpoint_every_n_minutes "
    "max_tokens_per_microbatch microbatches_per_step",  # the product of the last two is compared
    "evaluation": "max_tokens_per_batch validation_sentences test_splits bootstrap_samples length_buckets "
    "bleu_tokenizer text_tokens context_lengths stride",
    "hardware": "name accelerator devices num_nodes attention num_workers threads",
}
NOT_COMPARED = frozenset(f"{section}.{name}" for section, names in _EXCLUDED.items() for name in names.split())
_UNKNOWN = "not in its recipe"
_SECTION_KINDS = {"evaluation": "decoding", "hardware": "precision", "position": "positions"}
_KINDS = dict.fromkeys(_SHAPE, "model") | dict.fromkeys(("data.name", PAIRS), "data")
_KINDS |= {"position.tables": "tables", "optim.max_steps": "steps", "optim.steps": "steps"}
_KINDS["optim.weights_of"] = "weights"
_AVERAGE = re.compile(r"average of (?:the last )?(\d+) \(steps (\d+)\b.*?\b(\d+)(?:, \d+% of the training)?\)")


@dataclass(frozen=True)
class Difference:
    """One way in which runs differ from the paper's. `kind`: one word for a table's cell; `text`: the details.

    `smaller`: whether it is smaller than in the paper (data, model, steps).
    """

    kind: str
    text: str
    smaller: bool = False


def papers_settings(size: paper.Size, languages: str) -> dict[str, Any]:
    """The paper's settings by dotted key; of German, if the paper does not have these languages."""
    languages = languages if languages in paper.TRAIN_PAIRS else "en_de"
    model = paper.MODELS[size]
    printed = {key: getattr(model, key.removeprefix("model.")) for key in _SHAPE}
    printed |= {"position.tables": model.tables, "optim.max_steps": model.steps, "optim.steps": model.steps}
    printed |= {"data.name": f"wmt14_{languages}", PAIRS: paper.TRAIN_PAIRS[languages]}
    if size == "base":
        return _BASE | printed
    return _BASE | printed | _BIG | {"model.dropout": 0.3 if languages == "en_de" else 0.1}


def differences(runs: Sequence[Record], size: paper.Size, languages: str) -> tuple[Difference, ...]:
    """How training and decoding of these runs differ from the paper's model of this size, each difference once."""
    papers = papers_settings(size, languages)
    # Most of thousands of runs share their settings and data: only one run of each kind is checked.
    kinds = {to_json([_as_trained(run), *(run.config.get(name) for name in SECTIONS)]): run for run in runs}
    return tuple(dict.fromkeys(difference for run in kinds.values() for difference in _differences(run, size, papers)))


def compared_settings(run: Record) -> dict[str, Any]:
    """Every setting of a run that affects its result, by dotted key; as it was used, where that is recorded."""
    settings = flat(with_earlier_defaults({name: run.config.get(name) for name in SECTIONS}))
    tokens, units = settings.get("optim.max_tokens_per_microbatch"), settings.get("optim.microbatches_per_step")
    if tokens and units:
        window = settings.get("data.context_length") or 1  # of documents: a microbatch is of whole ones
        settings[TOKENS] = max(1, tokens // window) * window * units
    used = _as_trained(run)
    if settings.get("evaluation.matmul_precision", "") is None:  # as in training
        used["evaluation.matmul_precision"] = used.get("hardware.matmul_precision")
    excluded = NOT_COMPARED | {f"position.{name}" for name in shown_settings(run)}
    return {key: value for key, value in (settings | used).items() if ".".join(key.split(".")[:2]) not in excluded}


def _as_trained(run: Record) -> dict[str, Any]:
    """What the record says beyond the configuration, by a dotted key; only what is known and not as configured."""
    known: dict[str, Any] = {
        "data.name": f"{run.data_name}, SYNTHETIC sentences, no natural language" if run.synthetic else run.data_name,
        PAIRS: run.data and run.data.train_pairs,
        "optim.steps": run.steps if run.steps != run.max_steps else None,
        "optim.weights_of": run.setting("origin.run_id"),
        "hardware.matmul_precision": run.training and run.training.matmul_precision,
    }
    if run.scores and (averaged := _AVERAGE.fullmatch(run.scores[0].checkpoint)):
        known |= {
            "optim.average_checkpoints": int(averaged[1]),
            SHARE: round(1 - int(averaged[2]) / int(averaged[3]), 3),
        }
    elif run.scores and re.fullmatch(r"step \d+", run.scores[0].checkpoint):
        known["optim.average_checkpoints"] = 1
    return {key: value for key, value in known.items() if value}


def _differences(run: Record, size: paper.Size, papers: dict[str, Any]) -> Iterator[Difference]:
    """One for each kind of settings, with every setting that is not the paper's."""
    unlike: dict[str, dict[str, tuple[Any, Any]]] = {}
    for key, value in compared_settings(run).items():
        papers_value = papers.get(key, _UNKNOWN)
        if not _same(key, value, papers_value):
            kind = _KINDS.get(key) or _SECTION_KINDS.get(key.partition(".")[0], "recipe")
            kind = "synthetic data" if kind == "data" and run.synthetic else kind
            unlike.setdefault(kind, {})[key.partition(".")[2]] = (value, papers_value)
    for kind, values in unlike.items():
        listed = ", ".join(f"{name} {_value(mine)} ({_value(its)})" for name, (mine, its) in values.items())
        smaller = kind in ("data", "synthetic data", "model", "steps") and any(
            isinstance(mine, int) and mine < its for mine, its in values.values()
        )
        yield Difference(kind, f"{kind} (the paper's {size} in brackets): {listed}", smaller)


def _same(key: str, value: Any, papers_value: Any) -> bool:
    if papers_value == _UNKNOWN:
        return value in (None, False)  # a switch of a later version that is off
    if key in _NEARLY:
        return bool(abs(value - papers_value) <= _NEARLY[key] * papers_value)
    # Records that have no precision of matmuls used exact float32.
    return bool(value == papers_value) or (value is None and key.endswith(".matmul_precision"))


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"

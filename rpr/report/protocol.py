"""How runs differ from the paper's, computed from their complete configuration.

Every recorded setting in a section that affects results is compared with the paper's. A setting that protocol.yaml does
not list, such as one added later, is reported as a difference; it excludes settings that do not affect results.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_json

from rpr import paper
from rpr.migrations import with_earlier_defaults
from rpr.records.position import shown_settings
from rpr.records.record import Record, flat

TOKENS = "optim.padded_tokens_per_step"
PAIRS, SHARE = "data.train_pairs", "optim.averaged_share"
SECTIONS = ("model", "position", "data", "optim", "evaluation", "hardware")
_SHAPE = ("model.num_layers", "model.d_model", "model.num_heads", "model.d_ff")
_UNKNOWN = "not in its recipe"
_AVERAGE = re.compile(r"average of (?:the last )?(\d+) \(steps (\d+)\b.*?\b(\d+)(?:, \d+% of the training)?\)")


@cache
def _rules() -> dict[str, dict[str, Any]]:
    rules: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("protocol.yaml").read_text("utf-8"))
    return rules


@cache
def not_compared() -> frozenset[str]:
    """The settings that do not affect results, by dotted key."""
    by_section = _rules()["not_compared"].items()
    return frozenset(f"{section}.{name}" for section, names in by_section for name in names.split())


@dataclass(frozen=True)
class Difference:
    """One way in which runs differ from the paper's, in a word or two and in detail; `smaller`: than in the paper."""

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
        return _rules()["base"] | printed
    french = {"model.dropout": 0.1} if languages == "en_fr" else {}
    return _rules()["base"] | printed | _rules()["big"] | french


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
    excluded = not_compared() | {f"position.{name}" for name in shown_settings(run)}
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
        share = round(1 - int(averaged[2]) / int(averaged[3]), 3)
        known |= {"optim.average_checkpoints": int(averaged[1]), SHARE: share}
    elif run.scores and re.fullmatch(r"step \d+", run.scores[0].checkpoint):
        known["optim.average_checkpoints"] = 1
    return {key: value for key, value in known.items() if value}


def _differences(run: Record, size: paper.Size, papers: dict[str, Any]) -> Iterator[Difference]:
    """One for each kind of settings, with every setting that is not the paper's."""
    kinds, unlike = _rules()["kinds"], dict[str, dict[str, tuple[Any, Any]]]()
    for key, value in compared_settings(run).items():
        papers_value = papers.get(key, _UNKNOWN)
        if not _same(key, value, papers_value):
            kind = kinds.get(key) or kinds.get(key.partition(".")[0], "recipe")
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
    if nearly := _rules()["nearly"].get(key):
        return bool(abs(value - papers_value) <= nearly * papers_value)
    # Records that have no precision of matmuls used exact float32.
    return bool(value == papers_value) or (value is None and key.endswith(".matmul_precision"))


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"

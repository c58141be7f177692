"""Migrations of what earlier versions wrote: settings they did not have or named otherwise.

A leaf: it imports nothing of rpr.
"""

from collections.abc import Mapping
from typing import Any

# What runs did before these settings existed. Older records are read with these values, and a current run with the same
# values has the same id. bootstrap_samples, length_buckets, context_lengths and stride do not change a run, only how
# much of its result is reported; their values here are the current defaults, for older runs too.
EARLIER_DEFAULTS: Mapping[str, Any] = {
    "model.architecture": "encoder_decoder",
    "model.activation": "relu",
    "model.bos_vector": "zero",
    "data.task": None,
    "data.text": None,
    "data.context_length": None,
    "data.tokenizer": "bpe",
    "optim.schedule": "inverse_sqrt",
    "optim.learning_rate": None,
    "optim.weight_decay": 0.0,
    "logger.system_metrics": False,
    "position.scheme": "vectors",
    "evaluation.matmul_precision": None,
    "evaluation.min_length": 0,
    "evaluation.bleu_tokenizer": "auto",
    "evaluation.bootstrap_samples": 1000,
    "evaluation.length_buckets": [10, 20, 30, 40, 60, 80],
    "evaluation.text_tokens": 262144,
    "evaluation.context_lengths": [],
    "evaluation.stride": None,
}
# Renamed settings of runs, by their old names. Older records have the old name, and run ids are computed from it.
RENAMED: Mapping[str, str] = {
    "optim.max_tokens_per_unit": "optim.max_tokens_per_microbatch",
    "optim.units_per_step": "optim.microbatches_per_step",
}
# As EARLIER_DEFAULTS, for settings whose current default is the earlier behaviour: the first has always been part of
# run ids, the others never.
READ_AS: Mapping[str, Any] = {"hardware.attention": "auto", "stop_after_minutes": None, "again": False, "origin": None}
# Settings that left, which no committed record uses; they leave the records when these are next converted.
LEFT = ("optim.ema_decay", "optim.non_finite", "logger.artifacts")
_ADDED = [(*key.partition(".")[::2], earlier) for key, earlier in {**EARLIER_DEFAULTS, **READ_AS}.items()]


def with_earlier_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration in the form of this version: renamed settings under their new names, and settings that
    were added later with the value that describes the earlier behaviour.
    """
    whole = {name: dict(part) if isinstance(part, Mapping) else part for name, part in settings.items()}
    for old, new in RENAMED.items():
        section, _, name = old.partition(".")
        if isinstance(whole.get(section), dict) and name in whole[section]:
            whole[section].setdefault(new.partition(".")[2], whole[section].pop(name))
    for section, name in (key.split(".") for key in LEFT):
        if isinstance(whole.get(section), dict):
            whole[section].pop(name, None)
    for section, name, earlier in _ADDED:
        if not name:
            whole.setdefault(section, earlier)
        elif isinstance(whole.get(section), dict):
            whole[section].setdefault(name, earlier)
    return whole


def todays_command(command: str, settings: Mapping[str, Any]) -> str:
    """The command that repeats the run of a recorded one, given its recorded settings: with those that it left to a
    default which was another one then.
    """
    documents = (settings.get("data") or {}).get("text") is not None
    return f"{command} model.bos_vector=zero" if documents and "bos_vector" not in settings["model"] else command

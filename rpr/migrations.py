"""Migrations of what earlier versions wrote: settings they did not have or named otherwise, and records of schema 1.

A leaf: it imports nothing of rpr.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# What runs did before these settings existed. Older records are read with these values, and a current run with the same
# values has the same id. The last two do not change a run, only how much of its result is reported; their values here
# are the current defaults, for older runs too.
EARLIER_DEFAULTS: Mapping[str, Any] = {
    "data.task": None,
    "data.tokenizer": "bpe",
    "optim.ema_decay": None,
    "optim.non_finite": "stop",
    "logger.artifacts": "none",
    "logger.system_metrics": False,
    "position.scheme": "vectors",
    "evaluation.matmul_precision": None,
    "evaluation.min_length": 0,
    "evaluation.bootstrap_samples": 1000,
    "evaluation.length_buckets": [10, 20, 30, 40, 60, 80],
}
# Renamed settings of runs, by their old names. Older records have the old name, and run ids are computed from it.
RENAMED: Mapping[str, str] = {
    "optim.max_tokens_per_unit": "optim.max_tokens_per_microbatch",
    "optim.units_per_step": "optim.microbatches_per_step",
}
# As EARLIER_DEFAULTS, for settings whose current default is the earlier behaviour: the first has always been part of
# run ids, the other never.
READ_AS: Mapping[str, Any] = {"hardware.attention": "auto", "stop_after_minutes": None}
# How schema 1 marked, in texts alone, an interrupted run, and a run that repeats another one.
_STOPPED = ("interrupted", "the training process was ended by SIG")
_RERUN = "rpr-cli rerun "
# How a record's device names a CPU, in every schema so far.
_CPU = re.compile(r"(?P<processes>.*?)(?P<threads>\d+) threads? of (?P<processor>.*)")


class Machine(NamedTuple):
    """A CPU with its threads; `processes` is the text about the number of processes, if several have that many each."""

    processes: str
    threads: int
    processor: str


def machine_of(device: str) -> Machine | None:
    """The CPU that a record's device describes; None for a GPU."""
    found = _CPU.fullmatch(device)
    return None if found is None else Machine(found["processes"], int(found["threads"]), found["processor"])


def with_earlier_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration in the form of this version: renamed settings under their new names, and settings that
    were added later with the value that describes the earlier behaviour.
    """
    whole = {name: dict(part) if isinstance(part, Mapping) else part for name, part in settings.items()}
    for old, new in RENAMED.items():
        section, _, name = old.partition(".")
        if isinstance(whole.get(section), dict) and name in whole[section]:
            whole[section].setdefault(new.partition(".")[2], whole[section].pop(name))
    for key, earlier in {**EARLIER_DEFAULTS, **READ_AS}.items():
        section, _, name = key.partition(".")
        if not name:
            whole.setdefault(section, earlier)
        elif isinstance(whole.get(section), dict):
            whole[section].setdefault(name, earlier)
    return whole


def migrate_record(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a record's document from schema 1 to schema 2. Nothing is validated here."""
    migrated = {"rerun_of": None, **document, "schema": 2}
    error = str(document.get("error"))
    if document.get("status") == "failed" and error.startswith(_STOPPED):
        # The status says that it was interrupted; the error keeps only the reason.
        reason = error.removeprefix("interrupted").lstrip(" ;:") or "stopped from outside"
        migrated |= {"status": "interrupted", "error": reason}
    if str(document.get("command")).startswith(_RERUN):
        migrated["rerun_of"] = {"run_id": document.get("run_id"), "started": None}
    return migrated | {part: _with_kinds(document[part]) for part in ("scores", "by_length") if part in document}


def _with_kinds(part: Any) -> Any:
    """Add the kind of each interval: in schema 1 all are over the test sentences."""
    if isinstance(part, list):
        return [_with_kinds(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {key: _with_kinds(value) for key, value in part.items()}
    if isinstance(found.get("interval"), dict):
        found["interval"] = {"kind": "sentences", **found["interval"]}
    return found


def export_shape_2(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a model's shape from version 1 of the export, which had one scheme for both stacks, to version 2."""
    names = ("absolute", "max_positions", "relative_keys", "relative_values", "clip_distance", "tables")
    scheme = {"name": "exported", "scheme": "vectors", **{name: shape[name] for name in names if name in shape}}
    rest = {name: value for name, value in shape.items() if name not in names}
    return {**rest, "encoder_positions": scheme, "decoder_positions": scheme}

"""What earlier versions have written, as this one reads it: the settings they did not have, and records of schema 1.

A leaf: it imports nothing of rpr.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# What a run did before these settings existed. Records of that time are read with it, and a run of today that does the
# same has the same id. The last two change nothing in what a run does, only how much is reported of its result; here
# they have what is reported by default, of older runs too.
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
# Settings of a run that had another name: records hold the old one, and run ids are made of it.
RENAMED: Mapping[str, str] = {
    "optim.max_tokens_per_unit": "optim.max_tokens_per_microbatch",
    "optim.units_per_step": "optim.microbatches_per_step",
}
# Of the commands, which no record holds: only a refusal names them.
RENAMED_OF_COMMANDS: Mapping[str, str] = {
    "at_once": "jobs",
    "retry": "retry_failed=true",
    "average": "average_checkpoints",
    "out": "output_dir",
    "out_dir": "output_dir",
    "results": "results_page",
    "loader": "measure_loader",
}
# The same for settings whose default of today is what was done before: the first has always counted in a run's id, the
# other never.
READ_AS: Mapping[str, Any] = {"hardware.attention": "auto", "stop_after_minutes": None}
# How schema 1 told, in texts alone, a run that was stopped from outside, and a run that repeats another one.
_STOPPED = ("interrupted", "the training process was ended by SIG")
_RERUN = "rpr-cli rerun "
# How a record's device names a CPU, in every schema so far.
_CPU = re.compile(r"(?P<processes>.*?)(?P<threads>\d+) threads? of (?P<processor>.*)")


class Machine(NamedTuple):
    """A CPU with its threads; `processes` are the words that say of how many processes each has them."""

    processes: str
    threads: int
    processor: str


def machine_of(device: str) -> Machine | None:
    """What a record's device says of a CPU; None of a GPU."""
    found = _CPU.fullmatch(device)
    return None if found is None else Machine(found["processes"], int(found["threads"]), found["processor"])


def renamed_to(key: str) -> str | None:
    """The new name of a setting that was renamed; None for any other."""
    return RENAMED.get(key) or RENAMED_OF_COMMANDS.get(key)


def with_earlier_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration as this version has it: settings by their new names, and those that were added later at
    the values of what was done before them.
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
    """A record's document of schema 1 as schema 2 has it. Nothing is checked: that is for whoever reads the result."""
    migrated = {"rerun_of": None, **document, "schema": 2}
    error = str(document.get("error"))
    if document.get("status") == "failed" and error.startswith(_STOPPED):
        # The status says that it was interrupted; the error is left with the reason.
        reason = error.removeprefix("interrupted").lstrip(" ;:") or "stopped from outside"
        migrated |= {"status": "interrupted", "error": reason}
    if str(document.get("command")).startswith(_RERUN):
        migrated["rerun_of"] = {"run_id": document.get("run_id"), "started": None}
    return migrated | {part: _with_kinds(document[part]) for part in ("scores", "by_length") if part in document}


def _with_kinds(part: Any) -> Any:
    """All intervals of schema 1 are over the test sentences."""
    if isinstance(part, list):
        return [_with_kinds(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {key: _with_kinds(value) for key, value in part.items()}
    if isinstance(found.get("interval"), dict):
        found["interval"] = {"kind": "sentences", **found["interval"]}
    return found


def export_shape_2(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a model in an export of version 1, which knew one scheme for both stacks, as version 2 has it."""
    names = ("absolute", "max_positions", "relative_keys", "relative_values", "clip_distance", "tables")
    scheme = {"name": "exported", "scheme": "vectors", **{name: shape[name] for name in names if name in shape}}
    rest = {name: value for name, value in shape.items() if name not in names}
    return {**rest, "encoder_positions": scheme, "decoder_positions": scheme}

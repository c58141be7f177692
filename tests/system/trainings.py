"""Comparison of two trainings, without times, speeds, memory and the state of the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpr.runs.checkpoints import load_checkpoint
from rpr.runs.locks import LOCK_NAME

VARYING = {
    "started", "finished", "git", "steps_per_second", "source_tokens_per_second", "target_tokens_per_second",
    "measured_steps", "seconds", "processor_seconds", "peak_memory_bytes", "cores_used", "time",
}  # fmt: skip


def without_timings(document: Any) -> Any:
    """A JSON document without the fields that vary between equal trainings."""
    if isinstance(document, dict):
        return {key: without_timings(value) for key, value in document.items() if key not in VARYING}
    return [without_timings(value) for value in document] if isinstance(document, list) else document


def contents(folder: Path, parts: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Each file below a folder, without timings; of a checkpoint only these parts."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_NAME):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt":
            loaded = load_checkpoint(path)
            found[name] = without_timings({part: loaded[part] for part in parts or loaded})
        elif path.suffix == ".json":
            found[name] = without_timings(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [without_timings(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes()
    return found


def assert_same_contents(one: dict[str, Any], other: dict[str, Any], assert_same: Callable[[Any, Any], None]) -> None:
    assert one.keys() == other.keys()
    for name, content in one.items():
        try:
            assert_same(content, other[name])
        except AssertionError as error:
            raise AssertionError(f"{name} differs: {error}") from error


def assert_same_run(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    """Files, weights, moments of Adam and learning rates are the same; counters of a resumed run's loops may not be."""
    parts = ("state_dict", "optimizer_states", "lr_schedulers")
    assert_same_contents(contents(one, parts), contents(other, parts), assert_same)

"""Comparison of two trainings, without times, speeds, memory and the state of the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpr.runs.checkpoints import checkpoints, load_checkpoint
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


def contents(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The files of a run, and its loaded checkpoints."""
    files: dict[str, Any] = {}
    for path in sorted(run_dir.iterdir()):
        if path.suffix == ".json":
            files[path.name] = without_timings(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            files[path.name] = [without_timings(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name != LOCK_NAME:
            files[path.name] = None if path.is_dir() else path.read_bytes()
    return files, [load_checkpoint(path) for _, path in checkpoints(run_dir / "checkpoints")]


def assert_same_run(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    (files, states), (other_files, other_states) = contents(one), contents(other)
    differ = [name for name in files.keys() | other_files.keys() if files.get(name, "") != other_files.get(name, "")]
    assert not differ, [(name, files.get(name), other_files.get(name)) for name in differ]
    names = [path.name for path in sorted((one / "checkpoints").iterdir())]
    assert names == [path.name for path in sorted((other / "checkpoints").iterdir())]
    for state, other_state in zip(states, other_states, strict=True):
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert_same(state[part], other_state[part])

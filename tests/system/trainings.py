"""Two trainings compared.

What differs between them all the same, and is left out: in record.json, when a run began and ended, its speed, cores
and memory, and the state of the checkout; in metrics.jsonl, the time and the speeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.runs.locks import LOCK_NAME

OF_THE_MOMENT = {
    "started", "finished", "git", "steps_per_second", "source_tokens_per_second", "target_tokens_per_second",
    "measured_steps", "seconds", "peak_memory_bytes", "cores_used", "time",
}  # fmt: skip


def plain(document: Any) -> Any:
    """Without what differs between two trainings all the same."""
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if key not in OF_THE_MOMENT}
    return [plain(value) for value in document] if isinstance(document, list) else document


def result(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Every file of a run but its checkpoints, JSON without what differs; and the checkpoints."""
    files: dict[str, Any] = {}
    for path in sorted(run_dir.iterdir()):
        if path.suffix == ".json":
            files[path.name] = plain(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            files[path.name] = [plain(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name != LOCK_NAME:  # says who held it last; the kernel knows that nobody does
            files[path.name] = None if path.is_dir() else path.read_bytes()
    return files, [load_checkpoint(path) for _, path in checkpoints(run_dir / "checkpoints")]


def assert_same_run(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    (files, states), (other_files, other_states) = result(one), result(other)
    differ = [name for name in files.keys() | other_files.keys() if files.get(name, "") != other_files.get(name, "")]
    assert not differ, [(name, files.get(name), other_files.get(name)) for name in differ]
    names = [path.name for path in sorted((one / "checkpoints").iterdir())]
    assert names == [path.name for path in sorted((other / "checkpoints").iterdir())]
    for state, other_state in zip(states, other_states, strict=True):
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert_same(state[part], other_state[part])

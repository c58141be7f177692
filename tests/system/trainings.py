"""What trainings leave, and a comparison of two without times, speeds, memory and the state of the checkout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from rpr.runs.checkpoints import checkpoints, load_checkpoint, model_weights
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


def last_step(run_dir: Path) -> int:
    """The step of the last checkpoint; 0 without one."""
    return max((step for step, _ in checkpoints(run_dir / "checkpoints")), default=0)


def last_weights(run_dir: Path) -> dict[str, Tensor]:
    """The model's weights in the last checkpoint."""
    return model_weights(checkpoints(run_dir / "checkpoints")[-1][1])


PARTS = ("state_dict", "optimizer_states", "lr_schedulers")  # counters of a resumed run's loops may differ


def contents(run_dir: Path) -> dict[str, Any]:
    """Each file of a run without timings; of a checkpoint, weights, moments of Adam and learning rates."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in run_dir.rglob("*") if path.is_file() and path.name != LOCK_NAME):
        name = str(path.relative_to(run_dir))
        if path.suffix == ".ckpt":
            loaded = load_checkpoint(path)
            found[name] = {part: loaded[part] for part in PARTS}
        elif path.suffix == ".json":
            found[name] = without_timings(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [without_timings(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes()
    return found


def assert_same_run(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    files, other_files = contents(one), contents(other)
    assert files.keys() == other_files.keys()
    for name, content in files.items():
        try:
            assert_same(content, other_files[name])
        except AssertionError as error:
            raise AssertionError(f"{name} differs: {error}") from error

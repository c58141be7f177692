"""What trainings leave, and a comparison of two without times, speeds, memory and the state of the checkout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from rpr.runs.loading import checkpoints, load_checkpoint, model_weights
from rpr.runs.locks import LOCK_NAME

VARYING = {
    "started", "finished", "git", "steps_per_second", "source_tokens_per_second", "target_tokens_per_second",
    "measured_steps", "seconds", "processor_seconds", "peak_memory_bytes", "cores_used", "time",
}  # fmt: skip
PARTS = ("state_dict", "optimizer_states", "lr_schedulers")  # counters of a resumed run's loops may differ


def last_step(run_dir: Path) -> int:
    """The step of the last checkpoint; 0 without one."""
    return max((step for step, _ in checkpoints(run_dir / "checkpoints")), default=0)


def last_weights(run_dir: Path) -> dict[str, Tensor]:
    """The model's weights in the last checkpoint."""
    return model_weights(checkpoints(run_dir / "checkpoints")[-1][1])


def parsed(path: Path) -> Any:
    """A file without timings; of a checkpoint, weights, moments of Adam and learning rates."""

    def without_timings(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if key not in VARYING}

    if path.suffix == ".ckpt":
        loaded = load_checkpoint(path)
        return {part: loaded[part] for part in PARTS}
    if path.suffix in (".json", ".jsonl"):
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [json.loads(text, object_pairs_hook=without_timings) for text in texts]
    return path.read_bytes()


def files_of(run: Path) -> dict[str, Path]:
    return {str(path.relative_to(run)): path for path in run.rglob("*") if path.is_file() and path.name != LOCK_NAME}


def assert_same_run(one: Path, other: Path, assert_same: Callable[[Any, Any], None]) -> None:
    files, others = files_of(one), files_of(other)
    assert files.keys() == others.keys()
    for name, path in files.items():
        try:
            assert_same(parsed(path), parsed(others[name]))
        except AssertionError as error:
            raise AssertionError(f"{name} differs: {error}") from error

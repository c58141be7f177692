"""Checked here: one command, given twice in fresh processes with a corpus prepared anew each time, gives the same
tokens, weights, moments of Adam, metrics, translations, scores, pictures and record, but for what a clock or the
system's memory decides; with one and two threads, with loader workers and with two ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.runs.checkpoints import checkpoints, load_checkpoint

SCRIPT = Path(sys.executable).with_name("rpr-cli")
RECIPE = (
    "optim.max_steps=40",
    "optim.warmup_steps=20",
    "optim.microbatches_per_step=2",
    "optim.checkpoint_every_n_steps=10",
    "optim.validate_every_n_steps=20",
    "evaluation.validation_sentences=4",
    "evaluation.beam_size=2",
)
MEASURED = {
    "started", "finished", "seconds", "processor_seconds", "cores_used", "peak_memory_bytes",
    "steps_per_second", "source_tokens_per_second", "target_tokens_per_second",
}  # fmt: skip
HARDWARE = [
    ("hardware.threads=2",),
    pytest.param(("hardware.threads=1",), marks=pytest.mark.slow),
    pytest.param(("hardware.threads=1", "hardware.num_workers=2"), marks=pytest.mark.slow),
    pytest.param(("hardware=2xcpu", "hardware.threads=1"), marks=pytest.mark.slow),
]


def trained(folder: Path, hash_seed: int, *overrides: str) -> Path:
    """The run's folder below this one, where the cache is too."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [SCRIPT, "train", *overrides, f"data.cache_dir={folder}/cache", f"runs_dir={folder}/runs"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    [record] = folder.glob("runs/*/record.json")
    return record.parent


def without_measurements(document: Any) -> Any:
    """Without what is measured: its names stay, so that both have the same ones."""
    if isinstance(document, dict):
        return {key: None if key in MEASURED else without_measurements(value) for key, value in document.items()}
    return [without_measurements(one) for one in document] if isinstance(document, list) else document


def contents(folder: Path) -> dict[str, Any]:
    """Of each file below a folder, by its name."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt":
            found[name] = without_measurements(load_checkpoint(path))
        elif path.suffix == ".json":
            found[name] = without_measurements(json.loads(path.read_text()))
        elif path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in row.items() if k != "time" and "_per_second" not in k} for row in rows]
        else:
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("hardware", HARDWARE, ids=" ".join)
def test_a_run_twice(
    hardware: tuple[str, ...], tiny_overrides: tuple[str, ...], tmp_path: Path, assert_same: Callable[[Any, Any], None]
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    runs = [trained(folder, seed, *tiny_overrides, *RECIPE, *hardware) for seed, folder in enumerate(folders, start=1)]
    assert runs[0].name == runs[1].name
    step, _ = checkpoints(runs[0] / "checkpoints")[-1]
    assert step == 40
    one, other = (contents(folder) for folder in folders)
    assert {"record.json", "metrics.jsonl", "config.yaml", "test.hypotheses.txt"} <= {Path(name).name for name in one}
    # Where the two lie is the only word that differs.
    here, there = (str(folder) for folder in folders)
    for name, content in other.items():
        if isinstance(content, bytes):
            other[name] = content.replace(there.encode(), here.encode())
        elif not name.endswith(".ckpt"):
            other[name] = json.loads(json.dumps(content).replace(there, here))
    assert one.keys() == other.keys()
    for name, content in one.items():
        try:
            assert_same(content, other[name])
        except AssertionError as error:
            raise AssertionError(f"{name} differs") from error

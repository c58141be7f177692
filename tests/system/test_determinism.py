"""Checked here: one command, given twice in fresh processes with a corpus prepared each time, gives the same
tokens, weights, moments of Adam, metrics, translations, scores, pictures and record, but for what a clock or the
system's memory decides; with one and two threads, with loader workers and with two ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rpr.runs.checkpoints import checkpoints, load_checkpoint
from tests.conftest import TINY
from tests.system.conftest import SCRIPT, Same
from tests.system.faults import Starter

RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.microbatches_per_step=2", "optim.checkpoint_every_n_steps=10",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2",
)  # fmt: skip
MEASURED = {
    "started", "finished", "seconds", "processor_seconds", "cores_used", "peak_memory_bytes", "time",
    "steps_per_second", "source_tokens_per_second", "target_tokens_per_second",
}  # fmt: skip
HARDWARE = [
    pytest.param(("hardware.threads=1",), marks=pytest.mark.slow),  # quick: tests/golden/test_training.py
    pytest.param(("hardware.threads=2",), marks=pytest.mark.slow),
    pytest.param(("hardware.threads=1", "hardware.num_workers=2"), marks=pytest.mark.slow),
    pytest.param(("hardware=2xcpu", "hardware.threads=1"), marks=pytest.mark.slow),
]


def unmeasured(document: Any) -> Any:
    """Without what is measured: its names stay, so that both have the same ones."""
    if isinstance(document, dict):
        return {key: None if key in MEASURED else unmeasured(value) for key, value in document.items()}
    return [unmeasured(one) for one in document] if isinstance(document, list) else document


def contents(folder: Path) -> dict[str, Any]:
    """Of each file below a folder, by its name; JSON without what is measured."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt":
            found[name] = unmeasured(load_checkpoint(path))
        elif path.suffix == ".json":
            found[name] = unmeasured(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [unmeasured(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name != ".lock":
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("hardware", HARDWARE, ids=" ".join)
def test_a_run_twice(hardware: tuple[str, ...], tmp_path: Path, starter: Starter, assert_same: Same) -> None:
    """Once by a fork of a process with a hash seed of its own, once by the installed script with another."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        words = ["train", *TINY, *RECIPE, *hardware, f"data.cache_dir={folder}/cache", f"runs_dir={folder}/runs"]
        if folder == folders[0]:
            done = starter.run(words, folder)
            assert done.code == 0, done.err
        else:
            process = subprocess.run(
                [SCRIPT, *words], capture_output=True, env={**os.environ, "PYTHONHASHSEED": "1"}, cwd=folder
            )
            assert process.returncode == 0, process.stderr
    runs = [next(folder.glob("runs/*/record.json")).parent for folder in folders]
    assert runs[0].name == runs[1].name
    step, _ = checkpoints(runs[0] / "checkpoints")[-1]
    assert step == 20
    one, other = (contents(folder) for folder in folders)
    assert {"record.json", "metrics.jsonl", "config.yaml", "test.hypotheses.txt"} <= {Path(name).name for name in one}
    # Where the two are is the only word that differs.
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

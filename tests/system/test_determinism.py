"""The same training command in two processes, each with its own token cache, writes the same files but for timings and
memory; with one and two threads, with loader workers, and with two ranks.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from rpr.runs.checkpoints import load_checkpoint
from tests.conftest import TINY
from tests.system.conftest import SCRIPT
from tests.system.trainings import without_timings

RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.microbatches_per_step=2", "optim.checkpoint_every_n_steps=10",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2",
)  # fmt: skip
HARDWARE = [
    ("hardware.threads=1",), ("hardware.threads=2",), ("hardware.threads=1", "hardware.num_workers=2"),
    ("hardware=2xcpu", "hardware.threads=1"),
]  # fmt: skip


def contents(folder):
    """The contents of each file below a folder, without timings."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt":
            found[name] = without_timings(load_checkpoint(path))
        elif path.suffix == ".json":
            found[name] = without_timings(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [without_timings(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name != ".lock":
            found[name] = path.read_bytes()
    return found


@pytest.mark.slow  # a faster version: tests/golden/test_training.py
@pytest.mark.parametrize("hardware", HARDWARE, ids=" ".join)
def test_repeated_run_is_identical(hardware, tmp_path, assert_same):
    """The two processes have different hash seeds."""
    for seed in "12":
        (tmp_path / seed).mkdir()
        done = subprocess.run(
            [SCRIPT, "train", *TINY, *RECIPE, *hardware, "data.cache_dir=cache", "runs_dir=runs"],
            capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=tmp_path / seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, other = (contents(tmp_path / seed) for seed in "12")
    expected = {"step00000020.ckpt", "record.json", "metrics.jsonl", "config.yaml", "test.hypotheses.txt"}
    assert one.keys() == other.keys() and expected <= {Path(name).name for name in one}
    for name, content in one.items():
        try:
            assert_same(content, other[name])
        except AssertionError as error:
            raise AssertionError(f"{name} differs") from error

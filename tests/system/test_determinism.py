"""The same training command in two processes, each with its own token cache, writes the same files but for timings and
memory; with one and two threads, with loader workers, and with two ranks.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.system.conftest import SCRIPT
from tests.system.trainings import assert_same_contents, contents

RECIPE = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.microbatches_per_step=2", "optim.checkpoint_every_n_steps=10",
    "optim.validate_every_n_steps=10", "evaluation.validation_sentences=4", "evaluation.beam_size=2",
)  # fmt: skip
HARDWARE = [
    ("hardware.threads=1",), ("hardware.threads=2",), ("hardware.threads=1", "hardware.num_workers=2"),
    ("hardware=2xcpu", "hardware.threads=1"),
]  # fmt: skip


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
    assert expected <= {Path(name).name for name in one}
    assert_same_contents(one, other, assert_same)

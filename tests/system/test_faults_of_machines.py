"""Faults around a command that must not stop it: a clock set back, wrong file times."""

import os

import pytest

from rpr.records.metrics import read_metrics
from rpr.records.record import read_record
from tests.system.trainings import assert_same_run

RECIPE = (
    "optim.max_steps=26", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=null",
    "optim.checkpoint_every_n_minutes=0.01", "optim.average_checkpoints=1", "optim.keep_checkpoints=1",
    "optim.validate_every_n_steps=13", "evaluation.test_splits=[test]", "evaluation.beam_size=2", "hardware.threads=1",
)  # fmt: skip


@pytest.mark.slow
def test_run_finishes_when_clock_is_set_back(tiny, tiny_config, tmp_path, small_data, fork_server, assert_same):
    command, runs = ["train", *tiny, *RECIPE], tmp_path / "runs"
    run_dir, expected = runs / tiny_config(*RECIPE).run_dir_name, tmp_path / "expected"
    assert fork_server.run(command, runs).code == 0
    run_dir.rename(expected)
    done = fork_server.run(command, runs, patch="clock_set_back")
    assert done.code == 0, done.err
    record = read_record(run_dir / "record.json")
    assert record.finished is not None and record.finished < record.started  # by the wall clock
    training = record.training
    assert training is not None and training.steps_per_second is not None and training.cores_used is not None
    assert 0 < training.seconds < 60 and 1 < training.steps_per_second < 10_000 and training.cores_used > 0
    for row in read_metrics(run_dir / "metrics.jsonl"):
        assert row["time"] >= 0 and all(value > 0 for name, value in row.items() if name.endswith("_per_second")), row
    assert_same_run(expected, run_dir, assert_same)
    assert fork_server.run(command, runs).changes == ()  # it counts as finished


@pytest.mark.parametrize("name", ["prepare", "prepare files"])
def test_changed_file_times_do_not_rebuild_cache(name, workspace):
    """New times of corpus files only make their digests be computed again."""
    workspace.restore(name, False)
    assert workspace.command(workspace.arguments[name]).code == 0
    before = workspace.snapshot()
    for seconds in (-1e8, 2e8):  # to the past, to the future
        for path in [*workspace.home.rglob("prepared/**/*"), *workspace.home.glob("corpus/*")]:
            os.utime(path, (path.stat().st_mtime + seconds,) * 2)
        done = workspace.command(workspace.arguments[name])
        assert done.code == 0 and "already prepared: opened in" in done.out
        assert not [change for change in done.changes if "/prepared/" in change and "digests.json" not in change]
        after = workspace.snapshot()
        assert before.keys() == after.keys()
        assert {path for path in before if before[path] != after[path]} <= {"prepared/digests.json"}

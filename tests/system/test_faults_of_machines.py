"""Checked here: what is round a run goes wrong, and the run ends well all the same: the clock is set back by an hour in
the middle, the files' times are of no use, W&B's own process is killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rpr.records.metrics import read_metrics
from rpr.records.record import read_record
from tests.system.conftest import Config, Family, Same, WaitFor
from tests.system.faulted_world import World
from tests.system.faults import Starter
from tests.system.trainings import assert_same_run
from tests.tracking.fake_wandb import FakeWandb

RECIPE = (
    "optim.max_steps=26", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=null",
    "optim.checkpoint_every_n_minutes=0.01", "optim.average_checkpoints=1", "optim.keep_checkpoints=1",
    "optim.validate_every_n_steps=13", "evaluation.test_splits=[test]", "evaluation.beam_size=2", "hardware.threads=1",
)  # fmt: skip


def test_the_clock_is_set_back_during_a_run(
    tiny: list[str], tiny_config: Config, tmp_path: Path, small_data: object, starter: Starter, assert_same: Same
) -> None:
    command, runs = ["train", *tiny, *RECIPE], tmp_path / "runs"
    run_dir, whole = runs / tiny_config(*RECIPE).run_dir_name, tmp_path / "whole"
    assert starter.run(command, runs).code == 0
    run_dir.rename(whole)
    done = starter.run(command, runs, patch="clock_set_back")
    assert done.code == 0, done.err
    record = read_record(run_dir / "record.json")
    assert record.finished is not None and record.finished < record.started  # as the clock has it
    training = record.training
    assert training is not None and training.steps_per_second is not None and training.cores_used is not None
    assert 0 < training.seconds < 60 and 1 < training.steps_per_second < 10_000 and training.cores_used > 0
    for row in read_metrics(run_dir / "metrics.jsonl"):
        assert row["time"] >= 0 and all(value > 0 for name, value in row.items() if name.endswith("_per_second")), row
    assert_same_run(whole, run_dir, assert_same)
    assert starter.run(command, runs).changes == ()  # finished, whatever its times say


@pytest.mark.parametrize("name", ["prepare", "prepare files"])
def test_a_cache_is_not_made_again_for_its_files_times(name: str, world: World) -> None:
    """Nor for those of the corpus, which its digests go by: they are taken again, and are the same."""
    world.restore(name, False)
    assert world.command(world.arguments[name]).code == 0
    before = world.now()
    for seconds in (-1e8, 2e8):  # to the past, to the future
        for path in [*world.home.rglob("prepared/**/*"), *world.home.glob("corpus/*")]:
            os.utime(path, (path.stat().st_mtime + seconds,) * 2)
        done = world.command(world.arguments[name])
        assert done.code == 0 and "already prepared: opened in" in done.out
        assert not [change for change in done.changes if "/prepared/" in change and "digests.json" not in change]
        after = world.now()
        assert before.keys() == after.keys()
        assert {path for path in before if before[path] != after[path]} <= {"prepared/digests.json"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wandb", "wandb_offline"])
def test_the_end_of_wandbs_process_in_the_middle_of_a_run(
    mode: str, tiny: list[str], tiny_config: Config, tmp_path: Path, small_data: object, family: Family,
    wait_for: WaitFor,
) -> None:  # fmt: skip
    """Killed while the run trains: it ends in order, and has all that it has without W&B."""
    recipe = [
        *RECIPE, "optim.max_steps=200", "optim.validate_every_n_steps=100", f"logger={mode}",
        "logger.artifacts=results", "logger.finish_timeout_seconds=5",
    ]  # fmt: skip
    run_dir, home = tmp_path / "runs" / tiny_config(*recipe).run_dir_name, tmp_path / "home"
    home.mkdir()
    environment = {f"WANDB_{name}_DIR": str(home / name) for name in ("CACHE", "DATA", "CONFIG")}
    with FakeWandb() as server:
        environment |= {"HOME": str(home), "WANDB_ERROR_REPORTING": "false", **server.environment()}
        process = family.start("train", *tiny, *recipe, **environment)
        assert wait_for(lambda: len(rows(run_dir)) >= 2 or process.poll() is not None, 120)
        assert process.poll() is None and rows(run_dir)[-1]["step"] < 200
        os.kill(family.one("wandb-core"), signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and b"Traceback" not in err, err.decode()
    told = [line for line in err.decode().splitlines() if "; mirroring stopped; the run is complete in" in line]
    assert len(told) == 1, err.decode()
    assert wait_for(lambda: not family.living(), 20), family.living()
    record = read_record(run_dir / "record.json")
    assert record.status == "finished" and record.steps == 200 and record.score("test") is not None
    assert record.wandb is not None and record.wandb.mode == {"wandb": "online"}.get(mode, "offline")
    assert [row["step"] for row in rows(run_dir) if "train/loss" in row] == list(range(25, 201, 25))


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return read_metrics(run_dir / "metrics.jsonl")

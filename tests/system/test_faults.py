"""Checked here: a run that is killed by SIGKILL again and again, at random steps and while a checkpoint is being
written, against the same run left alone, bit for bit: weights, moments of Adam, metrics and scores; with one and two
ranks, with and without loader workers, with gradients accumulated. Then training hit at any change that it makes on the
disk, by a signal or by a disk that is full; and two processes at one run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpr.records.record import Record, read_record
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.runs.locks import LOCK_NAME
from tests.conftest import TINY
from tests.system.conftest import Config, Family, Same, WaitFor
from tests.system.faults import Ended, Fault, Started, Starter
from tests.system.trainings import assert_same_run, plain

STEPS = 240
RECIPE = (
    f"optim.max_steps={STEPS}", "optim.warmup_steps=100", "optim.microbatches_per_step=4",
    "optim.checkpoint_every_n_steps=3", "optim.keep_checkpoints=4", "optim.validate_every_n_steps=60",
    "hardware.threads=1", "evaluation.beam_size=2",
)  # fmt: skip
SHORT_STEPS = 20
SHORT = (
    f"optim.max_steps={SHORT_STEPS}", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=5",
    "optim.keep_checkpoints=3", "optim.validate_every_n_steps=10",  # right after a checkpoint is due
    "evaluation.test_splits=[test]", "evaluation.beam_size=1", "hardware.threads=1",
)  # fmt: skip
CHANGES = {"SIGKILL": 10, "full": 4, "SIGTERM": 3, "SIGINT": 3}  # faults of a run of SHORT, in the slow test
CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full": 2, "small": 2}
HARDWARE = [("cpu", 0), ("cpu", 2), ("2xcpu", 0), ("2xcpu", 2)]
KILLS = 5  # of each hardware: 20 in all


def newest(run_dir: Path) -> int:
    found = checkpoints(run_dir / "checkpoints")
    return found[-1][0] if found else 0


# --- killed at random moments


def finished(arguments: list[str], family: Family) -> None:
    process = family.train(*arguments)
    _, told = process.communicate(timeout=280)
    assert process.returncode == 0, told.decode()


def result(run_dir: Path) -> tuple[dict[str, Any], list[Any], Record]:
    """The last checkpoint, the metrics without what a clock decides, and the record."""
    step, path = checkpoints(run_dir / "checkpoints")[-1]
    assert step == STEPS
    rows = [plain(json.loads(line)) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return load_checkpoint(path), rows, read_record(run_dir / "record.json")


def kill_after(
    step: int, process: subprocess.Popen[bytes], run_dir: Path, family: Family, wait_for: WaitFor,
    draw: random.Random, number: int,
) -> None:  # fmt: skip
    """Kill the command or one of its ranks, in turn, after a checkpoint of this step; every second time while the next
    one is written: its file has still another name.
    """
    assert wait_for(lambda: newest(run_dir) >= step or process.poll() is not None, 120)
    if number % 2:
        folder = run_dir / "checkpoints"
        wait_for(lambda: any(folder.glob(".step*.tmp")) or process.poll() is not None, 10)
    else:
        time.sleep(draw.uniform(0, 0.3))
    assert process.poll() is None, process.communicate()[1].decode()
    ranks = [pid for pid, line in family.living().items() if "-u -m rpr.commands.train" in line]
    os.kill(ranks[0] if ranks and number % 3 == 0 else process.pid, signal.SIGKILL)
    process.communicate()
    assert wait_for(lambda: not family.living(), 20), family.living()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("hardware, workers", HARDWARE)
def test_killed_at_random_moments(
    hardware: str, workers: int, tiny: list[str], tiny_config: Config, small_data: object, family: Family,
    wait_for: WaitFor, assert_same: Same, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    recipe = [*RECIPE, f"hardware={hardware}", f"hardware.num_workers={workers}"]
    config = tiny_config(*recipe)
    runs = {name: Path(config.runs_dir).with_name(name) for name in ("whole", "killed")}
    finished([*tiny, *recipe, f"runs_dir={runs['whole']}"], family)
    command = [*tiny, *recipe, f"runs_dir={runs['killed']}"]
    run_dir = runs["killed"] / config.run_dir_name
    draw = random.Random(f"{hardware} {workers}")
    unfinished_writes = 0
    for number, target in enumerate(sorted(draw.sample(range(1, STEPS - 10), KILLS))):
        kill_after(target, family.train(*command), run_dir, family, wait_for, draw, number)
        unfinished_writes += any((run_dir / "checkpoints").glob(".step*.tmp"))
    finished(command, family)
    (one, rows, record), (other, other_rows, other_record) = (result(runs[n] / config.run_dir_name) for n in runs)
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert_same(one[part], other[part])
    assert rows == other_rows
    assert record.scores == other_record.scores
    with capsys.disabled():
        print(f"\n{hardware}, {workers} workers: {KILLS} kills survived, {unfinished_writes} of them within a write")
    before = (run_dir / "record.json").read_bytes()
    finished([f"run={run_dir}"], family)
    assert (run_dir / "record.json").read_bytes() == before


# --- asked to stop, and resumed


@pytest.fixture
def begin(
    tiny: list[str], tiny_config: Config, small_data: object, starter: Starter, wait_for: WaitFor
) -> Callable[[int], tuple[Started, Path]]:
    """Starts a run of N steps, and waits for its first checkpoint: the process and the run's folder."""

    def begin(steps: int) -> tuple[Started, Path]:
        recipe = [
            f"optim.max_steps={steps}", "optim.checkpoint_every_n_steps=5", f"optim.validate_every_n_steps={steps}",
            "optim.average_checkpoints=1", "evaluation.test_splits=[test]", "hardware.threads=1",
        ]  # fmt: skip
        config = tiny_config(*recipe)
        run_dir = Path(config.runs_dir) / config.run_dir_name
        process = starter.start(["train", *tiny, *recipe], run_dir)
        assert wait_for(lambda: newest(run_dir) > 0, 60), process.ended()
        return process, run_dir

    return begin


@pytest.mark.parametrize("sign, name", [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_run_that_is_asked_to_stop_resumes_by_its_folder(
    sign: signal.Signals, name: str, begin: Callable[[int], tuple[Started, Path]], starter: Starter
) -> None:
    """`rpr-cli train run=...` resumes from the record alone, and of a finished run only prints the result."""
    process, run_dir = begin(60)
    os.kill(process.pid, sign)
    ended = process.ended(30)
    assert ended.code == 128 + sign and "Traceback" not in ended.err, ended.err
    assert ended.err.splitlines()[-1] == (
        "rpr-cli: interrupted; rerun the same command to resume from the last checkpoint"
    )
    record = read_record(run_dir / "record.json")
    reason = f"{name}; the same command resumes from the last checkpoint"
    assert (record.status, record.error) == ("interrupted", reason) and newest(run_dir) < 60
    if sign == signal.SIGINT:
        return
    moved = run_dir.rename(run_dir.with_name("moved"))
    done = starter.run(["train", f"run={moved}"], moved)
    assert done.code == 0, done.err
    assert read_record(moved / "record.json").status == "finished" and newest(moved) == 60
    assert not run_dir.exists()
    told = starter.run(["train", f"run={moved}"], moved)
    assert told.code == 0 and "already finished on " in told.err and told.changes == ()


# --- faults at the changes on the disk


class Training:
    """A run of a few steps, and how it ends when it is left alone."""

    def __init__(self, command: list[str], folder: Path, starter: Starter) -> None:
        self.command, self.starter, self.runs, self.whole = command, starter, folder / "runs", folder / "whole"
        self.alone = self.run()
        assert self.alone.code == 0, self.alone.err
        (self.run_dir,) = self.runs.iterdir()
        self.run_dir.rename(self.whole)

    def run(self, fault: Fault | None = None) -> Ended:
        return self.starter.run(self.command, self.runs, fault)

    def numbers(self, word: str = "") -> list[int]:
        """Of the changes on the disk that have this word."""
        return [number for number, change in enumerate(self.alone.changes, start=1) if word in change]

    def survive(self, fault: Fault, assert_same: Same) -> Ended:
        """The fault, what must hold afterwards, and the same command again; how it ended at first."""
        shutil.rmtree(self.runs, ignore_errors=True)
        ended = self.run(fault)
        where = (fault, ended.err, ended.changes[-1:])
        assert "Traceback" not in ended.err, where
        assert fault.kind == "small" or len(ended.changes) >= fault.number, where  # it came
        assert ended.code == CODES[fault.kind] and ended.err.count("rpr-cli: ") == (fault.kind != "SIGKILL"), where
        left = [path for path in self.run_dir.rglob("*") if path.name.endswith(".tmp")]
        assert fault.kind == "SIGKILL" or not left, where
        for path in [*self.run_dir.glob("*.json")]:
            json.loads(path.read_text())
        for _, path in checkpoints(self.run_dir / "checkpoints"):
            load_checkpoint(path)
        done = self.run()
        assert done.code == 0, (where, done.err)
        assert_same_run(self.whole, self.run_dir, assert_same)
        return ended


@pytest.fixture(scope="module")
def training(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, small_data: object, starter: Starter
) -> Training:
    folder = tmp_path_factory.mktemp("training")
    words = ["train", *TINY, *SHORT, f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}"]
    return Training(words, folder, starter)


def test_a_kill_and_a_full_disk(training: Training, assert_same: Same) -> None:
    """`small`: a limit on the size of files, which a checkpoint reaches while it is written."""
    message = "{}: this checkpoint cannot be written ({}); the earlier ones are intact: fix this, and the same command "
    training.survive(Fault("SIGKILL", random.Random(1).choice(training.numbers("rename"))), assert_same)
    ended = training.survive(Fault("full", training.numbers("step00000015.ckpt")[0]), assert_same)
    told = message.format(
        "step00000015.ckpt", "No space left on device"
    )  # not that the record cannot be written either
    assert ended.err.splitlines()[-1].endswith(f"{told}resumes from the last one")
    size = (training.whole / "checkpoints" / "step00000020.ckpt").stat().st_size
    ended = training.survive(Fault("small", size // 2), assert_same)
    told = message.format("step00000005.ckpt", "File too large")
    assert ended.err.splitlines()[-1].endswith(f"{told}resumes from the last one")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_at_many_changes(training: Training, assert_same: Same, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(2)
    faults = [Fault("SIGKILL", number) for number in draw.sample(training.numbers(), CHANGES["SIGKILL"])]
    faults += [Fault("full", number) for number in draw.sample(training.numbers("open"), CHANGES["full"])]
    begun = [number for number in training.numbers() if number > training.numbers("config.yaml")[-1]]
    for sign in ("SIGTERM", "SIGINT"):  # heard once the record is there
        faults += [Fault(sign, number) for number in draw.sample(begun, CHANGES[sign])]
    for fault in faults:
        training.survive(fault, assert_same)
    with capsys.disabled():
        print(f"\ntrain: {len(faults)} faults survived")


def test_two_processes_at_one_run(training: Training, wait_for: WaitFor, assert_same: Same) -> None:
    """The second is told in one line while the first is at work, also where the clock was set back meanwhile; and a
    third resumes at once where the first was killed.
    """
    shutil.rmtree(training.runs, ignore_errors=True)
    lock = training.run_dir / LOCK_NAME
    first = training.starter.start(training.command, training.runs, patch="slow_disk")
    assert wait_for(lambda: newest(training.run_dir) > 0, 60)
    os.kill(first.pid, signal.SIGSTOP)  # at work, and not finished meanwhile
    os.utime(lock, (time.time() + 3600,) * 2)
    second = training.run()
    assert second.code == 2 and second.changes == (f"os.mkdir {training.run_dir}", *[f"open {lock}"] * 2)
    (line,) = second.err.splitlines()
    assert "; wait for it, or stop it and rerun the command" in line
    os.kill(first.pid, signal.SIGKILL)
    first.ended()
    assert newest(training.run_dir) < SHORT_STEPS
    third = training.run()
    assert third.code == 0, third.err
    assert_same_run(training.whole, training.run_dir, assert_same)

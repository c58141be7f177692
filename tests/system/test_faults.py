"""Training interrupted by signals, a full disk or a second process, and resumed, or with a clock set back, matches an
uninterrupted run bit for bit: weights, moments of Adam, metrics and scores.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from rpr.records.files import read_metrics
from rpr.records.record import read_record
from rpr.runs.checkpoints import checkpoints, load_checkpoint
from rpr.runs.locks import LOCK_NAME
from tests.conftest import TINY
from tests.system.faults import CODES, Fault
from tests.system.trainings import assert_same_run, last_step

STEPS = 240
RECIPE = (
    f"optim.max_steps={STEPS}", "optim.warmup_steps=100", "optim.microbatches_per_step=4",
    "optim.checkpoint_every_n_steps=3", "optim.keep_checkpoints=4", "optim.validate_every_n_steps=60",
    "evaluation.beam_size=2",
)  # fmt: skip
SHORT_STEPS = 20
SHORT = (
    f"optim.max_steps={SHORT_STEPS}", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=5",
    "optim.keep_checkpoints=3", "optim.validate_every_n_steps=10",  # right after a checkpoint is due
    "evaluation.test_splits=[test]", "evaluation.beam_size=1", "hardware.threads=1",
)  # fmt: skip
NUMBERS = {"SIGKILL": 10, "full": 4, "SIGTERM": 3, "SIGINT": 3}  # of faults in the slow test
HARDWARE = [("cpu", 0, 1), ("cpu", 2, 1), ("cpu", 0, 2), ("2xcpu", 0, 1), ("2xcpu", 2, 1)]
KILLS = 5  # with each hardware


def train(arguments, processes):
    process = processes.start("train", *arguments)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err.decode()


def kill_after(step, process, run_dir, processes, wait_for, draw, number):
    """Kill the command or a rank after a checkpoint of this step, every second time while it writes the next one."""
    assert wait_for(lambda: last_step(run_dir) >= step or process.poll() is not None, 120)
    if number % 2:
        folder = run_dir / "checkpoints"
        wait_for(lambda: any(folder.glob(".step*.tmp")) or process.poll() is not None, 10)
    else:
        time.sleep(draw.uniform(0, 0.3))
    assert process.poll() is None, process.communicate()[1].decode()
    ranks = [pid for pid, line in processes.alive().items() if "-u -m rpr.commands.train" in line]
    os.kill(ranks[0] if ranks and number % 3 == 0 else process.pid, signal.SIGKILL)
    process.communicate()
    assert wait_for(lambda: not processes.alive(), 20), processes.alive()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("hardware, workers, threads", HARDWARE)
def test_run_killed_at_random_moments_matches_uninterrupted_run(
    hardware, workers, threads, tiny, tiny_config, small_data, processes, wait_for, assert_same
):
    """So a repeated run is identical, too: each process has its own hash seed."""
    recipe = [*RECIPE, f"hardware={hardware}", f"hardware.num_workers={workers}", f"hardware.threads={threads}"]
    config = tiny_config(*recipe)
    run_dir, expected = Path(config.runs_dir) / config.run_dir_name, Path(config.runs_dir).with_name("expected")
    command = [*tiny, *recipe]
    train(command, processes)
    run_dir.rename(expected)
    draw = random.Random(f"{hardware} {workers}")
    for number, target in enumerate(sorted(draw.sample(range(1, STEPS - 10), KILLS))):
        kill_after(target, processes.start("train", *command), run_dir, processes, wait_for, draw, number)
    train(command, processes)
    assert last_step(run_dir) == STEPS
    assert_same_run(expected, run_dir, assert_same)
    before = (run_dir / "record.json").read_bytes()
    train([f"run={run_dir}"], processes)
    assert (run_dir / "record.json").read_bytes() == before


@pytest.mark.parametrize("sign, name", [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_signalled_run_is_interrupted_and_resumes_by_folder(
    sign, name, tiny, tiny_config, small_data, fork_server, wait_for
):
    """`rpr-cli train run=...` resumes from the record, and for a finished run only prints the result."""
    recipe = [
        "optim.max_steps=60", "optim.checkpoint_every_n_steps=5", "optim.validate_every_n_steps=60",
        "optim.average_checkpoints=1", "evaluation.test_splits=[test]", "hardware.threads=1",
    ]  # fmt: skip
    config = tiny_config(*recipe)
    run_dir = Path(config.runs_dir) / config.run_dir_name
    process = fork_server.start(["train", *tiny, *recipe], run_dir)
    assert wait_for(lambda: last_step(run_dir) > 0, 60), process.wait()
    os.kill(process.pid, sign)
    stopped = process.wait(30)
    assert stopped.code == 128 + sign and "Traceback" not in stopped.err, stopped.err
    message = "rpr-cli: interrupted; rerun the same command to resume from the last checkpoint, if any"
    assert stopped.err.splitlines()[-1] == message
    record = read_record(run_dir / "record.json")
    reason = f"{name}; the same command resumes from the last checkpoint, if any"
    assert (record.status, record.error) == ("interrupted", reason) and last_step(run_dir) < 60
    if sign == signal.SIGINT:
        return
    moved = run_dir.rename(run_dir.with_name("moved"))
    done = fork_server.run(["train", f"run={moved}"], moved)
    assert done.code == 0, done.err
    assert read_record(moved / "record.json").status == "finished" and last_step(moved) == 60
    assert not run_dir.exists()
    repeated = fork_server.run(["train", f"run={moved}"], moved)
    assert repeated.code == 0 and "already finished on " in repeated.err and repeated.changes == ()


class Training:
    """A short run, and its result without faults."""

    def __init__(self, command, folder, server):
        self.command, self.server, self.runs, self.expected = command, server, folder / "runs", folder / "expected"
        self.result = self.run()
        assert self.result.code == 0, self.result.err
        (self.run_dir,) = self.runs.iterdir()
        self.run_dir.rename(self.expected)

    def run(self, fault=None, patch=None):
        return self.server.run(self.command, self.runs, fault, patch)

    def numbers(self, word=""):
        """The numbers of the disk changes that contain this word."""
        return [number for number, change in enumerate(self.result.changes, start=1) if word in change]

    def assert_recovers(self, fault, assert_same):
        """Run with the fault, check what it leaves, and run again; the first result."""
        shutil.rmtree(self.runs, ignore_errors=True)
        hit = self.run(fault)
        where = (fault, hit.err, hit.changes[-1:])
        assert "Traceback" not in hit.err, where
        assert fault.kind == "small" or len(hit.changes) >= fault.number, where
        assert hit.code == CODES[fault.kind] and hit.err.count("rpr-cli: ") == (fault.kind != "SIGKILL"), where
        assert fault.kind == "SIGKILL" or not [*self.run_dir.rglob("*.tmp")], where
        for path in self.run_dir.glob("*.json"):
            json.loads(path.read_text())
        for _, path in checkpoints(self.run_dir / "checkpoints"):
            load_checkpoint(path)
        done = self.run()
        assert done.code == 0, (where, done.err)
        assert_same_run(self.expected, self.run_dir, assert_same)
        return hit


@pytest.fixture(scope="module")
def training(tmp_path_factory, cache_dir, small_data, fork_server):
    folder = tmp_path_factory.mktemp("training")
    words = ["train", *TINY, *SHORT, f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}"]
    return Training(words, folder, fork_server)


@pytest.mark.parametrize("kind, name, reason", [
    ("SIGKILL", None, None), ("small", "step00000005.ckpt", "File too large"),
    pytest.param("full", "step00000015.ckpt", "No space left on device", marks=pytest.mark.slow),
])  # fmt: skip
def test_training_recovers_from_kill_and_full_disk(kind, name, reason, training, assert_same):
    """`full` and `small` stop the writing of a checkpoint, at its start and in the middle."""
    size = (training.expected / "checkpoints" / "step00000020.ckpt").stat().st_size
    numbers = {"SIGKILL": random.Random(1).choice(training.numbers("rename")), "small": size // 2}
    hit = training.assert_recovers(Fault(kind, numbers.get(kind) or training.numbers(name)[0]), assert_same)
    message = f"{name}: this checkpoint cannot be written ({reason}); the earlier ones are intact: fix this, and the "
    assert reason is None or f"{message}same command resumes from the last one" in hit.err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_recovers_from_faults_at_many_disk_changes(training, assert_same):
    draw = random.Random(2)
    faults = [Fault("SIGKILL", number) for number in draw.sample(training.numbers(), NUMBERS["SIGKILL"])]
    faults += [Fault("full", number) for number in draw.sample(training.numbers("open "), NUMBERS["full"])]
    started = [number for number in training.numbers() if number > training.numbers("config.yaml")[-1]]
    for sign in ("SIGTERM", "SIGINT"):  # handled from here on
        faults += [Fault(sign, number) for number in draw.sample(started, NUMBERS[sign])]
    for fault in faults:
        training.assert_recovers(fault, assert_same)


@pytest.mark.slow
def test_run_finishes_when_clock_is_set_back(training, assert_same):
    shutil.rmtree(training.runs, ignore_errors=True)
    done = training.run(patch="clock_set_back")
    assert done.code == 0, done.err
    record = read_record(training.run_dir / "record.json")
    assert record.finished < record.started  # by the wall clock
    assert 0 < record.training.seconds < 60 and record.training.cores_used > 0
    assert 1 < record.training.steps_per_second < 10_000
    for row in read_metrics(training.run_dir / "metrics.jsonl"):
        assert row["time"] >= 0 and all(value > 0 for name, value in row.items() if name.endswith("_per_second")), row
    assert_same_run(training.expected, training.run_dir, assert_same)
    assert training.run().changes == ()  # it counts as finished


def test_second_process_on_same_run_is_refused(training, wait_for, assert_same):
    """Also after the clock was set back; a third process resumes once the first was killed."""
    shutil.rmtree(training.runs, ignore_errors=True)
    lock = training.run_dir / LOCK_NAME
    first = training.server.start(training.command, training.runs, patch="slow_disk")
    assert wait_for(lambda: last_step(training.run_dir) > 0, 60)
    os.kill(first.pid, signal.SIGSTOP)  # so that it does not finish meanwhile
    os.utime(lock, (time.time() + 3600,) * 2)
    second = training.run()
    assert second.code == 2 and second.changes == (f"os.mkdir {training.run_dir}", *[f"open {lock}"] * 2)
    (line,) = second.err.splitlines()
    assert "; wait for it, or stop it and rerun the command" in line
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert last_step(training.run_dir) < SHORT_STEPS
    third = training.run()
    assert third.code == 0, third.err
    assert_same_run(training.expected, training.run_dir, assert_same)

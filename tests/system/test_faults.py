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
    process = fork_server.start(["train", *tiny, *recipe])
    assert wait_for(lambda: last_step(run_dir) > 0, 150), process.wait()
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
    done = fork_server.run(["train", f"run={moved}"])
    assert done.code == 0, done.err
    assert read_record(moved / "record.json").status == "finished" and last_step(moved) == 60
    assert not run_dir.exists()
    repeated = fork_server.run(["train", f"run={moved}"])
    assert repeated.code == 0 and "already finished on " in repeated.err


class Training:
    """A short run, and its result without faults."""

    def __init__(self, command, folder, server):
        self.command, self.server, self.runs, self.expected = command, server, folder / "runs", folder / "expected"
        result = self.run()
        assert result.code == 0, result.err
        (self.run_dir,) = self.runs.iterdir()
        self.run_dir.rename(self.expected)

    def run(self, fault=None, patch=None):
        shutil.rmtree(self.runs, ignore_errors=True) if fault or patch else None
        return self.server.run(self.command, fault, patch)


@pytest.fixture(scope="module")
def training(tmp_path_factory, cache_dir, small_data, fork_server):
    folder = tmp_path_factory.mktemp("training")
    words = ["train", *TINY, *SHORT, f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}"]
    return Training(words, folder, fork_server)


@pytest.mark.parametrize("fault", [
    Fault("SIGKILL", "os.rename", "step00000010.ckpt"),  # written, but not in its place
    Fault("full", "open", "step00000015.ckpt"),
    Fault("SIGTERM", "open", "metrics.jsonl"),
    Fault("SIGINT", "open", "test.hypotheses.txt"),  # while it is scored
], ids=lambda fault: fault.kind)  # fmt: skip
def test_training_recovers_from_a_fault(fault, training, assert_same):
    hit = training.run(fault)
    assert "Traceback" not in hit.err and hit.code == CODES[fault.kind], hit.err
    assert hit.err.count("rpr-cli: ") == (fault.kind != "SIGKILL"), hit.err
    assert fault.kind == "SIGKILL" or not [*training.run_dir.rglob("*.tmp")]
    for path in training.run_dir.glob("*.json"):
        json.loads(path.read_text())
    for _, path in checkpoints(training.run_dir / "checkpoints"):
        load_checkpoint(path)
    if fault.kind == "full":
        reason = "this checkpoint cannot be written (No space left on device); the earlier ones are intact: fix this, "
        assert f"{fault.name}: {reason}and the same command resumes from the last one" in hit.err
    done = training.run()
    assert done.code == 0, done.err
    assert_same_run(training.expected, training.run_dir, assert_same)


@pytest.mark.parametrize("command, fault", [
    (["evaluate", "evaluation.beam_size=1"], Fault("full", "open", "scores.json")),
    (["export", "format=safetensors"], Fault("SIGKILL", "os.rename", "safetensors")),
], ids=["evaluate", "export"])  # fmt: skip
def test_command_recovers_from_a_fault(command, fault, training, tmp_path, fork_server):
    """What it leaves has no final name, and a repetition gives the files of an undisturbed command."""
    name, setting = command

    def files():
        return {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def restore():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(training.expected, tmp_path / "run")

    words = [name, f"run={tmp_path / 'run'}", setting.removeprefix("evaluation.")]
    restore()
    assert fork_server.run(words).code == 0
    undisturbed = files()
    restore()
    before = files()
    hit = fork_server.run(words, fault)
    assert hit.code == CODES[fault.kind] and "Traceback" not in hit.err, hit.err
    left = {path: content for path, content in files().items() if not path.name.startswith(".")}
    partial = {path for path in left.keys() - before.keys() if not any(part.startswith(".") for part in path.parts)}
    assert not [path for path in partial if left[path] != undisturbed.get(path)]
    assert fork_server.run(words).code == 0
    found = files()
    assert {path: found.get(path) for path in undisturbed} == undisturbed


def test_second_process_on_same_run_is_refused(training, wait_for, assert_same):
    """Also after the clock was set back; a third process resumes once the first was killed."""
    shutil.rmtree(training.runs, ignore_errors=True)
    first = training.server.start(training.command, patch="slow_disk")
    assert wait_for(lambda: last_step(training.run_dir) > 0, 150)
    os.kill(first.pid, signal.SIGSTOP)  # so that it does not finish meanwhile
    os.utime(training.run_dir / LOCK_NAME, (time.time() + 3600,) * 2)
    second = training.run()
    assert second.code == 2
    (line,) = second.err.splitlines()
    assert "; wait for it, or stop it and rerun the command" in line
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert last_step(training.run_dir) < SHORT_STEPS
    third = training.run()
    assert third.code == 0, third.err
    assert_same_run(training.expected, training.run_dir, assert_same)

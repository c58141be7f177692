"""Training interrupted by signals, a full disk or a second process, and resumed, or with a clock set back, matches an
uninterrupted run bit for bit: weights, moments of Adam, metrics and scores.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rpr.cli import app
from rpr.records.record import read_record
from rpr.runs.loading import checkpoints, load_checkpoint
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
SHORT = (
    "optim.max_steps=8", "optim.warmup_steps=8", "optim.checkpoint_every_n_steps=2", "optim.keep_checkpoints=3",
    "optim.validate_every_n_steps=4",  # right after a checkpoint is due
    "evaluation.test_splits=[test]", "evaluation.beam_size=1", "hardware.threads=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc")
@pytest.mark.parametrize("hardware, workers, threads", [("cpu", 2, 1), ("cpu", 0, 2), ("2xcpu", 0, 1), ("2xcpu", 2, 1)])
def test_run_killed_at_random_moments_matches_uninterrupted_run(
    hardware, workers, threads, tiny, tiny_config, small_data, processes, wait_for, assert_same
):
    """The command or a rank is killed five times, also while it writes a checkpoint."""
    recipe = [*tiny, *RECIPE, f"hardware={hardware}", f"hardware.num_workers={workers}", f"hardware.threads={threads}"]
    config = tiny_config(*recipe)
    run_dir, expected = Path(config.runs_dir) / config.run_dir_name, Path(config.runs_dir).with_name("expected")
    processes.finish("train", *recipe)
    run_dir.rename(expected)
    draw = random.Random(f"{hardware} {workers}")
    for number, step in enumerate(sorted(draw.sample(range(1, STEPS - 10), 5))):
        process = processes.start("train", *recipe)
        assert wait_for(lambda step=step: last_step(run_dir) >= step, 120)
        if number % 2:
            wait_for(lambda: any((run_dir / "checkpoints").glob(".step*.tmp")), 10)
        else:
            time.sleep(draw.uniform(0, 0.3))
        assert process.poll() is None, process.communicate()[1].decode()
        ranks = [pid for pid, line in processes.alive().items() if "-u -m rpr.commands.train" in line]
        os.kill(ranks[0] if ranks and number % 3 == 0 else process.pid, signal.SIGKILL)
        process.communicate()
        assert wait_for(lambda: not processes.alive(), 20), processes.alive()
    processes.finish("train", *recipe)
    assert_same_run(expected, run_dir, assert_same)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cache_dir, small_data):
    """The words of a short run, where it will be, and its result without faults."""
    folder = tmp_path_factory.mktemp("training")
    command = ["train", *TINY, *SHORT, f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}"]
    assert app.main(command) == 0
    [run_dir] = (folder / "runs").iterdir()
    return SimpleNamespace(command=command, run_dir=run_dir, expected=run_dir.rename(folder / "expected"))


@pytest.fixture
def training(trained):
    shutil.rmtree(trained.run_dir.parent, ignore_errors=True)
    return trained


FULL = (
    "this checkpoint cannot be written (No space left on device); the earlier ones are intact: fix this, and the same"
)
INTERRUPTED = "interrupted; rerun the same command to resume from the last checkpoint, if any\n"


@pytest.mark.parametrize("fault, said", [
    (Fault("SIGKILL", "os.rename", "step00000004.ckpt"), ""),  # written, but not in its place
    (Fault("full", "open", "step00000006.ckpt"), f"step00000006.ckpt: {FULL} command resumes from the last one\n"),
    (Fault("SIGTERM", "open", "step00000004.ckpt"), f"rpr-cli: {INTERRUPTED}"),
], ids=lambda value: getattr(value, "kind", ""))  # fmt: skip
def test_training_recovers_from_a_fault(fault, said, training, forks, assert_same):
    """Resumed by the same command; after SIGTERM from its folder, wherever that is."""
    hit = forks.run(training.command, fault)
    assert "Traceback" not in hit.err and hit.code == CODES[fault.kind], hit.err
    assert hit.err.count("rpr-cli: ") == (fault.kind != "SIGKILL") and hit.err.endswith(said), hit.err
    assert fault.kind == "SIGKILL" or not [*training.run_dir.rglob("*.tmp")]
    for _, path in checkpoints(training.run_dir / "checkpoints"):
        load_checkpoint(path)
    run_dir, resume = training.run_dir, training.command
    if fault.kind == "SIGTERM":
        record = read_record(run_dir / "record.json")
        assert (record.status, record.error.partition(";")[0]) == ("interrupted", "SIGTERM")
        run_dir = run_dir.rename(run_dir.with_name("moved"))
        resume = ["train", f"run={run_dir}"]
    assert app.main(resume) == 0
    assert_same_run(training.expected, run_dir, assert_same)
    assert [*run_dir.parent.iterdir()] == [run_dir]


@pytest.mark.parametrize("command, fault", [
    (["evaluate", "beam_size=1"], Fault("full", "open", "scores.json")),
    (["export", "format=safetensors", "sentences=2"], Fault("SIGKILL", "os.rename", "safetensors")),
], ids=["evaluate", "export"])  # fmt: skip
def test_command_recovers_from_a_fault(command, fault, training, tmp_path, forks):
    """What it leaves has no final name, and a repetition gives the files of an undisturbed command."""

    def files():
        return {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    words = [*command, f"run={shutil.copytree(training.expected, tmp_path / 'run')}"]
    before = files()
    hit = forks.run(words, fault)
    assert hit.code == CODES[fault.kind] and "Traceback" not in hit.err, hit.err
    named = {path: new for path, new in files().items() if not any(part.startswith(".") for part in path.parts)}
    assert app.main(words) == 0
    repeated = files()
    assert repeated.keys() > before.keys() and named.items() <= repeated.items()
    assert app.main(words) == 0
    assert files() == repeated


def test_second_process_on_same_run_is_refused(training, forks, wait_for, cli, assert_same):
    """Also after the clock was set back; a third process resumes once the first was killed."""
    first = forks.start(training.command, Fault("SIGSTOP", "os.rename", "step00000004.ckpt"))
    assert wait_for(lambda: last_step(training.run_dir) > 0, 150)
    os.utime(training.run_dir / LOCK_NAME, (time.time() + 3600,) * 2)
    (line,) = cli(*training.command, code=2).err.splitlines()
    assert "; wait for it, or stop it and rerun the command" in line
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert last_step(training.run_dir) < 8
    assert app.main(training.command) == 0
    assert_same_run(training.expected, training.run_dir, assert_same)

"""Runs with several ranks: no process survives when one of them is killed, the number of devices does not change the
weights, and two nodes find each other. In tests/training/test_launch.py a worker that does not train is killed.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rpr.compose.composition import compose_train
from rpr.records.record import read_record
from rpr.runs.loading import checkpoints
from tests.conftest import TINY_MODEL
from tests.system.trainings import last_step, last_weights

ENDLESS = (
    "hardware=2xcpu", "hardware.num_workers=1", "optim.max_steps=100000", "optim.microbatches_per_step=2",
    "optim.checkpoint_every_n_steps=5", "optim.validate_every_n_steps=100000",
)  # fmt: skip
COMMAND, TORCHRUN, RANK = "rpr-cli train", "rpr.training.launch", "-u -m rpr.commands.train"
OF_SUBMITIT = """
import sys
from rpr.commands import train
from rpr.compose.composition import compose_train
train.run(compose_train(sys.argv[1:]), command="rpr-cli train")
"""
KILLED = "the training process was ended by SIG"
pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and dying with a parent is Linux's")
@pytest.mark.parametrize("target, sign, code, reason", [
    (COMMAND, signal.SIGKILL, -signal.SIGKILL, None), (COMMAND, signal.SIGTERM, 143, "SIGTERM; the"),
    (COMMAND, signal.SIGINT, 130, "Ctrl-C; the"), (TORCHRUN, signal.SIGKILL, 2, KILLED),
    (RANK, signal.SIGKILL, 2, KILLED),
])  # fmt: skip
def test_no_process_outlives_run(target, sign, code, reason, tiny, tiny_config, small_data, processes, wait_for):
    config = tiny_config(*ENDLESS)
    run_dir = Path(config.runs_dir) / config.run_dir_name
    process = processes.start("train", *tiny, *ENDLESS)
    assert wait_for(lambda: len(checkpoints(run_dir / "checkpoints")) > 1, 120), process.poll()
    assert len(processes.alive()) >= 6  # the command, torchrun, two ranks, a loader worker of each
    os.kill(process.pid if target == COMMAND else processes.find(target), sign)
    assert process.wait(40) == code
    assert wait_for(lambda: not processes.alive(), 15), processes.alive()
    err, record = process.stderr.read().decode(), read_record(run_dir / "record.json")
    if reason is None:
        assert record.status == "running" and "or killed" in record.outcome
    else:
        assert record.status == "interrupted" and record.error.startswith(reason)
        assert err.splitlines()[-1].startswith("rpr-cli: interrupted; " if target == COMMAND else f"rpr-cli: {reason}")
        assert target != COMMAND or "Traceback" not in err, err


@pytest.fixture
def finished(processes):
    """The last weights of a run that this trains."""

    def run(*overrides):
        processes.finish("train", *overrides)
        config = compose_train(overrides)
        run_dir = Path(config.runs_dir) / config.run_dir_name
        assert read_record(run_dir / "record.json").steps == last_step(run_dir) == config.optim.max_steps
        return last_weights(run_dir)

    return run


SHARED = (
    "hardware.precision=64", "hardware.threads=1", "optim.microbatches_per_step=8", "optim.max_steps=6",
    "optim.warmup_steps=4", "evaluation.test_splits=[]", "model.dropout=0",  # each rank draws its own
)  # fmt: skip


def of_devices(number):
    return [f"hardware={'cpu' if number == 1 else '2xcpu'}", f"hardware.devices={number}"]


def test_one_two_and_eight_devices_learn_same_weights(tiny, small_data, finished):
    """With 8 microbatches per step in all."""
    settings = [*tiny, *SHARED, "position.clip_distance=3"]
    results = {devices: finished(*settings, *of_devices(devices)) for devices in (1, 2, 8)}
    assert any(weight.dtype == torch.float64 for weight in results[1].values())
    for devices in (2, 8):  # Adam magnifies rounding in gradients near zero
        torch.testing.assert_close(results[devices], results[1], rtol=0, atol=1e-9)


def test_two_devices_learn_from_packed_documents_in_windows_what_one_does(finished, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(80):
        texts.joinpath(f"{number}.txt").write_text(f"{number} windows " * (number % 7 + 1))
    settings = [
        *TINY_MODEL, *SHARED, f"data.cache_dir={tmp_path}", f"runs_dir={tmp_path / 'runs'}",
        "evaluation.bootstrap_samples=0", "data=text", f"data.path={texts}", "data.text.windows=stream_masked",
        "data.context_length=32", "model.architecture=decoder_only", "position=relative", "position.window=6",
        "position.sink=true", "optim.max_tokens_per_microbatch=64",
    ]  # fmt: skip
    one, two = (finished(*settings, *of_devices(devices)) for devices in (1, 2))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-9)


def test_two_ranks_stop_together_at_a_time_limit_and_resume(
    tiny, small_data, processes, finished, tmp_path, assert_same
):
    """The time has always passed, that of the next checkpoint as well: each call trains one step."""
    settings = [
        *tiny, "hardware=2xcpu", "optim.microbatches_per_step=2", "optim.max_steps=3", "evaluation.test_splits=[]",
        "optim.checkpoint_every_n_steps=null", "optim.checkpoint_every_n_minutes=1e-9",
    ]  # fmt: skip
    limited = [*settings, f"runs_dir={tmp_path / 'limited'}", "stop_after_minutes=1e-9"]
    for _ in range(2):
        process = processes.start("train", *limited)
        assert process.wait(120) == 2 and not processes.alive()
    assert_same(finished(*limited), finished(*settings))


def test_run_on_two_nodes_of_slurm(tiny, tiny_config, small_data):
    """Both nodes are this machine."""
    overrides = ["hardware.num_nodes=2", "optim.microbatches_per_step=2", "optim.max_steps=6"]
    overrides += ["evaluation.test_splits=[]"]
    job = {
        "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost,localhost",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(  # as in a job of submitit's; a command heeds no variables of SLURM
            [sys.executable, "-P", "-c", OF_SUBMITIT, *tiny, *overrides],
            env={**os.environ, **job, "SLURM_NODEID": node, "SLURM_PROCID": node},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for node in "10"
    ]
    assert [node.wait(120) for node in nodes] == [0, 0], [node.stderr and node.stderr.read() for node in nodes]
    config = tiny_config(*overrides)
    record = read_record(Path(config.runs_dir) / config.run_dir_name / "record.json")
    assert (record.status, record.steps) == ("finished", 6)

"""Checked here: what becomes of the processes of a run with two ranks and their loader workers when one of them is
ended in every way; that the ranks of two nodes find each other; and that one device with eight microbatches, two with
four and eight with one learn the same weights, in float64.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rpr.records.record import Record, read_record
from rpr.runs.checkpoints import checkpoints, model_weights
from tests.system.conftest import SCRIPT, Config, Family, WaitFor

ENDLESS = (
    "hardware=2xcpu", "hardware.num_workers=1", "optim.max_steps=100000", "optim.microbatches_per_step=2",
    "optim.checkpoint_every_n_steps=20", "optim.validate_every_n_steps=100000",
)  # fmt: skip
THE_COMMAND, TORCHRUN, A_RANK = "rpr-cli train", "rpr.training.launch", "-u -m rpr.commands.train"
WAYS = [
    pytest.param(THE_COMMAND, signal.SIGKILL, -signal.SIGKILL, id="the command killed"),
    pytest.param(THE_COMMAND, signal.SIGTERM, 143, id="the command terminated", marks=pytest.mark.slow),
    pytest.param(THE_COMMAND, signal.SIGINT, 130, id="Ctrl-C", marks=pytest.mark.slow),
    pytest.param(TORCHRUN, signal.SIGKILL, 2, id="torchrun killed", marks=pytest.mark.slow),
    pytest.param(A_RANK, signal.SIGKILL, 2, id="a rank killed", marks=pytest.mark.slow),
    pytest.param(A_RANK, signal.SIGTERM, 2, id="a rank terminated", marks=pytest.mark.slow),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and dying with a parent is Linux's")
@pytest.mark.parametrize("whom, how, expected", WAYS)
def test_no_process_outlives_the_run(
    whom: str, how: signal.Signals, expected: int, tiny: list[str], tiny_config: Config, small_data: object,
    family: Family, wait_for: WaitFor,
) -> None:  # fmt: skip
    config = tiny_config(*ENDLESS)
    run_dir = Path(config.runs_dir) / config.run_dir_name
    process = family.train(*tiny, *ENDLESS)
    assert wait_for(lambda: len(checkpoints(run_dir / "checkpoints")) > 1, 120), process.poll()
    assert len(family.living()) >= 6  # the command, torchrun, two ranks, a loader worker of each
    os.kill(process.pid if whom == THE_COMMAND else family.one(whom), how)
    assert process.wait(40) == expected
    assert wait_for(lambda: not family.living(), 15), family.living()
    assert process.stderr is not None
    told = process.stderr.read().decode()
    if whom == THE_COMMAND:  # a loader worker may complain of its rank's death
        assert "Traceback" not in told, told
    record = read_record(run_dir / "record.json")
    if whom == THE_COMMAND and how == signal.SIGKILL:
        assert record.status == "running" and record.outcome is not None and "or killed" in record.outcome
    elif whom == THE_COMMAND:
        reason = f"{'Ctrl-C' if how == signal.SIGINT else 'SIGTERM'}; the same command resumes from the last checkpoint"
        assert (record.status, record.error) == ("interrupted", reason)
        told = told.splitlines()[-1]
        assert told == "rpr-cli: interrupted; rerun the same command to resume from the last checkpoint"
    else:
        assert record.status == "interrupted"
        assert record.error is not None and record.error.startswith("the training process was ended by SIG")
        assert told.splitlines()[-1] == f"rpr-cli: {record.error}"


def final(tiny_config: Config, *overrides: str) -> tuple[Record, dict[str, torch.Tensor]]:
    config = tiny_config(*overrides)
    run_dir = Path(config.runs_dir) / config.run_dir_name
    step, path = checkpoints(run_dir / "checkpoints")[-1]
    assert step == config.optim.max_steps
    return read_record(run_dir / "record.json"), model_weights(path)


TWO_NODES = ("hardware.num_nodes=2", "optim.microbatches_per_step=2", "evaluation.test_splits=[]")
SHARED = (
    "hardware.precision=64", "hardware.threads=1", "optim.microbatches_per_step=8", "optim.max_steps=6",
    "optim.warmup_steps=4", "model.dropout=0",  # whose draws are each rank's own
    "position.clip_distance=3", "evaluation.test_splits=[]",
)  # fmt: skip


@pytest.mark.slow
def test_one_two_and_eight_devices_learn_the_same(
    tiny: list[str], tiny_config: Config, small_data: object, family: Family
) -> None:
    results = {}
    for devices in (1, 2, 8):
        overrides = [*SHARED, "hardware=2xcpu", f"hardware.devices={devices}"]
        process = family.train(*tiny, *overrides)
        assert process.wait(280) == 0, process.stderr and process.stderr.read()
        record, results[devices] = final(tiny_config, *overrides)
        assert record.training is not None and record.steps == 6
    assert any(weight.dtype == torch.float64 for weight in results[1].values())
    for devices in (2, 8):
        for name, weight in results[1].items():
            # Adam divides by the root of the second moment: rounding in gradients near zero comes out magnified.
            torch.testing.assert_close(
                results[devices][name], weight, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_local"])
def test_jobs_of_two_ranks_in_a_multirun(
    launcher: str, tiny: list[str], tiny_config: Config, small_data: object, family: Family
) -> None:
    """One after another, two at a time, and as SLURM's launcher would run them; nothing is trained twice or left."""
    recipe = ["hardware=2xcpu", "optim.microbatches_per_step=2", "optim.max_steps=12", "evaluation.test_splits=[]"]
    how = [f"hydra/launcher={launcher}", *(["hydra.launcher.n_jobs=2"] if launcher == "joblib" else [])]
    process = family.train(*["-m", "position.clip_distance=0,2", *how, *tiny, *recipe])
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told.decode()
    for clip_distance in (0, 2):
        record, _ = final(tiny_config, *recipe, f"position.clip_distance={clip_distance}")
        assert (record.status, record.steps) == ("finished", 12)
    config = tiny_config(*recipe)
    assert len([*Path(config.runs_dir).glob("*/record.json")]) == 2
    assert not family.living()


@pytest.mark.slow
def test_two_nodes_find_each_other(tiny: list[str], tiny_config: Config, small_data: object, tmp_path: Path) -> None:
    """torchrun on each of two nodes, both here: the command that the refusal of hardware.num_nodes names."""
    overrides = [*TWO_NODES, "optim.max_steps=6"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{29500 + os.getpid() % 400}", "--rdzv-id=1"]
    torchrun += ["-m", "rpr", "train"]
    nodes = [
        subprocess.Popen([*torchrun, *tiny, *overrides], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [node.wait(120) for node in nodes] == [0, 0], [node.stderr and node.stderr.read() for node in nodes]
    record, _ = final(tiny_config, *overrides)
    assert (record.status, record.steps) == ("finished", 6)


@pytest.mark.slow
def test_two_nodes_of_a_slurm_job(tiny: list[str], tiny_config: Config, small_data: object) -> None:
    """What submitit starts once on each node, with the variables that SLURM sets there; both nodes are this machine."""
    overrides = [*TWO_NODES, "optim.max_steps=8"]
    job = {
        "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost,localhost",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(
            [SCRIPT, "train", *tiny, *overrides],
            env={**os.environ, **job, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for node in (1, 0)
    ]
    assert [node.wait(120) for node in nodes] == [0, 0], [node.stderr and node.stderr.read() for node in nodes]
    record, _ = final(tiny_config, *overrides)
    assert (record.status, record.steps) == ("finished", 8)


@pytest.mark.slow
def test_torchrun_with_another_number_of_processes_is_refused(tiny: list[str]) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    told = subprocess.run([*torchrun, "-m", "rpr", "train", *tiny], capture_output=True, text=True)
    assert told.returncode != 0
    assert "rpr-cli: hardware=cpu: torchrun started 2 processes for 1 nodes of 1 devices; set" in told.stderr

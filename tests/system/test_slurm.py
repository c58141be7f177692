"""Checked here, on a real SLURM of two nodes: jobs that it takes back, that run out of time, are cancelled or lose
their node, and what becomes of their runs; a sweep that is killed and given again while its jobs run; a run on both
nodes, and where they know no address of each other; the request for nodes of eight GPUs, as far as a cluster without
them understands it.

The tests drain nodes and take them down, so they are for the operator of a SLURM that has nothing else to do; its nodes
share the folder --basetemp. SLURM starts a job that it has taken back after two minutes; the tests tell it to at once.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest

from rpr.records.record import LOG_NAME, Record, read_record
from rpr.runs.checkpoints import checkpoints
from tests.system.conftest import Config, Family, WaitFor

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

BY_SLURM = "hydra/launcher=submitit_slurm"
RECIPE = (
    "hardware.threads=1", "optim.microbatches_per_step=1", "optim.warmup_steps=4", "optim.max_steps=160",
    "optim.checkpoint_every_n_steps=10", "optim.validate_every_n_steps=100000", "evaluation.test_splits=[]",
)  # fmt: skip
ENDLESS = "optim.max_steps=1000000"
TWO_NODES = ("hardware.num_nodes=2", "optim.microbatches_per_step=2", "optim.max_steps=40")
NAMELESS = """
import os, socket

known = socket.getaddrinfo

def getaddrinfo(host, *rest, **options):
    if os.environ.get("SLURM_NODEID") in {nodes}:
        raise socket.gaierror(-2, "Name or service not known")
    return known(host, *rest, **options)

socket.getaddrinfo = getaddrinfo
"""


def asked(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@cache
def two_nodes() -> bool:
    """Whether there is such a SLURM; asked once, as sinfo tries for long where none answers."""
    try:
        return len(set(asked("sinfo", "--noheader", "--Node", "--format=%N").split())) > 1
    except (OSError, subprocess.SubprocessError):
        return False


class Run:
    """One run, looked at from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def record(self) -> Record:
        return read_record(self.folder / "record.json")

    def step(self) -> int:
        """Of its last checkpoint; 0 without one."""
        return max((step for step, _ in checkpoints(self.folder / "checkpoints")), default=0)

    def first_steps(self) -> int:
        """How often it has begun."""
        return (self.folder / LOG_NAME).read_text().count("step 25/")

    def assert_finished(self) -> None:
        assert (self.record.status, self.record.steps) == ("finished", 160), self.record.error
        rows = [json.loads(line)["step"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        assert rows == sorted(rows)
        assert self.first_steps() == 1


class Jobs:
    """The jobs of one test, by their name in SLURM."""

    def __init__(self, family: Family, wait_for: WaitFor, tiny: list[str], tiny_config: Config) -> None:
        self.family, self.wait_for, self.tiny_config = family, wait_for, tiny_config
        self.recipe = [*tiny, *RECIPE]
        self.name = f"rpr-test-{uuid4().hex[:8]}"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A command that submits its runs as jobs."""
        return self.family.start(*arguments, BY_SLURM, f"hydra.launcher.name={self.name}", **environment)

    def train(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        return self.start("train", "-m", *self.recipe, *words, **environment)

    def run(self, *words: str) -> Run:
        """The one that has these words."""
        config = self.tiny_config(*RECIPE, *words)
        return Run(Path(config.runs_dir).absolute() / config.run_dir_name)

    def queued(self, what: str = "%i") -> list[str]:
        """Of each job that has not ended: its number, its state (%T), its nodes (%N)."""
        return asked("squeue", "--array", "--noheader", f"--name={self.name}", f"--format={what}").split()

    def come_back(self) -> None:
        """The one that SLURM has taken back waits, and is started."""
        assert self.wait_for(lambda: self.queued("%T") == ["PENDING"], 60), self.queued("%T")
        asked("scontrol", "update", f"JobId={self.queued()[0]}", "StartTime=now")
        assert self.wait_for(lambda: self.queued("%T") == ["RUNNING"], 60), self.queued("%r")


@pytest.fixture
def jobs(family: Family, wait_for: WaitFor, tiny: list[str], tiny_config: Config, small_data: object) -> Iterator[Jobs]:
    if not two_nodes():
        pytest.skip("no SLURM of two nodes answers sinfo")
    jobs = Jobs(family, wait_for, tiny, tiny_config)
    yield jobs
    asked("scancel", "--quiet", f"--name={jobs.name}")
    for line in asked("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines():
        node, state = line.split()
        if state.startswith(("drain", "down")):
            asked("scontrol", "update", f"NodeName={node}", "State=resume")
    assert wait_for(lambda: not jobs.queued(), 60)


def ended(process: subprocess.Popen[bytes], seconds: float = 150) -> tuple[int, str]:
    """The exit code, and what was told; never a traceback, nor what submitit says of sacct."""
    _, err = process.communicate(timeout=seconds)
    told = err.decode()
    assert "Traceback" not in told and "sacct" not in told and "submitit WARNING" not in told, told
    return process.returncode, told


def test_two_runs(jobs: Jobs) -> None:
    assert ended(jobs.train("seed=1,2"))[0] == 0
    for seed in (1, 2):
        jobs.run(f"seed={seed}").assert_finished()


def test_a_job_that_is_taken_back_goes_on(jobs: Jobs, wait_for: WaitFor) -> None:
    run = jobs.run()
    process = jobs.train()
    assert wait_for(lambda: run.step() >= 30, 120)
    asked("scontrol", "requeue", *jobs.queued())
    jobs.come_back()
    assert ended(process)[0] == 0
    run.assert_finished()


def test_a_job_without_its_node_goes_on_at_the_other(jobs: Jobs, wait_for: WaitFor) -> None:
    run = jobs.run()
    process = jobs.train()
    assert wait_for(lambda: run.step() >= 30, 120)
    (node,) = jobs.queued("%N")
    asked("scontrol", "update", f"NodeName={node}", "State=drain", "Reason=test")
    reached = run.step()
    assert wait_for(lambda: run.step() > reached, 60)  # who drains a node lets its jobs end
    asked("scontrol", "update", f"NodeName={node}", "State=down", "Reason=test")
    jobs.come_back()
    assert jobs.queued("%N") != [node]
    assert ended(process)[0] == 0
    run.assert_finished()


def test_a_job_out_of_time_is_taken_back_as_often_as_allowed(jobs: Jobs, wait_for: WaitFor) -> None:
    run = jobs.run(ENDLESS)
    limits = ["hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=5", "hydra.launcher.max_num_timeout=1"]
    process = jobs.train(ENDLESS, *limits)
    assert wait_for(lambda: jobs.queued("%T") == ["RUNNING"], 30)
    assert wait_for(lambda: jobs.queued("%T") == ["PENDING"], 90)
    reached = run.step()
    assert reached > 0 and run.record.status == "interrupted"
    jobs.come_back()
    code, told = ended(process)
    assert code == 1 and "the SLURM time limit was reached" in told
    assert run.step() >= reached and run.first_steps() <= 1  # it may get no further within so short a time
    assert run.record.status == "interrupted"
    assert run.record.error is not None and run.record.error.startswith("the SLURM time limit was reached")


def test_a_cancelled_job_is_told_and_resumes_without_slurm(jobs: Jobs, wait_for: WaitFor) -> None:
    run = jobs.run()
    process = jobs.train()
    assert wait_for(lambda: run.step() >= 30, 120)
    asked("scancel", *jobs.queued())
    code, told = ended(process)
    assert code == 1 and "left no result: cancelled" in told and len(told.splitlines()) == 1, told
    assert run.record.status == "interrupted"
    assert ended(jobs.family.train(*jobs.recipe))[0] == 0
    assert run.record.status == "finished"


def test_a_killed_sweep_that_is_given_again_trains_nothing_twice(jobs: Jobs, tmp_path: Path, wait_for: WaitFor) -> None:
    """The first of its runs is at work when the command is killed, the second waits in SLURM's queue, and is submitted
    once more.
    """
    runs = [jobs.run(f"seed={seed}") for seed in (1, 2)]
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"overrides": jobs.recipe, "jobs": ["seed=1,2"]}))
    command = ["sweep", str(file), "hydra.launcher.array_parallelism=1"]
    process = jobs.start(*command)
    assert wait_for(lambda: runs[0].step() >= 30, 120)
    process.kill()
    process.communicate()
    code, told = ended(jobs.start(*command))
    assert told.startswith("sweep mine: 2 jobs: 1 new, 1 running in another process\n")
    assert code == 0 or "the sweep is incomplete: 1 of its jobs is running in another process" in told
    assert wait_for(lambda: not jobs.queued(), 120)
    code, told = ended(jobs.start(*command))
    assert (code, told) == (0, "sweep mine: 2 jobs: 2 finished\n" * 2)
    for run in runs:
        run.assert_finished()


def test_a_run_on_two_nodes(jobs: Jobs) -> None:
    process = jobs.train(*TWO_NODES, "hydra.launcher.nodes=2")
    assert ended(process)[0] == 0
    run = jobs.run(*TWO_NODES)
    assert (run.record.status, run.record.steps) == ("finished", 40)
    assert run.record.device.startswith("2 processes")


@pytest.mark.parametrize("unknowing", ["both", "the second"])
def test_nodes_that_know_no_address_of_each_other(
    unknowing: str, jobs: Jobs, tmp_path: Path, wait_for: WaitFor
) -> None:
    """Both end at once; where the first knows the second, it ends with that."""
    folder = tmp_path / "nameless"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NAMELESS.format(nodes=("0", "1") if unknowing == "both" else ("1",)))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = jobs.train(*TWO_NODES, "hydra.launcher.nodes=2", PYTHONPATH=path)
    code, told = ended(process, 120)
    assert code == 1 and "cannot resolve the host name of node" in told and len(told.splitlines()) == 1, told
    assert wait_for(lambda: not jobs.queued(), 60)


def test_the_request_for_eight_gpus(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Callable[..., Path]
) -> None:
    """SLURM understands all of it; only the GPUs and the processors are more than these nodes have."""
    with monkeypatch.context() as patched:
        script = submitted(patched, "hardware=slurm_8xgpu", "hardware.num_nodes=2", "model=big")
    asked("sbatch", "--test-only", "--gpus-per-node=0", "--cpus-per-task=1", str(script))
    refused = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True)
    assert refused.returncode != 0 and ("gres" in refused.stderr or "configuration" in refused.stderr), refused.stderr

"""Runs on a real SLURM of two nodes: requeued and timed-out jobs, failed nodes, killed sweeps.

The tests drain nodes and take them down, so they need an otherwise idle SLURM and its operator; the nodes share the
folder --basetemp and resolve each other's names. SLURM restarts a requeued job after two minutes; the tests tell it to
restart at once.
"""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from rpr.records.record import read_record
from tests.system.trainings import last_step

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

BY_SLURM = "hydra/launcher=submitit_slurm"
RECIPE = (
    "hardware.threads=1", "optim.microbatches_per_step=1", "optim.warmup_steps=4", "optim.max_steps=160",
    "optim.checkpoint_every_n_steps=10", "optim.validate_every_n_steps=100000", "evaluation.test_splits=[]",
)  # fmt: skip
ENDLESS = "optim.max_steps=1000000"


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@cache
def two_nodes():
    """Whether there is such a SLURM; cached, as sinfo has a long timeout."""
    try:
        return len(set(output_of("sinfo", "--noheader", "--Node", "--format=%N").split())) > 1
    except (OSError, subprocess.SubprocessError):
        return False


class Run(NamedTuple):
    folder: Path

    @property
    def record(self):
        return read_record(self.folder / "record.json")

    def step(self):
        return last_step(self.folder)

    def rows(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def began(self):
        """When the first step was logged; a run that starts again from scratch logs it again."""
        return self.rows()[0]["time"]

    def assert_finished(self, began=None):
        assert (self.record.status, self.record.steps) == ("finished", 160), self.record.error
        steps = [row["step"] for row in self.rows()]
        assert steps == sorted(steps)
        assert began in (None, self.began())


class Jobs:
    """The jobs of one test, which share a name in SLURM."""

    def __init__(self, processes, wait_for, tiny, tiny_config):
        self.processes, self.wait_for, self.tiny_config = processes, wait_for, tiny_config
        self.recipe = [*tiny, *RECIPE]
        self.name = f"rpr-test-{uuid4().hex[:8]}"

    def start(self, *arguments):
        """Start a command that submits its runs as jobs."""
        return self.processes.start(*arguments, BY_SLURM, f"hydra.launcher.name={self.name}")

    def train(self, *words):
        given = {word.partition("=")[0] for word in words}
        recipe = [word for word in self.recipe if word.partition("=")[0] not in given]  # nothing is given twice
        return self.start("train", "-m", *recipe, *words)

    def run(self, *words):
        """The run with these overrides."""
        config = self.tiny_config(*RECIPE, *words)
        return Run(Path(config.runs_dir).absolute() / config.run_dir_name)

    def queued(self, field="%i"):
        """A field of each job that has not ended: its id, its state (%T), its nodes (%N)."""
        return output_of("squeue", "--array", "--noheader", f"--name={self.name}", f"--format={field}").split()

    def restart(self):
        """Start the requeued job."""
        assert self.wait_for(lambda: self.queued("%T") == ["PENDING"], 60), self.queued("%T")
        output_of("scontrol", "update", f"JobId={self.queued()[0]}", "StartTime=now")
        assert self.wait_for(lambda: self.queued("%T") == ["RUNNING"], 60), self.queued("%r")


@pytest.fixture
def jobs(processes, wait_for, tiny, tiny_config, small_data):
    if not two_nodes():
        pytest.skip("no SLURM of two nodes answers sinfo")
    jobs = Jobs(processes, wait_for, tiny, tiny_config)
    yield jobs
    output_of("scancel", "--quiet", f"--name={jobs.name}")
    for line in output_of("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines():
        node, state = line.split()
        if state.startswith(("drain", "down")):
            output_of("scontrol", "update", f"NodeName={node}", "State=resume")
    assert wait_for(lambda: not jobs.queued(), 60)


def finish(process, seconds=150):
    """The exit code and stderr, without tracebacks or messages of submitit."""
    err = process.communicate(timeout=seconds)[1].decode()
    assert "Traceback" not in err and "sacct" not in err and "submitit WARNING" not in err, err
    return process.returncode, err


@pytest.mark.parametrize("node_fails", [False, True], ids=["requeued", "node failed"])
def test_requeued_job_resumes_and_that_of_a_failed_node_on_another(jobs, wait_for, node_fails):
    run, process = jobs.run(), jobs.train()
    assert wait_for(lambda: run.step() >= 30, 120)
    began = run.began()
    if node_fails:
        (node,) = jobs.queued("%N")
        output_of("scontrol", "update", f"NodeName={node}", "State=drain", "Reason=test")
        reached = run.step()
        assert wait_for(lambda: run.step() > reached, 60)  # a drained node lets its jobs end
        output_of("scontrol", "update", f"NodeName={node}", "State=down", "Reason=test")
    else:
        output_of("scontrol", "requeue", *jobs.queued())
    jobs.restart()
    assert not node_fails or jobs.queued("%N") != [node]
    assert finish(process)[0] == 0
    run.assert_finished(began)


def test_timed_out_job_is_requeued_up_to_limit(jobs, wait_for):
    run = jobs.run(ENDLESS)
    limits = ["hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=5", "hydra.launcher.max_num_timeout=1"]
    process = jobs.train(ENDLESS, *limits)
    assert wait_for(lambda: jobs.queued("%T") == ["RUNNING"], 30)
    assert wait_for(lambda: jobs.queued("%T") == ["PENDING"], 90)
    reached, began = run.step(), run.began()
    assert reached > 0 and run.record.status == "interrupted"
    jobs.restart()
    code, err = finish(process)
    assert code == 1 and "the SLURM time limit was reached" in err
    assert run.step() >= reached and run.began() == began  # it may make no progress in so short a time
    assert run.record.status == "interrupted"
    assert run.record.error.startswith("the SLURM time limit was reached")


def test_sweep_repeated_after_kill_trains_no_job_twice(jobs, tmp_path, wait_for):
    """The first job is running when the command is killed; the second is in SLURM's queue, and is submitted again."""
    runs = [jobs.run(f"seed={seed}") for seed in (1, 2)]
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"overrides": jobs.recipe, "jobs": ["seed=1,2"]}))
    command = ["sweep", str(file), "hydra.launcher.array_parallelism=1"]
    process = jobs.start(*command)
    assert wait_for(lambda: runs[0].step() >= 30, 120)
    began = runs[0].began()
    process.kill()
    process.communicate()
    code, err = finish(jobs.start(*command))
    assert "sweep mine: 2 jobs: 1 new, 1 running\n" in err
    assert code == 0 or "the sweep is incomplete: 1 of its jobs is running in another process" in err
    assert wait_for(lambda: not jobs.queued(), 120)
    assert finish(jobs.start(*command)) == (0, "sweep mine: 2 jobs: 2 finished\n" * 2)
    for run, first in zip(runs, (began, None), strict=True):
        run.assert_finished(first)

"""Checked here: every file of sweeps/ reads, expands, and each of its jobs composes and validates; every complaint
about a file that is no sweep; how the end of a sweep tells what has no result, and the exit code; one name for several
jobs, and finished runs of another name.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from rpr.compose import composition
from rpr.config.train import TrainConfig
from rpr.errors import ConfigError, InterruptedRun, RunError
from rpr.records.record import Record, write_record
from rpr.runs.locks import acquire
from rpr.sweep import spec, status


def jobs(name: str, *overrides: str) -> list[list[str]]:
    plan = spec.read(name)
    return [job for row in plan.rows for job in composition.expand_multirun([*plan.overrides, *row, *overrides])]


@pytest.mark.parametrize("name", sorted(spec.available()))
def test_every_job_of_every_sweep_validates_and_is_another_run(name: str) -> None:
    plan = spec.read(name)
    assert plan.name == name and plan.description and "\n" not in plan.description
    ids = {}
    listed = jobs(name)
    for job, made in zip(listed, composition.compose_train_jobs(listed), strict=True):
        assert "sweep" not in {override.split("=")[0] for override in job}  # the file's name is the sweep's
        assert made.run_id not in ids, f"{job} is the same run as {ids[made.run_id]}"
        ids[made.run_id] = job
    assert len(ids) > 1


def test_the_quick_sweep_by_hand() -> None:
    rows = [
        (made.position.name, made.position.clip_distance if made.position.relative else None)
        for made in composition.compose_train_jobs(jobs("quick"))
    ]
    assert rows == [("absolute", None), ("none", None), *[("relative", k) for k in (0, 1, 2, 4, 16)]]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("overrides:\njobs:\n  - position=none,absolute seed=1,2\n  - name='two words' optim.max_steps=5\n")
    plan = spec.read(str(file))
    assert (plan.name, plan.description, plan.overrides) == ("mine", "", ())
    assert plan.rows == (("position=none,absolute", "seed=1,2"), ("name=two words", "optim.max_steps=5"))
    assert len(jobs(str(file))) == 5
    assert len(jobs(str(file), "data.synthetic.seed=1,2,3")) == 15


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.yaml", "jobs: [seed=1]\nrows: []", r"a sweep has the keys description, overrides and jobs \(a list"),
        ("a.yaml", "- seed=1", r"a\.yaml: a sweep has the keys"),
        ("a.yaml", "", r"a\.yaml: a sweep has the keys"),
        ("a.yaml", "description: x", r"a\.yaml: a sweep has the keys"),
        ("a.yaml", "jobs: seed=1", r"a\.yaml: a sweep has the keys"),
        ("a.yaml", "jobs: []", r"a\.yaml: overrides and jobs must be lists of strings, e\.g\. .*, and jobs not empty"),
        ("a.yaml", "jobs: [{seed: 1}]", r"a\.yaml: overrides and jobs must be lists of strings"),
        ("a.yaml", "jobs: [3]", r"a\.yaml: overrides and jobs must be lists of strings"),
        ("a.yaml", "overrides: [3]\njobs: [seed=1]", r"a\.yaml: overrides and jobs must be lists of strings"),
        ("a.yaml", "overrides: seed=1\njobs: [seed=1]", r"a\.yaml: overrides and jobs must be lists of strings"),
        ("a.yaml", 'jobs: ["name=\'x"]', r"a\.yaml: unclosed quotation mark"),
        ("a.yaml", "jobs: [", r"a\.yaml: cannot be read as a sweep \(while parsing"),
        ("a.yaml", None, r"a\.yaml: cannot be read as a sweep \(.*No such file"),
        ("a b.yaml", "jobs: [seed=1]", r"the sweep is named after its file; use letters, digits, '\.', '_' and '-'"),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        spec.read(str(file))
    assert "\n" not in str(refusal.value)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"^sweep: no such sweep 'qick'; did you mean quick\? \(available: .*quick"):
        spec.read("qick")


@cache
def configured(*words: str) -> TrainConfig:
    return composition.compose_train(list(words))


def written(*words: str, status: str, error: str | None = None) -> Path:
    """The folder of a run with such a record, in `runs/`."""
    config = configured(*words)
    given: dict[str, Any] = {
        "name": config.label, "run_id": config.run_id, "status": status, "error": error, "command": "rpr-cli train",
        "config": config.model_dump(mode="json"), "git": {"commit": None, "dirty": None}, "versions": {},
        "device": "cpu", "hardware": "cpu", "seed": config.seed, "started": "2026-01-01T00:00:00+00:00",
        "finished": None, "steps": None, "parameters": None, "data": None, "training": None, "wandb": None,
    }  # fmt: skip
    folder = Path(config.runs_dir) / config.run_dir_name
    write_record(folder / "record.json", Record.model_validate(given))
    return folder


def books(*seeds: int) -> status.SweepStatus:
    return status.load_status("mine", [((f"seed={seed}",), configured(f"seed={seed}")) for seed in seeds])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_a_sweep_with_a_job_that_is_another_process_s_is_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    written("seed=1", status="finished")
    others = [written(f"seed={seed}", status="running") for seed in (2, 3)]
    with acquire(others[0]) as lock:
        with acquire(others[1]):
            assert status.print_summary(books(1, 2, 3), {}) == 1
            err = capsys.readouterr().err
            assert "sweep mine: 3 jobs: 1 finished, 2 running in another process\n" in err
            assert err.splitlines()[-1].startswith(
                "  the sweep is incomplete: 2 of its jobs are running in another process; "
            )
        written("seed=3", status="finished")
        assert status.print_summary(books(1, 2, 3), {}) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"rpr-cli: {others[0].name}: in use by {lock.holder}",
            "sweep mine: 3 jobs: 2 finished, 1 running in another process",
            "  the sweep is incomplete: 1 of its jobs is running in another process; rerun the command "
            "later to check again",
        ]
    written("seed=2", status="finished")
    assert status.print_summary(books(1, 2, 3), {}) == 0
    assert capsys.readouterr().err == "sweep mine: 3 jobs: 3 finished\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "problem, told",
    [
        (None, "step 7: the gradient is not finite"),  # left as it was
        (
            RunError("step 9: the gradient is not finite"),
            "step 9: the gradient is not finite",
        ),  # in the record as well, usually
        (
            RunError("hardware: 1xgpu needs a GPU"),
            "hardware: 1xgpu needs a GPU",
        ),  # refused before its record was begun again
        (InterruptedRun("SIGKILL"), "step 7: the gradient is not finite"),  # by now it is the error of this try
    ],
)
def test_why_a_job_that_failed_before_has_no_result(
    capsys: pytest.CaptureFixture[str], problem: RunError | None, told: str
) -> None:
    failed = written("seed=1", status="failed", error="step 7: the gradient is not finite")
    assert status.print_summary(books(1, 2), {} if problem is None else {("seed=1",): problem}) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"rpr-cli: failed: {failed.name}: {told}"
    assert lines[2] == f"rpr-cli: failed: {configured('seed=2').run_dir_name}: never started"
    assert lines[-2:] == [
        "sweep mine: 2 jobs: 1 never started, 1 failed",
        "  retry_failed=true runs failed jobs again, from their last checkpoint",
    ]


@pytest.mark.usefixtures("here")
def test_one_name_for_several_jobs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("jobs: [name=one seed=1, name=two seed=2]")
    assert app.main(["sweep", "mine.yaml", "name=foo"]) == 2
    assert capsys.readouterr().err == (
        "rpr-cli: name: foo would be shared by 2 of the 2 jobs, but run names must be unique; leave name out to "
        "name each job after its settings\n"
    )
    assert app.main(["sweep", "mine.yaml", "name=foo", "seed=1", "--dry-run"]) == 0  # two rows, and one run
    with pytest.raises(ConfigError, match="name: foo would be shared by 2 of the 3 jobs"):
        status.load_status(
            "mine", [((), configured(*words)) for words in (("name=foo",), ("seed=2",), ("name=foo", "seed=3"))]
        )
    assert os.listdir() == ["mine.yaml"]


@pytest.mark.usefixtures("here")
def test_a_finished_run_of_another_name_is_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    written("seed=1", "name=bar", status="finished")
    written("seed=2", status="running")
    Path("mine.yaml").write_text("jobs: [name=foo seed=1, name=foo2 seed=2]")
    assert app.main(["sweep", "mine.yaml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# 1 of 2, finished: ") and lines[2].startswith("# 2 of 2, new: ")

"""Checked here: every file of sweeps/ reads, expands, and each of its jobs composes and validates; every complaint
about a file that is no sweep.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rpr import app
from rpr.commands import sweep
from rpr.config import TrainConfig
from rpr.errors import ConfigError
from rpr.sections import validated


def jobs(name: str, *overrides: str) -> list[list[str]]:
    plan = sweep.read(name)
    return [job for row in plan.rows for job in app.expand([*plan.overrides, *row, *overrides])]


@pytest.mark.parametrize("name", sorted(sweep.available()))
def test_every_job_of_every_sweep_validates_and_is_another_run(name: str) -> None:
    plan = sweep.read(name)
    assert plan.name == name and plan.description and "\n" not in plan.description
    ids = {}
    for job in jobs(name):
        assert "sweep" not in {override.split("=")[0] for override in job}  # the file's name is the sweep's
        made = validated(TrainConfig, app.compose("train", job))
        assert made.run_id not in ids, f"{job} is the same run as {ids[made.run_id]}"
        ids[made.run_id] = job
    assert len(ids) > 1


def test_the_quick_sweep_by_hand() -> None:
    rows = [
        (made.position.name, made.position.clip_distance if made.position.relative else None)
        for made in (validated(TrainConfig, app.compose("train", job)) for job in jobs("quick"))
    ]
    assert rows == [("absolute", None), ("none", None), *[("relative", k) for k in (0, 1, 2, 4, 16)]]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("overrides:\njobs:\n  - position=none,absolute seed=1,2\n  - name='two words' optim.max_steps=5\n")
    plan = sweep.read(str(file))
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
        ("a.yaml", "jobs: []", r"a\.yaml: overrides and jobs are lists of text, e\.g\. .*; jobs is not empty"),
        ("a.yaml", "jobs: [{seed: 1}]", r"a\.yaml: overrides and jobs are lists of text"),
        ("a.yaml", "jobs: [3]", r"a\.yaml: overrides and jobs are lists of text"),
        ("a.yaml", "overrides: [3]\njobs: [seed=1]", r"a\.yaml: overrides and jobs are lists of text"),
        ("a.yaml", "overrides: seed=1\njobs: [seed=1]", r"a\.yaml: overrides and jobs are lists of text"),
        ("a.yaml", 'jobs: ["name=\'x"]', r"a\.yaml: a quotation mark is left open"),
        ("a.yaml", "jobs: [", r"a\.yaml: cannot be read as a sweep \(while parsing"),
        ("a.yaml", None, r"a\.yaml: cannot be read as a sweep \(.*No such file"),
        ("a b.yaml", "jobs: [seed=1]", r"the file's name is the sweep's; use letters, digits, '\.', '_' and '-'"),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message) as refusal:
        sweep.read(str(file))
    assert "\n" not in str(refusal.value)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"^sweep: no such sweep 'qick'; did you mean quick\? \(available: .*quick"):
        sweep.read("qick")

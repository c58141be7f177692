"""Checked here: a sweep as a file for W&B runs the very jobs of the sweep, one `rpr-cli train` for each, no multirun.
What an agent makes of the file is taken down by a program that stands where rpr-cli would, and composed again; the
marked test does so with the real `wandb sweep` and `wandb agent` against a small server, the others with the agent's
rule for parameters (a word of its own for each, name=value), which that test confirms.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rpr.cli.positionals import to_overrides
from rpr.compose import composition
from rpr.sweep import spec
from rpr.sweep.wandb_yaml import wandb_sweep
from tests.tracking.fake_wandb import FakeWandb

RECORDER = '#!/bin/sh\nprintf \'%s\\0\' "$@" > "$RECORDED/$$"\n'
# Values that a shell, YAML or the agent could read for something else.
AWKWARD = (
    "data=multi30k_en_de",
    "data.path='/data/my corpus, it\\'s (here) $HOME `a` \"b\"'",
    "logger.tags=[a,'b c']",
    "optim.average_checkpoints=1",
)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """Puts a recorder in the place of rpr-cli; gives the words of each time that it was called since the last look."""
    folder, programs = tmp_path / "recorded", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    (programs / "rpr-cli").write_text(RECORDER)
    (programs / "rpr-cli").chmod(0o755)
    monkeypatch.setenv("RECORDED", str(folder))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def take() -> list[list[str]]:
        paths = sorted(folder.iterdir())
        words = [path.read_text().split("\0")[:-1] for path in paths]
        for path in paths:
            path.unlink()
        return words

    return take


def jobs_of(name: str, *overrides: str) -> list[list[str]]:
    """The jobs of a named sweep, as `rpr-cli sweep` expands them."""
    plan = spec.read(name)
    rows = [[*plan.overrides, *row, *overrides, f"sweep={name}"] for row in plan.rows]
    return [job for row in rows for job in composition.expand_multirun(row)]


def points(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each point of the grid, its values as JSON carries them to an agent."""
    values = {name: parameter["values"] for name, parameter in document["parameters"].items()}
    for chosen in itertools.product(*values.values()):
        point: dict[str, Any] = json.loads(json.dumps(dict(zip(values, chosen, strict=True))))
        yield point


def run_points(text: str) -> None:
    """What agents do: the command for each point, its parameters in the place that the command has for them."""
    document = yaml.safe_load(text)
    for point in points(document):
        given = [f"{name}={value}" for name, value in point.items()]
        command = [part for word in document["command"] for part in (given if word == "${args_no_hyphens}" else [word])]
        subprocess.run(command, check=True)


def as_configured(runs: Sequence[Sequence[str]]) -> list[str]:
    """The whole configuration of each, its name and sweep included, in an order of their own; and their identities."""
    configs = [composition.compose_train(to_overrides("train", list(words))) for words in runs]
    return sorted(f"{config.run_id} {config.model_dump_json()}" for config in configs)


@pytest.mark.parametrize("name, overrides, parameters", [
    ("table1", [], {"model": 2, "data": 2, "position": 2}),
    ("table3", ["seed=1,2"], {"position": 4, "seed": 2}),
    ("quick", ["logger.tags=[a,'b c']"], {"job": 4}),
])  # fmt: skip
def test_the_named_sweeps(
    name: str, overrides: list[str], parameters: dict[str, int], recorded: Callable[[], list[list[str]]]
) -> None:
    jobs = jobs_of(name, *overrides)
    text = wandb_sweep(jobs, name, "what it asks", "ours")
    document = yaml.safe_load(text)
    assert {key: len(one["values"]) for key, one in document["parameters"].items()} == parameters
    assert {key: document[key] for key in ("name", "description", "project", "method", "program")} == {
        "name": name, "description": "what it asks", "project": "ours", "method": "grid", "program": "rpr-cli",
    }  # fmt: skip
    run_points(text)
    calls = recorded()
    assert len(calls) == len(jobs) and {words[0] for words in calls} == {"train"}
    assert as_configured([words[1:] for words in calls]) == as_configured(jobs)


@pytest.mark.parametrize("row, kind", [
    # Null stays null: an agent would make None of it.
    (["optim.ema_decay=null,0.999", "evaluation.matmul_precision=highest,null"], "grid"),
    (["optim.learning_rate_scale=0.5,1.0,2e-1,3"], "grid"),
    (["evaluation.test_splits=[test],[validation,test]", "name='x',null"], "grid"),
    (["data.max_length=30,40", "++seed=3,4"], "job"),  # W&B has no names such as ++seed
    (["seed=5"], "job"),
])  # fmt: skip
def test_awkward_values(row: list[str], kind: str, recorded: Callable[[], list[list[str]]]) -> None:
    jobs = composition.expand_multirun([*AWKWARD, *row])
    text = wandb_sweep(jobs, "mine", "it's: a {test}", "rpr")
    parameters = yaml.safe_load(text)["parameters"]
    assert list(parameters) == (["job"] if kind == "job" else [word.partition("=")[0] for word in row])
    run_points(text)
    calls = recorded()
    assert len(calls) == len(jobs)
    assert as_configured([words[1:] for words in calls]) == as_configured(jobs)
    made = [composition.compose_train(to_overrides("train", words[1:])) for words in calls]
    assert all(str(config.data.path).endswith('it\'s (here) $HOME `a` "b"') for config in made)


def test_numbers_are_numbers_and_words_are_words() -> None:
    jobs = [[f"seed={seed}", f"a={word}"] for seed in ("1", "10", "007") for word in ("0.5", "1e-3", "true", "nan")]
    parameters = yaml.safe_load(wandb_sweep(jobs, "mine", "", "rpr"))["parameters"]
    assert parameters == {"seed": {"values": [1, 10, "007"]}, "a": {"values": [0.5, "1e-3", "true", "nan"]}}


@pytest.mark.parametrize("jobs, parameters", [
    ([["a=1", "b=1"], ["a=2", "b=1"]], {"a": [1, 2]}),
    ([["b=1", "a=1"], ["a=2", "b=1"]], {"a": [1, 2]}),
    ([["a=1", "b=1"], ["a=1", "b=2"], ["a=2", "b=1"]], {"job": ["a=1 b=1", "a=1 b=2", "a=2 b=1"]}),  # no corner
    ([["a=1"], ["a=2"], ["a=1"]], {"a": [1, 2]}),  # once is enough
    ([["a=1", "c=1"], ["a=2", "c=1", "b=1"]], {"job": ["a=1", "a=2 b=1"]}),
    ([["a=1", "a.b=2"], ["a={b: 3}", "a.b=2"]], {"job": ["a=1 a.b=2", "'a={b: 3}' a.b=2"]}),
    ([["~a", "b=1"], ["~a", "b=2"]], {"b": [1, 2]}),
    ([["a=1", "a=2"], ["a=1", "a=3"]], {"job": ["a=1 a=2", "a=1 a=3"]}),  # the last one counts
])  # fmt: skip
def test_what_is_a_product(jobs: list[list[str]], parameters: dict[str, list[Any]]) -> None:
    document = yaml.safe_load(wandb_sweep(jobs, "mine", "", "rpr"))
    assert {name: one["values"] for name, one in document["parameters"].items()} == parameters


@pytest.mark.slow
def test_the_real_agent_runs_the_jobs(
    recorded: Callable[[], list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for jobs in (
        jobs_of("table1"),
        composition.expand_multirun(
            [*AWKWARD, "optim.ema_decay=null,0.999", "optim.learning_rate_scale=0.5,1.0,2e-1,3"]
        ),
    ):
        text = wandb_sweep(jobs, "mine", "what it asks", "ours")
        (tmp_path / "sweep.yaml").write_text(text)
        run_points(text)
        expected = recorded()
        with FakeWandb() as server:
            environment = {**os.environ, **server.environment()}
            run = {"env": environment, "cwd": tmp_path, "timeout": 120, "check": True}
            made = subprocess.run(
                [sys.executable, "-m", "wandb", "sweep", "sweep.yaml"], capture_output=True, text=True, **run
            )
            agent = re.search(r"wandb agent (\S+)", made.stdout + made.stderr)
            assert agent is not None and agent[1].endswith("ours/s1")
            assert server.sweep == yaml.safe_load(text)
            subprocess.run([sys.executable, "-m", "wandb", "agent", "--count", str(len(jobs)), agent[1]], **run)
        calls = recorded()
        assert sorted(map(sorted, calls)) == sorted(map(sorted, expected)) and len(calls) == len(jobs)
        assert as_configured([words[1:] for words in calls]) == as_configured(jobs)

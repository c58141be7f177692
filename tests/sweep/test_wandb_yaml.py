"""A sweep as a file for W&B: an agent runs the same jobs. A fake rpr-cli records the commands that the agent's own
function makes of the parameters, and they are composed again.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from rpr.cli.positionals import to_overrides
from rpr.compose import composition
from rpr.sweep import spec
from rpr.sweep.wandb_yaml import wandb_sweep

RECORDER = '#!/bin/sh\nprintf \'%s\\0\' "$@" > "$RECORDED/$$"\n'
# Values that a shell, YAML or the agent could misread.
AWKWARD = (
    "data=multi30k_en_de",
    "data.path='/data/my corpus, it\\'s (here) $HOME `a` \"b\"'",
    "logger.tags=[a,'b c']",
    "optim.average_checkpoints=1",
)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """Replace rpr-cli by a recorder; the arguments of its calls since the last time."""
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
    rows = [[*row, *overrides, f"sweep={name}"] for row in plan.rows]
    return [job for row in rows for job in composition.expand_multirun(row)]


def points(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each point of the grid, with values that went through JSON, as an agent gets them."""
    values = {name: parameter["values"] for name, parameter in document["parameters"].items()}
    for chosen in itertools.product(*values.values()):
        point: dict[str, Any] = json.loads(json.dumps(dict(zip(values, chosen, strict=True))))
        yield point


def run_points(text: str) -> None:
    """Run the command of each point, as an agent does."""
    document = yaml.safe_load(text)
    for point in points(document):
        given = create_sweep_command_args({"args": {name: {"value": value} for name, value in point.items()}})
        lists = {f"${{{name}}}": words for name, words in given.items()}
        subprocess.run([part for word in document["command"] for part in lists.get(word, [word])], check=True)


def configurations(runs: Sequence[Sequence[str]]) -> list[str]:
    """The run ids and whole configurations, sorted."""
    configs = [composition.compose_train(to_overrides("train", list(words))) for words in runs]
    return sorted(f"{config.run_id} {config.model_dump_json()}" for config in configs)


@pytest.mark.parametrize("name, overrides, parameters", [
    ("table1", [], {"model": 2, "data": 2, "position": 2}),
    ("table3", ["seed=1,2"], {"position": 4, "seed": 2}),
    ("quick", ["logger.tags=[a,'b c']"], {"job": 4}),
    # An agent would turn null into None.
    (None, ["optim.ema_decay=null,0.999", "evaluation.matmul_precision=highest,null"],
     {"optim.ema_decay": 2, "evaluation.matmul_precision": 2}),
    (None, ["optim.learning_rate_scale=0.5,1.0,2e-1,3"], {"optim.learning_rate_scale": 4}),
    (None, ["evaluation.test_splits=[test],[validation,test]", "name='x',null"],
     {"evaluation.test_splits": 2, "name": 2}),
    (None, ["data.max_length=30,40", "++seed=3,4"], {"job": 4}),  # W&B has no names such as ++seed
    (None, ["seed=5"], {"job": 1}),
])  # fmt: skip
def test_agent_runs_the_jobs(
    name: str | None, overrides: list[str], parameters: dict[str, int], recorded: Callable[[], list[list[str]]]
) -> None:
    """The jobs of a named sweep, or with values that need quoting."""
    jobs = composition.expand_multirun([*AWKWARD, *overrides]) if name is None else jobs_of(name, *overrides)
    text = wandb_sweep(jobs, name or "mine", "it's: a {test}", "ours")
    document = yaml.safe_load(text)
    assert {key: len(one["values"]) for key, one in document["parameters"].items()} == parameters
    assert {key: document[key] for key in ("name", "description", "project", "method", "program")} == {
        "name": name or "mine", "description": "it's: a {test}", "project": "ours", "method": "grid",
        "program": "rpr-cli",
    }  # fmt: skip
    run_points(text)
    calls = recorded()
    assert len(calls) == len(jobs) and {words[0] for words in calls} == {"train"}
    assert configurations([words[1:] for words in calls]) == configurations(jobs)
    assert name or all("it's (here) $HOME `a` " in configuration for configuration in configurations(jobs))


@pytest.mark.parametrize("jobs, parameters", [
    ([["a=1", "b=1"], ["a=2", "b=1"]], {"a": [1, 2]}),
    ([["b=1", "a=1"], ["a=2", "b=1"]], {"a": [1, 2]}),
    ([["a=1", "b=1"], ["a=1", "b=2"], ["a=2", "b=1"]], {"job": ["a=1 b=1", "a=1 b=2", "a=2 b=1"]}),  # no full grid
    ([["a=1"], ["a=2"], ["a=1"]], {"a": [1, 2]}),
    ([["a=1", "c=1"], ["a=2", "c=1", "b=1"]], {"job": ["a=1", "a=2 b=1"]}),
    ([["a=1", "a.b=2"], ["a={b: 3}", "a.b=2"]], {"job": ["a=1 a.b=2", "'a={b: 3}' a.b=2"]}),
    ([["~a", "b=1"], ["~a", "b=2"]], {"b": [1, 2]}),
    ([[f"seed={seed}", f"a={word}"] for seed in ("1", "10", "007") for word in ("0.5", "1e-3", "true", "nan")],
     {"seed": [1, 10, "007"], "a": [0.5, "1e-3", "true", "nan"]}),  # only plain numbers become numbers
    ([["a=1", "a=2"], ["a=1", "a=3"]], {"job": ["a=1 a=2", "a=1 a=3"]}),  # the last one counts
])  # fmt: skip
def test_parameters_of_the_grid(jobs: list[list[str]], parameters: dict[str, list[Any]]) -> None:
    document = yaml.safe_load(wandb_sweep(jobs, "mine", "", "rpr"))
    assert {name: one["values"] for name, one in document["parameters"].items()} == parameters

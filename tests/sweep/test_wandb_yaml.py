"""A sweep as a file for W&B: the commands that an agent's own function makes of its parameters compose to the jobs."""

import json

import pytest
import yaml

from rpr.cli.positionals import to_overrides
from rpr.compose import composition
from rpr.sweep import spec

# Values that a shell, YAML or the agent could misread.
AWKWARD = (
    "data=multi30k_en_de",
    "data.path='/data/my corpus, it\\'s (here) $HOME `a` \"b\"'",
    "logger.tags=[a,'b c']",
    "optim.average_checkpoints=1",
)


def jobs_of(name, *overrides):
    """The jobs of a named sweep, as `rpr-cli sweep` expands them."""
    plan = spec.read(name)
    rows = [[*row, *overrides, f"sweep={name}"] for row in plan.rows]
    return [job for row in rows for job in composition.expand_multirun(row)]


def commands_of(document):
    """The command of each point of the grid, as an agent starts it, which gets values that went through JSON."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args  # takes a second

    for job in json.loads(json.dumps(document["parameters"]["job"]["values"])):
        given = create_sweep_command_args({"args": {"job": {"value": job}}})
        lists = {f"${{{name}}}": words for name, words in given.items()}
        yield [part for word in document["command"] for part in lists.get(word, [word])]


def configurations(runs):
    """The run ids and whole configurations, sorted."""
    configs = [composition.compose_train(to_overrides("train", list(words))) for words in runs]
    return sorted(f"{config.run_id} {config.model_dump_json()}" for config in configs)


@pytest.mark.parametrize("name, overrides", [
    ("quick", ["logger.tags=[a,'b c']"]),
    (None, ["optim.ema_decay=null,0.999", "optim.learning_rate_scale=0.5,1.0,2e-1,3"]),
    (None, ["evaluation.test_splits=[test],[validation,test]", "name='x',null"]),
    (None, ["data.max_length=30,40", "++seed=3,4"]),
])  # fmt: skip
def test_agent_runs_the_jobs(name, overrides):
    """The jobs of a named sweep, or with values that need quoting."""
    jobs = composition.expand_multirun([*AWKWARD, *overrides]) if name is None else jobs_of(name, *overrides)
    text = spec.wandb_sweep(spec.SweepSpec(name or "mine", "it's: a {test}", ()), jobs, "ours")
    document = yaml.safe_load(text)
    assert {key: document[key] for key in ("name", "description", "project", "method", "program")} == {
        "name": name or "mine", "description": "it's: a {test}", "project": "ours", "method": "grid",
        "program": "rpr-cli",
    }  # fmt: skip
    calls = [*commands_of(document)]
    assert len(calls) == len(jobs) and {tuple(words[:2]) for words in calls} == {("rpr-cli", "train")}
    assert configurations([words[2:] for words in calls]) == configurations(jobs)
    assert name or all("it's (here) $HOME `a` " in configuration for configuration in configurations(jobs))

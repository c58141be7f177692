"""A sweep as a file for `wandb sweep`: W&B agents then run its jobs, on any number of machines."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import yaml

PROGRAM = ("rpr-cli", "train")
GIVEN = "${args_no_hyphens}"  # where an agent inserts each parameter as a word of its own, name=value
JOB = "job"  # the only parameter: rpr-cli train splits job='...' as a shell would


def wandb_sweep(jobs: Sequence[Sequence[str]], name: str, description: str, project: str) -> str:
    """The YAML text of a W&B sweep in which each run is one of the jobs, none a multirun: a grid over one parameter,
    whose values are the overrides of a job. Single settings as parameters would not say all jobs: an agent turns null
    into None, and rows of a sweep are not always a full grid.

    Args:
        jobs: the overrides of each job (at least one), as `rpr-cli train` takes them.
        project: the W&B project of the sweep and its runs.
    """
    assert jobs, "a sweep has a job"
    document = {
        "program": PROGRAM[0],
        "project": project,
        "name": name,
        "description": description,
        "method": "grid",
        "command": [*PROGRAM, GIVEN],
        "parameters": {JOB: {"values": list(dict.fromkeys(map(shlex.join, jobs)))}},
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=math.inf)
    return text

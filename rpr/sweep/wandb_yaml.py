"""A sweep as a file for `wandb sweep`: W&B agents then run its jobs, on any number of machines."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

PROGRAM = ("rpr-cli", "train")
GIVEN = "${args_no_hyphens}"  # where an agent inserts each parameter as a word of its own, name=value
JOB = "job"  # the parameter for whole jobs that are no grid; rpr-cli train splits job='...' as a shell would
NAME = re.compile(r"[A-Za-z_][\w.]*")  # settings that can be parameters; not Hydra's +key, ~key and group@package


def wandb_sweep(jobs: Sequence[Sequence[str]], name: str, description: str, project: str) -> str:
    """The YAML text of a W&B sweep in which each run is one of the jobs, none a multirun.

    Jobs that are the full product of some settings' values become a grid over these settings; others a grid over one
    parameter, `job`, whose values are their overrides. Overrides that all jobs share are part of the command. Values
    are words of the command line, so that null stays null; numbers are numbers, so that W&B can order them.

    Args:
        jobs: the overrides of each job (at least one), as `rpr-cli train` takes them.
        project: the W&B project of the sweep and its runs.
    """
    assert jobs, "a sweep has a job"
    order_counts = any(_order_counts(job) for job in jobs)
    varying = None if order_counts else _product(jobs)
    parameters: dict[str, list[Any]]
    if varying is None:
        movable = [] if order_counts or len(jobs) == 1 else jobs[0]
        common = [word for word in movable if all(word in job for job in jobs)]
        own = dict.fromkeys(shlex.join(word for word in job if word not in common) for job in jobs)
        parameters, command = {JOB: list(own)}, [*PROGRAM, GIVEN, *common]
    else:
        parameters = {key: [_number(value) for value in values] for key, values in varying.items()}
        command = [*PROGRAM, GIVEN, *(word for word in jobs[0] if _key(word) not in varying)]
    document = {
        "program": PROGRAM[0],
        "project": project,
        "name": name,
        "description": description,
        "method": "grid",
        "command": command,
        "parameters": {key: {"values": values} for key, values in parameters.items()},
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=math.inf)
    return text


def _product(jobs: Sequence[Sequence[str]]) -> dict[str, list[str]] | None:
    """The values of each setting that varies, if the jobs are their full product; None if not, or if nothing varies."""
    pairs = [{_key(word): word.partition("=")[2] for word in job} for job in jobs]
    if any(pair.keys() != pairs[0].keys() for pair in pairs):
        return None
    values = {key: list(dict.fromkeys(pair[key] for pair in pairs)) for key in pairs[0]}
    varying = {key: options for key, options in values.items() if len(options) > 1}
    if not varying or not all(NAME.fullmatch(key) for key in varying):
        return None
    distinct = {tuple(pair[key] for key in varying) for pair in pairs}
    return varying if len(distinct) == math.prod(len(options) for options in varying.values()) else None


def _order_counts(job: Sequence[str]) -> bool:
    """Whether the order of its overrides may matter: a setting occurs twice, or a whole section is set at once."""
    return len({_key(word) for word in job}) < len(job) or any(word.partition("=")[2].startswith("{") for word in job)


def _key(word: str) -> str:
    return word.partition("=")[0]


def _number(value: str) -> int | float | str:
    """A word as a number if Python, and so the agent, would write it the same way; else the word."""
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if math.isfinite(number) and str(number) == value:
            return number
    return value

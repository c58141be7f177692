"""rpr-cli sweep and rpr-cli train -m: compose and check all jobs, then run them on this machine, or in SLURM."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpr import environment
from rpr.compose.composition import (
    compose_train,
    expand_multirun,
    is_hydra_override,
    override_key,
    recorded_command,
    train_command,
)
from rpr.errors import ConfigError, RunError
from rpr.io.escape import note
from rpr.sweep import spec
from rpr.validation import validate

_OWN = {"jobs": None, "gpus": None, "retry_failed": False}  # settings of a sweep, not of its jobs


def run(arguments: list[str]) -> int:
    """`rpr-cli sweep NAME|FILE [settings]`; returns the exit code. Raises ConfigError, DataError or RecordError for
    invalid input, before the first job starts.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(spec.usage())
        return 0 if arguments else 2
    name, *rest = sorted(arguments, key=lambda word: word.startswith("-"))  # flags may come first
    sweep = spec.read(name)
    flags = {word for word in rest if word.startswith("-")}
    if unknown := flags - {"--dry-run"}:
        raise ConfigError(f"sweep: unknown flag {min(unknown)}; give settings or --dry-run")
    overrides = [word for word in rest if word not in flags]
    keys = [override_key(word) for row in sweep.rows for word in row]
    if "sweep" in {*map(override_key, overrides), *keys}:
        raise ConfigError("sweep: cannot be set, as a sweep is named after its file; copy the file to another name")
    # A file may come from someone else, and the settings of SLURM's jobs take shell commands.
    if key := next((key for key in keys if "hydra" in re.split(r"\W", key)), None):
        rule = "a sweep's file cannot configure Hydra itself, since that can run code"
        raise ConfigError(f"{name}: {key}: {rule}; type it after the sweep's name, or choose hardware=...")
    return _run(sweep, overrides, dry_run=bool(flags))


def run_multirun(overrides: Sequence[str], config_dir: Path | None) -> int:
    """`rpr-cli train -m ...`: a sweep without a file, with one row of overrides. Its name is sweep=NAME, or derived
    from its overrides, so that the same command again is the same sweep. Returns and raises as `run`.
    """
    name = next((word.partition("=")[2].strip("'\"") for word in overrides if override_key(word) == "sweep"), None)
    row = [word for word in overrides if override_key(word) != "sweep"]
    if name is None:
        settings = sorted(word for word in row if override_key(word) not in _OWN and not is_hydra_override(word))
        name = "multirun-" + hashlib.sha256("\0".join(settings).encode()).hexdigest()[:8]
    return _run(spec.SweepSpec(name, "", ((),)), row, config_dir)


def _run(sweep: spec.SweepSpec, typed: Sequence[str], config_dir: Path | None = None, *, dry_run: bool = False) -> int:
    from rpr.runs import runtime
    from rpr.scoring.metrics import check_tokenizer
    from rpr.sweep import pool, slurm, status

    # 1. Compose every job, and read how far it is.
    own: dict[str, Any] = {key: word.partition("=")[2] for word in typed if (key := override_key(word)) in _OWN}
    gpus = own["gpus"].strip("[]").split(",") if "gpus" in own else ()
    options = validate(pool.Options, {**_OWN, **own, "gpus": gpus})
    hydra = [word for word in typed if is_hydra_override(word)]
    overrides = [word for word in typed if word not in hydra and override_key(word) not in _OWN]
    rows: Sequence[Sequence[str]] = sweep.rows
    if sweep.by_size:
        first = expand_multirun([*_selected_rows(rows, overrides)[0], f"sweep={sweep.name}"])[0]
        by_size, line = spec.settings_by_size(sweep.by_size, compose_train(first, config_dir).data, overrides)
        rows = [[*row, *by_size] for row in rows]
        print(f"{sweep.name}: {line}", file=sys.stderr)
    jobs = [job for row in _selected_rows(rows, overrides) for job in expand_multirun([*row, f"sweep={sweep.name}"])]
    made = [(job, compose_train(job, config_dir)) for job in jobs]
    if same := set.intersection(*(set(config.without_effect(job)) for job, config in made)):
        note(f"without effect on these runs: {', '.join(sorted(same))}")
    environment.hide_foreign()
    hardware = [config.hardware for _, config in made]
    options = options.for_jobs(hardware)
    asked = slurm.request(jobs[0], hydra, hardware, config_dir)
    if asked and {"jobs", "gpus"} & own.keys():
        raise ConfigError("jobs and gpus: SLURM decides what runs at a time; give hydra.launcher.array_parallelism=")
    words = ("-m", *hydra) if asked else ()
    listed = [status.new_job(job, config, train_command([*words, *job], config_dir)) for job, config in made]
    before = status.load_status(sweep.name, listed)
    unfinished = [job.config for job in before if job.state != "finished"]
    status.print_cautions(unfinished)
    if dry_run:
        print("\n".join(status.commands(before)))
        return 0
    # 2. Check what the jobs need, before the first one starts.
    for config in unfinished:
        check_tokenizer(config)
        config.logger.check_installed()
    for machine in {config.hardware for config in unfinished} if not asked else ():
        runtime.check_devices(machine)
    executor = slurm.executor(asked) if asked else None

    def launch(todo: Sequence[status.Job]) -> Mapping[tuple[str, ...], RunError]:
        commands = [recorded_command(job.overrides, config_dir) for job in todo]
        if executor is None:
            return pool.run(todo, commands, options, sweep.name)
        return slurm.run(todo, commands, executor)

    # 3. fast_dev_run=true tries each job out and records nothing.
    if any(job.config.fast_dev_run for job in before):
        failed = launch(before)
        for job_words, error in failed.items():
            note(f"{' '.join(job_words)}: {error}")
        if executor is not None:
            print(f"what each job will cost is in {executor.folder.parent}/*/*_log.out")
        return 1 if failed else 0
    # 4. Launch those that are to run.
    problems: Mapping[tuple[str, ...], RunError] = {}
    if todo := status.prepare_launch(sweep.name, before, retry_failed=options.retry_failed):
        with status.followed(sweep.name, todo):
            problems = launch(todo)
    return status.print_summary(sweep.name, before, problems)


def _selected_rows(rows: Sequence[Sequence[str]], overrides: Sequence[str]) -> list[list[str]]:
    """The rows to run, each with the overrides: `data=reverse` selects the rows with data=reverse, if there are any,
    each with its own recipe; `position=rope,none` takes each value from the rows that have it. An override that no row
    has applies to all rows instead. Raises ConfigError if no row has what all overrides select.
    """
    typed = {override_key(word): word for word in overrides}
    stated = [{override_key(word): word for word in row} for row in rows]
    known = {key: {value for row in stated if key in row for value in _values(row[key])} for key in typed}
    selecting = [key for key, word in typed.items() if known[key] & {*_values(word)}]
    selected = []
    for row in stated:
        chosen = row | typed
        for key in (key for key in selecting if key in row):
            own, given = _values(row[key]), _values(typed[key])
            kept = [value for value in given if value in own or value not in known[key]]
            chosen[key] = f"{typed[key].partition('=')[0]}={','.join(kept)}" if {*own} & {*given} else ""
        if all(chosen.values()):
            selected.append([*chosen.values()])
    if not selected:
        joined = " and ".join(typed[key] for key in selecting)
        raise ConfigError(f"{joined}: no row of the sweep has them together; give one of them, or write your own sweep")
    return selected


def _values(override: str) -> list[str]:
    value = override.partition("=")[2]
    return [value] if set(value) & set("([{'\"") else value.split(",")

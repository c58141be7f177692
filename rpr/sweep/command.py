"""rpr-cli sweep and rpr-cli train -m: compose and check all jobs, then run them with one of Hydra's launchers."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpr import environment
from rpr.compose.composition import compose_train, expand_multirun, is_hydra_override, override_key
from rpr.errors import ConfigError, Problem, RunError
from rpr.io.escape import note
from rpr.model.positions import of_user
from rpr.sweep import spec
from rpr.sweep.gpus import Options, parse_gpus

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.train import TrainConfig


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
    of_file = [override_key(word) for row in sweep.rows for word in row]
    if "sweep" in {*map(override_key, overrides), *of_file}:
        raise ConfigError("sweep: cannot be set, as a sweep is named after its file; copy the file to another name")
    for key in of_file:  # which may come from someone else: Hydra's launchers take shell commands
        if "hydra" in re.split(r"\W", key):
            raise ConfigError(
                f"{name}: {key}: a sweep's file cannot configure Hydra itself, since that can run code; "
                "type it after the sweep's name, or choose hardware=..."
            )
    return _run(sweep, overrides, dry_run=bool(flags))


def run_multirun(overrides: Sequence[str], config_dir: Path | None) -> int:
    """`rpr-cli train -m ...`: a sweep without a file, with one row of overrides. Its name is sweep=NAME, or derived
    from its overrides, so that the same command again is the same sweep. Returns and raises as `run`.
    """
    name = next((word.partition("=")[2].strip("'\"") for word in overrides if override_key(word) == "sweep"), None)
    row = [word for word in overrides if override_key(word) != "sweep"]
    if name is None:
        settings = sorted(word for word in _split_settings(row)[0] if not is_hydra_override(word))
        name = "multirun-" + hashlib.sha256("\0".join(settings).encode()).hexdigest()[:8]
    spec.check_name(name, f"sweep: {name!r} is not a valid sweep name")
    return _run(spec.SweepSpec(name, "", ((),)), row, config_dir)


def _run(
    sweep: spec.SweepSpec, settings: Sequence[str], config_dir: Path | None = None, *, dry_run: bool = False
) -> int:
    from rpr.scoring.metrics import check_tokenizer
    from rpr.sweep import status
    from rpr.sweep.launcher import Launcher
    from rpr.sweep.progress import SweepProgress

    # 1. Compose every job, and read how far it is.
    spec.reject_repeated(settings)
    settings, options, retry_failed = _split_settings(settings)
    overrides = [word for word in settings if not is_hydra_override(word)]
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
    options = options.with_jobs_of([config.hardware for _, config in made])
    before = status.load_status(sweep.name, made)
    unfinished = [job.config for job in before if job.state != "finished"]
    status.print_cautions(unfinished)
    launcher = Launcher(jobs, settings, options, config_dir)
    if dry_run:
        print("\n".join(status.commands(before, launcher.words, config_dir)))
        if launcher.request:
            print(f"# each in a SLURM job of its own: {launcher.request}; one that is interrupted or requeued resumes")
        return 0
    # 2. Check what the jobs need, before the first one starts.
    for config in unfinished:
        check_tokenizer(config)
        config.logger.check_installed()
    _check_hooks_of_users(unfinished)
    launcher.check_machine({config.hardware for config in unfinished})
    # 3. fast_dev_run=true tries each job out and records nothing.
    if any(job.config.fast_dev_run for job in before):
        failed = launcher.run(before, sweep.name)
        for job_words, error in failed.items():
            note(f"{' '.join(job_words)}: {error}")
        if launcher.logs:
            print(f"what each job will cost is in {launcher.logs}")
        return 1 if failed else 0
    # 4. Launch those that are to run.
    problems: Mapping[tuple[str, ...], RunError] = {}
    if todo := status.prepare_launch(sweep.name, before, retry_failed=retry_failed):
        with SweepProgress(sweep.name, todo):
            problems = launcher.run(todo, sweep.name)
    return status.print_summary(sweep.name, before, problems, launcher.words, config_dir)


def _check_hooks_of_users(configs: Sequence[TrainConfig]) -> None:
    """Try the hooks of schemes that are not rpr's own, which its tests try, before any job starts."""
    tried = {repr(site): site for config in configs for site in config.sites}
    of_users = [site for site in tried.values() if any(map(of_user, site[0].parts))]
    if of_users:
        from rpr.model.scheme_check import check_hooks  # torch

        for site in of_users:
            check_hooks(*site)


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
        raise ConfigError(
            f"{' and '.join(typed[key] for key in selecting)}: no row of the sweep has them together; give one of "
            "them, or write a sweep of your own"
        )
    return selected


def _values(override: str) -> list[str]:
    """The values of an override such as seed=1,2; lists and functions count as one."""
    value = override.partition("=")[2]
    return [value] if set(value) & set("([{'\"") else value.split(",")


def _split_settings(settings: Sequence[str]) -> tuple[list[str], Options, bool]:
    """The settings of the jobs, the launch options, and whether failed jobs are retried; raises ConfigError."""
    known = ("jobs", "gpus", "retry_failed")
    own = {override_key(word): word.partition("=")[2] for word in settings if override_key(word) in known}
    if own.get("retry_failed", "true") not in ("true", "false"):
        raise ConfigError(Problem("retry_failed", own["retry_failed"], "expected true or false"))
    jobs = own.get("jobs", "1")
    if not (jobs.isdecimal() and int(jobs) > 0):
        raise ConfigError(Problem("jobs", jobs, "expected the number of jobs to run at a time", "e.g. jobs=2"))
    options = Options(int(jobs) if "jobs" in own else None, parse_gpus(own["gpus"]) if "gpus" in own else ())
    return [word for word in settings if override_key(word) not in known], options, own.get("retry_failed") == "true"

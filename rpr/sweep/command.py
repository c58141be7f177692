"""rpr-cli sweep and rpr-cli train -m: jobs composed and checked, then run by one of Hydra's launchers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rpr.compose.composition import expand, key_of, trainings
from rpr.errors import ConfigError, RunError
from rpr.sweep import launcher, spec


def prints(arguments: list[str]) -> bool:
    """Whether the command's result is what it prints: help, a dry run, a file for W&B."""
    return not arguments or any(word in ("-h", "--help", *spec.FLAGS) for word in arguments)


def run(arguments: list[str]) -> int:
    """`rpr-cli sweep NAME|FILE [settings]`; returns the exit code.

    Raises:
        ConfigError, DataError, RecordError: what is wrong is reported before the first job starts.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(spec.usage())
        return 0 if arguments else 2
    plan = spec.read(arguments[0])
    flags = {word for word in arguments[1:] if word.startswith("-")}
    if unknown := flags - {*spec.FLAGS}:
        raise ConfigError(
            f"sweep: {min(unknown)} is no flag of sweep; give settings (data=..., seed=1,2), --dry-run or --wandb-yaml"
        )
    of_file = [word for words in (plan.overrides, *plan.rows) for word in words]
    words = [word for word in arguments[1:] if word not in flags]
    if "sweep" in {key_of(word) for word in (*words, *of_file)}:
        raise ConfigError("sweep: a sweep is called as its file is; copy the file under the name that it is to have")
    _refuse_hydras(of_file, arguments[0])
    return _run(plan, words, flags)


def run_multirun(overrides: Sequence[str], config_dir: Path | None) -> int:
    """`rpr-cli train -m ...`: a sweep without a file, with one row of overrides. It is called sweep=NAME, or after its
    overrides, so that the same command again is the same sweep. Returns the exit code.

    Raises:
        ConfigError, DataError, RecordError: as `run`.
    """
    name = next((word.partition("=")[2] for word in overrides if key_of(word) == "sweep"), None)
    row = tuple(word for word in overrides if key_of(word) != "sweep")
    if name is None:
        name = "multirun-" + hashlib.sha256("\0".join(sorted(row)).encode()).hexdigest()[:8]
    return _run(spec.Plan(name, "", (), ((),)), list(row), set(), config_dir)


def _run(plan: spec.Plan, words: Sequence[str], flags: set[str], config_dir: Path | None = None) -> int:
    """Compose and check every job; then print them (--dry-run, --wandb-yaml), or launch those that are not finished."""
    from rpr.sweep import status
    from rpr.sweep.progress import SweepProgress

    words, options, retry_failed = _sweep_words(words)
    overrides = [word for word in words if not launcher.is_hydras(word)]
    given = {key_of(override) for override in overrides}
    jobs = [
        job
        for row in plan.rows
        for job in expand(
            [*(word for word in (*plan.overrides, *row) if key_of(word) not in given), *overrides, f"sweep={plan.name}"]
        )
    ]
    made = list(zip(jobs, trainings(jobs, config_dir), strict=True))
    options = options.sharing([config.hardware for _, config in made])
    launcher_words = launcher.launcher_words(words, options)
    if "--wandb-yaml" in flags:
        from rpr.sweep.wandb_yaml import wandb_sweep

        print(wandb_sweep(jobs, plan.name, plan.description, made[0][1].logger.project), end="")
        return 0
    books = status.opened(plan.name, made)
    if "--dry-run" in flags:
        print("\n".join(status.commands(books)))
        return 0
    engine = launcher.Launcher(jobs, launcher_words, config_dir)
    if engine.here:
        status.check_devices(books)
    todo = status.begun(books, retry_failed=retry_failed, num_jobs=options.jobs or 1)
    problems: Mapping[tuple[str, ...], RunError] = {}
    if todo:
        with SweepProgress(plan.name, todo):
            problems = engine.run([job.overrides for job in todo], options, plan.name)
    return status.told(books, problems)


def _refuse_hydras(words: list[str], file: str) -> None:
    """A sweep's file may be another person's. Hydra's launchers take commands of a shell for what they start, and
    variables of its environment, by which a Python can be told to run any code.
    """
    for word in words:
        if "hydra" in re.split(r"\W", key_of(word)):
            raise ConfigError(
                f"{file}: {key_of(word)}: what is said about Hydra itself is not taken from a sweep's file, as it can "
                "run code; type it behind the sweep's name, or choose hardware=..."
            )


def _sweep_words(words: Sequence[str]) -> tuple[list[str], launcher.Options, bool]:
    """The settings of the jobs, how they are launched, and whether what failed is run again.

    Raises:
        ConfigError: a word of sweep's own has a value that it cannot have.
    """
    known = {key_of(word) for word in spec.SETTINGS}
    own = {key_of(word): word.partition("=")[2] for word in words if key_of(word) in known}
    if own.get("retry_failed", "true") not in ("true", "false"):
        raise ConfigError(f"retry_failed: invalid value {own['retry_failed']!r}: expected true or false")
    num_jobs = own.get("jobs")
    if num_jobs is not None and not (num_jobs.isdecimal() and int(num_jobs) > 0):
        raise ConfigError(f"jobs: invalid value {num_jobs!r}: expected how many jobs run at a time, e.g. jobs=2")
    jobs_per_gpu = own.get("jobs_per_gpu", "1")
    if not (jobs_per_gpu.isdecimal() and int(jobs_per_gpu) > 0):
        raise ConfigError(
            f"jobs_per_gpu: invalid value {jobs_per_gpu!r}: expected how many jobs share one GPU, e.g. jobs_per_gpu=4"
        )
    gpus: tuple[str, ...] = ()
    if "gpus" in own:
        from rpr.sweep.gpus import named

        gpus = named(own["gpus"])
    options = launcher.Options(None if num_jobs is None else int(num_jobs), gpus, int(jobs_per_gpu))
    return [word for word in words if key_of(word) not in own], options, own.get("retry_failed") == "true"

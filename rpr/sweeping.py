"""A sweep from its file, and what is typed behind its name, to the launcher and to the books of what became of it. Its
jobs are runs of train, which one of Hydra's launchers starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rpr import completion, multirun, streams
from rpr.composition import expand, key_of, trainings
from rpr.errors import ConfigError, RunError


def run(arguments: list[str]) -> int:
    """`rpr-cli sweep NAME|FILE [settings]`; returns the exit code.

    Raises:
        ConfigError, DataError, RecordError: what is told before the first job starts.
    """
    from rpr.commands import sweep
    from rpr.commands.sweep_progress import SweepProgress

    asked = not arguments or any(word in ("-h", "--help", *completion.SWEEP_FLAGS) for word in arguments)
    streams.settle_stdout("sweep", needed=asked)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(sweep.usage())
        return 0 if arguments else 2
    plan = sweep.read(arguments[0])
    flags = {word for word in arguments[1:] if word.startswith("-")}
    if unknown := flags - {*completion.SWEEP_FLAGS}:
        raise ConfigError(
            f"sweep: {min(unknown)} is no flag of sweep; give settings (data=..., seed=1,2), --dry-run or --wandb-yaml"
        )
    words, options, retry_failed = _sweep_words([word for word in arguments[1:] if word not in flags])
    overrides = [word for word in words if not multirun.is_hydras(word)]
    given = {key_of(override) for override in overrides}
    if "sweep" in given | {key_of(word) for words in (plan.overrides, *plan.rows) for word in words}:
        raise ConfigError("sweep: a sweep is called as its file is; copy the file under the name that it is to have")
    jobs = [
        job
        for row in plan.rows
        for job in expand(
            [*(word for word in (*plan.overrides, *row) if key_of(word) not in given), *overrides, f"sweep={plan.name}"]
        )
    ]
    for job in jobs:  # what its file says about Hydra
        multirun.check("train", job, many=False, config_dir=None)
    _refuse_hydras([word for words in (plan.overrides, *plan.rows) for word in words], arguments[0])
    made = list(zip(jobs, trainings(jobs), strict=True))
    options = options.sharing([config.hardware for _, config in made])
    launcher_words = multirun.launcher_words(words, options)
    if "--wandb-yaml" in flags:
        from rpr.commands.wandb_sweep import wandb_sweep

        print(wandb_sweep(jobs, plan.name, plan.description, made[0][1].logger.project), end="")
        return 0
    books = sweep.opened(plan.name, made)
    if "--dry-run" in flags:
        print("\n".join(sweep.commands(books)))
        return 0
    launcher = multirun.Launcher(jobs, launcher_words)
    if launcher.here:
        sweep.check_devices(books)
    todo = sweep.begun(books, retry_failed=retry_failed, at_once=options.at_once or 1)
    problems: Mapping[tuple[str, ...], RunError] = {}
    if todo:
        with SweepProgress(plan.name, todo):
            problems = launcher.run([job.overrides for job in todo], options, plan.name)
    return sweep.told(books, problems)


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


def _sweep_words(words: list[str]) -> tuple[list[str], multirun.Options, bool]:
    """The settings of the jobs, how they are launched, and whether what failed is run again.

    Raises:
        ConfigError: a word of sweep's own has a value that it cannot have.
    """
    known = {key_of(word) for word in completion.SWEEP_WORDS}
    own = {key_of(word): word.partition("=")[2] for word in words if key_of(word) in known}
    if own.get("retry", "failed") != "failed":
        raise ConfigError(f"retry: {own['retry']!r} is refused; retry=failed runs again what failed")
    at_once = own.get("at_once")
    if at_once is not None and not (at_once.isdecimal() and int(at_once) > 0):
        raise ConfigError(f"at_once: {at_once!r} is refused; give the number of jobs to run at a time, e.g. at_once=2")
    gpus: tuple[str, ...] = ()
    if "gpus" in own:
        from rpr.runs.gpus import named

        gpus = named(own["gpus"])
    options = multirun.Options(None if at_once is None else int(at_once), gpus)
    return [word for word in words if key_of(word) not in own], options, "retry" in own

"""The command line: argv -> sub-command -> Hydra -> typed configuration -> rpr.commands."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rpr import __version__, completion, multirun, slurm, streams, sweeping
from rpr.composition import compose, expand, key_of, one_line, plain, refuse_ways_out, training, trainings
from rpr.errors import ConfigError, RunError, did_you_mean
from rpr.signals import SIGTERM_EXIT, exit_on_sigterm
from rpr.words import settings_of

INTERRUPTED = "rpr-cli: interrupted"
GOES_ON = "; the same command again goes on from the last checkpoint"
RESUMABLE = ("train", "sweep", "rerun")
WRITE_FILES = ("train", "sweep", "rerun", "prepare", "export")  # what they print besides can do without a reader


class Command(NamedTuple):
    """A sub-command: what it is for, and its typed configuration in rpr.config or rpr.command_config."""

    purpose: str
    config: str


class Failure(NamedTuple):
    """A job that ended with an error."""

    command: str
    error: Exception


COMMANDS = {
    "train": Command(
        "train one run and score it: model= position= data= optim= hardware= logger=; -m sweeps; run=... goes on",
        "TrainConfig",
    ),
    "sweep": Command(
        "run a named sweep of sweeps/ or a file of your own: rpr-cli sweep quick [--dry-run]", "TrainConfig"
    ),
    "report": Command(
        "tables beside the paper's, plots and one HTML page; run=runs/...: what its positions learned", "ReportConfig"
    ),
    "evaluate": Command("translate and score a trained run again: run=runs/...", "EvaluateConfig"),
    "translate": Command("translate stdin, or a file, line by line: run=runs/... [-- IN [OUT]]", "TranslateConfig"),
    "compare": Command("which run is better, and how surely: compare RUN RUN ..., or sweep=...", "CompareConfig"),
    "export": Command("a run as a folder for CTranslate2, or as safetensors: run=runs/... format=...", "ExportConfig"),
    "rerun": Command("repeat a run from its record, and say whether it came out the same: rerun RUN", "RerunConfig"),
    "diff": Command("what differs between two runs: diff RUN_A RUN_B", "DiffConfig"),
    "dashboard": Command("a saved report in W&B that compares runs: sweep=...", "DashboardConfig"),
    "verify": Command("check a trained run: caching, padding, shifts, exports: run=runs/...", "VerifyConfig"),
    "prepare": Command("corpus -> vocabulary -> token cache, ahead of training: data=...", "PrepareConfig"),
    "bench": Command("steps/s of the position variants, side by side", "BenchConfig"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 a job failed, 2 the input is at fault."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.hold()
    # Large tensors in huge pages, where Linux offers them: a CPU step touches fresh memory every time. Read by torch at
    # its first allocation, and inherited by the processes of a sweep.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # Hydra's own re-runs of sys.argv, and torchrun -m rpr.app, name the command this way.
    name = arguments[0].removeprefix("--config-name=") if arguments else "--help"
    code = 0
    try:
        code = _answer(name, arguments[1:])
        streams.write_out()
        return code if arguments else 2
    except KeyboardInterrupt:
        print(INTERRUPTED + (GOES_ON if name in RESUMABLE else ""), file=sys.stderr)
        return 130
    except SystemExit as stop:
        if stop.code == SIGTERM_EXIT and name in RESUMABLE:
            print(INTERRUPTED + GOES_ON, file=sys.stderr)
        raise
    except BrokenPipeError:  # `rpr-cli report | head`
        return code
    except Exception as error:
        if os.environ.get("RPR_DEBUG"):
            raise
        message = one_line(error, _kind(name)) if name in COMMANDS else one_line(error)
        if message is None:
            raise
        print(f"rpr-cli: {message}", file=sys.stderr)
        return 2
    finally:
        streams.let_go_of_stdout()


def _answer(name: str, arguments: list[str]) -> int:
    """The exit code of one command, or of a question to the command line itself."""
    if name in ("-h", "--help", "--version", "-sc"):
        streams.settle_stdout(name, needed=True)
    if name in ("-h", "--help"):
        print(_usage())
    elif name == "--version":
        print(f"rpr-cli {__version__}")
    elif name == "-sc":
        completion.answer(arguments, COMMANDS)
    elif name == "sweep":
        with exit_on_sigterm():
            return sweeping.run(arguments)
    elif name in COMMANDS:
        return _run(name, settings_of(name, arguments))
    else:
        raise ConfigError(f"no such command {name!r}" + did_you_mean(name, COMMANDS))
    return 0


def _usage() -> str:
    lines = ["usage: rpr-cli COMMAND [setting=value ...] [Hydra flags]", ""]
    lines += [f"  {name:<10} {command.purpose}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "`rpr-cli COMMAND --help` lists the groups and settings; `--cfg job` shows the composed configuration.",
    ]
    return "\n".join(lines)


def _run(name: str, arguments: list[str]) -> int:
    """One sub-command through hydra.main: overrides, -m, --cfg, --info and --help are Hydra's own."""
    flags = _flags(name, arguments)
    overrides = flags.overrides
    asked = bool(flags.cfg or flags.info or flags.help or flags.hydra_help)
    if asked or name != "translate":  # which may have output=...
        streams.settle_stdout(name, needed=asked or name not in WRITE_FILES)
    if flags.multirun and not flags.config_dir:  # another search path: each job is checked when it starts
        trainings(expand(overrides))  # every job is checked before the first starts
    if name == "train" and any(key_of(override) == "run" for override in overrides):
        return _resume(arguments)
    if flags.package:
        _refuse_absent(flags.package, compose(name, overrides))
    if not (flags.help or flags.hydra_help):
        multirun.check(flags.config_name or name, overrides, many=flags.multirun, config_dir=flags.config_dir)
    failures: list[Failure] = []
    if flags.multirun:
        _multirun(arguments, failures)
        return _told(failures)
    if asked:
        _ask_hydra(name, arguments)
        return 0
    _hydra(name, arguments, _task(name, failures))
    if failures:
        raise failures[0].error
    return 0


def _flags(name: str, arguments: list[str]) -> Any:
    """The words taken apart into Hydra's flags and overrides.

    Raises:
        ConfigError: a flag that there is not, or that goes with no other that is given, or that would run code.
    """
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise ConfigError(
            f"{name}: {message}; settings are words like key=value, and rpr-cli {name} --hydra-help lists the flags"
        )

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]  # argparse would print several lines, and end the process
    flags = parser.parse_args(arguments)
    if flags.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun: a pickle may run code when it is read; rpr-cli rerun RUN repeats a run"
        )
    if flags.shell_completion:
        raise ConfigError("-sc: stands alone, before any command; rpr-cli -sc install=bash prints what bash is to do")
    if flags.config_path is not None:
        raise ConfigError("--config-path: every default stands in our conf/; --config-dir=FOLDER adds choices to it")
    shown = [flag for flag in ("cfg", "info", "help", "hydra_help") if getattr(flags, flag)]
    if flags.multirun and shown:
        raise ConfigError("-m: goes with none of --cfg, --info, --help; look at one job without -m")
    if flags.multirun and name != "train":
        raise ConfigError(f"-m: {name} is one command, not a sweep; -m goes with train")
    if len(shown) > 1:
        refuse(f"{' and '.join('--' + flag.replace('_', '-') for flag in shown)} are two questions")
    if (flags.resolve or flags.package) and not (flags.cfg or flags.help):
        refuse("--resolve and --package go with --cfg")
    refuse_ways_out(flags.overrides)
    return flags


def _refuse_absent(package: str, settings: Any) -> None:
    """Hydra would end the process over a part that there is not."""
    for part in package.split(".") if package != "_global_" else []:
        if not isinstance(settings, dict) or part not in settings:
            raise ConfigError(
                f"--package: no such part {part!r}" + did_you_mean(part, settings if isinstance(settings, dict) else ())
            )
        settings = settings[part]


def _resume(arguments: list[str]) -> int:
    """`rpr-cli train run=FOLDER`: everything else is in the run's record."""
    from rpr.commands import train

    run_dir = arguments[0].partition("=")[2]
    if len(arguments) > 1:
        others = [argument for argument in arguments if key_of(argument) != "run"] or arguments[1:]
        raise ConfigError(
            f"run: {' '.join(others)} cannot be set for a run that goes on as it was begun; "
            "give run=... alone, or a new run's settings without it"
        )
    if not run_dir:
        raise ConfigError("run: no folder is given; give that of a run, e.g. run=runs/NAME-HASH")
    train.resume(Path(run_dir))
    return 0


def _told(failures: list[Failure]) -> int:
    """The exit code of a sweep, after a line for each job that failed."""
    for failure in failures:
        reason = one_line(failure.error) or repr(failure.error)
        print(f"rpr-cli: failed: {failure.command}: {reason}", file=sys.stderr)
    return 1 if failures else 0


def _task(name: str, failures: list[Failure]) -> Callable[[Any], None]:
    """What Hydra runs for each job. Errors are kept instead of raised: Hydra would print its own lines round them."""
    starter = os.getpid()

    def task(settings: Any) -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        hydra = HydraConfig.get()
        many = hydra.mode is not None and hydra.mode.name == "MULTIRUN"
        words: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # as typed: ${...} is for the settings
        overrides = [word for word in map(str, words) if not word.startswith("sweep=")]
        command = shlex.join(["rpr-cli", name, *overrides])
        try:
            values = plain(settings)
            if many and values["sweep"] is None:
                values["sweep"] = Path(hydra.sweep.dir).name
            joblibs = many and "Joblib" in hydra.launcher["_target_"] and os.getpid() != starter
            with multirun.ending_with(starter) if joblibs else contextlib.nullcontext():
                _dispatch(name, values, overrides, own_process=many)
        except Exception as error:
            failure = Failure(command, error)
            if many and "BasicLauncher" not in hydra.launcher["_target_"]:
                _told([failure])  # joblib and submitit run this in other processes, where a list would be lost,
                raise  # and Hydra lets through the first error alone
            failures.append(failure)

    return task


def _dispatch(name: str, settings: dict[str, Any], overrides: Sequence[str], *, own_process: bool) -> None:
    import importlib

    from rpr import sections

    typed = sections.validated(_kind(name), settings)
    module = importlib.import_module(f"rpr.commands.{name}")
    if name == "train":
        module.run(typed, command=shlex.join(["rpr-cli", name, *overrides]), own_process=own_process)
    elif name == "bench":
        positions = {variant: _position(variant, overrides) for variant in typed.variants}
        module.run(typed, positions)
    else:
        module.run(typed)


def _kind(name: str) -> Any:
    """The typed configuration of a sub-command."""
    from rpr import command_config, config

    return getattr(config if COMMANDS[name].config == "TrainConfig" else command_config, COMMANDS[name].config)


def _position(variant: str, overrides: Sequence[str]) -> Any:
    """A choice of conf/position/, as the chosen model fills it."""
    model = [override for override in overrides if key_of(override).partition(".")[0] == "model"]
    return training([*model, f"position={variant}"]).position


def _multirun(arguments: list[str], failures: list[Failure]) -> None:
    try:
        _hydra("train", arguments, _task("train", failures))
    except RunError as error:  # of a job in another process (joblib, submitit), after all of them have run
        failures.append(Failure(shlex.join(["rpr-cli", "train", *arguments]), error))
    except Exception as error:
        if not type(error).__module__.startswith("submitit."):
            raise
        problem = RunError(slurm.in_one_line(error))
        failures.append(Failure(shlex.join(["rpr-cli", "train", *arguments]), problem))


def _ask_hydra(name: str, arguments: list[str]) -> None:
    """--cfg, --info or --help, at whose end Hydra may end the process. What it prints goes out in one piece: it would
    log --info line by line, and tell at each of them that the reader is gone.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            _hydra(name, arguments, lambda settings: None)
    finally:
        # Names with an underscore before them are files that choices inherit from, and no choices.
        streams.write_out(re.sub(r"(?<=: )(_\w+, )+", "", told.getvalue()))


def _hydra(name: str, arguments: list[str], task: Callable[[Any], None]) -> None:
    import hydra

    from rpr.paths import data_dir

    # Hydra would print tracebacks and exit with 1; raised, its errors become one line and exit code 2 here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before = sys.argv
    sys.argv = [before[0], f"--config-name={name}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(data_dir("conf")))(task)()
    except OSError as error:  # of Hydra's own folders; a task keeps its errors
        if error.errno is None:  # a choice that there is not is one, too
            raise
        raise ConfigError(
            f"runs_dir: {error.filename} cannot be written ({error.strerror}); choose another runs_dir=..., and leave "
            "hydra.run.dir and hydra.sweep.dir as they are"
        ) from None
    finally:
        sys.argv = before


if __name__ == "__main__":
    sys.exit(main())

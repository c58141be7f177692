"""The command line: argv -> sub-command -> Hydra -> typed configuration -> rpr.commands."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rpr import environment
from rpr.cli.positionals import take_schemes_dir, to_overrides
from rpr.compose import hydra_bridge
from rpr.compose.composition import (
    as_yaml,
    compose,
    compose_train,
    is_hydra_override,
    override_key,
    recorded_command,
)
from rpr.compose.messages import format_user_error
from rpr.errors import ConfigError, RprError, did_you_mean
from rpr.io import stdio
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.signals import SIGTERM_EXIT, exit_on_sigterm
from rpr.version import __version__

RESUME_HINT = "; rerun the same command to resume from the last checkpoint, if any"
RESUMABLE = ("train", "sweep", "rerun")

COMMANDS = {  # with their purpose
    "train": "train and score one run: model= position= data= optim= hardware= logger=; -m: multirun; run=DIR: resume",
    "sweep": "run a sweep from sweeps/, or from a YAML file of your own: rpr-cli sweep quick [--dry-run]",
    "report": "tables next to the paper's, plots and an HTML page; run=DIR: what that run's positions learned",
    "evaluate": "translate and score a trained run again: evaluate RUN",
    "translate": "translate stdin, or a file, line by line: translate RUN [-- IN [OUT]]",
    "generate": "continue prompts with a decoder-only run: generate RUN [prompt=TEXT], or a prompt per line of stdin",
    "compare": "test which runs differ significantly: compare RUN RUN ..., or sweep=...",
    "export": "export a run as safetensors, for CTranslate2 or transformers: export RUN format=...",
    "rerun": "repeat a run from its record and check that the results are the same: rerun RUN",
    "diff": "show what differs between two runs: diff RUN_A RUN_B",
    "runs": "list the runs of runs_dir=, newest first; remove some: runs remove NAME ...",
    "dashboard": "create a report in W&B that compares runs: sweep=...",
    "verify": "check a trained run: caching, padding, shifts, exports: verify RUN",
    "prepare": "build the vocabulary and token cache of a corpus before training: data=...",
    "bench": "benchmark the position variants: steps/s and memory",
}

_USAGE = [
    "usage: rpr-cli COMMAND [setting=value ...] [Hydra flags]\n",
    *(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items()),
    "\n`rpr-cli COMMAND --help` lists the settings; `--cfg job` (of a sweep: `--dry-run`) prints what they make.",
    "schemes_dir=DIR adds position schemes, choices and sweeps of your own to any command.",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 success, 1 a job failed, 2 invalid input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    stdio.reopen_closed_fds()
    stdio.replace_unencodable()
    stdio.outlive_readers("stderr", *(["stdout"] if {*arguments[:1]} <= {*RESUMABLE} else []))
    environment.set_up()
    # Hydra's own re-runs of sys.argv, and torchrun -m rpr, name the command this way.
    name = arguments[0].removeprefix("--config-name=") if arguments else "--help"
    code = 0
    try:
        _check_names(arguments[: arguments.index("--")] if "--" in arguments else arguments)
        with exit_on_sigterm():
            code = _answer(name, take_schemes_dir(arguments[1:]))
        stdio.flush_stdout()
        return code if arguments else 2
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != SIGTERM_EXIT:
            raise
        note(f"interrupted{RESUME_HINT if name in RESUMABLE else ''}")
        return 130 if isinstance(stop, KeyboardInterrupt) else SIGTERM_EXIT
    except BrokenPipeError:  # `rpr-cli report | head`
        return code
    except Exception as error:
        if os.environ.get("RPR_DEBUG"):
            raise
        # After a scheme that cannot be imported, nor can the class of the configuration.
        own = name in COMMANDS and not isinstance(error, RprError)
        message = format_user_error(error, _config_class(name) if own else None)
        if message is None:
            raise
        note(message)
        return 2
    finally:
        stdio.detach_stdout()


def _check_names(arguments: Sequence[str]) -> None:
    """The current folder must exist, and records hold its name and these words. (Files to translate have any name.)"""
    try:
        for word in (os.getcwd(), *arguments):
            os.fsencode(word).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"the current folder cannot be read ({error.strerror}); change to one that exists") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{word}: not UTF-8, which records cannot hold; rename the file or folder") from None


def _answer(name: str, arguments: list[str]) -> int:
    """A command, --help or --version; returns the exit code."""
    if name in ("-h", "--help"):
        print(*_USAGE, sep="\n")
    elif name == "--version":
        print(f"rpr-cli {__version__}")
    elif name not in COMMANDS:
        raise ConfigError(f"no such command {name!r}" + did_you_mean(name, COMMANDS))
    elif name == "sweep":
        from rpr.sweep import command

        return command.run(arguments)
    else:
        return _run(name, to_overrides(name, arguments))
    return 0


def _run(name: str, arguments: list[str]) -> int:
    """Check the flags and overrides of a command, compose and validate its configuration, and run it."""
    # 1. Flags, and what they ask for instead of a run of the command.
    flags = _parse_flags(name, arguments)
    overrides = flags.overrides
    if name == "train" and any(override_key(word) == "run" for word in overrides):
        environment.hide_foreign()
        _resume(arguments)
        return 0
    config_dir = None if flags.config_dir is None else user_path(flags.config_dir).absolute()
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: {config_dir} is not a directory; give one with choices, e.g. model/mine.yaml")
    if flags.multirun:
        from rpr.sweep import command

        return command.run_multirun(overrides, config_dir)
    config_name = flags.config_name or name
    if flags.help or flags.cfg or flags.info or flags.hydra_help:
        stdio.flush_stdout(_shown(flags, config_name, config_dir))  # at once: Hydra reports a closed pipe at every line
        return 0
    if own := next(filter(is_hydra_override, overrides), None):
        raise ConfigError(f"{override_key(own)}: has no effect on a single {name}; use it with -m")
    # 2. The typed configuration.
    from rpr.validation import validate

    if name == "train":
        from rpr.commands import train

        job = compose_train(overrides, config_dir, config_name)
        if same := job.without_effect(overrides):
            note(f"without effect on this run: {', '.join(same)}")
        environment.hide_foreign()
        train.run(job, command=recorded_command(overrides, config_dir, flags.config_name))
        return 0
    inputs: list[Any] = [validate(_config_class(name), compose(config_name, overrides, config_dir))]
    if name == "bench":
        inputs.append({each: _compose_position(each, overrides, config_dir) for each in inputs[0].variants})
    # 3. The command.
    environment.hide_foreign()
    importlib.import_module(f"rpr.commands.{name}").run(*inputs)
    return 0


def _shown(flags: Any, config_name: str, config_dir: Path | None) -> str:
    """The answer to --help, --cfg, --info or --hydra-help."""
    if flags.help:
        from rpr.cli.help import command_help

        return command_help(config_name, flags.overrides, config_dir)
    if flags.cfg == "job" and not flags.package:
        return as_yaml(config_name, flags.overrides, config_dir, resolve=flags.resolve)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        hydra_bridge.answer(config_name, flags, flags.overrides, config_dir)
    return printed.getvalue()


def _parse_flags(name: str, arguments: list[str]) -> Any:
    """Parse the arguments into Hydra's flags and overrides. Raises ConfigError for an unknown flag, or one that
    does not go with the command.
    """

    def reject(message: str) -> NoReturn:
        raise ConfigError(f"{name}: {message}; write settings as key=value (flags: rpr-cli {name} --hydra-help)")

    if name == "train":
        from rpr.sweep import spec

        settings = () if {"-m", "--multirun"} & {*arguments} else map(override_key, spec.SETTINGS)
        if misplaced := {*spec.FLAGS, *settings} & {*map(override_key, arguments)}:
            raise ConfigError(f"{min(misplaced)}: belongs to rpr-cli sweep; add a sweep, e.g. rpr-cli sweep quick")
    parser = hydra_bridge.flag_parser()
    parser.error = reject  # type: ignore[method-assign]  # argparse would print several lines and end the process
    flags: Any = parser.parse_intermixed_args(arguments)  # settings may stand between flags
    if flags.multirun and (name != "train" or flags.config_name or flags.cfg or flags.info or flags.help):
        raise ConfigError("-m: goes with train alone, without --config-name, --cfg, --info and --help")
    if flags.experimental_rerun or flags.shell_completion or flags.config_path:
        raise ConfigError("--experimental-rerun, --shell-completion and --config-path are Hydra's, not rpr-cli's")
    return flags


def _resume(arguments: list[str]) -> None:
    """`rpr-cli train run=FOLDER`: everything else is in the run's record."""
    from rpr.commands import train

    run_dir = arguments[0].partition("=")[2].strip("'")
    if len(arguments) > 1:
        others = [argument for argument in arguments if override_key(argument) != "run"] or arguments[1:]
        raise ConfigError(
            f"run: {' '.join(others)} cannot be changed when a run is resumed; "
            "give run=... alone, or leave it out to start a new run"
        )
    if not run_dir:
        raise ConfigError("run: no value given; give the folder of a run, e.g. run=runs/NAME-HASH")
    train.resume(user_path(run_dir))


def _config_class(name: str) -> Any:
    """The class of a sub-command's configuration: TrainConfig, or one like ReportConfig of rpr.config.commands."""
    from rpr.config import commands, train

    return train.TrainConfig if name in ("train", "sweep") else getattr(commands, f"{name.capitalize()}Config")


def _compose_position(variant: str, overrides: Sequence[str], config_dir: Path | None) -> Any:
    """The position settings of a choice of position/, with the defaults of the selected model."""
    model = [override for override in overrides if override_key(override).partition(".")[0] == "model"]
    # Any recipe: not every model has one of its own name.
    return compose_train([*model, "data=synthetic", "optim=tiny", f"position={variant}"], config_dir).position

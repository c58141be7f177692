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
from rpr.cli import stdio
from rpr.cli.positionals import take_schemes_dir, to_overrides, whole
from rpr.compose import hydra_bridge, hydra_settings
from rpr.compose.composition import (
    check_choices,
    check_read,
    compose,
    compose_train,
    entries_of_layers,
    override_key,
    recorded_command,
    typed_choices,
)
from rpr.compose.messages import format_user_error
from rpr.errors import ConfigError, RprError, did_you_mean
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
    environment.set_up()
    # Hydra's own re-runs of sys.argv, and torchrun -m rpr, name the command this way.
    name = arguments[0].removeprefix("--config-name=") if arguments else "--help"
    code = 0
    try:
        _check_names(arguments[: arguments.index("--")] if "--" in arguments else arguments)
        if arguments:
            arguments = [name, *take_schemes_dir(arguments[1:])]
        with exit_on_sigterm():
            if name in COMMANDS and name != "sweep":
                code = _run(name, to_overrides(name, arguments[1:]))
            else:
                code = _answer(name, arguments[1:])
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
    """A sweep, or --help, --version or -sc; returns the exit code."""
    if name in ("-h", "--help"):
        print(*_USAGE, sep="\n")
    elif name == "--version":
        print(f"rpr-cli {__version__}")
    elif name == "-sc":
        with contextlib.suppress(ConfigError):  # half typed
            take_schemes_dir(os.environ.get("COMP_LINE", "").split())
        from rpr.cli import completion

        completion.answer(arguments, COMMANDS)
    elif name == "sweep":
        from rpr.sweep import command

        return command.run(whole(arguments))
    else:
        raise ConfigError(f"no such command {name!r}" + did_you_mean(name, COMMANDS))
    return 0


def _run(name: str, arguments: list[str]) -> int:
    """Check the flags and overrides of a command, compose and validate its configuration, and run it."""
    flags = _parse_flags(name, arguments)
    question = bool(flags.cfg or flags.info or flags.help or flags.hydra_help)
    if name == "train" and any(override_key(override) == "run" for override in flags.overrides):
        _resume(arguments)
        return 0
    config_dir = None if flags.config_dir is None else user_path(flags.config_dir).absolute()
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: {config_dir} is not a directory; give one with choices, e.g. model/mine.yaml")
    if flags.multirun:
        from rpr.sweep import command

        return command.run_multirun(flags.overrides, config_dir)
    config_name = flags.config_name or name
    if flags.help:
        from rpr.cli.help import command_help

        print(command_help(config_name, flags.overrides, config_dir))
        return 0
    if flags.package:
        _check_package(flags.package, compose(config_name, flags.overrides, config_dir))
    if not flags.hydra_help:
        hydra_settings.check(config_name, flags.overrides, config_dir)
    if question:
        entries = [] if flags.hydra_help else entries_of_layers(config_name, typed_choices(flags.overrides), config_dir)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            hydra_bridge.answer(config_name, flags, [*entries, *flags.overrides], config_dir)
        stdio.flush_stdout(printed.getvalue())  # at once: Hydra would report a closed pipe at every line
        return 0
    for override in flags.overrides:
        if hydra_settings.is_hydra_override(override) and override_key(override) != "hydra.searchpath":
            raise ConfigError(f"{override_key(override)}: has no effect on a single {name}; use it with -m")
    from rpr.validation import validate

    if name == "train":
        from rpr.commands import train

        job = compose_train(flags.overrides, config_dir, config_name)
        train.run(job, command=recorded_command(flags.overrides, config_dir, flags.config_name))
        return 0
    typed = validate(_config_class(name), compose(config_name, flags.overrides, config_dir))
    check_read(typed.unread(), flags.overrides)
    inputs: list[Any] = [typed]
    if name == "bench":
        inputs.append({each: _compose_position(each, flags.overrides, config_dir) for each in typed.variants})
    importlib.import_module(f"rpr.commands.{name}").run(*inputs)
    return 0


def _parse_flags(name: str, arguments: list[str]) -> Any:
    """Parse the arguments into Hydra's flags and overrides. Raises ConfigError for an unknown flag, flags that cannot
    be combined, or a flag that would run code.
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
    shown = [f"--{flag.replace('_', '-')}" for flag in ("cfg", "info", "help", "hydra_help") if getattr(flags, flag)]
    config_name, printed = flags.config_name is not None, flags.cfg or flags.help
    for given, refusal in (
        (flags.experimental_rerun is not None, "--experimental-rerun: a pickle can run code; use rpr-cli rerun RUN"),
        (flags.shell_completion, "-sc: cannot follow a command; rpr-cli -sc install=bash prints the code for bash"),
        (flags.config_path is not None, "--config-path: cannot replace conf/; add choices with --config-dir"),
        (flags.multirun and shown, "-m: cannot be combined with --cfg, --info or --help; inspect one job without -m"),
        (flags.multirun and name != "train", f"-m: {name} cannot be swept; -m goes with train"),
        (flags.multirun and config_name, "-m: cannot be combined with --config-name; use settings, as model=mine"),
        (len(shown) > 1, f"{name}: {' and '.join(shown)} cannot be combined"),
        (flags.run and (flags.cfg or flags.info), f"{name}: --run cannot be combined with --cfg or --info"),
        ((flags.resolve or flags.package) and not printed, f"{name}: --resolve and --package require --cfg"),
    ):
        if given:
            raise ConfigError(refusal)
    check_choices(flags.overrides)
    return flags


def _check_package(package: str, settings: Any) -> None:
    """Check that --package names a part of the configuration: Hydra would end the process if it does not exist."""
    for part in package.split(".") if package != "_global_" else []:
        if not isinstance(settings, dict) or part not in settings:
            raise ConfigError(
                f"--package: no such part {part!r}" + did_you_mean(part, settings if isinstance(settings, dict) else ())
            )
        settings = settings[part]


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

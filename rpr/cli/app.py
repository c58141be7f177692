"""The command line: argv -> sub-command -> Hydra -> typed configuration -> rpr.commands."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rpr import __version__
from rpr.cli import stdio
from rpr.cli.positionals import settings_of
from rpr.compose import hydra_bridge
from rpr.compose.composition import compose, key_of, refuse_ways_out, training
from rpr.compose.messages import one_line
from rpr.errors import ConfigError, did_you_mean
from rpr.signals import SIGTERM_EXIT, exit_on_sigterm
from rpr.sweep import launcher

INTERRUPTED = "rpr-cli: interrupted"
GOES_ON = "; the same command again goes on from the last checkpoint"
RESUMABLE = ("train", "sweep", "rerun")
WRITE_FILES = ("train", "sweep", "rerun", "prepare", "export")  # what they print besides can do without a reader


class Command(NamedTuple):
    """A sub-command: what it is for, and its typed configuration in rpr.config.train or rpr.config.commands."""

    purpose: str
    config: str


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
    stdio.hold()
    # Large tensors in huge pages, where Linux offers them: a CPU step touches fresh memory every time. Read by torch at
    # its first allocation, and inherited by the processes of a sweep.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # Hydra's own re-runs of sys.argv, and torchrun -m rpr, name the command this way.
    name = arguments[0].removeprefix("--config-name=") if arguments else "--help"
    code = 0
    try:
        code = _answer(name, arguments[1:])
        stdio.write_out()
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
        stdio.let_go_of_stdout()


def _answer(name: str, arguments: list[str]) -> int:
    """The exit code of one command, or of a question to the command line itself."""
    if name in ("-h", "--help", "--version", "-sc"):
        stdio.settle_stdout(name, needed=True)
    if name in ("-h", "--help"):
        print(_usage())
    elif name == "--version":
        print(f"rpr-cli {__version__}")
    elif name == "-sc":
        from rpr.cli import completion

        completion.answer(arguments, COMMANDS)
    elif name == "sweep":
        from rpr.sweep import command

        stdio.settle_stdout("sweep", needed=command.prints(arguments))
        with exit_on_sigterm():
            return command.run(arguments)
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
    """One command: its flags and overrides checked, its configuration composed and typed, then the command itself."""
    flags = _flags(name, arguments)
    question = bool(flags.cfg or flags.info or flags.help or flags.hydra_help)
    if question or name != "translate":  # which may have output=...
        stdio.settle_stdout(name, needed=question or name not in WRITE_FILES)
    if name == "train" and any(key_of(override) == "run" for override in flags.overrides):
        _resume(arguments)
        return 0
    config_dir = _config_dir(flags.config_dir)
    if flags.multirun:
        from rpr.sweep import command

        with exit_on_sigterm():
            return command.run_multirun(flags.overrides, config_dir)
    config_name = flags.config_name or name
    if flags.package:
        _refuse_absent(flags.package, compose(config_name, flags.overrides, config_dir))
    if not (flags.help or flags.hydra_help):
        launcher.check(config_name, flags.overrides, multirun=False, config_dir=config_dir)
    if question:
        _ask_hydra(name, arguments)
        return 0
    for override in flags.overrides:
        if launcher.is_hydras(override) and key_of(override) != "hydra.searchpath":
            raise ConfigError(f"{key_of(override)}: has no effect on a single {name}; it belongs to a sweep (-m)")
    from rpr.validation import validated

    typed = validated(_kind(name), compose(config_name, flags.overrides, config_dir))
    module = importlib.import_module(f"rpr.commands.{name}")
    if name == "train":
        overrides = [word for word in flags.overrides if key_of(word) != "sweep"]
        module.run(typed, command=shlex.join(["rpr-cli", name, *overrides]))
    elif name == "bench":
        module.run(typed, {variant: _position(variant, flags.overrides) for variant in typed.variants})
    else:
        module.run(typed)
    return 0


def _config_dir(typed: str | None) -> Path | None:
    if typed is None:
        return None
    folder = Path(typed).absolute()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir: {folder} is no folder; give one with choices, e.g. model/mine.yaml in it")
    return folder


def _flags(name: str, arguments: list[str]) -> Any:
    """The words taken apart into Hydra's flags and overrides.

    Raises:
        ConfigError: a flag that there is not, or that goes with no other that is given, or that would run code.
    """

    def refuse(message: str) -> NoReturn:
        raise ConfigError(
            f"{name}: {message}; settings are words like key=value, and rpr-cli {name} --hydra-help lists the flags"
        )

    parser = hydra_bridge.flag_parser()
    parser.error = refuse  # type: ignore[method-assign]  # argparse would print several lines, and end the process
    flags: Any = parser.parse_args(arguments)
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
    if flags.multirun and flags.config_name is not None:
        raise ConfigError("-m: goes with --config-dir, not with --config-name; give choices as settings, model=mine")
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


def _resume(arguments: list[str]) -> None:
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


def _kind(name: str) -> Any:
    """The typed configuration of a sub-command."""
    from rpr.config import commands as commands_config
    from rpr.config import train as config

    return getattr(config if COMMANDS[name].config == "TrainConfig" else commands_config, COMMANDS[name].config)


def _position(variant: str, overrides: Sequence[str]) -> Any:
    """A choice of conf/position/, as the chosen model fills it."""
    model = [override for override in overrides if key_of(override).partition(".")[0] == "model"]
    return training([*model, f"position={variant}"]).position


def _ask_hydra(name: str, arguments: list[str]) -> None:
    """--cfg, --info or --help, at whose end Hydra may end the process. What it prints goes out in one piece: it would
    log --info line by line, and report at each of them that the reader is gone.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            hydra_bridge.answer(name, arguments)
    finally:
        # Names with an underscore before them are files that choices inherit from, and no choices.
        stdio.write_out(re.sub(r"(?<=: )(_\w+, )+", "", printed.getvalue()))


if __name__ == "__main__":
    sys.exit(main())

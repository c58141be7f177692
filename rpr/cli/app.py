"""The command line: argv -> sub-command -> Hydra -> typed configuration -> rpr.commands."""

import argparse
import importlib
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from rpr import environment
from rpr.compose import hydra_bridge
from rpr.compose.composition import (
    as_yaml,
    choices_of,
    compose,
    compose_train,
    is_hydra_override,
    override_key,
    recorded_command,
)
from rpr.compose.hydra_bridge import quote_text
from rpr.compose.messages import format_user_error
from rpr.errors import ConfigError, RprError, did_you_mean
from rpr.io import system
from rpr.io.escape import note
from rpr.paths import SCHEMES_DIR, choice_dirs, data_dir, schemes_dir, user_path
from rpr.signals import SIGTERM_EXIT, exit_on_sigterm
from rpr.version import __version__

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

_OF_ONE_RUN = ("evaluate", "export", "generate", "report", "rerun", "train", "translate", "verify")
_OF_RUNS = ("compare", "diff", "runs")
_FREE_TEXTS = ("prompt=", "stop=")  # of generate
_NOT_SETTINGS = ("defaults", "hydra")
_NAMES = ("name", "scheme")  # of a choice
# Flags whose value may be the next word.
_WITH_VALUE = ("--cfg", "-c", "--config-dir", "-cd")

_USAGE = [
    "usage: rpr-cli COMMAND [setting=value ...] [Hydra flags]\n",
    *(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items()),
    "\n`rpr-cli COMMAND --help` lists the settings; `--cfg job` (of a sweep: `--dry-run`) prints what they make.",
    "schemes_dir=DIR adds position schemes, choices and sweeps of your own to any command.",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 success, 1 a job failed, 2 invalid input."""
    # 1. Streams and environment, for whatever follows and is printed.
    arguments = list(sys.argv[1:] if argv is None else argv)
    system.reopen_closed_fds()
    system.replace_unencodable()
    system.outlive_readers("stderr", *(["stdout"] if {*arguments[:1]} <= {*RESUMABLE} else []))
    environment.set_up()
    name = arguments[0] if arguments else "--help"
    code = 0
    try:  # 2. The command; what ends it becomes a line and an exit code.
        with exit_on_sigterm():
            code = _run(name, [_quote_home(word) for word in _take_schemes_dir(arguments[1:])])
        sys.stdout.flush()
        return code if arguments else 2
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != SIGTERM_EXIT:
            raise
        hint = "; rerun the same command to resume from the last checkpoint, if any" if name in RESUMABLE else ""
        note(f"interrupted{hint}")
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
        system.detach_stdout()


def _run(name: str, arguments: list[str]) -> int:
    """Check the flags and overrides of a command, compose and validate its configuration, and run it; or answer --help
    and --version. Returns the exit code.
    """
    # 1. What is no command with settings of its own.
    if name in ("-h", "--help"):
        print(*_USAGE, sep="\n")
        return 0
    if name == "--version":
        print(f"rpr-cli {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"no such command {name!r}" + did_you_mean(name, COMMANDS))
    if name == "sweep":
        from rpr.sweep import command

        return command.run(arguments)
    # 2. Flags, and what they ask for instead of a run of the command.
    arguments = to_overrides(name, arguments)
    flags = _parse_flags(name, arguments)
    overrides = flags.overrides
    if name == "train" and any(override_key(word) == "run" for word in overrides):
        return _resume(arguments)
    config_dir = None if flags.config_dir is None else user_path(flags.config_dir).absolute()
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: {config_dir} is not a directory; give one with choices, e.g. model/mine.yaml")
    if flags.multirun:
        from rpr.sweep import command

        return command.run_multirun(overrides, config_dir)
    if flags.help:
        print(_command_help(name, overrides, config_dir))
        return 0
    if flags.cfg:
        print(as_yaml(name, overrides, config_dir, resolve=flags.resolve), end="")
        return 0
    if own := next(filter(is_hydra_override, overrides), None):
        raise ConfigError(f"{override_key(own)}: has no effect on a single {name}; use it with -m")
    # 3. The typed configuration, and the command.
    from rpr.validation import validate

    if name == "train":
        from rpr.commands import train

        job = compose_train(overrides, config_dir)
        if same := job.without_effect(overrides):
            note(f"without effect on this run: {', '.join(same)}")
        environment.hide_foreign()
        train.run(job, command=recorded_command(overrides, config_dir))
        return 0
    inputs: list[Any] = [validate(_config_class(name), compose(name, overrides, config_dir))]
    if name == "bench":
        # Of the selected model, with any recipe: not every model has one of its own name.
        selected = [word for word in overrides if override_key(word).partition(".")[0] == "model"]
        selected += ["data=synthetic", "optim=tiny"]
        variants = {each: compose_train([*selected, f"position={each}"], config_dir) for each in inputs[0].variants}
        inputs.append({each: config.position for each, config in variants.items()})
    environment.hide_foreign()
    importlib.import_module(f"rpr.commands.{name}").run(*inputs)
    return 0


def _take_schemes_dir(arguments: list[str]) -> list[str]:
    """The arguments without `schemes_dir=DIR`, which is kept in the environment for this process and those it starts.
    Raises ConfigError if it is no folder.
    """
    before_files = arguments[: arguments.index("--")] if "--" in arguments else arguments
    typed = [word for word in before_files if word.startswith("schemes_dir=")]
    if typed:
        os.environ[SCHEMES_DIR] = str(user_path(typed[-1].partition("=")[2] or "''").absolute())
    if (folder := schemes_dir()) is not None and not folder.is_dir():
        raise ConfigError(f"schemes_dir: {folder} is not a folder; give one with modules of position schemes")
    return [word for word in arguments if word not in typed]


def _quote_home(word: str) -> str:
    """`runs_dir=~/runs` with the value quoted, as Hydra's grammar does not know `~`."""
    key, _, value = word.partition("=")
    is_path = value.startswith("~/") and key[:1].isalpha() and not word.startswith(_FREE_TEXTS)
    return f"{key}={quote_text(value)}" if is_path else word


def to_overrides(name: str, arguments: list[str]) -> list[str]:
    """Replace positional arguments by overrides: the runs of the commands above, and files after `--` of `translate`.
    Raises ConfigError for too many of them.
    """
    # 1. Files and free texts are quoted here, as no one can quote a text for both a shell and Hydra.
    quoted: list[str] = []
    if name == "translate" and "--" in arguments:
        at = arguments.index("--")
        arguments, files = arguments[:at], arguments[at + 1 :]
        if not 1 <= len(files) <= 2:
            raise ConfigError(f"--: {len(files)} files after it, expected IN or IN OUT")
        quoted = [f"{key}={quote_text(file)}" for key, file in zip(("input", "output"), files, strict=False)]
    if name == "generate":
        texts = [word.partition("=") for word in arguments if word.startswith(_FREE_TEXTS)]
        quoted = [f"{key}={quote_text(text)}" for key, _, text in texts]
        arguments = [word for word in arguments if not word.startswith(_FREE_TEXTS)]
    # 2. Runs are words without =.
    runs: list[str] = []
    others: list[str] = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        override = word.startswith(("-", "+", "~")) and not word.startswith("~/")
        positional = "=" not in word and not override and before not in _WITH_VALUE
        (runs if positional else others).append(word)
    if not runs or name not in (*_OF_ONE_RUN, *_OF_RUNS):
        return [*arguments, *quoted]
    if name == "runs":
        if runs[0] != "remove" or len(runs) == 1:
            raise ConfigError(f"runs: {' '.join(runs)}: give nothing, to list runs, or `remove` and the names of some")
        return [*others, f"remove=[{','.join(map(quote_text, runs[1:]))}]"]
    if name in _OF_ONE_RUN and len(runs) > 1:
        rule = "are words without =; give settings as KEY=VALUE, one run's folder"
        raise ConfigError(f"{name}: {' and '.join(runs)} {rule}{', files after --' if name == 'translate' else ''}")
    # 3. `train run=FOLDER` is read as it is, not by Hydra.
    given = runs[0] if name == "train" else ",".join(map(quote_text, runs))
    return [*others, f"run={given}" if name in _OF_ONE_RUN else f"runs=[{given}]", *quoted]


def _parse_flags(name: str, arguments: list[str]) -> argparse.Namespace:
    """The flags and overrides among the arguments. Raises ConfigError for an unknown flag, or one that does not go with
    the command.
    """

    def reject(message: str) -> NoReturn:
        raise ConfigError(f"{name}: {message}; write settings as key=value (rpr-cli {name} --help)")

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = reject  # type: ignore[method-assign]  # argparse would print several lines and end the process
    for flag, short in {"--help": "-h", "--multirun": "-m", "--resolve": "-r"}.items():
        parser.add_argument(flag, short, action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("overrides", nargs="*")
    flags = parser.parse_intermixed_args(arguments)  # settings may stand between flags
    if flags.multirun and (name != "train" or flags.cfg or flags.help):
        raise ConfigError("-m: goes with train alone, without --cfg and --help")
    return flags


def _resume(arguments: list[str]) -> int:
    """`rpr-cli train run=FOLDER`: everything else is in the run's record."""
    from rpr.commands import train

    environment.hide_foreign()
    if others := [word for word in arguments if override_key(word) != "run"]:
        rule = "cannot be changed when a run is resumed; give run=... alone, or leave it out to start a new run"
        raise ConfigError(f"run: {' '.join(others)} {rule}")
    train.resume(user_path(arguments[-1].partition("=")[2].strip("'")))
    return 0


def _config_class(name: str) -> Any:
    from rpr.config import commands, train

    return train.TrainConfig if name in ("train", "sweep") else getattr(commands, f"{name.capitalize()}Config")


def _command_help(name: str, overrides: Sequence[str], config_dir: Path | None) -> str:
    """The command's purpose, groups with their choices, and settings: of the choices among the overrides, else of the
    default ones.
    """
    # 1. The choices: Hydra lists them from the last to the first; a recipe follows from model and data.
    chosen = hydra_bridge.compose(name, overrides, config_dir, with_hydra=True).hydra.runtime.choices
    purpose, blocks = _read_conf(Path(name), config_dir)
    named = [(group, str(choice)) for group, choice in reversed(chosen.items()) if group != "recipe"]
    groups = {group: choice for group, choice in named if "@" not in group and not group.startswith("hydra/")}
    of_one_stack = [group.partition("@")[2] for group, _ in named if "@" in group]
    # 2. Purpose, groups and settings.
    lines = [*purpose, "", f"usage: rpr-cli {name} {'[GROUP=CHOICE ...] ' if groups else ''}[SETTING=VALUE ...]"]
    if groups:
        width = max(map(len, groups))
        lines += ["", "Groups and their choices ([selected]); --help after a choice shows its settings:"]
        for group, choice in groups.items():
            names = [f"[{name}]" if name == choice else name for name in dict.fromkeys([*choices_of(group), choice])]
            lines.append(f"  {group:<{width}}  {', '.join(names)}")
        lines += [f"  {group}: another choice of {group.partition('.')[0]}" for group in of_one_stack]
    lines += ["", "Settings:", *_indented(blocks)]
    for group, choice in groups.items():
        about, blocks = _read_conf(Path(group) / choice, config_dir)
        settings = {key: block for key, block in blocks.items() if key not in _NAMES}
        lines += ["", f"{group}.* of {group}={choice}:", *(f"  # {line}" for line in about), *_indented(settings)]
    lines += ["", f"rpr-cli {name} --cfg job prints the composed configuration."]
    # 3. Wrapped at the window; in a file each line stays whole.
    width = max(shutil.get_terminal_size((10**6, 0)).columns, 40)
    wrapped = []
    for line in "\n".join(lines).split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        whole: Any = {"break_long_words": False, "break_on_hyphens": False}
        wrapped += textwrap.wrap(line, width, subsequent_indent=indent, **whole) or [""]
    return "\n".join(wrapped)


def _read_conf(file: Path, config_dir: Path | None) -> tuple[list[str], dict[str, str]]:
    """The opening comment of a file of conf/, and its settings by name, as written, after those it inherits."""
    folders = [*choice_dirs(config_dir), data_dir("conf")]
    paths = [(folder / file).with_suffix(".yaml") for folder in folders]
    lines = next((path.read_text(encoding="utf-8").splitlines() for path in paths if path.is_file()), [])
    about = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    blocks: dict[str, str] = {}
    for base in (yaml.safe_load("\n".join(lines)) or {}).get("defaults", []):
        if isinstance(base, str) and base != "_self_":
            blocks |= _read_conf(file.with_name(base), config_dir)[1]
    comment: list[str] = []
    key = ""
    for line in lines[len(about) :]:
        if line.startswith("#"):
            comment.append(line)
        elif key_match := re.match(r"(\w+):", line):
            key = key_match[1]
            blocks[key] = "\n".join([*comment, line])
            comment = []
        elif line.strip() and key:
            blocks[key] += f"\n{line}"
    return about, {key: block for key, block in blocks.items() if key not in _NOT_SETTINGS}


def _indented(blocks: dict[str, str]) -> list[str]:
    return [f"  {line}" for block in blocks.values() for line in block.split("\n")]

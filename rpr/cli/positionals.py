"""Positional arguments of the command line, as overrides."""

import os
import shlex
import sys

from rpr.compose.composition import override_key, quote_home, typed_choices, with_corpus
from rpr.compose.hydra_bridge import quote_text
from rpr.errors import ConfigError
from rpr.paths import SCHEMES_DIR, schemes_dir, user_path

OF_ONE_RUN = ("evaluate", "export", "generate", "report", "rerun", "train", "translate", "verify")
OF_RUNS = ("compare", "diff")
FREE_TEXTS = ("prompt=", "stop=")  # of generate
# Hydra's flags whose value may be the next word.
_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp",
               "--info", "-i")  # fmt: skip


def take_schemes_dir(arguments: list[str]) -> list[str]:
    """The arguments without `schemes_dir=DIR`, which is kept in the environment for this process and those it starts.
    Raises ConfigError if it is no folder, or comes too late: schemes are read when they are first needed.
    """
    before_files = arguments[: arguments.index("--")] if "--" in arguments else arguments
    typed = [word for word in before_files if word.startswith("schemes_dir=")]
    if typed:
        name = typed[-1].partition("=")[2]
        folder = user_path(name).absolute()
        if not name or not folder.is_dir():
            where = folder if name else "''"
            raise ConfigError(f"schemes_dir: {where} is not a folder; give one with modules of position schemes")
        if "rpr.model.positions" in sys.modules and schemes_dir() != folder:
            raise ConfigError(
                f"schemes_dir: this Python process has already read its schemes; set {SCHEMES_DIR} before importing rpr"
            )
        os.environ[SCHEMES_DIR] = str(folder)
    elif (folder_set := schemes_dir()) is not None and not folder_set.is_dir():
        raise ConfigError(f"{SCHEMES_DIR}: {folder_set} is not a folder; unset it, or give schemes_dir=DIR")
    return [word for word in arguments if word not in typed]


def to_overrides(name: str, arguments: list[str]) -> list[str]:
    """Replace positional arguments by overrides: the runs of the commands above, and files after `--` of `translate`.
    For `train`, split job='...', all overrides of a job in one word (from a W&B agent), and add `with_corpus`. Raises
    ConfigError for too many positional arguments, a duplicate, or a job with an unclosed quotation mark.
    """
    if name == "train":
        overrides = typed_choices(_with_runs(name, [word for argument in arguments for word in _split_job(argument)]))
        return overrides if {"-m", "--multirun"} & {*overrides} else with_corpus(overrides)
    if name == "translate" and "--" in arguments:
        at = arguments.index("--")
        return [*_with_runs(name, arguments[:at]), *_files(arguments[:at], arguments[at + 1 :])]
    if name == "generate":  # texts are quoted here, as no one can quote a text for both a shell and Hydra
        texts = [word for word in arguments if word.startswith(FREE_TEXTS)]
        quoted = [f"{key}={quote_text(text)}" for key, _, text in (word.partition("=") for word in texts)]
        return [*_with_runs(name, [word for word in arguments if word not in texts]), *quoted]
    return _with_runs(name, arguments) if name in (*OF_ONE_RUN, *OF_RUNS) else quote_home(whole(arguments))


def whole(arguments: list[str]) -> list[str]:
    """The arguments; raises ConfigError if a setting was cut at a blank: `test_splits=[test, long]`, `seed = 1`."""
    for at, word in enumerate(arguments[:-1]):
        key, equals, value = word.partition("=")
        opened = sum(value.count(mark) for mark in "[{(") > sum(value.count(mark) for mark in "]})")
        following = arguments[at + 1]
        if (equals and opened) or following == "=" or (following.startswith("=") and "=" not in word):
            whole = f"{word} {following}" if opened else f"{key}=VALUE"
            raise ConfigError(
                f"{key}: {word} and {following} are two words, cut at a blank; leave out the blank, "
                f'or quote the whole setting: "{whole}"'
            )
    return arguments


def _with_runs(name: str, arguments: list[str]) -> list[str]:
    whole(arguments)
    runs: list[str] = []
    others: list[str] = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        override = word.startswith(("-", "+", "~")) and not word.startswith("~/")
        positional = "=" not in word and not override and before not in _WITH_VALUE
        (runs if positional else others).append(word)
    if not runs:
        return arguments if name == "train" else quote_home(arguments)
    if name in OF_ONE_RUN and len(runs) > 1:
        files = "; the files to translate are given as -- IN OUT" if name == "translate" else ""
        raise ConfigError(f"{name}: {len(runs)} runs given, expected one{files}")
    _reject_duplicate(others, "run" if name in OF_ONE_RUN else "runs")
    if name == "train":  # `run=FOLDER` is read as it is, not by Hydra
        return [*others, f"run={runs[0]}"]
    given = ",".join(quote_text(run) for run in runs)
    others = quote_home(others)
    return [*others, f"run={given}" if name in OF_ONE_RUN else f"runs=[{given}]"]


def _files(others: list[str], files: list[str]) -> list[str]:
    if not 1 <= len(files) <= 2:
        raise ConfigError(f"--: {len(files)} files after it, expected IN or IN OUT")
    places = list(zip(("input", "output"), files, strict=False))
    for key, _ in places:
        _reject_duplicate(others, key)
    return [f"{key}={quote_text(file)}" for key, file in places]


def _reject_duplicate(arguments: list[str], key: str) -> None:
    if any(override_key(argument) == key for argument in arguments):
        raise ConfigError(f"{key}: given both as a positional argument and as {key}=...; remove one of them")


def _split_job(argument: str) -> list[str]:
    if not argument.startswith("job="):
        return [argument]
    try:
        return shlex.split(argument.removeprefix("job="))
    except ValueError as error:
        raise ConfigError(f"job: {argument!r} cannot be split into words ({error}); quote it as in a shell") from None

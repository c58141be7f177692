"""Words of the command line that are no settings, as the settings that they stand for."""

from __future__ import annotations

import re
import shlex

from rpr.compose.composition import key_of, typed_choices
from rpr.errors import ConfigError


def settings_of(name: str, arguments: list[str]) -> list[str]:
    """Words that are no settings as the settings they stand for: runs for `compare`, `diff` and `rerun`, files behind
    `--` for `translate`, and for `train` job='...', a whole job's settings in one word (of an agent of W&B).

    Raises:
        ConfigError: more files than there are places, something given twice, or a job with a quotation mark left open.
    """
    if name == "train":
        return typed_choices([word for argument in arguments for word in _of_a_job(argument)])
    if name in ("compare", "diff", "rerun"):
        words = [word for word in arguments if "=" not in word and not word.startswith("-")]
        others = [word for word in arguments if word not in words]
        if name == "rerun" and len(words) > 1:
            raise ConfigError(f"rerun: {len(words)} runs are given; it repeats one at a time")
        if words:
            _refuse_twice(others, "run" if name == "rerun" else "runs")
        given = ",".join(quoted(word) for word in words)
        return [*others, f"run={given}" if name == "rerun" else f"runs=[{given}]"] if words else others
    if name == "translate" and "--" in arguments:
        at = arguments.index("--")
        words = arguments[at + 1 :]
        if not 1 <= len(words) <= 2:
            raise ConfigError(f"--: {len(words)} files behind it; give the input, and the output if it is a file")
        places = list(zip(("input", "output"), words, strict=False))
        for key, _ in places:
            _refuse_twice(arguments[:at], key)
        return [*arguments[:at], *(f"{key}={quoted(word)}" for key, word in places)]
    return arguments


def _refuse_twice(arguments: list[str], key: str) -> None:
    if any(key_of(argument) == key for argument in arguments):
        raise ConfigError(f"{key}: given as a word and as {key}=... too; leave one of them out")


def _of_a_job(argument: str) -> list[str]:
    if not argument.startswith("job="):
        return [argument]
    try:
        return shlex.split(argument.removeprefix("job="))
    except ValueError as error:
        raise ConfigError(f"job: {argument!r} cannot be taken apart ({error}); quote it as for a shell") from None


def quoted(value: str) -> str:
    """A value that Hydra's grammar takes as it is; there a backslash means something only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"

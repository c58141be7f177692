"""Positional arguments of the command line, as overrides."""

from __future__ import annotations

import re
import shlex

from rpr.compose.composition import override_key, typed_choices
from rpr.errors import ConfigError


def to_overrides(name: str, arguments: list[str]) -> list[str]:
    """Replace positional arguments by overrides: runs of `compare`, `diff` and `rerun`, and files after `--` of
    `translate`. For `train`, split job='...', all overrides of a job in one word (from a W&B agent).

    Raises:
        ConfigError: too many positional arguments, a duplicate, or a job with an unclosed quotation mark.
    """
    if name == "train":
        return typed_choices([word for argument in arguments for word in _split_job(argument)])
    if name in ("compare", "diff", "rerun"):
        words = [word for word in arguments if "=" not in word and not word.startswith("-")]
        others = [word for word in arguments if word not in words]
        if name == "rerun" and len(words) > 1:
            raise ConfigError(f"rerun: {len(words)} runs given, expected one")
        if words:
            _reject_duplicate(others, "run" if name == "rerun" else "runs")
        given = ",".join(quote_value(word) for word in words)
        return [*others, f"run={given}" if name == "rerun" else f"runs=[{given}]"] if words else others
    if name == "translate" and "--" in arguments:
        at = arguments.index("--")
        words = arguments[at + 1 :]
        if not 1 <= len(words) <= 2:
            raise ConfigError(f"--: {len(words)} files after it, expected IN or IN OUT")
        places = list(zip(("input", "output"), words, strict=False))
        for key, _ in places:
            _reject_duplicate(arguments[:at], key)
        return [*arguments[:at], *(f"{key}={quote_value(word)}" for key, word in places)]
    return arguments


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


def quote_value(value: str) -> str:
    """A value quoted for Hydra's override grammar, in which a backslash is special only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"

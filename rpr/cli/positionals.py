"""Positional arguments of the command line, as overrides."""

import os

from rpr.compose.hydra_bridge import quote_text
from rpr.errors import ConfigError
from rpr.paths import SCHEMES_DIR, schemes_dir, user_path

OF_ONE_RUN = ("evaluate", "export", "generate", "report", "rerun", "train", "translate", "verify")
OF_RUNS = ("compare", "diff", "runs")
FREE_TEXTS = ("prompt=", "stop=")  # of generate
# Flags whose value may be the next word.
_WITH_VALUE = ("--cfg", "-c", "--config-dir", "-cd")


def take_schemes_dir(arguments: list[str]) -> list[str]:
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


def quote_home(word: str) -> str:
    """`runs_dir=~/runs` with the value quoted, as Hydra's grammar does not know `~`."""
    key, _, value = word.partition("=")
    is_path = value.startswith("~/") and key[:1].isalpha() and not word.startswith(FREE_TEXTS)
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
        texts = [word.partition("=") for word in arguments if word.startswith(FREE_TEXTS)]
        quoted = [f"{key}={quote_text(text)}" for key, _, text in texts]
        arguments = [word for word in arguments if not word.startswith(FREE_TEXTS)]
    # 2. Runs are words without =.
    runs: list[str] = []
    others: list[str] = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        override = word.startswith(("-", "+", "~")) and not word.startswith("~/")
        positional = "=" not in word and not override and before not in _WITH_VALUE
        (runs if positional else others).append(word)
    if not runs or name not in (*OF_ONE_RUN, *OF_RUNS):
        return [*arguments, *quoted]
    if name == "runs":
        if runs[0] != "remove" or len(runs) == 1:
            raise ConfigError(f"runs: {' '.join(runs)}: give nothing, to list runs, or `remove` and the names of some")
        return [*others, f"remove=[{','.join(map(quote_text, runs[1:]))}]"]
    if name in OF_ONE_RUN and len(runs) > 1:
        rule = "are words without =; give settings as KEY=VALUE, one run's folder"
        raise ConfigError(f"{name}: {' and '.join(runs)} {rule}{', files after --' if name == 'translate' else ''}")
    # 3. `train run=FOLDER` is read as it is, not by Hydra.
    given = runs[0] if name == "train" else ",".join(map(quote_text, runs))
    return [*others, f"run={given}" if name in OF_ONE_RUN else f"runs=[{given}]", *quoted]

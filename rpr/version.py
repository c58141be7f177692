"""The version of this package, and of what it writes; a leaf, which any module may import."""

import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

SCHEMA = 3  # of records, and in the ids of runs
_RECORDED = "rpr torch pytorch-lightning hydra-core wandb sacrebleu sentencepiece datasets numpy"


def versions() -> dict[str, str]:
    """Of Python, this package and the libraries that matter to results, as far as they are installed."""
    numbers = {"python": platform.python_version()}
    for package in _RECORDED.split():
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def utc_now() -> str:
    """The time in a record: `2026-01-02T03:04:05+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


__version__ = versions().get("rpr", "0+unknown")  # unknown in a bare checkout that was never installed

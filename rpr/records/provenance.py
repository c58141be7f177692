"""The provenance in a record: commit, versions, time."""

import contextlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rpr.environment import for_child
from rpr.records.record import Git

PACKAGES = (
    "rpr", "torch", "pytorch-lightning", "hydra-core", "wandb", "sacrebleu", "sentencepiece", "datasets", "numpy",
)  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def git_state() -> Git:
    """Commit and dirty flag of the checkout that this package runs from; None without a checkout."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():  # an installed package must not report some other repository around it
        return Git(commit=None, dirty=None)
    commit, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    return Git(commit=commit, dirty=None if status is None else bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # Also in a checkout of another user, as in a container: its code is what is running.
            ["git", "--no-optional-locks", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            env=for_child(),  # in a git hook GIT_DIR names the user's own repository
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

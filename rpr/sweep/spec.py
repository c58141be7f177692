"""Sweep files, from sweeps/ or the user's own, and the settings and flags of `rpr-cli sweep`."""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml
from pydantic import Field

from rpr.compose.composition import override_key
from rpr.config.train import DataConfig
from rpr.errors import ConfigError, Problem, did_you_mean
from rpr.paths import sweep_files, user_path
from rpr.validation import StrictModel, validate


class SizeRow(StrictModel):
    """A row of `by_size` in a sweep's file: settings for training data of up to `up_to` sentence pairs, or bytes of
    text; `takes` says how long jobs take.
    """

    up_to: float = Field(allow_inf_nan=True)
    settings: str
    takes: str


class SweepFile(StrictModel):
    """The keys of a sweep's file; the last three are the report's."""

    description: str = ""
    overrides: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ("",)
    by_size: tuple[SizeRow, ...] | None = None
    best_of: tuple[str, ...] | None = None
    baseline: str | None = None
    paper: bool | None = None

    def problems(self) -> Iterator[str | Problem]:
        limits = [row.up_to for row in self.by_size or ()]
        if self.by_size is not None and (limits != sorted({*limits}) or limits[-1:] != [float("inf")]):
            yield "by_size: up_to must grow from row to row and end with .inf"


class SweepSpec(NamedTuple):
    """A sweep as rows of overrides; the comma lists in a row are swept over (their product)."""

    name: str
    description: str
    rows: tuple[tuple[str, ...], ...]
    by_size: tuple[SizeRow, ...] = ()


def usage() -> str:
    files = sweep_files()
    width = max(map(len, files), default=0)
    return "\n".join([
        "usage: rpr-cli sweep NAME|FILE [setting=value ...] [jobs=N] [gpus=0,1] [retry_failed=true]",
        "",
        *(f"  {name:<{width}}  {read(name).description}" for name in files),
        "",
        "Settings apply to every job and may be swept too: rpr-cli sweep quick seed=1,2,3",
        "position=rope,none: of the rows that set position, those with these values run; all others run with both.",
        "The same command again skips finished jobs and resumes interrupted ones.",
        "",
        "  jobs=N              run N jobs at a time on this machine",
        "  gpus=0,0,1          give each job a place of its own in this list: two at a time on GPU 0, one on GPU 1",
        "  retry_failed=true   run failed jobs again, from their last checkpoint",
        "  --dry-run           print the jobs as commands, with their status",
    ])  # fmt: skip


def read(name: str) -> SweepSpec:
    """A named sweep of sweeps/, or a YAML file of the user's own; raises ConfigError if it is missing or invalid."""
    # 1. The file.
    files = sweep_files()
    path = user_path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise ConfigError(f"sweep: no such sweep {name!r}" + did_you_mean(name, files))
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as a sweep ({error}); give a file like those in sweeps/") from None
    known = files.get(path.stem, path)
    if known.read_text(encoding="utf-8") != text:
        raise ConfigError(f"{path}: {known} is another sweep of this name, which records name it by; rename the file")
    # 2. Its keys, and the rows of overrides.
    given = content if isinstance(content, dict) else {"jobs": content}
    file = validate(SweepFile, {key: value for key, value in given.items() if value is not None}, at=str(path))
    try:
        rows = [tuple(shlex.split(" ".join([*file.overrides, job]))) for job in file.jobs]
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; correct its quotes") from None
    return SweepSpec(path.stem, file.description, tuple(rows), file.by_size or ())


def settings_by_size(rows: Sequence[SizeRow], data: DataConfig, typed: Sequence[str]) -> tuple[list[str], str]:
    """The settings of the first row that the training data fits into, but for those typed, and a line that says so.
    Raises DataError if there is no corpus.
    """
    from rpr.data import corpora, files

    if data.text is None:
        size, unit = len(corpora.load_corpus(data).splits["train"]), "training pairs"
    else:
        size, unit = sum(file.stat().st_size for file in files.corpus_files(data).splits["train"]), "bytes of text"
    row = next(row for row in rows if size <= row.up_to)
    keys = {override_key(word) for word in typed}
    settings = [word for word in shlex.split(row.settings) if override_key(word) not in keys]
    return settings, f"{size:,} {unit}: {' '.join(settings)}; {row.takes}. Longer training may change the order."

"""Settings that a sweep takes from the size of the training data: `by_size` in its file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpr.compose.composition import override_key

if TYPE_CHECKING:  # pydantic, which `rpr-cli --help` does not wait for
    from rpr.config.data import DataConfig


@dataclass(frozen=True)
class SizeRow:
    """Settings for training data of up to `up_to` sentence pairs, or bytes of text; `takes` says how long jobs take."""

    up_to: float
    settings: tuple[str, ...]
    takes: str


def read_rows(content: Any) -> tuple[SizeRow, ...]:
    """The rows of `by_size` in a sweep file. Raises ValueError if they are not rows in order of size, the last without
    an end (`.inf`).
    """
    keys = {"up_to", "settings", "takes"}
    if not isinstance(content, list) or not all(isinstance(row, dict) and row.keys() == keys for row in content):
        raise ValueError("must be a list of rows with up_to, settings and takes")
    rows = tuple(SizeRow(float(row["up_to"]), tuple(shlex.split(row["settings"])), row["takes"]) for row in content)
    limits = [row.up_to for row in rows]
    if limits != sorted(set(limits)) or not limits or limits[-1] != float("inf"):
        raise ValueError("up_to must grow from row to row and end with .inf")
    return rows


def training_size(data: DataConfig) -> int:
    """Sentence pairs of the training split, or bytes of the files of a corpus of text. Raises DataError if there is no
    corpus.
    """
    from rpr.data.corpus import corpus_files, load_corpus

    if data.text is None:
        return len(load_corpus(data).splits["train"])
    splits = corpus_files(data).splits
    return sum(file.stat().st_size for file in splits["train"])


def chosen_settings(rows: Sequence[SizeRow], data: DataConfig, typed: Sequence[str]) -> tuple[list[str], str]:
    """The settings of the first row that the training data fits into, but for those typed, and a line that says so."""
    size = training_size(data)
    row = next(row for row in rows if size <= row.up_to)
    keys = {override_key(word) for word in typed}
    settings = [word for word in row.settings if override_key(word) not in keys]
    unit = "training pairs" if data.text is None else "bytes of text"
    return settings, f"{size:,} {unit}: {' '.join(settings)}; {row.takes}. Longer training may change the order."

"""Steps per second relative to absolute positions (the paper's "7% slower"), as `rpr-cli bench` measures them.

Whole runs are at different times, so that other work may have slowed one of them: their speeds decide nothing, and
stand in their records alone.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AliasPath, BaseModel, Field, ValidationError

from rpr import paper
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import flat, varying
from rpr.records.scores import Interval
from rpr.tables.grid import Column, Grid, Note
from rpr.validation import first_problem

_PAPERS = {True: single(paper.RELATIVE_SPEED), False: missing("the paper prints one ratio, of its relative model")}


class SpeedRow(NamedTuple):
    """A variant's speed in one benchmark."""

    model: str
    runs: str
    position: str
    settings: str  # the arithmetic, and what distinguishes the benchmark from others with its labels
    device: str
    steps: Measurement
    ratio: Measurement
    papers_model: bool


class _Step(BaseModel):
    variant: str
    steps_per_second: float | None = Field(None, gt=0)
    relative_speed: float | None = Field(None, gt=0)
    min: float = 0.0
    max: float = 0.0
    problem: str = "not measured"


def _setting(*path: str, default: Any = ..., **rules: Any) -> Any:
    """A field of a document that is at this path of its configuration."""
    return Field(default, validation_alias=AliasPath("config", *path), **rules)


class _Document(BaseModel):
    """The part of an `rpr-cli bench` document that is read."""

    device: str
    model: str = _setting("model", "name")
    clip_distance: int | None = _setting("model", "relative_defaults", "clip_distance", default=None)
    vocabulary_size: int = _setting("data", "vocabulary_size")
    precision: str = _setting("hardware", "precision")
    matmul_precision: str = _setting("hardware", "matmul_precision")
    variants: list[str] = _setting("variants", min_length=1)
    sentences: int = _setting("sentences")
    length: int = _setting("length")
    rounds: int = _setting("rounds", ge=1)
    step: list[_Step]
    config: dict[str, Any]

    @property
    def batch(self) -> str:
        return f"{self.sentences} sentences of {self.length}, vocabulary {self.vocabulary_size:,}"

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the speed besides the batch, the position and the arithmetic."""
        return flat({**self.config["model"], "attention": self.config["hardware"].get("attention")})


def read_benches(paths: Iterable[Path]) -> tuple[list[SpeedRow], list[str]]:
    """The speeds of all bench documents among JSON files, and a line for each damaged one."""
    documents: list[_Document] = []
    problems: list[str] = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(document, dict) and {"device", "config", "step"} <= document.keys():
                documents.append(_Document.model_validate(escape_tree(document)))
        except ValidationError as error:
            text = f"{path}: not a valid rpr-cli bench document ({first_problem(error)}); rerun the benchmark"
            problems.append(escape_control_characters(text))
        except (OSError, ValueError, RecursionError):
            continue  # not JSON: find_records reports those that should be records
    return [row for document in documents for row in _rows(document, documents)], problems


def _rows(document: _Document, documents: Iterable[_Document]) -> Iterator[SpeedRow]:
    """The speeds of a document, timed alternately, with ratios within a round; none if its baseline is not absolute."""
    if document.variants[0] != "absolute":
        return
    labelled = (document.model, document.batch)
    names = varying([other.settings for other in documents if (other.model, other.batch) == labelled])
    exact = document.precision == "32"
    arithmetic = "float32" if exact else document.precision
    arithmetic += f", matmuls {document.matmul_precision}" if exact and document.matmul_precision != "highest" else ""
    settings = arithmetic + "".join(f"; {name} {document.settings.get(name)}" for name in names)
    papers_k = document.clip_distance in (None, paper.MODELS[paper.size_of(document.model)].clip_distance)
    for step in document.step:
        steps, ratio = missing(step.problem), missing(step.problem)
        if step.steps_per_second is not None and step.relative_speed is not None:
            interval = Interval(step.min, step.max, 1.0, kind="rounds") if step.variant != "absolute" else None
            steps = Measurement(step.steps_per_second, document.rounds)
            ratio = Measurement(step.relative_speed, document.rounds, interval=interval)
        papers_model = step.variant == "relative" and papers_k
        yield SpeedRow(*labelled, step.variant, settings, document.device, steps, ratio, papers_model)


_COLUMNS = (
    Column("model", "model", lambda row: row.model, label=True),
    Column("runs", "runs", lambda row: row.runs, label=True),
    Column("position", "position", lambda row: row.position, label=True),
    Column("n", "rounds", lambda row: str(row.steps.n)),
    Column("steps_per_second", "steps/s", lambda row: row.steps, digits=2),
    Column("ratio", "ratio to absolute", lambda row: row.ratio, digits=2),
    Column("paper", "paper", lambda row: _PAPERS[row.papers_model], digits=2),
    Column("settings", "settings", lambda row: row.settings, words=True),
    Column("device", "device", lambda row: row.device, words=True),
)


def speed_grid(rows: Sequence[SpeedRow]) -> Iterator[Grid]:
    """All benchmarks; nothing without any."""
    notes = (
        f"paper: {paper.RELATIVE_SPEED} of absolute's steps/s, base model on P100 GPUs ({paper.SOURCE})",
        "a ratio is of two timings one after the other, so that a machine whose speed drifts still compares fairly; it "
        "and steps/s are medians over the rounds, each of its own",
    )
    if rows:
        title = "Speed: steps/s by position, and relative to absolute"
        yield Grid("speed", title, _COLUMNS, tuple(rows), notes=tuple(map(Note, notes))).without_empty_columns()

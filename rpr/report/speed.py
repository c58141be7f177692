"""Steps per second relative to absolute positions (the paper's "7% slower"), of whole runs and of `rpr-cli bench`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AliasPath, BaseModel, Field, ValidationError, model_validator

from rpr import paper
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.records.measurement import Measurement, mean, missing, single
from rpr.records.record import flat, varying
from rpr.records.scores import Interval
from rpr.report.agreement import speed_agreement
from rpr.report.groups import SPEED, Group, Variant
from rpr.report.lines import labels, marked
from rpr.tables.grid import Cell, Column, Grid, Note
from rpr.validation import first_problem

_NO_ABSOLUTE = "no absolute (sinusoidal) run of the same seed, device, precision and attention"
_PAPERS = {True: single(paper.RELATIVE_SPEED), False: missing("the paper prints one ratio, of its relative model")}


def steps_per_second(variant: Variant) -> Measurement:
    """The mean over seeds, if all ran on the same kind of device; runs whose device other jobs shared do not count."""
    jobs = max((run.concurrent_jobs or 0 for run in variant.finished), default=0)
    why = {0: "no speed: whether other jobs shared the device was not recorded", 1: "speed not measured"}
    shared = f"no speed: {jobs} jobs of the sweep shared the device"
    # Without its interval over seeds: what varies is the machine.
    return replace(variant.measured(SPEED, why.get(jobs, shared)), interval=None)


def ratio_to_absolute(group: Group, variant: Variant) -> Measurement:
    """Steps/s divided by those of the group's sinusoidal baseline, seed by seed, on the same device, with the same
    precision and attention. It decides nothing: the two ran at different times, and other work may have slowed one.
    """
    absolute = group.get("absolute")
    own, its = steps_per_second(variant), steps_per_second(absolute)
    if own.value is None:
        return own
    if its.value is None:
        return missing(f"absolute: {its.reason}")
    speeds, others = variant.scores[SPEED], absolute.scores[SPEED]
    pairs = [(speed, others[seed]) for seed, speed in speeds.items() if seed in others]
    ratios = [speed.value / other.value for speed, other in pairs if other.way == speed.way]
    return mean(ratios, lowest=0.0) if ratios else missing(_NO_ABSOLUTE)


class SpeedRow(NamedTuple):
    """A variant's speed."""

    labels: tuple[str, str, str]  # model, runs and position
    settings: str  # the arithmetic, and what distinguishes the runs from others with their labels
    device: str
    benchmark: bool  # whether rpr-cli bench measured it, interleaved with the others of the benchmark
    steps: Measurement
    ratio: Measurement
    papers_model: bool
    parameters: Measurement
    memory: Measurement


class _NotMeasured(BaseModel):
    variant: str
    problem: str  # out of memory


class _Step(BaseModel):
    variant: str
    steps_per_second: float = Field(gt=0)
    relative_speed: float = Field(gt=0)
    min: float
    max: float


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
    not_measured: list[_NotMeasured]
    config: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def by_outcome(cls, document: dict[str, Any]) -> dict[str, Any]:
        rows = document["step"] if isinstance(document["step"], list) else []
        failed = [row for row in rows if isinstance(row, dict) and "problem" in row]
        measured = [row for row in rows if row not in failed] if failed else document["step"]
        return {**document, "step": measured, "not_measured": failed}

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
    return [row for document in documents for row in _of_a_document(document, documents)], problems


def _of_a_document(document: _Document, documents: Iterable[_Document]) -> Iterator[SpeedRow]:
    """The speeds of a document, timed alternately, with ratios within a round; none if its baseline is not absolute."""
    if document.variants[0] != "absolute":
        return
    labelled = (document.model, document.batch)
    names = varying([other.settings for other in documents if (other.model, other.batch) == labelled])
    own = "".join(f"; {name} {document.settings.get(name)}" for name in names)
    papers_k = document.clip_distance in (None, paper.MODELS[paper.size_of(document.model)].clip_distance)
    settings = _arithmetic(document.precision, document.matmul_precision) + own
    not_recorded = missing("rpr-cli bench does not record it")
    no_memory = missing("not measured as in whole runs")

    def row(variant: str, steps: Measurement, ratio: Measurement) -> SpeedRow:
        of_paper = variant == "relative" and papers_k
        runs = ((*labelled, variant), settings, document.device, True)
        return SpeedRow(*runs, steps, ratio, of_paper, not_recorded, no_memory)

    for step in document.step:
        interval = Interval(step.min, step.max, 1.0, kind="rounds") if step.variant != "absolute" else None
        ratio = Measurement(step.relative_speed, document.rounds, interval=interval)
        yield row(step.variant, Measurement(step.steps_per_second, document.rounds), ratio)
    for failed in document.not_measured:
        yield row(failed.variant, *[missing(failed.problem)] * 2)


def _arithmetic(precision: str | None, matmuls: str | None) -> str:
    """`float32`, `float32, matmuls medium` or `bf16`."""
    if precision != "32":
        return precision or "precision not recorded"
    return "float32" if matmuls == "highest" else f"float32, matmuls {matmuls or 'not recorded'}"


def _verdict(row: SpeedRow) -> str | Cell:
    decidable = row.papers_model and row.ratio.value is not None
    return speed_agreement(row.ratio, paper.RELATIVE_SPEED).cell if decidable else ""


_COLUMNS = (
    *labels("model", "runs", "position"),
    Column("settings", "settings", lambda row: row.settings, words=True, priority=1),
    Column("device", "device", lambda row: row.device, words=True, priority=1),
    Column("n", "n", lambda row: str(row.steps.n)),
    Column("steps_per_second", "steps/s", lambda row: row.steps, digits=2),
    Column("ratio", "vs absolute", lambda row: marked(row.ratio, row.steps.n), digits=2),
    Column("paper", "paper", lambda row: _PAPERS[row.papers_model], digits=2),
    Column("agreement", "agreement", _verdict, words=True, priority=1),
    Column("measured", "measured", lambda row: ("whole runs", "interleaved")[row.benchmark], words=True, priority=1),
    Column("peak_memory", "peak MB", lambda row: row.memory, digits=0, priority=2),
    Column("parameters", "M parameters", lambda row: row.parameters, digits=2, priority=3),
)


_INTERLEAVED = (
    "interleaved: a ratio is of two timings one after the other, so a machine whose speed drifts still compares "
    "fairly; it and steps/s are medians over the rounds, each of its own, so neither follows from the other"
)


def speed_grid(groups: Sequence[Group], benches: Sequence[SpeedRow] = ()) -> Iterator[Grid]:
    """All variants with a measured speed; nothing without any."""
    rows = [row for group in groups for row in _run_rows(group)] + [*benches]
    if not rows:
        return
    excluded = sorted({run.training.excludes for group in groups for run in group.finished if run.training is not None})
    notes = [
        f"paper: {paper.RELATIVE_SPEED} of absolute's steps/s, base model on P100 GPUs ({paper.SOURCE})",
        "peak MB: resident memory of the process on a CPU, allocated on a GPU",
        "n: seeds of whole runs, which ran at different times, so that other work may have slowed one of them"
        + "; rounds of interleaved timings" * bool(benches),
        *[_INTERLEAVED][: len(benches)],
        *(f"steps/s of whole runs leave out {reason}" for reason in excluded),
    ]
    title, synthetic = "Speed: steps/s by position, and relative to absolute", any(group.synthetic for group in groups)
    grid = Grid("speed", title, _COLUMNS, tuple(rows), notes=tuple(map(Note, notes)), synthetic=synthetic)
    yield grid.without_empty_columns()


def _run_rows(group: Group) -> Iterator[SpeedRow]:
    own = group.distinctly("hardware.precision", "matmul_precision")
    papers = ("relative", paper.MODELS[group.size].clip_distance)
    for variant in group.variants:
        steps = steps_per_second(variant)
        if steps.value is None:
            continue
        device, precision, matmul_precision, attention = next(iter(variant.scores[SPEED].values())).way  # of one
        implementation = "" if attention == "auto" else f"attention {attention}"
        trained = [run.training for run in variant.finished if run.training is not None]
        memory = [training.peak_memory_bytes for training in trained if training.peak_memory_bytes is not None]
        parameters = {run.parameters for run in variant.finished}
        known = parameters.pop() if len(parameters) == 1 else None
        yield SpeedRow(
            (group.model, f"{group.data}, {group.max_steps:,} steps, {group.hardware}", variant.label),
            "; ".join(filter(None, (_arithmetic(precision, matmul_precision), implementation, own))),
            device,
            False,
            steps,
            ratio_to_absolute(group, variant),
            (variant.position.kind, variant.position.clip_distance) == papers,
            single(known / 1e6) if known else missing("not recorded, or not the same for all seeds"),
            single(max(memory) / 1e6) if memory else missing("not recorded"),
        )

"""The paper's "7% slower" beside ours: whole runs, and the documents of `rpr-cli bench`, whose variants take turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rpr import paper
from rpr.io.escape import visible, visible_tree
from rpr.records.position import SHARING
from rpr.report.paper_groups import Place, differs, finished_runs, left_out, lettered
from rpr.report.paper_rows import Figure, PaperRow, PaperTable, figure
from rpr.report.remarks import Difference
from rpr.report.rows import Cell, Row

_TITLE = "Speed: steps/s with relative positions beside absolute ones"


def speed_table(rows: Sequence[PaperRow]) -> PaperTable:
    """With a letter behind the runs of groups that differ only in what their footnotes say."""
    alike = ["\n".join(row.labels) for row in rows]
    told = []
    for row, plain, lettered_name in zip(rows, alike, lettered(alike), strict=True):
        model, runs, *rest = row.labels
        told.append(replace(row, labels=(model, runs + lettered_name.removeprefix(plain), *rest)))
    labels = ("model", "runs", "device", "measured")
    return PaperTable("speed", _TITLE, "relative keys and values, the model's k of the paper", labels, tuple(told))


def run_rows(place: Place) -> Iterator[PaperRow]:
    """A row where a group has runs with absolute and with relative positions, for each sharing of their tables."""
    absolute = place.row("absolute")
    for sharing in place.sharings:
        relative = place.row("relative", paper.MODELS[place.size].clip_distance, sharing)
        if absolute is not None and relative is not None:
            yield _run_row(place, absolute, relative, sharing)


def _run_row(place: Place, absolute: Row, relative: Row, sharing: str | None) -> PaperRow:
    finished = [run for row in (absolute, relative) for run in finished_runs(row)]
    timed = [(run.device, run.training) for run in finished if run.training is not None]
    devices = sorted({_device(device, run.precision, run.matmul_precision) for device, run in timed})
    device = "; ".join(devices) or "unknown"
    steps = [run.measured_steps for _, run in timed]
    told = []
    if steps:
        span = " to ".join(f"{count:,}" for count in dict.fromkeys((min(steps), max(steps))))
        excludes = "; ".join(sorted({run.excludes for _, run in timed}))
        told = [f"whole runs, at different times: steps/s over {span} steps, leaving out {excludes}"]
    table = place.table
    runs = f"{table.data}, {table.max_steps:,} steps"
    if len(place.sharings) > 1:
        runs += f", {SHARING.get(str(sharing), sharing)}"
    return PaperRow(
        (table.model, runs, device, "runs"),
        _figures(absolute.steps_per_second, relative.steps_per_second, relative.relative_speed),
        (*differs([(place, absolute), (place, relative)], place.size), _another_device(device)),
        (*told, *([table.variant] if table.variant else []), *left_out(absolute), *left_out(relative)),
        (*absolute.records, *relative.records),
    )


def _device(name: str, precision: str | None, matmul_precision: str | None) -> str:
    return f"{name}, precision {precision or 'unknown'}, products {matmul_precision or 'unknown'}"


def _another_device(device: str) -> Difference:
    return Difference("device", f"device: {device}; the paper: P100 GPUs")


def _figures(absolute: Cell, relative: Cell, ratio: Cell) -> tuple[Figure, ...]:
    return (
        figure("absolute", "steps_per_second", absolute),
        figure("relative", "steps_per_second", relative),
        figure("relative", "ratio", ratio),
        figure("relative", "paper", Cell(paper.RELATIVE_SPEED, n=1)),
    )


@dataclass(frozen=True)
class Bench:
    """Whole training steps of both variants, timed in turn; a ratio is of the steps/s within a round."""

    name: str
    model: str
    batch: str
    device: str
    how: str
    absolute: float
    relative: float
    ratio: float
    low: float
    high: float
    rounds: int
    smaller: bool  # than the paper's base, as a model


def bench_row(bench: Bench) -> PaperRow:
    """Medians over the rounds; the ends of the ratio are its least and its greatest round."""
    absolute, relative, ratio = (
        Cell(value, None, bench.rounds) for value in (bench.absolute, bench.relative, bench.ratio)
    )
    figures = [
        replace(one, low=bench.low, high=bench.high, spread="range over rounds") if one.name == "ratio" else one
        for one in _figures(absolute, relative, ratio)
    ]
    model = [Difference("model", f"model {bench.model}; the paper: base", smaller=True)] if bench.smaller else []
    ways = (*model, Difference("batch", f"batch: {bench.batch}; the paper: about 25,000 tokens"))
    labels = (bench.model, bench.batch, bench.device, "in turn")
    return PaperRow(labels, tuple(figures), (*ways, _another_device(bench.device)), (f"{bench.how} ({bench.name})",))


class _Named(BaseModel):
    name: str
    num_layers: int
    d_model: int


class _Vocabulary(BaseModel):
    vocabulary_size: int


class _Hardware(BaseModel):
    precision: str
    matmul_precision: str


class _Config(BaseModel):
    model: _Named
    data: _Vocabulary
    hardware: _Hardware
    variants: list[str]
    sentences: int
    length: int
    rounds: int


class _Step(BaseModel):
    variant: str
    steps_per_second: float = Field(gt=0)
    relative_speed: float = Field(gt=0)
    min: float
    max: float


class _Document(BaseModel):
    """What is read of a document of `rpr-cli bench`."""

    device: str
    config: _Config
    step: list[_Step]


class _Round(BaseModel):
    """What is read of a line of sweeps/results/peers: one fresh process of one program."""

    round: int
    label: str
    size: str
    threads: int
    matmul: str
    timed_steps: int
    steps_per_s: float = Field(gt=0)


_NOT_LOOKED_INTO = {"wandb", "checkpoints"}


def find_benches(root: Path) -> tuple[list[Bench], list[str]]:
    """The speeds of every bench document below `root`, in the order of their paths, and a line for each damaged one.

    A document that did not time absolute and relative together has none.
    """
    benches, problems = [], []
    for path in sorted(root.rglob("*.json")):
        if any(part in _NOT_LOOKED_INTO or part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            bench = _read(visible(path.name), json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problems.append(visible(f"{path}: not as rpr-cli bench writes it ({where}: {first['msg']}); measure again"))
            continue
        except (OSError, ValueError, RecursionError):
            continue  # no JSON: find_records tells of those that were to be records
        benches += [bench] if bench is not None else []
    return benches, problems


def _read(name: str, document: Any) -> Bench | None:
    if isinstance(document, dict) and {"device", "config", "step"} <= document.keys():
        return _of_a_document(name, _Document.model_validate(visible_tree(document)))
    per_process = {"round", "label", "steps_per_s"}
    if isinstance(document, list) and all(isinstance(one, dict) and per_process <= one.keys() for one in document):
        return _of_rounds(
            name,
            [_Round.model_validate(visible_tree(one)) for one in document if str(one["label"]).startswith("ours")],
        )
    return None


def _of_a_document(name: str, document: _Document) -> Bench | None:
    config, steps = document.config, {step.variant: step for step in document.step}
    if config.variants[0] != "absolute" or not {"absolute", "relative"} <= steps.keys():
        return None
    relative, base = steps["relative"], paper.MODELS["base"]
    hardware = config.hardware
    return Bench(
        name=name,
        model=config.model.name,
        batch=f"{config.sentences} sentences of {config.length}, {config.data.vocabulary_size:,} pieces",
        device=_device(document.device, hardware.precision, hardware.matmul_precision),
        how=f"rpr-cli bench: in turn on the same batch in one process, {config.rounds} rounds",
        absolute=steps["absolute"].steps_per_second,
        relative=relative.steps_per_second,
        ratio=relative.relative_speed,
        low=relative.min,
        high=relative.max,
        rounds=config.rounds,
        smaller=config.model.num_layers < base.num_layers or config.model.d_model < base.d_model,
    )


def _of_rounds(name: str, rounds: list[_Round]) -> Bench | None:
    absolute = {one.round: one for one in rounds if one.label == "ours"}
    relative = {one.round: one.steps_per_s for one in rounds if one.label == "ours:positions=relative"}
    both = sorted(absolute.keys() & relative.keys())
    if not both:
        return None
    ratios = [relative[number] / absolute[number].steps_per_s for number in both]
    one = absolute[both[0]]
    return Bench(
        name=name,
        model=one.size,
        batch=f"{one.timed_steps} steps of one corpus a round",
        device=_device(f"{one.threads} threads of a CPU", "32", one.matmul),
        how=f"fresh processes in turn on the same batches, {len(both)} rounds",
        absolute=statistics.median(absolute[number].steps_per_s for number in both),
        relative=statistics.median(relative[number] for number in both),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        rounds=len(both),
        smaller=one.size not in paper.MODELS,
    )

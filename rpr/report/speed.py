"""Steps per second relative to absolute positions (the paper's "7% slower"), as `rpr-cli bench` measures them.

Whole runs are at different times, so that other work may have slowed one of them: their speeds decide nothing, and
stand in their records alone.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpr import paper
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import flat, varying
from rpr.records.scores import Interval
from rpr.report.render import Column, Grid

_PAPERS = {True: single(paper.RELATIVE_SPEED), False: missing("the paper prints one ratio, of its relative model")}


class SpeedRow(NamedTuple):
    """A variant's speed in one benchmark."""

    model: str
    runs: str
    position: str
    arithmetic: str
    own: dict[str, Any]  # what may distinguish the benchmark from others of its model and runs
    device: str
    steps: Measurement
    ratio: Measurement
    papers_model: bool


def read_benches(paths: Iterable[Path]) -> tuple[list[SpeedRow], list[str]]:
    """The speeds of all bench documents among JSON files, and a line for each damaged one."""
    rows, problems = list[SpeedRow](), list[str]()
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # not JSON: find_records reports those that should be records
        if isinstance(document, dict) and {"device", "config", "step"} <= document.keys():
            try:
                rows += [*_rows(escape_tree(document))]
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                text = f"{path}: not a valid rpr-cli bench document ({error!r}); rerun the benchmark"
                problems.append(escape_control_characters(text))
    return rows, problems


def _rows(document: dict[str, Any]) -> Iterator[SpeedRow]:
    """The speeds of a document, timed alternately, with ratios within a round; none if its baseline is not absolute."""
    config, model, hardware = document["config"], document["config"]["model"], document["config"]["hardware"]
    batch = f"{config['sentences']} sentences of {config['length']}, vocabulary {config['data']['vocabulary_size']:,}"
    precision, matmuls = hardware["precision"], hardware["matmul_precision"]
    arithmetic = "float32" if precision == "32" else precision
    arithmetic += f", matmuls {matmuls}" if precision == "32" and matmuls != "highest" else ""
    own = flat({**model, "attention": hardware.get("attention")})
    papers_k = paper.MODELS[paper.size_of(model["name"])].clip_distance
    papers = model.get("relative_defaults", {}).get("clip_distance") in (None, papers_k)
    for step in document["step"] if config["variants"][0] == "absolute" else ():
        steps = ratio = missing(step.get("problem") or "not measured")
        if step.get("steps_per_second") and step.get("relative_speed"):
            range_of_rounds = Interval(float(step["min"]), float(step["max"]), 1.0, kind="rounds")
            interval = range_of_rounds if step["variant"] != "absolute" else None
            steps = Measurement(float(step["steps_per_second"]), config["rounds"])
            ratio = Measurement(float(step["relative_speed"]), config["rounds"], interval=interval)
        position = str(step["variant"])
        papers_model = papers and position == "relative"
        yield SpeedRow(model["name"], batch, position, arithmetic, own, document["device"], steps, ratio, papers_model)


_COLUMNS = (
    Column("model", "model", lambda row: row.model, label=True),
    Column("runs", "runs", lambda row: row.runs, label=True),
    Column("position", "position", lambda row: row.position, label=True),
    Column("n", "rounds", lambda row: str(row.steps.n)),
    Column("steps_per_second", "steps/s", lambda row: row.steps, digits=2),
    Column("ratio", "ratio to absolute", lambda row: row.ratio, digits=2),
    Column("paper", "paper", lambda row: _PAPERS[row.papers_model], digits=2),
)


def speed_grid(rows: Sequence[SpeedRow]) -> Iterator[Grid]:
    """All benchmarks; nothing without any."""
    notes = (
        f"paper: {paper.RELATIVE_SPEED} of absolute's steps/s, base model on P100 GPUs ({paper.SOURCE})",
        "a ratio is of two timings one after the other, so that a machine whose speed drifts still compares fairly; it "
        "and steps/s are medians over the rounds, each of its own",
    )

    def settings(row: SpeedRow) -> str:
        names = varying([other.own for other in rows if other[:2] == row[:2]])
        return "; ".join([row.arithmetic, *(f"{name} {row.own.get(name)}" for name in names)])

    more = (
        Column("settings", "settings", settings, words=True),
        Column("device", "device", lambda row: row.device, words=True),
    )
    if rows:
        title = "Speed: steps/s by position, and relative to absolute"
        yield Grid("speed", title, (*_COLUMNS, *more), tuple(rows), notes=notes).without_empty_columns()

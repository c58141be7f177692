"""From run records to tables of position variants beside the paper's figures: pure functions, no files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from rpr.config import BEFORE_THE_SETTING
from rpr.errors import RecordError
from rpr.records.position import SHARING, Position, position_of
from rpr.records.record import Record, flat
from rpr.records.scores import METRIC_NAMES, SPLITS
from rpr.report.length_tables import length_tables
from rpr.report.remarks import differences, is_in, paper_figure, score_notes, speed_notes
from rpr.report.rows import Cell, Column, Row, Table, one_per_seed, summarise

# Settings that decide what a figure means; runs that differ in one of them never share a table.
_DECIDING = ("model", "data", "optim", "evaluation")
# Nor do the settings that only add to what is said of a result.
_NOT_DECIDING = {
    "data.cache_dir",
    "evaluation.max_tokens_per_batch",
    "evaluation.bootstrap_samples",
    "evaluation.length_buckets",
}
CORES_MAY_DIFFER = 0.1  # of a run and its baseline, before their speeds are no longer compared


def position_tables(records: Iterable[Record]) -> tuple[Table, ...]:
    """One table for each (corpus, model, steps, hardware) and for each other setting that decides a figure.

    Raises:
        RecordError: if there is no record.
    """
    groups: dict[tuple[str, str, int, str], dict[str, list[Record]]] = {}
    for record in sorted(records, key=lambda record: (record.name, record.seed, record.run_id, record.started)):
        key = (record.data_name, record.model_name, record.max_steps, record.hardware)
        groups.setdefault(key, {}).setdefault(json.dumps(_settings(record), sort_keys=True), []).append(record)
    if not groups:
        raise RecordError("no run record to report; run `rpr-cli sweep ...` first, or name its folder")
    tables = []
    for key, variants in sorted(groups.items()):
        settings = [json.loads(text) for text in sorted(variants)]
        names = {name for one in settings for name in one}
        varying = sorted(name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1)
        for text, members in sorted(variants.items()):
            mine = json.loads(text)
            variant = ", ".join(f"{name} = {mine.get(name)}" for name in varying)
            tables.append(_table(key, variant, members))
    return tuple(tables)


def _settings(record: Record) -> dict[str, object]:
    sections = {name: record.config.get(name) for name in _DECIDING}
    earlier = {key: value for key, value in BEFORE_THE_SETTING.items() if key.partition(".")[0] in _DECIDING}
    return {key: value for key, value in (earlier | dict(flat(sections))).items() if key not in _NOT_DECIDING}


def _table(key: tuple[str, str, int, str], variant: str, records: list[Record]) -> Table:
    found = {
        Column(score.split, score.test_set, score.metric)
        for record in records
        if record.status == "finished"
        for score in record.scores
    }
    columns = tuple(sorted(found, key=_column_order))
    by_position: dict[Position, list[Record]] = {}
    for record in records:
        by_position.setdefault(position_of(record), []).append(record)
    shared = len({position.tables for position in by_position if position.tables}) > 1
    baseline = _baseline_speeds(records)
    positions = sorted(by_position, key=lambda position: position.order)
    rows = tuple(_row(position, by_position[position], columns, baseline, shared) for position in positions)
    data, model, max_steps, hardware = key
    synthetic = any(record.synthetic for record in records)
    finished = [record for record in records if record.status == "finished"]
    notes = (*score_notes(columns, finished), *speed_notes(finished))
    table = Table(data, model, max_steps, hardware, synthetic, variant, columns, rows, notes, differences(records))
    return replace(table, by_length=length_tables(table))


def _column_order(column: Column) -> tuple[int, str, int, str, str]:
    metrics, splits = list(METRIC_NAMES), list(SPLITS)
    metric = metrics.index(column.metric) if column.metric in metrics else len(metrics)
    split = splits.index(column.split) if column.split in splits else len(splits)
    return (metric, column.metric, split, column.split, column.test_set)


def _row(
    position: Position,
    records: list[Record],
    columns: tuple[Column, ...],
    baseline: Mapping[object, _Speed],
    show_sharing: bool,
) -> Row:
    finished = one_per_seed([record for record in records if record.status == "finished"])
    done = {record.seed for record in finished}
    unfinished = "; ".join(
        f"seed {run.seed} {run.outcome}" for run in records if run.outcome is not None and run.seed not in done
    )
    figure, figure_remark = paper_figure(position, records[0])
    remarks = [remark for remark in (figure_remark, unfinished if finished else "") if remark]
    for record in finished:
        if record.steps is not None and record.steps != record.max_steps:
            remarks.append(f"seed {record.seed} stopped at step {record.steps:,} of {record.max_steps:,}")
    label = position.label
    if show_sharing and position.tables:
        label += f", {SHARING.get(position.tables, position.tables)}"
    parameters = {record.parameters for record in finished if record.parameters is not None}
    memory = [
        run.training.peak_memory_bytes
        for run in finished
        if run.training and run.training.peak_memory_bytes is not None
    ]
    steps_per_second, relative_speed = _speed(finished, baseline, unfinished)
    return Row(
        position=position,
        label=label,
        cells={column: _score_cell(column, finished, unfinished) for column in columns},
        paper=figure,
        steps_per_second=steps_per_second,
        relative_speed=relative_speed,
        parameters=parameters.pop() if len(parameters) == 1 else None,
        peak_memory_bytes=max(memory, default=None),
        remarks=tuple(remarks),
        records=tuple(records),
    )


def _score_cell(column: Column, finished: list[Record], unfinished: str) -> Cell:
    scores = [score for record in finished for score in record.scores if is_in(column, score)]
    if not scores:
        return Cell(None, reason=f"not evaluated on {column.split}" if finished else unfinished)
    if len({(score.signature, score.num_sentences, score.beam_size, score.length_penalty) for score in scores}) > 1:
        return Cell(None, reason=f"{column.split}: the seeds were scored in different ways, so they have no mean")
    cell = summarise([score.score for score in scores])
    return replace(cell, interval=scores[0].interval) if len(scores) == 1 else cell


def _speed_setting(record: Record) -> tuple[str, str | None, str | None]:
    training = record.training
    return (record.device, training.precision if training else None, training.matmul_precision if training else None)


class _Speed(NamedTuple):
    """Steps/s of one run, where it was measured, and, on a CPU, how many cores worked on it (None: not known)."""

    value: float
    setting: tuple[str, str | None, str | None]
    on_cpu: bool
    cores: float | None


def _speeds(records: Iterable[Record]) -> list[_Speed]:
    return [
        _Speed(
            run.training.steps_per_second,
            _speed_setting(run),
            run.setting("hardware.accelerator") == "cpu",
            run.training.cores_used,
        )
        for run in records
        if run.training is not None and run.training.steps_per_second
    ]


def _baseline_speeds(records: list[Record]) -> dict[object, _Speed]:
    """Mean steps/s of the sinusoidal baseline for each (device, precision): only like is compared with like."""
    baselines = [run for run in records if run.status == "finished" and position_of(run).kind == "absolute"]
    by_setting: dict[object, list[_Speed]] = {}
    for speed in _speeds(one_per_seed(baselines)):
        by_setting.setdefault(speed.setting, []).append(speed)
    means: dict[object, _Speed] = {}
    for setting, speeds in by_setting.items():
        cores = [speed.cores for speed in speeds if speed.cores is not None]
        known = statistics.fmean(cores) if len(cores) == len(speeds) else None
        means[setting] = speeds[0]._replace(value=statistics.fmean(speed.value for speed in speeds), cores=known)
    return means


def _beside_other_work(speed: _Speed, baseline: _Speed) -> str | None:
    """Why a speed cannot stand beside its baseline's: one of the two did not have the cores that the other had, or
    nobody knows.
    """
    if not speed.on_cpu:
        return None
    if speed.cores is None or baseline.cores is None:
        return (
            "how many cores worked on it, or on absolute, was not recorded: other work may have run beside one of them"
        )
    few, many = sorted((speed.cores, baseline.cores))
    if few > (1 - CORES_MAY_DIFFER) * many:
        return None
    return (
        f"{speed.cores:.2f} cores worked on it and {baseline.cores:.2f} on absolute: other work ran beside one of them"
    )


def _speed(finished: list[Record], baseline: Mapping[object, _Speed], unfinished: str) -> tuple[Cell, Cell]:
    measured = _speeds(finished)
    if not measured:
        reason = "speed not measured" if finished else unfinished
        return Cell(None, reason=reason), Cell(None, reason=reason)
    pairs = [(speed, baseline[speed.setting]) for speed in measured if speed.setting in baseline]
    disturbed = [why for one, other in pairs if (why := _beside_other_work(one, other)) is not None]
    where = "on this device and precision" if baseline else "of this corpus, model and hardware"
    if disturbed:
        ratio = Cell(None, reason=disturbed[0])
    elif pairs:
        ratio = summarise([one.value / other.value for one, other in pairs])
    else:
        ratio = Cell(None, reason=f"no finished absolute (sinusoidal) run {where} to compare with")
    if len({speed.setting for speed in measured}) > 1:
        return Cell(
            None, reason="steps/s: the seeds ran on different devices or precisions, so they have no mean"
        ), ratio
    return summarise([speed.value for speed in measured]), ratio

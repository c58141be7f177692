"""rpr-cli report: tables, plots and one HTML page from local records, or a plot of one run's positions."""

import contextlib
import gc
import json
import shutil
import sys
from pathlib import Path

from rpr.config.commands import ReportConfig
from rpr.errors import RecordError, did_you_mean
from rpr.io.atomic import exclusive, replace_file
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.records.record import find_records
from rpr.report.page import build_report, read_remarks
from rpr.runs.locks import with_killed_runs

MIN_DISTANCE = 8  # shown even for the smallest k: for k = 0, 2k would be no distance at all


def run(config: ReportConfig) -> None:
    """Writes a report of all runs or a sweep's below output_dir, and prints it as text or JSON; with `run` one on the
    positions of that run. Raises RecordError if there is no record, or a folder cannot be written.
    """
    # 1. On one run.
    if config.run is not None:
        run_dir = user_path(config.run).absolute()
        with exclusive(run_dir, "positions.*") if run_dir.is_dir() else contextlib.nullcontext():
            _report_positions(config, run_dir)
        return
    # 2. The records.
    root = user_path(config.runs_dir)
    if not root.exists():
        raise RecordError(f"runs_dir: {root} does not exist; train something first (rpr-cli sweep quick)")
    records, unread = with_killed_runs(find_records(root, config.sweep))
    why = "".join(f"; not read: {problem}" for problem in unread[:1])
    gc.freeze()  # records stay to the end: with ten thousand, looking through them for garbage takes seconds each time
    if config.sweep is not None and not records and (runs := find_records(root).records):
        sweeps = {name for _, run in runs for name in run.sweeps}
        hint = did_you_mean(config.sweep, sweeps) if sweeps else "; none of its runs belongs to a sweep: leave it out"
        raise RecordError(f"sweep: no run below {root} belongs to {config.sweep!r}{hint}{why}")
    if unread and not records:
        raise RecordError(f"no run record to report{why}")
    # 3. The report.
    title = config.title or (f"Sweep {config.sweep}" if config.sweep else "All runs")
    remarks, out_dir = read_remarks(root, records), user_path(config.output_dir) / (config.sweep or "all")
    with exclusive(out_dir, "*"):
        report = build_report(
            records, out_dir, title, unread, config.baseline, remarks, published=config.paper, pdf=config.pdf
        )
    if config.format == "json":
        print(json.dumps(report.document, indent=2, ensure_ascii=False))
        return
    print(report.markdown if config.verbose else report.summary(*shutil.get_terminal_size((100, 50))))
    for problem in report.problems:
        print(f"rpr-cli: not in this report: {problem}", file=sys.stderr)


def _report_positions(config: ReportConfig, run_dir: Path) -> None:
    """Measurements and a plot of what one run's position representations learned, in its folder: positions.json and
    positions.svg. Raises RunError if the run failed or was interrupted, DataError for no checkpoint or data.
    """
    from rpr.checks.positions import DEFINITIONS, measure  # imports torch and Lightning
    from rpr.records.position import position_of
    from rpr.report.plots import position_figure, rendered
    from rpr.runs import loading, runtime

    # 1. Measure.
    data, trained = loading.load_with_examples(run_dir, config, "validation", config.validation_sentences)
    record, k = trained.record, trained.config.position.k
    with Progress(len(trained.sources), trained.items, "attention") as bar:
        numbers = measure(
            trained.model,
            trained.pairs,
            max_distance=config.max_distance if k is None else min(config.max_distance, max(MIN_DISTANCE, 2 * k)),
            max_tokens_per_batch=trained.config.evaluation.max_tokens_per_batch,
            progress=bar.reach,
        )
    # 2. The document: of six digits, and with a line for each key, to be diffable.
    numbers = json.loads(json.dumps(numbers), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    facts = record.model_dump(include={"name", "run_id", "status"}) | {
        "checkpoint": trained.checkpoint,
        "position": trained.config.position.model_dump(mode="json"),
        "validation_set": data.set_name("validation"),
        "synthetic": record.synthetic,
        "precision": "64" if config.hardware.precision == "64" else "32",  # also on a GPU, where training has bf16
        "matmul_precision": runtime.matmul_precision(config.hardware),
    }
    document = {"run": facts, "definitions": DEFINITIONS, **numbers}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in document.items()]
    # 3. The files.
    facets = [position_of(record).label, trained.checkpoint, "not finished" * (record.status != "finished")]
    subtitle = " | ".join(filter(None, [*facets, "synthetic data" * record.synthetic]))
    figure = position_figure(numbers, config.title or f"What positions learned: {record.name}", subtitle)
    replace_file(run_dir / "positions.svg", rendered(figure))
    replace_file(run_dir / "positions.json", "{\n" + ",\n".join(lines) + "\n}\n")
    if config.format == "json":
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    print(f"{run_dir.name}: {subtitle}")
    for suffix in ("svg", "json"):
        print(f"written: {run_dir / f'positions.{suffix}'}", file=sys.stderr)

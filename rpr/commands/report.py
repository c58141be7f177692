"""rpr-cli report: tables, plots and one HTML page from local records, or a plot of one run's positions."""

import contextlib
import gc
import json
import sys

from rpr.commands.printing import window
from rpr.config.commands import ReportConfig
from rpr.errors import RecordError, did_you_mean
from rpr.io.atomic import exclusive
from rpr.paths import user_path
from rpr.records.record import find_records
from rpr.report.page import build_report, read_remarks, unusable_records
from rpr.runs.locks import with_killed_runs


def run(config: ReportConfig) -> None:
    if config.run is not None:
        from rpr.commands import position_report  # imports torch and Lightning

        run_dir = user_path(config.run).absolute()
        with exclusive(run_dir, "positions.*") if run_dir.is_dir() else contextlib.nullcontext():
            position_report.report(config, run_dir)
        return
    root = user_path(config.runs_dir)
    if not root.exists():
        raise RecordError(f"runs_dir: {root} does not exist; train something first (rpr-cli sweep quick)")
    records, unread = with_killed_runs(find_records(root, config.sweep))
    gc.freeze()  # records stay to the end: with ten thousand, looking through them for garbage takes seconds each time
    if config.sweep is not None and not records and (runs := find_records(root).records):
        sweeps = {name for _, run in runs for name in run.sweeps}
        hint = did_you_mean(config.sweep, sweeps) if sweeps else "; none of its runs belongs to a sweep: leave it out"
        raise RecordError(f"sweep: no run below {root} belongs to {config.sweep!r}{hint}{unusable_records(unread)}")
    name = config.sweep or "all"
    title = config.title or (f"Sweep {config.sweep}" if config.sweep else "All runs")
    remarks = read_remarks(root, records)
    out_dir = user_path(config.output_dir) / name
    with exclusive(out_dir, "*"):
        report = build_report(
            records, out_dir, title, unread, config.baseline, remarks, published=config.paper, pdf=config.pdf
        )
    written = [path for path in report.files if path.suffix in (".html", ".svg", ".md")]
    if config.format == "json":
        print(json.dumps(report.document, indent=2, ensure_ascii=False))
        return
    print(report.markdown if config.verbose else report.summary(*window()))
    for problem in report.problems:
        print(f"rpr-cli: not in this report: {problem}", file=sys.stderr)
    if config.verbose:
        print("\n".join(f"written: {path}" for path in written), file=sys.stderr)

"""rpr-cli verify: checks of a trained run's model."""

import tempfile
from collections.abc import Iterator, Sequence
from typing import get_args

from pydantic_core import to_json

from rpr.checks.verification import Check, check_model, export_check
from rpr.commands.printing import table
from rpr.config.commands import VerifyConfig
from rpr.decode.engine import search_of
from rpr.decode.exported import Kind
from rpr.export.writing import in_float64
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.report.render import DASH, wrapped
from rpr.runs.loading import TrainedModel, load_with_examples


def run(config: VerifyConfig) -> None:
    """Prints a table of the checks, or one JSON document; writes nothing. Raises RecordError or DataError if there is
    no readable run, or no sentences of its data; SystemExit 1, after the table, if a check failed.
    """
    run_dir = user_path(config.run).absolute()
    _, trained = load_with_examples(run_dir, config, config.split, config.sentences)
    results: list[Check] = []
    with Progress(None, "checks", run_dir.name) as bar:
        for check in checks(trained):
            results.append(check)
            bar.update(last=f"{check.name} {check.outcome}")
    failed = [check.name for check in results if check.outcome == "failed"]
    if config.format == "json":
        about = {"run": run_dir.name, "checkpoint": trained.checkpoint, "split": trained.split}
        document = {**about, "passed": not failed, "checks": results}
        print(to_json(document, indent=2, inf_nan_mode="null").decode())
    else:
        head = f"{run_dir.name}: {trained.checkpoint}; {trained.items} of {trained.split}; float64 unless noted"
        print("\n".join([*wrapped([head]), "", *_table(results, trained.items)]))
    if failed:
        note(f"{run_dir.name}: failed: {', '.join(failed)}")
        raise SystemExit(1)


def checks(trained: TrainedModel) -> Iterator[Check]:
    """All checks, in order."""
    search, data = search_of(trained.config.evaluation), trained.config.data
    longest = data.max_length or data.context_length or 0
    yield from check_model(in_float64(trained.model), trained.pairs, search, longest)
    for format in get_args(Kind):
        with tempfile.TemporaryDirectory(prefix="rpr-verify-") as folder:
            yield export_check(format, trained, user_path(folder))


def _table(checks: Sequence[Check], items: str) -> list[str]:
    """A row for each check, with a footnote on what it compares."""
    rows, notes = [], list[str]()
    for at, check in enumerate(checks, start=1):
        figures = [(check.difference, ".1e"), (check.tolerance, ".0e")]
        shown = [DASH if value is None else format(value, digits) for value, digits in figures]
        rows.append([f"{check.name} [{at}]", check.outcome, *shown, f"{check.sentences:,}"])
        notes += wrapped([check.what + (f" ({check.reason})" if check.reason else "")], f"[{at}] ")
    return [*table(["check", "outcome", "largest difference", "allowed", items], rows, texts=2), *notes]

"""rpr-cli compare: which run is better on the same test sentences, by how much, and with what significance."""

import json
from collections.abc import Iterator
from dataclasses import replace

from rpr.config.commands import CompareConfig
from rpr.errors import RecordError, RunError
from rpr.io.escape import escape_control_characters, note
from rpr.paths import user_path
from rpr.records.position import corpus_differences
from rpr.records.record import find_records, record_path
from rpr.report.groups import usual_baseline
from rpr.report.paired import PairedReport, as_json, grids
from rpr.report.render import terminal, wrapped
from rpr.runs.locks import with_killed_runs
from rpr.scoring.comparison import (
    Run,
    can_be_compared,
    compare_runs,
    pairs_of_runs,
    pairs_of_sweep,
    read_run,
    settings_differences,
    with_short_names,
)


def run(config: CompareConfig) -> None:
    """Prints, for each split and metric, scores, differences and tests; writes nothing."""
    # 1. The runs, and which are compared. Some names are those of folders.
    given = _of_sweep(config) if config.sweep else [read_run(record_path(user_path(folder))) for folder in config.runs]
    runs = [replace(run, name=escape_control_characters(run.name)) for run in with_short_names(given)]
    groups = [(runs, pairs_of_runs(runs))]
    if config.sweep is not None:
        baseline = config.baseline or usual_baseline([run.record for run in runs])
        groups, without_baseline = pairs_of_sweep(runs, config.sweep, baseline)
        for line in without_baseline:
            note(f"left out: {line}")
    # 2. The tests.
    numbers = config.model_dump(include={"samples", "trials", "seed"})
    chosen = config.splits, config.metrics, config.bleu_tokenizer
    families = [family for of_group, pairs in groups for family in compare_runs(of_group, pairs, *chosen, **numbers)]
    # 3. In what else the runs differ; settings of a record are untrusted.
    remarks = [escape_control_characters(line) for _, pairs in groups for pair in pairs for line in _remarks(*pair)]
    title = f"Paired tests{f': sweep {config.sweep}' if config.sweep else ''}"
    report = PairedReport(title=title, tests=tuple(families), remarks=tuple(remarks), **numbers)
    if config.format == "json":
        print(json.dumps(as_json(report), indent=2, ensure_ascii=False))
    else:
        tables = [terminal(grid) for family in families for grid in grids(family)]
        print("\n\n".join([*tables, "\n".join(wrapped(report.notes))]))


def _remarks(baseline: Run, run: Run) -> Iterator[str]:
    if baseline.config.seed != run.config.seed:
        yield f"{run.name} is compared with a run of another seed, {baseline.name}."
    its, own = corpus_differences([baseline.record, run.record])
    if own:
        yield f"{run.name} was trained on other files of {run.record.data_name} ({own}) than {baseline.name} ({its})."
    if differences := settings_differences(run, baseline):
        yield f"{run.name} was trained or decoded otherwise than {baseline.name}: {differences}."


def _of_sweep(config: CompareConfig) -> list[Run]:
    """The finished runs of a sweep that can be compared; the others are reported on stderr."""
    root, runs = user_path(config.runs_dir), list[Run]()
    records, left_out = with_killed_runs(find_records(root, config.sweep))
    for line in left_out:
        note(f"left out: {line}")
    for path, record in records:
        try:
            if record.outcome is None and not any(can_be_compared(path, score.split) for score in record.scores):
                raise RunError(f"{record.name}: beside its record are no translations, or documents with their nats")
            runs.append(read_run(path))
        except (RecordError, RunError) as error:  # of another version, unfinished
            note(f"left out: {error}")
    if not runs:
        remedy = f"train it (rpr-cli sweep {config.sweep})"
        raise RunError(f"sweep {config.sweep}: no finished run to compare in {root}; {remedy}")
    return runs

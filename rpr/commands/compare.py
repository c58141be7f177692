"""rpr-cli compare: which run is better on the same test sentences, by how much, and with what significance."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from rpr.config.commands import CompareConfig
from rpr.errors import RecordError, RunError
from rpr.io.escape import escape_control_characters
from rpr.kinds import TEXT
from rpr.paths import user_path
from rpr.records.difference import corpus_differences
from rpr.records.record import find_records
from rpr.report.paired import PairedReport, as_json, as_markdown, grids
from rpr.report.render import titled, wrapped
from rpr.report.sweep_files import usual_baseline
from rpr.runs.locks import with_killed_runs
from rpr.scoring.comparison import (
    Run,
    as_run,
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
    if config.sweep is None:
        runs = with_short_names([read_run(user_path(folder)) for folder in config.runs])
    else:
        runs = with_short_names(_of_sweep(config.sweep, user_path(config.runs_dir)))
    # Some names are those of folders.
    runs = [replace(run, name=escape_control_characters(run.name)) for run in runs]
    if config.sweep is None:
        groups = [(runs, pairs_of_runs(runs))]
    else:
        baseline = config.baseline or usual_baseline([run.record for run in runs])
        groups, without_baseline = pairs_of_sweep(runs, config.sweep, baseline)
        for line in without_baseline:
            print(f"left out: {line}", file=sys.stderr)
    numbers = config.model_dump(include={"samples", "trials", "seed"})
    families = tuple(
        family
        for of_group, pairs in groups
        for family in compare_runs(of_group, pairs, config.splits, config.metrics, config.bleu_tokenizer, **numbers)
    )
    every = [pair for _, pairs in groups for pair in pairs]
    remarks = [
        f"{run.name} is compared with a run of another seed, {baseline.name}."
        for baseline, run in every
        if baseline.config.seed != run.config.seed
    ]
    remarks += [
        f"{run.name} was trained on other files of {run.record.data_name} ({own}) than {baseline.name} ({its})."
        for baseline, run in every
        for its, own in [corpus_differences([baseline.record, run.record])]
        if own
    ]
    remarks += [
        f"{run.name} was trained or decoded otherwise than {baseline.name}: {differences}."
        for baseline, run in every
        if (differences := settings_differences(run, baseline))
    ]
    remarks = [escape_control_characters(remark) for remark in remarks]  # settings of a record are untrusted
    title = f"Paired tests{f': sweep {config.sweep}' if config.sweep else ''}"
    report = PairedReport(title=title, tests=families, remarks=tuple(remarks), **numbers)
    if config.format == "json":
        print(json.dumps(as_json(report), indent=2, ensure_ascii=False))
    elif config.format == "markdown":
        print(as_markdown(report))
    else:
        print("\n\n".join([*map(titled, grids(report)), "\n".join(wrapped(report.notes))]))


def _of_sweep(sweep: str, runs_dir: Path) -> list[Run]:
    """The finished runs of a sweep that can be compared; the others are reported on stderr."""
    if not runs_dir.is_dir():
        raise RunError(f"runs_dir: {runs_dir} does not exist; train the sweep first (rpr-cli sweep {sweep})")
    records, problems = with_killed_runs(find_records(runs_dir, sweep))
    runs, left_out, unread = list[Run](), [*problems], list[RecordError]()
    for path, record in records:
        if record.outcome is not None:
            left_out.append(f"{record.name}: {record.outcome}")
        elif not any(can_be_compared(path, score.split) for score in record.scores):
            what = "translations" if record.kind is not TEXT else "documents with their nats"
            left_out.append(f"{record.name}: no {what} beside its record")
        else:
            try:
                runs.append(as_run(path, record))
            except RecordError as error:  # of another version
                unread.append(error)
    if not runs:
        files = "the translations next to them, or SPLIT.documents.txt of language models"
        finished = any(record.outcome is None for _, record in records)
        why = f"only records, but compare needs {files}," if finished else "no finished run"
        train = RunError(f"sweep {sweep}: {why} in {runs_dir}; train it first (rpr-cli sweep {sweep})")
        raise unread[0] if unread else train
    for line in (*left_out, *map(str, unread)):
        print(f"left out: {escape_control_characters(line)}", file=sys.stderr)
    return runs

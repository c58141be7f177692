"""rpr-cli compare: which run is better on the same test sentences, by how much, and with what significance."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rpr.commands.printing import shortened, titled
from rpr.config.commands import CompareConfig
from rpr.errors import RunError
from rpr.io.escape import escape_control_characters
from rpr.metrics.comparison import (
    ALPHA,
    Comparison,
    Family,
    Run,
    as_run,
    compare_runs,
    pairs_of_runs,
    pairs_of_sweep,
    read_run,
    with_short_names,
)
from rpr.metrics.significance import LEVEL
from rpr.records.measurement import single
from rpr.records.record import RECORD_NAME, find_records
from rpr.records.scores import METRIC_NAMES
from rpr.report.grid import Column, Grid, Note
from rpr.report.render import bullets, escape_markdown, markdown, wrapped

_NAME = 60  # characters of a run's name: with its score and interval it fits in a line


def run(config: CompareConfig) -> None:
    """Prints, for each split and metric, scores, differences and tests; writes nothing."""
    if config.sweep is None:
        runs = _named([read_run(Path(folder)) for folder in config.runs])
        groups = [(runs, pairs_of_runs(runs))]
    else:
        groups = pairs_of_sweep(_named(_of_sweep(config.sweep, Path(config.runs_dir))), config.sweep)
    numbers = config.model_dump(include={"samples", "trials", "seed"})
    found = [compare_runs(runs, pairs, config.splits, config.metrics, **numbers) for runs, pairs in groups]
    notes = _notes(config, found)
    if config.format == "json":
        families = [_document(family) for families in found for family in families]
        document = {"level": LEVEL, "alpha": ALPHA, **numbers, "tests": families, "notes": notes}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    tables = [table for families in found for family in families for table in _tables(family)]
    if config.format == "markdown":
        title = f"Paired tests{f': sweep {config.sweep}' if config.sweep else ''}"
        print("\n".join([f"# {escape_markdown(title)}\n", *map(markdown, tables), bullets(notes)]))
        return
    print("\n\n".join([*map(titled, tables), "\n".join(wrapped([("", note) for note in notes]))]))


def _named(runs: Sequence[Run]) -> list[Run]:
    """The runs with short unique names; some are folder names, whose control characters are escaped."""
    return [replace(run, name=escape_control_characters(run.name)) for run in with_short_names(runs)]


def _of_sweep(sweep: str, runs_dir: Path) -> list[Run]:
    """The finished runs of a sweep; the others are reported on stderr."""
    if not runs_dir.is_dir():
        raise RunError(f"runs_dir: {runs_dir} does not exist; train the sweep first (rpr-cli sweep {sweep})")
    found = find_records(runs_dir, sweep)
    left_out = [*found.problems, *(f"{record.name}: {record.outcome}" for _, record in found.records if record.outcome)]
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    runs = [
        as_run(path.parent, record)
        for path, record in found.records
        if record.outcome is None and path.name == RECORD_NAME
    ]
    if not runs:
        collected = any(record.outcome is None for _, record in found.records)
        why = "only records, but compare needs the translations next to them" if collected else "no finished run"
        raise RunError(f"sweep {sweep}: {why} in {runs_dir}; train it first (rpr-cli sweep {sweep})")
    return runs


def _tables(family: Family) -> list[Grid]:
    """A table of numbered scores, then one of differences between the numbered runs, whose names would not fit."""
    metric = METRIC_NAMES[family.metric]
    title = f"{family.split} ({family.test_set}, {family.num_sentences:,} sentences), {metric}: {family.signature}"
    corrected = len(family.comparisons) > 1
    numbers = {system.run.name: number for number, system in enumerate(family.systems, start=1)}
    scores = (
        Column("number", "", lambda one: str(numbers[one.run.name]), label=True),
        Column("run", "run", lambda one: shortened(one.run.name, _NAME), label=True),
        Column("score", "score", lambda one: single(one.score, one.interval), digits=2),
    )

    def runs(one: Comparison) -> str:
        return f"{numbers[one.other.name]} - {numbers[one.baseline.name]}"

    differences = [
        Column("runs", "runs", runs, label=True),
        Column(
            "difference", "difference", lambda one: single(one.tests.difference, one.tests.interval), 2, signed=True
        ),
        Column("p_bootstrap", "p boot.", lambda one: single(one.tests.p_bootstrap), 4),
        Column("p_bootstrap_holm", "Holm", lambda one: single(one.holm_bootstrap), 4),
        Column("p_randomisation", "p rand.", lambda one: single(one.tests.p_randomisation), 4),
        Column("p_randomisation_holm", "Holm", lambda one: single(one.holm_randomisation), 4),
    ]
    columns = tuple(column for column in differences if corrected or column.heading != "Holm")
    remarks = [
        f"{variant}: mean {one.value:.2f}, standard deviation {one.deviation:.2f} over {one.n} seeds"
        for variant, one in family.variants.items()
        if one.deviation is not None
    ]
    verdicts = [comparison.verdict for comparison in family.comparisons if comparison.verdict]
    remarks += [f"{verdict} (p < {ALPHA} by both tests{', after Holm' * corrected})" for verdict in verdicts]
    notes = tuple(map(Note, remarks))
    return [
        Grid("scores", title, scores, family.systems),
        Grid("differences", "Differences", columns, family.comparisons, notes=notes),
    ]


def _notes(config: CompareConfig, found: Sequence[Sequence[Family]]) -> list[str]:
    """How the tests were done, and what they do not show."""
    families = [family for of_group in found for family in of_group]
    comparisons = [comparison for family in families for comparison in family.comparisons]
    notes = [
        f"p boot.: paired bootstrap as in sacreBLEU, in effect one-sided, {config.samples:,} samples; p rand.: "
        f"approximate randomisation, two-sided, {config.trials:,} trials; seed {config.seed}.",
        "Intervals and p concern the test sentences: whether the result would hold on another, similar test set.",
    ]
    corrected = ""
    if any(len(family.comparisons) > 1 for family in families):
        notes.append("Holm: the p before it, corrected for all comparisons in the table.")
        corrected = " after Holm's correction"
    if not any(comparison.verdict for comparison in comparisons):
        notes.append(f"No difference is below p = {ALPHA} by both tests{corrected}: no run is shown to be better.")
    seeds = [one.n for family in families for one in family.variants.values()]
    if max(seeds) == 1:
        notes.append("One run per variant: these tests do not show how much another seed would differ.")
    elif min(seeds) == 1:
        notes.append("For a variant with one run, these tests do not show how much another seed would differ.")
    unequal = {c.other.name: c.baseline.name for c in comparisons if c.baseline.config.seed != c.other.config.seed}
    notes += [f"{other} is compared with a run of another seed, {base}." for other, base in unequal.items()]
    return notes


def _document(family: Family) -> dict[str, Any]:
    return {
        "split": family.split,
        "test_set": family.test_set,
        "metric": family.metric,
        "signature": family.signature,
        "num_sentences": family.num_sentences,
        "scores": [
            {
                "run": system.run.name,
                "folder": escape_control_characters(str(system.run.folder)),
                "variant": system.run.variant,
                "seed": system.run.config.seed,
                "score": system.score,
                "interval": asdict(system.interval),
            }
            for system in family.systems
        ],
        "variants": [
            {"variant": variant, "mean": one.value, "sd": one.deviation, "n": one.n}
            for variant, one in family.variants.items()
        ],
        "comparisons": [
            {
                "baseline": comparison.baseline.name,
                "run": comparison.other.name,
                "difference": comparison.tests.difference,
                "interval": asdict(comparison.tests.interval),
                "p_bootstrap": comparison.tests.p_bootstrap,
                "p_randomisation": comparison.tests.p_randomisation,
                "p_bootstrap_holm": comparison.holm_bootstrap,
                "p_randomisation_holm": comparison.holm_randomisation,
                "verdict": comparison.verdict,
            }
            for comparison in family.comparisons
        ],
    }

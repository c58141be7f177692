"""rpr-cli compare: which run is better on the same test sentences, by how much, and how surely."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rpr.command_config import CompareConfig
from rpr.errors import RunError
from rpr.evaluation.comparison import (
    ALPHA,
    Comparison,
    Family,
    Run,
    as_run,
    compared,
    named,
    pairs_of_runs,
    pairs_of_sweep,
    read_run,
)
from rpr.evaluation.significance import LEVEL
from rpr.io.escape import visible
from rpr.records.record import RECORD_NAME, find_records
from rpr.records.scores import METRIC_NAMES
from rpr.report.text import DASH, aligned


def run(config: CompareConfig) -> None:
    """Prints, for each split and metric, scores, differences and tests; writes nothing."""
    if config.sweep is None:
        groups = [pairs_of_runs(_named([read_run(Path(folder)) for folder in config.runs]))]
    else:
        groups = pairs_of_sweep(_named(_of_sweep(config.sweep, Path(config.runs_dir))), config.sweep)
    found = []
    for pairs in groups:
        found.append(
            compared(
                pairs, config.splits, config.metrics, samples=config.samples, trials=config.trials, seed=config.seed
            )
        )
    notes = _notes(config, found)
    if config.format == "json":
        families = [_document(family) for families in found for family in families]
        settings = {"level": LEVEL, "alpha": ALPHA, **config.model_dump(include={"samples", "trials", "seed"})}
        print(json.dumps({**settings, "tests": families, "notes": notes}, indent=2, ensure_ascii=False))
        return
    print("\n\n".join("\n".join(_lines(family)) for families in found for family in families))
    print("\n" + "\n".join(notes))


def _named(runs: Sequence[Run]) -> list[Run]:
    """Some names are those of folders."""
    return [replace(run, name=visible(run.name)) for run in named(runs)]


def _of_sweep(sweep: str, runs_dir: Path) -> list[Run]:
    """The finished runs of a sweep; the others are named on stderr."""
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
        raise RunError(f"sweep {sweep}: no finished run in {runs_dir}; train it first (rpr-cli sweep {sweep})")
    return runs


def _lines(family: Family) -> list[str]:
    name = METRIC_NAMES[family.metric]
    lines = [f"{family.split} ({family.test_set}, {family.num_sentences:,} sentences), {name}: {family.signature}"]
    against = {comparison.other.name: comparison for comparison in family.comparisons}
    numbers = {system.run.name: str(number) for number, system in enumerate(family.systems, start=1)}
    several_baselines = len({comparison.baseline.name for comparison in family.comparisons}) > 1
    corrected = len(family.comparisons) > 1
    headings = [
        "run",
        "score",
        "95% interval",
        *(["against"] if several_baselines else []),
        "difference",
        "95% interval",
    ]
    headings += ["p boot.", "Holm", "p rand.", "Holm"] if corrected else ["p boot.", "p rand."]
    rows = []
    for system in family.systems:
        number = f"{numbers[system.run.name]}  " if several_baselines else ""
        row = [f"{number}{system.run.name}", f"{system.score:.2f}"]
        row.append(f"[{system.interval.low:.2f}, {system.interval.high:.2f}]")
        comparison = against.get(system.run.name)
        if comparison is None:
            row += [DASH] * (len(headings) - len(row))
        else:
            row += [numbers[comparison.baseline.name]] if several_baselines else []
            row += _figures(comparison, corrected)
        rows.append(row)
    lines += aligned(headings, rows)
    lines += [
        f"{variant}: mean {one.mean:.2f}, standard deviation {one.sd:.2f} over {one.n} seeds"
        for variant, one in family.variants.items()
        if one.sd is not None
    ]
    verdicts = [comparison.verdict for comparison in family.comparisons if comparison.verdict]
    return lines + [f"{verdict} (p < {ALPHA} by both tests{', after Holm' * corrected})" for verdict in verdicts]


def _figures(comparison: Comparison, corrected: bool) -> list[str]:
    tests = comparison.tests
    values = [tests.p_bootstrap, tests.p_randomisation]
    if corrected:
        values = [tests.p_bootstrap, comparison.holm_bootstrap, tests.p_randomisation, comparison.holm_randomisation]
    between = f"[{tests.interval.low:+.2f}, {tests.interval.high:+.2f}]"
    return [f"{tests.difference:+.2f}", between, *(f"{value:.4f}" for value in values)]


def _notes(config: CompareConfig, found: Sequence[Sequence[Family]]) -> list[str]:
    """What the figures are about, and what they are not."""
    families = [family for of_group in found for family in of_group]
    comparisons = [comparison for family in families for comparison in family.comparisons]
    notes = [
        f"p boot.: paired bootstrap as sacreBLEU has it, one-sided in effect, {config.samples:,} samples; p rand.: "
        f"approximate randomisation, two-sided, {config.trials:,} trials; seed {config.seed}.",
        "Intervals and p are about the test sentences: whether another test set like this one would say the same.",
    ]
    if any(len(family.comparisons) > 1 for family in families):
        notes.append("Holm: the p before it, corrected for all comparisons of the same metric and split.")
    if not any(comparison.verdict for comparison in comparisons):
        notes.append(f"No difference is below p = {ALPHA} by both tests: none of these runs is shown to be better.")
    seeds = [one.n for family in families for one in family.variants.values()]
    if max(seeds) == 1:
        notes.append("One training each: nothing here says how much another seed of the same model would differ.")
    elif min(seeds) == 1:
        notes.append("Where a variant has one training, nothing here says how much another seed of it would differ.")
    unequal = {c.other.name: c.baseline.name for c in comparisons if c.baseline.config.seed != c.other.config.seed}
    notes += [f"{other} is compared with another seed, {base}." for other, base in unequal.items()]
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
                "folder": visible(str(system.run.folder)),
                "variant": system.run.variant,
                "seed": system.run.config.seed,
                "score": system.score,
                "interval": asdict(system.interval),
            }
            for system in family.systems
        ],
        "variants": [{"variant": variant, **asdict(one)} for variant, one in family.variants.items()],
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

"""sweeps/RESULTS.md: the prose of sweeps/RESULTS.md.j2 around tables that are rendered from the committed records."""

import json
import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, StrictUndefined

from rpr.records.files import metrics_of
from rpr.records.measurement import Measurement
from rpr.records.record import find_records
from rpr.report.by_context import ABSENT
from rpr.report.groups import Group, Variant, run_groups
from rpr.report.published import published_curves
from rpr.report.render import DASH, figure_text, number
from rpr.report.score_table import Line

_BENCH = ("gpu", "step")  # page and name in measured/documents.jsonl of the speeds on a GPU


def results_markdown(sweeps: Path) -> str:
    """The page. Raises RecordError if a sweep that it names has no records, and KeyError if it lacks a row."""
    tables = (scores, corpora, clip_distances, contexts, tasks, published, speeds)
    helpers = {table.__name__: partial(table, sweeps / "results") for table in tables}
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page = environment.from_string((sweeps / "RESULTS.md.j2").read_text(encoding="utf-8"))
    names = sorted(path.parent.name for path in (sweeps / "results").glob("*/report.md"))
    return page.render(helpers=helpers, sweeps=names)


@cache
def _group(results: Path, sweep: str, data: str = "", max_steps: int = 0, baseline: str | None = None) -> Group:
    """The largest group of a sweep, of this corpus and number of steps if given."""
    runs = (record for _, record in find_records(results / sweep).records)
    groups = run_groups(runs, baseline=baseline, published=True)
    chosen = [group for group in groups if data in ("", group.data) and max_steps in (0, group.max_steps)]
    return max(chosen, key=lambda group: len(group.finished))


def _variant(group: Group, label: str) -> Variant:
    return {variant.label: variant for variant in group.variants}[label]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    rule = ["---" if place in words else "---:" for place in range(len(headings))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *rows))


def _figure(figure: Measurement, digits: int, *, signed: bool = False) -> str:
    return " ".join(figure_text(figure, digits, signed=signed)).strip()


def _row(group: Group, variant: Variant, label: str = "") -> list[str]:
    """Label, n, score, change with its interval, verdict."""
    key, digits = group.column(group.split), group.kind.digits
    change = "" if variant is group.baseline else _figure(group.change(variant, key), digits, signed=True)
    score = figure_text(group.score(variant, group.split), digits)[0]
    return [label or variant.label, str(len(variant.finished)), score, change, group.verdict(variant, key)]


def scores(results: Path, sweep: str, *labels: str, against: str | None = None, steps: Sequence[int] = ()) -> str:
    """Rows of a sweep, the best first; with `against` also their changes from these positions, with `steps` also those
    of the validation loss at these steps of training, in bits.
    """
    group = _group(results, sweep)
    variants = [_variant(group, label) for label in labels]
    variants.sort(key=lambda variant: group.kind.best_first(group.score(variant, group.split).value or 0.0))
    rows = [_row(group, variant) for variant in variants]
    headings = ["position", "n", f"{group.kind.heading} on {group.split}", "change, 95%", "verdict"]
    if against:
        other = _group(results, sweep, baseline=against)
        headings.append(f"change from {other.baseline.label}")
        rows = [[*row, _row(other, _variant(other, row[0]))[3]] for row in rows]
    if steps:
        headings += [f"at step {step:,}" for step in steps]
        its = _losses(results, sweep, group.baseline)
        for row, variant in zip(rows, variants, strict=True):
            own = _losses(results, sweep, variant)
            changes = [fmean(own[seed][n] - its[seed][n] for seed in own.keys() & its.keys()) for n in steps]
            row += [
                "" if variant is group.baseline else number(change / math.log(2), 2, signed=True) for change in changes
            ]
    return _table(headings, rows, (0, 4))


def _losses(results: Path, sweep: str, variant: Variant) -> dict[int, dict[int, float]]:
    """The validation losses by seed and step."""
    paths = {(record.run_id, record.seed): path for path, record in find_records(results / sweep).records}
    metrics = {run.seed: metrics_of(paths[run.run_id, run.seed]) for run in variant.finished}
    name = "validation/loss"
    return {seed: {row["step"]: row[name] for row in rows if row.get(name)} for seed, rows in metrics.items()}


def corpora(results: Path, **sweeps: str) -> str:
    """Absolute and relative positions, k = 16, of several sweeps, beside the paper's change."""
    rows = []
    for sweep, name in sweeps.items():
        group = _group(results, sweep)
        _, n, *row = _row(group, group.papers_relative)
        rows.append([name, n, _row(group, group.baseline)[2], *row])
    return _table(("languages, model", "n", "absolute", "k = 16", "change, 95%", "verdict"), rows, (0, 5))


def clip_distances(results: Path, sweep: str) -> str:
    """Every k against the paper's."""
    group = _group(results, sweep, baseline="relative-k16")
    relative = [variant for variant in group.variants if variant.position.kind == "relative"]
    rows = [_row(group, variant, str(variant.position.clip_distance)) for variant in relative]
    return _table(("k", "n", "BLEU on test", "change from k = 16, 95%", "verdict"), rows, (0, 4))


def contexts(results: Path, sweep: str, *labels: str, lengths: Sequence[int], windows: str = "separate") -> str:
    """Bits per byte by the length of the context."""
    group = _group(results, sweep)
    rows = [
        [label, *(_figure(_variant(group, label).measured(("test", windows, n), ABSENT), 2) for n in lengths)]
        for label in labels
    ]
    if group.unigram is not None:
        rows.append(["unigram entropy of the text", *[f"{group.unigram:.2f}"] * len(lengths)])
    return _table(("position", *(f"{length:,} tokens" for length in lengths)), rows)


def tasks(results: Path, *labels: str, **sweeps: str) -> str:
    """Percent exact match beyond the training lengths and the seeds that solve a task: a column for each corpus, which
    is named by its sweep, as in `reverse="length_generalisation"`.
    """
    groups = {data: _group(results, *sweep.split(":")[:1], data, *map(int, sweep.split(":")[1:]))
              for data, sweep in sweeps.items()}  # fmt: skip

    def cell(group: Group, label: str) -> str:
        variant = next((variant for variant in group.variants if variant.label == label and variant.finished), None)
        if variant is None:
            return DASH
        return f"{figure_text(group.score(variant, group.split), 0)[0]}, {Line((), group, variant).solved}"

    rows = [[label, *(cell(group, label) for group in groups.values())] for label in labels]
    return _table(("position", *(data.replace("_", " ") for data in groups)), rows)


def published(results: Path, *labels: str, **lengths: str) -> str:
    """Percent exact match at one length of a task, ours and the published figure: `symbols_copy="kazemnejad:30"`."""
    rows = []
    for data, where in lengths.items():
        sweep, length, *max_steps = where.split(":")
        group, at = _group(results, sweep, data, *map(int, max_steps)), int(length)
        [printed] = published_curves(group, group.variants).values()
        figures = [(_variant(group, label).measured((group.kind.metric, at, at), ABSENT), printed[label][at])
                   for label in labels]  # fmt: skip
        cells = [" / ".join(figure_text(figure, 1)[0] for figure in pair) for pair in figures]
        rows.append([f"{data.replace('_', ' ')}, length {length}", *cells])
    return _table(("task", *labels), rows)


def speeds(results: Path, *variants: str) -> str:
    """Steps per second of the base model on a GPU relative to absolute positions: of the medians, and the median over
    rounds with the slowest and the fastest.
    """
    lines = map(json.loads, (results.parent / "measured" / "documents.jsonl").read_text(encoding="utf-8").splitlines())
    [document] = [line["document"] for line in lines if (line["page"], line["name"]) == _BENCH]
    steps = {row["variant"]: row for row in document["step"]}
    rows = []
    for row in map(steps.__getitem__, variants):
        speed, absolute = row["steps_per_second"], steps["absolute"]["steps_per_second"]
        paired = f"{row['relative_speed']:.2f} ({row['min']:.2f} to {row['max']:.2f})"
        rows.append([row["variant"], f"{speed:.1f}", f"{speed / absolute:.2f}", paired])
    return _table(("position", "steps/s", "ratio of medians", "median of paired ratios, their range"), rows)

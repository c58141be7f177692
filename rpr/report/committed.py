"""Render the committed records: `python -m rpr.report.committed sweeps reports` (`make results`).

Each sweep's whole report goes into a folder below the second one; report.md and at most two pictures stay beside its
records. sweeps/RESULTS.md is the prose of sweeps/RESULTS.md.j2 around tables that are rendered from them.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, StrictUndefined

from rpr.errors import RecordError
from rpr.io.atomic import replace_file
from rpr.records.files import metrics_of
from rpr.records.measurement import Measurement
from rpr.records.record import RECORDS_NAME, find_records
from rpr.report.by_context import ABSENT
from rpr.report.groups import Group, Variant, run_groups
from rpr.report.page import build_report, read_remarks
from rpr.report.paired import as_markdown, from_json
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


TESTS_NAME = "compare.json"  # what `rpr-cli compare ... format=json` printed, while the translations were there
_PICTURE = re.compile(r"!\[[^\n]*\]\(([^\n]*\.svg)\)\n\n?")
_BY_POSITION = "scores_by_position"


def render_report(folder: Path, out_dir: Path) -> None:
    """The report of a sweep's folder. Raises RecordError if a record is damaged, or `out_dir` cannot be written."""
    files = find_records(folder)
    report = build_report(files.records, out_dir, f"Sweep {folder.name}", files.problems, remarks=read_remarks(folder))
    if report.problems:
        raise RecordError("; ".join(report.problems))


def keep(report: Path, folder: Path) -> None:
    """Copy report.md beside the records, with the first picture by position and the first of another kind."""
    text = (report / "report.md").read_text(encoding="utf-8")
    names = _PICTURE.findall(text)
    kinds = ([name for name in names if name.startswith(_BY_POSITION) == by_position] for by_position in (True, False))
    kept = [of_kind[0] for of_kind in kinds if of_kind]
    for picture in folder.glob("*.svg"):
        picture.unlink()
    for name in kept:
        replace_file(folder / name, (report / name).read_bytes())
    replace_file(folder / "report.md", _PICTURE.sub(lambda picture: picture[0] if picture[1] in kept else "", text))


def paired_page(document: Path) -> str:
    """The Markdown page of a folder's paired tests."""
    return as_markdown(from_json(document.read_text(encoding="utf-8"))) + "\n"


def render(sweeps: Path, reports: Path) -> None:
    """Everything below a folder like sweeps/ of the repository."""
    for folder in sorted(path.parent for path in sweeps.rglob(RECORDS_NAME)):
        report = reports / folder.relative_to(sweeps)
        render_report(folder, report)
        keep(report, folder)
        if (document := folder / TESTS_NAME).is_file():
            replace_file(report / "compare.md", paired_page(document))
    replace_file(sweeps / "RESULTS.md", results_markdown(sweeps))


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))

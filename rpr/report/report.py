"""A whole report from run records: tables, plots and one page, each file written whole or not at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpr.errors import RecordError
from rpr.records.record import METRICS_NAME, RECORD_NAME, Record, read_metrics, replace_file
from rpr.report import drawing, paper_render, plots, render
from rpr.report.learned import learned
from rpr.report.length_render import length_csv
from rpr.report.page import Chapter, Drawing, html_page
from rpr.report.paper_speed import Bench
from rpr.report.paper_tables import paper_tables
from rpr.report.rows import Table
from rpr.report.samples import FileOf, Samples
from rpr.report.samples import samples as sampled
from rpr.report.tables import position_tables
from rpr.report.text import escape_markdown

CURVES = ("validation/bleu", "validation/loss", "train/loss")


@dataclass(frozen=True)
class Report:
    """What was written, the same tables as text for a terminal, and as one JSON document."""

    text: str
    document: dict[str, Any]
    files: tuple[Path, ...]
    problems: tuple[str, ...]


def build_report(
    records: Sequence[tuple[Path, Record]],
    out_dir: Path,
    title: str,
    problems: Sequence[str] = (),
    samples: bool = True,
    benches: Sequence[Bench] = (),
) -> Report:
    """Write report.md, .csv, .json and .tex, index.html and the plots as SVG and PNG into `out_dir`.

    Where the records have scores by source length, by_length.csv holds them besides; where runs have a cell in the
    paper's own tables, paper.md, .csv and .tex hold these.

    Learning curves and samples come from the files beside each record, where there are any. With several tables the
    names of the plots carry the table's name.

    Args:
        records: each with the path of its file, as find_records returns them.
        problems: lines about records that could not be used; shown, never hidden.
        samples: whether the page shows sample translations.
        benches: speeds measured in turn, for the paper's table of them.

    Raises:
        RecordError: if there is no record, or `out_dir` cannot be written.
    """
    shown = [(path, record.shown()) for path, record in records]
    tables = position_tables(record for _, record in shown)
    paths = {id(record): path for path, record in shown}

    def file_of(record: Record, name: str) -> Path:
        return _beside(paths[id(record)], name)

    trouble = list(problems)
    files: list[Path] = []
    chapters = []
    try:
        for table, suffix in zip(tables, _suffixes(tables), strict=True):
            drawings = []
            for plot in plots.all_plots(table, _curves(table, file_of, trouble)):
                svg = _saved(plot, out_dir / f"{plot.name}{suffix}", files)
                drawings.append(Drawing(drawing.inlined(svg, plot.name + suffix, plot.description), plot.caption))
            found = sampled(table, file_of) if samples else Samples()
            pictures = learned(table, file_of, f"learned{suffix}", trouble)
            chapters.append(Chapter(table, tuple(drawings), found.sentences, found.remarks, pictures))
        rebuilt = [table for table in paper_tables(tables, benches) if table.measured]
        document = {"title": title, "tables": [render.as_json(table) for table in tables], "problems": trouble}
        document["paper"] = [paper_render.paper_json(table) for table in rebuilt]
        texts = {
            "report.md": _markdown(title, tables, trouble),
            "report.csv": render.csv_rows(tables),
            "report.json": json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            "report.tex": "\n".join(render.latex(table) for table in tables),
            "index.html": html_page(title, chapters, trouble, rebuilt),
        }
        if rebuilt:
            texts |= {
                "paper.md": paper_render.paper_page(title, rebuilt),
                "paper.csv": paper_render.paper_csv(rebuilt),
                "paper.tex": "\n".join(map(paper_render.paper_latex, rebuilt)),
            }
        if any(table.by_length for table in tables):
            texts["by_length.csv"] = length_csv(tables)
        for name, text in texts.items():
            files.append(out_dir / name)
            replace_file(files[-1], text)
    except OSError as error:
        raise RecordError(f"{out_dir}: the report cannot be written ({error}); choose another folder") from None
    parts = [paper_render.paper_terminal(rebuilt)] if rebuilt else []
    parts += [render.terminal(table) for table in tables]
    text = "\n".join([*parts, *(f"not in this report: {problem}" for problem in trouble)])
    return Report(text, document, tuple(files), tuple(trouble))


def _suffixes(tables: Sequence[Table]) -> list[str]:
    if len(tables) == 1:
        return [""]
    slugs = [
        re.sub(r"[^A-Za-z0-9_]+", "-", f"-{table.data}-{table.model}-{table.max_steps}-{table.hardware}")
        for table in tables
    ]
    return [
        slug if slugs.count(slug) == 1 else f"{slug}-{slugs[: index + 1].count(slug)}"
        for index, slug in enumerate(slugs)
    ]


def _markdown(title: str, tables: Sequence[Table], problems: Sequence[str]) -> str:
    parts = [f"# {escape_markdown(title)}", *(render.markdown(table) for table in tables)]
    if problems:
        lines = [f"- {escape_markdown(problem)}" for problem in problems]
        parts.append("\n".join(["## Not in this report", "", *lines]) + "\n")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _saved(plot: plots.Plot, stem: Path, files: list[Path]) -> str:
    """Write a plot as PNG and SVG, and return the SVG."""
    contents = {kind: drawing.rendered(plot.figure, kind) for kind in ("svg", "png")}
    for kind, content in contents.items():
        files.append(stem.with_name(f"{stem.name}.{kind}"))
        replace_file(files[-1], content)
    return contents["svg"].decode()


def _beside(record_path: Path, name: str) -> Path:
    """A file of the run: beside record.json, or, for a record in a flat folder, under the record's own name."""
    return record_path.with_name(name if record_path.name == RECORD_NAME else f"{record_path.stem}.{name}")


def _curves(table: Table, file_of: FileOf, problems: list[str]) -> list[plots.Curve]:
    """Those of the variants that have a line of their own."""
    curves = []
    for row in plots.lines_of(table):
        for record in row.records:
            try:
                metrics = read_metrics(file_of(record, METRICS_NAME))
            except RecordError as error:
                problems.append(str(error))
                continue
            series = {name: _series(metrics, name) for name in CURVES}
            if any(series.values()):
                curves.append(plots.Curve(row.label, row.position.kind, row.position.clip_distance, series))
    return curves


def _series(metrics: Sequence[dict[str, Any]], name: str) -> tuple[tuple[int, float], ...]:
    # By step: a resumed run repeats the steps since its checkpoint, and the later line counts.
    values = {line["step"]: line[name] for line in metrics if isinstance(line.get(name), (int, float))}
    return tuple((step, float(value)) for step, value in sorted(values.items()) if math.isfinite(value))

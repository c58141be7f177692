"""A whole report from run records: tables, plots and one page, each file written whole or not at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.errors import RecordError
from rpr.results import drawing, length_plot, plots, render
from rpr.results.length_render import length_csv
from rpr.results.page import Chapter, Sample, html_page
from rpr.results.record import METRICS_NAME, RECORD_NAME, Record, read_metrics, replace_file
from rpr.results.rows import Row, Table
from rpr.results.tables import position_tables
from rpr.results.text import escape_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("validation/bleu", "validation/loss", "train/loss")
SAMPLES_PER_SPLIT = {"test": 3, "long": 2}


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
) -> Report:
    """Write report.md, .csv, .json and .tex, index.html and the plots as SVG and PNG into `out_dir`.

    Where the records have scores by source length, by_length.csv holds them besides.

    Learning curves and samples come from the files beside each record, where there are any. With several tables the
    names of the plots carry the table's name.

    Args:
        records: each with the path of its file, as find_records returns them.
        problems: lines about records that could not be used; shown, never hidden.
        samples: whether the page shows sample translations.

    Raises:
        RecordError: if there is no record, or `out_dir` cannot be written.
    """
    tables = position_tables(record for _, record in records)
    paths = {id(record): path for path, record in records}
    trouble = list(problems)
    files: list[Path] = []
    chapters = []
    try:
        for table, suffix in zip(tables, _suffixes(tables), strict=True):
            figures = _figures(table, _curves(table, paths, trouble))
            drawings = []
            for name, description, figure in figures:
                drawings.append(drawing.svg_text(figure, f"{name}{suffix}", f"{description}: {table.heading}"))
                for kind in ("svg", "png"):
                    files.append(out_dir / f"{name}{suffix}.{kind}")
                    drawing.save(figure, files[-1])
            chapters.append(Chapter(table, tuple(drawings), tuple(_samples(table, paths)) if samples else ()))
        document = {"title": title, "tables": [render.as_json(table) for table in tables], "problems": trouble}
        texts = {
            "report.md": _markdown(title, tables, trouble),
            "report.csv": render.csv_rows(tables),
            "report.json": json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            "report.tex": "\n".join(render.latex(table) for table in tables),
            "index.html": html_page(title, chapters, trouble),
        }
        if any(table.by_length for table in tables):
            texts["by_length.csv"] = length_csv(tables)
        for name, text in texts.items():
            files.append(out_dir / name)
            replace_file(files[-1], text)
    except OSError as error:
        raise RecordError(f"{out_dir}: the report cannot be written ({error}); choose another folder") from None
    text = "\n".join(
        [*(render.terminal(table) for table in tables), *(f"not in this report: {problem}" for problem in trouble)]
    )
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


def _figures(table: Table, curves: Sequence[plots.Curve]) -> list[tuple[str, str, Figure]]:
    drawn: list[tuple[str, str, Callable[[], Figure | None]]] = [
        ("bleu_by_k", "BLEU by clip distance", lambda: plots.bleu_by_k(table)),
        ("bleu_by_length", "BLEU by source length", lambda: length_plot.bleu_by_length(table)),
        ("speed", "Steps per second relative to absolute", lambda: plots.speed(table)),
        ("learning_curves", "Learning curves", lambda: plots.learning_curves(table, curves)),
    ]
    return [(name, description, figure) for name, description, draw in drawn if (figure := draw()) is not None]


def _beside(record_path: Path, name: str) -> Path:
    """A file of the run: beside record.json, or, for a record in a flat folder, under the record's own name."""
    return record_path.with_name(name if record_path.name == RECORD_NAME else f"{record_path.stem}.{name}")


def _curves(table: Table, paths: dict[int, Path], problems: list[str]) -> list[plots.Curve]:
    curves = []
    for row in table.rows:
        for record in row.records:
            try:
                metrics = read_metrics(_beside(paths[id(record)], METRICS_NAME))
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


def _samples(table: Table, paths: dict[int, Path]) -> list[Sample]:
    samples = []
    for split, count in SAMPLES_PER_SPLIT.items():
        translated = [(row, found) for row in table.rows if (found := _translations(row, split, paths)) is not None]
        if not translated:
            continue
        sources, references, _ = translated[0][1]
        # Another source text (a corpus that changed between runs) cannot stand beside this one.
        alike = [(row, hypotheses) for row, (other, _, hypotheses) in translated if other == sources]
        chosen = sorted({(2 * index + 1) * len(sources) // (2 * count) for index in range(count)}) if sources else []
        for line in chosen:
            hypotheses = tuple((row.label, texts[line]) for row, texts in alike)
            samples.append(Sample(split, line + 1, sources[line], references[line], hypotheses))
    return samples


def _translations(row: Row, split: str, paths: dict[int, Path]) -> tuple[list[str], list[str], list[str]] | None:
    """Sources, references and hypotheses of the row's first finished run that has all three, of one length."""
    for record in row.records:
        files = [_beside(paths[id(record)], f"{split}.{name}.txt") for name in ("sources", "references", "hypotheses")]
        if record.status != "finished" or not all(file.is_file() for file in files):
            continue
        # Split at newlines alone: splitlines() would also cut at the odd separators that real sentences contain.
        texts = [file.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n") for file in files]
        if len({len(lines) for lines in texts}) == 1:
            return texts[0], texts[1], texts[2]
    return None

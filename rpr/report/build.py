"""A complete report from run records: tables, plots and one HTML page, each file written atomically."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from rpr.errors import RecordError, RprError
from rpr.io.atomic import replace_file
from rpr.io.escape import escape_control_characters
from rpr.records.files import KEPT_METRICS, metrics_of, read_documents
from rpr.records.record import RECORD_NAME, Record, run_file
from rpr.report import html, plots
from rpr.report.contents import Chapter, Report
from rpr.report.groups import Beside, Group, RunKey, Variant, learning_of, run_groups, run_key
from rpr.report.render import latex
from rpr.report.samples import lines_of, own_file, samples
from rpr.report.score_table import build_tables
from rpr.report.speed import SpeedRow

MOST_ALONE = 24  # groups that are drawn though they have one variant
_REMARKS = "remarks.txt"
LATEX_HEAD = "% In the preamble: \\usepackage{booktabs}\n"
Records = Sequence[tuple[Path, Record]]


def build_report(
    records: Records,
    out_dir: Path,
    title: str,
    problems: Sequence[str] = (),
    benches: Sequence[SpeedRow] = (),
    baseline: str | None = None,
    remarks: Sequence[str] = (),
    *,
    published: bool | None = None,
    pdf: bool = False,
) -> Report:
    """Write report.md, .json and .tex, index.html and the plots as SVG into `out_dir`, and remove the plots of an
    earlier report there.

    Learning curves, samples and the nats of documents are read from the files next to each record, if they exist. With
    several groups the file names of the plots include the group's name.

    `problems`: lines about unusable records, which the report shows. `benches`: speeds measured by alternating rounds,
    for the table of speeds. `baseline`, `published`: as in `run_groups`. `remarks`: as `read_remarks` gives them.
    `pdf`: whether the plots are also written as PDF. Raises RecordError if there is no record, or `out_dir` cannot be
    written.
    """
    if problems and not records:
        raise RecordError(f"no run record to report{unusable_records(problems)}")
    # 1. The groups with a result, and the runs without one.
    shown = [(path, record.shown()) for path, record in records]
    paths = {run_key(record): path for path, record in shown}

    def file_of(record: Record, name: str) -> Path:
        return run_file(paths[run_key(record)], name)

    unusable = list(problems)
    every = run_groups((record for _, record in shown), read_beside(shown, unusable), baseline, published=published)
    groups = [group for group in every if group.finished]
    without = [run for group in every for variant in group.variants for run in variant.unfinished]
    unfinished = tuple(_unfinished(run, paths[run_key(run)]) for run in without)
    # 2. Tables and pictures.
    tables = build_tables(groups, benches)
    contents: dict[str, str | bytes] = {}
    chapters = []
    for group, suffix in zip(groups, _suffixes(groups), strict=True):
        # In a grid of recipes, or among many groups, one variant alone is a line of the tables.
        draws = len(group.variants) > 1 or ("recipes" not in tables.sections and len(groups) <= MOST_ALONE)
        drawn = tuple(plots.all_plots(group, _curves(group, paths))) if draws else ()
        contents |= {f"{plot.name}{suffix}.svg": plot.svg for plot in drawn}
        contents |= {f"{plot.name}{suffix}.pdf": plots.as_pdf(plot.figure()) for plot in drawn if pdf}
        learned, remark = html.learned_pictures(group, file_of)
        chapters.append(Chapter(group, drawn, samples(group, file_of), learned, remark, suffix))
    # 3. The files.
    report = Report(title, out_dir, tuple(chapters), tables, tuple(unusable), [], tuple(remarks), unfinished)
    contents |= {
        "report.md": report.markdown,
        "report.json": to_json(report.document, indent=1).decode() + "\n",
        "report.tex": "\n".join([LATEX_HEAD, *map(latex, tables.main)]),
        "index.html": html.html_page(report),
    }
    try:
        for name, content in contents.items():
            report.files.append(out_dir / name)
            replace_file(report.files[-1], content)
        for path in out_dir.iterdir():  # with plots of an earlier report, of other groups or as PDF
            if plots.FILE.fullmatch(path.name) and path not in report.files:
                path.unlink()
    except OSError as error:
        raise RecordError(f"{out_dir}: cannot write the report ({error}); choose another directory") from None
    return report


def _unfinished(run: Record, path: Path) -> str:
    """A line about a run without a result, with the command that removes it."""
    if run.status == "running":
        return f"{run.name}: {run.outcome}"
    root = path.parent.parent
    where = "" if root == Path("runs") else " " + shlex.quote(f"runs_dir={root}")
    removal = f"; to remove it: rpr-cli runs remove {shlex.quote(path.parent.name)}{where}"
    return escape_control_characters(f"{run.name}: {run.outcome}{removal * (path.name == RECORD_NAME)}")


def unusable_records(problems: Sequence[str]) -> str:
    """The first of the lines about unusable records, as the end of a message that there is none; empty without any."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"; not read: {problems[0]}{more}" if problems else ""


def read_remarks(root: Path, records: Records = ()) -> list[str]:
    """What records cannot say of themselves: the lines of remarks.txt in `root` and, after the name of the folder, of
    those beside the records below it. Raises RecordError if one cannot be read.
    """
    remarks: list[str] = []
    beside = (path.with_name(_REMARKS) for path, _ in records)
    for path in dict.fromkeys([root / _REMARKS, *filter(own_file, beside)]):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: cannot be read as text ({error}); mend it, or remove it") from None
        where = "" if path.parent == root else f"{path.parent.relative_to(root).as_posix()}: "
        remarks += [escape_control_characters(f"{where}{line}") for line in text.splitlines() if line.strip()]
    return remarks


def read_beside(records: Records, problems: list[str]) -> dict[RunKey, Beside]:
    """What stands beside each finished run; a line about what cannot be read is added to `problems`."""
    by_run = {}
    for path, record in records:
        if record.status == "finished":
            splits = {score.split for score in record.scores} if record.kind.lower_is_better else ()
            try:
                learning = learning_of(_series(metrics_of(path), "validation/loss"))
                documents = {split: read_documents(path, split) for split in splits}
            except RprError as error:
                problems.append(str(error))
            else:
                by_run[run_key(record)] = Beside(learning, documents)
    return by_run


def _suffixes(groups: Sequence[Group]) -> list[str]:
    """What distinguishes the file names of the plots of several groups."""
    if len(groups) == 1:
        return [""]
    names = [f"-{group.data}-{group.model}-{group.max_steps}-{group.hardware}" for group in groups]
    names = [re.sub(r"[^A-Za-z0-9_]+", "-", name) for name in names]
    return [f"{name}-{names[:at].count(name) + 1}" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _curves(group: Group, paths: Mapping[RunKey, Path]) -> list[tuple[Variant, plots.Curves]]:
    """The curves of the variants that get a line; damaged files have been reported already."""
    curves = []
    for variant in lines_of(group)[0]:
        for record in variant.finished or variant.records:
            try:
                rows = metrics_of(paths[run_key(record)])
            except RecordError:
                continue
            series = {name: _series(rows, name) for name in KEPT_METRICS}
            if any(series.values()):
                curves.append((variant, series))
    return curves


def _series(metrics: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    # A resumed run repeats the steps since its checkpoint, and the later line counts.
    values = {line["step"]: line[name] for line in metrics if isinstance(line.get(name), (int, float))}
    return {step: float(value) for step, value in sorted(values.items()) if math.isfinite(value)}

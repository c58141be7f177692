"""sweeps/RESULTS.md: every committed record in one Markdown page, rendered and never typed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rpr import paper
from rpr.io.escape import visible
from rpr.records.record import Record, find_records
from rpr.report.findings import findings
from rpr.report.paper_claims import HEADINGS, NO_DIFFERENCE, WIDE, claims
from rpr.report.paper_groups import Place, finished_runs
from rpr.report.paper_render import paper_markdown, shared_legend
from rpr.report.paper_rows import T_QUANTILES, PaperTable
from rpr.report.paper_speed import find_benches
from rpr.report.paper_tables import paper_tables
from rpr.report.remarks import is_the_papers_corpus
from rpr.report.rows import Table
from rpr.report.tables import position_tables
from rpr.report.text import escape_markdown

_INTRODUCTION = (
    "Rendered from the run records under {root} by `rpr-cli report runs_dir=... results=...`; no figure here is typed. "
    "Sizes, corpora and steps are not the paper's unless a row says so: what can be compared is how scores change with "
    "the positions, not the scores."
)


def results_markdown(root: Path, folder: Path | None = None) -> str:
    """The page of all records below `root`: what was run, the paper's tables, what agrees, what cannot be told, links.

    Args:
        folder: where the page will lie, for its links; beside `root` by default.

    Raises:
        RecordError: if there is no record below `root`.
    """
    found = find_records(root)
    benches, problems = find_benches(root)
    tables = position_tables(record for _, record in found.records)
    rebuilt = [table for table in paper_tables(tables, benches) if table.measured]
    paths = {id(record): path for path, record in found.records}
    home = root.parent if folder is None else folder
    parts = ["# Results", _INTRODUCTION.format(root=f"`{_link(root, home)}/`")]
    parts += ["## What was run", *_runs(tables, paths, home)]
    parts += _agreement(rebuilt)
    parts += ["## What this scale cannot tell", _items(_limits(tables, rebuilt))]
    parts += ["## The paper's tables", _items(shared_legend(rebuilt)) if rebuilt else "None has a measured cell yet."]
    parts += [paper_markdown(table, "###", legend=False) for table in rebuilt]
    parts += ["## Findings, group by group", *_findings(tables)]
    parts += ["## The folders", *_folders(root, home)]
    if found.problems or problems:
        parts += ["## Not on this page", _items([*found.problems, *problems])]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(line)}" for line in lines) or "Nothing."


def _link(path: Path, home: Path) -> str:
    return visible(Path(os.path.relpath(path, home)).as_posix())


def _runs(tables: Sequence[Table], paths: dict[int, Path], home: Path) -> list[str]:
    """A line for each group of runs that were trained alike."""
    headings = ("corpus", "pairs", "model", "steps", "hardware", "positions", "seeds", "finished", "commits", "records")
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    notes = []
    for table in tables:
        runs = [run for row in table.rows for run in row.records]
        finished = [run for run in runs if run.status == "finished"]
        pairs = sorted({run.data.train_pairs for run in runs if run.data is not None})
        cells = [
            table.heading.partition(" | ")[0],
            " or ".join(f"{count:,}" for count in pairs) or "not read yet",
            table.model,
            f"{table.max_steps:,}",
            table.hardware,
            ", ".join(row.label.replace(", ", " ") for row in table.rows),
            ", ".join(map(str, sorted({run.seed for run in runs}))),
            f"{len(finished)} of {len(runs)}",
            ", ".join(sorted({_commit(run) for run in runs})),
        ]
        folders = sorted({_folder(paths[id(run)]) for run in runs})
        links = ", ".join(f"[{escape_markdown(folder.name)}]({_link(folder, home)})" for folder in folders)
        lines.append("| " + " | ".join([*map(escape_markdown, cells), links]) + " |")
        if table.variant:
            notes.append(f"{table.heading.removesuffix(f' | {table.variant}')}, a group with {table.variant}")
    return ["\n".join(lines), *([_items(notes)] if notes else [])]


def _folder(record: Path) -> Path:
    """The folder of a sweep's records, or the one that holds the runs' folders."""
    return record.parent.parent if record.name == "record.json" else record.parent


def _commit(run: Record) -> str:
    if run.git.commit is None:
        return "no checkout"
    return run.git.commit[:7] + (" with changes" if run.git.dirty else "")


def _agreement(tables: Sequence[PaperTable]) -> list[str]:
    rule = (
        "A change agrees with the paper's in its sign, or does not, where its 95% interval over seeds lies on one side "
        f"of zero; one such interval in twenty is wrong. Where the paper has none (less than {NO_DIFFERENCE}), the "
        f"interval has to hold zero and less than {WIDE:g} BLEU to either side. A speed agrees where relative "
        "positions were slower in every round, taken in turn. One seed tells nothing of this, and how large a change "
        "is depends on corpus, model and steps."
    )
    said = claims(tables)
    parts = ["## What agrees with the paper, and what does not", rule]
    for verdict, heading in HEADINGS.items():
        parts += [f"### {heading}", _items([claim.text for claim in said if claim.verdict == verdict])]
    return parts


def _limits(tables: Sequence[Table], rebuilt: Sequence[PaperTable]) -> list[str]:
    """What no figure on the page can answer, from the records alone."""
    runs = [run for table in tables for row in table.rows for run in finished_runs(row)]
    if not runs:
        return ["No run is finished."]
    limits = [*_scale(runs), *_seeds(tables), *_distances(tables)]
    tests = {score.test_set for run in runs for score in run.scores}
    theirs = [name for name in (paper.TABLE1_TEST_SET, paper.TABLE2_TEST_SET) if name not in tests]
    if theirs:
        limits.append(f"No run was scored on {' or '.join(theirs)}.")
    never = [size for size in paper.MODELS if all(run.model_name != size for run in runs)]
    if never:
        limits.append(f"No finished run has the paper's model {' or '.join(never)}.")
    if all(place.papers_pair != "en_fr" for place in map(Place, tables)):
        limits.append("No run translates to French, as half of the paper's Table 1 does.")
    devices = sorted({run.device for run in runs})
    if not any("gpu" in name.lower() or "nvidia" in name.lower() or "cuda" in name.lower() for name in devices):
        limits.append(f"Every run was on a CPU ({'; '.join(devices)}); the paper's speed is of P100 GPUs.")
    return limits


def _scale(runs: Sequence[Record]) -> list[str]:
    longest = max(run.max_steps for run in runs)
    steps = paper.MODELS["base"].steps
    lines = []
    if longest < steps:
        lines.append(
            f"The longest training has {longest:,} steps, {100 * longest / steps:.1f}% of the base model's {steps:,}: "
            "how the variants compare after more is not known."
        )
    if not any(is_the_papers_corpus([run], "en_de") or is_the_papers_corpus([run], "en_fr") for run in runs):
        pairs = max((run.data.train_pairs for run in runs if run.data is not None and not run.synthetic), default=0)
        largest = f"the largest has {pairs:,} pairs" if pairs else "all are synthetic"
        lines.append(f"No run was trained on WMT 2014 as the paper's were; of the corpora here {largest}.")
    return lines


def _seeds(tables: Sequence[Table]) -> list[str]:
    cells = [table.cell(row) for table in tables for row in table.rows]
    known = [cell for cell in cells if cell.value is not None]
    alone = sum(cell.n == 1 for cell in known)
    lines = []
    if alone:
        lines.append(f"{alone} of {len(known)} measured rows have one seed: another seed may order them differently.")
    deviations = [(cell.sd, cell.n) for cell in known if cell.sd is not None]
    if deviations:
        halves = [T_QUANTILES[min(n - 1, len(T_QUANTILES)) - 1] * sd / n**0.5 for sd, n in deviations]
        counts = sorted({n for _, n in deviations})
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append(
            f"With {seeds} seeds the 95% interval of a mean reaches {statistics.median(halves):.1f} BLEU to either "
            f"side (the median of {len(halves)} rows; at most {max(halves):.1f}). The paper's figures from k = 2 to "
            "k = 256 lie within 0.1 of each other."
        )
    return lines


def _distances(tables: Sequence[Table]) -> list[str]:
    """Which values of k never clip: the records know the longest training source where scores by length were made."""
    lines = []
    for table in tables:
        longest = {run.by_length.longest_training_source for row in table.rows for run in row.records if run.by_length}
        ks = {row.position.clip_distance for row in table.rows if row.position.kind == "relative"}
        beyond = sorted(k for k in ks if k is not None and longest and k >= max(longest) - 1)
        if beyond:
            words = ", ".join(map(str, beyond))
            lines.append(
                f"{table.heading}: no training source has more than {max(longest)} pieces, so nothing is clipped in "
                f"the encoder at k = {words}, and its tables' rows for longer distances are not trained there."
            )
    return lines


def _findings(tables: Sequence[Table]) -> list[str]:
    parts = []
    for table in tables:
        if found := findings(table):
            parts += [f"### {escape_markdown(table.heading)}", _items(found)]
    return parts or ["None yet."]


def _folders(root: Path, home: Path) -> list[str]:
    """What lies in each folder below `root`: its pages first, then its pictures."""
    parts = []
    for folder in sorted({path.parent for path in root.rglob("*") if path.is_file()}):
        pages = sorted(folder.glob("*.md"))
        pictures = sorted(folder.glob("*.png"))
        if not pages + pictures:
            continue
        words = [f"[{escape_markdown(_title(page))}]({_link(page, home)})" for page in pages]
        words += [f"[{escape_markdown(picture.stem)}]({_link(picture, home)})" for picture in pictures]
        parts.append(f"- {escape_markdown(_link(folder, root))}: {', '.join(words)}")
    return ["\n".join(parts)] if parts else ["None has a page yet."]


def _title(page: Path) -> str:
    """The page's own heading; its name where it has none."""
    with page.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), page.name)

"""sweeps/RESULTS.md: all committed records on one rendered Markdown page."""

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from rpr import paper
from rpr.io.escape import escape_control_characters
from rpr.records.record import Record, find_records
from rpr.records.scores import SOURCE_UNIT
from rpr.report.build import read_learning, read_remarks
from rpr.report.contents import page_of
from rpr.report.findings import findings
from rpr.report.groups import Group, RunKey, run_groups, run_key
from rpr.report.score_table import Tables, build_tables
from rpr.report.speed import read_benches, speed_grid
from rpr.report.sweep_files import sweep_file
from rpr.tables.grid import Column, Grid, legend
from rpr.tables.render import bullets, escape_markdown, markdown, picture

_INTRODUCTION = (
    "What do position representations do to a Transformer, and do the paper's results hold here? This page is rendered "
    "from the run records under {root} (`rpr-cli report runs_dir=... results_page=...`); published figures and remarks "
    "on sweeps alone are entered by hand. Sizes, corpora and steps are not the paper's unless a row says so: compare "
    "how scores change with the positions, not the scores. [Every sweep](#every-sweep) has a page of its own with all "
    "tables and pictures; this one has the tables of the largest comparison of each kind."
)
_PICTURES = {
    "bleu_by_k": "BLEU by clip distance, beside the paper's curve",
    "bits_by_context": "Bits per byte by length of the context, in separate and in sliding windows",
}
SEEDS = 2  # a group of runs without a variant of so many is on the page of its sweep alone, if any group has one


def results_markdown(root: Path, folder: Path | None = None, baseline: str | None = None) -> str:
    """The page of all records below `root`: pictures, agreement with published figures, tables, limits, runs, links.
    `folder`: the page's directory, for its links; the parent of `root` by default. Raises RecordError if there are no
    records below `root`.
    """
    files = find_records(root)
    benches, problems = read_benches(files.others)
    unusable = [*files.problems, *problems]
    everything = run_groups((record for _, record in files.records), read_learning(files.records, unusable), baseline)
    groups = [group for group in everything if any(len(one.finished) >= SEEDS for one in group.variants)] or everything
    home = root.parent if folder is None else folder
    parts = ["# Results", _INTRODUCTION.format(root=f"`{_relative(root, home)}/`")]
    folders = {run_key(record): path.parent for path, record in files.records}
    kinds = ([group for group in groups if getattr(group, kind)] for kind in ("translation", "task", "documents"))
    largest = [max(of_kind, key=_size) for of_kind in kinds if of_kind]
    for name, caption in _PICTURES.items():
        parts += _picture(name, caption, largest, folders, home)
    tables = build_tables(groups)
    parts += ["## Findings", bullets(f"{group.heading}: {found}" for group in groups for found in findings(group)[:-1])]
    pages = {path.parent for path in root.rglob("report.md")}
    without_page = [group for group in groups if not {folders[run_key(run)] for run in group.runs} <= pages]
    shown_here = {id(group) for group in (*largest, *without_page)}
    on_this_page = [group for group in groups if id(group) in shown_here]
    shown = [*_tables(build_tables(on_this_page))]
    # The speeds of whole runs decide nothing; they are in the reports of their sweeps.
    compared = [row for row in benches if row.position != "absolute"]  # a row of 1.00 beside each
    shown += [*speed_grid(compared)]
    parts += [markdown(grid.up_to(2), signs=False) for grid in shown]
    single_seeds = len(everything) - len(groups)
    left_out = (
        f"The tables and counts here are of {len(groups)} groups of runs; {single_seeds} more, in which no variant has "
        "two seeds, are on the pages of their sweeps alone."
    )
    limits = [left_out if single_seeds else "", *_limits(groups), *_distances(groups)]
    parts += ["## What this cannot tell", bullets(filter(None, limits))]
    if remarks := _remarks(root):
        parts.append(_folded("Remarks on single sweeps", bullets(remarks)))
    parts.append(_folded("How to read the tables", bullets([*legend(shown), *tables.rules])))
    parts += ["## Every sweep", *_folders(root, home)]
    parts.append(_folded("Runs", markdown(_runs(everything))))
    parts += ["## Not on this page", bullets(unusable)] if unusable else []
    return page_of(parts)


def _relative(path: Path, home: Path) -> str:
    return escape_control_characters(Path(os.path.relpath(path, home)).as_posix())


def _link(path: Path, home: Path) -> str:
    return quote(os.fsencode(os.path.relpath(path, home)))


def _size(group: Group) -> tuple[int, bool]:
    """Of two groups with as many variants, one with published figures is the larger."""
    return len(group.variants), group.published


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _tables(tables: Tables) -> Iterator[Grid]:
    """All but the speeds; the changes by length of the context, where there are some, take the place of the scores."""
    by_context = [grid for grid in tables.by_length if grid.name in ("context_changes", "by_evaluation")]
    scored = {grid.setting for grid in by_context if grid.name == "context_changes"}
    for name, grids in tables.sections.items():
        for grid in grids:
            replaced = name == "scores" and {line.group.heading for line in grid.rows} <= scored
            if name != "speed" and not replaced:
                yield _shortened(grid)
    yield from by_context


def _shortened(grid: Grid) -> Grid:
    """Without the scores of other splits."""
    return grid.up_to(0)


def _picture(
    name: str, caption: str, groups: Sequence[Group], folders: Mapping[RunKey, Path], home: Path
) -> Iterator[str]:
    """A link to the picture of this name in the folder of most of a group's runs, if there is one and no other."""
    for group in groups:
        [(folder, _)] = Counter(folders[run_key(run)] for run in group.runs).most_common(1)
        pictures = [*folder.glob(f"{name}*.svg")]
        if len(pictures) == 1:
            yield picture(f"{caption}: {group.heading}", _link(pictures[0], home))


def _runs(groups: Sequence[Group]) -> Grid:
    """A row for each group."""

    def pairs(group: Group) -> str:
        counts = sorted({run.data.train_pairs for run in group.runs if run.data is not None})
        text = f"{' or '.join(f'{count:,}' for count in counts)} {group.kind.examples}"
        return (text.removesuffix("s") if counts == [1] else text) if counts else "not read yet"

    def finished(group: Group) -> str:
        return f"{sum(run.status == 'finished' for run in group.runs)} of {len(group.runs)}"

    columns = (
        Column("group", "runs", lambda group: group.heading, label=True),
        Column("pairs", "trained on", pairs),
        Column("variants", "variants", lambda group: str(len(group.variants))),
        Column("seeds", "seeds", lambda group: ", ".join(map(str, sorted({run.seed for run in group.runs})))),
        Column("finished", "finished", finished),
        Column("commits", "commits", lambda group: ", ".join(sorted({_commit(run) for run in group.runs})), words=True),
    )
    return Grid("runs", "Runs", columns, tuple(groups))


def _commit(run: Record) -> str:
    if run.git.commit is None:
        return "no checkout"
    return run.git.commit[:7] + (" with changes" if run.git.dirty else "")


def _limits(groups: Sequence[Group]) -> Iterator[str]:
    """The limits of the figures on the page, derived from the records."""
    runs = [run for group in groups for run in group.finished]
    if not runs:
        yield "No run is finished."
        return
    known = [variant for group in groups for variant in group.variants if variant.finished]
    if falling := sum(variant.fall is not None for variant in known):
        yield f"Still learning when training ended: {falling} of {len(known)} variants."
    if unlearned := sum(bool(group.unlearned(one)) for group in groups for one in group.variants if one.finished):
        yield f"Not learned, as their rows say: {unlearned} of {len(known)} variants."
    longest, steps = max(run.max_steps for run in runs), paper.MODELS["base"].steps
    if longest < steps:
        yield (
            f"The longest training has {longest:,} steps, {100 * longest / steps:.1f}% of the base model's {steps:,}: "
            "how the variants compare after more is not known."
        )
    scores = [(group, group.score(variant, "test")) for group in groups for variant in group.variants]
    measured = [(group, score) for group, score in scores if score.value is not None]
    if alone := sum(score.n == 1 for _, score in measured):
        yield f"Of one seed, while another may order them differently: {alone} of {len(measured)} measured rows."
    mixed = sum(len({run.device for run in group.finished}) > 1 for group in groups)
    yield (
        "A seed repeats a run on one type of machine: on another one rounding alone makes it another run, as another "
        "seed does, and an interval over seeds is of the machines that its rows were trained on "
        f"({mixed} of {len(groups)} groups of runs were trained on more than one type)."
    )
    bleu = [score for group, score in measured if group.translation and score.n > 1]
    if halves := [(score.interval.high - score.interval.low) / 2 for score in bleu if score.interval is not None]:
        seeds = " to ".join(dict.fromkeys(str(end(score.n for score in bleu)) for end in (min, max)))
        yield (
            f"With {seeds} seeds the 95% interval of a mean reaches {statistics.median(halves):.1f} BLEU to either "
            f"side (the median of {len(halves)} rows; at most {max(halves):.1f}). The paper's figures from k = 2 to "
            "k = 256 lie within 0.1 of each other."
        )
    if all(run.setting("hardware.accelerator") != "gpu" for run in runs):
        devices = "; ".join(sorted({run.device for run in runs}))
        yield f"Every run here was on a CPU ({devices}); the paper's speed is of P100 GPUs."


def _remarks(root: Path) -> list[str]:
    folders = [file.parent for file in sorted(root.rglob("remarks.txt"))]
    return [f"{_relative(folder, root)}: {line}" for folder in folders for line in read_remarks(folder)]


def _distances(groups: Sequence[Group]) -> Iterator[str]:
    """Values of k that never clip; the longest training source is known from records with scores by length."""
    for group in groups:
        lengths = [run.by_length for run in group.finished if run.by_length and run.by_length.unit == SOURCE_UNIT]
        longest = max((score.longest_training_source for score in lengths), default=None)
        ks = {variant.position.clip_distance for variant in group.variants if variant.position.kind == "relative"}
        if longest and (beyond := sorted(k for k in ks if k is not None and k >= longest - 1)):
            yield (
                f"{group.heading}: no training source has more than {longest} tokens, so nothing is clipped in the "
                f"encoder at k = {', '.join(map(str, beyond))}, and the table rows for longer distances are not "
                "trained there."
            )


def _folders(root: Path, home: Path) -> list[str]:
    """What the sweep of each directory below `root` asks, and links to its pages."""
    parts = []
    for folder in sorted({path.parent for path in root.rglob("*.md")}):
        if links := [f"[{escape_markdown(_title(page))}]({_link(page, home)})" for page in sorted(folder.glob("*.md"))]:
            said = filter(None, (folder.name, str(sweep_file(folder.name).get("description", ""))))
            escaped = [escape_markdown(escape_control_characters(text)) for text in said]
            parts.append(f"- {': '.join([*escaped, ', '.join(links)])}")
    return ["\n".join(parts)] if parts else ["None has a page yet."]


def _title(page: Path) -> str:
    """The page's heading, or its file name without one."""
    with page.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), page.name)

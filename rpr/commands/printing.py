"""What several commands print: tables, and the result of a run."""

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rpr.io.escape import escape_control_characters
from rpr.kinds import TEXT, TRANSLATION, kind_of_metric
from rpr.records.measurement import single
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.records.scores import (
    METRIC_NAMES,
    ByContext,
    ByLength,
    Interval,
    Score,
    hypotheses_note,
    pooled,
    tokenised_in_words,
)
from rpr.report.render import DASH, ONE_RUN, aligned, figure_text, wrapped


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> list[str]:
    """Aligned columns: so many of texts, then figures, at the right; nothing without rows."""
    lines = [headings, *rows]
    return aligned(lines, range(texts)) if len(lines) > 1 else []


def window() -> tuple[int, int]:
    """Columns and lines of the terminal's window; of a pipe more lines, as nothing scrolls away."""
    columns, lines = shutil.get_terminal_size((100, 50))
    return columns, lines


def headline(record: Record) -> str:
    """The scores of a run with their intervals, those of findings first."""
    kind = record.kind
    scores = [score for score in record.scores if score.metric == kind.metric]
    scores.sort(key=lambda score: [*kind.splits, score.split].index(score.split))
    texts = [f"{score.split} {figure(score.score, score.interval, kind.printed_digits)}" for score in scores]
    made_up = " (synthetic data)" if record.synthetic else ""
    return f"{record.name}{made_up}: {kind.heading} {', '.join(texts) or 'not measured'}"


def print_result(run_dir: Path) -> None:
    """The result of a run on stdout: its scores, how it was trained, what is next."""
    record = read_record(run_dir / RECORD_NAME)
    print(headline(record))
    training = record.training
    if training is not None:
        parts = [f"{record.steps or record.max_steps:,} steps in {training.seconds / 60:,.1f} minutes"]
        parts += [f"{training.steps_per_second:.3g} steps/s"] if training.steps_per_second else []
        parts += [f"{training.peak_memory_bytes / 1e6:,.0f} MB"] if training.peak_memory_bytes else []
        print(f"  {', '.join(parts)}, on {record.device}")
    folder = Path(os.path.relpath(run_dir)) if run_dir.is_relative_to(Path.cwd()) else run_dir
    where = f"sweep={record.sweeps[-1]}" if record.sweeps else f"runs_dir={shlex.quote(str(folder.parent))}"
    print(escape_control_characters(f"  {folder}; all runs: rpr-cli report {where}"))


def scores_text(scores: Sequence[Score], by_length: ByLength | None, by_context: Sequence[ByContext]) -> str:
    """An evaluation as tables, with what a reader must know of them below."""
    # 1. A row for each score.
    blocks = [_table_of_scores(scores)]
    notes = [note for score in scores for note in hypotheses_note(score.empty_hypotheses, score.unfinished_hypotheses)]
    notes += [tokenised_in_words(score.tokenised_references) for score in scores if score.tokenised_references]
    # 2. A row for each bucket of lengths.
    if by_length is not None:
        blocks.append(_table_by_length(by_length))
        notes += [f"*: {by_length.longest_in_words}"] * any(bucket.beyond_training for bucket in by_length.buckets)
    # 3. A row for each length of the context, then one for each range of positions.
    blocks += [block for scored in by_context for block in _tables_by_context(scored)]
    if any(ONE_RUN in line for block in blocks for line in block):
        notes.append(f"(a to b){ONE_RUN}: the 95% interval over the test set, not over seeds")
    return "\n\n".join("\n".join(block) for block in [*blocks, wrapped(dict.fromkeys(notes))] if block)


def _table_of_scores(scores: Sequence[Score]) -> list[str]:
    rows = []
    for score in scores:
        shown = figure(score.score, score.interval, kind_of_metric(score.metric).printed_digits)
        rows.append([score.split, score.metric, score.test_set, shown, f"{score.num_sentences:,}"])
    items = kind_of_metric(scores[0].metric).items if scores else "sentences"
    return table(["split", "metric", "test set", "score", items], rows, texts=3)


def _table_by_length(by_length: ByLength) -> list[str]:
    rows = []
    for bucket in by_length.buckets:
        scored = {score.metric: score for score in bucket.scores}
        found = (scored.get(metric) for metric in by_length.signatures)
        figures = [figure(one.score, one.interval, TRANSLATION.printed_digits) if one else DASH for one in found]
        rows.append([bucket.label + "*" * bucket.beyond_training, *figures, f"{bucket.num_sentences:,}"])
    metrics = [METRIC_NAMES[metric] for metric in by_length.signatures]
    title = f"By {by_length.axis} ({by_length.unit}), {pooled(by_length.splits)}:"
    return [title, *table([by_length.unit.split()[0], *metrics, "sentences"], rows)]


def _tables_by_context(scored: ByContext) -> Iterator[list[str]]:
    digits = TEXT.printed_digits
    found: dict[tuple[str, int], str] = {
        (row.windows, row.length): figure(row.bits_per_byte, row.interval, digits) for row in scored.scores
    }
    headings = {"separate": "separate windows", "sliding": f"sliding by {scored.stride}"}
    shown = [windows for windows in headings if any(key[0] == windows for key in found)]
    contexts = sorted({length for _, length in found})
    size = f"{scored.num_bytes:,} bytes ({scored.num_tokens:,} tokens) of {scored.num_documents} documents"
    what = f"{scored.split}, bits per byte of the same {size}; trained at {scored.training_length:,}"
    rows = ([f"{length:,}", *(found.get((windows, length), DASH) for windows in shown)] for length in contexts)
    yield [
        *wrapped([f"By length of the context ({what}):"]),
        *table(["context", *(headings[windows] for windows in shown)], rows),
    ]
    places = ([f"{row.first:,}–{row.last:,}", f"{row.bits_per_byte:.{digits}f}"] for row in scored.by_position)
    title = f"By position in separate windows of {contexts[-1]:,}:"
    yield [title, *table(["position", "bits per byte"], places)]


def figure(value: float, interval: Interval | None, digits: int) -> str:
    """`36.4 (35.9 to 36.9)`."""
    return " ".join(figure_text(single(value, interval), digits)).rstrip()

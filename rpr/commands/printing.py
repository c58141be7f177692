"""What several commands print: tables, and the result of a run."""

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

from rpr.io.escape import escape_control_characters
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.records.scores import (
    METRIC_NAMES,
    ByContext,
    ByLength,
    LengthBucket,
    PositionScore,
    Score,
    hypotheses_note,
    pooled,
    score_digits,
    scored_items,
    tokenised_in_words,
)
from rpr.report.render import Cell, Column, Grid, figure_text, legend, shows_intervals, titled, wrapped


def with_legend(grids: Sequence[Grid]) -> str:
    """Tables for a terminal, and below them the meaning of their symbols."""
    signs = wrapped(legend(grids, shows_intervals))
    return "\n\n".join([*map(titled, grids), *(["\n".join(signs)] if signs else [])])


def window() -> tuple[int, int]:
    """Columns and lines of the terminal's window; of a pipe more lines, as nothing scrolls away."""
    columns, lines = shutil.get_terminal_size((100, 50))
    return columns, lines


def headline(record: Record) -> str:
    """The scores of a run with their intervals, those of findings first."""
    kind = record.kind
    scores = [score for score in record.scores if score.metric == kind.metric]
    scores.sort(key=lambda score: [*kind.splits, score.split].index(score.split))
    texts = [
        f"{score.split} {' '.join(figure_text(single(score.score, score.interval), kind.printed_digits))}".rstrip()
        for score in scores
    ]
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


def score_grid(scores: Sequence[Score]) -> Grid:
    """A row for each score."""
    digits = max(score_digits(score.metric) for score in scores)
    columns = (
        Column("split", "split", attrgetter("split"), label=True),
        Column("metric", "metric", lambda row: Cell(row.metric, (row.signature, *_tokenised_note(row))), words=True),
        Column("score", "score", lambda row: single(row.score, row.interval), digits=digits),
        Column(
            "sentences",
            scored_items(scores),
            lambda row: Cell(
                single(row.num_sentences), hypotheses_note(row.empty_hypotheses, row.unfinished_hypotheses)
            ),
            digits=0,
        ),
        Column("test_set", "test set", attrgetter("test_set"), words=True),
    )
    return Grid("scores", "", columns, tuple(scores))


def length_grid(by_length: ByLength) -> Grid:
    """A row for each bucket."""
    columns = (
        Column("bucket", by_length.unit.split()[0], attrgetter("label"), label=True),
        *map(_metric_column, by_length.signatures),
        Column("sentences", "sentences", lambda row: Cell(single(row.num_sentences), beyond_note(row)), digits=0),
    )

    def beyond_note(bucket: LengthBucket) -> tuple[str, ...]:
        return (by_length.longest_in_words,) if bucket.beyond_training else ()

    title = f"By {by_length.axis} ({by_length.unit}), {pooled(by_length.splits)}:"
    return Grid("by_length", title, columns, by_length.buckets)


def _metric_column(metric: str) -> Column:
    def read(bucket: LengthBucket) -> Measurement:
        score = next((score for score in bucket.scores if score.metric == metric), None)
        return missing("not scored") if score is None else single(score.score, score.interval)

    return Column(metric, METRIC_NAMES[metric], read, digits=score_digits(metric))


def _tokenised_note(score: Score) -> tuple[str, ...]:
    return (tokenised_in_words(score.tokenised_references),) if score.tokenised_references else ()


def context_grids(scored: ByContext) -> list[Grid]:
    """A row for each length, then one for each range of positions."""
    by_length: dict[tuple[str, int], Measurement] = {}
    by_length |= {(row.windows, row.length): single(row.bits_per_byte, row.interval) for row in scored.scores}

    def read(windows: str) -> Callable[[int], Measurement]:
        return lambda length: by_length.get((windows, length), missing("shorter than the stride"))

    columns = [Column("length", "context", lambda length: f"{length:,}", label=True)]
    columns.append(Column("separate", "separate windows", read("separate"), digits=3))
    if scored.stride is not None:
        columns.append(Column("sliding", f"sliding by {scored.stride}", read("sliding"), digits=3))
    size = f"{scored.num_bytes:,} bytes ({scored.num_tokens:,} tokens) of {scored.num_documents} documents"
    what = f"{scored.split}, bits per byte of the same {size}"
    contexts = sorted({row.length for row in scored.scores})
    title = f"By length of the context ({what}; trained at {scored.training_length:,}):"

    def position(row: PositionScore) -> str:
        return f"{row.first:,}" if row.first == row.last else f"{row.first:,}–{row.last:,}"

    places = (
        Column("position", "position", position, label=True),
        Column("bits_per_byte", "bits per byte", lambda row: single(row.bits_per_byte), digits=3),
    )
    return [
        Grid("by_context", title, tuple(columns), tuple(contexts)),
        Grid("by_position", f"By position in separate windows of {contexts[-1]:,}:", places, scored.by_position),
    ]

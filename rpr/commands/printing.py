"""What several commands print: tables, and the result of a run."""

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
from rpr.tables.grid import Cell, Column, Grid, legend
from rpr.tables.render import shows_intervals, terminal, titled, wrapped


def with_legend(grids: Sequence[Grid]) -> str:
    """Tables for a terminal, and below them the meaning of their symbols."""
    signs = wrapped(legend(grids, shows_intervals))
    return "\n\n".join([*map(titled, grids), *(["\n".join(signs)] if signs else [])])


def headline(record: Record, run_dir: Path) -> str:
    """The result of a run in one line."""
    synthetic = " (synthetic data)" if record.synthetic else ""
    metric = record.kind.metric
    digits = score_digits(metric)
    scores = [f"{score.split} {score.score:.{digits}f}" for score in record.scores if score.metric == metric]
    measured = ", ".join(scores) or "not measured"
    return f"{record.name}{synthetic}: {METRIC_NAMES[metric]} {measured}: {escape_control_characters(str(run_dir))}"


def print_result(run_dir: Path) -> None:
    """The result of a run, in a few lines on stdout."""
    record = read_record(run_dir / RECORD_NAME)
    print(f"{record.name}{' (synthetic data)' if record.synthetic else ''}: {escape_control_characters(str(run_dir))}")
    print(terminal(score_grid(record.scores)) if record.scores else "")
    for grid in (grid for by_context in record.by_context for grid in context_grids(by_context)):
        print(titled(grid))
    training = record.training
    if training is not None and training.steps_per_second is not None:
        print(
            f"  {training.steps_per_second:.3f} steps/s, {training.target_tokens_per_second:,.0f} "
            f"{'' if training.source_tokens_per_second is None else 'target '}tokens/s "
            f"over {training.measured_steps} steps (excluding {training.excludes}) on {record.device}"
        )
    if training is not None and training.padding_waste is not None:
        print(f"  padding: {training.padding_waste:.1%} of the tokens")


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

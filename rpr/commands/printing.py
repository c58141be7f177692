"""What several commands print: tables, and the result of a run."""

from collections.abc import Sequence
from pathlib import Path

from rpr.io.escape import escape_control_characters
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.records.scores import METRIC_NAMES, score_digits
from rpr.tables.grid import Grid, legend
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
    from rpr.commands.scoring import context_grids, score_grid

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

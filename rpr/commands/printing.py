"""What several commands print: tables, and the result of a run."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rpr.io.escape import escape_control_characters
from rpr.kinds import TEXT, kind_of_metric
from rpr.records.measurement import single
from rpr.records.record import RECORD_NAME, Record, read_record
from rpr.records.scores import (
    METRIC_NAMES,
    ByContext,
    ByLength,
    Interval,
    LengthScore,
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


def findings(record: Record) -> list[Score]:
    """The scores of a run that findings are of, of its first split first."""
    kind = record.kind
    scores = [score for score in record.scores if score.metric == kind.metric]
    return sorted(scores, key=lambda score: [*kind.splits, score.split].index(score.split))


def headline(record: Record) -> str:
    """The scores of a run with their intervals, those of findings first."""
    texts = [f"{score.split} {score_text(score)}" for score in findings(record)]
    made_up = " (synthetic data)" if record.synthetic else ""
    return f"{record.name}{made_up}: {record.kind.heading} {', '.join(texts) or 'not measured'}"


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
    rows = [
        [score.split, score.metric, score.test_set, score_text(score), f"{score.num_sentences:,}"] for score in scores
    ]
    items = kind_of_metric(scores[0].metric).items if scores else "sentences"
    blocks = [table(["split", "metric", "test set", "score", items], rows, texts=3)]
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


def _table_by_length(by_length: ByLength) -> list[str]:
    rows = []
    for bucket in by_length.buckets:
        scored = {score.metric: score_text(score) for score in bucket.scores}
        figures = [scored.get(metric, DASH) for metric in by_length.signatures]
        rows.append([bucket.label + "*" * bucket.beyond_training, *figures, f"{bucket.num_sentences:,}"])
    metrics = [METRIC_NAMES[metric] for metric in by_length.signatures]
    title = f"By {by_length.axis} ({by_length.unit}), {pooled(by_length.splits)}:"
    return [title, *table([by_length.unit.split()[0], *metrics, "sentences"], rows)]


def _tables_by_context(scored: ByContext) -> Iterator[list[str]]:
    found: dict[int, dict[str, str]] = {}
    for row in scored.scores:
        found.setdefault(row.length, {})[row.windows] = _figure(row.bits_per_byte, row.interval, TEXT.metric)
    headings = {"separate": "separate windows"}
    headings |= {} if scored.stride is None else {"sliding": f"sliding by {scored.stride}"}
    size = f"{scored.num_bytes:,} bytes ({scored.num_tokens:,} tokens) of {scored.num_documents} documents"
    what = f"{scored.split}, bits per byte of the same {size}; trained at {scored.training_length:,}"
    rows = [[f"{length:,}", *(row.get(windows, DASH) for windows in headings)] for length, row in sorted(found.items())]
    yield [*wrapped([f"By length of the context ({what}):"]), *table(["context", *headings.values()], rows)]
    figures = (_figure(row.bits_per_byte, None, TEXT.metric) for row in scored.by_position)
    ranges = (f"{row.first:,}–{row.last:,}" for row in scored.by_position)
    title = f"By position in separate windows of {max(found):,}:"
    yield [title, *table(["position", "bits per byte"], zip(ranges, figures, strict=True))]


def score_text(score: Score | LengthScore) -> str:
    """`36.41 (35.92 to 36.90)†`."""
    return _figure(score.score, score.interval, score.metric)


def _figure(value: float, interval: Interval | None, metric: str) -> str:
    return " ".join(figure_text(single(value, interval), kind_of_metric(metric).printed_digits)).rstrip()

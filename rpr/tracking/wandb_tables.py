"""Tables of a finished run in W&B: its scores, and some of its translations. They are read from the run's folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rpr.kinds import TEXT
from rpr.records.files import evenly_spaced, read_translations
from rpr.records.record import RECORD_NAME, Record
from rpr.records.scores import SPLITS, Interval, scored_items

MAX_TRANSLATIONS = 20


def tables(record: Record, run_dir: Path) -> dict[str, Any]:
    """W&B's tables by name; those for which the record has no values are omitted. The translations are evenly spaced,
    the same ones in every run on the same corpus. Raises DataError if their files cannot be read.
    """
    named = {}
    if record.scores:
        named["results/scores"] = _table(
            f"split,test set,metric,score,low,high,{scored_items(record.scores)},checkpoint,signature",
            (
                (of.split, of.test_set, of.metric, of.score, *_ends(of.interval), of.num_sentences, of.checkpoint,
                 of.signature)
                for of in record.scores
            ),
        )  # fmt: skip
        if record.kind is not TEXT:
            split = next((name for name in SPLITS if record.score(name)), record.scores[0].split)
            sentences = enumerate(zip(*read_translations(run_dir / RECORD_NAME, split), strict=True), start=1)
            shown = ((split, line, *texts) for line, texts in evenly_spaced(list(sentences), MAX_TRANSLATIONS))
            named["results/translations"] = _table("split,line,source,reference,hypothesis", shown)
    if (lengths := record.by_length) is not None:
        named["results/bleu_by_length"] = _table(
            f"{lengths.axis},to,beyond training,sentences,metric,score,low,high",
            (
                (of.label, of.longest, of.beyond_training, of.num_sentences, score.metric, score.score,
                 *_ends(score.interval))
                for of in lengths.buckets
                for score in of.scores
            ),
        )  # fmt: skip
    for contexts in record.by_context[:1]:
        named["results/bits_by_context"] = _table(
            "windows,context,beyond training,bytes,bits per byte,low,high",
            (
                (of.windows, of.length, of.length > contexts.training_length, of.num_bytes, of.bits_per_byte,
                 *_ends(of.interval))
                for of in contexts.scores
            ),
        )  # fmt: skip
    return named


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _table(columns: str, rows: Iterable[Sequence[Any]]) -> Any:
    import wandb

    return wandb.Table(columns=[*columns.split(",")], data=[list(row) for row in rows])

"""What belongs to a record beside it: the metrics of its training, its translations, the nats of its documents.

A run's folder has them as metrics.jsonl, SPLIT.{sources,references,hypotheses}.txt and SPLIT.documents.txt. A sweep's
committed folder has the same of all its runs in metrics.parquet, hypotheses.jsonl.xz and documents.parquet.
"""

import json
import lzma
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from rpr.errors import DataError
from rpr.io.atomic import replace_file
from rpr.records.record import METRICS_NAME, RECORDS_NAME, Record, find_records, read_text, record_name, refusal

METRICS_TABLE, DOCUMENTS_TABLE, HYPOTHESES = "metrics.parquet", "documents.parquet", "hypotheses.jsonl.xz"
WHOLE = "whole {}"  # of its documents: those that rpr-cli evaluate scored beyond evaluation.text_tokens
KEPT_METRICS = ("validation/bleu", "validation/loss", "train/loss")  # of a committed run, and of a report's curves
SHOWN_METRICS = {  # columns that a progress bar shows, with their labels
    "train/loss": "loss",
    "validation/bleu": "BLEU",
    "target_tokens_per_second": "target tokens/s",
    "validation/loss": "validation loss",
}


class Texts(NamedTuple):
    """A line for each sentence of a test set."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]


class DocumentNats(NamedTuple):
    """A document of a test set: its name, size in bytes, and the nats of a model for all of it."""

    document: str
    bytes: int
    nats: float


# Metrics


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last line torn by a crash; empty if there is no file. Raises RecordError
    if another line is no object with a step.
    """
    metrics, lines = [], read_text(path).splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entry = from_json(line)
            metrics.append({**entry, "step": int(entry["step"])})
        except (ValueError, LookupError, TypeError):
            if number < len(lines):
                raise refusal(f"{path}:{number}: not a line of metrics; delete it to read the others") from None
    return metrics


def metrics_of(record: Path) -> list[dict[str, Any]]:
    """The metrics of a record's run, a dict for each logged step; empty without any. Raises as `read_metrics`."""
    if (name := record_name(record)) is None:
        return read_metrics(record.with_name(METRICS_NAME))
    rows = _committed(record.with_name(METRICS_TABLE)).get(name, [])
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


# Translations and documents


def documents_file(split: str) -> str:
    """The name of the file with bytes, nats and name of each document, separated by tabs."""
    return f"{split}.documents.txt"


def write_split(run_dir: Path, split: str, texts: Texts) -> None:
    for kind, lines in texts._asdict().items():
        replace_file(run_dir / f"{split}.{kind}.txt", "".join(line + "\n" for line in lines))


def has_translations(record: Path, split: str) -> bool:
    """Whether the translations of a split are beside a record."""
    if (name := record_name(record)) is not None:
        return (name, split) in _committed(record.with_name(HYPOTHESES))
    return all(file.is_file() for file in _text_files(record, split))


def read_translations(record: Path, split: str) -> Texts:
    """The texts of a split; raises DataError if they are missing, unreadable, or of different numbers of lines."""
    if not has_translations(record, split):
        missing = f"{record}: has no {split}.hypotheses.txt with its sources and references"
        raise DataError(f"{missing}; omit it, choose other splits=[...], or train the run again")
    if (name := record_name(record)) is not None:
        kept: Texts = _committed(record.with_name(HYPOTHESES))[name, split]
        return kept
    # Split only at newlines: splitlines() also splits at unusual separators that occur in real sentences.
    texts = Texts(*(read_text(file).removesuffix("\n").split("\n") for file in _text_files(record, split)))
    if len(texts.hypotheses) != len(texts.references):
        counts = f"{len(texts.hypotheses)} hypotheses for {len(texts.references)} references of {split}"
        raise DataError(f"{record.parent}: {counts}; the files were changed: omit it, or train the run again")
    return texts


def read_documents(record: Path, split: str) -> list[DocumentNats]:
    """The documents of a split, empty if there are none beside the record. Raises DataError if they are damaged."""
    if (name := record_name(record)) is not None:
        rows = _committed(record.with_name(DOCUMENTS_TABLE)).get(name, [])
        return [DocumentNats(row["document"], row["bytes"], row["nats"]) for row in rows if row["split"] == split]
    if not (file := record.with_name(documents_file(split))).is_file():
        return []
    lines = [line.split("\t") for line in read_text(file).splitlines()]
    try:
        return [DocumentNats(str(json.loads(name)), int(size), float(nats)) for size, nats, name in lines]
    except ValueError:
        raise DataError(f"{file}: is damaged; restore it, or omit the run") from None


# Committed sweeps


def commit_records(records: Iterable[tuple[Path, Record]], folder: Path) -> None:
    """Write these runs with all that belongs to them as a sweep's committed folder, in the order of their names."""
    import pandas as pd

    metrics: list[dict[str, Any]] = []
    documents: list[dict[str, Any]] = []
    texts: dict[tuple[str, ...], int] = {}
    lines, hypotheses = [], []
    for path, record in sorted(records, key=lambda pair: f"{pair[1].name}-{pair[1].run_id}"):
        # 1. The record, and of its metrics what a report reads.
        name = f"{record.name}-{record.run_id}"
        lines.append(json.dumps(record.model_dump(by_alias=True), ensure_ascii=False, separators=(",", ":")))
        rows = [{key: row.get(key) for key in ("step", *KEPT_METRICS)} for row in metrics_of(path)]
        metrics += [{"run": name, **row} for row in rows if any(row[key] is not None for key in KEPT_METRICS)]
        for split in dict.fromkeys(score.split for score in record.scores):
            # 2. The nats of its documents.
            for kept in (split, WHOLE.format(split)):
                documents += [{"run": name, "split": kept, **row._asdict()} for row in read_documents(path, kept)]
            # 3. Its translations; sources and references, the same for many runs, once.
            if has_translations(path, split):
                sources, references, made = read_translations(path, split)
                if (key := (*sources, "", *references)) not in texts:
                    texts[key] = len(texts)
                    hypotheses.append({"texts": texts[key], "sources": sources, "references": references})
                hypotheses.append({"run": name, "split": split, "texts": texts[key], "hypotheses": made})
    # 4. The files.
    packed = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in hypotheses)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in ((METRICS_TABLE, metrics), (DOCUMENTS_TABLE, documents)):
        if table:
            pd.DataFrame(table).to_parquet(folder / name, compression="zstd")
    if hypotheses:
        replace_file(folder / HYPOTHESES, lzma.compress(packed.encode()))
    replace_file(folder / RECORDS_NAME, "".join(line + "\n" for line in lines))


def _main(runs_dir: str, sweep: str, folder: str) -> None:
    records = [*find_records(Path(folder)).records, *find_records(Path(runs_dir), sweep).records]
    by_name = {f"{record.name}-{record.run_id}": (path, record) for path, record in records if record.outcome is None}
    if not by_name:
        raise SystemExit(f"{runs_dir}: has no finished run of sweep {sweep}")
    commit_records([*by_name.values()], Path(folder))


@lru_cache(maxsize=8)
def _committed(path: Path) -> dict[Any, Any]:
    """What is in a file of a committed sweep, read once: rows by run, or texts by run and split; empty without it."""
    if not path.exists():
        return {}
    try:
        if path.name != HYPOTHESES:
            import pyarrow.parquet as pq

            rows: dict[str, list[dict[str, Any]]] = {}
            for row in pq.read_table(path).to_pylist():
                rows.setdefault(row.pop("run"), []).append(row)
            return rows
        lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
        texts = {line["texts"]: (line["sources"], line["references"]) for line in lines if "sources" in line}
        made = (line for line in lines if "run" in line)
        return {(one["run"], one["split"]): Texts(*texts[one["texts"]], one["hypotheses"]) for one in made}
    except (OSError, ValueError, LookupError, lzma.LZMAError) as error:  # pyarrow's errors are of the first two
        raise refusal(f"{path}: cannot be read ({error}); restore it, or omit the run") from None


def _text_files(record: Path, split: str) -> list[Path]:
    return [record.with_name(f"{split}.{kind}.txt") for kind in Texts._fields]


if __name__ == "__main__":
    _main(*sys.argv[1:])

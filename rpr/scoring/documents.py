"""Bits per byte of runs on the same documents, from the nats of each document that a run's scoring wrote."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rpr.errors import DataError
from rpr.records.files import documents_file, read_documents
from rpr.records.record import Record
from rpr.records.scores import BITS_PER_BYTE
from rpr.scoring.metrics import Metric
from rpr.scoring.statistics import SufficientStatistics, bits_from_sums


def document_metrics(runs: Sequence[tuple[str, Path, Record]], split: str) -> dict[str, Metric]:
    """The metric of each run, (name, path of its record, record). Raises DataError if a run has no documents of this
    split, or others than the first run; RecordError if a file cannot be read.
    """
    metrics: dict[str, Metric] = {}
    first: list[tuple[str, int]] = []
    signature = ""
    corpus = runs[0][2].data
    for name, path, record in runs:
        score, documents = record.score(split, BITS_PER_BYTE), read_documents(path, split)
        if score is None or not documents:
            missing = f"runs: {name} has no documents of {split} with their nats ({documents_file(split)})"
            raise DataError(f"{missing}; compare language models, on a split that all of them have")
        scored = [(document.document, document.bytes) for document in documents]
        values = np.asarray([(document.nats, document.bytes) for document in documents])
        first, signature = first or scored, signature or score.signature
        other_corpus = record.data is not None and corpus is not None and record.data.key != corpus.key
        if scored != first or score.signature != signature or other_corpus:
            raise DataError(
                f"runs: {runs[0][0]} and {name} were scored on other documents of {split} or in other windows, or "
                "trained on another corpus; compare runs of one corpus and context length"
            )
        statistics = SufficientStatistics(values, bits_from_sums)
        metrics[name] = Metric(BITS_PER_BYTE, statistics.score, score.signature, len(values), statistics)
    return metrics

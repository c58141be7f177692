"""The difference of two run records: flat, a row for each key, with what must not be subtracted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpr.records.files import metrics_of
from rpr.records.record import Record, flat

ABSENT: Any = object()  # the value of a key that a record does not have
_LOSSES = ("train/loss", "validation/loss")  # in metrics.jsonl
_FINAL_LOSSES = ("train_loss", "validation_loss")
_SPEEDS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
_FIGURES = (*_FINAL_LOSSES, *_SPEEDS, "peak_memory_bytes", "seconds", "padding_waste", "cores_used")
_HOW_DECODED = ("checkpoint", "beam_size", "length_penalty", "min_length", "precision")
_Fact = tuple[str, Any, Mapping[str, Any]]  # kind and value of a key, and how it was measured


class Row(NamedTuple):
    """One key of two records, a setting, score or figure, with both values. `unlike` says why figures must not be
    subtracted, and is empty if they may be.
    """

    name: str
    kind: str
    a: Any
    b: Any
    unlike: str

    @property
    def same(self) -> bool:
        """To the last bit."""
        return bool(self.a == self.b)


def difference(first: Record, second: Record) -> list[Row]:
    """Every key of either record: of settings, versions and the like, then of scores and of other figures."""
    facts, others = _facts(first), _facts(second)
    rows, absent = [], ("", ABSENT, dict[str, Any]())
    for name in {**facts, **others}:
        (kind, a, how), (other_kind, b, other_how) = facts.get(name, absent), others.get(name, absent)
        pairs = [(key, value, other_how[key]) for key, value in how.items() if key in other_how]
        unlike = "; ".join(f"{key} {value} and {other}" for key, value, other in pairs if value != other)
        rows.append(Row(name, kind or other_kind, a, b, unlike))
    return rows


def equal_losses(first: Path, second: Path) -> tuple[int, int]:
    """How many logged losses the runs of two records have in common, and how many are the same; NaN equals NaN."""
    a, b = (
        {(name, row["step"]): str(row[name]) for row in metrics_of(path) for name in _LOSSES if name in row}
        for path in (first, second)
    )
    common = a.keys() & b.keys()
    return len(common), sum(a[key] == b[key] for key in common)


def reproduced(rows: Sequence[Row]) -> bool:
    """Whether the second record has all scores and losses of the first, which has a training loss, to the last bit. A
    version of more metrics adds scores.
    """
    checked = [row for row in rows if row.name in _FINAL_LOSSES or (row.kind == "score" and row.a is not ABSENT)]
    return all(row.same for row in checked) and any(row.name == "train_loss" for row in checked)


def _facts(record: Record) -> dict[str, _Fact]:
    """Everything that a record says, by dotted name."""
    # 1. What it was. Until it has finished, the device is only the name of the configured hardware.
    shown, data = record.shown(), record.data
    described = shown.config | {
        "run": {"name": shown.name, "status": shown.outcome or shown.status, "command": shown.command}
        | ({"device": shown.device} if record.status == "finished" else {}),
        "git": record.git.model_dump(),
        "versions": record.versions,
        "code": record.schemes or {},
        "corpus": data.model_dump(mode="json", exclude={"name", "synthetic"}) if data else {},
        "measured": record.training.model_dump(exclude={*_FIGURES}) if record.training else {},
        "decoded": decoding(shown),
    }
    facts: dict[str, _Fact] = {name: ("setting", value, {}) for name, value in flat(described).items() if value != {}}
    # 2. Scores. Of another corpus other pairs are held out, and other documents are scored.
    corpus = {"corpus.key": data.key[:12]} if data else {}
    documents = corpus if record.corpus is not None else {}
    for score in record.scores:
        how = _fields(score, "test_set", "num_sentences", "signature")
        how |= corpus if score.test_set.startswith("held-out-") else documents
        facts[f"{score.split}/{score.metric}"] = "score", score.score, how
    for scores in record.by_context:
        how = dict(scores.way) | documents
        for row in scores.scores:
            stride = {"stride": scores.stride} if row.windows == "sliding" else {}
            facts[f"{scores.split}, {row.windows} {row.length}"] = "score", row.bits_per_byte, how | stride
    # 3. Other figures: losses of one corpus, speeds of a device that as many jobs shared.
    jobs = {} if record.concurrent_jobs is None else {"concurrent_jobs": record.concurrent_jobs}
    conditions = dict.fromkeys(_FINAL_LOSSES, corpus) | {"seconds": jobs}
    conditions |= dict.fromkeys(_SPEEDS, _fields(record.training, "excludes") | jobs)
    conditions["peak_memory_bytes"] = _fields(record.training, "peak_memory_kind")
    figures = _fields(record, "steps", "parameters") | _fields(record.training, *_FIGURES)
    measured = {name: value for name, value in figures.items() if value is not None}
    return facts | {name: ("figure", value, conditions.get(name, {})) for name, value in measured.items()}


def decoding(record: Record) -> dict[str, Any]:
    """How the translations of a record were decoded: each field's value, or a list if its scores have several."""
    fields = {name: list(dict.fromkeys(getattr(score, name) for score in record.scores)) for name in _HOW_DECODED}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items() if values}


def _fields(section: Any, *names: str) -> dict[str, Any]:
    return {} if section is None else {name: getattr(section, name) for name in names}

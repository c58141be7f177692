"""The differences between two run records, in settings, origin and results; pure functions of the records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rpr.config.train import config_from_record
from rpr.errors import ConfigError
from rpr.migrations import with_earlier_defaults
from rpr.records.measurement import Measurement, missing, single
from rpr.records.record import Record
from rpr.records.scores import ByLength, Score

ABSENT: Any = object()  # the value of a key that a record does not have
LOSSES = ("train/loss", "validation/loss")  # in metrics.jsonl
_SPEEDS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
_MEMORY = "peak_memory_bytes"
_FINAL_LOSSES = ("train_loss", "validation_loss")
_FIGURES = (*_FINAL_LOSSES, *_SPEEDS, _MEMORY, "seconds", "skipped_steps", "loss_spikes", "padding_waste")
_HOW_MEASURED = ("excludes", "measured_steps", "peak_memory_kind", "matmul_precision", "precision", "parameters_note")
_HOW_DECODED = ("checkpoint", "beam_size", "length_penalty", "min_length", "precision")
_SAME_TEST = ("test_set", "num_sentences", "signature")  # else two scores must not be subtracted


@dataclass(frozen=True)
class Part:
    """One part of both records: both values of each key that differs (ABSENT if there is none), and the equal keys."""

    name: str
    changes: dict[str, tuple[Any, Any]]
    same: tuple[str, ...]


@dataclass(frozen=True)
class MeasurementPair:
    """One figure of both runs. `unlike`: why they are not comparable, or None."""

    name: str
    first: Measurement
    second: Measurement
    unlike: str | None = None

    @property
    def same(self) -> bool:
        """To the last bit."""
        return self.first.value == self.second.value

    @property
    def difference(self) -> float | None:
        """Second - first."""
        if self.first.value is None or self.second.value is None or self.unlike:
            return None
        return self.second.value - self.first.value

    @property
    def ratio(self) -> float | None:
        """Second / first."""
        return None if self.difference is None or not self.first.value else (self.second.value or 0) / self.first.value

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals overlap; None without two intervals of the same level."""
        one, other = self.first.interval, self.second.interval
        if one is None or other is None or one.level != other.level or self.unlike:
            return None
        return max(one.low, other.low) <= min(one.high, other.high)


@dataclass(frozen=True)
class Curve:
    """One loss of both metrics files, compared line by line up to the first difference.

    The first `equal` lines are the same, the last of them at step `equal_until`. `parting` is (step, loss) of each run
    in the next line, if both have one; the steps differ if the runs logged at different steps.
    """

    name: str
    equal: int
    equal_until: int | None
    parting: tuple[tuple[int, float], tuple[int, float]] | None


@dataclass(frozen=True)
class Difference:
    """All differences. `relation` describes how the two records are related."""

    relation: str
    parts: tuple[Part, ...]
    scores: tuple[MeasurementPair, ...]
    figures: tuple[MeasurementPair, ...]
    by_length: tuple[MeasurementPair, ...]
    curves: tuple[Curve, ...]

    @property
    def reproduced(self) -> bool:
        """Whether the training loss exists, and the second record has all scores and losses of the first, the same to
        the last bit. A version of more metrics adds scores.
        """
        losses = [one for one in self.figures if one.name in _FINAL_LOSSES]
        measured = any(one.name == "train_loss" for one in losses)
        scores = [one for one in (*self.scores, *self.by_length) if one.first.value is not None]
        return measured and all(one.same for one in (*scores, *losses)) and not any(one.parting for one in self.curves)


def difference(
    first: Record, second: Record, first_metrics: Sequence[Any] = (), second_metrics: Sequence[Any] = ()
) -> Difference:
    """Compare two records; `*_metrics` are the lines of their metrics files, empty if there is no file.

    Settings that are newer than a record have the value of the earlier behaviour, as in `config_from_record`.
    """
    one, other = first.shown(), second.shown()
    parts = (
        _part("settings", with_earlier_defaults(one.config), with_earlier_defaults(other.config)),
        _part("run", _run(one), _run(other)),
        _part("git", first.git.model_dump(), second.git.model_dump()),
        _part("versions", first.versions, second.versions),
        _part("data", _data(first), _data(second)),
        _part("measuring", _fields(first.training, _HOW_MEASURED), _fields(second.training, _HOW_MEASURED)),
        _part("decoding", *_decoding(first, second)),
    )
    by_length: tuple[MeasurementPair, ...] = ()
    if first.by_length is not None and second.by_length is not None:
        for metric in dict.fromkeys([*first.by_length.signatures, *second.by_length.signatures]):
            by_length += _measured(_by_length(first.by_length, metric), _by_length(second.by_length, metric))
    return Difference(
        _relation(first, second),
        parts,
        _measured(_scores(first), _scores(second)),
        _measured(_figures(first), _figures(second)),
        by_length,
        _curves(first_metrics, second_metrics),
    )


def _relation(first: Record, second: Record) -> str:
    if first == second:
        return "the same record"
    if _id(first) != _id(second):
        return "two configurations"
    return "one run, recorded twice" if first.started == second.started else "one configuration, run twice"


def _id(record: Record) -> str:
    """The run id by the current rule; as recorded, if this version cannot read the configuration."""
    try:
        return config_from_record(record.config).run_id
    except ConfigError:
        return record.run_id


def _part(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Part:
    found = list(_side_by_side(first, second))
    changes = {key: (one, other) for key, one, other in found if one != other}
    return Part(name, changes, tuple(key for key, one, other in found if one == other))


def _side_by_side(
    first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*first, *second]):
        one, other = first.get(key, ABSENT), second.get(key, ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _side_by_side(one, other, f"{prefix}{key}.")
        else:
            yield prefix + key, one, other


def _run(record: Record) -> dict[str, Any]:
    said = {"name": record.name, "status": record.outcome or record.status, "command": record.command}
    # Until a run is finished, `device` is only the name of the configured hardware.
    said |= {"device": record.device} if record.status == "finished" else {}
    return said | ({"scores by length": "recorded"} if record.by_length is not None else {})


def _data(record: Record) -> dict[str, Any]:
    return {} if record.data is None else record.data.model_dump(mode="json", exclude={"name", "synthetic"})


def _fields(section: Any, names: Sequence[str]) -> dict[str, Any]:
    return {} if section is None else {name: getattr(section, name) for name in names}


def _decoding(first: Record, second: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the scores that both records have were computed: all values of each setting."""
    shared = _scores(first).keys() & _scores(second).keys()

    def values(record: Record) -> dict[str, Any]:
        scores = [score for score in record.scores if _score_name(score) in shared]
        found = {name: list(dict.fromkeys(getattr(score, name) for score in scores)) for name in _HOW_DECODED}
        return {name: several[0] if len(several) == 1 else several for name, several in found.items() if several}

    return values(first), values(second)


def _score_name(score: Score) -> str:
    return f"{score.split}/{score.metric}"


# Figures by name, each with the fields that must be equal in both runs for them to be comparable.
_Figures = dict[str, tuple[Measurement, dict[str, Any]]]


def _measured(first: _Figures, second: _Figures) -> tuple[MeasurementPair, ...]:
    nothing: tuple[Measurement, dict[str, Any]] = missing("not in this record"), {}
    found = []
    for name in dict.fromkeys([*first, *second]):
        (one, how), (other, other_how) = first.get(name, nothing), second.get(name, nothing)
        apart = {key: (how[key], other_how[key]) for key in how if key in other_how and how[key] != other_how[key]}
        unlike = "; ".join(f"{key} {_apart(*pair)}" for key, pair in apart.items())
        found.append(MeasurementPair(name, one, other, unlike or None))
    return tuple(found)


def _apart(one: Any, other: Any) -> str:
    """`13a and none`: of two signatures, only the fields that differ."""
    if isinstance(one, str) and isinstance(other, str):
        ours, theirs = one.split("|"), other.split("|")
        one = "|".join(field for field in ours if field not in theirs) or one
        other = "|".join(field for field in theirs if field not in ours) or other
    return f"{one} and {other}"


def _scores(record: Record) -> _Figures:
    return {_score_name(one): (single(one.score, one.interval), _fields(one, _SAME_TEST)) for one in record.scores}


def _figures(record: Record) -> _Figures:
    values: dict[str, Any] = {"steps": record.steps, "parameters": record.parameters}
    values |= _fields(record.training, _FIGURES)
    how = dict.fromkeys(_SPEEDS, ("excludes",)) | {_MEMORY: ("peak_memory_kind",)}
    return {
        name: (single(value), _fields(record.training, how.get(name, ())))
        for name, value in values.items()
        if value is not None
    }


def _by_length(found: ByLength, metric: str) -> _Figures:
    how = _fields(found, ("unit", "splits", "test_sets")) | {"signature": found.signatures.get(metric)}
    return {
        f"{bucket.label}/{metric}": (single(one.score, one.interval), how | _fields(bucket, ("num_sentences",)))
        for bucket in found.buckets
        for one in bucket.scores
        if one.metric == metric
    }


def _curves(first: Sequence[Any], second: Sequence[Any]) -> tuple[Curve, ...]:
    curves = []
    for name in LOSSES:
        one, other = (
            [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
            for rows in (first, second)
        )
        if not one or not other:
            continue
        pairs = list(zip(one, other, strict=False))
        equal = next((number for number, pair in enumerate(pairs) if not _equal(*pair)), len(pairs))
        parting = pairs[equal] if equal < len(pairs) else None
        curves.append(Curve(name, equal, one[equal - 1][0] if equal else None, parting))
    return tuple(curves)


def _equal(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether step and loss are the same; two NaNs count as equal."""
    return one[0] == other[0] and (one[1] == other[1] or (math.isnan(one[1]) and math.isnan(other[1])))

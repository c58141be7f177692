"""The differences between run records: of two in settings, origin and results, of several in their corpora; pure
functions of the records.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from rpr.records.record import Record, flat
from rpr.records.scores import BITS_PER_BYTE, Interval

ABSENT: Any = object()  # the value of a key that a record does not have
LOSSES = ("train/loss", "validation/loss")  # in metrics.jsonl
_SPEEDS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
_SHARED = (*_SPEEDS, "seconds")  # of a device that other jobs may use, too
_MEMORY = "peak_memory_bytes"
_FINAL_LOSSES = ("train_loss", "validation_loss")
_FIGURES = (*_FINAL_LOSSES, *_SPEEDS, _MEMORY, "seconds", "padding_waste")
_HOW_MEASURED = ("excludes", "measured_steps", "peak_memory_kind", "matmul_precision", "precision", "parameters_note")
_HOW_DECODED = ("checkpoint", "beam_size", "length_penalty", "min_length", "precision")
_SAME_TEST = ("test_set", "num_sentences", "signature")  # else two scores must not be subtracted
_SAME_TEXT = ("test_set", "num_bytes", "num_documents", "training_length", "precision")


Part = dict[str, tuple[Any, Any]]  # both records' values of each key; ABSENT if a record has none


class Figure(NamedTuple):
    """A figure of one run (None: not recorded); two whose `how` has other values are not comparable."""

    value: float | None = None
    interval: Interval | None = None
    how: Mapping[str, Any] = MappingProxyType({})


class FigurePair(NamedTuple):
    """One figure of both runs."""

    name: str
    a: Figure
    b: Figure

    @property
    def same(self) -> bool:
        """To the last bit."""
        return self.a.value == self.b.value

    @property
    def unlike(self) -> str | None:
        """Why the two are not comparable; None if they are."""
        how = [(key, value, self.b.how[key]) for key, value in self.a.how.items() if key in self.b.how]
        return "; ".join(f"{key} {value} and {other}" for key, value, other in how if value != other) or None

    @property
    def difference(self) -> float | None:
        """b - a, if both are recorded and comparable."""
        a, b = self.a.value, self.b.value
        return None if a is None or b is None or self.unlike else b - a


@dataclass(frozen=True)
class Curve:
    """One loss of both metrics files, compared line by line up to the first difference.

    The first `equal` lines are the same, the last of them at step `equal_until`; in the next one, if there is one in
    both files, they have `parted`.
    """

    name: str
    equal: int
    equal_until: int | None
    parted: bool


@dataclass(frozen=True)
class Difference:
    """All differences; `parts` are by name."""

    parts: dict[str, Part]
    scores: tuple[FigurePair, ...]
    figures: tuple[FigurePair, ...]
    curves: tuple[Curve, ...]

    @property
    def reproduced(self) -> bool:
        """Whether the training loss exists, and the second record has all scores and losses of the first, the same to
        the last bit. A version of more metrics adds scores. (Scores by length are of the same translations.)
        """
        losses = [pair for pair in self.figures if pair.name in _FINAL_LOSSES]
        measured = any(pair.name == "train_loss" for pair in losses)
        scores = [pair for pair in self.scores if pair.a.value is not None]
        parted = any(curve.parted for curve in self.curves)
        return measured and not parted and all(pair.same for pair in (*scores, *losses))


def difference(
    first: Record, second: Record, first_metrics: Sequence[Any] = (), second_metrics: Sequence[Any] = ()
) -> Difference:
    """Compare two records; `*_metrics` are the lines of their metrics files, empty if there is no file.

    Settings that are newer than a record have the value of the earlier behaviour, as in `config_from_record`.
    """
    others = _parts(second)
    return Difference(
        {name: _side_by_side(part, others[name]) for name, part in _parts(first).items()},
        _pairs(_scores(first), _scores(second)),
        _pairs(_figures(first), _figures(second)),
        tuple(_curves(first_metrics, second_metrics)),
    )


def corpus_differences(records: Sequence[Record]) -> list[str | None]:
    """For each run the hash of its corpus, if others of these runs read another one with the same settings, which only
    name the files; else None. A run that ended before it read its corpus is taken to have the first one's.
    """
    settings, keys = list[str](), dict[str, dict[str, None]]()  # in the order of the runs
    for run in records:
        settings.append(json.dumps(run.config["data"] | {"cache_dir": None, "path": None}, sort_keys=True))
        if run.data is not None:
            keys.setdefault(settings[-1], {})[run.data.key] = None
    alike = [[*keys.get(text, ())] for text in settings]
    return [
        (own[0] if run.data is None else run.data.key)[:12] if len(own) > 1 else None
        for run, own in zip(records, alike, strict=True)
    ]


def decoding(record: Record) -> dict[str, Any]:
    """How the translations of a record were decoded: each field's value, or a list if its scores have several."""
    fields = {name: list(dict.fromkeys(getattr(score, name) for score in record.scores)) for name in _HOW_DECODED}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items() if values}


def changes(part: Part) -> Part:
    """The keys whose values differ."""
    return {key: (a, b) for key, (a, b) in part.items() if a != b}


def _parts(record: Record) -> dict[str, dict[str, Any]]:
    """What a record says beside its figures, by part."""
    shown = record.shown()
    run = {"name": shown.name, "status": shown.outcome or shown.status, "command": shown.command}
    # Until a run is finished, `device` is only the name of the configured hardware.
    run |= {"device": shown.device} if record.status == "finished" else {}
    return {
        "settings": shown.config,
        "run": run,
        "git": record.git.model_dump(),
        "versions": record.versions,
        "schemes": record.schemes or {},
        "data": {} if record.data is None else record.data.model_dump(mode="json", exclude={"name", "synthetic"}),
        "measuring": _fields(record.training, _HOW_MEASURED),
        "decoding": decoding(shown),
    }


def _side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> Part:
    a, b = flat(first), flat(second)
    return {key: (a.get(key, ABSENT), b.get(key, ABSENT)) for key in dict.fromkeys([*a, *b])}


def _fields(section: Any, names: Sequence[str]) -> dict[str, Any]:
    return {} if section is None else {name: getattr(section, name) for name in names}


def _scores(record: Record) -> dict[str, Figure]:
    documents = {} if record.corpus is None else _corpus(record)
    of_splits = {
        f"{score.split}/{score.metric}": Figure(
            score.score,
            score.interval,
            # Of another corpus other pairs are held out.
            _fields(score, _SAME_TEST) | (_corpus(record) if score.test_set.startswith("held-out-") else documents),
        )
        for score in record.scores
    }
    by_context = {
        f"{scores.split}, {score.windows} {score.length}/{BITS_PER_BYTE}": Figure(
            score.bits_per_byte,
            score.interval,
            {
                **_fields(scores, _SAME_TEXT),
                **documents,
                # Which bytes are scored depends on the longest windows.
                "longest context": max(other.length for other in scores.scores),
                **({"stride": scores.stride} if score.windows == "sliding" else {}),
            },
        )
        for scores in record.by_context
        for score in scores.scores
    }
    return of_splits | by_context


def _corpus(record: Record) -> dict[str, Any]:
    """Its hash, which its tokens are part of."""
    return {} if record.data is None else {"data.key": record.data.key[:12]}


def _figures(record: Record) -> dict[str, Figure]:
    values = {"steps": record.steps, "parameters": record.parameters, **_fields(record.training, _FIGURES)}
    how = dict.fromkeys(_SPEEDS, ("excludes",)) | {_MEMORY: ("peak_memory_kind",)}
    jobs: dict[str, Any] = {} if record.concurrent_jobs is None else {"concurrent_jobs": record.concurrent_jobs}
    more = dict.fromkeys(_SHARED, jobs) | dict.fromkeys(_FINAL_LOSSES, _corpus(record))
    return {
        name: Figure(value, how=_fields(record.training, how.get(name, ())) | more.get(name, {}))
        for name, value in values.items()
        if value is not None
    }


def _pairs(first: Mapping[str, Figure], second: Mapping[str, Figure]) -> tuple[FigurePair, ...]:
    names = dict.fromkeys([*first, *second])
    return tuple(FigurePair(name, first.get(name, Figure()), second.get(name, Figure())) for name in names)


def _curves(first: Sequence[Any], second: Sequence[Any]) -> Iterator[Curve]:
    for name in LOSSES:
        a, b = (
            [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
            for rows in (first, second)
        )
        if a and b:
            pairs = list(zip(a, b, strict=False))
            # As text NaN is equal to NaN.
            differ = (number for number, (p, q) in enumerate(pairs) if p != q and str(p) != str(q))
            equal = next(differ, len(pairs))
            yield Curve(name, equal, a[equal - 1][0] if equal else None, equal < len(pairs))

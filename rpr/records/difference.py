"""The one difference of two run records: flat, by part and dotted name, with what must not be subtracted; and which of
several read another corpus. Pure functions of the records.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rpr.records.record import Record, flat
from rpr.records.scores import BITS_PER_BYTE, Interval

ABSENT: Any = object()  # the value of a key that a record does not have
LOSSES = ("train/loss", "validation/loss")  # in metrics.jsonl
SCORES, FIGURES = "scores", "figures"  # the parts whose values are subtracted
_SPEEDS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
_FINAL_LOSSES = ("train_loss", "validation_loss")
_MEASURED = (*_FINAL_LOSSES, *_SPEEDS, "peak_memory_bytes", "seconds", "padding_waste")
_HOW_MEASURED = ("excludes", "measured_steps", "peak_memory_kind", "matmul_precision", "precision", "parameters_note")
_HOW_DECODED = ("checkpoint", "beam_size", "length_penalty", "min_length", "precision")
_SAME_TEST = ("test_set", "num_sentences", "signature")  # else two scores must not be subtracted
_SAME_TEXT = ("test_set", "num_bytes", "num_documents", "training_length", "precision")


class Fact(NamedTuple):
    """What a record says of one key. Two figures whose `how` has other values are not comparable."""

    value: Any = ABSENT
    how: Mapping[str, Any] = {}
    interval: Interval | None = None


class Pair(NamedTuple):
    """One key of two records."""

    part: str
    name: str
    a: Fact
    b: Fact

    @property
    def same(self) -> bool:
        """To the last bit."""
        return bool(self.a.value == self.b.value)

    @property
    def unlike(self) -> str | None:
        """Why two figures are not comparable; None if they are."""
        how = [(key, value, self.b.how[key]) for key, value in self.a.how.items() if key in self.b.how]
        return "; ".join(f"{key} {value} and {other}" for key, value, other in how if value != other) or None

    @property
    def difference(self) -> float | None:
        """b - a of figures that both are there and comparable."""
        there = self.part in (SCORES, FIGURES) and ABSENT not in (self.a.value, self.b.value)
        return float(self.b.value - self.a.value) if there and not self.unlike else None


@dataclass(frozen=True)
class Curve:
    """One loss of both metrics files: the first `equal` lines are the same, the last of them at step `equal_until`; in
    the next one, if there is one in both, they have `parted`.
    """

    name: str
    equal: int
    equal_until: int | None
    parted: bool


@dataclass(frozen=True)
class Difference:
    """Every key of either record, part by part, and the curves of their losses."""

    pairs: tuple[Pair, ...]
    curves: tuple[Curve, ...]

    def of(self, part: str) -> list[Pair]:
        """The keys of one part."""
        return [pair for pair in self.pairs if pair.part == part]

    @property
    def reproduced(self) -> bool:
        """Whether the training loss exists, and the second record has all scores and losses of the first, the same to
        the last bit. A version of more metrics adds scores. (Scores by length are of the same translations.)
        """
        losses = [pair for pair in self.of(FIGURES) if pair.name in _FINAL_LOSSES]
        scores = [pair for pair in self.of(SCORES) if pair.a.value is not ABSENT]
        measured = any(pair.name == "train_loss" for pair in losses)
        return measured and not any(curve.parted for curve in self.curves) and all(p.same for p in (*scores, *losses))


def difference(
    first: Record, second: Record, first_metrics: Sequence[Any] = (), second_metrics: Sequence[Any] = ()
) -> Difference:
    """Compare two records; `*_metrics` are the lines of their metrics files, empty if there is no file."""
    a, b = ({(part, name): fact for part, name, fact in _facts(record)} for record in (first, second))
    keys = dict.fromkeys([*a, *b])
    parts = list(dict.fromkeys(part for part, _ in keys))
    ordered = sorted(keys, key=lambda key: parts.index(key[0]))
    pairs = tuple(Pair(*key, a.get(key, Fact()), b.get(key, Fact())) for key in ordered)
    return Difference(pairs, tuple(_curves(first_metrics, second_metrics)))


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


def _facts(record: Record) -> Iterator[tuple[str, str, Fact]]:
    """Everything that a record says, as part, name and fact."""
    # 1. What it was, part by part.
    shown, corpus = record.shown(), record.data and record.data.key[:12]
    run = {"name": shown.name, "status": shown.outcome or shown.status, "command": shown.command}
    # Until a run is finished, `device` is only the name of the configured hardware.
    run |= {"device": shown.device} if record.status == "finished" else {}
    data = {} if record.data is None else record.data.model_dump(mode="json", exclude={"name", "synthetic"})
    for part, tree in {
        "settings": shown.config,
        "run": run,
        "git": record.git.model_dump(),
        "versions": record.versions,
        "schemes": record.schemes or {},
        "data": data,
        "measuring": _fields(record.training, _HOW_MEASURED),
        "decoding": decoding(shown),
    }.items():
        yield from ((part, name, Fact(value)) for name, value in flat(tree).items())
    # 2. Scores. Of another corpus other pairs are held out, and other documents are scored.
    of_corpus = {} if corpus is None else {"data.key": corpus}
    for score in record.scores:
        other_items = record.corpus is not None or score.test_set.startswith("held-out-")
        how = _fields(score, _SAME_TEST) | (of_corpus if other_items else {})
        yield SCORES, f"{score.split}/{score.metric}", Fact(score.score, how, score.interval)
    for scores in record.by_context:
        # Which bytes are scored depends on the longest windows.
        longest = {"longest context": max(windows.length for windows in scores.scores)}
        for windows in scores.scores:
            how = _fields(scores, _SAME_TEXT) | (of_corpus if record.corpus is not None else {}) | longest
            how |= {"stride": scores.stride} if windows.windows == "sliding" else {}
            name = f"{scores.split}, {windows.windows} {windows.length}/{BITS_PER_BYTE}"
            yield SCORES, name, Fact(windows.bits_per_byte, how, windows.interval)
    # 3. Other figures: losses of one corpus, speeds of a device that as many jobs shared.
    jobs = {} if record.concurrent_jobs is None else {"concurrent_jobs": record.concurrent_jobs}
    conditions = dict.fromkeys(_FINAL_LOSSES, of_corpus) | {"seconds": jobs}
    conditions |= dict.fromkeys(_SPEEDS, _fields(record.training, ("excludes",)) | jobs)
    conditions |= {"peak_memory_bytes": _fields(record.training, ("peak_memory_kind",))}
    figures = {"steps": record.steps, "parameters": record.parameters, **_fields(record.training, _MEASURED)}
    for name, value in figures.items():
        if value is not None:
            yield FIGURES, name, Fact(value, conditions.get(name, {}))


def _fields(section: Any, names: Sequence[str]) -> dict[str, Any]:
    return {} if section is None else {name: getattr(section, name) for name in names}


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

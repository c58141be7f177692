"""The difference of two run records: flat, a row for each key, with what must not be subtracted; and which of several
records read another corpus. Pure functions of the records.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rpr.records.record import Record, flat
from rpr.records.scores import BITS_PER_BYTE, Interval, score_digits

ABSENT: Any = object()  # the value of a key that a record does not have
LOSSES = ("train/loss", "validation/loss")  # in metrics.jsonl
_SPEEDS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second")
_FINAL_LOSSES = ("train_loss", "validation_loss")
_MEASURED = (*_FINAL_LOSSES, *_SPEEDS, "peak_memory_bytes", "seconds", "padding_waste")
_DIGITS = {"steps_per_second": 3, "train_loss": 6, "validation_loss": 6, "padding_waste": 4, "seconds": 1}
_HOW_MEASURED = ("excludes", "measured_steps", "peak_memory_kind", "matmul_precision", "precision", "parameters_note")
_HOW_DECODED = ("checkpoint", "beam_size", "length_penalty", "min_length", "precision")
_SAME_TEST = ("test_set", "num_sentences", "signature")  # else two scores must not be subtracted
_SAME_TEXT = ("test_set", "num_bytes", "num_documents", "training_length", "precision")


class Fact(NamedTuple):
    """What a record says of one key. Figures with other values of the same key in `how` must not be subtracted."""

    value: Any = ABSENT
    kind: Literal["setting", "score", "figure"] = "setting"
    how: Mapping[str, Any] = {}
    interval: Interval | None = None
    digits: int = 0


class Row(NamedTuple):
    """One key of two records."""

    name: str
    a: Fact
    b: Fact

    @property
    def kind(self) -> str:
        """Of the record that has it."""
        return self.b.kind if self.a.value is ABSENT else self.a.kind

    @property
    def same(self) -> bool:
        """To the last bit."""
        return bool(self.a.value == self.b.value)

    @property
    def unlike(self) -> str | None:
        """Why two figures must not be subtracted; None if they may be."""
        how = [(key, value, self.b.how[key]) for key, value in self.a.how.items() if key in self.b.how]
        return "; ".join(f"{key} {value} and {other}" for key, value, other in how if value != other) or None

    @property
    def difference(self) -> float | None:
        """b - a of scores and figures that both are there and alike."""
        there = self.kind != "setting" and ABSENT not in (self.a.value, self.b.value)
        return float(self.b.value - self.a.value) if there and not self.unlike else None


class Curve(NamedTuple):
    """A loss of two metrics files: the first `equal` of the `common` lines that both have are the same."""

    name: str
    equal: int
    common: int


def difference(first: Record, second: Record) -> list[Row]:
    """Every key of either record: of settings, versions and the like, then of scores and of other figures."""
    a, b = _facts(first), _facts(second)
    return [Row(name, a.get(name, Fact()), b.get(name, Fact())) for name in dict.fromkeys([*a, *b])]


def curves(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The losses in the lines of two metrics files that both have."""
    compared = []
    for name in LOSSES:
        a, b = ([str((row["step"], row[name])) for row in rows if name in row] for rows in (first, second))  # NaN = NaN
        if pairs := list(zip(a, b, strict=False)):
            equal = next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))
            compared.append(Curve(name, equal, len(pairs)))
    return compared


def reproduced(rows: Sequence[Row], losses: Sequence[Curve]) -> bool:
    """Whether the second record has all scores and losses of the first, which has a training loss, to the last bit. A
    version of more metrics adds scores.
    """
    final = [row for row in rows if row.name in _FINAL_LOSSES]
    scores = [row for row in rows if row.kind == "score" and row.a.value is not ABSENT]
    measured = any(row.name == "train_loss" for row in final)
    logged = all(curve.equal == curve.common for curve in losses)
    return measured and logged and all(row.same for row in (*scores, *final))


def _facts(record: Record) -> dict[str, Fact]:
    """Everything that a record says, by dotted name."""
    # 1. What it was.
    shown, training = record.shown(), record.training
    corpus = {} if record.data is None else {"corpus.key": record.data.key[:12]}
    described = shown.config | {
        "run": {"name": shown.name, "status": shown.outcome or shown.status, "command": shown.command},
        "git": record.git.model_dump(),
        "versions": record.versions,
        "code": record.schemes or {},
        "corpus": record.data.model_dump(mode="json", exclude={"name", "synthetic"}) if record.data else {},
        "measured": _fields(training, _HOW_MEASURED),
        "decoded": decoding(shown),
    }
    if record.status == "finished":  # until then, only the name of the configured hardware
        described["run"]["device"] = shown.device
    found = {name: Fact(value) for name, value in flat(described).items() if value != {}}
    # 2. Scores. Of another corpus other pairs are held out, and other documents are scored.
    for score in record.scores:
        held_out = record.corpus is not None or score.test_set.startswith("held-out-")
        how = _fields(score, _SAME_TEST) | (corpus if held_out else {})
        name = f"{score.split}/{score.metric}"
        found[name] = Fact(score.score, "score", how, score.interval, score_digits(score.metric))
    for scores in record.by_context:
        longest = max(windows.length for windows in scores.scores)  # which decides the bytes that are scored
        for windows in scores.scores:
            how = _fields(scores, _SAME_TEXT) | (corpus if record.corpus is not None else {})
            how |= {"longest context": longest} | ({"stride": scores.stride} if windows.windows == "sliding" else {})
            name = f"{scores.split}, {windows.windows} {windows.length}"
            found[name] = Fact(windows.bits_per_byte, "score", how, windows.interval, score_digits(BITS_PER_BYTE))
    # 3. Other figures: losses of one corpus, speeds of a device that as many jobs shared.
    jobs = {} if record.concurrent_jobs is None else {"concurrent_jobs": record.concurrent_jobs}
    conditions = dict.fromkeys(_FINAL_LOSSES, corpus) | {"seconds": jobs}
    conditions |= dict.fromkeys(_SPEEDS, _fields(training, ("excludes",)) | jobs)
    conditions |= {"peak_memory_bytes": _fields(training, ("peak_memory_kind",))}
    figures = {"steps": record.steps, "parameters": record.parameters, **_fields(training, _MEASURED)}
    for name, value in figures.items():
        if value is not None:
            found[name] = Fact(value, "figure", conditions.get(name, {}), digits=_DIGITS.get(name, 0))
    return found


def decoding(record: Record) -> dict[str, Any]:
    """How the translations of a record were decoded: each field's value, or a list if its scores have several."""
    fields = {name: list(dict.fromkeys(getattr(score, name) for score in record.scores)) for name in _HOW_DECODED}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items() if values}


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


def _fields(section: Any, names: Sequence[str]) -> dict[str, Any]:
    return {} if section is None else {name: getattr(section, name) for name in names}

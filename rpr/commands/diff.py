"""rpr-cli diff: the differences between two runs in settings, origin and results, from their records alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from rpr.commands.printing import shortened
from rpr.config.commands import DiffConfig
from rpr.io.escape import escape_control_characters
from rpr.records.difference import ABSENT, Curve, Difference, MeasurementPair, Part, difference
from rpr.records.metrics import read_metrics
from rpr.records.record import METRICS_NAME, RECORD_NAME, Record, read_record, run_file
from rpr.report.grid import DASH, Column, Grid, figure_text, number
from rpr.report.render import WIDTH, terminal, wrapped

NAMES = ("A", "B")
_TITLES = {"git": "checkout", "measuring": "how it was measured", "decoding": "how it was decoded"}
_DIGITS = {"steps_per_second": 3, "train_loss": 6, "validation_loss": 6, "padding_waste": 4, "seconds": 1}
_OVERLAP = {None: DASH, True: "overlap", False: "apart"}
COMPARE = "To test whether a difference is significant: rpr-cli compare with the folders of the two runs."
_NAME = 28  # characters of a score's name: with two scores and their intervals it fits in a line


RunFiles = tuple[Path, Record, list[dict[str, Any]]]  # a record's path, the record, and the rows of its metrics


def run(config: DiffConfig) -> None:
    """Prints the differences; the exit code is 0 whether there are any or not."""
    first, second = (read_run_files(path) for path in config.runs)
    found = difference(first[1], second[1], first[2], second[2])
    if config.format == "json":
        runs = {"a": _head(first), "b": _head(second)}
        print(json.dumps({**runs, **document(found)}, indent=2, ensure_ascii=False, allow_nan=False))
        return
    for name, (path, record, _) in zip(NAMES, (first, second), strict=True):
        print(shortened(f"{name}  {escape_control_characters(str(path))}", WIDTH))
        print(shortened(f"   {record.name}, {record.outcome or f'finished {record.finished}'}", WIDTH))
    print(
        "\n".join([f"The two records: {found.relation}.", *(lines_of(found, NAMES) if first[1] != second[1] else [])])
    )


def read_run_files(run: str | Path) -> RunFiles:
    """Reads a run's folder, or a record file with the metrics file next to it, if any.

    Raises:
        RecordError: there is no record, or a file cannot be read.
    """
    path = Path(run) / RECORD_NAME if Path(run).is_dir() else Path(run)
    return path, read_record(path), read_metrics(run_file(path, METRICS_NAME))


def lines_of(found: Difference, names: tuple[str, str]) -> list[str]:
    """The differences as lines of at most WIDTH characters, section by section; empty sections are omitted."""
    by_length = found.by_length if any(not one.same for one in found.by_length) else ()
    scores = [_score_grid("scores", found.scores, names), _score_grid("by source length", by_length, names)]
    measured = (*found.scores, *found.figures, *found.by_length)
    unlike = dict.fromkeys(f"{one.name}: not comparable: {one.unlike}" for one in measured if one.unlike)
    sections: list[Grid | Iterable[str]] = [
        *(_part_grid(part, names) for part in found.parts),
        *scores,
        [COMPARE] if any(one.difference for one in found.scores) else [],
        _figure_grid(found.figures, names),
        unlike,
        [curve_line(curve, names) for curve in found.curves],
        [same_line(found)],
    ]
    texts = [
        (terminal(part).splitlines() if part.rows else [])
        if isinstance(part, Grid)
        else wrapped([("", one) for one in part])
        for part in sections
    ]
    return [line for text in texts if text for line in ("", *text)]


def curve_line(curve: Curve, names: tuple[str, str]) -> str:
    """Up to which step two runs' metrics are equal, in words."""
    equal = f"the same at {curve.equal} logged steps, up to step {curve.equal_until}"
    if curve.parting is None:
        return f"{curve.name}: {equal}"
    (step, one), (other_step, other) = curve.parting
    before = equal if curve.equal else "different from the first logged step"
    if step != other_step:
        return f"{curve.name}: {before}; then {names[0]} logged step {step} and {names[1]} step {other_step}"
    return f"{curve.name}: {before}; at step {step} {names[0]} has {one:.9g} and {names[1]} {other:.9g}"


def same_line(found: Difference) -> str:
    """What is equal, in one line; empty if nothing is."""
    parts = {part.name: part.same for part in found.parts}
    numbers = [(len(parts[name]), name) for name in ("settings", "versions")]
    words = [f"{number} {name if number > 1 else name.removesuffix('s')}" for number, name in numbers if number]
    single_keys = (("git", "commit"), ("run", "command"), ("run", "device"))
    words += [key for name, key in single_keys if key in parts[name]]
    data = [key for key in ("key", "train_pairs", "vocabulary_size") if key in parts["data"]]
    words += [f"data ({', '.join(data)})"] if data else []
    words += [one.name for one in found.figures if one.same]
    words += ["scores by length"] if found.by_length and all(one.same for one in found.by_length) else []
    return f"Identical: {', '.join(words)}." if words else ""


def document(found: Difference) -> dict[str, Any]:
    """For JSON: every value in full; a side without a value is omitted."""
    return {
        "relation": found.relation,
        **{part.name: _part_document(part) for part in found.parts},
        "scores": [_measured_document(one) for one in found.scores],
        "by_length": [_measured_document(one) for one in found.by_length],
        "figures": [_measured_document(one) for one in found.figures],
        "losses": [_curve_document(curve) for curve in found.curves],
    }


def _head(run: RunFiles) -> dict[str, Any]:
    path, record, metrics = run
    return {
        "record": escape_control_characters(str(path)),
        "metrics": bool(metrics),
        **record.model_dump(mode="json", include={"name", "run_id", "seed", "status", "started", "finished"}),
    }


def _part_document(part: Part) -> dict[str, Any]:
    changes = [
        {"key": key, **{side: value for side, value in zip("ab", pair, strict=True) if value is not ABSENT}}
        for key, pair in part.changes.items()
    ]
    return {"same": len(part.same), "differ": changes}


def _measured_document(one: MeasurementPair) -> dict[str, Any]:
    intervals = [None if side.interval is None else asdict(side.interval) for side in (one.first, one.second)]
    return {
        "name": one.name,
        "a": one.first.value,
        "b": one.second.value,
        "difference": one.difference,
        "ratio": one.ratio,
        "interval_a": intervals[0],
        "interval_b": intervals[1],
        "intervals_overlap": one.overlap,
        "unlike": one.unlike,
    }


def _curve_document(curve: Curve) -> dict[str, Any]:
    sides = zip("ab", curve.parting or (), strict=False)
    parting = {side: {"step": step, "loss": loss if math.isfinite(loss) else str(loss)} for side, (step, loss) in sides}
    return {"name": curve.name, "equal": curve.equal, "equal_until": curve.equal_until, "parting": parting or None}


def _part_grid(part: Part, names: tuple[str, str]) -> Grid:
    """A row for each key with its two values, in the width left by the keys."""
    rows = [row for key, pair in part.changes.items() for row in _rows(key, *pair)]
    title = _TITLES.get(part.name, part.name)
    key_width = min(max(len(text) for text, *_ in [(title,), *rows]), WIDTH // 3)
    width = (WIDTH - key_width - 4) // 2
    columns = (
        Column("key", title, lambda row: shortened(row[0], key_width), label=True),
        Column("a", names[0], lambda row: shortened(row[1], width, row[2]), words=True),
        Column("b", names[1], lambda row: shortened(row[2], width, row[1]), words=True),
    )
    return Grid(part.name, "", columns, tuple(rows))


def _rows(key: str, first: Any, second: Any) -> list[tuple[str, str, str]]:
    """Of two uses of the same command, only the arguments that are not in both, paired in rows."""
    whole = [(key, _value(first), _value(second))]
    if key != "command":
        return whole
    ours, theirs = _words(first), _words(second)
    if ours[:2] != theirs[:2]:
        return whole
    only = [shlex.quote(word) for word in ours if word not in theirs]
    other_only = [shlex.quote(word) for word in theirs if word not in ours]
    pairs = list(zip_longest(only, other_only, fillvalue="")) or [("the same words", "in another order")]
    return [("" if number else key, one, other) for number, (one, other) in enumerate(pairs)]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # edited by hand, with an unclosed quotation mark
        return command.split()


def _value(value: Any) -> str:
    if value is ABSENT:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())


def _score_grid(title: str, scores: Sequence[MeasurementPair], names: tuple[str, str]) -> Grid:
    columns = (
        Column("name", title, lambda one: shortened(one.name, _NAME), label=True),
        Column("a", names[0], attrgetter("first"), digits=2),
        Column("b", names[1], attrgetter("second"), digits=2),
        Column("difference", f"{names[1]} - {names[0]}", lambda one: _change(one, 2)),
        Column("intervals", "intervals", lambda one: _OVERLAP[None if one.same else one.overlap], words=True),
    )
    return Grid("scores", "", columns, tuple(scores))


def _figure_grid(figures: Sequence[MeasurementPair], names: tuple[str, str]) -> Grid:
    """The figures that differ, each with its own number of digits."""

    def digits(one: MeasurementPair) -> int:
        return _DIGITS.get(one.name, 0)

    columns = (
        Column("name", "figures", attrgetter("name"), label=True),
        Column("a", names[0], lambda one: figure_text(one.first, digits(one))[0]),
        Column("b", names[1], lambda one: figure_text(one.second, digits(one))[0]),
        Column("difference", f"{names[1]} - {names[0]}", lambda one: _change(one, digits(one))),
        Column("ratio", "ratio", lambda one: DASH if one.ratio is None else f"× {one.ratio:.3f}"),
    )
    return Grid("figures", "", columns, tuple(one for one in figures if not one.same))


def _change(one: MeasurementPair, digits: int) -> str:
    """The difference; `same` only if bit-identical, so a difference that rounds to 0 is shown in full."""
    if one.same:
        return "same"
    if one.difference is None:
        return DASH
    text = number(one.difference, digits, signed=True)
    return text if text[0] in "+-" else f"{one.difference:+.1e}"

"""rpr-cli diff: what differs between two runs, in settings, origin and results, from their records alone."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from rpr.command_config import DiffConfig
from rpr.io.escape import visible
from rpr.records.difference import ABSENT, Change, Curve, Difference, Measured, Part, difference
from rpr.records.record import METRICS_NAME, RECORD_NAME, Record, read_metrics, read_record
from rpr.records.scores import Interval
from rpr.report.text import DASH, WIDTH, aligned, wrapped

NAMES = ("A", "B")
_TITLES = {"git": "checkout", "measuring": "how it was measured", "decoding": "how it was decoded"}
_DIGITS = {"steps_per_second": 3, "train_loss": 6, "validation_loss": 6, "padding_waste": 4, "seconds": 1}
_RATIOS = ("steps_per_second", "source_tokens_per_second", "target_tokens_per_second", "peak_memory_bytes", "seconds")
COMPARE = "Whether a difference is more than chance: rpr-cli compare, with the folders of the two runs."
_BEFORE = 3  # characters of what is the same that stand before what is not


def run(config: DiffConfig) -> None:
    """Prints what differs; ends well whether anything does or not."""
    (first_path, first), (second_path, second) = (read_given(given) for given in config.runs)
    found = difference(first, second, metrics_beside(first_path), metrics_beside(second_path))
    if config.format == "json":
        runs = {"a": _head(first_path, first), "b": _head(second_path, second)}
        print(json.dumps({**runs, **document(found)}, indent=2, ensure_ascii=False, allow_nan=False))
        return
    lines = _legend(NAMES[0], first_path, first) + _legend(NAMES[1], second_path, second)
    lines.append(f"The two records: {found.relation}.")
    print("\n".join(lines + (lines_of(found, NAMES) if first != second else [])))


def read_given(given: str) -> tuple[Path, Record]:
    """The path of a record's file, and the record, of a run's folder or of the file itself.

    Raises:
        RecordError: there is none, or it cannot be read.
    """
    path = Path(given) / RECORD_NAME if Path(given).is_dir() else Path(given)
    return path, read_record(path)


def metrics_beside(path: Path) -> list[dict[str, Any]]:
    """The lines of the metrics file that belongs to the record at `path`; none where there is no such file.

    Raises:
        RecordError: it is damaged.
    """
    name = METRICS_NAME if path.name == RECORD_NAME else path.with_suffix(f".{METRICS_NAME}").name
    return read_metrics(path.with_name(name))


def lines_of(found: Difference, names: tuple[str, str]) -> list[str]:
    """What differs as text of at most WIDTH columns, section by section; empty ones are left out."""
    sections = [_part_lines(part, names) for part in found.parts]
    notes = list(dict.fromkeys(f"{one.name}: not comparable: {one.unlike}" for one in _unlike(found)))
    sections.append(_score_lines("scores", found.scores, names))
    if any(not one.same for one in found.by_length):
        sections.append(_score_lines("by source length", found.by_length, names))
    if any(one.difference for one in found.scores):
        sections.append([COMPARE])
    sections += [_figure_lines(found.figures, names), wrapped([("", note) for note in notes])]
    sections.append(wrapped([("", curve_line(curve, names)) for curve in found.curves]))
    same = same_line(found)
    sections.append(wrapped([("", same)]) if same else [])
    return [line for section in sections if section for line in ("", *section)]


def curve_line(curve: Curve, names: tuple[str, str]) -> str:
    """How long the lines of two metrics files are the same."""
    equal = f"the same at {curve.equal} logged steps, up to step {curve.equal_until}"
    if curve.parting is None:
        return f"{curve.name}: {equal}"
    (step, one), (other_step, other) = curve.parting
    before = equal if curve.equal else "not the same from the first logged step on"
    if step != other_step:
        return f"{curve.name}: {before}; then {names[0]} logged step {step} and {names[1]} step {other_step}"
    return f"{curve.name}: {before}; at step {step} {names[0]} has {one:.9g} and {names[1]} {other:.9g}"


def same_line(found: Difference) -> str:
    """What is the same, in one line; empty where nothing is."""
    parts = {part.name: part for part in found.parts}
    words = []
    for name in ("settings", "versions"):
        if number := len(parts[name].same):
            words.append(f"{number} {name if number > 1 else name.removesuffix('s')}")
    words += ["commit"] if "commit" in parts["git"].same else []
    words += [key for key in ("command", "device") if key in parts["run"].same]
    data = [key for key in ("key", "train_pairs", "vocabulary_size") if key in parts["data"].same]
    words += [f"data ({', '.join(data)})"] if data else []
    words += [one.name for one in found.figures if one.same]
    words += ["scores by length"] if found.by_length and all(one.same for one in found.by_length) else []
    return f"The same: {', '.join(words)}." if words else ""


def document(found: Difference) -> dict[str, Any]:
    """For JSON: every value whole; a side that says nothing is left out."""
    return {
        "relation": found.relation,
        **{part.name: _part_document(part) for part in found.parts},
        "scores": [_measured_document(one) for one in found.scores],
        "by_length": [_measured_document(one) for one in found.by_length],
        "figures": [_measured_document(one) for one in found.figures],
        "losses": [_curve_document(curve) for curve in found.curves],
    }


def _head(path: Path, record: Record) -> dict[str, Any]:
    return {
        "record": visible(str(path)),
        "metrics": bool(metrics_beside(path)),
        **record.model_dump(mode="json", include={"name", "run_id", "seed", "status", "started", "finished"}),
    }


def _part_document(part: Part) -> dict[str, Any]:
    changes = []
    for change in part.changes:
        sides = {"a": change.first, "b": change.second}
        changes.append({"key": change.key, **{side: value for side, value in sides.items() if value is not ABSENT}})
    return {"same": len(part.same), "differ": changes}


def _measured_document(one: Measured) -> dict[str, Any]:
    intervals = [None if end is None else asdict(end) for end in (one.first_interval, one.second_interval)]
    return {
        "name": one.name,
        "a": one.first,
        "b": one.second,
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


def _legend(name: str, path: Path, record: Record) -> list[str]:
    ended = record.outcome or f"finished {record.finished}"
    lines = [f"{name}  {visible(str(path))}", f"   {record.name}, {ended}"]
    return [shortened(line, WIDTH) for line in lines]


def _part_lines(part: Part, names: tuple[str, str]) -> list[str]:
    """A key with its two values to a line."""
    rows = [row for change in part.changes for row in _rows(change)]
    if not rows:
        return []
    title = _TITLES.get(part.name, part.name)
    columns = list(zip((title, *names), *rows, strict=True))
    key_width = min(max(map(len, columns[0])), WIDTH // 3)
    widths = [min(max(map(len, column)), (WIDTH - key_width - 4) // 2) for column in columns[1:]]
    lines = [f"{title:<{key_width}}  {names[0]:<{widths[0]}}  {names[1]}", "-" * (key_width + sum(widths) + 4)]
    for key, one, other in rows:
        one, other = _both_shortened(one, other, *widths)
        lines.append(f"{shortened(key, key_width):<{key_width}}  {one:<{widths[0]}}  {other}".rstrip())
    return lines


def _rows(change: Change) -> list[tuple[str, str, str]]:
    """Of two commands of one kind the words that are not in both, two to a line."""
    whole = [(change.key, _value(change.first), _value(change.second))]
    if change.key != "command":
        return whole
    ours, theirs = _words(change.first), _words(change.second)
    if ours[:2] != theirs[:2]:
        return whole
    only = [shlex.quote(word) for word in ours if word not in theirs]
    other_only = [shlex.quote(word) for word in theirs if word not in ours]
    pairs = list(zip_longest(only, other_only, fillvalue="")) or [("the same words", "in another order")]
    return [("" if number else change.key, one, other) for number, (one, other) in enumerate(pairs)]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # written by hand, with a quotation mark left open
        return command.split()


def _value(value: Any) -> str:
    if value is ABSENT:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())


def shortened(text: str, width: int) -> str:
    """The text, or its two ends round an ellipsis, `width` characters long."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _both_shortened(one: str, other: str, width: int, other_width: int) -> tuple[str, str]:
    """Where the ends of both are alike, what follows the first character that is not."""
    short = shortened(one, width), shortened(other, other_width)
    if one == other or short[0] != short[1]:
        return short
    alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    start = max(0, alike - _BEFORE)
    cut = f"…{one[start:]}", f"…{other[start:]}"
    widths = width, other_width
    first, second = (
        text if len(text) <= most else f"{text[: most - 1]}…" for text, most in zip(cut, widths, strict=True)
    )
    return first, second


def _score_lines(title: str, scores: Sequence[Measured], names: tuple[str, str]) -> list[str]:
    if not scores:
        return []
    headings = (title, *names, f"{names[1]} - {names[0]}", "intervals")
    rows = []
    for one in scores:
        overlap = {None: DASH, True: "overlap", False: "apart"}[None if one.same else one.overlap]
        sides = (_scored(one.first, one.first_interval), _scored(one.second, one.second_interval))
        rows.append((one.name, *sides, _change(one, 2), overlap))
    return _fitting(headings, rows)


def _fitting(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table whose names are shortened where it would be wider than WIDTH."""
    lines = aligned(headings, rows)
    over = max(map(len, lines)) - WIDTH
    if over <= 0:
        return lines
    widest = max(len(row[0]) for row in (headings, *rows)) - over
    return aligned(headings, [(shortened(row[0], widest), *row[1:]) for row in rows])


def _scored(score: float | None, interval: Interval | None) -> str:
    if score is None:
        return DASH
    return f"{score:.2f}" if interval is None else f"{score:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _figure_lines(figures: Sequence[Measured], names: tuple[str, str]) -> list[str]:
    """The figures that differ."""
    rows = []
    for one in figures:
        if one.same:
            continue
        digits = _DIGITS.get(one.name, 0)
        sides = (DASH if value is None else f"{value:,.{digits}f}" for value in (one.first, one.second))
        ratio = f"× {one.ratio:.3f}" if one.name in _RATIOS and one.ratio is not None else DASH
        rows.append((one.name, *sides, _change(one, digits), ratio))
    return _fitting(("figures", *names, f"{names[1]} - {names[0]}", "ratio"), rows) if rows else []


def _change(one: Measured, digits: int) -> str:
    """The difference; `same` only for the same bits, so one that rounds to 0 is written out."""
    if one.same:
        return "same"
    if one.difference is None:
        return DASH
    text = f"{one.difference:+,.{digits}f}"
    return text if any(digit in text for digit in "123456789") else f"{one.difference:+.1e}"


def _unlike(found: Difference) -> list[Measured]:
    return [one for one in (*found.scores, *found.figures, *found.by_length) if one.unlike]

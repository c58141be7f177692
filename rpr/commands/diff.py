"""rpr-cli diff: the differences between two runs in settings, origin and results, from their records alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpr.config.commands import DiffConfig
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.difference import ABSENT, FIGURES, SCORES, Curve, Difference, Fact, Pair, difference
from rpr.records.files import metrics_of
from rpr.records.measurement import single
from rpr.records.record import Record, read_record, record_path
from rpr.records.scores import score_digits
from rpr.tables.grid import DASH, Column, Grid, figure_text, number
from rpr.tables.render import WIDTH, shortened, terminal, wrapped

NAMES = ("A", "B")
_TITLES = {
    "git": "checkout",
    "schemes": "code of positions",
    "measuring": "how it was measured",
    "decoding": "how it was decoded",
}
_DIGITS = {"steps_per_second": 3, "train_loss": 6, "validation_loss": 6, "padding_waste": 4, "seconds": 1}
COMPARE = "To test whether a difference is significant: rpr-cli compare with the folders of the two runs."
_NAME = 28  # characters of a score's name: with two scores and their intervals it fits in a line

RunFiles = tuple[Path, Record, list[dict[str, Any]]]  # a record's path, the record, and the rows of its metrics


def run(config: DiffConfig) -> None:
    """Prints the differences; the exit code is 0 whether there are any or not."""
    first, second = (read_run_files(path) for path in config.runs)
    differences = difference(first[1], second[1], first[2], second[2])
    for name, (path, record, _) in zip(NAMES, (first, second), strict=True):
        print(shortened(f"{name}  {escape_control_characters(str(path))}", WIDTH))
        print(shortened(f"   {record.name}, {record.outcome or f'finished {record.finished}'}", WIDTH))
    if first[1] == second[1]:
        print("The two records are the same.")
    else:
        print("\n".join(lines_of(differences, NAMES)))


def read_run_files(run: str | Path) -> RunFiles:
    """The path, the record and the metrics, if any, of a run as `record_path` names it; raises RecordError if it
    cannot be read.
    """
    path = record_path(user_path(run))
    return path, read_record(path), metrics_of(path)


def lines_of(differences: Difference, names: tuple[str, str]) -> list[str]:
    """The differences as lines of at most WIDTH characters, section by section; empty sections are omitted."""
    scores, figures = differences.of(SCORES), differences.of(FIGURES)
    facts = list(dict.fromkeys(pair.part for pair in differences.pairs if pair.part not in (SCORES, FIGURES)))
    compared = [pair for pair in scores if pair.difference]
    sections = [
        *(_table(_TITLES.get(part, part), [p for p in differences.of(part) if not p.same], names) for part in facts),
        _table(SCORES, scores, names),
        wrapped([COMPARE] if compared else []),
        _table(FIGURES, [pair for pair in figures if not pair.same], names),
        wrapped(f"{pair.name}: not comparable: {pair.unlike}" for pair in (*scores, *figures) if pair.unlike),
        wrapped(map(_curve_line, differences.curves)),
        wrapped([_same_line(differences, facts)]),
    ]
    return [line for section in sections if section for line in ("", *section)]


def _curve_line(curve: Curve) -> str:
    """Up to which step two runs' metrics are equal, in words."""
    until = f", up to step {curve.equal_until}" if curve.equal else ""
    return f"{curve.name}: the same at {curve.equal} logged steps{until}{', then others' if curve.parted else ''}"


def _same_line(differences: Difference, facts: Sequence[str]) -> str:
    """What is equal, in one line; empty if nothing is."""
    counts = {part: sum(pair.same for pair in differences.of(part)) for part in facts}
    same = [f"{_TITLES.get(part, part)} ({count})" for part, count in counts.items() if count]
    same += [pair.name for pair in differences.of(FIGURES) if pair.same]
    return f"Identical: {', '.join(same)}." if same else ""


def _table(title: str, pairs: Sequence[Pair], names: tuple[str, str]) -> list[str]:
    """A row for each key: two values in the width left by the keys, or two figures and their difference."""
    if not pairs:
        return []
    of_figures = title in (SCORES, FIGURES)
    most = _NAME if of_figures else WIDTH // 3
    name_width = min(max(map(len, [title, *map(_name, pairs)])), most)
    width = (WIDTH - name_width - 4) // 2

    def cell(fact: Fact, other: Fact, pair: Pair) -> str:
        if not of_figures or fact.value is ABSENT:
            return shortened(_value(fact.value), width, _value(other.value))
        return " ".join(figure_text(single(fact.value, fact.interval), _digits(pair.name))).rstrip(
            " †"
        )  # all are of one run

    columns = [
        Column("key", title, lambda pair: shortened(_name(pair), name_width), label=True),
        Column("a", names[0], lambda pair: cell(pair.a, pair.b, pair), words=not of_figures),
        Column("b", names[1], lambda pair: cell(pair.b, pair.a, pair), words=not of_figures),
    ]
    columns += [Column("difference", " - ".join(reversed(names)), _change)] if of_figures else []
    return terminal(Grid(title, "", tuple(columns), tuple(pairs))).splitlines()


def _name(pair: Pair) -> str:
    """`test/sacrebleu`; `test, separate 4096` without its metric, which would leave no room for the length."""
    return pair.name.rpartition("/")[0] if pair.part == SCORES and ", " in pair.name else pair.name


def _value(value: Any) -> str:
    if value is ABSENT:
        return DASH
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def _digits(name: str) -> int:
    of_split, _, metric = name.rpartition("/")  # a score: split/metric
    return score_digits(metric) if of_split else _DIGITS.get(name, 0)


def _change(pair: Pair) -> str:
    """The difference; `same` only if bit-identical, so a difference that rounds to 0 is shown in full."""
    if pair.same:
        return "same"
    if pair.difference is None:
        return DASH
    text = number(pair.difference, _digits(pair.name), signed=True)
    return text if text[0] in "+-" else f"{pair.difference:+.1e}"

"""rpr-cli diff: the differences between two runs in settings, origin and results, from their records alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpr.config.commands import DiffConfig
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.difference import ABSENT, Curve, Difference, Figure, FigurePair, Part, changes, difference
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
    scores, figures = differences.scores, differences.figures
    sections = [
        *(_lines(_part_grid(name, part, names)) for name, part in differences.parts.items()),
        _lines(_figure_grid("scores", scores, names)),
        wrapped([COMPARE] if any(pair.difference for pair in scores) else []),
        _lines(_figure_grid("figures", [pair for pair in figures if not pair.same], names)),
        wrapped(f"{pair.name}: not comparable: {pair.unlike}" for pair in (*scores, *figures) if pair.unlike),
        wrapped(map(_curve_line, differences.curves)),
        wrapped([_same_line(differences)]),
    ]
    return [line for section in sections if section for line in ("", *section)]


def _lines(grid: Grid) -> list[str]:
    return terminal(grid).splitlines() if grid.rows else []


def _curve_line(curve: Curve) -> str:
    """Up to which step two runs' metrics are equal, in words."""
    until = f", up to step {curve.equal_until}" if curve.equal else ""
    return f"{curve.name}: the same at {curve.equal} logged steps{until}{', then others' if curve.parted else ''}"


def _same_line(differences: Difference) -> str:
    """What is equal, in one line; empty if nothing is."""
    counts = {name: len(part) - len(changes(part)) for name, part in differences.parts.items()}
    same = [f"{_TITLES.get(name, name)} ({count})" for name, count in counts.items() if count]
    same += [pair.name for pair in differences.figures if pair.same]
    return f"Identical: {', '.join(same)}." if same else ""


def _part_grid(name: str, part: Part, names: tuple[str, str]) -> Grid:
    """A row for each key with its two values, in the width left by the keys; long ones from where they differ."""
    rows = tuple((key, _value(first), _value(second)) for key, (first, second) in changes(part).items())
    title = _TITLES.get(name, name)
    key_width = min(max(map(len, [title, *(key for key, *_ in rows)])), WIDTH // 3)
    width = (WIDTH - key_width - 4) // 2
    columns = (
        Column("key", title, lambda row: shortened(row[0], key_width), label=True),
        Column("a", names[0], lambda row: shortened(row[1], width, row[2]), words=True),
        Column("b", names[1], lambda row: shortened(row[2], width, row[1]), words=True),
    )
    return Grid(name, "", columns, rows)


def _value(value: Any) -> str:
    if value is ABSENT:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())


def _figure_grid(title: str, pairs: Sequence[FigurePair], names: tuple[str, str]) -> Grid:
    """Scores or figures, each with its own number of digits."""

    def shown(figure: Figure, digits: int) -> str:
        if figure.value is None:
            return DASH
        return " ".join(figure_text(single(figure.value, figure.interval), digits)).rstrip()

    columns = (
        Column("name", title, _name, label=True),
        Column("a", names[0], lambda pair: shown(pair.a, _digits(pair))),
        Column("b", names[1], lambda pair: shown(pair.b, _digits(pair))),
        Column("difference", " - ".join(reversed(names)), lambda pair: _change(pair, _digits(pair))),
    )
    return Grid(title, "", columns, tuple(pairs))


def _name(pair: FigurePair) -> str:
    """`test/sacrebleu`; `test, separate 4096` without its metric, which would leave no room for the length."""
    by_context = ", " in pair.name
    return shortened(pair.name.rpartition("/")[0] if by_context else pair.name, _NAME)


def _digits(pair: FigurePair) -> int:
    of_split, _, metric = pair.name.rpartition("/")  # a score: split/metric
    return score_digits(metric) if of_split else _DIGITS.get(pair.name, 0)


def _change(pair: FigurePair, digits: int) -> str:
    """The difference; `same` only if bit-identical, so a difference that rounds to 0 is shown in full."""
    if pair.same:
        return "same"
    if pair.difference is None:
        return DASH
    text = number(pair.difference, digits, signed=True)
    return text if text[0] in "+-" else f"{pair.difference:+.1e}"

"""rpr-cli diff: the differences between two runs in settings, origin and results, from their records alone."""

import json
from collections.abc import Sequence
from pathlib import Path

from rpr.commands.printing import table
from rpr.config.commands import DiffConfig
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.difference import ABSENT, Curve, Fact, Row, curves, difference
from rpr.records.files import metrics_of
from rpr.records.record import read_record, record_path
from rpr.report.render import DASH, WIDTH, number, shortened, wrapped

_NAME = 33  # characters of a row's name


def run(config: DiffConfig) -> None:
    """Prints the differences; the exit code is 0 whether there are any or not."""
    path_a, path_b = (record_path(user_path(folder)) for folder in config.runs)
    a, b = read_record(path_a), read_record(path_b)
    for name, path, record in (("A", path_a, a), ("B", path_b, b)):
        print(shortened(f"{name}  {escape_control_characters(str(path))}", WIDTH))
        print(shortened(f"   {record.name}, {record.outcome or f'finished {record.finished}'}", WIDTH))
    if a == b:
        print("The two records are the same.")
    else:
        print("\n".join(lines_of(*compared(path_a, path_b), ("A", "B"))))


def compared(first: Path, second: Path) -> tuple[list[Row], list[Curve]]:
    """How the records of two files differ, and the losses beside them; raises RecordError if one cannot be read."""
    rows = difference(read_record(first), read_record(second))
    return rows, curves(metrics_of(first), metrics_of(second))


def lines_of(rows: Sequence[Row], losses: Sequence[Curve], names: tuple[str, str]) -> list[str]:
    """The differences as lines of at most WIDTH characters: what differs, then all scores and the other figures that
    differ, then what must not be subtracted, and at how many steps the losses are the same.
    """
    settings = [row for row in rows if row.kind == "setting" and not row.same]
    results = [row for row in rows if row.kind == "score" or (row.kind == "figure" and not row.same)]
    width = (WIDTH - min(_NAME, max([len(row.name) for row in settings], default=0)) - 4) // 2
    notes = [f"{row.name}: not comparable: {row.unlike}" for row in rows if row.unlike]
    notes += [f"{curve.name}: the same at {curve.equal} of {curve.common} logged steps" for curve in losses]
    changed = ([_name(row), *_texts(row, width)] for row in settings)
    measured = ([_name(row), _figure(row.a), _figure(row.b), _change(row)] for row in results)
    sections = [
        table(["setting", *names], changed, texts=3),
        table(["result", *names, " - ".join(reversed(names))], measured),
        wrapped(notes),
    ]
    return [line for section in sections if section for line in ("", *section)]


def _name(row: Row) -> str:
    return shortened(row.name, _NAME)


def _texts(row: Row, width: int) -> list[str]:
    a, b = (
        DASH if value is ABSENT else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in (row.a.value, row.b.value)
    )
    return [shortened(a, width, b), shortened(b, width, a)]


def _figure(fact: Fact) -> str:
    if fact.value is ABSENT:
        return DASH
    ends = [] if fact.interval is None else [fact.interval.low, fact.interval.high]
    text, *interval = (number(value, fact.digits) for value in (fact.value, *ends))
    return f"{text} ({' to '.join(interval)})" if interval else text


def _change(row: Row) -> str:
    """`+1.50`; to one digit where that rounds to nothing, and a dash where figures must not be subtracted."""
    if row.same or row.difference is None:
        return "same" if row.same else DASH
    text = number(row.difference, max(row.a.digits, row.b.digits), signed=True)
    return text if text[0] in "+-" else f"{row.difference:+.1e}"

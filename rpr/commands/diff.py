"""rpr-cli diff: the differences between two runs in settings, origin and results, from their records alone."""

import json
from collections.abc import Sequence
from typing import Any

from rpr.commands.printing import table
from rpr.config.commands import DiffConfig
from rpr.io.escape import escape_control_characters
from rpr.paths import user_path
from rpr.records.difference import ABSENT, Row, difference, equal_losses
from rpr.records.record import read_record, record_path
from rpr.report.render import DASH, WIDTH, shortened, wrapped

_NAME, _VALUE = 33, 31  # characters


def run(config: DiffConfig) -> None:
    """Prints the differences; the exit code is 0 whether there are any or not."""
    paths = [record_path(user_path(folder)) for folder in config.runs]
    records = [read_record(path) for path in paths]
    for name, path, record in zip("AB", paths, records, strict=True):
        print(shortened(f"{name}  {escape_control_characters(str(path))}", WIDTH))
        print(shortened(f"   {record.name}, {record.outcome or f'finished {record.finished}'}", WIDTH))
    same = records[0] == records[1]
    print("The two records are the same." if same else "\n".join(lines_of(difference(*records), "A", "B")))
    common, equal = equal_losses(*paths)
    if common:
        print(f"\n{equal:,} of {common:,} logged losses that both have are the same.")


def lines_of(rows: Sequence[Row], first: str, second: str) -> list[str]:
    """The differences as lines of at most WIDTH characters: what differs, then all scores and the other figures that
    differ, then what must not be subtracted. Intervals are those of `rpr-cli compare`.
    """
    settings, results = [], []
    for row in rows:
        name, a, b = shortened(row.name, _NAME), _text(row.a), _text(row.b)
        if row.kind == "setting" and not row.same:
            settings.append([name, shortened(a, _VALUE, b), shortened(b, _VALUE, a)])
        elif row.kind == "score" or (row.kind == "figure" and not row.same):
            apart = row.unlike or ABSENT in (row.a, row.b)
            results.append([name, a, b, "same" if row.same else DASH if apart else f"{row.b - row.a:+,.4g}"])
    notes = [f"{row.name}: not comparable: {row.unlike}" for row in rows if row.unlike]
    parts = [table(["setting", first, second], settings, texts=3)]
    parts += [table(["result", first, second, f"{second} - {first}"], results), wrapped(notes)]
    return [line for part in parts if part for line in ("", *part)]


def _text(value: Any) -> str:
    return DASH if value is ABSENT else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

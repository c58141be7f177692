"""What the paper's tables say, and whether ours say it too: statements computed from figures, each with its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rpr.report.paper_rows import Figure, PaperRow, PaperTable

# The paper's differences below this many BLEU stand for "no difference": its figures have one digit, of one run each.
NO_DIFFERENCE = 0.15
WIDE = 1.0  # an interval that holds zero shows no difference only where it holds less than this to either side

Verdict = Literal["agrees", "disagrees", "open"]
HEADINGS: dict[Verdict, str] = {
    "agrees": "Agrees with the paper",
    "disagrees": "Does not agree with the paper",
    "open": "Cannot be told from these runs",
}


@dataclass(frozen=True)
class Claim:
    """One statement. `open`: the interval over the seeds holds both answers, or there is one seed and so none."""

    verdict: Verdict
    text: str


def claims(tables: Sequence[PaperTable]) -> tuple[Claim, ...]:
    """Every change that the paper prints and that ours have too, and the ratio of the speeds."""
    found: list[Claim] = []
    for table in tables:
        if table.name == "speed":
            found += (claim for row in table.rows for claim in _speed(row))
        else:
            found += _changes(table)
    return tuple(found)


def _changes(table: PaperTable) -> Iterator[Claim]:
    for row in table.rows:
        columns = [one.column for one in row.figures if one.name == "change" and one.cell.value is not None]
        if "validation" in columns:  # newstest2013, which the paper's Tables 2 and 3 are of, is a validation set
            columns = ["validation"]
        for column in columns:
            printed = row.figure("paper_change", column if table.name == "table1" else "")
            mine = row.figure("change", column)
            if printed is None or mine is None or printed.cell.value is None or mine.cell.value is None:
                continue
            if mine.spread or mine.cell.value != 0 or printed.cell.value != 0:  # not the row that changes are from
                yield _claim(table, row, column, printed.cell.value, mine)


def _claim(table: PaperTable, row: PaperRow, column: str, printed: float, mine: Figure) -> Claim:
    change = mine.cell.value
    assert change is not None
    if table.name == "table1":
        subject, reference = f"{row.labels[0]}, {column}: {row.labels[1]}", "absolute"
    else:
        names = " ".join(f"{heading} = {label}" for heading, label in zip(table.labels, row.labels, strict=True))
        subject, reference = f"{names} on {column}", table.reference
    figures = f"{_signed(change)} BLEU from {reference} ({_certainty(mine)}); the paper: {_signed(printed)}"
    return Claim(_verdict(printed, mine), f"{table.setting}: {subject}: {figures}")


def _verdict(printed: float, mine: Figure) -> Verdict:
    if mine.low is None or mine.high is None or mine.spread != "t interval over seeds":
        return "open"
    if abs(printed) < NO_DIFFERENCE:
        if not mine.low <= 0 <= mine.high:
            return "disagrees"
        return "agrees" if max(-mine.low, mine.high) < WIDE else "open"
    if mine.low <= 0 <= mine.high:
        return "open"
    return "agrees" if (mine.low > 0) == (printed > 0) else "disagrees"


def _certainty(mine: Figure) -> str:
    if mine.low is None or mine.high is None:
        return "no interval: one seed, or not the same ones on both sides"
    return f"{mine.cell.n} seeds, 95% interval {_signed(mine.low)} to {_signed(mine.high)}"


def _signed(value: float) -> str:
    return "0.0" if round(value, 1) == 0 else f"{value:+.1f}"


def _speed(row: PaperRow) -> Iterator[Claim]:
    """Whether relative positions are slower at all, by what was measured in turn; whole runs are left open."""
    ratio, printed = row.figure("ratio", "relative"), row.figure("paper", "relative")
    if ratio is None or printed is None or ratio.cell.value is None:
        return
    ends = "" if ratio.low is None or ratio.high is None else f", {ratio.low:.2f} to {ratio.high:.2f}"
    how = f"in turn, {ratio.cell.n} rounds{ends}" if ratio.spread == "range over rounds" else "whole runs"
    model, runs, device, _ = row.labels
    speed = f"{ratio.cell.value:.2f} of absolute's steps/s ({how}; {device})"
    verdict: Verdict = "open"
    if ratio.spread == "range over rounds" and ratio.low is not None and ratio.high is not None:
        verdict = "agrees" if ratio.high < 1 else "disagrees" if ratio.low > 1 else "open"
    yield Claim(verdict, f"speed: {model}, {runs}: {speed}; the paper: {printed.cell.value}")

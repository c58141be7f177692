"""One-line statements computed from a table: each exists only when its figures do, and names its seeds."""

from __future__ import annotations

from rpr import paper
from rpr.report.remarks import nearest_pair
from rpr.report.rows import Cell, Row, Table

# Below this BLEU at the best-known k a model has learned too little for its failures to mean anything.
LEARNED = 2.0


def findings(table: Table) -> list[str]:
    """What the rows show, the paper's figures in brackets; nothing is said that the table does not hold."""
    statements = [*_completeness(table), *_no_order(table), *_spread(table), *_against_absolute(table)]
    statements += [*_ablation(table), *_together(table), *_speed(table)]
    if table.synthetic and statements:
        statements.insert(
            0, "The corpus is synthetic: its figures show how order is learned, not how well a language is translated."
        )
    return statements


def _completeness(table: Table) -> list[str]:
    runs = [record for row in table.rows for record in row.records]
    failed = sum(record.status == "failed" for record in runs)
    running = sum(record.status == "running" for record in runs)
    if not failed + running:
        return []
    parts = [f"{count} {word}" for count, word in ((failed, "failed"), (running, "running or killed")) if count]
    have = "have" if failed + running > 1 else "has"
    return [f"{failed + running} of {len(runs)} runs {have} no result: {', '.join(parts)}."]


def _best_known(table: Table) -> Row | None:
    """The measured relative row that stands for the method: k = 16, the paper's base value, else the largest k."""
    rows = [row for row in _relative_rows(table) if row.position.clip_distance]
    sixteen = [row for row in rows if row.position.clip_distance == paper.MODELS["base"].clip_distance]
    return sixteen[0] if sixteen else (rows[-1] if rows else None)


def _relative_rows(table: Table) -> list[Row]:
    """The measured rows of one curve over k: relative keys and values, of the first sharing of tables that occurs."""
    rows = [row for row in table.rows if row.position.kind == "relative" and table.cell(row).value is not None]
    return [row for row in rows if row.position.tables == rows[0].position.tables]


def _no_order(table: Table) -> list[str]:
    best = _best_known(table)
    zero = next((row for row in _relative_rows(table) if row.position.clip_distance == 0), None)
    statements = []
    if zero is not None and best is not None:
        without, with_order = table.cell(zero), table.cell(best)
        assert without.value is not None and with_order.value is not None
        start = f"k = 0: {without.value:.1f}"
        other = f"k = {best.position.clip_distance} ({with_order.value:.1f})"
        ratio = without.value / with_order.value if with_order.value >= LEARNED else None
        end = f"(paper: {paper.TABLE2[0]} against {paper.TABLE2[16]}; {_seeds(without, with_order)})."
        if ratio is None:
            statements.append(f"{start} against {other}: too little is learned to compare {end}")
        elif ratio < 0.5:
            statements.append(f"{start}, under half of {other}: order is lost {end}")
        elif ratio < 0.95:
            statements.append(f"{start}, {100 * ratio:.0f}% of {other}: a smaller loss than the paper's {end}")
        else:
            statements.append(f"{start}, {100 * ratio:.0f}% of {other}: the paper's loss does not show here {end}")
    none = table.row("none")
    if none is not None and zero is not None:
        a, b = table.cell(none), table.cell(zero)
        if a.value is not None and b.value is not None:
            gap = abs(a.value - b.value)
            printed = f"{paper.TABLE3[False, False]} and {paper.TABLE2[0]}"
            statements.append(
                f"No positions at all: {a.value:.1f}, {gap:.1f} from k = 0 (paper: {printed}; {_seeds(a, b)})."
            )
    return statements


def _spread(table: Table) -> list[str]:
    rows = [row for row in _relative_rows(table) if (row.position.clip_distance or 0) >= 2]
    if len(rows) < 2:
        return []
    cells = [table.cell(row) for row in rows]
    values = [cell.value for cell in cells if cell.value is not None]
    printed = [value for k, value in paper.TABLE2.items() if k >= 2]
    deviations = [cell.sd for cell in cells if cell.sd is not None]
    noise = f"; largest standard deviation over seeds {max(deviations):.1f}" if deviations else ""
    spread = f"the spread is {max(values) - min(values):.1f} BLEU over {len(rows)} values of k{noise}"
    theirs = f"paper: {max(printed) - min(printed):.1f} over {len(printed)}"
    first, last = rows[0].position.clip_distance, rows[-1].position.clip_distance
    return [f"From k = {first} to k = {last} {spread} ({theirs}; {_seeds(*cells)})."]


def _against_absolute(table: Table) -> list[str]:
    best, absolute = _best_known(table), table.row("absolute")
    if best is None or absolute is None:
        return []
    pair = nearest_pair(best.records[0])
    gain = paper.TABLE1["base", "relative", pair] - paper.TABLE1["base", "absolute", pair]
    printed = f"paper, base, {pair.upper().replace('_', '-')}, {paper.TABLE1_TEST_SET}: {gain:.1f} above; "
    statements = []
    for split in dict.fromkeys(column.split for column in table.columns if column.split != "validation"):
        ours, theirs = table.cell(best, split), table.cell(absolute, split)
        if ours.value is None or theirs.value is None:
            continue
        remark = printed if split == "test" else ""
        statements.append(
            f"On the {split} split {best.label} is {_above(ours.value - theirs.value)} absolute: "
            f"{ours.value:.1f} against {theirs.value:.1f}"
            f"{_within_noise(ours, theirs)} ({remark}{_seeds(ours, theirs)})."
        )
    return statements


def _ablation(table: Table) -> list[str]:
    statements = []
    for keys in table.rows:
        k = keys.position.clip_distance
        tables = keys.position.tables
        values = table.row("relative_values", k, tables) if keys.position.kind == "relative_keys" else None
        if values is None:
            continue
        both = table.row("relative", k, tables)
        cells = [table.cell(row) for row in (keys, values, *([both] if both else []))]
        names = ("keys only", "values only", "both")
        known = [(name, cell) for name, cell in zip(names, cells, strict=False) if cell.value is not None]
        if cells[0].value is None or cells[1].value is None:
            continue
        theirs = [paper.TABLE3[False, True], paper.TABLE3[True, False], paper.TABLE3[True, True]][: len(known)]
        figures = ", ".join(f"{name}: {cell.value:.1f}" for name, cell in known)
        printed = ", ".join(map(str, theirs))
        statements.append(f"k = {k}, {figures} (paper: {printed}; {_seeds(*(cell for _, cell in known))}).")
    return statements


def _together(table: Table) -> list[str]:
    together = table.row("absolute_and_relative")
    if together is None or together.position.clip_distance is None:
        return []
    alone = table.row("relative", together.position.clip_distance, together.position.tables)
    if alone is None:
        return []
    a, b = table.cell(together), table.cell(alone)
    if a.value is None or b.value is None:
        return []
    difference = (
        f"{together.label} is {_above(a.value - b.value)} {alone.label} alone: {a.value:.1f} against {b.value:.1f}"
    )
    return [f"{difference}{_within_noise(a, b)} (paper: no benefit observed, no figure printed; {_seeds(a, b)})."]


def _speed(table: Table) -> list[str]:
    best = _best_known(table) or table.row("relative", paper.MODELS["base"].clip_distance)
    if best is None or best.relative_speed.value is None:
        return []
    speed = best.relative_speed
    theirs = f"paper: {paper.RELATIVE_SPEED}, on P100"
    return [f"{best.label} runs at {speed.value:.2f} of absolute's steps/s ({theirs}; {_seeds(speed)})."]


def _above(difference: float) -> str:
    words = f"{abs(difference):.1f}"
    if words == "0.0":
        return "level with"
    return f"{words} {'above' if difference > 0 else 'below'}"


def _within_noise(a: Cell, b: Cell) -> str:
    """Says when the difference is no larger than a seed's standard deviation; silent where no deviation is known."""
    deviations = [cell.sd for cell in (a, b) if cell.sd is not None]
    if a.value is None or b.value is None or not deviations or not 0.05 <= abs(a.value - b.value) <= max(deviations):
        return ""
    return f", no more than the standard deviation over seeds, {max(deviations):.1f}"


def _seeds(*cells: Cell) -> str:
    counts = sorted({cell.n for cell in cells})
    if counts == [1]:
        return "one seed" if len(cells) == 1 else "one seed each"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"

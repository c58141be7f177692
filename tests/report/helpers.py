"""Tables of fake records, and their cells."""

from rpr.records.measurement import Measurement
from rpr.report.groups import run_groups
from rpr.report.tables import Tables
from tests.fake_records import fake_record


def runs(*, seeds=(1, 2, 3), **changes):
    """Every kind of positions; relative is 0.3 BLEU over absolute, k = 0 is 13.3 below k = 16."""
    others = {"absolute": 29.7, "none": 16.7, "relative_keys": 30.0, "relative_values": 29.5, "learned": 29.0}
    by_k = {0: 16.7, 1: 29.7, 2: 30.0, 16: 30.0, 32: 30.0}
    means = [*((kind, 16, mean) for kind, mean in others.items()), *(("relative", k, mean) for k, mean in by_k.items())]
    return [
        fake_record(kind, k, seed=s, scores={"test": mean + s / 10 + 0.02 * ((7 * s + at) % 3)}, **changes)
        for at, (kind, k, mean) in enumerate(means)
        for s in seeds
    ]


def group_of(records, *beside, **settings):
    """The only group of these records."""
    [group] = run_groups(records, *beside, **settings)
    return group


def grids(records, *beside, **settings):
    """The tables of a report by their names."""
    return {grid.name: grid for grid in Tables(run_groups(records, *beside, **settings)).grids}


def row(grid, *labels):
    """The cells of a row by column key."""
    for line in grid.cells:
        named = {column.key: cell for column, cell in zip(grid.columns, line, strict=True)}
        if [named[column.key].value for column in grid.columns if column.kind == "label"] == list(labels):
            return named
    raise AssertionError(f"no row {labels} in {grid.name}")


def value(cell):
    return cell.value.value if isinstance(cell.value, Measurement) else cell.value

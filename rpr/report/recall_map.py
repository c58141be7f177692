"""The heat map of data=recall: right answers by the number of pairs and by the distance from a query to its key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rpr.data.generated.recall import by_pairs_and_distance
from rpr.records.record import Record
from rpr.report.groups import Group
from rpr.report.plots import Plot
from rpr.report.samples import FileOf, lines_of, texts_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAIRS, _TOKENS = 4, 8  # of a cell


def recall_map(group: Group, file_of: FileOf) -> Plot | None:
    """A panel for each variant, of its seeds' answers on test and long; None of another task, or without answers."""
    if group.runs[0].setting("data.task.kind") != "recall":
        return None
    variants, remark = lines_of(group)
    shares = {variant.label: share for variant in variants if (share := _shares(variant.finished, file_of))}
    if not shares:
        return None
    rows, columns = (1 + max(cell[side] for share in shares.values() for cell in share) for side in (0, 1))

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (label, share) in zip(panels, shares.items(), strict=True):
            cells = [[share.get((row, column), float("nan")) for column in range(columns)] for row in range(rows)]
            axes.pcolormesh(cells, vmin=0, vmax=100, cmap="viridis")
            axes.grid(visible=False)
            axes.set_title(label, fontsize=9, loc="left")
            axes.set_xticks(range(columns + 1), [str(_TOKENS * place) for place in range(columns + 1)])
            axes.set_yticks(range(0, rows + 1, 2), [str(_PAIRS * place) for place in range(0, rows + 1, 2)])
            axes.set_ylabel("pairs")
        panels[-1].set_xlabel("tokens from the key to its query")

    words = "Yellow: every answer is right; dark blue: none. White: no such query."
    return Plot("recall_map", "Recall by pairs and distance", group.heading, draw, len(shares), 1.7, remark, words)


def _shares(runs: Sequence[Record], file_of: FileOf) -> Mapping[tuple[int, int], float]:
    """The percentage of right answers of each cell."""
    right, asked = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for run in runs:
        for split in ("test", "long"):
            if (texts := texts_of([run], split, file_of)) is None:
                continue
            for (pairs, distance), (of_right, of_asked) in by_pairs_and_distance(*texts).items():
                cell = (pairs // _PAIRS, distance // _TOKENS)
                right[cell] += of_right
                asked[cell] += of_asked
    return {cell: 100 * right[cell] / asked[cell] for cell in asked}

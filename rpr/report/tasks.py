"""The table of a generated task: exact match within and beyond the training lengths, beside published figures."""

from __future__ import annotations

from dataclasses import dataclass

from rpr.records.measurement import Measurement, missing, single
from rpr.records.scores import EXACT_MATCH
from rpr.report.grid import Column, Grid, Note
from rpr.report.groups import Group
from rpr.report.lines import CHANGE, NOTE, SEEDS, Line, change_column, folded_scores, labels, score_column
from rpr.report.scoring import scoring_notes


@dataclass(frozen=True)
class Published:
    """Accuracy beyond the training lengths in percent, by kind of positions.

    `train_length`: the longest training output, if the figures are only of this cut-off.
    """

    source: str
    protocol: str
    figures: dict[str, float]
    train_length: int | None = None


_KAZEMNEJAD = (
    "Kazemnejad et al. 2023 (arXiv 2305.19466), computed from the records that the authors published",
    "a decoder of 107M parameters, RoPE on a quarter of the width, other lengths, 3 seeds: compare the order only",
)
_CSORDAS = (
    "Csordás et al. 2021 (arXiv 2108.12284), from the abstract",
    "relative positions as in Transformer-XL, dropout 0.5, 50,000 steps of 256 pairs, median of 5 seeds",
)
# By task. Figures of a decoder without positions are left out: it has the order of its tokens from the causal mask.
PUBLISHED = {
    "copy": (Published(*_KAZEMNEJAD, {"t5": 93.9, "alibi": 17.0, "rope": 1.6, "absolute": 0.0}),),
    "reverse": (Published(*_KAZEMNEJAD, {"t5": 24.2, "alibi": 17.1, "rope": 7.7, "absolute": 2.3}),),
    "scan": (
        Published(*_KAZEMNEJAD, {"t5": 79.9, "alibi": 43.8, "rope": 28.3, "absolute": 5.7}),
        Published(*_CSORDAS, {"transformer_xl": 100.0}, 26),
    ),
}


def published(group: Group) -> list[Published]:
    """The published figures for a group's task, if it was scored beyond the training lengths."""
    run = group.runs[0]
    found = PUBLISHED.get(str(run.task), ()) if group.column("long") else ()
    return [one for one in found if one.train_length in (None, run.setting("data.task.max_train_length"))]


_PUBLISHED_COLUMN = Column("published", "published", lambda line: line.printed, priority=1)


def task_grid(group: Group) -> Grid:
    """Every variant of a group on a generated task."""
    absolute, used = group.get("absolute"), published(group)
    figures = {kind: figure for one in used for kind, figure in one.figures.items()}
    other = missing("of other models: their differences are not ours")

    def beside(kind: str) -> Measurement:
        return single(figures[kind]) if kind in figures else missing("no published figure known to us")

    lines = tuple(
        Line((one.label,), group, one, absolute, "absolute", beside(one.position.kind), other, "", ())
        for one in group.variants
    )
    splits = [split for split in ("test", "long") if group.column(split) is not None]
    columns = (*map(score_column, splits), change_column(group.split), _PUBLISHED_COLUMN, NOTE)
    run = group.runs[0]
    longest, most = (run.setting(f"data.task.max_{split}_length") for split in ("train", "long"))
    sizes = ", ".join(
        f"{name} {run.setting(f'model.{name}')}" for name in ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
    )
    notes = [
        f"test: lengths up to {longest}, as in training; long: longer inputs" + (f", up to {most}" if most else ""),
        f"Δ: change from absolute, {CHANGE}",
        f"model: {sizes}",
        *(f"published, beyond the training lengths: {one.source}; {one.protocol}" for one in used),
    ]
    return Grid(
        "task",
        f"Exact match on {run.task}, percent",
        (*labels("position"), SEEDS, *columns, *folded_scores(lines, EXACT_MATCH)),
        lines,
        group.heading,
        (*scoring_notes(group, group.variants), *map(Note, notes)),
        synthetic=True,
    ).without_empty_columns()

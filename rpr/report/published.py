"""Published figures beside ours, as data: a source adds rows, and every table that has a row they match shows them.

Transcribed by hand; a figure that a source does not print is absent, never interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rpr import paper
from rpr.records.scores import EXACT_MATCH, HEADLINE_METRIC


@dataclass(frozen=True)
class Source:
    """Where figures come from.

    Args:
        key, heading: of its column.
        protocol: how its models and scores differ from ours.
        compares: whether its changes or only the order of its figures can be compared with ours.
        absent: the reason in the cell of a row without a figure.
        test_sets: the test set of each split.
    """

    key: str
    heading: str
    citation: str
    protocol: str
    compares: Literal["changes", "order"] = "order"
    absent: str = "no published figure known to us"
    test_sets: Mapping[str, str] = field(default_factory=dict, hash=False)


class Published(NamedTuple):
    """One figure: it stands beside the rows whose facts include all of `match` (see `rpr.report.lines.Line.facts`)."""

    match: Mapping[str, Any]
    metric: str
    split: str
    figure: float
    source: Source


def rows(
    source: Source, metric: str, split: str, matches: Mapping[str, Any], by: str, figures: Mapping[Any, float]
) -> tuple[Published, ...]:
    """A row for each figure, by the value of one more fact."""
    return tuple(Published({**matches, by: value}, metric, split, one, source) for value, one in figures.items())


PAPER = Source(
    "paper",
    "paper",
    paper.SOURCE,
    paper.BLEU_KIND,
    "changes",
    "not in the paper",
    {"test": paper.TABLE1_TEST_SET, "validation": paper.TABLE2_TEST_SET},
)
KAZEMNEJAD = Source(
    "kazemnejad",
    "Kazemnejad 2023",
    "Kazemnejad et al. 2023 (arXiv 2305.19466), computed from the records that the authors published",
    "a decoder of 107M parameters, RoPE on a quarter of the width, other lengths, 3 seeds: compare the order only",
)
CSORDAS = Source(
    "csordas",
    "Csordás 2021",
    "Csordás et al. 2021 (arXiv 2108.12284), from the abstract",
    "relative positions as in Transformer-XL, dropout 0.5, 50,000 steps of 256 pairs, median of 5 seeds",
)
_PAPERS: tuple[Published, ...] = (
    *(
        Published({"table": 1, "size": size, "kind": kind, "languages": pair}, HEADLINE_METRIC, "test", one, PAPER)
        for (size, kind, pair), one in paper.TABLE1.items()
    ),
    *rows(PAPER, HEADLINE_METRIC, "validation", {"table": 2, "languages": "en_de"}, "k", paper.TABLE2),
    *rows(PAPER, HEADLINE_METRIC, "validation", {"table": 3, "languages": "en_de"}, "sides", paper.TABLE3),
)


def _beyond(source: Source, task: str, **figures: float) -> tuple[Published, ...]:
    return rows(source, EXACT_MATCH, "long", {"task": task}, "kind", figures)


# Figures of a decoder without positions are left out: it has the order of its tokens from the causal mask.
PUBLISHED: tuple[Published, ...] = (
    *_PAPERS,
    *_beyond(KAZEMNEJAD, "copy", t5=93.9, alibi=17.0, rope=1.6, absolute=0.0),
    *_beyond(KAZEMNEJAD, "reverse", t5=24.2, alibi=17.1, rope=7.7, absolute=2.3),
    *_beyond(KAZEMNEJAD, "scan", t5=79.9, alibi=43.8, rope=28.3, absolute=5.7),
    Published({"task": "scan", "kind": "transformer_xl", "max_train_length": 26}, EXACT_MATCH, "long", 100.0, CSORDAS),
)


def find(facts: Mapping[str, Any], source: Source, split: str | None = None) -> Published | None:
    """The source's figure for a row with these facts, on a split if given; None without one."""
    nothing = object()
    for one in PUBLISHED:
        fits = one.source is source and split in (None, one.split)
        if fits and all(facts.get(key, nothing) == value for key, value in one.match.items()):
            return one
    return None


def all_sources() -> list[Source]:
    """In the order of PUBLISHED."""
    return [*dict.fromkeys(one.source for one in PUBLISHED)]

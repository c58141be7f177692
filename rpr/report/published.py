"""Published figures beside ours, as data: a source adds rows, and every table that has a row they match shows them.

Transcribed by hand; a figure that a source does not print is absent, never interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rpr import paper
from rpr.records.scores import BITS_PER_BYTE, EXACT_MATCH, HEADLINE_METRIC


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
KAZEMNEJADS_TASKS = Source(
    "kazemnejads_tasks",
    "Kazemnejad 2023",
    KAZEMNEJAD.citation,
    "the same tasks; a model of 107M parameters, 40,000 steps of 64 examples, RoPE on a quarter of the width, mean of"
    " 3 seeds: compare the order only",
)
CSORDAS = Source(
    "csordas",
    "Csordás 2021",
    "Csordás et al. 2021 (arXiv 2108.12284), from the abstract",
    "relative positions as in Transformer-XL, dropout 0.5, 50,000 steps of 256 pairs, median of 5 seeds",
)
PRESS = Source(
    "press",
    "Press 2022",
    "Press et al. 2022 (arXiv 2108.12409), Tables 2, 3 and 13 to 15",
    "WikiText-103, words, 16 layers, width 1,024, 247M parameters, windows across documents: compare the order only",
)
HAVIV = Source(
    "haviv",
    "Haviv 2022",
    "Haviv et al. 2022 (arXiv 2203.16634)",
    "WikiText-103, words, 247M parameters: compare the order only",
)
NANOGPT = Source(
    "nanogpt",
    "nanoGPT",
    "the README of github.com/karpathy/nanoGPT: 1.88 nats a character, on a CPU",
    "estimated from 240 random windows of the last tenth of the text: a standard error near 0.015 nats (0.022 bits);"
    " other initial weights, 65 characters",
)
# By (relative values, relative keys), as in the paper's Table 3.
KIND_OF_SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}
KIND_OF_SIDES |= {(False, False): "none"}


def _paper(figure: float, split: str, kind: str, k: int, **more: Any) -> Published:
    facts = {"kind": kind, **more} | ({} if kind in ("absolute", "none") else {"k": k})
    return Published(facts, HEADLINE_METRIC, split, figure, PAPER)


_PAPERS = (
    *(
        _paper(figure, "test", kind, paper.MODELS[size].clip_distance, size=size, languages=pair)
        for (size, kind, pair), figure in paper.TABLE1.items()
    ),
    *(_paper(figure, "validation", "relative", k, languages="en_de") for k, figure in paper.TABLE2.items()),
    *(
        _paper(figure, "validation", KIND_OF_SIDES[sides], paper.TABLE3_CLIP_DISTANCE, languages="en_de")
        for sides, figure in paper.TABLE3.items()
    ),
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


def _by_length(windows: str, train_length: int, kind: str, lengths: Sequence[int], *figures: float) -> list[Published]:
    facts = {"corpus": "wikitext103", "windows": windows, "train_length": train_length, "kind": kind}
    return [*rows(PRESS, "perplexity", "validation", facts, "length", dict(zip(lengths, figures, strict=False)))]


# Of language models, on which the paper has no figures: perplexity by the length of the context. T5 ran out of memory
# at the longest one.
_512, _1024 = (512, 532, 612, 712, 1012, 1512, 2512, 3512, 15512), (1024, 1124, 1524, 2024, 3024, 16024)
_SLIDING = (512, 1024, 1536, 2048, 3072)
PUBLISHED += (
    *_by_length("separate", 512, "absolute", _512, 20.05, 19.91, 20.59, 24.86, 43.54, 76.23, 132.41, 178.97, 406.01),
    *_by_length("separate", 512, "rope", _512, 20.07, 19.98, 19.81, 19.79, 21.37, 25.99, 31.58, 35.54, 79.25),
    *_by_length("separate", 512, "t5", _512, 19.65, 19.53, 19.27, 19.10, 18.79, 18.91, 20.41, 22.91),
    *_by_length("separate", 512, "alibi", _512, 19.73, 19.61, 19.38, 19.14, 18.73, 18.52, 18.41, 18.40, 18.31),
    *_by_length("separate", 1024, "absolute", _1024, 19.34, 19.26, 29.82, 51.09, 96.46, 453),
    *_by_length("separate", 1024, "rope", _1024, 19.33, 19.18, 22.59, 31.17, 35.67, 107),
    *_by_length("separate", 1024, "t5", _1024, 18.80, 18.62, 18.42, 18.34, 18.62),
    *_by_length("separate", 1024, "alibi", _1024, 18.66, 18.46, 18.22, 18.05, 17.92, 17.98),
    *_by_length("sliding", 512, "absolute", _SLIDING, 18.35, 204.42, 264.74, 306.19, 360.12),
    *_by_length("sliding", 512, "t5", _SLIDING, 17.92, 18.51, 20.36, 22.62, 30.77),
    *_by_length("sliding", 512, "alibi", _SLIDING, 17.98, 17.92, 18.2, 18.28, 18.3),
    *_by_length("sliding", 1024, "absolute", _SLIDING[1:], 18.05, 206.55, 302.6, 393.71),
    *_by_length("sliding", 1024, "t5", _SLIDING[1:], 17.65, 17.87, 18.51, 20.66),
    *_by_length("sliding", 1024, "alibi", _SLIDING[1:], 17.46, 17.47, 17.62, 17.92),
    Published(
        {"data": "tiny_shakespeare", "kind": "learned", "context_length": 64},
        BITS_PER_BYTE,
        "test",
        1.88 / math.log(2),
        NANOGPT,
    ),
    *rows(
        HAVIV,
        "perplexity",
        "validation",
        {"corpus": "wikitext103", "windows": "separate", "train_length": 512, "length": 512},
        "kind",
        {"none": 20.97, "learned": 20.42, "absolute": 20.16, "alibi": 19.71},
    ),
)


def _of_task(task: str, longest: int, lengths: Sequence[int], **figures: Sequence[float]) -> list[Published]:
    """Exact match at each length, all 0 from the last one given on."""
    match, found = {"task": task, "max_train_length": longest}, list[Published]()
    for kind, shares in figures.items():
        percent = [round(100 * share, 1) for share in (*shares, *[0.0] * (len(lengths) - len(shares)))]
        by_length = dict(zip(lengths, percent, strict=True))
        found += rows(KAZEMNEJADS_TASKS, EXACT_MATCH, "long", {**match, "kind": kind}, "length", by_length)
    return found


# Of decoder-only models, for which no positions are a scheme like the others. "rope" turns a quarter of each head.
_ADDITION = {"none": 8.45, "alibi": 7.75, "t5": 7.21, "absolute": 0.44, "rope": 0.04}
PUBLISHED += (
    *_of_task(
        "symbols_copy", 20, (21, 25, 30, 33, 40), none=(0.788, 0.704, 0.173, 0.004), t5=(0.803, 0.729, 0.555, 0.235),
        alibi=(0.823, 0.734, 0.229, 0.005), rope=(0.037,), absolute=(0.543,),
    ),
    *_of_task(
        "symbols_repeat", 20, (21, 25, 30, 40), none=(0.999, 0.998, 0.989, 0.963), t5=(1, 0.996, 0.941, 0.212),
        alibi=(0.999, 0.924), rope=(0.004,), absolute=(),
    ),
    *_of_task(
        "symbols_reverse", 20, (21, 24, 25, 27), none=(0.991, 0.805, 0.542, 0.076), t5=(0.994, 0.845, 0.608, 0.117),
        alibi=(0.997, 0.451, 0.045), rope=(0.789, 0.132, 0.005), absolute=(0.461,),
    ),
    *_of_task(
        "scan", 25, (26, 28, 30, 33, 36, 40), none=(1, 0.935, 0.953, 0.913, 0.609, 0.031),
        t5=(0.989, 0.919, 0.917, 0.859, 0.141, 0.366), alibi=(0.676, 0.791, 0.396, 0.113),
        rope=(0.467, 0.387, 0.226, 0.208, 0.234, 0.053), absolute=(0.348,),
    ),
    *rows(KAZEMNEJADS_TASKS, EXACT_MATCH, "long", {"task": "uneven_addition"}, "kind", _ADDITION),
)  # fmt: skip


def find(facts: Mapping[str, Any], source: Source, split: str | None = None) -> Published | None:
    """The source's figure for a row with these facts, on a split if given; None without one."""
    nothing = object()
    for one in PUBLISHED:
        fits = one.source is source and split in (None, one.split)
        if fits and all(facts.get(key, nothing) == value for key, value in one.match.items()):
            return one
    return None


def curves(by: str, facts: Mapping[str, Any]) -> dict[tuple[Source, Any], dict[int, float]]:
    """The figures that match all of `facts` and have one more fact `by`, such as a length: its values with the figures,
    for each source and length of training, if that is said.
    """
    found: dict[tuple[Source, Any], dict[int, float]] = {}
    for one in PUBLISHED:
        if by in one.match and facts.items() <= one.match.items():
            found.setdefault((one.source, one.match.get("train_length")), {})[one.match[by]] = one.figure
    return found


def all_sources() -> list[Source]:
    """In the order of PUBLISHED."""
    return [*dict.fromkeys(one.source for one in PUBLISHED)]

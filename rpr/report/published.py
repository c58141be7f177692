"""Published figures beside ours: the paper's, of `rpr.paper`, and those of published.yaml."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rpr import paper
from rpr.records.measurement import Measurement, single
from rpr.records.position import OTHER
from rpr.records.scores import HEADLINE_METRIC
from rpr.report.groups import Group, Variant

Curves = dict[str, dict[int, Measurement]]  # figures by label and length


@dataclass(frozen=True)
class Source:
    """Where figures come from; `key` and `heading` are those of its column."""

    key: str
    heading: str
    citation: str
    protocol: str  # how its models and scores differ from ours
    absent: str = "no published figure of this row as a whole known to us"  # in the cell of a row without a figure
    test_sets: Mapping[str, str] = field(default_factory=dict, hash=False)  # of each split


class Published(NamedTuple):
    """One figure: it stands beside the rows whose facts include all of `match` (see `rpr.report.lines.Line.facts`)."""

    match: Mapping[str, Any]
    metric: str
    split: str
    figure: float
    source: Source


_TEST_SETS = {"test": paper.TABLE1_TEST_SET, "validation": paper.TABLE2_TEST_SET}
PAPER = Source("paper", "paper", paper.SOURCE, paper.BLEU_KIND, "not in the paper", _TEST_SETS)
# By (relative values, relative keys), as in the paper's Table 3.
KIND_OF_SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}
KIND_OF_SIDES |= {(False, False): "none"}


def _papers() -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Figure, split and facts of each cell of the paper's Tables 1 to 3."""
    for (size, kind, pair), figure in paper.TABLE1.items():
        k = {"k": paper.MODELS[size].clip_distance} if kind == "relative" else {}
        yield figure, "test", {"size": size, "kind": kind, "languages": pair, **k}
    for clip_distance, figure in paper.TABLE2.items():
        yield figure, "validation", {"kind": "relative", "k": clip_distance, "languages": "en_de"}
    for sides, figure in paper.TABLE3.items():
        k = {"k": paper.TABLE3_CLIP_DISTANCE} if any(sides) else {}
        yield figure, "validation", {"kind": KIND_OF_SIDES[sides], "languages": "en_de", **k}


@cache
def published() -> tuple[Published, ...]:
    """Every figure of every source."""
    transcribed = [Published(facts, HEADLINE_METRIC, split, figure, PAPER) for figure, split, facts in _papers()]
    document = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    for key, about in document.items():
        source = Source(key, about["heading"], about["citation"], about["protocol"])
        for facts in about["figures"]:
            [(by, figures)] = [fact for fact in facts.items() if isinstance(fact[1], dict)]
            match = {**about.get("facts", {}), **facts}
            on = about["metric"], about["split"]
            transcribed += [
                Published({**match, by: value}, *on, float(figure), source) for value, figure in figures.items()
            ]
    return tuple(transcribed)


def find(facts: Mapping[str, Any], source: Source, split: str | None = None) -> Published | None:
    """The source's figure for a row with these facts, on a split if given; None without one."""
    rows = (row for row in published() if row.source is source and split in (None, row.split))
    return next((row for row in rows if row.match.items() <= facts.items()), None)


def facts_of(variant: Variant, group: Group) -> dict[str, Any]:
    """What published figures of a variant's runs are matched with; `rotated_share`: of RoPE."""
    run = group.runs[0]
    return {
        "kind": variant.position.kind if variant.position.as_published else OTHER,
        "k": variant.position.clip_distance,
        "rotated_share": _rotated_share(variant),
        "data": group.data,
        "model": group.model,
        "size": group.size,
        "architecture": run.setting("model.architecture") or "encoder_decoder",
        "task": run.task,
        "languages": group.languages if group.translation else None,
        "context_length": run.setting("data.context_length"),
        "num_layers": run.setting("model.num_layers"),
        "d_model": run.setting("model.d_model"),
        "max_steps": group.max_steps,
        "max_train_length": run.setting("data.task.max_train_length"),
    }


def _rotated_share(variant: Variant) -> Any:
    return next((run.setting("position.rotated_share") for run in variant.records), None)


def published_figures(group: Group) -> dict[Source, list[tuple[Variant, float]]]:
    """The figures on the group's split of all sources but the paper, by variant; none if the group shows none."""
    figures: dict[Source, list[tuple[Variant, float]]] = {}
    for source in all_sources() if group.published else ():
        for variant in group.variants if source is not PAPER else ():
            known = find(facts_of(variant, group), source, group.split)
            if known is not None and group.score(variant, group.split).value is not None:
                figures.setdefault(source, []).append((variant, known.figure))
    return figures


def published_curves(variants: Sequence[Variant], facts: Mapping[str, Any]) -> dict[tuple[Source, Any], Curves]:
    """The figures by length that match all of `facts`, for each source and length of training, if that is said."""
    by_source: dict[tuple[Source, Any], Curves] = {}
    labels: dict[tuple[str, Any], str] = {}  # of the first of each kind and share of the width
    for variant in (variant for variant in variants if variant.position.as_published):
        labels.setdefault((variant.position.kind, _rotated_share(variant)), variant.label)
    for (kind, share), label in labels.items():
        for row in published():
            alike = row.match.get("rotated_share", share) == share
            if "length" in row.match and alike and {**facts, "kind": kind}.items() <= row.match.items():
                of_source = by_source.setdefault((row.source, row.match.get("train_length")), {})
                of_source.setdefault(label, {})[row.match["length"]] = single(row.figure)
    return by_source


def all_sources() -> list[Source]:
    """The paper first, then those of published.yaml."""
    return [*dict.fromkeys(row.source for row in published())]

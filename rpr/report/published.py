"""Published figures beside ours: the paper's, of `rpr.paper`, and those of published.yaml; how runs differ from the
paper's, whose settings are those of `model=base` (or big).
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rpr import paper
from rpr.compose.composition import compose_train
from rpr.kinds import TRANSLATION
from rpr.records.position import OTHER
from rpr.records.record import Record, deciding_settings
from rpr.records.scores import HEADLINE_METRIC
from rpr.report.groups import Group, Key, Variant

# Names, file locations and the amount of reporting; batches are compared by their tokens.
_NOT_COMPARED = {
    *("model.name", "optim.name", "data.source_language", "data.target_language", "data.hub", "data.hub_config"),
    *("data.validation_name", "data.test_name", "data.synthetic", "optim.keep_checkpoints"),
    *("optim.validate_every_n_steps", "optim.max_tokens_per_microbatch", "optim.microbatches_per_step"),
    *("optim.checkpoint_every_n_steps", "optim.checkpoint_every_n_minutes", "evaluation.bleu_tokenizer"),
    "evaluation.text_tokens",
}


class Source(NamedTuple):
    """Where figures come from; `key` and `heading` are those of its column."""

    key: str
    heading: str
    citation: str
    protocol: str  # how its models and scores differ from ours


class Published(NamedTuple):
    """One figure of a split and metric: it stands beside the rows whose `facts_of` include all of `match`."""

    match: Mapping[str, Any]
    key: Key
    figure: float
    source: Source


_SETS = f"Table 1 on {paper.TABLE1_TEST_SET}, Tables 2 and 3 on {paper.TABLE2_TEST_SET}; {paper.BLEU_KIND}"
PAPER = Source("paper", "paper", paper.SOURCE, _SETS)
# By (relative values, relative keys), as in the paper's Table 3.
KIND_OF_SIDES = {(True, True): "relative", (False, True): "relative_keys", (True, False): "relative_values"}
KIND_OF_SIDES |= {(False, False): "none"}


@cache
def published() -> tuple[Published, ...]:
    """Every figure of every source, the paper's first."""
    test, validation, k = ("test", HEADLINE_METRIC), ("validation", HEADLINE_METRIC), paper.TABLE3_CLIP_DISTANCE
    rows = []
    for (size, kind, pair), figure in paper.TABLE1.items():
        of_k = {"k": paper.MODELS[size].clip_distance} if kind == "relative" else {}
        rows.append(Published({"size": size, "kind": kind, "languages": pair, **of_k}, test, figure, PAPER))
    matches = [({"kind": "relative", "k": of_k}, figure) for of_k, figure in paper.TABLE2.items()]
    matches += [({"kind": KIND_OF_SIDES[sides], **({"k": k} if any(sides) else {})}, figure)
                for sides, figure in paper.TABLE3.items()]  # fmt: skip
    rows += [Published({**match, "languages": "en_de"}, validation, figure, PAPER) for match, figure in matches]
    document = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    for name, about in document.items():
        source = Source(name, about["heading"], about["citation"], about["protocol"])
        for facts in about["figures"]:
            [(by, figures)] = [fact for fact in facts.items() if isinstance(fact[1], dict)]
            match = {**about.get("facts", {}), **facts}
            rows += [Published({**match, by: value}, (about["split"], about["metric"]), float(figure), source)
                     for value, figure in figures.items()]  # fmt: skip
    return tuple(rows)


def all_sources() -> list[Source]:
    """The paper first, then those of published.yaml."""
    return [*dict.fromkeys(row.source for row in published())]


def find(variant: Variant, source: Source, split: str | None = None) -> Published | None:
    """The source's figure for a row, on a split if given; None without one."""
    facts = facts_of(variant).items()
    rows = (row for row in published() if row.source == source and split in (None, row.key[0]))
    return next((row for row in rows if row.match.items() <= facts), None)


def facts_of(variant: Variant) -> dict[str, Any]:
    """What published figures of a variant's runs are matched with; `rotated_share`: of RoPE."""
    group, run, position = variant.group, variant.group.runs[0], variant.position
    settings = ("data.context_length", "model.num_layers", "model.d_model", "data.task.max_train_length")
    return {name.rpartition(".")[2]: run.setting(name) for name in settings} | {
        "kind": position.kind if position.as_published else OTHER,
        "k": position.clip_distance,
        "rotated_share": next((run.setting("position.rotated_share") for run in variant.records), None),
        "data": group.data,
        "model": group.model,
        "size": group.size,
        "architecture": run.setting("model.architecture") or "encoder_decoder",
        "task": run.setting("data.task.kind"),
        "languages": group.languages if group.kind is TRANSLATION else None,
        "max_steps": group.max_steps,
    }


def published_figures(group: Group) -> dict[Source, list[tuple[Variant, float]]]:
    """The figures on the group's split of all sources but the paper, by variant; none if the group shows none."""
    figures: dict[Source, list[tuple[Variant, float]]] = {}
    scored = [variant for variant in group.variants if variant.measured(group.key).value is not None]
    for source in all_sources()[1:] if group.published else ():
        known = [(variant, row.figure) for variant in scored if (row := find(variant, source, group.split))]
        figures |= {source: known} if known else {}
    return figures


def tokens_per_step(config: dict[str, Any]) -> int:
    """The padded tokens of a step; of documents whole windows."""
    optim, window = config["optim"], config["data"].get("context_length") or 1
    tokens = optim.get("max_tokens_per_microbatch") or 0
    return max(1, tokens // window) * window * (optim.get("microbatches_per_step") or 1)


@cache
def papers_settings(size: paper.Size, languages: str) -> dict[str, Any]:
    """The paper's settings by dotted key; of German, if the paper does not have these languages."""
    languages = languages if languages in paper.TRAIN_PAIRS else "en_de"
    config = compose_train([f"model={size}", f"data=wmt14_{languages}"]).model_dump(mode="json")
    if (size, languages) == ("big", "en_fr"):
        config["model"]["dropout"] = 0.1
    return _settings(config) | {"train pairs": paper.TRAIN_PAIRS[languages]}


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    compared = {key: value for key, value in deciding_settings(config).items() if key not in _NOT_COMPARED}
    return compared | {"tokens per step": tokens_per_step(config), "precision": config["hardware"].get("precision")}


def differences(runs: Iterable[Record], size: paper.Size, languages: str) -> list[str]:
    """How training and decoding of these runs differ from the paper's: `steps 5,000 (100,000)`, the paper's last."""
    papers, texts = papers_settings(size, languages), dict[str, None]()
    for run in runs:
        pairs = {"train pairs": run.data.train_pairs} if run.data else {}
        for key, value in (_settings(run.config) | pairs).items():
            own, its = (f"{one:,}" if type(one) is int else str(one or "none") for one in (value, papers.get(key)))
            if own != its:
                texts[f"{key.rpartition('.')[2]} {own} ({its})"] = None
    return [*texts]

"""How runs differ from the paper's: their configuration beside that of `model=base` (or big), which is the paper's."""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from rpr import paper
from rpr.compose.composition import compose_train
from rpr.records.record import Record, deciding_settings

# Names, file locations and the amount of reporting; batches are compared by their tokens.
_NOT_COMPARED = {
    *("model.name", "model.relative_defaults.clip_distance", "model.relative_defaults.tables", "optim.name"),
    *("data.source_language", "data.target_language", "data.hub", "data.hub_config", "data.validation_name"),
    *("data.test_name", "data.synthetic", "optim.keep_checkpoints", "optim.validate_every_n_steps"),
    *("optim.checkpoint_every_n_steps", "optim.checkpoint_every_n_minutes", "optim.max_tokens_per_microbatch"),
    *("optim.microbatches_per_step", "evaluation.bleu_tokenizer", "evaluation.text_tokens"),
}
_NEARLY = 0.15  # how far from the paper's the number of pairs may be, as a share of it


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
    """How training and decoding of these runs differ from the paper's model of this size, each difference once:
    `steps 5,000 (100,000)`, with the paper's in brackets.
    """
    kinds = {json.dumps([run.config, run.data and run.data.train_pairs], sort_keys=True): run for run in runs}
    papers = papers_settings(size, languages)
    return list(dict.fromkeys(text for run in kinds.values() for text in _of_run(run, papers)))


def _of_run(run: Record, papers: dict[str, Any]) -> Iterator[str]:
    settings = _settings(run.config) | {"train pairs": run.data.train_pairs if run.data else papers["train pairs"]}
    for key, value in settings.items():
        its: Any = papers.get(key)
        near = key == "train pairs" and abs(value - its) <= _NEARLY * its
        if value != its and not near and not (key not in papers and value in (None, False)):
            yield f"{key.rpartition('.')[2]} {_text(value)} ({_text(its)})"


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"

"""The model card of an export: its run, scores, differences from rpr, and parity check. card.json is machine-readable;
README.md has the same content as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rpr import __version__
from rpr.config.train import TrainConfig
from rpr.data.vocabulary import Vocabulary
from rpr.decode.ctranslate2 import DIFFERENCES, library
from rpr.decode.exported import Kind
from rpr.export.ctranslate2_spec import position_rows
from rpr.export.parity import Parity
from rpr.model.transformer import Transformer
from rpr.records.position import position_of
from rpr.records.record import Record

CARD_VERSION = 1


@dataclass(frozen=True)
class ExportInputs:
    """A loaded run, and sentences of its data to check the export with.

    `model` is in evaluation mode; `checkpoint` describes its checkpoint; `sources` and `references` are token IDs of
    `split`, each with EOS.
    """

    record: Record
    config: TrainConfig
    model: Transformer
    checkpoint: str
    vocabulary: Vocabulary
    split: str
    sources: Sequence[Sequence[int]]
    references: Sequence[Sequence[int]]


def card(kind: Kind, inputs: ExportInputs, proven: Parity, int8: float | None) -> dict[str, Any]:
    """The card as plain data; deterministic for the same run and library versions.

    Args:
        proven: measured on `inputs.split`.
        int8: the fraction of its sentences with the same translation in int8 and float32; None: not measured.
    """
    model, config, record = inputs.model, inputs.config, inputs.record
    data = record.data
    versions = {"rpr": __version__, "torch": record.versions.get("torch")}
    if kind == "ctranslate2":
        versions["ctranslate2"] = str(library().__version__)
    return {
        "version": CARD_VERSION,
        "kind": kind,
        "run": {
            "name": record.name,
            "id": record.run_id,
            "outcome": record.outcome or "finished",
            "command": record.command,
            "commit": record.git.commit,
            "dirty": record.git.dirty,
            "steps": record.steps,
            "checkpoint": inputs.checkpoint,
        },
        "model": {
            "size": record.model_name,
            "positions": position_of(record).label,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "data": {
            "name": record.data_name,
            "hub": config.data.hub,
            "synthetic": record.synthetic,
            "train_pairs": None if data is None else data.train_pairs,
            "notes": [] if data is None else list(data.notes),
            "source_language": config.data.source_language,
            "target_language": config.data.target_language,
        },
        "scores": [asdict(score) for score in record.scores],
        "search": {
            key: getattr(config.evaluation, key)
            for key in ("beam_size", "length_penalty", "max_extra_length", "min_length")
        },
        "differences": list(_differences(kind, model)),
        "parity": {"split": inputs.split, **asdict(proven)},
        "int8_identical": int8,
        "versions": versions,
    }


def readme(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    run, model, data, proof = card["run"], card["model"], card["data"], card["parity"]
    commit = f"commit {run['commit']}{' with changes' if run['dirty'] else ''}" if run["commit"] else "commit unknown"
    corpus = f"{data['name']}{' (synthetic)' if data['synthetic'] else ''}"
    pairs = f", {data['train_pairs']:,} pairs" if data["train_pairs"] is not None else ""
    search = card["search"]
    lines = [
        f"# {run['name']}",
        "",
        f"Translates {data['source_language']} to {data['target_language']}. A Transformer ({model['size']}, "
        f"{model['parameters']:,} parameters), positions: {model['positions']}.",
        "",
        f"- Run {run['id']}, {run['outcome']}; {run['checkpoint']}; {commit}",
        f"- `{run['command']}`",
        f"- Data: {corpus}{pairs}",
        *(f"- {note}" for note in data["notes"]),
        f"- Decoded with beam {search['beam_size']}, length penalty {search['length_penalty']:g}, at least "
        f"{search['min_length']} pieces and at most {search['max_extra_length']} more than the source",
        "",
        "## Use",
        "",
        *_use(card["kind"], search),
        "",
        "## Scores",
        "",
        *_scores(card["scores"]),
        "",
        *_section("Differences from rpr", card["differences"]),
        "## Verification",
        "",
        f"Of {proof['sentences']} sentences of {proof['split']}: {proof['identical']} greedy translations are "
        f"identical to the model's, {len(proof['near_ties'])} differ at a tie within rounding, "
        f"{len(proof['different'])} by more; "
        f"log p of a token differs by at most {proof['largest_difference']:.1e} (tolerance: {proof['tolerance']:.0e}).",
    ]
    if card["int8_identical"] is not None:
        lines += [
            "",
            f"With int8 weights, {card['int8_identical']:.1%} of these greedy translations are identical to float32's.",
        ]
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items() if version)
    return "\n".join([*lines, "", f"Written by {versions}.", ""])


def _differences(kind: Kind, model: Transformer) -> Sequence[str]:
    if kind == "safetensors":
        return ()
    rows = position_rows(model.config)
    if rows is None:
        return DIFFERENCES
    note = f"The export supports {rows} positions: longer sources are rejected, and translations end there."
    return (*DIFFERENCES, note)


def _use(kind: Kind, search: Mapping[str, Any]) -> list[str]:
    if kind == "safetensors":
        return [
            "`rpr-cli translate run=FOLDER < IN > OUT`, or as `safetensors` into a model of `config.json`'s shape.",
            "Without rpr: `vocabulary.model` is a sentencepiece model; append EOS to sources; BOS is a zero vector.",
        ]
    return [
        "`rpr-cli translate run=FOLDER < IN > OUT`, or without rpr:",
        "",
        "```python",
        "import ctranslate2, sentencepiece",
        'vocabulary = sentencepiece.SentencePieceProcessor("FOLDER/vocabulary.model")',
        'translator = ctranslate2.Translator("FOLDER", compute_type="float32")',
        'source = [*vocabulary.encode("A sentence.", out_type=str), "</s>"]',
        f"how = {{'beam_size': {search['beam_size']}, 'length_penalty': {search['length_penalty']:g}, "
        f"'min_decoding_length': {search['min_length']}, 'suppress_sequences': [['<pad>'], ['<s>']],",
        f"       'max_input_length': 0, 'max_decoding_length': len(source) + {search['max_extra_length']}}}",
        "result = translator.translate_batch([source], **how)",
        "print(vocabulary.decode(result[0].hypotheses[0]))",
        "```",
        "",
        "The source needs its `</s>`. Leave `flash_attention` off: it ignores the decoder's relative positions.",
    ]


def _scores(scores: Sequence[Mapping[str, Any]]) -> list[str]:
    if not scores:
        return ["The run was not scored."]
    rows = [
        f"| {score['test_set']} | {score['metric']} | {score['score']:.2f} | {score['num_sentences']} | "
        f"{score['checkpoint']} | {score['beam_size']} | {score['length_penalty']:g} | "
        f"`{_escaped_bars(score['signature'])}` |"
        for score in scores
    ]
    return [
        "As the run measured them, with rpr's own search:",
        "",
        "| test set | metric | score | sentences | checkpoint | beam | length penalty | signature |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]


def _escaped_bars(text: str) -> str:
    """A bar would end a Markdown table cell, even within code."""
    return text.replace("|", "\\|")


def _section(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {item}" for item in items), ""] if items else []

"""Brings records to the form that rpr reads: `python sweeps/results/convert_records.py [FOLDER ...]`.

Every records.jsonl and record.json below each folder (by default sweeps/) is rewritten in today's schema. Figures and
run ids stay.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rpr.io.atomic import replace_file
from rpr.records.record import RECORD_NAME, RECORDS_NAME
from rpr.version import SCHEMA

SWEEPS = Path(__file__).resolve().parents[1]
# Dotted names in a record or its configuration; position.NAME is that of every scheme of a run.
DROPPED: tuple[str, ...] = (
    "position.random_offset",
    "optim.ema_decay",
    "optim.non_finite",
    "logger.artifacts",
    "training.skipped_steps",
    "training.loss_spikes",
)
RENAMED = {
    "optim.max_tokens_per_unit": "optim.max_tokens_per_microbatch",
    "optim.units_per_step": "optim.microbatches_per_step",
}
# What runs did before these settings existed; position.NAME is that of every scheme, SCHEME:NAME that of one.
ADDED: dict[str, Any] = {
    "model.architecture": "encoder_decoder",
    "model.activation": "relu",
    "model.bos_vector": "zero",
    "data.task": None,
    "data.text": None,
    "data.context_length": None,
    "data.tokenizer": "bpe",
    "optim.schedule": "inverse_sqrt",
    "optim.learning_rate": None,
    "optim.weight_decay": 0.0,
    "logger.system_metrics": False,
    "hardware.attention": "auto",
    "evaluation.matmul_precision": None,
    "evaluation.min_length": 0,
    "evaluation.bleu_tokenizer": "auto",
    "evaluation.bootstrap_samples": 1000,
    "evaluation.length_buckets": [10, 20, 30, 40, 60, 80],
    "evaluation.text_tokens": 262144,
    "evaluation.context_lengths": [],
    "evaluation.stride": None,
    "stop_after_minutes": None,
    "again": False,
    "origin": None,
    "position.query_log_scale": 0.0,
    "position.query_log_floor": 8192,
    "position.random_positions": None,
    "rope:proportion": 1.0,
    "rope:trained_length": None,
}

# Bits per byte of the test split of a corpus, by its key, of records from before this was recorded (`unigram_bits`).
UNIGRAM_BITS = {"1ac94051013397c702b8c78e9b61175b6e41315aabf4a74eec7189eb3bf70ba1": 4.660961385944715}


def converted(document: dict[str, Any]) -> dict[str, Any]:
    """A record of today's schema."""
    config = document["config"]
    schemes = list(schemes_of(config["position"]))
    if config["data"].get("text") is not None and "bos_vector" not in config["model"]:
        document["command"] += " model.bos_vector=zero"  # which its command left to a default that is another one now
    for tree in (document, config):
        for name in (*DROPPED, *RENAMED):
            section, _, last = name.rpartition(".")
            if isinstance(part := tree.get(section) if section else tree, dict) and last in part:
                value = part.pop(last)
                if name in RENAMED:
                    part[RENAMED[name].rpartition(".")[2]] = value
    for scheme in schemes:
        for name in DROPPED:
            if name.startswith("position."):
                scheme.pop(name.removeprefix("position."), None)
        scheme.setdefault("scheme", "vectors")
    for name, value in ADDED.items():
        section, _, last = name.rpartition(".")
        if section == "position" or ":" in name:
            kind, _, of_one = name.partition(":")
            for scheme in schemes:
                if scheme["scheme"] == kind or not of_one:
                    scheme.setdefault(of_one or last, value)
        elif isinstance(part := config.get(section) if section else config, dict):
            part.setdefault(last, value)
    data = document.get("data") or {}
    if (bits := UNIGRAM_BITS.get(data.get("key"))) is not None:
        data["unigram_bits"] = bits
    return document | {"schema": SCHEMA}


def schemes_of(position: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every scheme in settings of positions: that of all layers or those of both stacks, and a pattern's entries."""
    sides = [position["encoder"], position["decoder"]] if position.get("scheme") == "sides" else []
    if not sides:
        yield position
    for scheme in (*sides, *position.get("entries", {}).values()):
        yield from schemes_of(scheme)


def convert(file: Path) -> None:
    """One record.json, or one records.jsonl."""
    text = file.read_text(encoding="utf-8")
    if file.name == RECORD_NAME:
        replace_file(file, json.dumps(converted(json.loads(text)), indent=1, ensure_ascii=False) + "\n")
        return
    today = map(converted, map(json.loads, text.splitlines()))
    lines = (json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in today)
    replace_file(file, "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]) if sys.argv[1:] else [SWEEPS]:
        for path in (*folder.rglob(RECORDS_NAME), *folder.rglob(RECORD_NAME)):
            convert(path)

"""Brings the committed records to the form that rpr reads: `python sweeps/results/convert_records.py [FOLDER ...]`.

Of each folder (by default every one with records below sweeps/) the records, whether files of their own with their
metrics beside them or lines of records.jsonl, become records.jsonl and metrics.parquet of today's schema. A folder of
runs keeps each record in its run's folder. Figures and run ids stay.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rpr.io.atomic import replace_file
from rpr.records.files import KEPT_METRICS, METRICS_TABLE, _write_table
from rpr.records.record import METRICS_NAME, RECORD_NAME, RECORDS_NAME
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


def convert(folder: Path) -> None:
    """One folder."""
    file = folder / RECORDS_NAME
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    documents = {f"{one['name']}-{one['run_id']}": one for one in map(json.loads, lines)}
    metrics: list[dict[str, Any]] = []
    used = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not {"schema", "run_id", "status"} <= document.keys():
            continue
        name = f"{document['name']}-{document['run_id']}"
        documents[name] = document
        of_run = path.with_name(METRICS_NAME if path.name == RECORD_NAME else f"{path.stem}.{METRICS_NAME}")
        rows = of_run.read_text(encoding="utf-8").splitlines() if of_run.is_file() else []
        for row in map(json.loads, rows):
            kept = {key: row.get(key) for key in ("step", *KEPT_METRICS)}
            if any(kept[key] is not None for key in KEPT_METRICS):
                metrics.append({"run": name, **kept})
        used += [path, of_run]
    today = [converted(document) for _, document in sorted(documents.items())]
    ordered = [json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in today]
    replace_file(file, "".join(line + "\n" for line in ordered))
    if metrics:
        _write_table(folder / METRICS_TABLE, sorted(metrics, key=lambda row: row["run"]))
    for path in used:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    everywhere = sorted({path.parent for path in (*SWEEPS.rglob("*-s[0-9]*.json"), *SWEEPS.rglob(RECORDS_NAME))})
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else everywhere:
        convert(each)

"""Fake run records; all figures are made up."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

from rpr.records.record import Record, run_file, write_record

CONFIG: dict[str, Any] = {
    "model": {
        "name": "small", "num_layers": 3, "d_model": 256, "num_heads": 4, "d_ff": 512, "dropout": 0.1, "norm": "post"
    },
    "position": {
        "name": "relative", "absolute": "none", "max_positions": 512, "relative_keys": True, "relative_values": True,
        "clip_distance": 16, "tables": "per_head",
    },
    "data": {
        "name": "multi30k_en_de", "synthetic": None, "source_language": "en", "target_language": "de",
        "cache_dir": "/c",
    },
    "optim": {"max_steps": 1800, "warmup_steps": 400},
    "hardware": {"name": "cpu", "devices": 1},
    "evaluation": {"beam_size": 4, "length_penalty": 0.6},
    "seed": 1,
}  # fmt: skip
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
TEST_SETS = {"test": "test_2016_flickr", "long": "test_2016_flickr, joined", "validation": "val"}
DECODING = {"beam_size": 4, "length_penalty": 0.6, "precision": "float32"}
AVERAGED = "average of the last 5 (steps 1400, 1500, 1600, 1700, 1800)"
POSITIONS: dict[str, dict[str, Any]] = {
    "absolute": {"absolute": "sinusoidal", "relative_keys": False, "relative_values": False},
    "learned": {"absolute": "learned", "relative_keys": False, "relative_values": False},
    "none": {"relative_keys": False, "relative_values": False},
    "relative": {},
    "relative_keys": {"relative_values": False},
    "relative_values": {"relative_keys": False},
    "absolute_and_relative": {"absolute": "sinusoidal"},
}
TRAINING = {
    "source_tokens_per_second": 4000.0, "target_tokens_per_second": 4100.0, "measured_steps": 1790,
    "excludes": "first 10 steps, validation, checkpoints", "seconds": 900.0, "peak_memory_bytes": 2_000_000_000,
    "peak_memory_kind": "resident set", "train_loss": 2.1, "validation_loss": 2.3, "matmul_precision": "highest",
    "precision": "32",
}  # fmt: skip


def fake_score(split: str, score: float, metric: str = "sacrebleu", **changes: Any) -> dict[str, Any]:
    fields = {
        "split": split, "test_set": TEST_SETS.get(split, split), "metric": metric, "score": score,
        "signature": SIGNATURE, "num_sentences": 1000, "checkpoint": AVERAGED, **DECODING,
    }  # fmt: skip
    return fields | changes


def fake_document(
    position: str = "relative",
    k: int = 16,
    *,
    scores: dict[str, float] | list[dict[str, Any]] | None = None,
    steps_per_second: float | None = 2.0,
    seed: int = 1,
    status: str = "finished",
    settings: dict[str, Any] | None = None,
    synthetic: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """`position`: one of POSITIONS, or another choice of conf/position/; `settings`: of the configuration, and
    `changes` of the whole, at dotted keys.
    """
    config = copy.deepcopy(CONFIG)
    config["seed"] = seed
    if position in POSITIONS:
        config["position"] |= {"name": position, "clip_distance": k, **POSITIONS[position]}
    else:
        from tests.shapes import scheme  # which imports torch

        config["position"] = scheme(position).model_dump(mode="json")
    if synthetic:
        config["data"] |= {"name": "synthetic", "synthetic": {"seed": 1}}
    config = edited(config, settings or {})
    if not isinstance(scores, list):
        scores = [fake_score(split, score) for split, score in ({"test": 30.0} if scores is None else scores).items()]
    data_name = config["data"]["name"]
    document = {
        "schema": 2,
        "name": f"{data_name}-{config['model']['name']}-{position}-k{k}-s{seed}",
        "run_id": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8],
        "status": status,
        "error": {"failed": "RuntimeError: rank 1 died", "interrupted": "SIGTERM"}.get(status),
        "sweeps": ["table2"],
        "concurrent_jobs": 1,
        "command": f"rpr-cli train position={position} position.clip_distance={k} seed={seed}",
        "config": config,
        "git": {"commit": "0123abc", "dirty": False},
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": "2 threads of a CPU",
        "hardware": config["hardware"]["name"],
        "seed": seed,
        "started": "2026-01-02T03:04:05Z",
        "data": {
            "name": data_name, "synthetic": synthetic, "train_pairs": 29000, "dropped_pairs": 3,
            "vocabulary_size": 8000, "key": "ab12cd34", "notes": [],
        },
        "wandb": None,
    }  # fmt: skip
    results = {
        "finished": "2026-01-02T04:04:05Z",
        "steps": config["optim"]["max_steps"],
        "parameters": 7_600_000,
        "training": {"steps_per_second": steps_per_second, **TRAINING},
        "scores": scores,
    }
    if status != "finished":
        results = dict.fromkeys(results) | {"scores": []}
    return edited(document | results, changes)


def edited(document: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """A copy with other values at dotted keys (... deletes one); a number is the index of a list."""
    found = copy.deepcopy(document)
    for key, value in edits.items():
        *path, last = key.split(".")
        place: Any = found
        for name in path:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        place[last] = value
        if value is ...:
            del place[last]
    return found


def fake_record(*args: Any, **kwargs: Any) -> Record:
    return Record.model_validate_json(json.dumps(fake_document(*args, **kwargs)), strict=True)


def write_run(path: Path, record: Record, source: str, reference: str, hypothesis: str) -> None:
    """A record with metrics of two steps and seven copies of a translation beside it."""
    write_record(path, record)
    rows = [{"step": step, "train/loss": 9 - step / 100, "validation/loss": 8 - step / 100} for step in (100, 200)]
    rows.append({"step": 200, "validation/bleu": 20.0})
    run_file(path, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind, text in (("sources", source), ("references", reference), ("hypotheses", hypothesis)):
        run_file(path, f"test.{kind}.txt").write_text(f"{text}\n" * 7)


def fake_interval(low: float, high: float) -> dict[str, Any]:
    how = {"level": 0.95, "kind": "sentences", "samples": 1000, "seed": 12345, "method": "a bootstrap"}
    return {"low": low, "high": high, **how}


def fake_by_length(*scores: float, intervals: bool = True, **changes: Any) -> dict[str, Any]:
    """One score per bucket: 1 to 10 (50 sentences), 11 to 22 (40), 23 to 30 (7), over 30 (20); trained up to 22."""

    def scored(metric: str, score: float) -> dict[str, Any]:
        return {
            "metric": metric, "score": score, "interval": fake_interval(score - 1, score + 2) if intervals else None
        }  # fmt: skip

    def bucket(shortest: int, longest: int | None, count: int, bleu: float) -> dict[str, Any]:
        return {
            "shortest": shortest, "longest": longest, "beyond_training": shortest > 22, "num_sentences": count,
            "scores": [scored("sacrebleu", bleu), scored("chrf", bleu + 20.0)],
        }  # fmt: skip

    bounds = [(1, 10, 50), (11, 22, 40), (23, 30, 7), (31, None, 20)]
    fields = {
        "unit": "pieces of the source, EOS included", "splits": ["test", "long"],
        "test_sets": ["test_2016_flickr", "test_2016_flickr, joined"], "longest_training_source": 22,
        "signatures": {"sacrebleu": SIGNATURE, "chrf": "nc:6"}, "checkpoint": "last", **DECODING,
        "buckets": [bucket(*ends, score) for ends, score in zip(bounds, scores, strict=False)],
    }  # fmt: skip
    return fields | changes

"""Fake run records; all figures are made up."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from rpr.config.train import TrainConfig
from rpr.records.record import Record, write_record

_PARTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("fake_record.yaml").read_text(encoding="utf-8"))
CONFIG: dict[str, Any] = _PARTS["document"]["config"]


def fake_score(split: str, score: float, metric: str = "sacrebleu", **changes: Any) -> dict[str, Any]:
    of_split = {"split": split, "test_set": _PARTS["test_sets"].get(split, split), "metric": metric, "score": score}
    return of_split | _PARTS["score"] | _PARTS["decoding"] | changes


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
    """`position`: one of fake_record.yaml, or another choice of conf/position/; `settings`: of the configuration, and
    `changes` of the whole, at dotted keys.
    """
    config = copy.deepcopy(CONFIG)
    config["seed"] = seed
    if position in _PARTS["positions"]:
        config["position"] |= {"name": position, "clip_distance": k, **_PARTS["positions"][position]}
    else:
        from tests.shapes import scheme  # which imports torch

        config["position"] = scheme(position).model_dump(mode="json")
    if synthetic:
        config["data"] |= {"name": "synthetic", "synthetic": {"seed": 1}}
    config = edited(config, settings or {})
    if not isinstance(scores, list):
        scores = [fake_score(split, score) for split, score in ({"test": 30.0} if scores is None else scores).items()]
    data_name = config["data"]["name"]
    document = copy.deepcopy(_PARTS["document"]) | {
        "name": f"{data_name}-{config['model']['name']}-{position}-k{k}-s{seed}",
        "run_id": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8],
        "status": status,
        "error": {"failed": "RuntimeError: rank 1 died", "interrupted": "SIGTERM"}.get(status),
        "command": f"rpr-cli train position={position} position.clip_distance={k} seed={seed}",
        "config": config,
        "hardware": config["hardware"]["name"],
        "seed": seed,
    }
    document["data"] |= {"name": data_name, "synthetic": synthetic}
    results = copy.deepcopy(_PARTS["results"]) | {"steps": config["optim"]["max_steps"], "scores": scores}
    results["training"]["steps_per_second"] = steps_per_second
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


def make_run(config: TrainConfig, **changed: Any) -> Path:
    """Write the record of a run that has only begun; its folder."""
    run_dir = Path(config.runs_dir) / config.run_dir_name
    given = {"status": "running", "data": None, "name": config.label, "run_id": config.run_id, **changed}
    write_record(run_dir / "record.json", fake_record(config=config.model_dump(mode="json"), **given))
    return run_dir


def write_run(path: Path, record: Record, source: str, reference: str, hypothesis: str) -> None:
    """A record with metrics of two steps and seven copies of a translation beside it."""
    write_record(path, record)
    rows = [{"step": step, "train/loss": 9 - step / 100, "validation/loss": 8 - step / 100} for step in (100, 200)]
    rows.append({"step": 200, "validation/bleu": 20.0})
    path.with_name("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind, text in (("sources", source), ("references", reference), ("hypotheses", hypothesis)):
        path.with_name(f"test.{kind}.txt").write_text(f"{text}\n" * 7)


def fake_interval(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high, **_PARTS["interval"]}


def fake_by_length(*scores: float, **changes: Any) -> dict[str, Any]:
    """One score per bucket: 1 to 10 (50 sentences), 11 to 22 (40), 23 to 30 (7), over 30 (20); trained up to 22."""

    def scored(metric: str, score: float) -> dict[str, Any]:
        return {"metric": metric, "score": score, "interval": fake_interval(score - 1, score + 2)}

    fields = copy.deepcopy(_PARTS["by_length"]) | _PARTS["decoding"]
    fields["buckets"] = [
        {**bucket, "scores": [scored("sacrebleu", bleu), scored("chrf", bleu + 20.0)]}
        for bucket, bleu in zip(fields["buckets"], scores, strict=False)
    ]
    return fields | changes

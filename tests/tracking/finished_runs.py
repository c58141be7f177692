"""Runs that are done, made without training: their folder, and how they end in W&B."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rpr.config.train import TrainConfig
from rpr.records.record import Record, write_record
from rpr.records.scores import SOURCE_UNIT, ByLength, Interval, LengthBucket, LengthScore, Score
from rpr.tracking import wandb_logger

STEPS = 50
SCORES = {("test", "sacrebleu"): 25.5, ("test", "chrf"): 50.0, ("long", "sacrebleu"): 12.25, ("long", "chrf"): 40.0}


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, level=0.95, kind="sentences", samples=1000, seed=1, method="bootstrap")


def score(split: str, metric: str, value: float) -> Score:
    return Score(
        split=split, test_set=f"synthetic {split}", metric=metric, score=value, signature=f"signature of {metric}",
        num_sentences=45, checkpoint="step 50", beam_size=4, length_penalty=0.6,
        interval=interval(value - 1, value + 2) if split == "test" else None,
    )  # fmt: skip


def bucket(shortest: int, longest: int | None, *values: float) -> LengthBucket:
    scores = [
        LengthScore(metric=metric, score=value, interval=None)
        for metric, value in zip(("sacrebleu", "chrf"), values, strict=True)
    ]
    return LengthBucket(
        shortest=shortest, longest=longest, beyond_training=longest is None, num_sentences=9, scores=tuple(scores)
    )


BY_LENGTH = ByLength(
    unit=SOURCE_UNIT, splits=("test", "long"), test_sets=("synthetic test", "synthetic long"),
    longest_training_source=20,
    signatures={}, checkpoint="step 50", beam_size=4, length_penalty=0.6, precision=None,
    buckets=(bucket(1, 10, 30.0, 60.0), bucket(11, 20, 20.0, 50.0), bucket(21, None, 10.0, 40.0)),
)  # fmt: skip


def finished(config: TrainConfig, run_dir: Path, **changes: Any) -> Record:
    """A finished run's folder: its record, metrics and translations, which hold what could break a table."""
    run_dir.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "name": config.label, "run_id": config.run_id, "status": "finished", "error": None, "command": "rpr-cli train",
        "config": config.model_dump(mode="json"), "git": {"commit": None, "dirty": None}, "versions": {},
        "device": "cpu", "hardware": "cpu", "seed": 1, "started": "2024-01-01T00:00:00", "finished": None,
        "steps": STEPS, "parameters": 1, "data": None, "training": None, "wandb": None, "by_length": BY_LENGTH,
        "scores": tuple(score(*key, value) for key, value in SCORES.items()),
    }  # fmt: skip
    record = Record(**{**settings, **changes})
    write_record(run_dir / "record.json", record)
    rows = [{"step": step, "time": 1.0, "validation/loss": step / 10, "validation/bleu": step / 5} for step in (25, 50)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in ("sources", "references", "hypotheses"):
        lines = [f"{kind} {number} \u2028 | é" if number % 7 else "" for number in range(45)]
        (run_dir / f"test.{kind}.txt").write_text("".join(line + "\n" for line in lines))
    return record


def mirrored(config: TrainConfig, run_dir: Path, *, summary: dict[str, Any] | None = None, rows: bool = True) -> None:
    """The end of a run, as train does it."""
    logger = wandb_logger.start(config, run_dir, synthetic=True)
    assert logger is not None
    for line in (run_dir / "metrics.jsonl").read_text().splitlines() if rows else ():
        row = json.loads(line)
        logger.log_metrics({name: row[name] for name in ("validation/loss", "validation/bleu")}, step=row["step"])
    wandb_logger.log_results(logger, run_dir)
    wandb_logger.finish(logger, summary or {}, failed=False)

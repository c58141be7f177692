"""Finished runs without training: their folder, and mirroring them to W&B."""

import json
from pathlib import Path
from typing import Any

from rpr.config.train import TrainConfig
from rpr.records.record import Record, write_record
from rpr.tracking import wandb_logger
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score

STEPS = 50
SCORES = {("test", "sacrebleu"): 25.5, ("test", "chrf"): 50.0, ("long", "sacrebleu"): 12.25, ("long", "chrf"): 40.0}


def write_finished_run(config: TrainConfig, run_dir: Path, **changes: Any) -> Record:
    """Writes the record, metrics and translations of a finished run, with odd characters and empty lines."""
    run_dir.mkdir(parents=True, exist_ok=True)
    scores = [
        fake_score(split, value, metric, interval=fake_interval(value - 1, value + 2) if split == "test" else None)
        for (split, metric), value in SCORES.items()
    ]
    names = {"name": config.label, "run_id": config.run_id, "config": config.model_dump(mode="json")}
    lengths = fake_by_length(30.0, 20.0, 10.0, 5.0)
    record = fake_record(**{**names, "steps": STEPS, "scores": scores, "by_length": lengths, **changes})
    write_record(run_dir / "record.json", record)
    rows = [{"step": step, "time": 1.0, "validation/loss": step / 10, "validation/bleu": step / 5} for step in (25, 50)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in ("sources", "references", "hypotheses"):
        lines = [f"{kind} {number} \u2028 | é" if number % 7 else "" for number in range(45)]
        (run_dir / f"test.{kind}.txt").write_text("".join(line + "\n" for line in lines))
    return record


def mirror(config: TrainConfig, run_dir: Path, *, summary: dict[str, Any] | None = None, rows: bool = True) -> None:
    """Logs a run to W&B as train does at its end."""
    logger = wandb_logger.start(config, run_dir, synthetic=True)
    assert logger is not None
    for line in (run_dir / "metrics.jsonl").read_text().splitlines() if rows else ():
        row = json.loads(line)
        logger.log_metrics({name: row[name] for name in ("validation/loss", "validation/bleu")}, step=row["step"])
    logger.log_results()
    logger.finish(summary or {}, failed=False)

"""Finished runs without training; mirroring them to W&B; what W&B wrote to disk for them."""

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpr.config.train import TrainConfig
from rpr.records.record import Record, write_record
from rpr.tracking import wandb_logger
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score

STEPS = 50
SCORES = {("test", "sacrebleu"): 25.5, ("test", "chrf"): 50.0, ("long", "sacrebleu"): 12.25, ("long", "chrf"): 40.0}
BLOCK = 32 * 1024


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
    for line in (run_dir / "metrics.jsonl").read_text().splitlines() if rows else ():
        row = json.loads(line)
        logger.log_metrics({name: row[name] for name in ("validation/loss", "validation/bleu")}, step=row["step"])
    logger.log_results()
    logger.finish(summary or {}, failed=False)


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format in blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, begun = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        rest = BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<4xHB", data, at) if rest >= 7 else (0, 0)
        if kind == 0:  # the end of a block is empty
            at += rest
            continue
        begun += data[at + 7 : (at := at + 7 + length)]
        if at > len(data):  # still being written
            return
        if kind in (1, 4):  # whole, or the last part of it
            yield Record.FromString(begun)
            begun = b""


def values(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_back(run_dir: Path, pattern: str = "offline-run-*") -> dict[str, Any]:
    """The only run below the folder: identity, configuration, history, summary, exit code (None: never ended)."""
    (path,) = (path for path in run_dir.glob(f"wandb/{pattern}/run-*.wandb") if not path.parent.is_symlink())
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "exit": None, "axes": {}}
    found |= {"command": [], "commit": "", "stats": set(), "artifacts": {}}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                found["run"] = record.run
                found["config"] |= values(record.run.config.update)
            case "config":
                found["config"] |= values(record.config.update)
            case "history":
                found["history"].append(values(record.history.item))
            case "summary":
                found["summary"] |= values(record.summary.update)
            case "metric":
                found["axes"][record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "environment":
                parts = (record.environment.program, *record.environment.args)
                found["command"] += [part for part in parts if part]
                found["commit"] += record.environment.git.commit
                assert not record.environment.git.remote_url
            case "artifact":
                found["artifacts"][record.artifact.name] = {one.path for one in record.artifact.manifest.contents}
            case "stats":
                found["stats"] |= {item.key for item in record.stats.item}
            case "exit":
                found["exit"] = record.exit.exit_code
    return found


def tables_of(run_dir: Path) -> dict[str, dict[str, Any]]:
    """The tables of the run's history by name."""
    (part,) = run_dir.glob("wandb/offline-run-*")
    rows = read_back(run_dir)["history"]
    paths = {name.removesuffix(".path"): path for row in rows for name, path in row.items() if name.endswith(".path")}
    return {name: json.loads((part / "files" / path).read_text()) for name, path in paths.items()}


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines about W&B that rpr printed to stderr."""
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("rpr-cli: W&B: ") for line in lines if line.startswith("rpr-cli: W&B: ")]

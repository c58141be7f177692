"""Reads what W&B wrote to disk for a run: the .wandb file and the tables beside it."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a 7-byte header, then LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, position, part = path.read_bytes(), 7, b""
    assert data[:4] in (b":W&B", b"")
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if kind == 0:
            position += left
            continue
        body = data[position + 7 : position + 7 + length]
        position += 7 + length
        if len(body) < length:  # still being written
            return
        part = body if kind in (1, 2) else part + body
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record


def key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def read_back(run_dir: Path, pattern: str = "offline-run-*") -> dict[str, Any]:
    """The only run below the folder: identity, configuration, history, summary, exit code (None: never ended)."""
    (path,) = (path for path in run_dir.glob(f"wandb/{pattern}/run-*.wandb") if not path.parent.is_symlink())
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "exit": None, "axes": {}}
    found |= {"args": [], "program": "", "commit": "", "stats": set(), "artifacts": {}}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                found["run"] = record.run
                found["config"] |= {key(i): json.loads(i.value_json) for i in record.run.config.update}
            case "config":
                found["config"] |= {key(i): json.loads(i.value_json) for i in record.config.update}
            case "history":
                found["history"].append({key(i): json.loads(i.value_json) for i in record.history.item})
            case "summary":
                found["summary"] |= {key(i): json.loads(i.value_json) for i in record.summary.update}
            case "metric":
                name = record.metric.name or record.metric.glob_name
                found["axes"][name] = record.metric.step_metric
            case "environment":
                found["args"] += record.environment.args
                found["program"] += record.environment.program
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

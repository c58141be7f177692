"""What W&B wrote to disk for a run."""

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCK = 32 * 1024


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
    found |= {"commit": "", "stats": set()}
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
                found["commit"] += record.environment.git.commit
                assert not record.environment.git.remote_url
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

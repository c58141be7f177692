"""Checked here: what a W&B run holds, by reading the .wandb file on disk record by record, against the run's
configuration and record; what happens without a key, and when the job fails. Nothing is sent.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpr.commands import train
from rpr.config import TrainConfig
from rpr.data.cache import PreparedData
from rpr.errors import RunError
from rpr.results.record import read_record
from rpr.training import fit, runtime, tracking

RECIPE = (
    "optim.max_steps=25",  # a line of metrics.jsonl is written every 25 steps
    "optim.validate_every_n_steps=25",
    "optim.checkpoint_every_n_steps=10",
    "evaluation.validation_sentences=4",
    "evaluation.beam_size=2",
    "position.clip_distance=3",
    "logger=wandb",
    "logger.tags=[tried]",
    "sweep=table2",
)


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no cache and no settings of the person who runs the tests; process-wide settings left alone."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setattr(runtime, "set_up", lambda hardware: None)


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


def read_back(run_dir: Path) -> dict[str, Any]:
    """The one run below the folder: identity, configuration, history rows, summary, exit code (None: never ended)."""
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    # W&B's own process may write the end a moment after finish() returned (seen on a busy machine).
    patience = time.monotonic() + 20
    while time.monotonic() < patience and not any(r.WhichOneof("record_type") == "exit" for r in records(path)):
        time.sleep(0.2)
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "exit": None}
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
            case "exit":
                found["exit"] = record.exit.exit_code
    return found


def test_a_run_without_a_key_is_kept_offline_and_complete(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(*RECIPE)
    run_dir = train.run(config, command="rpr-cli train")
    told = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert told == [
        "rpr-cli: W&B: no key found (WANDB_API_KEY, or `wandb login`); the run is kept offline, "
        "`wandb sync` uploads it later"
    ]
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    assert record.wandb is not None and (record.wandb.mode, record.wandb.id) == ("offline", config.run_id)
    run = found["run"]
    assert (run.run_id, run.project, run.run_group, run.display_name) == (
        config.run_id, "rpr", "table2", "synthetic-tiny-relative-k3-s1",
    )  # fmt: skip
    assert set(run.tags) == {"synthetic", "tiny", "relative", "synthetic data", "tried"}
    expected = {
        "k": 3, "keys": True, "values": True, "absolute": "none", "tables": "per_head", "position_name": "relative",
        "model_name": "tiny", "data_name": "synthetic", "seed": 1, "sweep": "table2", "run_id": config.run_id,
    }  # fmt: skip
    assert {name: found["config"].get(name) for name in expected} == expected
    assert found["config"]["optim"]["max_steps"] == 25
    # The summary's BLEU is the record's.
    assert record.scores
    for score in record.scores:
        assert found["summary"][f"{score.split}/{score.metric}"] == score.score
    assert any("train/loss" in row for row in found["history"])
    assert any("validation/bleu" in row for row in found["history"])
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    mirrored = [row["validation/loss"] for row in found["history"] if "validation/loss" in row]
    assert mirrored == [row["validation/loss"] for row in rows if "validation/loss" in row]
    assert found["exit"] == 0


def test_a_failing_run_is_closed_too(
    tiny_config: Callable[..., TrainConfig], small_data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **settings: object) -> None:
        raise RunError("the loss became non-finite")

    monkeypatch.setattr(fit, "fit", fails)
    config = tiny_config(*RECIPE, "logger=wandb_offline", "position=none", "seed=2")
    with pytest.raises(RunError, match="the loss became non-finite"):
        train.run(config, command="rpr-cli train seed=2")
    run_dir = Path(config.runs_dir) / config.run_dir_name
    found, record = read_back(run_dir), read_record(run_dir / "record.json")
    assert found["exit"] == 1 and found["config"]["k"] is None and found["config"]["keys"] is False
    assert (record.status, record.error) == ("failed", "the loss became non-finite")
    # The process is free for the next run.
    import wandb

    assert wandb.run is None


def test_no_logger_leaves_nothing(tiny_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    assert tracking.start(tiny_config("logger=none"), tmp_path / "run", synthetic=True) is None
    assert not (tmp_path / "run").exists()
    tracking.finish(None, {}, failed=False)


@pytest.mark.parametrize("how", ["variable", "netrc", "other_host", "damaged"])
def test_where_a_key_is_looked_for(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not tracking._has_key()
    if how == "variable":
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    if how == "other_host":
        monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example:8080")
    host = "wandb.example" if how == "other_host" else "api.wandb.ai"
    if how != "variable":
        text = "machine" if how == "damaged" else f"machine {host} login user password {'x' * 40}\n"
        (tmp_path / "home" / ".netrc").write_text(text)
        (tmp_path / "home" / ".netrc").chmod(0o600)
    assert tracking._has_key() == (how != "damaged")

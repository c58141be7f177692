"""TensorBoard's events of a run against its own metrics.jsonl and record."""

import importlib.util
import json

import pytest

from rpr.commands import train
from rpr.errors import ConfigError
from rpr.records.record import read_record

RECIPE = (
    "logger=tensorboard", "optim.max_steps=25", "optim.validate_every_n_steps=25", "optim.checkpoint_every_n_steps=25",
    "evaluation.beam_size=1", "hardware.threads=1",
)  # fmt: skip


def test_is_refused_before_any_work_where_it_is_not_installed(tiny_config, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("rpr.config.train.find_spec", lambda name: None if name == "tensorboard" else find(name))
    with pytest.raises(ConfigError, match=r'pip install "rpr\[tensorboard\]"'):
        train.run(tiny_config(*RECIPE), command="rpr-cli train")
    assert not (tmp_path / "runs").exists()


def test_events_have_every_number_of_the_runs_own_files(tiny_config, small_data):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = train.run(tiny_config(*RECIPE), command="rpr-cli train")
    record = read_record(run_dir / "record.json")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    expected = {(name, row["step"]): row[name] for row in rows for name in row.keys() - {"step", "time"}}
    expected |= {(f"{score.split}/{score.metric}", record.steps): score.score for score in record.scores}
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    found = {(name, event.step): event.value for name in events.Tags()["scalars"] for event in events.Scalars(name)}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-6) and record.wandb is None

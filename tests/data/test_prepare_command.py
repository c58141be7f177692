"""The text and JSON of rpr-cli prepare."""

import json
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.config.commands import PrepareConfig
from rpr.data.cache import prepare
from rpr.validation import validate

SIZES = ("num_train=600", "num_validation=20", "num_test=30", "num_long=10")


@pytest.fixture
def overrides(tmp_path):
    synthetic = [f"data.synthetic.{size}" for size in SIZES]
    return [*synthetic, "data.vocabulary_size=200", f"data.cache_dir={tmp_path / 'cache'}"]


def config(overrides: list[str]) -> PrepareConfig:
    return validate(PrepareConfig, app.compose("prepare", overrides))


def test_text_output(overrides, cli):
    lines = cli("prepare", *overrides).out.splitlines()
    assert lines[0].startswith("/") and Path(lines[0]).is_dir()
    assert lines[1].startswith("synthetic (synthetic): vocabulary of 200 pieces, no pairs dropped, ")
    assert lines[2].split()[:2] == ["split", "pairs"]
    splits = {line.split()[0]: line.split()[1:] for line in lines[3:7]}
    assert [*splits] == ["train", "validation", "test", "long"] and splits["train"][0] == "600"
    assert all(len(figures) == 5 for figures in splits.values())
    assert lines[7].startswith("prepared in ") and "; peak memory " in lines[7] and len(lines) == 8
    assert cli("prepare", *overrides).out.splitlines()[7].startswith("already prepared: opened in 0.")


def test_json_output(overrides, cli):
    document = json.loads(cli("prepare", *overrides, "format=json").out)  # nothing else is printed
    data = prepare(config(overrides).data)
    assert document["key"] == data.meta.key and document["vocabulary_size"] == 200
    train = data.split("train")
    assert document["splits"]["train"] == {
        "pairs": 600,
        "source": {"mean_pieces": train.source_lengths.mean(), "longest": train.source_lengths.max()},
        "target": {"mean_pieces": train.target_lengths.mean(), "longest": train.target_lengths.max()},
    }
    files = [file.stat().st_size for file in data.directory.iterdir() if file.name != "meta.json"]
    assert document["bytes"] == sum(files)
    assert document["built"] and document["peak_bytes"] > 1e7

"""The text and JSON of rpr-cli prepare."""

import json
from pathlib import Path

from rpr.cli import app
from rpr.config.commands import PrepareConfig
from rpr.data.cache import prepare
from rpr.validation import validate

SIZES = ("num_train=600", "num_validation=20", "num_test=30", "num_long=10")


def test_text_and_json(tmp_path, cli):
    overrides = [*(f"data.synthetic.{size}" for size in SIZES), "data.vocabulary_size=200"]
    overrides += [f"data.cache_dir={tmp_path / 'cache'}"]
    document = json.loads(cli("prepare", *overrides, "format=json").out)  # nothing else is printed
    data = prepare(validate(PrepareConfig, app.compose("prepare", overrides)).data)
    assert (document["key"], document["vocabulary_size"], document["built"]) == (data.meta.key, 200, True)
    train = data.split("train")
    assert document["splits"]["train"] == {
        "pairs": 600,
        "source": {"mean_pieces": train.source_lengths.mean(), "longest": train.source_lengths.max()},
        "target": {"mean_pieces": train.target_lengths.mean(), "longest": train.target_lengths.max()},
    }
    sizes = [file.stat().st_size for file in data.directory.iterdir() if file.name != "meta.json"]
    assert document["bytes"] == sum(sizes)
    lines = cli("prepare", *overrides).out.splitlines()
    assert Path(lines[0]) == data.directory
    assert lines[1].startswith("synthetic (synthetic): vocabulary of 200 pieces, no pairs dropped, ")
    assert [line.split()[:2] for line in lines[2:4]] == [["split", "pairs"], ["train", "600"]]
    assert lines[7].startswith("already prepared: opened in 0.") and len(lines) == 8

"""Differences from the paper: none for its own configurations; every deciding setting, also an unknown one, counts."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rpr.compose.composition import compose
from rpr.config.train import TrainConfig
from rpr.records.position import shown_settings
from rpr.records.record import Record, flat
from rpr.report.grouping import run_groups
from rpr.report.protocol import SECTIONS, compared_settings, differences, not_compared
from rpr.validation import validate
from tests.fake_records import edited, fake_record


@cache
def composed(*overrides: str) -> dict[str, Any]:
    return validate(TrainConfig, compose("train", overrides)).model_dump(mode="json")


def recorded(*overrides: str, pairs: int = 4_500_000, **changes: Any) -> Record:
    """A finished record of the paper's run on all of WMT; `section__name=value` changes a setting."""
    config = edited(composed(*overrides), {key.replace("__", "."): value for key, value in changes.items()})
    edits = {"config": config, "data.train_pairs": pairs, "steps": config["optim"]["max_steps"]}
    record = fake_record(scores={"test": 27.0}, **edits)
    asked = config["optim"]["average_checkpoints"]
    return scored_with(record, f"average of {asked} (steps 288600 to 300000)" if asked > 1 else "step 100000")


def scored_with(record: Record, checkpoint: str) -> Record:
    scores = tuple(replace(score, checkpoint=checkpoint) for score in record.scores)
    assert scores
    return record.model_copy(update={"scores": scores})


EXACT = ("hardware.precision=32", "hardware.matmul_precision=highest")
BASE = ("model=base", *EXACT)
BIG_FR = ("model=big", "data=wmt14_en_fr", *EXACT)


def test_paper_configurations_have_no_differences():
    assert differences([recorded(*BASE)], "base", "en_de") == ()
    assert differences([recorded("model=big", *EXACT)], "big", "en_de") == ()
    assert differences([recorded(*BIG_FR, pairs=36_000_000)], "big", "en_fr") == ()


def test_other_direction_of_a_corpus_is_said():
    reverse = recorded(*BASE, data__source_language="de", data__target_language="en")
    (found,) = differences([reverse], "base", "en_de")
    assert found.kind == "data" and "name wmt14_en_de, de to en (wmt14_en_de)" in found.text
    assert [group.data for group in run_groups([recorded(*BASE), reverse])] == ["wmt14_en_de", "wmt14_en_de, de to en"]


def test_changed_recipe_is_one_difference():
    changed = {"model__norm": "pre", "optim__learning_rate_scale": 2.0, "optim__adam_beta2": 0.997}
    changed |= {"optim__label_smoothing": 0.0, "model__dropout": 0.3}
    (found,) = differences([recorded(*BIG_FR, pairs=36_000_000, **changed)], "big", "en_fr")
    assert found.kind == "recipe"
    words = "norm pre (post)", "learning_rate_scale 2 (1)", "adam_beta2 0.997 (0.98)", "label_smoothing 0 (0.1)"
    assert all(word in found.text for word in (*words, "dropout 0.3 (0.1)")), found.text


def test_every_deciding_setting_is_compared():
    record = recorded("model=big", *EXACT)
    settings = flat({name: record.config[name] for name in SECTIONS})
    shown = {f"position.{name}" for name in shown_settings(record)}
    keys = {key for key in settings if ".".join(key.split(".")[:2]) not in not_compared()} - shown
    keys |= {"optim.max_tokens_per_microbatch", "optim.microbatches_per_step"}
    keys -= {"optim.average_checkpoints"}  # what was averaged is compared
    assert len(keys) > 30
    for key in sorted(keys):
        value = record.setting(key)
        other = "another" if value is None or isinstance(value, str) else value * 2 + 1
        changed = record.model_copy(update={"config": edited(dict(record.config), {key: other})})
        if key == "hardware.matmul_precision":  # what was used counts, not `auto`
            training = fake_record().training.model_copy(update={"matmul_precision": "medium"})
            changed = changed.model_copy(update={"training": training})
        assert differences([changed], "big", "en_de"), f"{key} = {other} is not reported"


def test_unknown_setting_is_a_difference_if_enabled():
    assert differences([recorded(*BASE, optim__lookahead=False)], "base", "en_de") == ()
    (found,) = differences([recorded(*BASE, optim__lookahead=5)], "base", "en_de")
    assert "lookahead 5 (not in its recipe)" in found.text
    (found,) = differences([recorded(*BASE, position__rotary=True)], "base", "en_de")
    assert (found.kind, "rotary True" in found.text) == ("positions", True)


def test_smaller_model_steps_and_data_and_shared_tables():
    found = differences([recorded("model=tiny", "data=synthetic", pairs=30_000)], "base", "en_de")
    by_kind = {one.kind: one for one in found}
    assert by_kind["model"].smaller and "num_layers 2 (6)" in by_kind["model"].text
    assert by_kind["steps"].text == "steps (the paper's base in brackets): max_steps 3,200 (100,000)"
    assert by_kind["steps"].smaller and by_kind["synthetic data"].smaller
    shared = recorded(*BASE, position__tables="shared_by_heads")
    assert [one.kind for one in differences([shared], "base", "en_de")] == ["tables"]
    [part] = differences([recorded(*BASE, pairs=450_000)], "base", "en_de")
    assert (part.kind, part.smaller) == ("data", True)


def test_paths_and_sampling_settings_are_not_compared():
    more = ("data.cache_dir=/c", "evaluation.bootstrap_samples=0", "optim.validate_every_n_steps=7")
    record = recorded(*BASE, *more, "hardware.threads=3")
    assert differences([record], "base", "en_de") == ()
    assert "data.cache_dir" not in compared_settings(record)


def test_early_stop_is_a_difference():
    (found,) = differences([recorded(*BASE).model_copy(update={"steps": 50_000})], "base", "en_de")
    assert found.kind == "steps"


@pytest.mark.parametrize("size, asked, checkpoint, text", [
    ("big", 20, "average of 20 (steps 288600 to 300000)", None),
    ("big", 20, "average of 20 (steps 289360 to 300000)", None),  # 560 steps: ten minutes with relative positions
    ("big", 20, "average of the last 20 (steps 288600, 289200, 300000)", None),  # as records once had it
    ("big", 20, "average of 5 (steps 60000 to 300000, 80% of the training)",
     "average_checkpoints 5 (20), averaged_share 0.8 (0.04)"),
    ("big", 20, "average of 20 (steps 30000 to 300000)", "averaged_share 0.9 (0.04)"),
    ("big", 20, "step 300000", "average_checkpoints 1 (20)"),
    ("base", 1, "step 100000", None),
    ("base", 5, "average of 2 (steps 50000 to 100000, 50% of the training)",
     "average_checkpoints 2 (1), averaged_share 0.5 (not in its recipe)"),
    ("base", 5, "average of 5 (steps 96000 to 100000)",
     "average_checkpoints 5 (1), averaged_share 0.04 (not in its recipe)"),
])  # fmt: skip
def test_what_was_averaged_is_compared(size, asked, checkpoint, text):
    for intervals in ({}, {"optim__checkpoint_every_n_steps": None, "optim__checkpoint_every_n_minutes": 10.0}):
        run = recorded(f"model={size}", *EXACT, optim__average_checkpoints=asked, **intervals)
        found = differences([scored_with(run, checkpoint)], size, "en_de")
        assert [one.text.partition(": ")[2] for one in found] == ([] if text is None else [text])

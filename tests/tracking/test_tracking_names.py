"""The flat keys by which W&B groups runs."""

from __future__ import annotations

import json

import pytest

from rpr.tracking import naming


@pytest.mark.parametrize("overrides, variant", [
    (["position=relative_keys", "position.clip_distance=0"], "keys only, k = 0"),
    (["position.tables=shared_by_heads"], "relative, k = 16, shared by heads"),
    (["position.absolute=learned", "position.name=mine"], "mine (learned + relative, k = 16)"),
])  # fmt: skip
def test_variant_names(overrides, variant, tiny_config):
    assert naming.variant(tiny_config(*overrides)) == variant


def test_flat_keys_do_not_hide_sections(tiny_config):
    config = tiny_config()
    flat, sections = naming.flat(config), naming.sections(config, {})
    other = naming.flat(tiny_config("seed=2"))
    assert {name for name in flat if flat[name] != other[name]} == {"seed", "run_id"}
    absolute = naming.flat(tiny_config("position=absolute"))
    assert absolute["k"] is None and absolute["tables"] is None
    assert not flat.keys() & sections.keys()
    whole = json.loads(config.model_dump_json())
    assert {**sections, "seed": flat["seed"], "sweep": flat["sweep"]} == whole
    assert naming.sections(config, {**flat, **sections}) == sections, "a resumed run keeps its sections"

"""Frozen: what each generator of pairs yields, by its version; the corpora of committed records by their keys."""

import hashlib
import json
from pathlib import Path
from typing import Any

from rpr.config.train import config_from_record
from rpr.data.cache import cache_key
from rpr.data.generated import TASKS
from rpr.data.generated.synthetic import SyntheticConfig
from rpr.records.record import find_records
from tests.golden.test_figures import SWEEPS

GENERATORS = Path(__file__).with_name("generators.json")
FROZEN_PAIRS: list[dict[str, Any]] = json.loads(GENERATORS.read_text())


def generated(settings: dict[str, Any]) -> dict[str, str]:
    """The version of a generator, and the sha256 of its pairs with these settings."""
    of_kind = dict(settings)
    kind = of_kind.pop("kind")
    generator = SyntheticConfig(**of_kind) if kind == "synthetic" else TASKS[kind].model_validate(settings)
    digest = hashlib.sha256(json.dumps(generator.pairs()).encode()).hexdigest()
    return {"version": generator.VERSION, "digest": digest}


def test_generators_yield_what_their_versions_did():
    """In a process with a hash seed of its own; with another seed they yield other pairs."""
    for frozen in FROZEN_PAIRS:
        settings, now = frozen["settings"], generated(frozen["settings"])
        assert now["version"] == frozen["version"], f"its entry in {GENERATORS.name}: {settings} {json.dumps(now)}"
        assert now["digest"] == frozen["digest"], f"other pairs under one version: raise it, or restore {settings}"
        assert generated(settings | {"seed": settings["seed"] + 1})["digest"] != frozen["digest"]


def test_keys_of_committed_records():
    """Of tasks: the default corpus was another before its toy grammar."""
    of_generated = [(record.data, config_from_record(record.config).data) for _, record in find_records(SWEEPS).records]
    keys = [(data.key, cache_key(settings)) for data, settings in of_generated if data and settings.task]
    assert len(keys) > 200 and all(recorded == today for recorded, today in keys)

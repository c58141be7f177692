"""Generated corpora, vocabulary and order of pairs are the same in a process with another hash seed and number of
threads, and differ with the seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from rpr.data import synthetic, vocabulary
from rpr.data.plan import Plan
from rpr.tasks import TASKS

SIZES = {"num_train": 200, "num_validation": 50, "num_test": 50, "num_long": 20}
LENGTHS = {"max_train_length": 8, "max_long_length": 12, "padded_digits": None}
SCAN = {"kind": "scan", "max_train_length": 22, "max_long_length": 48, "padded_digits": None}


def digests(seed: int, model: Path) -> dict[str, str]:
    """sha256 of everything that depends on the seed, and of a vocabulary."""
    generated = {"synthetic": synthetic.generate(seed=seed, **SIZES)}
    settings = [{"kind": kind, **LENGTHS, **SIZES} for kind in ("reverse", "addition")]
    settings.append(SCAN | SIZES | {"num_train": None, "num_long": None})
    for one in settings:
        generated[str(one["kind"])] = TASKS[one["kind"]].model_validate(one | {"seed": seed}).pairs()
    text = [side for pair in synthetic.generate(seed=seed, **SIZES)["train"] for side in (pair.source, pair.target)]
    generated["vocabulary"] = vocabulary.Vocabulary.learn(vocabulary.count_words(text), 300, model).digest
    source, target = np.random.default_rng(0).integers(1, 60, (2, 3000)).astype(np.int32)
    generated["order of an epoch"] = [order.tolist() for order in Plan(source, target, 512).epoch(seed, 7)[1:]]
    return {name: hashlib.sha256(repr(what).encode()).hexdigest() for name, what in generated.items()}


def test_another_process_generates_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "num_workers", lambda: 3)
    here, other = (digests(seed, tmp_path / f"{seed}.model") for seed in (5, 6))
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, "5", str(tmp_path / "there.model")]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert json.loads(there) == here
    assert {*here.values()}.isdisjoint(other.values())
    assert len(here) == 6 and not any(name.endswith(".tmp") for name in os.listdir(tmp_path))


if __name__ == "__main__":
    vocabulary.num_workers = lambda: 1
    print(json.dumps(digests(int(sys.argv[1]), Path(sys.argv[2]))))

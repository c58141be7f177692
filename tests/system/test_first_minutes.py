"""sweeps/measured/first_minutes.sh, rehearsed on a CPU with tiny sizes: every document is complete, with its rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "sweeps" / "measured" / "first_minutes.sh"
VARIANTS = 6
SIZES = {
    "HARDWARE": "cpu", "PATIENCE": "5", "MODEL": "tiny", "TEST_OPTIONS": "--device=cpu", "WORKERS": "1", "ROUNDS": "2",
    "TESTS": "tests/gpu/test_triton.py", "COMPILED": "absolute", "VOCABULARY": "50", "SENTENCES": "2", "LENGTH": "6",
    "WIDTHS": "64x1 128x1", "CONTEXTS": "8,16", "CONTEXT_POSITIONS": "16", "LAYERS": "8", "LAYER_POSITIONS": "16",
    "PY": sys.executable, "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_calls_write_tests_documents_and_shares(tmp_path):
    environment = {**os.environ, **SIZES, "OUT": str(tmp_path)}
    for call in ("1", "2"):
        done = subprocess.run([SCRIPT, call], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.count("exit code 0,") == done.stdout.count("exit code") > 0, done.stdout
    documents = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    rows = {name: document[name.partition("_")[0]] for name, document in documents.items()}
    contexts = {f"context_{size}{end}": 2 * n for size in ("64x1", "128x1") for end, n in (("", 6), ("_compiled", 1))}
    expected = contexts | {"step": VARIANTS, "step_compiled": 1, "attention": VARIANTS}
    assert {name: len(of_document) for name, of_document in rows.items()} == expected
    assert all(len(row["round_seconds"]) == 2 for of_document in rows.values() for row in of_document)
    assert len((tmp_path / "mfu.tsv").read_text().splitlines()) == 1 + 6 * VARIANTS + 5
    assert " skipped in " in (tmp_path / "tests.log").read_text()  # these measure a CUDA device

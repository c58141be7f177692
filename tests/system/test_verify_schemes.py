"""`verify` passes for every position scheme of a decoder-only run, on text and on a task. The weights are random and
large, so that each scheme changes every probability.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.compose.composition import choices_of, compose_train
from rpr.data.cache import prepare
from tests.analysis.test_trained_run import random_run

SMALL = (
    "model.architecture=decoder_only", "model.num_layers=4", "model.d_model=32", "model.num_heads=2", "model.d_ff=64",
    "logger=none", "evaluation.bootstrap_samples=0",
)  # fmt: skip
TASK = (
    "data=copy", "data.task.max_train_length=5", "data.task.max_long_length=8", "data.task.num_train=100",
    "data.task.num_validation=20", "data.task.num_test=20", "data.task.num_long=20",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "task"])
@pytest.mark.parametrize("choice", choices_of("position"))
def test_every_scheme_of_a_decoder_only_run_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], choice: str, kind: str
) -> None:
    (tmp_path / "texts").mkdir()
    for index in range(40):
        (tmp_path / "texts" / f"{index}.txt").write_text(f"{index} times two is {2 * index}\n")
    data = TASK if kind == "task" else ("data=text", f"data.path={tmp_path / 'texts'}", "data.context_length=16")
    settings = [*SMALL, *data, f"position={choice}", f"data.cache_dir={tmp_path / 'cache'}"]
    run = random_run(tmp_path / "run", settings, prepare(compose_train(settings).data).vocabulary)
    assert app.main(["verify", str(run.folder), "sentences=6", "hardware.threads=1", "format=json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert len(checks) == (7 if kind == "text" else 10)
    shift = checks.pop("shift")
    assert shift["outcome"] == ("passed" if shift["reason"] is None else "not applicable")
    assert checks.pop("export, ctranslate2")["outcome"] in ("passed", "not applicable")
    assert {check["outcome"] for check in checks.values()} <= {"passed", "reported"}, checks

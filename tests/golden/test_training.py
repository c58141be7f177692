"""Frozen: the losses of twenty training steps with each position scheme of the paper, and greedy translations.

In float64 with one thread: bit-identical on the processor of the frozen values, otherwise equal to 1e-7, since rounding
grows from step to step (4e-9 seen). After an intended change, freeze them again: python -m tests.golden.test_training
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr.commands import train
from rpr.compose.composition import compose_train
from rpr.data.cache import prepare
from rpr.decode.engine import Engine, search_of, translate_sources
from rpr.runs import loading, runtime
from tests.conftest import TINY
from tests.lazy import callbacks

FROZEN = Path(__file__).with_name("training.json")
POSITIONS = ("absolute", "absolute_and_relative", "learned", "none", "relative", "relative_keys", "relative_values")
CASES = {
    **{name: [f"position={name}"] for name in POSITIONS},
    "relative, k = 0, shared": ["position.clip_distance=0", "position.tables=shared_by_heads"],
    "relative, pre-norm": ["model.norm=pre", "position.tables=shared_by_heads_and_layers", "model.num_layers=2"],
}
STEPS = 20
SLOW = {*CASES} - {"relative", "relative_values", "relative, pre-norm"}  # whose parts these have


def processor() -> str:
    return f"{runtime.processor_name()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def trained(overrides: Sequence[str], folder: Path, cache: Path) -> dict[str, Any]:
    """The losses as hexadecimal numbers, and translations of the validation split."""
    words = [*TINY, *overrides, f"runs_dir={folder}", f"data.cache_dir={cache}", f"optim.max_steps={STEPS}"]
    words += ["optim.warmup_steps=10", "optim.learning_rate_scale=1.5", "optim.checkpoint_every_n_steps=20"]
    words += ["optim.average_checkpoints=1", "hardware.precision=64", "hardware.threads=1", "evaluation.test_splits=[]"]
    config = compose_train(words)
    run_dir = train.run(config, command="frozen")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    data = prepare(config.data)
    model, _ = loading.model_of(config, run_dir, None, len(data.vocabulary))
    search = search_of(config.evaluation, greedy=True)
    engine = Engine(model, matmul_precision="highest")
    sources = [data.split("validation").row("source", index).tolist() for index in range(8)]
    return {
        "losses": [float(line["train/loss"]).hex() for line in lines if "train/loss" in line],
        "translations": translate_sources(engine, sources, data.vocabulary, search).texts,
    }


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_losses_and_greedy_translations(case, tmp_path, cache_dir, monkeypatch):
    monkeypatch.setattr(callbacks, "LOG_EVERY", 1)
    frozen = json.loads(FROZEN.read_text())
    found, expected = trained(CASES[case], tmp_path, cache_dir), frozen["cases"][case]
    assert len(found["losses"]) == STEPS
    losses = [[float.fromhex(loss) for loss in one["losses"]] for one in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-7)
    if processor() == frozen["processor"]:
        assert losses[0] == losses[1]
    assert found["translations"] == expected["translations"]


def freeze() -> None:
    torch.set_float32_matmul_precision("highest")
    callbacks.LOG_EVERY = 1
    with tempfile.TemporaryDirectory() as folder:
        runs, cache = Path(folder, "runs"), Path(folder, "cache")
        cases = {case: trained(overrides, runs, cache) for case, overrides in CASES.items()}
    FROZEN.write_text(json.dumps({"processor": processor(), "cases": cases}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(freeze())

"""Checked here: a position scheme costs one Python file and one YAML file. In a copy of rpr/ and conf/ with two files
more and no other changed, a scheme trains, resumes to the same bits after SIGKILL, decodes from its cache, is verified,
benched, reported under its own name and colour, and is refused by the export to CTranslate2 with a reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY

SCHEME = '''
"""A learned temperature for each head, and a penalty for keys beyond a window."""

from collections.abc import Mapping
from typing import Literal

from pydantic import PositiveInt

from rpr.model.positions.scheme import Scheme, Site, Tables, register


@register
class Window(Scheme):
    TITLE = "window"
    COLOUR = "#12ab34"

    scheme: Literal["window"]
    size: PositiveInt

    def details(self):
        return [f"size {self.size}"]

    def parameters(self, site: Site):
        import torch

        return {"temperature": torch.ones(site.num_heads, 1, 1), "penalty": torch.zeros(site.num_heads, 1)}

    def distance_tables(self, parameters: Mapping, site: Site, max_distance: int, device):
        import torch

        beyond = torch.arange(-max_distance, max_distance + 1, device=device)
        beyond = torch.where(beyond > 0, 2 * beyond, -beyond).sub(self.size).clamp(min=0)
        return Tables(bias=-parameters["penalty"].exp() * beyond)

    def prepare(self, q, k, positions, parameters: Mapping, site: Site):
        return q * parameters["temperature"], k
'''
CHOICE = """# A window.
defaults: [_base, _self_]
name: window
scheme: window
size: 3
"""
STEPS, KILLED_AT = 24, 8
REST = """
import contextlib, io, sys
from rpr.cli import app
for command in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.main(command)
    print("==", command[0], code)
    print(out.getvalue() + err.getvalue())
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the new scheme."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("rpr", "conf", "sweeps"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(data_dir("conf").parent / name, tree / name, ignore=ignored)
    (tree / "rpr" / "model" / "positions" / "window.py").write_text(SCHEME)
    (tree / "conf" / "position" / "window.yaml").write_text(CHOICE)
    return tree


def start(tree: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=tree, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def test_a_scheme_is_one_python_file_and_one_yaml_file(tree: Path, cache_dir: Path) -> None:
    train = [
        "train", "position=window", "position.size=2", *TINY, f"data.cache_dir={cache_dir}", "hardware.threads=1",
        f"optim.max_steps={STEPS}", "optim.checkpoint_every_n_steps=4", "optim.validate_every_n_steps=12",
        "optim.average_checkpoints=1",
    ]  # fmt: skip
    whole = start(tree, "-m", "rpr.cli.app", *train, "runs_dir=whole")
    killed = start(tree, "-m", "rpr.cli.app", *train, "runs_dir=killed")
    first = f"checkpoints/*{KILLED_AT}*"
    while not list(tree.glob(f"killed/*/{first}")):
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    ended(whole)
    ended(start(tree, "-m", "rpr.cli.app", *train, "runs_dir=killed"))

    one, other = (next(tree.glob(f"{root}/*/record.json")).parent for root in ("whole", "killed"))
    assert read_record(one / "record.json").scores == read_record(other / "record.json").scores
    final = sorted((one / "checkpoints").glob(f"*{STEPS}*"))[-1]
    weights, again = (
        torch.load(folder / "checkpoints" / final.name, weights_only=True)["state_dict"] for folder in (one, other)
    )
    assert weights.keys() == again.keys()
    assert any(name.endswith("tables.temperature") for name in weights)
    assert all(torch.equal(weights[name], again[name]) for name in weights)

    commands = [
        ["verify", f"run={one}", "hardware.threads=1", "sentences=4"],
        ["export", f"run={one}", "format=ctranslate2"],
        ["bench", "variants=[absolute,window]", "parts=[step,layer]", "rounds=1", "steps_per_round=1", "sentences=2",
         "length=5", "layer.lengths=[6]", "layer.rounds=1", "layer.positions=12", "model.d_model=32"],
        ["report", "runs_dir=whole", "output_dir=out"],
    ]  # fmt: skip
    answers = dict(
        part.partition("\n")[::2] for part in ended(start(tree, "-c", REST.format(commands=commands))).split("== ")[1:]
    )
    by_command = {head.split()[0]: (head.split()[1], text) for head, text in answers.items()}
    code, verified = by_command["verify"]
    assert code == "0" and "window changes queries and keys" in " ".join(verified.split())
    code, exported = by_command["export"]
    assert code == "2" and "position: window changes queries and keys in a way that CTranslate2 has no" in exported
    code, benched = by_command["bench"]
    assert code == "0" and "window (per_position)" in benched
    code, _ = by_command["report"]
    (written,) = (tree / "out").rglob("report.md")
    assert code == "0" and "window, size 2" in written.read_text()
    assert any("#12ab34" in path.read_text() for path in written.parent.glob("*.svg"))

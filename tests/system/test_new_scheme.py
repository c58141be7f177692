"""A position scheme added by one Python file and one YAML file trains, resumes to the same weights, is verified,
benched and reported with its own name and colour, and is refused by the export to CTranslate2. A task, likewise,
is generated, trained on, scored by its own lengths and reported.
"""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from rpr.paths import data_dir
from rpr.records.record import read_record
from rpr.runs.checkpoints import checkpoints, model_weights
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
TASK = """
from typing import Literal

from rpr.tasks.task import Task, register


@register
class Sort(Task):
    UNIT = "digits to sort"

    kind: Literal["sort"]
    largest_first: bool

    def num_inputs(self, length):
        return 10**length

    def example(self, length, draw):
        row = [str(int(draw() * 10)) for _ in range(length)]
        return " ".join(row), " ".join(sorted(row, reverse=self.largest_first))
"""
TASK_CHOICE = """# Sorts digits.
defaults: [_task, _self_]
name: sort
task:
  kind: sort
  seed: 1
  max_train_length: 5
  max_long_length: 8
  padded_digits: null
  largest_first: false
  num_train: 200
  num_validation: 12
  num_test: 12
  num_long: 12
validation_name: sort validation
test_name: sort test
vocabulary_size: 14
"""
COMMANDS = """
import contextlib, io, pathlib
from rpr.cli import app
for command in {commands!r}:
    if command[1] == "run=RUN":
        command[1] = f"run={{next(pathlib.Path('uninterrupted').glob('*/record.json')).parent}}"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.main(command)
    print("==", command[0], code)
    print(out.getvalue() + err.getvalue())
"""


def copied_tree(tree):
    for name in ("rpr", "conf", "sweeps"):
        shutil.copytree(data_dir("conf").parent / name, tree / name, ignore=shutil.ignore_patterns("results"))
    return tree


def answers_of(folder, commands, code=None):
    """(command and exit code, output) of commands that one process runs in a folder, with the code of that tree or of
    another; RUN is the first run of `uninterrupted`.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=commands)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(code or folder), "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    answers = [answer.partition("\n") for answer in done.stdout.split("== ")[1:]]
    return [head for head, _, _ in answers], [" ".join(text.split()) for _, _, text in answers]


@pytest.mark.slow
def test_task_needs_one_python_and_one_yaml_file(tmp_path):
    tree = copied_tree(tmp_path / "tree")
    (tree / "rpr" / "tasks" / "sort.py").write_text(TASK)
    (tree / "conf" / "data" / "sort.yaml").write_text(TASK_CHOICE)
    settings = [override for override in TINY if not override.startswith("data.")]
    settings += ["data=sort", "data.task.largest_first=true", "hardware.threads=1", "optim.max_steps=2"]
    settings += ["optim.average_checkpoints=1", "evaluation.length_buckets=[5]", "evaluation.test_splits=[test,long]"]
    heads, texts = answers_of(tree, [
        ["train", *settings], ["report", "runs_dir=runs", "output_dir=out"],
        ["train", "data=sort", "data.task.kind=copy"], ["train", "data=copy", "data.task.kind=sorting"],
        ["train", "data=sort", "data.task.largest_frist=true"], ["train", "data=sort", "data.max_length=5"],
    ])  # fmt: skip
    assert heads == ["train 0", "report 0", *["train 2"] * 4], texts
    record = read_record(next(tree.glob("runs/*/record.json")))
    assert record.task == "sort" and record.by_length.unit == "digits to sort"
    assert [bucket.beyond_training for bucket in record.by_length.buckets] == [False, True]
    (report,) = (tree / "out").rglob("report.md")
    assert "Exact match on sort, percent" in report.read_text()
    assert "data.task.largest_first: no such setting" in texts[2]
    assert "data.task.kind: invalid value 'sorting': no such task; choose one of addition, copy, dupl" in texts[3]
    assert "largest_frist" in texts[4] and "did you mean largest_first" in texts[4]
    assert "data.max_length: 5 would drop the longest training pairs" in texts[5]


@pytest.mark.slow
def test_position_scheme_needs_one_python_and_one_yaml_file(tmp_path, cache_dir, small_data):
    tree = copied_tree(tmp_path / "tree")
    (tree / "rpr" / "model" / "positions" / "window.py").write_text(SCHEME)
    (tree / "conf" / "position" / "window.yaml").write_text(CHOICE)
    train = [
        "train", "position=window", "position.size=2", *TINY, f"data.cache_dir={cache_dir}", "hardware.threads=1",
        "optim.max_steps=4", "optim.validate_every_n_steps=2", "optim.average_checkpoints=1",
    ]  # fmt: skip
    commands = [
        [*train, "runs_dir=uninterrupted"],
        [*train, "runs_dir=interrupted", "stop_after_minutes=1e-9"],
        [*train, "runs_dir=interrupted"],
        ["verify", "run=RUN", "hardware.threads=1", "sentences=4"],
        ["export", "run=RUN", "format=ctranslate2"],
        ["bench", "variants=[absolute,window]", "parts=[step,layer]", "rounds=1", "steps_per_round=1",
         "sentences=2", "length=5", "layer.lengths=[6]", "layer.rounds=1", "layer.positions=12", "model.d_model=32"],
        ["report", "runs_dir=uninterrupted", "output_dir=out"],
    ]  # fmt: skip
    heads, texts = answers_of(tree, commands)
    assert heads == ["train 0", "train 2", "train 0", "verify 0", "export 2", "bench 0", "report 0"], texts
    _, cut, _, verified, exported, benched, _ = texts
    assert "stop_after_minutes: 1e-09 minutes have passed at step 1 of 4" in cut
    one, other = (next(tree.glob(f"{root}/*/record.json")).parent for root in ("uninterrupted", "interrupted"))
    assert read_record(one / "record.json").scores == read_record(other / "record.json").scores
    weights, again = (model_weights(checkpoints(folder / "checkpoints")[-1][1]) for folder in (one, other))
    assert weights.keys() == again.keys() and all(torch.equal(weights[key], again[key]) for key in weights)
    learned = [value for key, value in weights.items() if key.endswith("tables.penalty")]  # which starts at 0
    assert learned and all(value.any() for value in learned)
    assert "window changes queries and keys" in verified and "window (per_position)" in benched
    assert "position: window changes queries and keys in a way that CTranslate2 cannot represent" in exported
    (written,) = (tree / "out").rglob("report.md")
    assert "window, size 2" in written.read_text()
    assert any("#12ab34" in path.read_text() for path in written.parent.glob("*.svg"))

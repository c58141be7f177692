"""A task added by one Python file and one YAML file is generated, trained on, scored by its own lengths and reported.
A position scheme, likewise: test_user_schemes.py.
"""

import os
import shutil
import subprocess
import sys

import pytest

from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY

TASK = """
from typing import Literal

from rpr.data.generated.task import Task, register


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
        command[1] = f"run={{next(pathlib.Path('uninterrupted').glob('[!.]*/record.json')).parent}}"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.main(command)
    print("==", command[0], code)
    print(out.getvalue() + err.getvalue())
"""


def answers_of(folder, commands, code):
    """(command and exit code, output) of commands that one process runs in a folder, with the code of that tree;
    RUN is the first run of `uninterrupted`.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=commands)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    answers = [answer.partition("\n") for answer in done.stdout.split("== ")[1:]]
    return [head for head, _, _ in answers], [" ".join(text.split()) for _, _, text in answers]


@pytest.mark.slow
def test_task_needs_one_python_and_one_yaml_file(tmp_path):
    tree = tmp_path / "tree"
    for name in ("rpr", "conf", "sweeps"):
        shutil.copytree(data_dir("conf").parent / name, tree / name, ignore=shutil.ignore_patterns("results"))
    (tree / "rpr" / "tasks" / "sort.py").write_text(TASK)
    (tree / "conf" / "data" / "sort.yaml").write_text(TASK_CHOICE)
    settings = [override for override in TINY if not override.startswith("data.")]
    settings += ["data=sort", "data.task.largest_first=true", "hardware.threads=1", "optim.max_steps=2"]
    settings += ["optim.average_checkpoints=1", "evaluation.length_buckets=[5]", "evaluation.test_splits=[test,long]"]
    heads, texts = answers_of(tree, [
        ["train", *settings], ["report", "runs_dir=runs", "output_dir=out"],
        ["train", "data=sort", "data.task.kind=copy"], ["train", "data=copy", "data.task.kind=sorting"],
        ["train", "data=sort", "data.task.largest_frist=true"], ["train", "data=sort", "data.max_length=5"],
    ], tree)  # fmt: skip
    assert heads == ["train 0", "report 0", *["train 2"] * 4], texts
    record = read_record(next(tree.glob("runs/*/record.json")))
    assert record.task == "sort" and record.by_length.unit == "digits to sort"
    assert [bucket.beyond_training for bucket in record.by_length.buckets] == [False, True]
    (report,) = (tree / "out").rglob("report.md")
    assert "Exact match on sort, percent" in report.read_text()
    assert "data.task.largest_first: no such setting" in texts[2]
    assert "data.task.kind: invalid value 'sorting': no such task; choose one of addition, copy, dupl" in texts[3]
    assert "largest_frist" in texts[4] and "did you mean largest_first" in texts[4]
    assert "data.max_length: invalid value 5: drops training pairs" in texts[5]

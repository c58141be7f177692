"""Position schemes, model sizes and sweeps in a folder of the user's own, schemes_dir=DIR: all commands find them, in
all their processes; a scheme of one Python and one YAML file trains, resumes to the same weights, is verified, benched
and reported with its own name and colour; other code of a scheme is refused wherever weights would meet it; a broken
module is one line.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY
from tests.system.test_new_task import answers_of
from tests.system.trainings import last_weights

ROOT = data_dir("conf").parent
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
MINI = "defaults: [tiny, _self_]\nname: mini\nd_ff: 48\n"
SWEEP = "description: two seeds\noverrides: ['position=window model=mini optim=tiny']\njobs: ['seed=1,2']\n"


@pytest.fixture
def home(tmp_path):
    """A folder with the user's own, beside which the commands run."""
    for name, text in {
        "window.py": SCHEME.replace("from pydantic", "from rpr.model.positions.far import doubled\nfrom pydantic")
        .replace("2 * beyond", "doubled(beyond)"),
        "far.py": "def doubled(value):\n    return 2 * value\n",
        "position/window.yaml": CHOICE, "model/mini.yaml": MINI, "sweeps/mine.yaml": SWEEP,
    }.items():  # fmt: skip
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


WIDE_AND_RUNNING = {
    "wide.py": '''
"""Queries and keys with their squares beside them."""

from typing import Literal

from rpr.model.positions.scheme import Scheme, register


@register
class Wide(Scheme):
    TITLE = "wide"
    COLOUR = "#12ab35"

    scheme: Literal["wide"]

    def parameters(self, site):
        import torch

        return {"share": torch.ones(site.num_heads, 1, 1)}

    def prepare(self, q, k, positions, parameters, site):
        import torch

        return torch.cat([q, q * q], -1), torch.cat([k, parameters["share"] * k * k], -1)
''',
    "running.py": '''
"""A speed of rotation for each head from a token and the one before."""

from typing import ClassVar, Literal

from rpr.model.positions.scheme import Scheme, register


@register
class RunningAngles(Scheme):
    TITLE = "running angles"
    COLOUR = "#12ab36"
    HISTORY: ClassVar[int] = 1

    scheme: Literal["running"]

    def projections(self, site):
        import torch

        return {"speed": torch.randn(site.num_heads, site.d_model) * site.d_model**-0.5}

    def angles(self, projected, parameters, site, before):
        import torch

        speed = projected["speed"].sigmoid()
        both = (speed[:, 1:] + speed[:, :-1]).transpose(1, 2)
        pairs = torch.arange(site.d_head // 2, device=before.device)
        return before[:, :, None] + both.cumsum(-1)[..., None] * 100.0 ** (-2 * pairs / site.d_head)
''',
    "position/wide.yaml": "defaults: [_base, _self_]\nname: wide\nscheme: wide\n",
    "position/running.yaml": "defaults: [_base, _self_]\nname: running\nscheme: running\n",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schemes_of_another_width_and_of_running_angles_need_no_other_file(tmp_path, cache_dir, small_data):
    """As docs/your-scheme.md has their hooks: they train, and verify finds them decoded, padded and batched alike."""
    for name, text in WIDE_AND_RUNNING.items():
        file = tmp_path / "own" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    words = settings(cache_dir, "runs_dir=uninterrupted", "schemes_dir=own", "optim=tiny")
    train = ["train", *words, "position.encoder=wide", "position.decoder=running"]
    verify = ["verify", "run=RUN", "schemes_dir=own", "hardware.threads=1", "sentences=4", f"cache_dir={cache_dir}"]
    heads, texts = answers_of(tmp_path, [train, verify], ROOT)
    assert heads == ["train 0", "verify 0"], texts


def settings(cache_dir, *more):
    small = [word for word in TINY if not word.startswith("model.d_ff")]
    return [
        *small, f"data.cache_dir={cache_dir}", "hardware.threads=1", "optim.max_steps=2",
        "optim.validate_every_n_steps=2", "optim.average_checkpoints=1", *more,
    ]  # fmt: skip


def command_line(home, *words, **environment):
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words], cwd=home, text=True, capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_commands_know_the_users_schemes_and_refuse_other_code(home, cache_dir, small_data, assert_same):
    own = "schemes_dir=own"
    words = settings(cache_dir, "runs_dir=uninterrupted")
    train = ["train", own, "position=window", "model=mini", "optim=tiny", *words]
    of_run = [
        ["evaluate", "run=RUN", own, "hardware.threads=1", f"cache_dir={cache_dir}"],
        ["verify", "run=RUN", own, "hardware.threads=1", "sentences=4", f"cache_dir={cache_dir}"],
        ["export", "run=RUN", own, "format=safetensors", f"cache_dir={cache_dir}"],
    ]
    others = [
        [*train[:-1], "runs_dir=interrupted", "stop_after_minutes=1e-9"],
        [*train[:-1], "runs_dir=interrupted"],
        ["export", "run=RUN", own, "format=ctranslate2"],
        ["bench", own, "variants=[absolute,window]", "rounds=1", "steps_per_round=1",
         "positions=10", "lengths=[5]", "model.d_model=32"],
    ]  # fmt: skip
    sweep = ["sweep", "mine", own, "jobs=2", *settings(cache_dir, "runs_dir=swept")]
    report = ["report", "runs_dir=uninterrupted", "output_dir=out", own]
    heads, texts = answers_of(home, [train, *of_run, sweep, report, ["train", "--help", own], train, *others], ROOT)
    done = ["train 0", "evaluate 0", "verify 0", "export 0", "sweep 0", "report 0", "train 0", "train 0"]
    assert heads == [*done, "train 2", "train 0", "export 2", "bench 0"], texts
    (run,), (other,) = (list(home.glob(f"{root}/*/record.json")) for root in ("uninterrupted", "interrupted"))
    record = read_record(run)
    assert record.scores == read_record(other).scores
    weights = last_weights(run.parent)
    assert_same(last_weights(other.parent), weights)
    learned = [value for key, value in weights.items() if key.endswith("tables.penalty")]  # which starts at 0
    assert learned and all(value.any() for value in learned)
    assert len(record.schemes["window"]) == 16 and record.setting("model.d_ff") == 48
    assert f"schemes_dir={home / 'own'}" in record.command and "again" not in record.command
    assert len([*home.glob("swept/*-mini-window-*/record.json")]) == 2
    (written,) = (home / "out").rglob("report.md")
    assert "window, size 3" in written.read_text()
    assert any("#12ab34" in path.read_text() for path in written.parent.glob("*.svg"))
    assert "window cannot be exported, as CTranslate2 cannot change queries and keys" in texts[2]
    assert "at step 1 of 2" in texts[8]
    assert "position: window cannot be exported, as CTranslate2 cannot change queries and keys" in texts[10]
    assert "window" in texts[6] and "mini" in texts[6] and "already finished" in texts[7]

    scheme_file = home / "own" / "window.py"
    scheme_file.write_text(scheme_file.read_text() + "\nCHANGED = True\n")
    again = [*train, "again=true"]
    for folder in (run.parent, run.parent / "exports" / "safetensors"):
        code, text = command_line(home, "translate", own, str(folder), "hardware.threads=1")
        assert code == 2 and re.search(r"the code of window has changed \(version \w+, now \w+\) since", text), text
    heads, texts = answers_of(home, [train, *of_run, sweep, again, train, of_run[1]], ROOT)
    refused = ["train 2", "evaluate 2", "verify 2", "export 2", "sweep 2"]
    assert heads == [*refused, "train 0", "train 0", "verify 0"], texts
    for text in texts[: len(refused)]:
        assert "position.scheme: the code of window has changed" in text and "again=true" in text, text
    assert "the earlier run is kept in" in texts[-3] and "already finished" in texts[-2]
    assert len([*home.glob("uninterrupted/.*before*/record.json")]) == 1
    assert read_record(run).schemes != record.schemes and not read_record(run).config["again"]

    for words in (["evaluate", str(run.parent)], train[:1] + train[2:]):
        code, text = command_line(home, *words)
        assert code == 2 and text.count("rpr-cli:") == 1 and "window" in text, text
    code, text = command_line(home, "evaluate", str(run.parent))
    assert "no such scheme" in text and "schemes_dir=DIR" in text


BROKEN = {  # a module of the folder, and the one line that every command then gives
    "syntax": ("def (:\n", "window.py: cannot be imported (SyntaxError: invalid syntax"),
    "missing": ("import nothing_of_this_name\n", "cannot be imported (ModuleNotFoundError: No module named 'nothing"),
    "unannotated": (SCHEME.replace('"#12ab34"', '"#12ab34"\n    SHIFTY = 3'), "cannot be imported (PydanticUserError"),
}


def test_what_is_refused_is_one_line_and_configuration_is_printed(home):
    """In one process. The hooks of all variants are tried before the first of a sweep is trained."""
    for name, (text, _) in BROKEN.items():
        shutil.copytree(home / "own", home / name)
        (home / name / "window.py").write_text(text)
    shutil.copytree(home / "own", home / "hiding")
    (home / "hiding" / "rope.py").write_text("")
    leaking = SCHEME.replace('["temperature"], k', '["temperature"], k + k.roll(-1, 2)')
    (home / "own" / "window.py").write_text(leaking)
    (home / "own" / "position" / "my-window.yaml").write_text(CHOICE.replace("name: window", "name: my-window"))
    own = ["schemes_dir=own", "model=mini", "optim=tiny"]
    refused = [
        *((["train", f"schemes_dir={name}", "position=window"], message) for name, (_, message) in BROKEN.items()),
        (["train", "schemes_dir=nowhere"], f"schemes_dir: {home}/nowhere is not a folder"),
        (["train", "schemes_dir="], "'' is not a folder"),  # $UNSET
        (["train", "schemes_dir=hiding"], "rope.py: has the name of a module of rpr"),
        (["train", *own, "position=nope"], "no such choice"),
        (["sweep", "mine", "schemes_dir=own"], "a text alone gives other values"),
        (["bench", "schemes_dir=own", "variants=[absolute,window]"], "a text alone gives other values"),
    ]
    printed = [
        (["train", *own, "position=window", "--cfg", "job"], "size: 3"),
        (["train", *own, "position=pattern", "position.layers=[my-window,rope]", "--cfg=job"], "my-window:"),
    ]
    heads, answers = answers_of(home, [words for words, _ in (*refused, *printed)], ROOT)
    assert heads == [*(f"{words[0]} 2" for words, _ in refused), *["train 0"] * len(printed)], answers
    assert not (home / "runs").exists(), answers
    for (_, message), answer in zip((*refused, *printed), answers, strict=True):
        assert message in answer, answer
    assert all(answer.startswith("rpr-cli: ") and answer.count("rpr-cli: ") == 1 for answer in answers[: len(refused)])

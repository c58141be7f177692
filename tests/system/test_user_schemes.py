"""Position schemes, model sizes and sweeps in a folder of the user's own, schemes_dir=DIR: all commands find them, in
all their processes; the scheme of docs/your-scheme.md trains, resumes to the same weights, is verified, benched
and reported with its own name and colour; other code of a scheme is refused wherever weights would meet it; a broken
module is one line.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY
from tests.system.faults import instead
from tests.system.trainings import last_weights

ROOT = data_dir("conf").parent
PAGE = (ROOT / "docs" / "your-scheme.md").read_text(encoding="utf-8")
[SCHEME] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[CHOICE] = re.findall(r"^```yaml\n(# mine/position/.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
WIDE_AND_RUNNING = """
from typing import ClassVar, Literal

from rpr.model.positions.scheme import Scheme, register


@register
class Wide(Scheme):
    TITLE, COLOUR = "wide", "#12ab35"

    scheme: Literal["wide"]

    def prepare(self, q, k, positions, parameters, site):
        import torch

        return torch.cat([q, q * q], -1), torch.cat([k, k * k], -1)


@register
class RunningAngles(Scheme):
    TITLE, COLOUR = "running angles", "#12ab36"
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
"""
OWN = {
    "window.py": SCHEME,
    "both.py": WIDE_AND_RUNNING,
    "position/window.yaml": CHOICE,
    "position/wide.yaml": "defaults: [_base, _self_]\nname: wide\nscheme: wide\n",
    "position/running.yaml": "defaults: [_base, _self_]\nname: running\nscheme: running\n",
    "model/mini.yaml": "defaults: [tiny, _self_]\nname: mini\nd_ff: 48\n",
    "sweeps/mine.yaml": "overrides: ['position=window']\njobs: ['seed=1,2']\n",
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def home(tmp_path):
    """A folder with the user's own, in which the commands run."""
    write(tmp_path / "own", OWN)
    return tmp_path


def run_anew(folder, commands):
    """Run commands in a folder, each ending with its exit code, by modules of rpr that register schemes anew."""
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rpr"]:
        del sys.modules[name]
    from rpr.cli import app

    for code, words in commands:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
            ended = app.main(words)
        text = " ".join(printed.getvalue().split())
        assert ended == code, (words, text)
        print(text)


def answers(folder, *commands):
    """What commands print, with single spaces, in a fork of this process, which has imported other packages."""
    work = partial(run_anew, folder, [(code, [*map(str, words)]) for code, *words in commands])
    streams = (os.devnull, folder / "out.txt", folder / "err.txt")
    done = subprocess.run([sys.executable], preexec_fn=partial(instead, work, streams))
    assert done.returncode == 0, streams[2].read_text()
    return streams[1].read_text().splitlines()


def settings(cache_dir, *more):
    small = [word for word in TINY if not word.startswith("model.d_ff")]
    small += ["optim.max_steps=2", "optim.validate_every_n_steps=2", "optim.average_checkpoints=1", "optim=tiny"]
    return [*small, f"data.cache_dir={cache_dir}", "hardware.threads=1", "schemes_dir=own", *more]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_commands_know_the_users_schemes_and_refuse_other_code(home, cache_dir, small_data, assert_same):
    # 1. Stopped and resumed, it learns the same weights.
    short = settings(cache_dir, "model=mini")
    train = ["train", "position=window", *short]
    whole, cut = [*train, "runs_dir=whole"], [*train, "runs_dir=cut"]
    answers(home, (0, *whole), (2, *cut, "stop_after_minutes=1e-9"), (0, *cut))
    (run,), (other,) = (list(home.glob(f"{root}/*/record.json")) for root in ("whole", "cut"))
    record, of_run = read_record(run), (f"run={run.parent}", "schemes_dir=own", "hardware.threads=1")
    assert record.scores == read_record(other).scores
    assert_same(last_weights(other.parent), last_weights(run.parent))
    assert f"schemes_dir={home / 'own'}" in record.command and record.setting("model.d_ff") == 48
    # 2. Every command finds it.
    cached = f"cache_dir={cache_dir}"
    commands = [
        ["evaluate", *of_run, cached], ["verify", *of_run, "sentences=4", cached],
        ["export", *of_run, "format=safetensors", cached], ["sweep", "mine", "jobs=2", *short, "runs_dir=swept"],
    ]  # fmt: skip
    bench = ["rounds=1", "steps_per_round=1", "sentences=2", "length=5", "variants=[absolute,window]"]
    more = [["report", "runs_dir=whole", "output_dir=out", "schemes_dir=own"], ["bench", "schemes_dir=own", *bench]]
    texts = answers(home, *((0, *words) for words in (*commands, *more, whole)))
    assert re.search("export, safetensors .{,5}passed", texts[1]), texts[1]
    assert len([*home.glob("swept/*-mini-window-*/record.json")]) == 2
    (written,) = (home / "out").rglob("report.md")
    assert "window, width 8" in written.read_text() and "window" in texts[5] and "already finished" in texts[6]
    assert any("#666666" in path.read_text() for path in written.parent.glob("*.svg"))
    # 3. Weights meet no other code.
    scheme_file = home / "own" / "window.py"
    scheme_file.write_text(scheme_file.read_text() + "\nCHANGED = True\n")
    folders = (run.parent, run.parent / "exports" / "safetensors")
    translate = [["translate", "schemes_dir=own", folder, "hardware.threads=1"] for folder in folders]
    again = [(0, *whole, "again=true"), (0, *whole), (0, *commands[1])]
    texts = answers(home, *((2, *words) for words in (*translate, whole, *commands)), *again)
    for text in texts[:2]:
        assert re.search(r"the code of window has changed \(version \w+, now \w+\) since", text), text
    for text in texts[2:7]:
        assert "position.scheme: the code of window has changed" in text and "again=true" in text, text
    assert "the earlier run is kept in" in texts[7] and "already finished" in texts[8]
    assert len([*home.glob("whole/.*before*/record.json")]) == 1
    assert read_record(run).schemes != record.schemes and not read_record(run).config["again"]
    text = answers(home, (2, "evaluate", run.parent))[0]
    assert "no such scheme" in text and "schemes_dir=DIR" in text and text.count("rpr-cli:") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schemes_of_another_width_and_of_running_angles_need_no_other_file(home, cache_dir, small_data):
    """As docs/your-scheme.md has their hooks: they train, and verify finds them decoded, padded and batched alike."""
    words = settings(cache_dir, "runs_dir=whole")
    answers(home, (0, "train", *words, "position.encoder=wide", "position.decoder=running"))
    [run] = home.glob("whole/*")
    verify = ("verify", f"run={run}", "schemes_dir=own", "hardware.threads=1", "sentences=4", f"cache_dir={cache_dir}")
    answers(home, (0, *verify))


def test_what_is_refused_is_one_line_and_configuration_is_printed(home):
    """Hooks are tried before anything is prepared."""
    write(home / "broken", OWN | {"window.py": "def (:\n"})
    write(home / "hiding", OWN | {"rope.py": ""})
    leaking = f"{SCHEME}\n    def prepare(self, q, k, *_):\n        return q, k + k.roll(-1, 2)\n"
    mine = CHOICE.replace("name: window", "name: my-window")
    write(home / "own", {"window.py": leaking, "position/my-window.yaml": mine})
    train = ["train", "schemes_dir=own", "model=mini", "optim=tiny", "logger=none"]
    expected = [
        (2, ["train", "schemes_dir=broken"], "window.py: cannot be imported (SyntaxError: invalid syntax"),
        (2, ["train", "schemes_dir="], "'' is not a folder"),  # $UNSET
        (2, ["train", "schemes_dir=hiding"], "rope.py: has the name of a module of rpr"),
        (2, [*train, "position=window"], "a text alone gives other values"),
        (0, [*train, "position=pattern", "position.layers=[my-window,rope]", "--cfg=job"], "my-window:"),
    ]
    texts = answers(home, *((code, *words) for code, words, _ in expected))
    for text, (code, _, message) in zip(texts, expected, strict=True):
        assert message in text, text
        assert not code or (text.startswith("rpr-cli: ") and text.count("rpr-cli: ") == 1), text
    assert not (home / "runs").exists()

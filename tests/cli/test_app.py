"""The command line from argv to exit code, without training; the installed script's speed and imports."""

import functools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rpr import __version__
from rpr.cli import app
from rpr.cli.app import to_overrides
from rpr.commands import bench, train
from rpr.compose.composition import compose_train, expand_multirun
from rpr.paths import user_path
from rpr.sweep import pool
from rpr.validation import settings_at
from tests.fake_records import fake_document


@pytest.fixture(autouse=True)
def started(monkeypatch, tmp_path):
    """In an empty folder, with training replaced; the commands of the runs that were started."""
    monkeypatch.chdir(tmp_path)
    commands = []
    monkeypatch.setattr(train, "run", lambda config, *, command, **options: commands.append(command))
    monkeypatch.setattr(pool, "run", lambda jobs, of_jobs, options, sweep: commands.extend(of_jobs) or {})
    return commands


def test_help_and_version(cli):
    for flag in ("--help", "-h"):
        out, err = cli(flag)
        assert out.startswith("usage: rpr-cli COMMAND") and err == ""
        assert all(f"\n  {name} " in out for name in app.COMMANDS)
    assert cli("--version").out == f"rpr-cli {__version__}\n"
    assert "  quick " in cli("sweep", "quick", "--help").out
    assert cli(code=2).out.startswith("usage: ")


@pytest.mark.parametrize("words, path, value", [
    ("position=relative_rope position.entries.relative.clip_distance=8", "entries relative clip_distance", 8),
    ("position=pattern position.layers=[rope_1,rope_2] position.entries.rope_2.base=77", "entries rope_2 base", 77),
    ("position.decoder=rope_none position.decoder.entries.rope.base=77", "decoder entries rope base", 77),
])  # fmt: skip
def test_entries_of_a_pattern_are_composed(words, path, value):
    found = app.compose("train", words.split())["position"]
    assert functools.reduce(lambda part, key: part[key], path.split(), found) == value


@pytest.mark.parametrize("words, names", [
    ("model=base model.architecture='decoder_only'", ["python_library"]),
    ("model.architecture=decoder_only data=reverse", ["reverse"]),
    ("data=text data.path=. model.architecture=decoder_only", ["text"]),
    ("model.architecture=decoder_only,encoder_decoder", ["python_library", "synthetic"]),
])  # fmt: skip
def test_a_decoder_only_model_learns_the_standard_library_unless_another_corpus_is_chosen(words, names):
    assert [compose_train(job).data.name for job in expand_multirun(words.split())] == names


@pytest.mark.parametrize("name", [name for name in app.COMMANDS if name != "sweep"])
def test_help_lists_every_setting_of_a_command(name, cli):
    out, err = cli(name, "--help")
    assert out.startswith(f"rpr-cli {name}") and f"\nusage: rpr-cli {name} [" in out and err == ""
    for setting in settings_at(app._config_class(name), []):
        assert f"  {setting}:" in out or f"\n{setting}.* of " in out or (name == "train" and setting == "position")


def test_recorded_command_repeats_the_whole_run(started):
    """Without what belongs to this call alone."""
    assert app.main(["train", "sweep=mine", "again=true", "stop_after_minutes=5", "seed=4"]) == 0
    assert started == ["rpr-cli train seed=4"]


def test_multirun_sweep_name(monkeypatch):
    """sweep= sets it; by default it depends on the overrides alone."""
    sweeps = []
    monkeypatch.setattr(pool, "run", lambda jobs, *_: sweeps.extend(job.config.sweep for job in jobs) or {})
    for words in (["seed=1,2"], ["seed=2"], ["seed=2"], ["seed=2", "sweep=mine"]):
        assert app.main(["train", "-m", *words]) == 1
    assert str(sweeps[0]).startswith("multirun-")
    assert sweeps[0] == sweeps[1] != sweeps[2] == sweeps[3] and sweeps[4:] == ["mine"]


def test_multirun_is_a_sweep(started, capsys):
    """With the settings of sweep, and with choices from --config-dir, a folder of any name."""
    folder = Path("mïne (a=b, 'c')")
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "narrow.yaml").write_text("defaults: [tiny, _self_]\nname: narrow\nd_model: 64\n")
    own, choices = f"--config-dir={Path.cwd() / folder}", ["model=narrow", "optim=tiny"]
    words = [f"--config-dir={folder}", *choices, "position.clip_distance=0,2", "retry_failed=true"]
    assert app.main(["train", "-m", *words]) == 1  # the fake training writes no record
    jobs = [[own, *choices, f"position.clip_distance={k}"] for k in (0, 2)]
    assert [shlex.split(command)[2:] for command in started] == jobs
    err = capsys.readouterr().err
    assert "2 jobs: 2 new" in err and f"  to retry: {started[-1]} sweep=" in err
    assert app.main(["train", f"--config-dir={folder}", *choices, "seed=7"]) == 0
    assert shlex.split(started[-1])[2:] == [own, *choices, "seed=7"]


def test_bug_keeps_its_traceback_and_interrupt_exits_with_130(monkeypatch, capsys):
    def run(config, *, command):
        raise error

    monkeypatch.setattr(train, "run", run)
    error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        app.main(["train"])
    for memory in (torch.OutOfMemoryError("CUDA out of memory.\nTried"), RuntimeError("can't allocate memory: 9")):
        error = memory
        assert app.main(["train"]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("rpr-cli: out of memory (") and printed.count("\n") == 1
    error = KeyboardInterrupt()
    assert app.main(["train"]) == 130
    assert capsys.readouterr().err == (
        "rpr-cli: interrupted; rerun the same command to resume from the last checkpoint, if any\n"
    )


TORCH = "torch pytorch_lightning lightning wandb datasets matplotlib "
LIGHT = [  # what a process does in turn, and which modules it has not imported by then
    pytest.param([("from rpr.cli import app; app.main(['--help'])", TORCH + "hydra omegaconf pydantic numpy"),
     ("import rpr.report.page, rpr.records.record", TORCH + "hydra omegaconf"),
     ("assert app.main(['diff', 'a.json', 'b.json']) == 0", TORCH + "sacrebleu sentencepiece")], id="commands"),
    pytest.param([("import rpr; from rpr.cli import app", TORCH + "pandas hydra"),
     ("from rpr import Translator; Translator.from_run", "pandas hydra pytorch_lightning wandb datasets matplotlib"),
     ("assert not app.main(['sweep','quick','seed=1','position=absolute','--dry-run'])",
      "torch._dynamo pytorch_lightning wandb datasets")], id="library", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("steps", LIGHT)
def test_nothing_heavy_is_imported_before_it_is_needed(steps, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(fake_document(name=name)))
    lines = [f"{step}\nassert not (found := sys.modules.keys() & {names.split()}), found" for step, names in steps]
    subprocess.run([sys.executable, "-c", "\n".join(["import sys", *lines])], check=True, stdout=subprocess.DEVNULL)


def test_bench_of_a_step_by_length_and_with_windows(cli):
    sizes = ["model.num_layers=1", "model.d_model=32", "model.d_ff=32", "data.vocabulary_size=50"]
    work = ["parts=[step,context,attention]", "context.lengths=[4,16]", "context.positions=16", "rounds=1"]
    work += ["steps_per_round=1", "sentences=4", "length=6", "variants=[none,cope]", "context.windows=[2]"]
    document = json.loads(cli("bench", "model.architecture=decoder_only", *sizes, *work, "format=json").out)
    rows = [(row["length"], row["batch"], row["variant"]) for row in document["context"]]
    assert (document["step"][0]["variant"], document["step"][0]["relative_speed"]) == ("none", 1.0)
    names = ("none", "cope", "none, window 2", "cope, window 2")
    assert rows == [(length, 16 // length, name) for length in (4, 16) for name in names]
    assert [row["variant"] for row in document["attention"]] == [*names, *names]
    printed = bench.as_text(document)
    assert "vs none" in printed and 0 < printed.index("\ncontext:") < printed.index("\nattention:")


def test_positional_arguments_are_not_parsed_by_hydra():
    """Most of these characters mean something in its grammar."""
    names = ["it's.txt", "a,b [c] {d} $e ${f}.txt", "back\\slash.txt", "end\\", "\\'", "\\${Füße}.txt"]
    composed = app.compose("compare", to_overrides("compare", [*names[:3], "samples=200", *names[3:]]))
    assert composed["runs"] == names and composed["samples"] == 200
    for first, second in zip(names[::2], names[1::2], strict=True):
        composed = app.compose("translate", to_overrides("translate", [first, "beam_size=2", "--", second, first]))
        assert (composed["run"], composed["input"], composed["output"]) == (first, second, first)
    for text in (*names, "def f(x):", "[1, 2", "null", "  ", "", "a\nb", "x\\\\${${y}} 'z", "k=v", "~/x", "-m"):
        words = to_overrides("generate", ["runs/A", f"prompt={text}", f"stop={text}", "seed=2"])
        composed = app.compose("generate", words)
        assert (composed["prompt"], composed["stop"], composed["seed"]) == (text, text, 2)
    assert to_overrides("compare", ["--cfg", "job", "runs/A"]) == ["--cfg", "job", "runs=['runs/A']"]
    assert to_overrides("train", ["runs/it's"]) == ["run=runs/it's"], "which is read as it is"


@pytest.mark.parametrize("typed, path", [
    ("~", "/home"), ("~/a", "/home/a"), ("$HOME/a", "/home/a"), ("${HOME}/a", "/home/a"), ("a/$HOME", "a//home"),
    ("a/~", "a/~"), ("a$5", "a$5"), ("a$HOME", "a/home"), ("$UNSET/a", "$UNSET/a"),
])  # fmt: skip
def test_user_path(monkeypatch, typed, path):
    monkeypatch.setenv("HOME", "/home")
    assert user_path(typed) == Path(path)


@pytest.mark.parametrize("words", [
    ("train", "RUNS_DIR/x", "--cfg", "job"), ("compare", "sweep=a", "RUNS_DIR"), ("evaluate", "~/none"),
    ("export", "run=~/none"), ("diff", "~/a", "~/b"), ("train", "run=~/none"), ("sweep", "~/none.yaml"),
    ("sweep", "quick", "RUNS_DIR", "data.cache_dir=~/cache", "--dry-run"), ("train", "--config-dir=~/none"),
])  # fmt: skip
def test_home_is_expanded_everywhere(monkeypatch, tmp_path, capfd, words):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    app.main([word.replace("RUNS_DIR", "runs_dir=~/runs") for word in words])
    printed = capfd.readouterr()
    refusal = printed.err.partition("rpr-cli: ")[2]
    assert "cannot be parsed" not in refusal and "~" not in refusal and list(tmp_path.iterdir()) == []


def test_cli_py_is_the_same_command():
    script = Path(__file__).parents[2] / "cli.py"
    ended = subprocess.run([sys.executable, script, "trian"], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("rpr-cli: no such command 'trian'; did you mean train?")

"""Shell completion: suggestions for the last word in each form, and installed hooks (refusals: system/refused.tsv)."""

import re

import pytest

from rpr.cli import app, completion
from rpr.paths import data_dir
from rpr.sweep import spec

SWEEPS = {path.stem for path in data_dir("sweeps").glob("*.yaml")}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def suggested(line, capsys, monkeypatch, shell="bash"):
    """What is printed for a line with the cursor at its end."""
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert app.main(["-sc", f"query={shell}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize(
    "line, expected",
    [
        ("rpr-cli tr", {"train", "translate"}),
        ("rpr-cli ", set(app.COMMANDS)),
        ("~/.venv/bin/rpr-cli  train   model=b", {"model=base", "model=big"}),
        ("/usr/bin/python3.12 cli.py train model=b", {"model=base", "model=big"}),
        ("rpr-cli train model=tiny seed=3 optim.max_st", {"optim.max_steps="}),
        ("rpr-cli train hydra/launcher=submitit_l", {"hydra/launcher=submitit_local"}),
        ("rpr-cli report form", {"format="}),
        ("rpr-cli compare runs/a runs/b sam", {"samples="}),
        ("rpr-cli sweep qu", {"quick", "quick_lm"}),
        ("rpr-cli sweep ", SWEEPS),
        ("rpr-cli sweep quick mod", {"model.", "model="}),
        ("rpr-cli sweep mine.yaml model=b", {"model=base", "model=big"}),
        (
            "rpr-cli sweep quick jobs=2 retry_failed=true --dry-run seed=1,2 model=tiny,big position.clip_d",
            {"position.clip_distance="},
        ),
        ("rpr-cli sweep quick gpu", {"gpus="}),
        ("rpr-cli sweep quick r", {"retry_failed=true", "runs_dir="}),
        ("rpr-cli sweep quick --", {"--dry-run"}),
        *(
            (line, set())
            for line in (
                "", "rpr-cli nosuch ", "rpr-cli xy", "rpr-cli sweep none", "rpr-cli train --nothing mod",
                "rpr-cli train --cfg", "rpr-cli train seed=[ mod", "rpr-cli train job=' mod",
                "rpr-cli rerun runs/a runs/b se", "rpr-cli translate run=x -- ba",
            )
        ),
    ],
)  # fmt: skip
def test_suggestions_for_the_last_word(line, expected, capsys, monkeypatch):
    assert set(suggested(line, capsys, monkeypatch).split()) == expected


def test_sweep_suggests_its_own_settings_and_those_of_train(capsys, monkeypatch):
    of_train = set(suggested("rpr-cli train ", capsys, monkeypatch).split())
    of_sweep = set(suggested("rpr-cli sweep quick ", capsys, monkeypatch).split())
    assert of_sweep - of_train == {*spec.SETTINGS, *spec.FLAGS} and "model=" in of_train
    assert of_train <= of_sweep
    for word in (*spec.SETTINGS, *spec.FLAGS):
        assert re.search(rf"(^|[ \[]){re.escape(word)}", spec.usage(), re.MULTILINE), word


@pytest.mark.parametrize("shell, between", [("bash", " "), ("zsh", " "), ("fish", "\n")])
def test_separators_of_each_shell(shell, between, capsys, monkeypatch):
    assert suggested("rpr-cli tr", capsys, monkeypatch, shell) == between.join(["train", "translate"]) + "\n"
    assert suggested("rpr-cli train model=b", capsys, monkeypatch, shell) == f"model=base{between}model=big\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(2), KeyboardInterrupt()])
def test_errors_of_a_query_are_silent(error, capsys, monkeypatch):
    def fail(name, words):
        raise error

    monkeypatch.setattr(completion, "_hydra_completions", fail)
    assert suggested("rpr-cli train mod", capsys, monkeypatch) == "\n"
    assert suggested("rpr-cli sweep quick gp", capsys, monkeypatch) == "gpus=\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_hooks(shell, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/rpr-cli", "-sc"])
    assert app.main(["-sc", f"install={shell}"]) == 0
    installed, err = capsys.readouterr()
    assert f"-sc query={'fish' if shell == 'fish' else 'bash'}" in installed and "rpr-cli" in installed and err == ""
    assert app.main(["-sc", f"uninstall={shell}"]) == 0
    removed, err = capsys.readouterr()
    assert ("complete -e -c rpr-cli" if shell == "fish" else "unset hydra_bash_completion") in removed and err == ""

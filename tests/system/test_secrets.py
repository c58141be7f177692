"""No command writes or prints a key, token or password of its user, and no setting can contain one."""

import json
import socket
import traceback
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.commands import train
from rpr.compose.composition import compose
from rpr.errors import ConfigError
from rpr.records.record import read_record
from rpr.tracking.mirror import tear_down
from tests.system.conftest import FOUR_STEPS

CANARIES = {
    "WANDB_API_KEY": "CanaryOfWandb" + 27 * "w",  # 40 characters, as W&B requires
    "HF_TOKEN": "hf_CanaryOfTheHub",
    "HUGGING_FACE_HUB_TOKEN": "hf_CanaryOfOlderHubs",
    "AWS_SECRET_ACCESS_KEY": "CanaryOfTheCloud",
    "DATABASE_PASSWORD": "CanaryOfNobody",
    "HTTPS_PROXY": "http://person:CanaryOfTheProxy@127.0.0.1:9",
}
FAILS = "optim.learning_rate_scale=1e30"  # the gradient of the second step is not finite


@pytest.fixture(autouse=True)
def _person(monkeypatch, tmp_path):
    """A user with secrets in the environment and in .netrc, in an empty folder."""
    home = tmp_path / "home"
    for folder in (home, tmp_path / "here"):
        folder.mkdir()
    (home / ".netrc").write_text(f"machine api.wandb.ai login user password CanaryOfNetrc{27 * 'n'}\n")
    (home / ".netrc").chmod(0o600)
    monkeypatch.delenv("NETRC", raising=False)
    folders = {f"WANDB_{name}_DIR": str(home / name) for name in ("CACHE", "DATA", "CONFIG")}
    for name, value in (CANARIES | folders | {"HOME": str(home), "WANDB_ERROR_REPORTING": "false"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "here")
    yield
    tear_down()


@pytest.fixture
def run_command(cli):
    """Runs a command and checks its output for secrets; the output."""

    def run(code, *words):
        printed = "".join(cli(*words, code=code))
        assert "CanaryOf" not in printed
        return printed

    return run


def test_no_secret_is_written_or_printed(tmp_path, tiny, small_data, run_command, monkeypatch, capfd):
    """Nor into W&B's file, whose content would be sent; and no home folder or host name in a record."""
    runs, recipe = tmp_path / "runs", [*tiny, *FOUR_STEPS, "optim.average_checkpoints=1", "sweep=mine"]
    offline = [word for word in recipe if word != "logger=none"] + ["logger=wandb_offline"]
    run_command(0, "train", *offline, "name=good", "evaluation.test_splits=[test]", "evaluation.beam_size=1")
    with monkeypatch.context() as patch, pytest.raises(Exception, match="not finite") as failure:
        patch.setenv("RPR_DEBUG", "1")
        app.main(["train", *recipe, "name=bad", FAILS])
    assert "CanaryOf" not in "".join([*traceback.format_exception(failure.value), *capfd.readouterr()])
    good, bad = (next(runs.glob(f"{name}-*")) for name in ("good", "bad"))
    assert read_record(bad / "record.json").status == "failed" and list(good.glob("wandb/offline-run-*/*.wandb"))
    run_command(0, "report", "sweep=mine", f"runs_dir={runs}", f"output_dir={tmp_path / 'reports'}")
    run_command(0, "diff", str(good), str(bad))
    Path("mine.yaml").write_text("jobs: [position=absolute]")
    run_command(0, "sweep", "mine.yaml", *recipe[:-1], "--dry-run")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20 and tmp_path / "reports" / "mine" / "index.html" in files
    assert [path.name for path in files if b"CanaryOf" in path.read_bytes()] == [".netrc"]
    record, text = read_record(good / "record.json"), (good / "record.json").read_text()
    assert record.device.startswith("1 thread of ") and set(record.git.model_dump()) == {"commit", "dirty"}
    assert str(tmp_path / "home") not in text and socket.gethostname() not in text


SETTINGS = [
    ("logger.tags", "[a,'${oc.env:HF_TOKEN}']", "HF_TOKEN"),
    ("logger.entity", "${oc.env:HTTPS_PROXY}", "HTTPS_PROXY"),
    ("logger.entity", CANARIES["WANDB_API_KEY"], "WANDB_API_KEY"),
]
EXPLAINED = "settings are stored in records and sent to W&B, so they must not contain secrets"


def test_setting_with_secret_from_environment_is_refused():
    for key, value, holding in SETTINGS:
        with pytest.raises(ConfigError) as refusal:
            compose("train", [f"{key}={value}"])
        text = str(refusal.value)
        assert text.startswith(key) and f"{holding}; {EXPLAINED}" in text and "CanaryOf" not in text


def test_secret_on_command_line_or_in_sweep_file_is_refused(run_command, monkeypatch):
    monkeypatch.setattr(train, "work", None)  # must not be reached
    monkeypatch.setattr(train, "_run_worker", None)
    setting = "name=x-${oc.env:HUGGING_FACE_HUB_TOKEN}"
    Path("mine.yaml").write_text(json.dumps({"jobs": [f'"{setting}"']}))
    for words in (["train", setting], ["train", "-m", "seed=1,2", setting], ["sweep", "mine.yaml"]):
        line = run_command(2, *words)
        assert line.startswith("rpr-cli: name") and f"HUB_TOKEN; {EXPLAINED}" in line and line.count("\n") == 1
    for override in ("logger.api_key", "+logger.key"):  # a key that is typed
        assert f"{override.lstrip('+')}: no such setting" in run_command(2, "train", f"{override}=CanaryOfWandbTyped")
    assert [path.name for path in Path.cwd().iterdir()] == ["mine.yaml"]

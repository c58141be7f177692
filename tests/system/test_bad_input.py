"""Invalid and malicious input to the command line: arguments, corpora and damaged runs.

Each error is exit code 2, one line that begins with `rpr-cli: ` at the end of stderr, no traceback, nothing on stdout
and no file changed; no code named by a setting or a file runs, and no file outside the run is shown.
"""

import shlex
import shutil
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.commands import train
from rpr.paths import data_dir
from rpr.records.record import read_record
from rpr.scoring.metrics import check_installed
from tests.system import bad_files as bad
from tests.system.conftest import KEPT_BY_DESIGN


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """No credentials of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture(scope="module")
def trained(scored_run, tmp_path_factory):
    """A folder with a trained run of sweep `mine` and a copy, runs/one and runs/two, and the files of bad_files."""
    here = tmp_path_factory.mktemp("trained")
    for name in ("one", "two"):
        shutil.copytree(scored_run, here / "runs" / name)
        bad.update_record(name=name)(here / "runs" / name)
    bad.write_bad_files(here, (data_dir("conf") / "model" / "tiny.yaml").read_text())
    return here


@pytest.fixture
def run_dir(trained, monkeypatch):
    """A copy of runs/one as the current directory."""
    here = trained / "damaged"
    shutil.copytree(trained / "runs" / "one", here)
    monkeypatch.chdir(here)
    yield here
    shutil.rmtree(here)


ROWS = Path(__file__).with_name("refused.tsv").read_text().splitlines()
REFUSED = [row.split("\t") for row in ROWS if not row.startswith("# ")]


@pytest.mark.parametrize("command, expected", REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_command_line(trained, refused, monkeypatch, command, expected):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(train, "work", None)  # must not be reached
    monkeypatch.setattr(train, "_run_worker", None)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "srun" else which(name))  # as without SLURM
    message = refused(*shlex.split(command), remarks_start="rpr-cli: not as recorded")
    part = expected.removeprefix("...")
    assert part in message if expected.startswith("...") else message.startswith(part), message


# --- corpora

JAPANESE = "".join(f"{'猫犬鳥'[number % 3]}が好きです。\n" for number in range(60))
MECAB = "evaluation.bleu_tokenizer: ja-mecab is not installed; pip install 'sacrebleu[ja]'"


@pytest.mark.parametrize("language, text, word, expected", [
    ("de", bad.LINES, "data.max_length=2", "no usable pair in train (0 "),
    ("jpn", JAPANESE, "data.target_language=jpn", MECAB),
])  # fmt: skip
def test_unusable_corpus_is_refused_before_training(tmp_path, refused, monkeypatch, language, text, word, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    check_installed.cache_clear()
    Path("corpus").mkdir()
    Path("corpus", "train.en").write_text(bad.LINES, "utf-8")
    Path("corpus", f"train.{language}").write_text(text, "utf-8")
    settings = ["data=wmt_mini_en_de", "data.path=corpus", "data.vocabulary_size=50", "data.cache_dir=cache", word]
    remarks = ("wmt_mini_en_de: ", "rpr-cli: data: wmt_mini_en_de: ")  # progress; pairs that are held out
    command = ["train", *settings, "logger=none", "model=tiny"]
    assert expected in refused(*command, remarks_start=remarks, nothing_written=False)
    assert {path.name for path in Path().iterdir()} <= {"corpus", "cache"}
    assert not [path for path in Path("cache").glob("*") if not path.name.endswith(KEPT_BY_DESIGN)]


# --- records, vocabularies, checkpoints and sentences of a run

COMMANDS = {
    "translate": ["translate", "run=RUN", "input=../in.txt", "hardware.threads=1"],
    "compare": ["compare", "RUN", "../runs/two"],
    "diff": ["diff", "RUN", "../runs/two"],
    "report of all": ["report", "runs_dir=RUN"],
}
FAILED = {"status": "failed", "error": "why"}
INTERRUPTED = {"status": "interrupted", "error": "Ctrl-C"}
MISFIT = "does not fit the run's configuration ("
UNREADABLE = "cannot be read as a checkpoint ("
DAMAGES = [
    # the record
    ("export", bad.replace_content("record.json", 100_000 * "["), "invalid JSON: recursion limit exceeded"),
    ("diff", bad.replace_content("record.json", lambda old: old.replace(b"one", b"\\ud800", 1)), "end of hex escape"),
    ("compare", bad.replace_by_link("record.json"), "invalid JSON: "),
    ("report of all", bad.replace_by_link("record.json"), "no run record to report"),
    # its configuration: no code is run, no path leads outside
    ("train", bad.set_config("model.d_ff", ..., **INTERRUPTED), "model.d_ff: missing; every"),
    ("train", bad.set_config("model._target_", "os.system", **INTERRUPTED), "model._target_: no such setting"),
    ("train", bad.set_config("name", "../../x", **INTERRUPTED), "name: invalid value '../../x': string should match"),
    ("evaluate", bad.set_config("data.hub_config", "../../x"), "data.hub_config: invalid value"),
    ("export", bad.update_record(**FAILED), "failed: why; its weights are not usable: finish the run first"),
    # other files
    ("translate", bad.replace_content("vocabulary.model", lambda old: old[:100]), "model; restore the run's own copy"),
    ("translate", bad.replace_vocabulary, "the checkpoint does"),
    ("evaluate", bad.replace_checkpoints(bad.with_another_byte), UNREADABLE),
    ("evaluate", bad.replace_by_link("checkpoints/*.ckpt"), UNREADABLE),
    ("evaluate", bad.PICKLED, UNREADABLE),
    ("verify", bad.PICKLED_BY_TORCH, UNREADABLE),
    ("evaluate", bad.set_config("model.d_ff", 32), MISFIT),
    ("evaluate", bad.resize_weights("step00000010.ckpt"), "belongs to another model than"),
    ("report", bad.replace_checkpoints(lambda path: [1]), "contains no state_dict"),
    ("translate", bad.remove_checkpoints, "no checkpoints; resume the run"),
    ("train", bad.all_of(bad.update_record(**INTERRUPTED), bad.replace_by_link(".lock")), ".lock"),
]


@pytest.mark.parametrize("command, damage, expected", DAMAGES)
def test_damaged_run_is_refused(run_dir, refused, command, damage, expected):
    damage(run_dir)
    usual = [command, "run=RUN", *(["hardware.threads=1"] if command != "train" else [])]
    assert expected in refused(*(word.replace("RUN", str(run_dir)) for word in COMMANDS.get(command, usual)))
    victim = run_dir.parent / "victim"
    assert not victim.exists() or victim.read_text().startswith("precious 0\n")


def test_report_opens_no_path_from_record(run_dir, tmp_path):
    """It follows no links, and opens no file that a record names."""
    bad.replace_by_link("test.hypotheses.txt")(run_dir)
    victim = str(run_dir.parent / "victim")
    wandb = {"id": "x", "mode": "online", "url": "javascript:alert(1)"}
    fields = {"command": f"rpr-cli train $(cat {victim})", "name": victim, "wandb": wandb, "config.runs_dir": victim}
    bad.set_config("data.path", victim, **fields)(run_dir)
    assert app.main(["report", "runs_dir=.", f"output_dir={tmp_path / 'reports'}"]) == 0
    written = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"precious" in path.read_bytes()]
    page = (tmp_path / "reports" / "all" / "index.html").read_text()
    assert 'href="javascript' not in page and "$(cat " in page


# --- resuming a damaged run


def interrupt(run):
    """Make it a run that was killed after its first checkpoint."""
    bad.update_record(status="running")(run)
    (run / "checkpoints" / "step00000020.ckpt").unlink()


def test_resume_names_a_damaged_checkpoint_and_replaces_links(run_dir, cli, refused, monkeypatch):
    """No code in a checkpoint is run, no link target is written, and no interpolation in the record is resolved."""
    monkeypatch.setenv("WANDB_API_KEY", "CanaryOfWandb")
    good, damaged = (run_dir / "checkpoints" / f"step000000{step}.ckpt" for step in (10, 15))
    content = good.read_bytes()
    bad.all_of(
        interrupt,
        bad.set_config("logger.project", "${oc.env:WANDB_API_KEY}"),
        bad.PICKLED_BY_TORCH,
        bad.replace_by_link("config.yaml", "test.hypotheses.txt", "test.sources.txt"),
    )(run_dir)
    good.rename(damaged)
    good.write_bytes(content)
    victim = (run_dir.parent / "victim").read_text()
    message = refused("train", f"run={run_dir}", nothing_written=False)
    assert "step00000015.ckpt: cannot be read as a checkpoint (" in message and damaged.exists()
    damaged.unlink()
    assert "precious" not in cli("train", f"run={run_dir}").err and not Path("pwned").exists()
    assert (run_dir.parent / "victim").read_text() == victim
    assert not any(path.is_symlink() for path in run_dir.iterdir())
    record = read_record(run_dir / "record.json")
    assert record.status == "finished" and record.config["logger"]["project"] == "${oc.env:WANDB_API_KEY}"
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"CanaryOf" in path.read_bytes()]

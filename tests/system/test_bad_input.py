"""Invalid and malicious input to the command line: arguments, corpora and damaged runs.

Each error is exit code 2, one line that begins with `rpr-cli: ` at the end of stderr, no traceback, nothing on stdout
and no file changed; no code named by a setting or a file runs, and no file outside the run is shown.
"""

import shlex
import shutil
from pathlib import Path

import pytest
from hydra.errors import HydraException

from rpr.cli import app
from rpr.commands import train
from rpr.errors import ConfigError
from rpr.paths import data_dir
from rpr.records.record import read_record
from rpr.scoring.metrics import check_installed
from tests.system import bad_files as bad
from tests.system.conftest import KEPT_BY_DESIGN

SHORT = (
    "optim.max_steps=8", "optim.warmup_steps=8", "optim.checkpoint_every_n_steps=4", "optim.keep_checkpoints=3",
    "optim.average_checkpoints=2", "evaluation.test_splits=[test]", "evaluation.beam_size=1",
    "evaluation.bootstrap_samples=0", "hardware.threads=1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """No credentials of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture(scope="module")
def trained(small_run, tmp_path_factory):
    """A folder with a trained run of sweep `mine` and a copy, runs/one and runs/two, and the files of bad_files."""
    here = tmp_path_factory.mktemp("trained")
    for name in ("one", "two"):
        shutil.copytree(small_run(*SHORT, "name=one", "sweep=mine"), here / "runs" / name)
    bad.write_bad_files(here, (data_dir("conf") / "model" / "tiny.yaml").read_text())
    return here


@pytest.fixture
def run_dir(trained, monkeypatch):
    """A copy of runs/one as the current directory."""
    here = trained / "damaged"
    shutil.rmtree(here, ignore_errors=True)
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


@pytest.mark.parametrize("words, kind", [(["train", "seed=x"], ConfigError), (["train", "+seed=2"], HydraException)])
def test_rpr_debug_raises_the_error(words, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RPR_DEBUG", "1")
    with pytest.raises(kind):
        app.main(words)


# --- corpora

CORPORA = {  # the contents of train.en and train.de, or of another file
    "unequal": ({"train.en": bad.LINES[: bad.LINES.index("Dora")], "train.de": bad.LINES}, "has 36 lines and"),
    "not packed": ({"train.en": bad.LINES, "train.de.gz": bad.LINES}, "cannot be read (Not a gzipped file"),
    "all too long": ({"train.en": bad.LINES, "train.de": bad.LINES}, "no usable pair in train (0 with an empty side, "),
    "both types": ({"train.jsonl": '{"en": 3, "de": "x"}\n{"en": "a", "de": "x"}'}, "holds int and str, not text"),
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Writes the files of tmp_path/corpus; the words of a command on it with its cache in tmp_path/cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()

    def write(files):
        for name, text in files.items():
            (tmp_path / "corpus" / name).write_text(text, "utf-8")
        return ["data=wmt_mini_en_de", "data.path=corpus", "data.vocabulary_size=50", "data.cache_dir=cache"]

    return write


def assert_no_cache(folder):
    assert {path.name for path in folder.iterdir()} <= {"corpus", "cache", "home"}
    assert not [path.name for path in folder.glob("cache/*") if not path.name.endswith(KEPT_BY_DESIGN)]


@pytest.mark.parametrize("files, expected", CORPORA.values(), ids=CORPORA)
def test_unusable_corpus_is_refused_and_leaves_no_cache(tmp_path, corpus, refused, files, expected):
    words = [*corpus(files), *(["data.max_length=2"] if "no usable" in expected else [])]
    assert expected in refused("prepare", *words, remarks_start="wmt_mini_en_de: ", nothing_written=False)
    assert_no_cache(tmp_path)


@pytest.mark.parametrize("language, expected", [
    ("zz", "data.target_language: sentences of zz have no spaces between words"),
    ("jpn", "evaluation.bleu_tokenizer: ja-mecab is not installed; pip install 'sacrebleu[ja]'"),
])  # fmt: skip
def test_bleu_that_cannot_be_computed_is_refused_before_training(
    tmp_path, corpus, refused, monkeypatch, language, expected
):
    text = "".join(f"{'猫犬鳥'[number % 3]}が好きです。\n" for number in range(60))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    check_installed.cache_clear()
    words = [*corpus({"train.en": bad.LINES, f"train.{language}": text}), f"data.target_language={language}"]
    words += ["logger=none", "model=tiny"]
    remarks = ("wmt_mini_en_de: ", "rpr-cli: data: wmt_mini_en_de: ")  # progress; pairs that are held out
    assert refused("train", *words, remarks_start=remarks, nothing_written=False).startswith(expected)
    if language == "jpn":  # known without reading the corpus
        assert refused("train", "-m", *words, "seed=1,2", nothing_written=False).startswith(expected)
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus", "cache", "home"}


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
    ("train", bad.replace_content("record.json", lambda old: old[:300]), "invalid JSON: "),
    ("export", bad.replace_content("record.json", 100_000 * "["), "invalid JSON: recursion limit exceeded"),
    ("diff", bad.replace_content("record.json", lambda old: old.replace(b"one", b"\\ud800", 1)), "end of hex escape"),
    ("compare", bad.replace_by_link("record.json"), "invalid JSON: "),
    ("report of all", bad.replace_by_link("record.json"), "no run record to report"),
    # its configuration: no code is run, no path leads outside
    ("evaluate", bad.set_config("model.depth", 3), "cannot read its configuration (model.depth: no such setting"),
    ("train", bad.set_config("model.d_ff", ..., **INTERRUPTED), "model.d_ff: missing; every"),
    ("train", bad.set_config("model._target_", "os.system", **INTERRUPTED), "model._target_: no such setting"),
    ("train", bad.set_config("name", "../../x", **INTERRUPTED), "name: invalid value '../../x': string should match"),
    ("evaluate", bad.set_config("data.hub_config", "../../x"), "data.hub_config: invalid value"),
    ("export", bad.set_config("seed", 1, **FAILED), "failed: why; its weights are not usable: finish the run first"),
    # other files
    ("translate", bad.replace_content("vocabulary.model", lambda old: old[:100]), "model; restore the run's own copy"),
    ("translate", bad.replace_vocabulary, "the checkpoint does"),
    ("evaluate", bad.replace_checkpoints(lambda old: old[:3000] + bytes([old[3000] ^ 255]) + old[3001:]), UNREADABLE),
    ("evaluate", bad.replace_by_link("checkpoints/*.ckpt"), UNREADABLE),
    ("evaluate", bad.PICKLED, UNREADABLE),
    ("verify", bad.PICKLED_BY_TORCH, UNREADABLE),
    ("evaluate", bad.set_config("model.d_ff", 32), MISFIT),
    ("evaluate", bad.resize_weights("step00000004.ckpt"), "belongs to another model than"),
    ("report", bad.replace_checkpoints([1]), "contains no state_dict"),
    ("translate", bad.remove_checkpoints, "no checkpoints; resume the run"),
    ("train", bad.all_of(bad.set_config("seed", 1, **INTERRUPTED), bad.replace_by_link(".lock")), ".lock"),
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
    victim = run_dir.parent / "victim"
    wandb = {"id": "x", "mode": "online", "url": "javascript:alert(1)"}
    command = f"rpr-cli train $(cat {victim})"
    bad.set_config("data.path", str(victim), command=command, name=str(victim), wandb=wandb)(run_dir)
    bad.set_config("runs_dir", str(victim))(run_dir)
    assert app.main(["report", "runs_dir=.", f"output_dir={tmp_path / 'reports'}"]) == 0
    written = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"precious" in path.read_bytes()]
    page = (tmp_path / "reports" / "all" / "index.html").read_text()
    assert 'href="javascript' not in page and "$(cat " in page


# --- resuming a damaged run

RESUMED = {
    "metrics": (
        bad.replace_content("metrics.jsonl", lambda old: b"{oops\n" + old),
        "metrics.jsonl:1: not a line of metrics; delete",
    ),
    "code in a checkpoint": (bad.PICKLED_BY_TORCH, UNREADABLE),
}


def contents(run):
    """Every file but those that are written at each start."""
    written = ("record.json", "config.yaml", ".lock", "vocabulary.model")
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in written}


@pytest.mark.parametrize("damage, expected", RESUMED.values(), ids=RESUMED)
def test_resume_of_damaged_run_is_refused(run_dir, refused, damage, expected):
    """Before a step is taken; the record has the reason."""
    bad.all_of(bad.interrupt, damage)(run_dir)
    before = contents(run_dir)
    assert expected in refused("train", f"run={run_dir}", nothing_written=False)
    record = read_record(run_dir / "record.json")
    assert record.status == "failed" and record.error is not None and expected in record.error
    assert contents(run_dir) == before and not Path("pwned").exists()


def test_resume_replaces_links(run_dir, cli, monkeypatch):
    """No link target is written, and no interpolation in the record is resolved."""
    monkeypatch.setenv("WANDB_API_KEY", "CanaryOfWandb")
    bad.all_of(
        bad.interrupt,
        bad.set_config("logger.project", "${oc.env:WANDB_API_KEY}"),
        bad.replace_by_link("config.yaml", "test.hypotheses.txt", "test.sources.txt"),
    )(run_dir)
    victim = (run_dir.parent / "victim").read_text()
    assert "precious" not in cli("train", f"run={run_dir}").err
    assert (run_dir.parent / "victim").read_text() == victim
    assert not any(path.is_symlink() for path in run_dir.iterdir())
    record = read_record(run_dir / "record.json")
    assert record.status == "finished" and record.config["logger"]["project"] == "${oc.env:WANDB_API_KEY}"
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"CanaryOf" in path.read_bytes()]

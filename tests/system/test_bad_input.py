"""The command line against someone who wants to break it, in process. Each attack is a row: what is typed, or a file
that it names, and a part of the answer. Each refusal is exit code 2, one line that begins with `rpr-cli: ` as the last
of stderr, nothing on stdout, no traceback, and every file as it was before; no code runs that a setting or a file
names, and no file outside a run is shown. Where an input is legal after all, what is done with it is asserted.
"""

import json
import resource
import shlex
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hydra.errors import OverrideParseException

from rpr.cli import app
from rpr.commands import train
from rpr.errors import ConfigError
from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY
from tests.system import bad_files as bad

KEPT_BY_DESIGN = (".lock", "digests.json")  # who removes a lock lets two in; digests of files are only remembered
SHORT = (
    "optim.max_steps=8", "optim.checkpoint_every_n_steps=4", "optim.keep_checkpoints=3", "optim.average_checkpoints=2",
    "evaluation.test_splits=[test]", "evaluation.beam_size=1", "evaluation.bootstrap_samples=0", "hardware.threads=1",
)  # fmt: skip


def tree(root):
    """Every file or link with its size and time of change, every folder by its name alone."""
    found = {}
    for path in root.rglob("*"):
        if not path.name.endswith(KEPT_BY_DESIGN):
            state = path.lstat()
            folder = path.is_dir() and not path.is_symlink()
            found[str(path)] = None if folder else (state.st_size, state.st_mtime_ns)
    return found


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """No key, hub or proxy of the person who runs the tests; threads as they were."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as app sets it; undone after the test
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("NETRC", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cache_dir):
    """A folder with runs/one and runs/two, of sweep `mine`, trained for a few steps, and all files of bad_files."""
    here = tmp_path_factory.mktemp("trained")
    for name, position in (("one", "relative"), ("two", "absolute")):
        words = [f"name={name}", f"position={position}", "sweep=mine", f"data.cache_dir={cache_dir}"]
        assert app.main(["train", *TINY, *SHORT, *words, f"runs_dir={here / 'made'}"]) == 0
        (here / "runs").mkdir(exist_ok=True)
        next((here / "made").glob(f"{name}-*")).rename(here / "runs" / name)
    (here / "made").rmdir()
    bad.put(here, (data_dir("conf") / "model" / "tiny.yaml").read_text())
    return here


@pytest.fixture
def run_dir(trained, monkeypatch):
    """A copy of runs/one, which is the folder where commands are typed."""
    here = trained / "damaged"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(trained / "runs" / "one", here)
    monkeypatch.chdir(here)
    yield here
    shutil.rmtree(here)


@pytest.fixture
def refused(capfd):
    """The one line of a refusal, without its beginning."""

    def run(*words, may="\0", nothing_written=True):
        """`may`: how earlier lines on stderr may begin; `nothing_written` below this folder."""
        before = tree(Path.cwd())
        capfd.readouterr()
        code = app.main(list(words))
        out, err = capfd.readouterr()
        *remarks, line = err.splitlines() or [""]
        assert (code, out) == (2, ""), (code, out, err)
        assert line.startswith("rpr-cli: ") and len(line) > 25 and err.endswith("\n"), err
        assert all(remark.startswith(may) for remark in remarks), err
        assert "Traceback" not in err and "HYDRA_FULL_ERROR" not in err and "precious" not in err
        assert not nothing_written or tree(Path.cwd()) == before
        assert not Path("pwned").exists()
        return line.removeprefix("rpr-cli: ")

    return run


ROWS = Path(__file__).with_name("refused.tsv").read_text().splitlines()
REFUSED = [row.split("\t") for row in ROWS if not row.startswith("# ")]


@pytest.mark.parametrize("typed, answer", REFUSED, ids=[row[0] for row in REFUSED])
def test_words(trained, refused, monkeypatch, typed, answer):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(train, "work", None)  # nothing may come so far
    monkeypatch.setattr(train, "_run_worker", None)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "srun" else which(name))  # as without SLURM
    said = refused(*shlex.split(typed), may="rpr-cli: not as recorded")
    part = answer.removeprefix("...")
    assert part in said if answer.startswith("...") else said.startswith(part), said


@pytest.mark.parametrize(
    "words, kind", [(["train", "seed=x"], ConfigError), (["train", "seed=[1"], OverrideParseException)]
)
def test_the_traceback_is_there_on_request(words, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RPR_DEBUG", "1")
    with pytest.raises(kind):
        app.main(words)


# --- corpora

BAD_UTF8 = "".join(f"{pair[1]}\n" for pair in bad.NAMES[:-1]).encode() + b"caf\xe9 .\n"
HALF = "".join(f"{pair[0]}\n" for pair in bad.NAMES[:30]).encode()
EMPTY_LINE = b"\n" + HALF + HALF[HALF.index(b"\n") + 1 :]
NO_TEXT = pa.array([], pa.string())
CORPORA = {
    "empty folder": (lambda folder: None, "no usable files in"),
    "one side absent": (bad.one_side, "train.en has no counterpart"),
    "both sides empty": (bad.lines(b"", b""), "split train of"),
    "unequal": (bad.lines(HALF), "has 30 lines and"),
    "blank lines alone": (bad.lines(60 * b"\n", 60 * b" \n"), "no sentence to learn a vocabulary from"),
    "one pair": (bad.lines(b"a b .\n", b"c d .\n"), "1 train pairs are too few to hold out test and validation"),
    "one pair again and again": (
        bad.lines(60 * b"a b .\n", 60 * b"c d .\n"),
        "each of the 54 train pairs equals a held-out pair",
    ),
    "not UTF-8": (bad.lines(None, BAD_UTF8), "train.de is not UTF-8 (byte 0xe9 at 3); convert the file"),
    "an empty line in test": (bad.lines(EMPTY_LINE, split="test"), "is empty; a scored split"),
    "no train": (bad.no_train, "has no train split (available: test); it needs one"),
    "not packed": (bad.packed_badly, "cannot be read (Not a gzipped file"),
    "vocabulary too large": (bad.lines(), "5000 is more than this corpus supports", "data.vocabulary_size=5000"),
    "vocabulary too small": (bad.lines(), "16 is too few for the characters", "data.vocabulary_size=16"),
    "all too long": (bad.lines(), "no usable pair in train (0 with an empty side, ", "data.max_length=2"),
    "other columns": (bad.parquet(text=["a"], label=[1]), "no 'en' in the columns of train in"),
    "another language": (bad.parquet(translation=[{"en": "a", "fr": "b"}]), "no 'de' in the translation col"),
    "numbers": (bad.parquet(en=[1, 2], de=[3, 4]), "'en' in the columns of train in corpus holds int64, not"),
    "gaps": (bad.parquet(en=["a"], de=pa.nulls(1)), "'de' in the columns of train in corpus holds only nulls"),
    "no rows": (bad.parquet(en=NO_TEXT, de=NO_TEXT), "data"),
    "JSON of both types": (
        bad.text_files(train_jsonl='{"en": 3, "de": "x"}\n{"en": "a", "de": "x"}'),
        "of several types",
    ),
    "JSON with CSV": (
        bad.text_files(train_jsonl='{"en": "a", "de": "b"}', test_csv="en,de\na,b\n"),
        "(Couldn't infer the same data file format",
    ),
    "an empty CSV": (bad.text_files(train_csv=""), "cannot be read as a dataset (No columns to parse from file)"),
}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The command that prepares tmp_path/corpus, a good one, into tmp_path/cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    bad.lines()(tmp_path / "corpus")
    words = ["data=wmt_mini_en_de", "data.path=corpus", "data.vocabulary_size=60", "data.cache_dir=cache"]
    return ["prepare", *words, "format=json"]


@pytest.mark.parametrize("make, answer, words", [(row[0], row[1], row[2:]) for row in CORPORA.values()], ids=CORPORA)
def test_corpora(tmp_path, corpus, refused, make, answer, words):
    """And nothing of what was prepared is left, so that a corpus that was fixed is not taken for the bad one."""
    for path in (tmp_path / "corpus").iterdir():
        path.unlink()
    make(tmp_path / "corpus")
    assert answer in refused(*corpus, *words, may="wmt_mini_en_de: ", nothing_written=False)
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus", "cache", "home"}
    left = [path.name for path in tmp_path.glob("cache/*") if not path.name.endswith(KEPT_BY_DESIGN)]
    assert left in ([], ["arrow"])


def test_legal_lines(tmp_path, corpus, capfd):
    """In train they are taken without what is no text, or left out and counted; in test they come out as one line."""
    legal = [
        b"Ann sees a dog .\r\n", b"Ann\0sees\0\0a dog .\n", "Ann\u00a0sees\u2028a dog .\n".encode(), b"Ann sees a dog ."
    ]  # fmt: skip
    start = b"\xef\xbb\xbf"  # a byte order mark
    left_out = [b"Ann " * 250_000 + b"\n", b"\n"]
    own = [f"{source}\n".encode() for source, _ in bad.NAMES[len(legal) + len(left_out) :]]
    bad.lines(start + b"".join([*own, *left_out, *legal]))(tmp_path / "corpus")
    for split in ("validation", "test"):
        for language in ("en", "de"):
            (tmp_path / "corpus" / f"{split}.{language}").write_bytes(start + b"".join(legal))
    assert app.main(corpus) == 0
    data = json.loads(capfd.readouterr().out)["data"]
    assert data["dropped"] == {"train": {"empty": 1, "too_long": 1}}
    assert data["splits"]["train"]["pairs"] == len(bad.NAMES) - 2
    (text,) = (tmp_path / "cache").glob("wmt*/test.source.txt")
    assert text.read_text() == len(legal) * "Ann sees a dog .\n"


def test_a_damaged_cache_is_rebuilt_with_a_warning(tmp_path, corpus, capfd, caplog):
    assert app.main(corpus) == 0
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.name.startswith("wmt"))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for damage in (
        bad.content("meta.json", lambda old: old.replace(b'"counts"', b'"numbers"')),
        bad.content("train.source.pieces", lambda old: old[:-1]),
        bad.folder_instead("test.source.txt"),
        bad.another_vocabulary,
    ):
        damage(folder)
        caplog.clear()
        assert app.main(corpus) == 0
        assert f"token cache {folder} is damaged (" in caplog.text and "rebuilding it" in caplog.text
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert "Traceback" not in capfd.readouterr().err


def test_wrong_remembered_digests_are_computed_again(tmp_path, corpus, capfd):
    source, keys = tmp_path / "corpus" / "train.en", set()
    for text in ("{}", "{", "[]", '{"PATH": [1]}', '{"PATH": "x"}', '{"PATH": [0, 0, "0"]}', "\xff"):
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / "digests.json").write_text(text.replace("PATH", str(source)), "latin-1")
        assert app.main(corpus) == 0
        keys.add(json.loads(capfd.readouterr().out)["data"]["key"])
    assert len(keys) == 1


# --- records, vocabularies, checkpoints and sentences of a run

COMMANDS = {
    "train": ["train", "run=RUN"],
    "evaluate": ["evaluate", "run=RUN", "hardware.threads=1"],
    "translate": ["translate", "run=RUN", "input=../in.txt", "hardware.threads=1"],
    "export": ["export", "run=RUN", "hardware.threads=1"],
    "verify": ["verify", "run=RUN", "hardware.threads=1"],
    "report": ["report", "run=RUN", "hardware.threads=1"],
    "compare": ["compare", "RUN", "../runs/two"],
    "diff": ["diff", "RUN", "../runs/two"],
    "rerun": ["rerun", "RUN"],
    "report of all": ["report", "runs_dir=RUN"],
}
FAILED = {"status": "failed", "error": "why"}
INTERRUPTED = {"status": "interrupted", "error": "Ctrl-C"}
MISFIT = "does not fit the run's configuration ("
UNREADABLE = "cannot be read as a checkpoint ("
DAMAGES = [
    # the record: each command meets one fault at least
    ("train", bad.content("record.json", lambda old: old[:300]), "truncated or not JSON (line "),
    ("evaluate", bad.content("record.json", ""), "truncated or not JSON (line 1, column 1: Expecting value)"),
    ("translate", bad.content("record.json", "[]"), "a run record is a JSON object, this is a list"),
    ("export", bad.content("record.json", 100_000 * "["), "not a record (brackets nested too deeply)"),
    ("verify", bad.content("record.json", b"\xff\xfe\x00"), "cannot be read ("),
    ("report", bad.record(lambda document: document.update(schema=99)), "schema 99 is newer than 2"),
    ("compare", bad.record(lambda document: document.update(schema="1")), "schema: "),
    ("diff", bad.record(lambda document: document.update(seed="one")), "seed: "),
    ("rerun", bad.record(lambda document: document.update(speed=1)), "speed: "),
    ("diff", bad.content("record.json", lambda old: old.replace(b"one", b"\\ud800", 1)), "end of hex escape"),
    ("diff", bad.record(lambda document: document.update(config={})), "config.model.name: missing"),
    ("evaluate", bad.setting("position.clip_distance", "x"), "position.clip_distance: invalid value 'x'"),
    ("report", bad.folder_instead("record.json"), "cannot be read ("),
    ("diff", bad.linked("record.json"), "truncated or not JSON (line 1"),
    ("train", bad.linked("record.json"), "truncated or not JSON (line 1"),
    ("report of all", bad.linked("record.json"), "no run record to report"),
    # its configuration: no code, and no place outside
    ("rerun", bad.setting("optim.max_steps", 0), "this version of rpr cannot run its config"),
    ("evaluate", bad.setting("model.depth", 3), "model.depth: no such setting"),
    ("train", bad.setting("model.d_ff", ..., **INTERRUPTED), "model.d_ff: missing; every"),
    ("verify", bad.setting("data.max_length", [1]), "data.max_length: invalid value [1]"),
    ("train", bad.setting("model._target_", "os.system", **INTERRUPTED), "model._target_: no such setting"),
    ("rerun", bad.setting("hydra", {"launcher": {"_target_": "os.system"}}), "hydra: no such setting"),
    ("train", bad.setting("name", "../../x", **INTERRUPTED), "name: '../../x' is not a valid folder name"),
    ("rerun", bad.setting("sweep", "/x"), "sweep: '/x' is not a valid folder name"),
    ("evaluate", bad.setting("data.hub_config", "../../x"), "cannot be part of a file name"),
    ("evaluate", bad.setting("data.cache_dir", "a\0b"), "it contains a NUL character"),
    ("export", bad.setting("seed", 1, **FAILED), "failed: why; its weights are not usable: finish the run first"),
    # other files
    ("translate", bad.content("vocabulary.model", lambda old: old[:100]), "vocabulary.model: not a sentence"),
    ("translate", bad.another_vocabulary, "the checkpoint does"),
    ("translate", bad.folder_instead("vocabulary.model"), "vocabulary.model: cannot"),
    ("evaluate", bad.each_checkpoint(lambda old: old[:3000] + bytes([old[3000] ^ 255]) + old[3001:]), UNREADABLE),
    ("evaluate", bad.linked("checkpoints/*.ckpt"), UNREADABLE),
    ("evaluate", bad.PICKLED, UNREADABLE),
    ("verify", bad.PICKLED_BY_TORCH, UNREADABLE),
    ("evaluate", bad.checkpoints(bad.other_sizes), MISFIT),
    ("evaluate", bad.setting("model.d_ff", 32), MISFIT),
    ("evaluate", bad.one_of_another_model, "belongs to another model than"),
    ("export", bad.checkpoints(lambda loaded: loaded.update(state_dict=[1])), "contains no state_dict; give"),
    ("report", bad.each_checkpoint([1]), "contains no state_dict"),
    ("translate", lambda run: shutil.rmtree(run / "checkpoints"), "no checkpoints; resume the run"),
    ("evaluate", bad.file_instead("evaluations"), "alpha0.6 cannot be created (Not a directory)"),
    ("export", bad.file_instead("exports"), "exports/safetensors cannot be written (Not a directory)"),
    ("train", bad.together(bad.setting("seed", 1, **INTERRUPTED), bad.linked(".lock")), ".lock"),
]


@pytest.mark.parametrize("command, damage, answer", DAMAGES)
def test_a_damaged_run(run_dir, refused, command, damage, answer):
    damage(run_dir)
    assert answer in refused(*(word.replace("RUN", str(run_dir)) for word in COMMANDS[command]))
    victim = run_dir.parent / "victim"
    assert not victim.exists() or victim.read_text().startswith("precious 0\n")


def test_a_damaged_record_among_others(run_dir, trained, monkeypatch, capfd):
    """Legal for a command that reads many: it is named, and the others are read."""
    monkeypatch.chdir(trained)
    bad.content("record.json", "{")(run_dir)
    assert app.main(["compare", "sweep=mine", f"runs_dir={trained}", "samples=100", "trials=100"]) == 0
    out, err = capfd.readouterr()
    assert f"left out: {run_dir}/record.json: truncated or not JSON" in err and "Traceback" not in err
    assert {"one", "two"} <= set(out.split())


def test_a_report_opens_no_path_of_a_record(run_dir, tmp_path):
    """Paths are shown as they are; nor does it show what links to sentences lead to."""
    bad.linked("test.hypotheses.txt")(run_dir)
    victim = run_dir.parent / "victim"
    wandb = {"id": "x", "mode": "online", "url": "javascript:alert(1)"}
    command = f"rpr-cli train $(cat {victim})"
    bad.setting("data.path", str(victim), command=command, name=str(victim), wandb=wandb)(run_dir)
    bad.setting("runs_dir", str(victim))(run_dir)
    assert app.main(["report", "runs_dir=.", f"output_dir={tmp_path / 'reports'}"]) == 0
    written = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"precious" in path.read_bytes()]
    page = (tmp_path / "reports" / "all" / "index.html").read_text()
    assert 'href="javascript' not in page and "$(cat " in page


# --- resuming a damaged run: refused before a step is taken, and the record says why

LINE = "metrics.jsonl:1: a line of metrics "
RESUMED = {
    "metrics damaged": (bad.content("metrics.jsonl", lambda old: b"{oops\n" + old), LINE),
    "metrics without step": (bad.content("metrics.jsonl", lambda old: b"{}\n" + old), "delete it, and the same"),
    "metrics a folder": (bad.folder_instead("metrics.jsonl"), "metrics.jsonl: cannot be read (Is a directory)"),
    "weights of other sizes": (bad.checkpoints(bad.other_sizes), "cannot resume from it (its weights"),
    "an older checkpoint": (bad.checkpoints(lambda loaded: loaded.pop("loops") and None), "from it (it has no loops)"),
    "vocabulary a folder": (bad.folder_instead("vocabulary.model"), "vocabulary.model: cannot be read or written"),
}


def contents(run):
    """Of every file but those that are written at each start."""
    written = ("record.json", "job.json", "config.yaml", ".lock", "vocabulary.model")
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in written}


@pytest.mark.parametrize("damage, answer", RESUMED.values(), ids=RESUMED)
def test_resuming(run_dir, refused, damage, answer):
    bad.together(bad.interrupted, damage)(run_dir)
    before = contents(run_dir)
    assert answer in refused("train", f"run={run_dir}", nothing_written=False)
    left = read_record(run_dir / "record.json")
    assert left.status == "failed" and left.error is not None
    assert answer in left.error or "Is a directory" in left.error
    assert contents(run_dir) == before


def test_checkpoints_in_a_file(run_dir, refused):
    """None is left to resume from, so the run would start from scratch."""
    bad.together(bad.interrupted, bad.file_instead("checkpoints"))(run_dir)
    said = refused("train", f"run={run_dir}", nothing_written=False, may="training: ")
    assert "checkpoints: checkpoints cannot be written there (" in said
    assert (run_dir / "checkpoints").read_text() == "x"


@pytest.mark.parametrize("name", [".lock", "record.json"])
def test_a_folder_in_place_of_a_file_of_a_new_run(tiny, tiny_config, refused, monkeypatch, name):
    config = tiny_config()
    run = Path(config.runs_dir) / config.run_dir_name
    (run / name).mkdir(parents=True)
    monkeypatch.chdir(run.parent)
    said = refused("train", *tiny, nothing_written=False)
    assert "cannot be" in said and str(run) in said


def test_resuming_past_damaged_checkpoints_and_links(run_dir, capfd, monkeypatch):
    """Legal: checkpoints are set aside, with a line each; code in them is never run; a link is replaced, and not the
    file that it leads to; and a record is text: what would be filled in if it were typed stays.
    """
    monkeypatch.setenv("WANDB_API_KEY", "CanaryOfWandb")
    bad.together(
        bad.interrupted,
        bad.setting("logger.project", "${oc.env:WANDB_API_KEY}"),
        bad.PICKLED_BY_TORCH,
        bad.linked("config.yaml", "job.json", "vocabulary.model", "test.hypotheses.txt", "test.sources.txt"),
    )(run_dir)
    (run_dir / "checkpoints" / "step00000006.ckpt").symlink_to(run_dir.parent / "victim")
    victim = (run_dir.parent / "victim").read_text()
    assert app.main(["train", f"run={run_dir}"]) == 0
    err = capfd.readouterr().err
    assert "step00000004.ckpt: cannot be read as a checkpoint (" in err and "precious" not in err
    assert not Path("pwned").exists() and (run_dir / "checkpoints" / "step00000004.ckpt.damaged").exists()
    assert (run_dir.parent / "victim").read_text() == victim
    assert not any(path.is_symlink() for path in run_dir.iterdir())
    left = read_record(run_dir / "record.json")
    assert left.status == "finished" and left.config["logger"]["project"] == "${oc.env:WANDB_API_KEY}"
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"CanaryOf" in path.read_bytes()]


# --- no space


@pytest.mark.parametrize("command", ["prepare", "export", "report"])
def test_no_space(trained, run_dir, refused, tmp_path, command):
    """A limit on the size of files stands for it."""
    words = {
        "prepare": ["prepare", f"data.cache_dir={tmp_path / 'cache'}", "data.synthetic.num_train=500"],
        "export": ["export", f"run={run_dir}", "sentences=2", "hardware.threads=1"],
        "report": ["report", f"run={run_dir}", "hardware.threads=1"],
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        said = refused(*words[command], may="synthetic: ")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "File too large" in said
    assert not list(tmp_path.glob("cache/.*.partial")) and not list(run_dir.glob("exports/*"))

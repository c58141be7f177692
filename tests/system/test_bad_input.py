"""Checked here: the command line against someone who wants to break it, in process. Each attack is a row: words, or a
file that they name, and a telling piece of what is answered. Each refusal is exit code 2, one line that begins with
`rpr-cli: ` as the last of stderr, nothing on stdout, no traceback, and every file as it was before; no code runs that a
setting or a file names. Where an input is legal after all, what is done with it is asserted.
"""

from __future__ import annotations

import json
import resource
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hydra.errors import OverrideParseException

from rpr.cli import app
from rpr.commands import train
from rpr.errors import ConfigError, DataError, RecordError
from rpr.paths import data_dir
from rpr.records.record import read_record
from tests.conftest import TINY
from tests.system import bad_files
from tests.system.bad_files import (
    all_checkpoints,
    as_cut,
    checkpoints,
    content,
    folder_instead,
    lines,
    newest,
    no_train,
    one_side,
    other_sizes,
    packed_badly,
    parquet,
    record,
    renamed,
    setting,
    side_is_a_folder,
    text_file,
    together,
)  # fmt: skip

KEPT_BY_DESIGN = (".lock", "digests.json")  # who removes a lock lets two in; digests of files are only remembered
SHORT = (
    "optim.max_steps=8", "optim.checkpoint_every_n_steps=4", "optim.keep_checkpoints=3", "optim.average_checkpoints=2",
    "evaluation.test_splits=[test]", "evaluation.beam_size=1", "evaluation.bootstrap_samples=0", "hardware.threads=1",
)  # fmt: skip
Refused = Callable[..., str]


def tree(root: Path) -> dict[str, Any]:
    """Every file with its size and time of change, every folder by its name alone."""
    found = {}
    for path in root.rglob("*"):
        if not path.name.endswith(KEPT_BY_DESIGN):
            state = path.lstat()
            found[str(path)] = None if path.is_dir() else (state.st_size, state.st_mtime_ns)
    return found


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No key, hub or proxy of the person who runs the tests; threads as they were."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as app sets it; undone after the test
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("NETRC", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """A folder with runs/one and runs/two, of sweep `mine`, trained for a few steps, and all files of bad_files."""
    here = tmp_path_factory.mktemp("trained")
    for name, position in (("one", "relative"), ("two", "absolute")):
        words = [f"name={name}", f"position={position}", "sweep=mine", f"data.cache_dir={cache_dir}"]
        assert app.main(["train", *TINY, *SHORT, *words, f"runs_dir={here / 'made'}"]) == 0
        (here / "runs").mkdir(exist_ok=True)
        next((here / "made").glob(f"{name}-*")).rename(here / "runs" / name)
    (here / "made").rmdir()
    bad_files.put(here, (data_dir("conf") / "model" / "tiny.yaml").read_text())
    return here


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """The one line of a refusal, without its beginning."""

    def run(*words: str, may: str = "\0", nothing_written: bool = True) -> str:
        """`may`: how remarks may begin that stand on stderr before; `nothing_written` below this folder."""
        before = tree(Path.cwd())
        capfd.readouterr()
        code = app.main(list(words))
        out, err = capfd.readouterr()
        *remarks, line = err.splitlines() or [""]
        assert (code, out) == (2, ""), (code, out, err)
        assert line.startswith("rpr-cli: ") and len(line) > 25 and err.endswith("\n"), err
        assert all(remark.startswith(may) for remark in remarks), err
        assert "Traceback" not in err and "HYDRA_FULL_ERROR" not in err
        assert not nothing_written or tree(Path.cwd()) == before
        assert not Path("pwned").exists()
        return line.removeprefix("rpr-cli: ")

    return run


ROWS = Path(__file__).with_name("refused.tsv").read_text().splitlines()
REFUSED = [row.split("\t") for row in ROWS if not row.startswith("# ")]


@pytest.mark.parametrize("typed, telling", REFUSED, ids=[row[0] for row in REFUSED])
def test_words(trained: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, typed: str, telling: str) -> None:
    monkeypatch.chdir(trained)
    monkeypatch.setattr(train, "work", None)  # nothing may come so far
    monkeypatch.setattr(train, "_run_worker", None)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "srun" else which(name))  # as without SLURM
    said = refused(*shlex.split(typed.replace("LONG", 300 * "a")), may="rpr-cli: not as recorded")
    within = telling.removeprefix("...")
    assert within in said if telling.startswith("...") else said.startswith(within), said


# --- corpora

HALF = "".join(f"{pair[0]}\n" for pair in bad_files.NAMES[:30]).encode()
NO_TEXT = pa.array([], pa.string())
BAD_UTF8 = "".join(f"{pair[1]}\n" for pair in bad_files.NAMES[:-1]).encode() + b"caf\xe9 .\n"
CORPORA: list[tuple[str, bad_files.Make, list[str], str]] = [
    ("empty folder", lambda folder: None, [], "no usable files in"),
    ("one side absent", one_side, [], "train.en has no counterpart"),
    ("one side a folder", side_is_a_folder, [], "train.en has no counterpart"),
    ("both sides empty", lines(b"", b""), [], "split train of"),
    ("one side empty", lines(b""), [], "has 0 lines and"),
    ("unequal", lines(HALF), [], "has 30 lines and"),
    ("unequal test", lines(HALF, split="test"), [], "test.en has 30 lines and"),
    ("blank lines alone", lines(60 * b"\n", 60 * b" \n"), [], "no sentence to learn a vocabulary from"),
    ("one pair", lines(b"a b .\n", b"c d .\n"), [], "1 train pairs are too few to hold out test and validation"),
    (
        "one pair again and again",
        lines(60 * b"a b .\n", 60 * b"c d .\n"),
        [],
        "each of the 54 train pairs equals a held-out pair, which leaves nothing to train on; add other",
    ),
    ("not UTF-8", lines(None, BAD_UTF8), [], "train.de is not UTF-8 (byte 0xe9 at 3); convert the file"),
    ("UTF-16", lines("".join(f"{a}\n" for a, _ in bad_files.NAMES).encode("utf-16")), [], " lines and "),
    ("binary", lines(60 * b"\x80\xff\n"), [], "line 55 of"),  # of those held out, which are read first
    (
        "an empty line in test",
        lines(b"\n" + HALF + HALF[HALF.index(b"\n") + 1 :], split="test"),
        [],
        "is empty; a scored split",
    ),
    ("no train", no_train, [], "has no train split (available: test); it needs one"),
    ("not packed", packed_badly, [], "cannot be read (Not a gzipped file"),
    (
        "vocabulary too large",
        lines(),
        ["data.vocabulary_size=5000"],
        "5000 is more than this corpus supports; it yields",
    ),
    ("vocabulary too small", lines(), ["data.vocabulary_size=16"], "16 is too few for the characters of this corpus"),
    ("all too long", lines(), ["data.max_length=2"], "no usable pair in train (0 with an empty side, "),
    ("another language", lines(), ["data.target_language=cs"], "train.en has no counterpart"),
    ("parquet with other columns", parquet(text=["a"], label=[1]), [], "no 'en' in the columns of train in"),
    (
        "parquet with another language",
        parquet(translation=[{"en": "a", "fr": "b"}]),
        [],
        "no 'de' in the translation col",
    ),
    (
        "parquet of numbers",
        parquet(en=[1, 2], de=[3, 4]),
        [],
        "'en' in the columns of train in corpus holds int64, not",
    ),
    (
        "parquet with numbers in one language",
        parquet(translation=60 * [{"en": "a", "de": 1}]),
        [],
        "data.target_language: 'de' in the translation column of train in corpus holds int64, not text; store its",
    ),
    ("parquet of lists", parquet(en=[["a"]], de=["b"]), [], "'en' in the columns of train in corpus holds list<"),
    (
        "parquet of gaps",
        parquet(en=["a"], de=pa.nulls(1)),
        [],
        "'de' in the columns of train in corpus holds only nulls",
    ),
    ("parquet with plain text as translation", parquet(translation=["a"]), [], "no 'en' in the translation column of"),
    ("parquet without rows", parquet(en=NO_TEXT, de=NO_TEXT), [], "data"),
    ("parquet that is none", text_file("train.parquet", b"PAR1 no"), [], "cannot be read as a dataset ("),
    ("JSON that is none", text_file("train.json", "{"), [], "cannot be read as a dataset ("),
    (
        "JSON of numbers",
        text_file("train.jsonl", 60 * '{"en": 3, "de": "x"}\n'),
        [],
        "train in corpus holds int64, not",
    ),
    (
        "JSON of both",
        text_file("train.jsonl", '{"en": 3, "de": "x"}\n{"en": "a", "de": "x"}'),
        [],
        "of several types, not",
    ),
    (
        "JSON beside CSV",
        together(text_file("train.jsonl", '{"en": "a", "de": "b"}'), text_file("test.csv", "en,de\na,b\n")),
        [],
        "cannot be read as a dataset (Couldn't infer the same data file format",
    ),
    (
        "CSV that is empty",
        text_file("train.csv", ""),
        [],
        "cannot be read as a dataset (No columns to parse from file)",
    ),
    ("CSV with one column", text_file("train.csv", "en\na\n"), [], "no 'de' in the columns of train in"),
]


@pytest.mark.parametrize("make, words, telling", [row[1:] for row in CORPORA], ids=[row[0] for row in CORPORA])
def test_corpora(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
    make: bad_files.Make,
    words: list[str],
    telling: str,
) -> None:
    """And nothing of what was prepared is left, so that a corpus that was mended is not taken for the bad one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    make(tmp_path / "corpus")
    command = ["data=wmt_mini_en_de", "data.path=corpus", "data.vocabulary_size=60", *words]
    said = refused("prepare", *command, "data.cache_dir=cache", may="wmt_mini_en_de: ", nothing_written=False)
    assert telling in said
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus", "cache", "home"}
    left = [
        path for path in tmp_path.glob("cache/*") if not path.name.endswith(KEPT_BY_DESIGN) and path.name != "arrow"
    ]
    assert left == []


# --- records, vocabularies, checkpoints and metrics of runs

RECORDS: dict[str, tuple[bad_files.Make, str]] = {
    "truncated": (content("record.json", lambda old: old[:300]), "truncated or not JSON (line "),
    "empty": (content("record.json", ""), "truncated or not JSON (line 1, column 1: Expecting value)"),
    "a list": (content("record.json", "[]"), "a run record is a JSON object, this is a list"),
    "nested": (content("record.json", 100_000 * "["), "not a record (brackets nested too deeply)"),
    "binary": (content("record.json", b"\xff\xfe\x00"), "cannot be read ("),
    "newer": (record(lambda document: document.update(schema=99)), "schema 99 is newer than 2"),
    "schema a word": (record(lambda document: document.update(schema="1")), "schema: "),
    "a wrong field": (record(lambda document: document.update(seed="one")), "seed: "),
    "an unknown field": (record(lambda document: document.update(speed=1)), "speed: "),
    "a lone surrogate": (content("record.json", lambda old: old.replace(b"one", b"\\ud800", 1)), "end of hex escape"),
    "no configuration": (record(lambda document: document.update(config={})), "config.model.name: missing"),
    "k is a word": (
        setting("position.clip_distance", "x"),
        "position.clip_distance: invalid value 'x': input should be a valid integer",
    ),
    "a folder": (folder_instead("record.json"), "cannot be read ("),
}
READERS = {
    "train": ["train", "run=RUN"],
    "evaluate": ["evaluate", "run=RUN"],
    "translate": ["translate", "run=RUN", "input=../in.txt"],
    "export": ["export", "run=RUN"],
    "verify": ["verify", "run=RUN"],
    "report of a run": ["report", "run=RUN"],
    "compare": ["compare", "RUN", "../runs/two"],
    "diff": ["diff", "RUN", "../runs/two"],
    "rerun": ["rerun", "RUN"],
}
OF_A_RUN: list[tuple[str, bad_files.Make, list[str], str]] = [
    *(
        (f"{name}: {kind}", damage, words, telling)
        for number, (kind, (damage, telling)) in enumerate(RECORDS.items())
        for place, (name, words) in enumerate(READERS.items())
        if place == number % len(READERS) or kind == "truncated"
    ),  # each fault once, one by every reader
    (
        "rerun: a setting out of range",
        setting("optim.max_steps", 0),
        ["rerun", "RUN"],
        "this version of rpr cannot run its config",
    ),
    (
        "evaluate: an unknown setting",
        setting("model.depth", 3),
        ["evaluate", "run=RUN"],
        "model.depth: no such setting",
    ),
    (
        "train: a setting is absent",
        setting("model.d_ff", ...),
        ["train", "run=RUN"],
        "model.d_ff: missing; every",
    ),
    (
        "verify: a setting of another type",
        setting("data.max_length", [1]),
        ["verify", "run=RUN"],
        "data.max_length: invalid value [1]",
    ),
    (
        "export: of a failed run",
        record(lambda d: d.update(status="failed", error="why")),
        ["export", "run=RUN"],
        "failed: why; its weights are not usable: finish the run first",
    ),
    ("compare: of a run that is not finished", as_cut, ["compare", "RUN", "../runs/two"], "only finished runs can be"),
    (
        "compare: translations lost",
        content("test.hypotheses.txt", "a\n"),
        ["compare", "RUN", "../runs/two"],
        "1 hypotheses for 24 references of test; the files were changed",
    ),
    (
        "compare: not UTF-8",
        content("test.hypotheses.txt", b"\xff\n"),
        ["compare", "RUN", "../runs/two"],
        "cannot be read (",
    ),
    (
        "compare: other sentences",
        content("test.sources.txt", lambda old: b"x" + old),
        ["compare", "RUN", "../runs/two"],
        "have different sources of test, first in line 1",
    ),
    (
        "diff: metrics damaged",
        content("metrics.jsonl", "{\n{}\n"),
        ["diff", "RUN", "../runs/two"],
        "metrics.jsonl:1: not",
    ),
    (
        "diff: metrics without step",
        content("metrics.jsonl", '{"a": 1}\n{}\n'),
        ["diff", "RUN", "../runs/two"],
        'metrics.jsonl:1: a line of metrics is an object with a whole "step"',
    ),
    (
        "translate: vocabulary truncated",
        content("vocabulary.model", lambda old: old[:100]),
        READERS["translate"],
        "vocabulary.model: not a sentencepiece model",
    ),
    (
        "translate: vocabulary of text",
        content("vocabulary.model", "hello"),
        READERS["translate"],
        "vocabulary.model: not a s",
    ),
    ("translate: vocabulary empty", content("vocabulary.model", ""), READERS["translate"], "vocabulary.model: "),
    (
        "translate: vocabulary of another",
        lambda run: another_vocabulary(run),
        READERS["translate"],
        "the checkpoint does",
    ),
    (
        "translate: vocabulary a folder",
        folder_instead("vocabulary.model"),
        READERS["translate"],
        "vocabulary.model: cannot",
    ),
    (
        "evaluate: checkpoint truncated",
        newest(lambda old: old[: len(old) // 2]),
        READERS["evaluate"],
        "step00000008.ckpt: cannot be read as a checkpoint (",
    ),
    ("evaluate: checkpoint empty", newest(lambda old: b""), READERS["evaluate"], "cannot be read as a checkpoint ("),
    (
        "evaluate: a bit turned",
        newest(lambda old: old[:3000] + bytes([old[3000] ^ 255]) + old[3001:]),
        READERS["evaluate"],
        "cannot be read as a checkpoint (",
    ),
    (
        "evaluate: a pickle with code",
        all_checkpoints(bad_files.pickle.dumps(bad_files.Pwned())),
        READERS["evaluate"],
        "cannot be read as a checkpoint (",
    ),
    (
        "verify: torch's pickle with code",
        lambda run: code_in_a_checkpoint(run),
        READERS["verify"],
        "cannot be read as a c",
    ),
    ("evaluate: other sizes", checkpoints(other_sizes), READERS["evaluate"], "does not fit the run's configuration ("),
    ("evaluate: other names", checkpoints(renamed), READERS["evaluate"], "does not fit the run's configuration ("),
    ("evaluate: another architecture", setting("model.d_ff", 32), READERS["evaluate"], "does not fit the run's config"),
    (
        "export: weights that are no weights",
        checkpoints(lambda loaded: loaded.update(state_dict=[1])),
        READERS["export"],
        "contains no state_dict; give a checkpoint that rpr-cli train wrote",
    ),
    ("report of a run: a list", checkpoints(lambda loaded: [1]), READERS["report of a run"], "contains no state_dict"),
    (
        "evaluate: one of another model",
        lambda run: one_of_another_model(run),
        READERS["evaluate"],
        "belongs to another model than",
    ),
    (
        "translate: no checkpoint",
        lambda run: shutil.rmtree(run / "checkpoints"),
        READERS["translate"],
        "no checkpoints; resume the run",
    ),
    (
        "translate: checkpoints in a file",
        lambda run: file_instead(run / "checkpoints"),
        READERS["translate"],
        "no checkpoin",
    ),
    (
        "evaluate: evaluations is a file",
        lambda run: (run / "evaluations").write_text("x") and None,
        [*READERS["evaluate"], "splits=[test]"],
        "evaluations/average2-beam1-alpha0.6-test cannot be created (Not a directory)",
    ),
    (
        "export: exports is a file",
        lambda run: (run / "exports").write_text("x") and None,
        [*READERS["export"], "sentences=2"],
        "exports/safetensors cannot be written (Not a directory)",
    ),
]


def another_vocabulary(run: Path) -> None:
    from rpr.data.vocabulary import Vocabulary

    (run / "vocabulary.model").unlink()
    Vocabulary.train([" ".join(pair) for pair in bad_files.NAMES], 60, run / "vocabulary.model")


def code_in_a_checkpoint(run: Path) -> None:
    for path in (run / "checkpoints").glob("*.ckpt"):
        torch.save({"state_dict": {}, "callbacks": bad_files.Pwned()}, path)


def one_of_another_model(run: Path) -> None:
    path = min((run / "checkpoints").glob("*.ckpt"))
    loaded = torch.load(path, weights_only=True)
    other_sizes(loaded)
    torch.save(loaded, path)


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


@pytest.fixture
def run_dir(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of runs/one, which is the place where words are typed."""
    here = trained / "damaged"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(trained / "runs" / "one", here)
    monkeypatch.chdir(here)
    yield here
    shutil.rmtree(here)


@pytest.mark.parametrize("damage, words, telling", [row[1:] for row in OF_A_RUN], ids=[row[0] for row in OF_A_RUN])
def test_runs(run_dir: Path, refused: Refused, damage: bad_files.Make, words: list[str], telling: str) -> None:
    damage(run_dir)
    threads = [] if words[0] in ("train", "compare", "diff", "rerun") else ["hardware.threads=1"]
    assert telling in refused(*(word.replace("RUN", str(run_dir)) for word in words), *threads)


# --- going on with a damaged run: refused before a step is taken, and the record says why

RESUMED: list[tuple[str, bad_files.Make, str]] = [
    (
        "metrics damaged",
        content("metrics.jsonl", lambda old: b"{oops\n" + old),
        "metrics.jsonl:1: a line of metrics ",
    ),
    ("metrics not UTF-8", content("metrics.jsonl", lambda old: b"\xff\n" + old), "metrics.jsonl:1: a line of metrics"),
    ("metrics a list", content("metrics.jsonl", lambda old: b"[1]\n" + old), "metrics.jsonl:1: a line of metrics"),
    (
        "metrics without step",
        content("metrics.jsonl", lambda old: b"{}\n" + old),
        "delete it, and the same command resumes",
    ),
    ("metrics a folder", folder_instead("metrics.jsonl"), "metrics.jsonl: cannot be read (Is a directory)"),
    (
        "weights of other sizes",
        checkpoints(other_sizes),
        "cannot resume from it (its weights have other names or sizes)",
    ),
    ("weights of other names", checkpoints(renamed), "cannot resume from it (its weights have other names or sizes)"),
    ("an older checkpoint", checkpoints(lambda loaded: loaded.pop("loops") and None), "from it (it has no loops)"),
    ("weights alone", checkpoints(lambda loaded: {"state_dict": loaded["state_dict"]}), "it has no global_step"),
    (
        "vocabulary a folder",
        folder_instead("vocabulary.model"),
        "vocabulary.model: cannot be read or written (Is a dir",
    ),
]


@pytest.mark.parametrize("damage, telling", [row[1:] for row in RESUMED], ids=[row[0] for row in RESUMED])
def test_resuming(run_dir: Path, refused: Refused, damage: bad_files.Make, telling: str) -> None:
    together(as_cut, damage)(run_dir)
    before = contents(run_dir)
    assert telling in refused("train", f"run={run_dir}", nothing_written=False)
    made = read_record(run_dir / "record.json")
    assert made.status == "failed" and made.error is not None
    assert telling in made.error or "Is a directory" in made.error
    assert contents(run_dir) == before


def test_checkpoints_in_a_file(run_dir: Path, refused: Refused) -> None:
    """None is left to go on from, so the run would start anew: its metrics begin anew too."""
    as_cut(run_dir)
    file_instead(run_dir / "checkpoints")
    said = refused("train", f"run={run_dir}", nothing_written=False, may="training: ")
    assert "checkpoints: checkpoints cannot be written there (" in said
    assert (run_dir / "checkpoints").read_text() == "x"


def contents(root: Path) -> dict[Path, bytes]:
    """Of every file that says what was trained; the record, and what it was made of, are written at each start."""
    return {
        path: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("record.json", "job.json", "config.yaml", ".lock", "vocabulary.model")
    }


@pytest.mark.parametrize("name", [".lock", "job.json", "config.yaml", "record.json"])
def test_a_folder_in_place_of_a_file_of_a_new_run(
    tiny: list[str], tiny_config: Callable[..., Any], refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = tiny_config()
    run_dir = Path(config.runs_dir) / config.run_dir_name
    (run_dir / name).mkdir(parents=True)
    monkeypatch.chdir(run_dir.parent)
    said = refused("train", *tiny, nothing_written=False)
    assert "cannot be" in said and str(run_dir) in said


def test_going_on_past_damaged_checkpoints(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Legal: they are set aside, with a line each; what has code in it is never run."""
    as_cut(run_dir)
    (run_dir / "checkpoints" / "step00000004.ckpt").write_bytes(bad_files.pickle.dumps(bad_files.Pwned()))
    code_in_a_checkpoint(run_dir)
    assert app.main(["train", f"run={run_dir}"]) == 0
    assert "step00000004.ckpt: cannot be read as a checkpoint (" in capfd.readouterr().err
    assert not Path("pwned").exists() and (run_dir / "checkpoints" / "step00000004.ckpt.damaged").exists()
    assert read_record(run_dir / "record.json").status == "finished"


def test_a_record_damaged_among_others(
    run_dir: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Legal for what reads many: it is named, and the others are read."""
    monkeypatch.chdir(trained)
    content("record.json", "{")(run_dir)
    assert app.main(["compare", "sweep=mine", f"runs_dir={trained}", "samples=100", "trials=100"]) == 0
    out, err = capfd.readouterr()
    assert f"left out: {run_dir}/record.json: truncated or not JSON" in err and "Traceback" not in err
    assert {"one", "two"} <= set(out.split())


# --- caches: what is damaged is built again, and said; never used

CACHES: list[tuple[str, bad_files.Make]] = [
    ("meta truncated", content("meta.json", lambda old: old[:50])),
    ("meta a list", content("meta.json", "[]")),
    ("meta of another version", content("meta.json", lambda old: old.replace(b'"counts"', b'"numbers"'))),
    ("meta stale", content("meta.json", lambda old: old.replace(b'"key": "', b'"key": "0'))),
    ("pieces truncated", content("train.source.pieces", lambda old: old[:-1])),
    ("offsets lost", lambda folder: (folder / "test.target.offsets").unlink()),
    ("text a folder", folder_instead("test.source.txt")),
    ("vocabulary truncated", content("vocabulary.model", lambda old: old[:-20])),
    ("vocabulary of another", another_vocabulary),
]


@pytest.mark.parametrize("damage", [row[1] for row in CACHES], ids=[row[0] for row in CACHES])
def test_caches(
    tmp_path: Path,
    corpus: list[str],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    damage: bad_files.Make,
) -> None:
    assert app.main(corpus) == 0
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.name.startswith("wmt"))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder)
    caplog.clear()
    assert app.main(corpus) == 0
    assert f"token cache {folder} is damaged (" in caplog.text and "rebuilding it" in caplog.text
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that prepares a good corpus in tmp_path/corpus into tmp_path/cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    lines()(tmp_path / "corpus")
    words = ["data=wmt_mini_en_de", "data.path=corpus", "data.vocabulary_size=60", "data.cache_dir=cache"]
    return ["prepare", *words, "format=json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"PATH": [1]}', '{"PATH": "x"}', '{"PATH": [0, 0, "0"]}', "\xff"])
def test_remembered_digests_that_are_wrong_are_made_anew(
    tmp_path: Path, corpus: list[str], capfd: pytest.CaptureFixture[str], text: str
) -> None:
    assert app.main(corpus) == 0
    key = json.loads(capfd.readouterr().out)["data"]["key"]
    source = tmp_path / "corpus" / "train.en"
    (tmp_path / "cache" / "digests.json").write_text(text.replace("PATH", str(source)), "latin-1")
    assert app.main(corpus) == 0
    assert json.loads(capfd.readouterr().out)["data"]["key"] == key


# --- legal after all

LEGAL: list[tuple[str, bytes, dict[str, int]]] = [
    ("CRLF", b"Ann sees\x85 a dog .\r\n", {}),
    ("a BOM", b"\xef\xbb\xbfAnn sees a dog .\n", {}),
    ("NUL bytes", b"Ann\0sees\0\0a dog .\n", {}),
    ("no-break blanks", "Ann\u00a0sees\u2028a dog .\n".encode(), {}),
    ("no line end at the end of the file", b"Ann sees a dog .", {}),
    ("a line of 1 MB", b"Ann " * 250_000 + b"\n", {"too_long": 1}),
    ("an empty line", b"\n", {"empty": 1}),
]


@pytest.mark.parametrize("line, dropped", [row[1:] for row in LEGAL], ids=[row[0] for row in LEGAL])
def test_legal_lines(
    tmp_path: Path, corpus: list[str], capfd: pytest.CaptureFixture[str], line: bytes, dropped: dict[str, int]
) -> None:
    """In train they are taken without what is no text, or left out and counted; in test they come out as one line."""
    own = b"".join(f"{source}\n".encode() for source, _ in bad_files.NAMES[:-1])
    line = line.replace(b"\x85", b"")
    lines(own + line)(tmp_path / "corpus")
    for split in ("validation", "test"):
        for language in ("en", "de"):
            (tmp_path / "corpus" / f"{split}.{language}").write_bytes(b"x y\n" if dropped else line)
    assert app.main(corpus) == 0
    data = json.loads(capfd.readouterr().out)["data"]
    assert data["dropped"] == ({"train": {"empty": 0, "too_long": 0} | dropped} if dropped else {})
    assert data["splits"]["train"]["pairs"] == len(bad_files.NAMES) - len(dropped)
    (text,) = (tmp_path / "cache").glob("wmt*/test.source.txt")
    assert text.read_text() == ("x y\n" if dropped else "Ann sees a dog .\n")


# --- no space, and the traceback for who asks


@pytest.mark.parametrize("command", ["prepare", "export", "report"])
def test_no_space(
    trained: Path, run_dir: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
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


@pytest.mark.parametrize(
    "words, kind",
    [
        (["train", "seed=x"], ConfigError),
        (["trian"], ConfigError),
        (["train", "seed=[1"], OverrideParseException),
        (["diff", "a", "b"], RecordError),
        (["prepare", "data=wmt_mini_en_de", "data.path=nowhere"], DataError),
        (["sweep", "nope"], ConfigError),
    ],
)
def test_the_traceback_is_there_for_who_asks(
    words: list[str], kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(words) == 2
    monkeypatch.setenv("RPR_DEBUG", "1")
    with pytest.raises(kind):
        app.main(words)

"""Control and bidirectional characters in records and folder names are escaped in all output and reports; other text is
kept.
"""

import json
import re
import unicodedata
import warnings
from functools import cache
from pathlib import Path

import pytest

from rpr.cli import app
from rpr.commands import rerun, train
from rpr.compose.composition import compose_train
from rpr.config.train import config_from_record
from rpr.io.escape import escape_control_characters, escape_tree
from rpr.records.record import read_record
from tests.fake_records import fake_by_length, fake_document, fake_interval, fake_score

BIDIRECTIONAL = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
FAKE = "rpr-cli: fine"
EVIL = "\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\b\n" + FAKE
SHOWN = r"\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\x08\n"
# German, Chinese, Hebrew with its mark, and emoji that combine several characters.
GOOD = "Grüße çà 中文 עברית\u200f 👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"


def hidden(text):
    """The hidden characters of a text, by Unicode's own table."""
    categories = ("Cc", "Cs", "Zl", "Zp")
    return {one for one in text if unicodedata.category(one) in categories or one in BIDIRECTIONAL} - {"\n"}


@pytest.mark.parametrize(
    "text, shown",
    [
        ("", ""),
        (GOOD, GOOD),
        ("a\nb\tc\r\x1b[31m", r"a\nb\tc\r\x1b[31m"),
        ("\0\x7f\x80\x9f\xa0", "\\x00\\x7f\\x80\\x9f\xa0"),
        ("\u2027\u2028\u2029\u202a\u202e\u202f", "\u2027\\u2028\\u2029\\u202a\\u202e\u202f"),
        ("\u2065\u2066\u2069\u206a\udcff", "\u2065\\u2066\\u2069\u206a\\udcff"),
    ],
)
def test_escape_control_characters(text, shown):
    assert escape_control_characters(text) == shown == escape_control_characters(shown)
    assert escape_tree({text: [text, {"a": (text, 1, None, True)}]}) == {shown: [shown, {"a": (shown, 1, None, True)}]}


@cache
def composed(position):
    return compose_train([f"position={position}", "logger=none", "runs_dir=runs"])


def evil_document(position, *, settings, **changes):
    """A record with evil text in every field that can hold it; `settings`: also in settings that would be invalid."""
    config = composed(position)
    values = config.model_dump(mode="json")
    values["logger"]["project"] = position + EVIL
    values["optim"]["name"] = GOOD + EVIL
    if settings:
        for section in ("data", "model", "hardware", "position"):
            values[section]["name"] += "\x1b\x9b\u202e\n"  # short enough for a file name
        values["data"]["path"] = values["data"]["test_name"] = GOOD + EVIL
        values |= {f"{GOOD}{EVIL}": {EVIL: [EVIL, position]}}
    text = position + GOOD + EVIL
    how = {"checkpoint": position + EVIL, "precision": position + EVIL}
    within = fake_interval(1.0, 2.0) | {"method": EVIL}
    score = fake_score("test", 1.5, test_set=EVIL, signature=EVIL, num_sentences=60, interval=within, **how)
    document = fake_document(position, scores=[score], config=values, synthetic=True)
    words = ("excludes", "peak_memory_kind", "precision", "parameters_note")
    return document | {
        **dict.fromkeys(("name", "device", "started", "finished"), text),
        "run_id": text if settings else config.run_id,
        "sweeps": ["mine", EVIL],
        "command": f"rpr-cli train '{text}'",
        "git": {"commit": text, "dirty": False},
        "versions": {"torch": text, text: EVIL},
        "hardware": "\x1b\x9b\u202e\n",
        "data": document["data"] | {"name": EVIL, "key": text, "notes": [text]},
        "training": document["training"] | dict.fromkeys(words, text) | {"matmul_precision": GOOD + EVIL},
        "by_length": fake_by_length(
            1.5 + len(position), unit=position + EVIL, test_sets=[EVIL, EVIL],
            signatures={"sacrebleu": EVIL, "chrf": EVIL}, **how,
        ),
        "wandb": {"id": text, "mode": EVIL, "url": EVIL},
        **changes,
    }  # fmt: skip


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Writes the folder of a run below runs/, by default with an evil name."""
    monkeypatch.chdir(tmp_path)

    def write(position, folder=None, *, settings=False, **changes):
        run_dir = Path("runs", EVIL, position + EVIL) if folder is None else Path("runs", folder)
        run_dir.mkdir(parents=True)
        document = evil_document(position, settings=settings, **changes)
        # As JSON escapes in one record, and as plain characters in the others.
        (run_dir / "record.json").write_text(json.dumps(document, ensure_ascii=position == "relative"), "utf-8")
        for kind in ("sources", "references", "hypotheses"):
            lines = [f"{position if kind == 'hypotheses' else kind} {number} of 60 ." for number in range(60)]
            (run_dir / f"test.{kind}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/loss": 0.5 + len(position)}) + "\n")
        return run_dir

    return write


@pytest.fixture
def run_command(capfd, recwarn):
    """Runs a command and checks its output and warnings for hidden characters; the output."""

    def run(*words, code=0):
        capfd.readouterr()
        warnings.simplefilter("always")
        try:
            ended = app.main([str(word) for word in words])
        except SystemExit as stop:
            ended = stop.code
        out, err = capfd.readouterr()
        assert ended == code, err
        printed = "\n".join([out, err, *(str(warning.message) for warning in recwarn.list)])
        assert not hidden(printed), printed
        assert not [line for line in printed.split("\n") if line.startswith(FAKE)]
        return out + err

    return run


def test_diff_output_is_escaped(write_run, run_command):
    one, other = write_run("absolute", settings=True), write_run("relative", settings=True)
    assert r"A  runs/\x1b]0;mine\x07" in run_command("diff", one, other)
    text = run_command("diff", one, other, "format=json")
    found = json.loads(text)
    assert found["a"]["name"] == f"absolute{GOOD}{SHOWN}{FAKE}" and found["b"]["record"].endswith("/record.json")
    assert not hidden(json.dumps(found, ensure_ascii=False))
    changes = {change["key"]: change for part in ("settings", "run") for change in found[part]["differ"]}
    assert changes["logger.project"]["b"] == f"relative{SHOWN}{FAKE}"
    assert changes[f"{GOOD}{SHOWN}{FAKE}.{SHOWN}{FAKE}"]["a"] == [SHOWN + FAKE, "absolute"]
    assert changes["command"]["a"] == f"rpr-cli train 'absolute{GOOD}{SHOWN}{FAKE}'"


def test_compare_output_is_escaped(write_run, run_command):
    runs = [write_run("absolute", name="same"), write_run("relative", name="same")]  # shown by folder
    few = ("samples=100", "trials=100", "metrics=[sacrebleu]")
    assert "relative\\" in run_command("compare", *runs, *few)
    assert "relative\\" in run_command("compare", *runs, *few, "format=json")
    failed, broken = write_run("none", status="failed", error="out of\n" + EVIL), write_run("learned", **{EVIL: 1})
    text = run_command("compare", "sweep=mine", "runs_dir=runs", *few)
    assert f"left out: runs/{SHOWN}{FAKE}/learned{SHOWN}" in text and r"failed: out of \x1b]0;mine" in text
    assert r"failed: out of \x1b]0;mine" in run_command("compare", runs[0], failed, code=2)
    assert rf"{SHOWN}{FAKE}: no such field" in run_command("compare", runs[0], broken, code=2)


@pytest.mark.parametrize("words", [("results_page=reports/RESULTS.md",), ("sweep=mine", "format=json")], ids=str)
def test_report_is_escaped(write_run, run_command, words):
    for position in ("absolute", "relative"):
        run_dir = write_run(position, settings=True)
        style = "<g style='@\x9b\u202e'/>"
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{style}</svg>'
        (run_dir / "positions.svg").write_text(picture, "utf-8")
        (run_dir / f"{EVIL}.md").write_text(f"# {EVIL}\n", "utf-8")
    write_run("none", settings=True, status="failed", error=GOOD + EVIL)
    write_run("learned", settings=True, **{EVIL: 1})
    bench = {"device": EVIL, "step": [], "config": {"model": 3}}
    Path("runs", f"{EVIL}.json").write_text(json.dumps(bench))
    speed = {"variant": EVIL, "steps_per_second": 1.0, "relative_speed": 1.0, "min": 1.0, "max": 1.0}
    config = {"model": {"name": GOOD + EVIL, "num_layers": 1, "d_model": 8}, "data": {"vocabulary_size": 9}}
    config |= {"hardware": {"precision": EVIL, "matmul_precision": EVIL}, "variants": ["absolute", "relative"]}
    config |= {"sentences": 1, "length": 1, "rounds": 1}
    steps = [{**speed, "variant": variant} for variant in ("absolute", "relative")]
    Path("runs", f"bench{EVIL}.json").write_text(json.dumps({"device": GOOD + EVIL, "config": config, "step": steps}))
    text = run_command("report", *words, "runs_dir=runs", "output_dir=reports")
    assert GOOD in " ".join(text.split()) and r"\x1b]0;mine" in text
    assert ("format=json" in words) or f"not in this report: runs/{SHOWN}{FAKE}/learned" in text
    written = [path for path in Path("reports").rglob("*") if path.is_file() and path.suffix != ".png"]
    assert len(written) > 6
    for path in written:
        text = re.sub(r"<style>.*?</style>", "", path.read_text("utf-8"), flags=re.S)  # our own
        assert not hidden(text), path


def test_rerun_output_is_escaped(write_run, run_command, monkeypatch):
    one, other = write_run("absolute", name="one"), write_run("none", "plain")
    monkeypatch.setattr(train, "run", lambda config, **given: other)
    text = run_command("rerun", one, "runs_dir=again")
    assert rf"not as recorded: torch: absolute{GOOD}\x1b]0;mine" in text and "Different:" in text
    interrupted = write_run("relative", name="one", status="interrupted", error="SIGTERM" + EVIL)
    assert r"interrupted: SIGTERM\x1b]0;mine" in run_command("rerun", interrupted, "runs_dir=again")
    assert r"strict=true, and not as recorded: " in run_command("rerun", one, "runs_dir=again", "strict=true", code=2)
    odd = write_run("learned", "two", name="one\x07")
    assert "is not a valid folder name" in run_command("rerun", odd, "runs_dir=again", code=2)
    monkeypatch.setattr(rerun, "_report_deviations", lambda *given: None)
    unlike = write_run("relative_keys", name="one")
    assert f"differ from those of runs/{SHOWN}{FAKE}/" in run_command(
        "rerun", unlike, "runs_dir=again", "strict=true", code=1
    )


def test_train_output_of_finished_run_is_escaped(write_run, run_command):
    text = run_command("train", f"run={write_run('absolute', composed('absolute').run_dir_name)}")
    assert run_command("train", f"run={write_run('relative')}").startswith(f"relative{GOOD}{SHOWN}")
    assert f"already finished on absolute{GOOD}{SHOWN}" in text and text.startswith(f"absolute{GOOD}{SHOWN}")
    assert f"(excluding absolute{GOOD}{SHOWN}{FAKE}) on absolute{GOOD}{SHOWN}" in text


def test_sweep_summary_is_escaped(write_run, run_command):
    words = ["position=relative", "logger=none", "runs_dir=runs"]
    Path("mine.yaml").write_text(json.dumps({"overrides": words[1:], "jobs": [words[0], "position=absolute"]}))
    for position, status in (("absolute", "finished"), ("relative", "failed")):
        run_dir = write_run(
            position, composed(position).run_dir_name, status=status, error=GOOD + EVIL if status == "failed" else None
        )
    (run_dir / "log.txt").write_text(f"{GOOD}\tand {EVIL}\n", "utf-8")
    text = run_command("sweep", "mine.yaml", code=1)
    assert f"{GOOD}\\x1b]0;mine" in text and r"\x7f\x9b31m\x85\u2028\u202e\u2066\x08" in text
    assert "1 finished, 1 failed" in run_command("sweep", "mine.yaml", "--dry-run")


def test_config_and_command_are_kept_unescaped(write_run):
    """A run is resumed and repeated from them, so they decide its id."""
    record = read_record(write_run("relative", settings=True) / "record.json")
    assert record.config == evil_document("relative", settings=True)["config"] and EVIL in record.command
    shown = record.shown()
    assert not hidden(repr(shown.model_dump())) and shown.shown() is shown
    assert shown.model_copy(update={"config": record.config, "command": record.command}) == record
    record = read_record(write_run("relative", "plain") / "record.json")
    assert config_from_record(record.config).optim.name == GOOD + EVIL

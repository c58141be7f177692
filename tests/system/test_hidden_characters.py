"""Control and bidirectional characters in records and folder names are escaped in all output and reports; other text is
kept. That each field is escaped when a record is read: tests/property/test_records.py.
"""

import json
import re
import unicodedata
import warnings
from functools import cache
from pathlib import Path

import pytest

from rpr.commands import train
from rpr.compose.composition import compose_train
from rpr.io.escape import escape_control_characters, escape_tree, note
from rpr.runs import lifecycle
from tests.fake_records import fake_by_length, fake_document, fake_score

BIDIRECTIONAL = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
FAKE = "rpr-cli: fine"
EVIL = "\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\b\n" + FAKE
SHOWN = r"\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\x08\n" + FAKE
# German, Chinese, Hebrew with its mark, and emoji that combine several characters.
GOOD = "Grüße çà 中文 עברית\u200f 👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
KEPT = {"status", "kind", "split", "splits", "metric", "signatures", "config", "sweeps"}  # few values are valid


def hidden(text):
    """The hidden characters of a text, by Unicode's own table."""
    categories = ("Cc", "Cs", "Zl", "Zp")
    return {one for one in text if unicodedata.category(one) in categories or one in BIDIRECTIONAL} - {"\n"}


@pytest.mark.parametrize("text, shown", [
    ("", ""),
    (GOOD, GOOD),
    ("a\nb\tc\r\x1b[31m", r"a\nb\tc\r\x1b[31m"),
    ("\0\x7f\x80\x9f\xa0", "\\x00\\x7f\\x80\\x9f\xa0"),
    ("\u2027\u2028\u2029\u202a\u202e\u202f", "\u2027\\u2028\\u2029\\u202a\\u202e\u202f"),
    ("\u2065\u2066\u2069\u206a\udcff", "\u2065\\u2066\\u2069\u206a\\udcff"),
])  # fmt: skip
def test_escape_control_characters(text, shown, capsys):
    assert escape_control_characters(text) == shown == escape_control_characters(shown)
    note(text)
    assert capsys.readouterr().err == f"rpr-cli: {shown}\n"
    assert escape_tree({text: [text, {"a": (text, 1, None, True)}]}) == {shown: [shown, {"a": (shown, 1, None, True)}]}


def evil(tree, before):
    """Evil text at the end of every string that may be any."""
    if isinstance(tree, dict):
        return {key: value if key in KEPT else evil(value, before) for key, value in tree.items()}
    if isinstance(tree, list):
        return [evil(value, before) for value in tree]
    return f"{before}{tree}{GOOD}{EVIL}" if isinstance(tree, str) else tree


@cache
def composed(position):
    return compose_train([f"position={position}", "logger=none", "runs_dir=runs"])


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Writes the folder of a run below runs/, by default with an evil name and settings."""
    monkeypatch.chdir(tmp_path)

    def write(position, folder=None, **changes):
        config = composed(position).model_dump(mode="json")
        config["optim"]["name"] = GOOD + EVIL
        if folder is None:
            config |= {f"{GOOD}{EVIL}": {EVIL: [EVIL, position]}}
            config["data"]["name"] += "\x1b\x9b\u202e\n"  # short enough for a file name
        document = fake_document(position, scores=[fake_score("test", 1.5)], config=config, sweeps=["mine", EVIL])
        document["by_length"] = fake_by_length(1.5 + len(position))
        document = evil(document, position) | {"run_id": composed(position).run_id} | changes
        run_dir = Path("runs", EVIL, position + EVIL) if folder is None else Path("runs", folder)
        run_dir.mkdir(parents=True)
        # As JSON escapes in one record, and as plain characters in the others.
        (run_dir / "record.json").write_text(json.dumps(document, ensure_ascii=position == "relative"), "utf-8")
        for kind in ("sources", "references", "hypotheses"):
            lines = [f"{position if kind == 'hypotheses' else kind} {number} of 60 ." for number in range(60)]
            (run_dir / f"test.{kind}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        return run_dir

    return write


@pytest.fixture
def run_command(cli, recwarn):
    """Runs a command and checks its output and warnings for hidden characters; the output."""

    def run(*words, code=0):
        warnings.simplefilter("always")
        out, err = cli(*words, code=code)
        printed = "\n".join([out, err, *(str(warning.message) for warning in recwarn.list)])
        assert not hidden(printed), printed
        assert not [line for line in printed.split("\n") if line.startswith(FAKE)]
        return out + err

    return run


def test_diff_and_compare_output_is_escaped(write_run, run_command):
    one, other = write_run("absolute"), write_run("relative")
    assert r"A  runs/\x1b]0;mine\x07" in run_command("diff", one, other)
    few = ("samples=100", "trials=100", "metrics=[sacrebleu]")
    runs = [write_run("absolute", "a"), write_run("relative", "b\x1b")]
    for words in ((), ("format=json",)):
        assert "\\x1b]0;mine" in run_command("compare", *runs, *few, *words)
    failed = write_run("none", "c", status="failed", error="out of\n" + EVIL)
    broken = write_run("learned", "d", **{EVIL: 1})
    assert r"failed: out of \x1b]0;mine" in run_command("compare", runs[0], failed, code=2)
    assert f"{SHOWN}: no such field" in run_command("compare", runs[0], broken, code=2)


@pytest.mark.parametrize("words", [("verbose=true",), ("sweep=mine", "format=json")], ids=str)
def test_report_is_escaped(write_run, run_command, words):
    for position in ("absolute", "relative"):
        run_dir = write_run(position)
        style = "<g style='@\x9b\u202e'/>"
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{style}</svg>'
        (run_dir / "positions.svg").write_text(picture, "utf-8")
        (run_dir / f"{EVIL}.md").write_text(f"# {EVIL}\n", "utf-8")
    write_run("none", status="failed", error=GOOD + EVIL)
    write_run("learned", **{EVIL: 1})
    config = {"model": {"name": GOOD + EVIL, "num_layers": 1, "d_model": 8}, "data": {"vocabulary_size": 9}}
    config |= {"hardware": {"precision": EVIL, "matmul_precision": EVIL}, "variants": ["absolute", "relative"]}
    config |= {"sentences": 1, "length": 1, "rounds": 1}
    speed = {"steps_per_second": 1.0, "relative_speed": 1.0, "min": 1.0, "max": 1.0}
    bench = {"device": GOOD + EVIL, "config": config, "step": [{**speed, "variant": EVIL}]}
    Path("runs", f"bench{EVIL}.json").write_text(json.dumps(bench))
    text = run_command("report", *words, "runs_dir=runs", "output_dir=reports")
    assert GOOD in " ".join(text.split()) and r"\x1b]0;mine" in text
    assert ("format=json" in words) or f"not in this report: runs/{SHOWN}/learned" in text
    written = [path for path in Path("reports").rglob("*") if path.is_file() and path.suffix != ".png"]
    assert len(written) > 5
    for path in written:
        text = re.sub(r"<style>.*?</style>", "", path.read_text("utf-8"), flags=re.S)  # our own
        assert not hidden(text), path


def test_output_about_a_run_and_a_sweep_is_escaped(write_run, run_command, monkeypatch):
    monkeypatch.setattr(lifecycle, "check_same_corpus", lambda *arguments: None)  # its key has evil text, too
    finished = write_run("absolute", composed("absolute").run_dir_name)
    text = run_command("train", f"run={finished}")
    assert "already finished on absolute" in text and text.startswith("absolute") and text.count(SHOWN) > 3
    monkeypatch.setattr(train, "run", lambda config, **given: write_run("none", "other", scores=[]))
    text = run_command("rerun", write_run("relative_keys", "one", name="one"), "runs_dir=again")
    assert "not as recorded: torch: relative_keys" in text and "Different:" in text and SHOWN in text
    write_run("relative", composed("relative").run_dir_name, status="failed", error=GOOD + EVIL)
    jobs = {"overrides": ["logger=none", "runs_dir=runs"], "jobs": ["position=relative", "position=absolute"]}
    Path("mine.yaml").write_text(json.dumps(jobs))
    Path("runs", composed("relative").run_dir_name, "log.txt").write_text(f"{GOOD}\tand {EVIL}\n", "utf-8")
    text = run_command("sweep", "mine.yaml", code=1)
    assert f"{GOOD}\\x1b]0;mine" in text and r"\x7f\x9b31m\x85\u2028\u202e\u2066\x08" in text

"""Control and bidirectional characters in records and folder names are escaped in all output and reports; other text is
kept. That each field is escaped when a record is read: tests/property/test_records.py.
"""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from rpr.compose.composition import compose_train
from rpr.io.escape import escape_control_characters, escape_tree, note
from tests.fake_records import fake_document, fake_score

FAKE = "rpr-cli: fine"
EVIL = "\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\b\n" + FAKE
SHOWN = r"\x1b]0;mine\x07\r\t\x7f\x9b31m\x85\u2028\u202e\u2066\x08\n" + FAKE
# German, Chinese, Hebrew with its mark, and emoji that combine several characters.
GOOD = "Grüße çà 中文 עברית\u200f 👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
KEPT = {"status", "kind", "split", "splits", "metric", "signatures", "config", "sweeps"}  # few values are valid


def hidden(text):
    """The hidden characters of a text, by Unicode's own table."""
    bidirectional = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    categories = ("Cc", "Cs", "Zl", "Zp")
    return {one for one in text if unicodedata.category(one) in categories or one in bidirectional} - {"\n"}


@pytest.mark.parametrize("text, shown", [
    (GOOD, GOOD), (EVIL, SHOWN), ("\0\x80\x9f\xa0\udcff", "\\x00\\x80\\x9f\xa0\\udcff"),
    ("\u2027\u2028\u2029\u202a\u202e\u202f", "\u2027\\u2028\\u2029\\u202a\\u202e\u202f"),
    ("\u2065\u2066\u2069\u206a", "\u2065\\u2066\\u2069\u206a"),
])  # fmt: skip
def test_escape_control_characters(text, shown, capsys):
    assert escape_control_characters(text) == shown == escape_control_characters(shown)
    note(text)
    assert capsys.readouterr().err == f"rpr-cli: {shown}\n"
    assert escape_tree({text: [text, {"a": (text, 1, None, True)}]}) == {shown: [shown, {"a": (shown, 1, None, True)}]}


def evil(tree):
    """Evil text at the end of every string that may be any."""
    if isinstance(tree, dict):
        return {key: value if key in KEPT else evil(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [evil(value) for value in tree]
    return f"{tree}{GOOD}{EVIL}" if isinstance(tree, str) else tree


def write_run(position, **changes):
    """The folder of a run below runs/, with an evil name and settings."""
    composed = compose_train([f"position={position}", "logger=none", "runs_dir=runs"])
    config = composed.model_dump(mode="json") | {f"{GOOD}{EVIL}": {EVIL: [EVIL, position]}}
    document = fake_document(position, scores=[fake_score("test", 1.5)], config=config, sweeps=["mine", EVIL])
    document = evil(document) | {"run_id": composed.run_id} | changes
    run_dir = Path("runs", EVIL, position + EVIL)
    run_dir.mkdir(parents=True)
    # As JSON escapes in one record, and as plain characters in the others.
    (run_dir / "record.json").write_text(json.dumps(document, ensure_ascii=position == "relative"), "utf-8")
    return run_dir


def test_diff_and_report_are_escaped(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    runs = [write_run(position) for position in ("absolute", "relative")]
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><g style="{EVIL}"/></svg>'
    (runs[0] / "positions.svg").write_text(svg)
    write_run("none", status="failed", error=GOOD + EVIL)
    write_run("learned", **{EVIL: 1})
    report = ["report", "runs_dir=runs", "output_dir=reports"]
    for command in (["diff", *runs], [*report, "sweep=mine", "format=json"], [*report, "verbose=true"]):
        printed = "\n".join(cli(*command))
        assert r"\x1b]0;mine" in printed and not hidden(printed), printed
        assert not [line for line in printed.split("\n") if line.startswith(FAKE)]
    assert GOOD in " ".join(printed.split())
    assert f"not in this report: runs/{SHOWN}/learned" in printed
    written = [path for path in Path("reports").rglob("*") if path.is_file() and path.suffix != ".png"]
    assert len(written) >= 5
    for path in written:
        assert not hidden(re.sub(r"<style>.*?</style>", "", path.read_text("utf-8"), flags=re.S)), path

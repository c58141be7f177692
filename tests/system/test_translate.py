"""`rpr-cli translate` with files and pipes, and when it is interrupted.

The weights are random, so that translations differ, and in float64, so that they do not depend on the batch.
"""

import gzip
import os
import signal
import sys

import pytest

from rpr.cli import app
from rpr.commands import translate
from rpr.decode import translator
from rpr.decode.engine import translate_sources
from rpr.decode.translator import Translator

SENTENCES = ["The old dog runs.", "A cat sings.", "My fox laughs here.", "The doctor sees a cow.", "Every bird sleeps."]
EXACT = ("hardware.threads=1", "hardware.precision=64")
NO_END, EMPTY = "no end within the length limit", "an empty translation"


@pytest.fixture(scope="module")
def model(random_run):
    hardware = translator.translate_config("x", "cpu").hardware.model_copy(update={"threads": 1, "precision": "64"})
    return Translator.from_run(random_run, hardware=hardware)


@pytest.fixture(scope="module")
def expected(model):
    """The translation of each sentence."""
    found = {sentence: model.translate([sentence])[0] for sentence in SENTENCES}
    assert len(set(found.values())) == len(SENTENCES)
    return found


@pytest.fixture
def run_translate(random_run, tmp_path, cli):
    """Runs the command on some bytes of input; its stdout and stderr."""

    def run(content, *overrides, code=0):
        (tmp_path / "in.txt").write_bytes(content)
        words = ["translate", f"run={random_run}", f"input={tmp_path / 'in.txt'}", *EXACT, *overrides]
        out, err = cli(*words, code=code)
        return out, err.replace(str(tmp_path), "DIR").splitlines()

    return run


def said(lines):
    """Those of stderr but on translations that are empty or without an end, as those of random weights."""
    return [line for line in lines if NO_END not in line and EMPTY not in line]


def lines_of(sentences):
    return "".join(f"{sentence}\n" for sentence in sentences).encode()


def test_output_follows_input_order_for_any_batch_size(run_translate, expected):
    sentences = [SENTENCES[0], "", *SENTENCES[1:], "  \t ", *reversed(SENTENCES)]
    wanted = "".join(f"{expected.get(sentence, '')}\n" for sentence in sentences)
    for size in (3, 256):
        out, err = run_translate(lines_of(sentences)[:-1], f"lines_per_batch={size}")
        assert (out, said(err)) == (wanted, [])


def test_invalid_utf8_is_reported_and_translated(run_translate, expected):
    content = lines_of(SENTENCES[:1]) + b"A \xff cat\n" * 7 + lines_of(SENTENCES[1:2])
    out, err = run_translate(content, "lines_per_batch=3")
    problem = "not valid UTF-8; invalid bytes are read as U+FFFD"
    assert said(err) == [f"rpr-cli: warning: input DIR/in.txt, line 2: {problem}"]
    rows = out.split("\n")
    assert rows[0] == expected[SENTENCES[0]] and rows[8] == expected[SENTENCES[1]] and len(rows) == 10
    assert set(rows[1:8]) == set(run_translate("A \ufffd cat\n".encode())[0].split("\n")[:1])


def test_input_that_is_not_text_is_refused(run_translate):
    what = "is not UTF-8 text but packed, or UTF-16; unpack it, or convert it with iconv"
    for content in (gzip.compress(b"a\n"), "a b\n".encode("utf-16"), "a b\n".encode("utf-16-le")):
        assert run_translate(content, code=2) == ("", [f"rpr-cli: input DIR/in.txt {what}"])


def test_translations_without_an_end_are_said(model, run_translate):
    translated = translate_sources(model.engine, model.encode(SENTENCES), model.vocabulary, model.search)
    cut = [number for number, finished in enumerate(translated.finished, 1) if not finished]
    assert 0 < len(cut) < len(SENTENCES)
    assert run_translate(lines_of(SENTENCES), "lines_per_batch=2")[1] == [
        f"rpr-cli: warning: input DIR/in.txt, line {cut[0]}: {NO_END}; the translation is cut off there"
    ]


def test_input_and_output_files(random_run, tmp_path, expected, cli):
    source, target = tmp_path / "in, with = 'odd' name.txt", tmp_path / "out.txt"
    source.write_bytes(lines_of(SENTENCES))
    target.write_text("earlier")
    (tmp_path / "link").symlink_to(target)
    assert cli("translate", f"run={random_run}", *EXACT, "--", source, tmp_path / "link").out == ""
    assert target.read_text() == "".join(f"{expected[sentence]}\n" for sentence in SENTENCES)
    assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == sorted([source.name, "link", "out.txt"])


def test_stdout_equal_to_input_is_refused(random_run, tmp_path, monkeypatch):
    """`rpr-cli translate < file >> file`"""
    (tmp_path / "both").write_text("a line\n")
    with (tmp_path / "both").open("a+") as both:
        monkeypatch.setattr(sys, "stdin", both)
        monkeypatch.setattr(sys, "stdout", both)
        assert app.main(["translate", f"run={random_run}", *EXACT]) == 2
    assert (tmp_path / "both").read_text() == "a line\n"


LONG = [b"line " * 20, b"", b"long " * 30_000, *(b"%d" % number * 50 for number in range(2498))]  # several chunks


@pytest.mark.parametrize(("content", "expected"), [
    (b"\n".join(LONG), LONG), (b"".join(line + b"\n" for line in LONG), LONG),
    (b"a\rb\r", [b"a", b"b"]), (b"a\r\rb", [b"a", b"", b"b"]), (b"a\rb\n", [b"a\rb"]), (b"\r", [b""]), (b"", []),
], ids=range(7))  # fmt: skip
def test_batches_of_a_file_are_full_and_carriage_returns_end_lines_where_no_newline_does(tmp_path, content, expected):
    (tmp_path / "in").write_bytes(content)
    with (tmp_path / "in").open("rb") as file:
        read = list(translate.batches(file.fileno(), 600))
    assert [line for batch in read for line in batch] == expected
    assert all(len(batch) == 600 for batch in read[:-1])


# --- in a separate process


@pytest.fixture
def start(random_run, tmp_path, forks):
    """Starts the command with named pipes in tmp_path."""

    def start(*words, pipes):
        for name in pipes:
            os.mkfifo(tmp_path / name)
        streams = {name: str(tmp_path / name) for name in pipes}
        return forks.start(["translate", f"run={random_run}", *EXACT, *words], **streams)

    return start


def test_piped_line_is_translated_at_once(start, expected, tmp_path):
    process = start(pipes=("stdin", "stdout"))
    with (tmp_path / "stdin").open("wb", buffering=0) as stdin, (tmp_path / "stdout").open() as stdout:
        for sentence in SENTENCES[:2]:
            stdin.write(f"{sentence}\n".encode())
            assert stdout.readline() == f"{expected[sentence]}\n"
        os.kill(process.pid, signal.SIGINT)
        result = process.wait()
        assert (result.code, said(result.err.splitlines())) == (130, ["rpr-cli: interrupted"])
        assert stdout.read() == ""


def test_interrupted_output_ends_with_whole_line(start, expected, tmp_path, wait_for):
    target = tmp_path / "out.txt"
    process = start(f"output={target}", pipes=("stdin",))
    with (tmp_path / "stdin").open("wb", buffering=0) as stdin:
        stdin.write(lines_of(SENTENCES[:1]))
        wanted = f"{expected[SENTENCES[0]]}\n"
        assert wait_for(lambda: target.exists() and target.read_text() == wanted, 60)
        stdin.write(lines_of(SENTENCES * 400))
        os.kill(process.pid, signal.SIGTERM)
        result = process.wait()
    assert (result.code, result.out, said(result.err.splitlines())) == (143, "", ["rpr-cli: interrupted"])
    lines = target.read_text().split("\n")
    assert lines.pop() == "" and lines[0] + "\n" == wanted
    assert lines[1:] == [expected[sentence] for sentence in SENTENCES * 400][: len(lines) - 1]

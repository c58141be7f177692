"""Checked here: `rpr-cli translate` as a person and a pipeline use it. In this process: lines, odd bytes, n-best
lists, prefixes, files and each refusal. In processes of its own: a pipe that waits for answers, a terminal, Ctrl-C,
SIGTERM, and a reader that goes away. The model is one that was hardly trained, with other weights put into its
checkpoint, so that translations differ; in float64, so that they do not depend on what is translated together.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rpr import progress
from rpr.cli import app
from rpr.commands import translate
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode import translator
from rpr.decode.translator import Translation, Translator
from rpr.runs.loading import VOCABULARY_NAME
from tests.system.conftest import WaitFor
from tests.system.faults import Started, Starter

SENTENCES = ["The old dog runs.", "A cat sings.", "My fox laughs here.", "The doctor sees a cow.", "Every bird sleeps."]
SEED = 2  # of weights with which translations differ, some are finished, and beams are full
MODEL = ("model.norm=post", "model.relative_defaults.clip_distance=16")
EXACT = ("hardware.threads=1", "hardware.precision=64")


@pytest.fixture(scope="module")
def run_dir(small_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(small_run(*MODEL), tmp_path_factory.mktemp("translate") / "run"))
    for path in (folder / "checkpoints").glob("step*.ckpt"):  # average_checkpoints=20 takes the mean of equals
        checkpoint = torch.load(path, weights_only=True)
        draw = torch.Generator().manual_seed(SEED)
        weights = checkpoint["state_dict"]
        for name, weight in weights.items():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=draw) * (1.0 if "embedding" in name else 0.4))
        eos = weights["model.embedding_VM"][EOS]  # likelier by a term of its logit: random weights go on for ever
        weights["model.decoder.0.around_feed_forward.norm.bias"].copy_(5 * eos / eos.square().sum())
        torch.save(checkpoint, path)
    return folder


@pytest.fixture(scope="module")
def model(run_dir: Path) -> Translator:
    hardware = translator._hardware("cpu").model_copy(update={"threads": 1, "precision": "64"})
    return Translator.from_run(run_dir, hardware=hardware)


@pytest.fixture(scope="module")
def expected(model: Translator) -> dict[str, str]:
    """Each sentence's translation, alone."""
    found = {sentence: model.translate([sentence])[0] for sentence in SENTENCES}
    assert len(set(found.values())) == len(SENTENCES)
    return found


Told = Callable[..., str]


@pytest.fixture
def told(run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Told:
    """What the command prints for some bytes of input. `err` is what stderr must be: lines of `rpr-cli: `."""

    def tell(content: bytes, *overrides: str, code: int = 0, err: tuple[str, ...] = ()) -> str:
        (tmp_path / "in.txt").write_bytes(content)
        capfd.readouterr()
        arguments = ["translate", f"run={run_dir}", f"input={tmp_path / 'in.txt'}", *EXACT, *overrides]
        assert app.main(arguments) == code
        out, told = capfd.readouterr()
        assert told.replace(str(tmp_path), "DIR") == "".join(f"rpr-cli: {line}\n" for line in err)
        return out

    return tell


def lines_of(sentences: list[str]) -> bytes:
    return "".join(f"{sentence}\n" for sentence in sentences).encode()


def test_a_line_for_each_line_in_order_whatever_is_read_together(told: Told, expected: dict[str, str]) -> None:
    sentences = [SENTENCES[0], "", *SENTENCES[1:], "  \t ", *reversed(SENTENCES)]
    wanted = "".join(f"{expected.get(sentence, '')}\n" for sentence in sentences)
    for size in (1, 3, 256):
        assert told(lines_of(sentences), f"lines_per_batch={size}") == wanted
    assert told(lines_of(sentences)[:-1]) == wanted  # a last line without its end
    assert told(b"") == "" and told(b"\n\n") == "\n\n"


def test_odd_bytes(told: Told, expected: dict[str, str]) -> None:
    """A byte order mark, CRLF, control characters and separators that are no line ends; only one line each."""
    first, second = SENTENCES[:2]
    content = b"\xef\xbb\xbf" + first.encode() + b"\r\n" + second.replace(" ", "\u2028\x0c\x00\x85").encode()
    odd = "\u200b \U0001f600 \u1e9e e\u0301 \U0010ffff\n" * 2
    found = told(content + b"\n" + odd.encode() + b"\r\n").split("\n")
    assert found[:2] == [expected[first], expected[second]] and found[2] == found[3] and found[4:] == ["", ""]


def test_what_is_no_utf_8_is_told_and_translated(told: Told, expected: dict[str, str]) -> None:
    line = "warning: input DIR/in.txt, line {}: not valid UTF-8; invalid bytes are read as U+FFFD"
    said = [*map(line.format, range(2, 7)), "warning: input DIR/in.txt, 2 more lines: not valid UTF-8"]
    content = lines_of(SENTENCES[:1]) + b"A \xff cat\n" * 7 + lines_of(SENTENCES[1:2])
    out = told(content, "lines_per_batch=3", err=(*said,)).split("\n")
    assert out[0] == expected[SENTENCES[0]] and out[8] == expected[SENTENCES[1]] and len(out) == 10
    assert set(out[1:8]) == set(told("A \ufffd cat\n".encode()).split("\n")[:1])
    assert told(b"\xe2\x80\n", err=(line.format(1),))


def test_a_long_line_is_translated_in_parts_and_told(told: Told, expected: dict[str, str]) -> None:
    content = lines_of([SENTENCES[1], " ".join(SENTENCES[:3]), SENTENCES[4]])
    warning = "warning: input DIR/in.txt, line 2: more than max_source_length = 14 pieces; translated in 3 parts"
    out = told(content, "max_source_length=14", err=(warning,)).split("\n")
    joined = " ".join(expected[sentence] for sentence in SENTENCES[:3])
    assert out == [expected[SENTENCES[1]], joined, expected[SENTENCES[4]], ""]


def test_n_best_lines(told: Told, model: Translator) -> None:
    """Moses's form: line from 0 ||| translation ||| log p ||| score; an empty line has one entry."""
    sources = [SENTENCES[0], "", SENTENCES[1]]
    rows = [
        line.split(" ||| ")
        for line in told(lines_of(sources), "n_best=2", "beam_size=3", "lines_per_batch=1").splitlines()
    ]
    assert rows == [
        [str(number), best.text, f"{best.log_probability:.6f}", f"{best.score:.6f}"]
        for number, bests in enumerate(model.translate_n_best(sources, n_best=2, beam_size=3))
        for best in bests
    ]
    assert ["1", "", "0.000000", "0.000000"] in rows and len(rows) > 3
    reason = "n_best: invalid value 9: must be 1 to beam_size = 4; set beam_size to 9 or more"
    told(b"A\n", "n_best=9", code=2, err=(reason,))


def test_a_separator_within_a_translation_is_escaped() -> None:
    found = [Translation("a ||| b|||", -1.5, -2.25, True), Translation("a || b", -2.0, -3.0, False)]
    assert translate._n_best_lines(7, found) == (
        "7 ||| a &#124;&#124;&#124; b&#124;&#124;&#124; ||| -2.250000 ||| -1.500000\n"
        "7 ||| a || b ||| -3.000000 ||| -2.000000\n"
    )


def test_prefixes(told: Told, expected: dict[str, str], run_dir: Path, tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes.txt"
    words = (f"prefixes={prefixes}", "lines_per_batch=2")
    prefixes.write_text("Der alte\n\nMein\n", encoding="utf-8")
    out = told(lines_of(SENTENCES[:3]), *words).split("\n")
    assert out[0].startswith("Der alte") and out[1] == expected[SENTENCES[1]] and out[2].startswith("Mein")
    assert out[0] != expected[SENTENCES[0]] and len(out) == 4
    reason = "prefixes: DIR/prefixes.txt has 3 lines and input DIR/in.txt has 4; give one per line, empty for no prefix"
    told(lines_of(SENTENCES[:4]), *words, f"output={tmp_path / 'out.txt'}", code=2, err=(reason,))
    assert not [*tmp_path.glob("out*")]
    prefixes.write_text("a\n" + "das " * 40 + "\n")
    number = len(Vocabulary.load(run_dir / VOCABULARY_NAME).encode("das " * 40))
    reason = f"prefixes: number 2 has {number} pieces, more than max_source_length = 20; shorten it, or raise "
    told(lines_of(SENTENCES[:2]), *words, "max_source_length=20", code=2, err=(f"{reason}max_source_length",))


@pytest.mark.parametrize("number, word, lines", [(2, "more", 2), (4, "fewer", 3)])
def test_prefixes_of_a_pipe_that_has_not_as_many_lines(
    run_dir: Path, tmp_path: Path, expected: dict[str, str], capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, number: int, word: str, lines: int,
) -> None:  # fmt: skip
    prefixes = tmp_path / "prefixes.txt"
    prefixes.write_text("\n" * 3)
    reading, writing = os.pipe()
    os.write(writing, lines_of(SENTENCES[:number]))
    os.close(writing)
    capfd.readouterr()
    with open(reading, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert app.main(["translate", f"run={run_dir}", f"prefixes={prefixes}", *EXACT]) == 2
    out, err = capfd.readouterr()
    assert out == "".join(f"{expected[sentence]}\n" for sentence in SENTENCES[:lines])
    assert err.startswith(f"rpr-cli: prefixes: {prefixes} has {word} lines than stdin; the first {lines} lines were ")
    assert err.count("\n") == 1


def test_files(run_dir: Path, tmp_path: Path, expected: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in, with = 'odd' name.txt", tmp_path / "out.txt"
    source.write_bytes(lines_of(SENTENCES))
    target.write_text("earlier")
    (tmp_path / "link").symlink_to(target)
    capfd.readouterr()
    assert app.main(["translate", f"run={run_dir}", *EXACT, "--", str(source), str(tmp_path / "link")]) == 0
    assert capfd.readouterr() == ("", "")
    assert target.read_text() == "".join(f"{expected[sentence]}\n" for sentence in SENTENCES)
    assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == sorted([source.name, "link", "out.txt"])


@pytest.mark.parametrize(
    "words, message",
    [
        (  # works for root, too
            ("input=DIR/in.txt", "output=DIR/blocked"),
            "output: DIR/blocked.part cannot be written (Is a directory); give a file in a writable folder",
        ),
        (
            ("input=DIR/in.txt.part", "output=DIR/in.txt"),
            "input: this is also the output file, DIR/in.txt.part; give another output",
        ),
        (
            ("input=DIR/in.txt", "prefixes=DIR/same", "output=DIR/link"),
            "prefixes: this is also the output file, DIR/same; give another output",
        ),
    ],
)
def test_refusals_before_a_model_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(translate, "Translator", None)
    for name in ("in.txt", "in.txt.part", "same"):
        (tmp_path / name).write_text("a line\n")
    (tmp_path / "blocked.part").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "same")
    before = sorted(os.listdir(tmp_path))
    capfd.readouterr()
    assert app.main(["translate", "run=none", *(word.replace("DIR", str(tmp_path)) for word in words)]) == 2
    assert capfd.readouterr() == ("", f"rpr-cli: {message}\n".replace("DIR", str(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "in.txt").read_text() == "a line\n"


def test_no_run_leaves_no_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("a line\n")
    assert app.main(["translate", f"run={tmp_path}", "--", str(tmp_path / "in.txt"), str(tmp_path / "out.txt")]) == 2
    assert "has no record.json" in capfd.readouterr().err and os.listdir(tmp_path) == ["in.txt"]


def test_stdout_that_is_the_input(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rpr-cli translate < file >> file` would never end."""
    (tmp_path / "both").write_text("a line\n")
    with (tmp_path / "both").open("a+") as both:
        monkeypatch.setattr(sys, "stdin", both)
        monkeypatch.setattr(sys, "stdout", both)
        assert app.main(["translate", f"run={run_dir}", *EXACT]) == 2
    assert (tmp_path / "both").read_text() == "a line\n"


def test_progress_without_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input whose end is known; others would fill a log."""
    for total in (2000, None):
        now = [0.0]
        for module in (translate, progress):
            monkeypatch.setattr(module.time, "monotonic", lambda now=now: now[0])
        report = translate._Report(total, shows_progress=True)
        report.start()
        for now[0], lines, pieces in ((0.1, 10, 100), (10.0, 500, 5900), (12.0, 600, 0), (20.0, 1500, 9000)):
            report.add(pieces)
            report.progress(lines)
        report.close()
        line = "translating: 500/2,000 lines, 0:00:30 left, 50 lines/s, 600 source tokens/s\n"
        line += "translating: 1,500/2,000 lines, 0:00:07 left, 75 lines/s, 750 source tokens/s\n"
        assert capfd.readouterr().err == (line if total else "")


# --- in a process of its own


@pytest.fixture
def start(run_dir: Path, tmp_path: Path, starter: Starter) -> Callable[..., Started]:
    """Starts the command; what is named of stdin and stdout is a named pipe in tmp_path."""

    def start(*words: str, pipes: tuple[str, ...] = ("stdin", "stdout"), **streams: str) -> Started:
        for name in pipes:
            os.mkfifo(tmp_path / name)
            streams[name] = str(tmp_path / name)
        return starter.start(["translate", f"run={run_dir}", *EXACT, *words], tmp_path, **streams)

    return start


def test_each_line_is_answered_before_the_next_is_written(
    start: Callable[..., Started], expected: dict[str, str], tmp_path: Path
) -> None:
    """And Ctrl-C ends it between lines, quietly."""
    process = start()
    with (tmp_path / "stdin").open("wb", buffering=0) as stdin, (tmp_path / "stdout").open() as stdout:
        for sentence in SENTENCES[:3]:
            stdin.write(f"{sentence}\n".encode())
            assert stdout.readline() == f"{expected[sentence]}\n"
        os.kill(process.pid, signal.SIGINT)
        ended = process.ended()
        assert (ended.code, ended.err) == (130, "rpr-cli: interrupted; 3 lines were translated\n")
        assert stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_file_has_whole_lines(
    start: Callable[..., Started], expected: dict[str, str], tmp_path: Path, wait_for: WaitFor, number: signal.Signals
) -> None:
    target, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    process = start(f"output={target}", pipes=("stdin",))
    with (tmp_path / "stdin").open("wb", buffering=0) as stdin:
        stdin.write(lines_of(SENTENCES[:1]))
        wanted = f"{expected[SENTENCES[0]]}\n"
        assert wait_for(lambda: part.exists() and part.read_text() == wanted, 60)
        stdin.write(lines_of(SENTENCES * 400))  # it is at work on these
        os.kill(process.pid, number)
        ended = process.ended()
    assert (ended.code, ended.out) == (128 + number, "") and not target.exists()
    lines = part.read_text().split("\n")
    done = len(lines) - 1
    assert lines.pop() == "" and lines[0] + "\n" == wanted
    assert lines[1:] == [expected[sentence] for sentence in SENTENCES * 400][: done - 1]
    assert ended.err == f"rpr-cli: interrupted; {done} lines were translated in {part}; {target} was not written\n"


def test_a_reader_that_goes_away(start: Callable[..., Started], expected: dict[str, str], tmp_path: Path) -> None:
    """`rpr-cli translate < many.txt | head -1`"""
    (tmp_path / "many.txt").write_bytes(lines_of(SENTENCES * 2000))
    process = start(f"input={tmp_path / 'many.txt'}", "lines_per_batch=2", pipes=("stdout",))
    with (tmp_path / "stdout").open(buffering=1) as stdout:
        assert stdout.readline() == f"{expected[SENTENCES[0]]}\n"
    ended = process.ended()
    assert (ended.code, ended.err) == (0, "")


def test_a_terminal_gets_a_hint(start: Callable[..., Started], expected: dict[str, str], tmp_path: Path) -> None:
    """stdin and stderr are a terminal; Ctrl-D ends the input."""
    ours, theirs = pty.openpty()
    process = start(pipes=("stdout",), stdin=os.ttyname(theirs), stderr=os.ttyname(theirs))
    with (tmp_path / "stdout").open() as stdout:
        os.write(ours, f"{SENTENCES[0]}\n".encode())
        assert stdout.readline() == f"{expected[SENTENCES[0]]}\n"
        os.write(ours, b"\x04")
        assert process.ended().code == 0 and stdout.read() == ""
    shown = os.read(ours, 4096).decode()
    for end in (ours, theirs):
        os.close(end)
    assert "rpr-cli: reading from the terminal: Enter translates a line, Ctrl-D ends\r\n" in shown

"""Checked here: `rpr-cli translate` as a person and a pipeline use it. In this process: lines, odd bytes, n-best
lists, prefixes, files and each refusal. In processes of its own: a pipe that waits for answers, a terminal, Ctrl-C,
SIGTERM, and a reader that goes away. The model is one that was hardly trained, with other weights put into its
checkpoint, so that translations differ; in float64, so that they do not depend on what is translated together.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rpr import progress
from rpr.cli import app
from rpr.commands import translate
from rpr.data.vocabulary import EOS, Vocabulary
from rpr.decode.translator import Translation, Translator
from rpr.runs.loading import VOCABULARY_NAME

SCRIPT = Path(sys.executable).with_name("rpr-cli")
SENTENCES = ["The old dog runs.", "A cat sings.", "My fox laughs here.", "The doctor sees a cow.", "Every bird sleeps."]
SEED = 2  # of weights with which translations differ, some are finished, and beams are full
EXACT = ("hardware.threads=1", "hardware.precision=64")


@pytest.fixture(scope="module")
def run_dir(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, tiny_overrides: tuple[str, ...], small_data: object
) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    recipe = ["optim.max_steps=2", "optim.warmup_steps=2", "optim.validate_every_n_steps=2"]
    recipe += ["optim.checkpoint_every_n_steps=2", "evaluation.test_splits=[]", "hardware.threads=1"]
    assert app.main(["train", *tiny_overrides, *recipe, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]) == 0
    (folder,) = (path.parent for path in runs.glob("*/record.json"))
    (path,) = (folder / "checkpoints").glob("step*.ckpt")
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
def expected(run_dir: Path) -> dict[str, str]:
    """Each sentence's translation, alone."""
    hardware = translate_hardware()
    translator = Translator.from_run(run_dir, hardware=hardware)
    found = {sentence: translator.translate([sentence])[0] for sentence in SENTENCES}
    assert len(set(found.values())) == len(SENTENCES)
    return found


def translate_hardware() -> Any:
    from rpr.decode import translator

    return translator._hardware("cpu").model_copy(update={"threads": 1, "precision": "64"})


Told = Callable[..., str]


@pytest.fixture
def told(run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Told:
    """What the command prints for some bytes of input. `err` is what stderr must be, `code` the exit code."""

    def tell(content: bytes, *overrides: str, code: int = 0, err: str = "") -> str:
        (tmp_path / "in.txt").write_bytes(content)
        capfd.readouterr()
        arguments = ["translate", f"run={run_dir}", f"input={tmp_path / 'in.txt'}", *EXACT, *overrides]
        assert app.main(arguments) == code
        out, told = capfd.readouterr()
        assert told.replace(str(tmp_path), "DIR") == err
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
    assert told(content) == f"{expected[first]}\n{expected[second]}\n"
    assert told(b"\xef\xbb\xbf\r\n") == "\n"
    odd = "\u200b \U0001f600 \u1e9e e\u0301 \U0010ffff\n" * 2
    found = told(odd.encode())
    assert found.count("\n") == 2 and found.splitlines()[0] == found.splitlines()[1]


def test_what_is_no_utf_8_is_told_and_translated(told: Told, expected: dict[str, str]) -> None:
    said = [
        f"rpr-cli: warning: input DIR/in.txt, line {number}: not valid UTF-8; invalid bytes are read as U+FFFD\n"
        for number in range(2, 7)
    ]
    more = "rpr-cli: warning: input DIR/in.txt, 2 more lines: not valid UTF-8\n"
    content = lines_of(SENTENCES[:1]) + b"A \xff cat\n" * 7 + lines_of(SENTENCES[1:2])
    out = told(content, "lines_per_batch=3", err="".join([*said, more])).split("\n")
    assert out[0] == expected[SENTENCES[0]] and out[8] == expected[SENTENCES[1]] and len(out) == 10
    assert set(out[1:8]) == set(told("A \ufffd cat\n".encode()).split("\n")[:1])
    assert told(b"\xe2\x80\n", err=said[0].replace("line 2", "line 1"))


def test_a_long_line_is_translated_in_parts_and_told(told: Told, expected: dict[str, str]) -> None:
    content = lines_of([SENTENCES[1], " ".join(SENTENCES[:3]), SENTENCES[4]])
    warning = (
        "rpr-cli: warning: input DIR/in.txt, line 2: more than max_source_length = 14 pieces; translated in 3 parts\n"
    )
    out = told(content, "max_source_length=14", err=warning).split("\n")
    joined = " ".join(expected[sentence] for sentence in SENTENCES[:3])
    assert out == [expected[SENTENCES[1]], joined, expected[SENTENCES[4]], ""]


def test_n_best_lines(told: Told, run_dir: Path) -> None:
    """Moses's form: line from 0 ||| translation ||| log p ||| score; an empty line has one entry."""
    out = told(lines_of([SENTENCES[0], "", SENTENCES[1]]), "n_best=2", "beam_size=3", "lines_per_batch=1")
    translator = Translator.from_run(run_dir, hardware=translate_hardware())
    found = translator.translate_n_best([SENTENCES[0], "", SENTENCES[1]], n_best=2, beam_size=3)
    rows = [line.split(" ||| ") for line in out.splitlines()]
    wanted = [
        [str(number), best.text, f"{best.log_probability:.6f}", f"{best.score:.6f}"]
        for number, bests in enumerate(found)
        for best in bests
    ]
    assert rows == wanted and ["1", "", "0.000000", "0.000000"] in rows and len(rows) > 3
    told(
        b"A\n",
        "n_best=9",
        code=2,
        err=err_of("n_best: invalid value 9: must be 1 to beam_size = 4; set beam_size to 9 or more"),
    )
    told(b"A\n", "n_best=0", code=2, err=err_of("n_best: invalid value 0: input should be greater than 0"))


def err_of(line: str) -> str:
    return f"rpr-cli: {line}\n"


def test_a_separator_within_a_translation_is_escaped() -> None:
    found = [Translation("a ||| b|||", -1.5, -2.25, True), Translation("a || b", -2.0, -3.0, False)]
    assert translate._n_best_lines(7, found) == (
        "7 ||| a &#124;&#124;&#124; b&#124;&#124;&#124; ||| -2.250000 ||| -1.500000\n"
        "7 ||| a || b ||| -3.000000 ||| -2.000000\n"
    )


def test_prefixes(told: Told, expected: dict[str, str], run_dir: Path, tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes.txt"
    prefixes.write_text("Der alte\n\nMein\n", encoding="utf-8")
    out = told(lines_of(SENTENCES[:3]), f"prefixes={prefixes}", "lines_per_batch=2").split("\n")
    assert out[0].startswith("Der alte") and out[1] == expected[SENTENCES[1]] and out[2].startswith("Mein")
    assert out[0] != expected[SENTENCES[0]] and len(out) == 4
    told(
        lines_of(SENTENCES[:4]),
        f"prefixes={prefixes}",
        f"output={tmp_path / 'out.txt'}",
        code=2,
        err=err_of(
            "prefixes: DIR/prefixes.txt has 3 lines and input DIR/in.txt has 4; give one per line, empty for no prefix"
        ),
    )
    assert not [*tmp_path.glob("out*")]
    prefixes.write_text("a\n" + "das " * 40 + "\n")
    number = len(Vocabulary.load(run_dir / VOCABULARY_NAME).encode("das " * 40))
    told(
        lines_of(SENTENCES[:2]),
        f"prefixes={prefixes}",
        "max_source_length=20",
        code=2,
        err=err_of(
            f"prefixes: number 2 has {number} pieces, more than max_source_length = 20; shorten it, or raise "
            "max_source_length"
        ),
    )


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Gives this process a pipe for stdin that holds some bytes and has ended."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)

        def fill(content: bytes) -> None:
            os.write(writing, content)
            os.close(writing)

        yield fill


@pytest.mark.parametrize(("number", "word", "lines"), [(2, "more", 2), (4, "fewer", 3)])
def test_prefixes_of_a_pipe_that_has_not_as_many_lines(
    run_dir: Path,
    tmp_path: Path,
    expected: dict[str, str],
    stdin: Callable[[bytes], None],
    capfd: pytest.CaptureFixture[str],
    number: int,
    word: str,
    lines: int,
) -> None:
    """Told when the shorter one ends; what has both is translated."""
    (tmp_path / "prefixes.txt").write_text("\n\n\n", encoding="utf-8")
    stdin(lines_of(SENTENCES[:number]))
    arguments = ["translate", f"run={run_dir}", f"prefixes={tmp_path / 'prefixes.txt'}", *EXACT]
    assert app.main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == "".join(f"{expected[sentence]}\n" for sentence in SENTENCES[:lines])
    assert err.startswith(f"rpr-cli: prefixes: {tmp_path / 'prefixes.txt'} has {word} lines than stdin; the first ")
    assert f"the first {lines} lines were translated" in err and err.count("\n") == 1


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
    ("overrides", "message"),
    [
        (
            ["input=DIR/in.txt", "output=DIR/blocked"],  # works for root, too
            "output: DIR/blocked.part cannot be written (Is a directory); give a file in a writable folder",
        ),
        (
            ["input=DIR/in.txt", "output=DIR/in.txt"],
            "input: this is also the output file, DIR/in.txt; give another output",
        ),
        (
            ["input=DIR/in.txt.part", "output=DIR/in.txt"],
            "input: this is also the output file, DIR/in.txt.part; give another output",
        ),
        (
            ["input=DIR/in.txt", "prefixes=DIR/same", "output=DIR/link"],
            "prefixes: this is also the output file, DIR/same; give another output",
        ),
    ],
)
def test_refusals_before_a_model_is_read(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(translate, "Translator", None)
    for name in ("in.txt", "in.txt.part", "same"):
        (tmp_path / name).write_text("a line\n")
    (tmp_path / "blocked.part").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "same")
    before = sorted(os.listdir(tmp_path))
    capfd.readouterr()
    assert app.main(["translate", "run=none", *(word.replace("DIR", str(tmp_path)) for word in overrides)]) == 2
    assert capfd.readouterr() == ("", f"rpr-cli: {message}\n".replace("DIR", str(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "in.txt").read_text() == "a line\n"


def test_no_run_leaves_no_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("a line\n")
    arguments = ["translate", f"run={tmp_path}", "--", str(tmp_path / "in.txt"), str(tmp_path / "out.txt")]
    assert app.main(arguments) == 2
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


class Process:
    """`rpr-cli translate` with a pipe to its stdin; it hears Ctrl-C even where the tests run in the background."""

    def __init__(self, *arguments: str, **streams: Any) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        self.popen = subprocess.Popen(
            [SCRIPT, "translate", *EXACT, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            bufsize=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **pipes,
        )

    def say(self, sentence: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{sentence}\n".encode())

    def hear(self) -> str:
        """The next line that it writes."""
        assert self.popen.stdout is not None
        line = bytearray()
        while not line.endswith(b"\n") and (byte := self.popen.stdout.read(1)):
            line += byte
        return line.decode()

    def end(self, expect: int) -> tuple[str, list[str]]:
        """What else it wrote, and its lines on stderr."""
        out, err = self.popen.communicate(timeout=60)
        assert self.popen.returncode == expect, err
        return (out or b"").decode(), (err or b"").decode().splitlines()


@pytest.fixture
def started(run_dir: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def start(*arguments: str, **streams: Any) -> Process:
        processes.append(Process(f"run={run_dir}", *arguments, **streams))
        return processes[-1]

    yield start
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def test_each_line_is_answered_before_the_next_is_written(
    started: Callable[..., Process], expected: dict[str, str]
) -> None:
    """And Ctrl-C ends it between lines, quietly."""
    process = started()
    for sentence in SENTENCES[:3]:
        process.say(sentence)
        assert process.hear() == f"{expected[sentence]}\n"
    process.popen.send_signal(signal.SIGINT)
    assert process.end(130) == ("", ["rpr-cli: interrupted; 3 lines were translated"])


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_file_has_whole_lines(
    started: Callable[..., Process],
    expected: dict[str, str],
    tmp_path: Path,
    wait_for: Callable[[Callable[[], bool], float], bool],
    number: signal.Signals,
) -> None:
    target, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    process = started(f"output={target}")
    process.say(SENTENCES[0])
    wanted = f"{expected[SENTENCES[0]]}\n"
    assert wait_for(lambda: part.exists() and part.read_text() == wanted, 60)
    for sentence in SENTENCES * 400:  # it is at work on these
        process.say(sentence)
    process.popen.send_signal(number)
    out, err = process.end(128 + number)
    assert out == "" and not target.exists()
    lines = part.read_text().split("\n")
    done = len(lines) - 1
    assert lines.pop() == "" and lines[0] + "\n" == wanted
    assert lines[1:] == [expected[sentence] for sentence in SENTENCES * 400][: done - 1]
    assert err == [f"rpr-cli: interrupted; {done} lines were translated in {part}; {target} was not written"]


def test_a_reader_that_goes_away(started: Callable[..., Process], expected: dict[str, str], tmp_path: Path) -> None:
    """`rpr-cli translate < many.txt | head -1`"""
    (tmp_path / "many.txt").write_bytes(lines_of(SENTENCES * 2000))
    process = started(f"input={tmp_path / 'many.txt'}", "lines_per_batch=2", stdin=None)
    assert process.hear() == f"{expected[SENTENCES[0]]}\n"
    assert process.popen.stdout is not None and process.popen.stderr is not None
    process.popen.stdout.close()
    assert process.popen.wait(60) == 0 and process.popen.stderr.read() == b""


def test_a_terminal_gets_a_hint(started: Callable[..., Process], expected: dict[str, str]) -> None:
    """stdin and stderr are a terminal; Ctrl-D ends the input."""
    ours, theirs = pty.openpty()
    process = started(stdin=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, f"{SENTENCES[0]}\n".encode())
    assert process.hear() == f"{expected[SENTENCES[0]]}\n"
    os.write(ours, b"\x04")
    assert process.end(0) == ("", [])
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert "rpr-cli: reading from the terminal: Enter translates a line, Ctrl-D ends\r\n" in shown

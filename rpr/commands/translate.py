"""rpr-cli translate: one line in, one line out, in order."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO

from rpr.config.commands import TranslateConfig
from rpr.data.files import check_text
from rpr.decode.engine import translate_sources
from rpr.decode.translator import Translator
from rpr.errors import ConfigError
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.progress import Progress

CHUNK_BYTES = 2**16


def run(config: TranslateConfig) -> None:
    """Translates lines until the input ends. Warnings, of each kind the first, and progress go to stderr. Raises
    ConfigError, DataError or RecordError for unusable settings, files or run, before anything is written, and for an
    input that is not text; BrokenPipeError if the reader of stdout is gone. Interrupted, it has written whole lines.
    """
    with ExitStack() as files:
        # 1. Input, model, output: what cannot be used is refused before the output file is emptied.
        source, name = _open_input(config.input, files)
        translator = Translator.from_config(config)
        output = _open_output(config.output, source, files)
        shows = config.output is not None or not sys.stdout.isatty()
        bar = files.enter_context(Progress(None, "lines", "translating"))
        done, warned = 0, set[str]()
        for lines in batches(source, config.lines_per_batch):
            # 2. The lines as text.
            if done == 0:
                check_text(name, b"".join(lines))
            texts = [line.decode("utf-8", errors="replace") for line in lines]
            # 3. Their translations, and what a reader must know of them.
            sources = translator.encode(texts)
            translated = translate_sources(translator.engine, sources, translator.vocabulary, translator.search)
            rows = zip(lines, texts, *translated, strict=True)
            for number, (line, text, translation, finished) in enumerate(rows, done + 1):
                problems = {
                    "not valid UTF-8; invalid bytes are read as U+FFFD": text.encode("utf-8", "surrogatepass") != line,
                    "no end within the length limit; the translation is cut off there": not finished,
                    "an empty translation; min_length=1 requires at least one token": text.strip() and not translation,
                }
                for problem in [problem for problem, holds in problems.items() if holds and problem not in warned]:
                    warned.add(problem)
                    note(f"warning: {name}, line {number}: {problem}")
            # 4. Whole lines: what an interruption leaves in the buffer is written when it is closed.
            output.write("".join(f"{text}\n" for text in translated.texts).encode())
            output.flush()
            done += len(lines)
            if shows:
                bar.update(len(lines))


def _open_input(path: str | None, files: ExitStack) -> tuple[int, str]:
    """The descriptor, which `files` closes, and the input's name in messages."""
    if path is None:
        return stdin(), "stdin"
    try:
        return files.enter_context(user_path(path).open("rb")).fileno(), f"input {path}"
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be read ({error.strerror}); give a file of text lines") from None


def _open_output(path: str | None, source: int, files: ExitStack) -> IO[bytes]:
    """Raises ConfigError if it cannot be written, or is the input, which would be lost or never end."""
    try:
        file = sys.stdout.buffer if path is None else files.enter_context(user_path(path).open("ab"))
    except OSError as error:
        raise ConfigError(f"output: {path} cannot be written ({error.strerror}); give another file") from None
    if stat.S_ISREG((status := os.fstat(file.fileno())).st_mode):
        if os.path.samestat(os.fstat(source), status):
            raise ConfigError(f"input: this is also the output file, {path or 'stdout'}; give another output")
        if path is not None:
            file.truncate(0)
    return file


def stdin() -> int:
    """The descriptor of stdin; raises ConfigError if it is closed."""
    if sys.stdin is None:
        raise ConfigError("stdin is closed; give input=FILE, or prompt=TEXT to generate")
    return sys.stdin.fileno()


def batches(descriptor: int, max_lines: int) -> Iterator[list[bytes]]:
    """The lines of a file in batches of `max_lines`; of a pipe or a terminal, those that have arrived, at least one.
    They are without their newlines; the last may have none. An input without any newline has a line at each carriage
    return. At most one chunk is read beyond a batch, so an endless input waits in its pipe.
    """
    if os.isatty(descriptor):
        note("reading from the terminal: press Enter to end a line, Ctrl-D to quit")
    of_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    lines: list[bytes] = []
    partial: list[bytes] = []  # of a line whose end has not arrived
    seen = False  # a newline
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            lines.append(b"".join([*partial, end]))
            partial, seen = [], True
        partial.append(rest)
        while len(lines) >= max_lines or (lines and not of_file):
            yield lines[:max_lines]
            lines = lines[max_lines:]
    if last := b"".join(partial):
        lines += [last] if seen else last.removesuffix(b"\r").split(b"\r")
    for start in range(0, len(lines), max_lines):
        yield lines[start : start + max_lines]

"""rpr-cli translate: one line in, one line out, in order."""

import os
import stat
import sys
from collections import Counter
from contextlib import ExitStack
from typing import IO

from rpr.commands.line_streams import batches
from rpr.config.commands import TranslateConfig
from rpr.data.files import check_text
from rpr.decode.engine import translate_sources
from rpr.decode.translator import Translator
from rpr.errors import ConfigError
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.progress import Progress


def run(config: TranslateConfig) -> None:
    """Translates lines until the input ends. Warnings and progress go to stderr. Raises ConfigError, DataError or
    RecordError for unusable settings, files or run, before anything is written, and for an input that is not text;
    BrokenPipeError if the reader of stdout is gone. Interrupted, it has written whole lines only.
    """
    with ExitStack() as files:
        # 1. Input, model, output: what cannot be used is refused before the output file is emptied.
        source, name = _open_input(config.input, files)
        translator = Translator.from_config(config)
        output = _open_output(config.output, source, files)
        if os.isatty(source):
            note("reading from the terminal: press Enter to translate a line, Ctrl-D to quit")
        shows = config.output is not None or not sys.stdout.isatty()
        warned: Counter[str] = Counter()
        done = 0

        def warn(line: int, problem: str) -> None:
            warned[problem] += 1
            if warned[problem] == 1:
                note(f"warning: {name}, line {line}: {problem}")

        with Progress(None, "lines", "translating", lines="slow" if shows else "none") as bar:
            for lines in batches(source, config.lines_per_batch):
                # 2. The lines as text.
                if done == 0:
                    check_text(name, b"".join(lines), lines=False)
                texts = [line.decode("utf-8", errors="replace") for line in lines]
                # 3. Their translations, and what a reader must know of them.
                sources = translator.encode(texts)
                translated = translate_sources(translator.engine, sources, translator.vocabulary, translator.search)
                rows = zip(lines, texts, *translated, strict=True)
                for number, (line, text, translation, finished) in enumerate(rows, done + 1):
                    if text.encode("utf-8", "surrogatepass") != line:
                        warn(number, "not valid UTF-8; invalid bytes are read as U+FFFD")
                    if not finished:
                        warn(number, "no end within the length limit; the translation is cut off there")
                    if not translation and text.strip():
                        warn(number, "an empty translation; min_length=1 requires at least one token")
                # 4. Whole lines: what an interruption leaves in the buffer is written when it is closed.
                output.write("".join(f"{text}\n" for text in translated.texts).encode())
                output.flush()
                done += len(lines)
                if shows:
                    bar.update(len(lines))
        for problem, number in warned.items():
            if number > 1:
                note(f"warning: {name}, {number:,} lines: {problem}")


def _open_input(path: str | None, files: ExitStack) -> tuple[int, str]:
    """The descriptor, which `files` closes, and the input's name in messages."""
    if path is None:
        if sys.stdin is None:
            raise ConfigError("input: stdin is closed; give a file as input=FILE")
        return sys.stdin.fileno(), "stdin"
    try:
        return files.enter_context(user_path(path).open("rb")).fileno(), f"input {path}"
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be read ({error.strerror}); give a file of text lines") from None


def _open_output(path: str | None, source: int, files: ExitStack) -> IO[bytes]:
    """Raises ConfigError if it cannot be written, or is the input, which would be lost or never end."""
    try:
        file = sys.stdout.buffer if path is None else files.enter_context(user_path(path).open("ab"))
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and os.path.samestat(os.fstat(source), status):
            raise ConfigError(f"input: this is also the output file, {path or 'stdout'}; give another output")
        if path is not None and stat.S_ISREG(status.st_mode):
            file.truncate(0)
    except OSError as error:
        raise ConfigError(f"output: {path} cannot be written ({error.strerror}); give another file") from None
    return file

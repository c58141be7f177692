"""rpr-cli translate: one line in, one line out, in order; with n_best, the N best translations of each line."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

from rpr.commands.line_streams import Output, batches, count_lines, part_of
from rpr.config.commands import TranslateConfig
from rpr.data.content import check_text
from rpr.decode.translator import Translation, Translator
from rpr.errors import ConfigError
from rpr.io.escape import note
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.signals import signals_deferred

MAX_WARNINGS = 5  # of each kind
SEPARATOR = "|||"
ESCAPED = "&#124;&#124;&#124;"  # for the separator in a translation, as the Moses tokeniser escapes it


def run(config: TranslateConfig) -> None:
    """Translates lines until the input ends. Warnings and progress go to stderr. Raises ConfigError, DataError or
    RecordError for unusable settings, files or run, before any input is read, and for an input that is not text;
    BrokenPipeError if the reader of stdout is gone; KeyboardInterrupt and SystemExit after Ctrl-C and SIGTERM, with
    only complete lines written.
    """
    with ExitStack() as files:
        source, name = _open_input(config.input, files)
        output, remarks = _open_output(config.output, source), _Remarks(name)
        try:
            _translate(config, source, output, remarks)
            with signals_deferred():  # completes the output, even if a signal arrives meanwhile
                output.finish()
        except BaseException as error:
            remarks.stop(output.give_up(), interrupted=isinstance(error, (KeyboardInterrupt, SystemExit)))
            raise


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


def _open_output(name: str | None, source: int) -> Output:
    if name is None:
        _refuse_same(source, os.fstat(sys.stdout.fileno()), "stdout")
        return Output()
    path = user_path(name).resolve()  # writes the target of a link, and keeps the link
    if path.exists() and not path.is_file():
        raise ConfigError(f"output: {path} is not a regular file; give a file name, or redirect stdout")
    for written in (path, part_of(path)):
        if written.exists():
            _refuse_same(source, written.stat(), str(written))
    try:
        return Output(path)
    except OSError as error:
        part = part_of(path)
        raise ConfigError(f"output: {part} cannot be written ({error.strerror}); give another file") from None


def _refuse_same(source: int, written: os.stat_result, name: str) -> None:
    """Raises ConfigError if the input file is also the output file."""
    if stat.S_ISREG(written.st_mode) and os.path.samestat(os.fstat(source), written):
        raise ConfigError(f"input: this is also the output file, {name}; give another output")


def _translate(config: TranslateConfig, source: int, output: Output, remarks: _Remarks) -> None:
    translator = Translator.from_config(config)
    if os.isatty(source):
        note("reading from the terminal: press Enter to translate a line, Ctrl-D to quit")
    total = count_lines(source)
    shows_progress = config.output is not None or not sys.stdout.isatty()
    # Of an input that may be endless no progress lines are logged.
    bar = Progress(total, "lines", "translating", lines="none" if total is None else "slow") if shows_progress else None
    with bar or nullcontext():
        for lines in batches(source, config.lines_per_batch):
            texts = _decoded(lines, remarks)
            sources = translator.encode(texts)
            for number, parts in enumerate(sources, remarks.done + 1):
                if len(parts) > 1:
                    problem = f"more than max_source_length = {translator.max_source_length} pieces"
                    remarks.warn(number, problem, f"translated in {len(parts)} parts")
            translations = translator.translate_encoded(sources, translator.search)
            for number, (text, best) in enumerate(zip(texts, translations, strict=True), remarks.done + 1):
                if not best[0].finished:
                    remarks.warn(number, "no end within the length limit", "the translation is cut off there")
                if not best[0].text and text.strip():
                    remarks.warn(number, "an empty translation", "min_length=1 requires at least one token")
            if config.n_best is None:
                written = "".join(f"{best[0].text}\n" for best in translations)
            else:
                written = "".join(_n_best_lines(number, best) for number, best in enumerate(translations, remarks.done))
            with signals_deferred():
                output.write(written.encode("utf-8"))
                remarks.done += len(lines)
            if bar is not None:
                bar.update(len(lines))
    remarks.close()


def _decoded(lines: Sequence[bytes], remarks: _Remarks) -> list[str]:
    texts = []
    for number, line in enumerate(lines, remarks.done + 1):
        check_text(remarks.name, line, number - 1)
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            texts.append(line.decode("utf-8", errors="replace"))
            remarks.warn(number, "not valid UTF-8", "invalid bytes are read as U+FFFD")
    return texts


def _n_best_lines(number: int, translations: Sequence[Translation]) -> str:
    """Moses format: line index, from 0 ||| translation ||| log p ||| score."""
    return "".join(
        f"{number} ||| {best.text.replace(SEPARATOR, ESCAPED)} ||| {best.log_probability:.6f} ||| {best.score:.6f}\n"
        for best in translations
    )


class _Remarks:
    """What stderr says of the input `name`: the first warnings of each kind and the number of further ones, and how it
    ended. `done`: the lines whose translations are written.
    """

    def __init__(self, name: str) -> None:
        self.name, self.done = name, 0
        self._counts: Counter[str] = Counter()  # of warnings, by problem

    def warn(self, line: int, problem: str, consequence: str) -> None:
        """Report a problem of a line, counted from 1."""
        self._counts[problem] += 1
        if self._counts[problem] <= MAX_WARNINGS:
            note(f"warning: {self.name}, line {line}: {problem}; {consequence}")

    def close(self) -> None:
        """Print how many warnings were only counted."""
        for problem, number in self._counts.items():
            if number > MAX_WARNINGS:
                note(f"warning: {self.name}, {number - MAX_WARNINGS} more lines: {problem}")
        self._counts.clear()

    def stop(self, where: str, *, interrupted: bool) -> None:
        """After an error: how many lines were translated, and `where` they are."""
        self.close()
        if where or (interrupted and self.done):
            note(f"{self.done} lines were translated{where}")

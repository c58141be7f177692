"""rpr-cli translate: one line in, one line out, in order; with n_best, the N best translations of each line."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from rpr.commands.line_streams import Output, batches, count_lines, part_of
from rpr.config.commands import TranslateConfig
from rpr.data.files import check_text
from rpr.decode.translator import Translation, Translator
from rpr.errors import ConfigError
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.signals import exit_on_signals, signals_deferred

MAX_WARNINGS = 5  # of each kind
SEPARATOR = "|||"
ESCAPED = "&#124;&#124;&#124;"  # for the separator in a translation, as the Moses tokeniser escapes it


def run(config: TranslateConfig) -> None:
    """Translates lines until the input ends. Warnings and progress go to stderr.

    Raises:
        ConfigError, DataError, RecordError: unusable settings, files or run, before any input is read; an input that is
            not text.
        SystemExit: 130 or 143 after Ctrl-C or SIGTERM, with only complete lines written.
        BrokenPipeError: the reader of stdout is gone.
    """
    with exit_on_signals(), ExitStack() as files:
        report, where = _Report(), ""
        try:
            source, name = _open_input(config.input, files)
            output = _open_output(config.output, source)
            try:
                _translate(config, source, name, output, report)
            except BaseException:
                where = output.give_up()
                raise
            with signals_deferred():  # completes the output, even if a signal arrives meanwhile
                output.finish()
        except BaseException as error:
            report.stop(where, interrupted=isinstance(error, SystemExit))
            raise


def _open_input(path: str | None, files: ExitStack) -> tuple[int, str]:
    """The descriptor, which `files` closes, and the input's name in messages."""
    if path is None:
        return _standard_stream("input"), "stdin"
    try:
        return files.enter_context(user_path(path).open("rb")).fileno(), f"input {path}"
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be read ({error.strerror}); give a file of text lines") from None


def _standard_stream(name: str) -> int:
    """The descriptor of stdin or stdout."""
    stream = sys.stdin if name == "input" else sys.stdout
    if stream is None:
        raise ConfigError(f"{name}: std{name.removesuffix('put')} is closed; give a file as {name}=FILE")
    return stream.fileno()


def _open_output(name: str | None, source: int) -> Output:
    if name is None:
        descriptor = _standard_stream("output")
        _refuse_same(source, os.fstat(descriptor), "stdout")
        return Output(descriptor)
    path = user_path(name).resolve()  # writes the target of a link, and keeps the link
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file (redirect stdout to it instead)"
        raise ConfigError(f"output: {path} is {kind}; give a file name")
    if not path.parent.is_dir():
        raise ConfigError(f"output: the folder {path.parent} does not exist; create it first")
    for written in (path, part_of(path)):
        if written.exists():
            _refuse_same(source, written.stat(), str(written))
    try:
        return Output(path)
    except OSError as error:
        raise ConfigError(
            f"output: {part_of(path)} cannot be written ({error.strerror}); give a file in a writable folder"
        ) from None


def _refuse_same(source: int, written: os.stat_result, name: str) -> None:
    """Raises ConfigError if the input file is also the output file."""
    if stat.S_ISREG(written.st_mode) and os.path.samestat(os.fstat(source), written):
        raise ConfigError(f"input: this is also the output file, {name}; give another output")


def _translate(config: TranslateConfig, source: int, name: str, output: Output, report: _Report) -> None:
    translator = Translator.from_config(config)
    if os.isatty(source):
        report.print_line("reading from the terminal: press Enter to translate a line, Ctrl-D to quit")
    report.start(count_lines(source), shows_progress=config.output is not None or not sys.stdout.isatty())
    for lines in batches(source, name, config.lines_per_batch):
        sources = translator.encode(_decoded(lines, name, report))
        for number, parts in enumerate(sources, report.done + 1):
            if len(parts) > 1:
                problem = f"more than max_source_length = {translator.max_source_length} pieces"
                report.warn(name, number, problem, f"translated in {len(parts)} parts")
        report.lines = len(lines)
        translations = translator.translate_encoded(sources, translator.search, progress=report.progress)
        if config.n_best is None:
            written = "".join(f"{best[0].text}\n" for best in translations)
        else:
            written = "".join(_n_best_lines(number, best) for number, best in enumerate(translations, report.done))
        with signals_deferred():
            output.write(written.encode("utf-8"))
            report.done += len(lines)
    report.close()


def _decoded(lines: Sequence[bytes], name: str, report: _Report) -> list[str]:
    texts = []
    for number, line in enumerate(lines, report.done + 1):
        check_text(name, line, number - 1)
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            texts.append(line.decode("utf-8", errors="replace"))
            report.warn(name, number, "not valid UTF-8", "invalid bytes are read as U+FFFD")
    return texts


def _n_best_lines(number: int, translations: Sequence[Translation]) -> str:
    """Moses format: line index, from 0 ||| translation ||| log p ||| score."""
    return "".join(
        f"{number} ||| {best.text.replace(SEPARATOR, ESCAPED)} ||| {best.log_probability:.6f} ||| {best.score:.6f}\n"
        for best in translations
    )


class _Report:
    """Messages on stderr: remarks, the first warnings of each kind and the number of further ones, and progress.

    `done`: the lines whose translations are written; `lines`: of the batch after them.
    """

    def __init__(self) -> None:
        self.done = self.lines = 0
        self._total: int | None = None
        self._bar: Progress | None = None
        self._counts: dict[tuple[str, str], int] = {}  # of warnings, by file and problem

    def start(self, total: int | None, *, shows_progress: bool) -> None:
        """Start the bar of `total` lines, once the model is loaded; if that is unknown no progress lines are logged, as
        the input may be endless.
        """
        self._total = total
        if shows_progress:
            self._bar = Progress(total, "lines", "translating", lines="none" if total is None else "slow")

    def print_line(self, text: str) -> None:
        print(f"rpr-cli: {text}", file=sys.stderr, flush=True)

    def warn(self, file: str, line: int, problem: str, consequence: str) -> None:
        """Report a problem of a line, counted from 1."""
        number = self._counts[file, problem] = self._counts.get((file, problem), 0) + 1
        if number <= MAX_WARNINGS:
            self.print_line(f"warning: {file}, line {line}: {problem}; {consequence}")

    def progress(self, done: int, total: int) -> None:
        """Show the number of translated lines: of the batch `done` of `total` sources."""
        if self._bar is not None:
            self._bar.reach(self.done + self.lines * done // total, self._total)

    def close(self) -> None:
        """End the bar, and print how many warnings were only counted."""
        if self._bar is not None:
            self._bar.close()
        for (file, problem), number in self._counts.items():
            if number > MAX_WARNINGS:
                self.print_line(f"warning: {file}, {number - MAX_WARNINGS} more lines: {problem}")
        self._counts = {}

    def stop(self, where: str, *, interrupted: bool) -> None:
        """After an error: how many lines were translated, and `where` they are."""
        self.close()
        if interrupted or where:
            self.print_line(f"{'interrupted; ' if interrupted else ''}{self.done} lines were translated{where}")

"""rpr-cli translate: one line in, one line out, in order; with n_best, the N best translations of each line."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from typing import IO

from rpr.commands.line_streams import (
    DescriptorOutput,
    FileOutput,
    LineReader,
    Output,
    count_lines,
    part_of,
)
from rpr.config.commands import TranslateConfig
from rpr.data.files import check_text
from rpr.decode.translator import Translation, Translator
from rpr.errors import ConfigError, DataError
from rpr.paths import user_path
from rpr.progress import Progress
from rpr.signals import Interrupts

MAX_WARNINGS = 5  # of each kind
SEPARATOR = "|||"
ESCAPED = "&#124;&#124;&#124;"  # for the separator in a translation, as the Moses tokeniser escapes it


def run(config: TranslateConfig) -> None:
    """Translates lines until the input ends. Warnings and progress go to stderr.

    Raises:
        ConfigError, DataError, RecordError: unusable settings, files or run, before any input is read; an input that is
            not text, or whose number of lines differs from that of `prefixes`.
        SystemExit: 130 or 143 after Ctrl-C or SIGTERM, with only complete lines written.
        BrokenPipeError: the reader of stdout is gone.
    """
    with Interrupts() as interrupts, ExitStack() as files:
        try:
            job = _Job(config, files, interrupts)
        except SystemExit:
            print("rpr-cli: interrupted; 0 lines were translated", file=sys.stderr)
            raise
        try:
            job.translate(Translator.from_config(config))
        except BaseException as error:
            job.give_up(error)
            raise
        job.finish()


class _Job:
    """The open files and the progress of one command."""

    def __init__(self, config: TranslateConfig, files: ExitStack, interrupts: Interrupts) -> None:
        """Raises ConfigError or DataError for unusable files; `files` closes those it opens."""
        self._config = config
        self._interrupts = interrupts
        self._name = "stdin" if config.input is None else f"input {config.input}"
        if config.input is None:
            self._input = _standard_stream("input")
        else:
            self._input = _open(config.input, "input", files).fileno()
        self._prefixes = None if config.prefixes is None else _open(config.prefixes, "prefixes", files)
        total = self._count_input_lines()
        self._output = self._open_output()
        on_terminal = isinstance(self._output, DescriptorOutput) and sys.stdout.isatty()
        self._report = _Report(total, shows_progress=not on_terminal)
        self._done = 0  # lines whose translations are written

    def _count_input_lines(self) -> int | None:
        """The number of input lines, if known in advance; checked against the number of prefixes."""
        total = count_lines(self._input)
        if self._prefixes is not None:
            prefixes = count_lines(self._prefixes.fileno())
            if None not in (total, prefixes) and total != prefixes:
                raise DataError(
                    f"prefixes: {self._config.prefixes} has {prefixes} lines and {self._name} has {total}; "
                    "give one per line, empty for no prefix"
                )
        return total

    def _open_output(self) -> Output:
        files = {"input": self._input}
        if self._prefixes is not None:
            files["prefixes"] = self._prefixes.fileno()
        if self._config.output is None:
            descriptor = _standard_stream("output")
            _refuse_same(files, os.fstat(descriptor), "stdout")
            return DescriptorOutput(descriptor)
        path = user_path(self._config.output).resolve()  # writes the target of a link, and keeps the link
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file (redirect stdout to it instead)"
            raise ConfigError(f"output: {path} is {kind}; give a file name")
        if not path.parent.is_dir():
            raise ConfigError(f"output: the folder {path.parent} does not exist; create it first")
        for written in (path, part_of(path)):
            if written.exists():
                _refuse_same(files, written.stat(), str(written))
        try:
            return FileOutput(path)
        except OSError as error:
            raise ConfigError(
                f"output: {part_of(path)} cannot be written ({error.strerror}); give a file in a writable folder"
            ) from None

    def translate(self, translator: Translator) -> None:
        """Translate the whole input. Raises DataError for an unusable input or prefixes."""
        if os.isatty(self._input):
            self._report.print_line("reading from the terminal: press Enter to translate a line, Ctrl-D to quit")
        self._report.start()
        for lines in LineReader(self._input, self._name, self._config.lines_per_batch).batches():
            prefixes = self._next_prefixes(len(lines))
            served = lines if prefixes is None else lines[: len(prefixes)]
            written = self._translate_lines(translator, served, prefixes)
            with self._interrupts.deferred():
                self._output.write(written.encode("utf-8"))
                self._done += len(served)
            if len(served) < len(lines):
                raise self._line_count_error("fewer")
        if self._prefixes is not None and self._prefixes.readline():
            raise self._line_count_error("more")
        self._report.close()

    def _line_count_error(self, word: str) -> DataError:
        return DataError(
            f"prefixes: {self._config.prefixes} has {word} lines than {self._name}; the first {self._done} lines were "
            "translated: give one per line, empty for no prefix"
        )

    def _next_prefixes(self, number: int) -> list[str] | None:
        if self._prefixes is None:
            return None
        lines = [line.removesuffix(b"\n") for line in islice(self._prefixes, number)]
        return self._decoded(lines, f"prefixes {self._config.prefixes}")

    def _decoded(self, lines: Sequence[bytes], name: str) -> list[str]:
        texts = []
        for number, line in enumerate(lines, self._done + 1):
            check_text(name, line, number - 1)
            try:
                texts.append(line.decode("utf-8"))
            except UnicodeDecodeError:
                texts.append(line.decode("utf-8", errors="replace"))
                self._report.warn(name, number, "not valid UTF-8", "invalid bytes are read as U+FFFD")
        return texts

    def _translate_lines(self, translator: Translator, lines: Sequence[bytes], prefixes: Sequence[str] | None) -> str:
        """The output text for these input lines."""
        sources = translator.encode(self._decoded(lines, self._name))
        forced = None if prefixes is None else translator.encode_prefixes(prefixes, self._done)
        for number, parts in enumerate(sources, self._done + 1):
            if len(parts) > 1:
                problem = f"more than max_source_length = {translator.max_source_length} pieces"
                self._report.warn(self._name, number, problem, f"translated in {len(parts)} parts")
        found = translator.translate_encoded(
            sources,
            translator.search,
            prefixes=forced,
            progress=lambda done, total: self._report.progress(self._done + len(lines) * done // total),
        )
        self._report.add(sum(len(part) for parts in sources for part in parts))
        if self._config.n_best is None:
            return "".join(f"{best[0].text}\n" for best in found)
        return "".join(_n_best_lines(number, best) for number, best in enumerate(found, self._done))

    def finish(self) -> None:
        """Complete the output, even if a deferred signal arrives meanwhile."""
        try:
            with self._interrupts.deferred():
                self._output.finish()
        except SystemExit:
            self._report.print_line(f"interrupted; {self._done} lines were translated")
            raise

    def give_up(self, error: BaseException) -> None:
        """Leave only complete lines in the output, and report where they are."""
        self._report.close()
        where = self._output.give_up()
        if isinstance(error, SystemExit):
            self._report.print_line(f"interrupted; {self._done} lines were translated{where}")
        elif where:
            self._report.print_line(f"{self._done} lines were translated{where}")


class _Report:
    """Messages on stderr: remarks, the first warnings of each kind and the number of further ones, and progress."""

    def __init__(self, total: int | None, *, shows_progress: bool) -> None:
        """`total` lines, if known: without it no progress lines are logged, as the input may be endless."""
        self._total = total
        self._shows_progress = shows_progress
        self._bar: Progress | None = None
        self._started = 0.0
        self._pieces = 0
        self._counts: dict[tuple[str, str], int] = {}  # of warnings, by file and problem

    def start(self) -> None:
        """Start the clock of the speed, once the model is loaded."""
        self._started = time.monotonic()
        if self._shows_progress:
            self._bar = Progress(self._total, "lines", "translating", lines="none" if self._total is None else "slow")

    def print_line(self, text: str) -> None:
        print(f"rpr-cli: {text}", file=sys.stderr, flush=True)

    def warn(self, file: str, line: int, problem: str, consequence: str) -> None:
        """Report a problem of a line, counted from 1."""
        number = self._counts[file, problem] = self._counts.get((file, problem), 0) + 1
        if number <= MAX_WARNINGS:
            self.print_line(f"warning: {file}, line {line}: {problem}; {consequence}")

    def add(self, pieces: int) -> None:
        """Count translated source pieces."""
        self._pieces += pieces

    def progress(self, lines: int) -> None:
        """Show the number of translated lines."""
        if self._bar is not None:
            speed = self._pieces / max(time.monotonic() - self._started, 1e-9)
            self._bar.reach(lines, self._total, **{"source tokens/s": speed})

    def close(self) -> None:
        """End the bar, and print how many warnings were only counted."""
        if self._bar is not None:
            self._bar.close()
        for (file, problem), number in self._counts.items():
            if number > MAX_WARNINGS:
                self.print_line(f"warning: {file}, {number - MAX_WARNINGS} more lines: {problem}")
        self._counts = {}


def _n_best_lines(number: int, translations: Sequence[Translation]) -> str:
    """Moses format: line index, from 0 ||| translation ||| log p ||| score."""
    return "".join(
        f"{number} ||| {found.text.replace(SEPARATOR, ESCAPED)} ||| {found.log_probability:.6f} ||| {found.score:.6f}\n"
        for found in translations
    )


def _standard_stream(name: str) -> int:
    """The descriptor of stdin or stdout."""
    stream = sys.stdin if name == "input" else sys.stdout
    if stream is None:
        raise ConfigError(f"{name}: std{name.removesuffix('put')} is closed; give a file as {name}=FILE")
    return stream.fileno()


def _open(path: str, name: str, files: ExitStack) -> IO[bytes]:
    try:
        return files.enter_context(user_path(path).open("rb"))
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read ({error.strerror}); give a file of text lines") from None


def _refuse_same(files: dict[str, int], written: os.stat_result, name: str) -> None:
    """Raises ConfigError if an input file is also the output file."""
    for key, descriptor in files.items():
        if stat.S_ISREG(written.st_mode) and os.path.samestat(os.fstat(descriptor), written):
            raise ConfigError(f"{key}: this is also the output file, {name}; give another output")

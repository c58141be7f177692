"""rpr-cli translate: one line in, one line out, in order; or, with n_best, the best translations of each line."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
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
from rpr.decode.translator import Translation, Translator
from rpr.errors import ConfigError, DataError
from rpr.progress import Progress
from rpr.signals import Interrupts

TOLD_ONE_BY_ONE = 5
SEPARATOR = "|||"
ESCAPED = "&#124;&#124;&#124;"  # for a separator within a translation, as the Moses tokeniser writes bars


def run(config: TranslateConfig) -> None:
    """Translates lines until there are no more. Warnings, and on a terminal how far it is, go to stderr.

    Raises:
        ConfigError, DataError, RecordError: settings, files or a run that cannot be used, told before anything is read;
            an input that is no text, or has not as many lines as `prefixes`.
        SystemExit: 130 or 143 after Ctrl-C or SIGTERM, when the lines that are out are whole.
        BrokenPipeError: nobody reads stdout any more.
    """
    with Interrupts() as interrupts, ExitStack() as opened:
        job = _Job(config, opened, interrupts)
        try:
            job.translate(Translator.from_config(config))
        except BaseException as error:
            job.give_up(error)
            raise
        job.finish()


class _Job:
    """The open files of one command and how far it is."""

    def __init__(self, config: TranslateConfig, opened: ExitStack, interrupts: Interrupts) -> None:
        """Raises ConfigError or DataError for files that cannot be used; what it opens closes with `opened`."""
        self._config = config
        self._interrupts = interrupts
        self._name = "stdin" if config.input is None else f"input {config.input}"
        self._input = _standard("input") if config.input is None else _opened(config.input, "input", opened).fileno()
        self._prefixes = None if config.prefixes is None else _opened(config.prefixes, "prefixes", opened)
        total = self._checked_lines()
        self._output = self._opened_output()
        on_terminal = isinstance(self._output, DescriptorOutput) and sys.stdout.isatty()
        self._report = _Report(total, shows_progress=not on_terminal)
        self._done = 0  # lines whose translations are out

    def _checked_lines(self) -> int | None:
        """How many lines there are, where that can be known; as many prefixes, then."""
        total = count_lines(self._input)
        if self._prefixes is not None:
            prefixes = count_lines(self._prefixes.fileno())
            if None not in (total, prefixes) and total != prefixes:
                raise DataError(
                    f"prefixes: {self._config.prefixes} has {prefixes} lines and {self._name} has {total}; "
                    "give one for each line, an empty one where nothing is forced"
                )
        return total

    def _opened_output(self) -> Output:
        files = {"input": self._input}
        if self._prefixes is not None:
            files["prefixes"] = self._prefixes.fileno()
        if self._config.output is None:
            descriptor = _standard("output")
            _refuse_same(files, os.fstat(descriptor), "stdout")
            return DescriptorOutput(descriptor)
        path = Path(self._config.output).expanduser().resolve()  # a link stays, and what it points to is written
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file (without output=, stdout can be sent there)"
            raise ConfigError(f"output: {path} is {kind}; give the name of a file")
        if not path.parent.is_dir():
            raise ConfigError(f"output: there is no folder {path.parent}; make it first")
        for written in (path, part_of(path)):
            if written.exists():
                _refuse_same(files, written.stat(), str(written))
        try:
            return FileOutput(path)
        except OSError as error:
            raise ConfigError(
                f"output: {part_of(path)} cannot be written ({error.strerror}); give a file in a folder of yours"
            ) from None

    def translate(self, translator: Translator) -> None:
        """All that comes. Raises DataError for an input or prefixes that cannot be used."""
        if os.isatty(self._input):
            self._report.say("reading from the terminal: each line is translated at Enter, Ctrl-D ends")
        self._report.start()
        for lines in LineReader(self._input, self._name, self._config.lines_per_batch).batches():
            prefixes = self._next_prefixes(len(lines))
            served = lines if prefixes is None else lines[: len(prefixes)]
            written = self._translated(translator, served, prefixes)
            with self._interrupts.deferred():
                self._output.write(written.encode("utf-8"))
                self._done += len(served)
            if len(served) < len(lines):
                raise self._not_as_many("fewer")
        if self._prefixes is not None and self._prefixes.readline():
            raise self._not_as_many("more")
        self._report.close()

    def _not_as_many(self, word: str) -> DataError:
        return DataError(
            f"prefixes: {self._config.prefixes} has {word} lines than {self._name}; the first {self._done} lines are "
            "translated: give one for each line, an empty one where nothing is forced"
        )

    def _next_prefixes(self, number: int) -> list[str] | None:
        if self._prefixes is None:
            return None
        lines = [line.removesuffix(b"\n") for line in islice(self._prefixes, number)]
        return self._decoded(lines, f"prefixes {self._config.prefixes}")

    def _decoded(self, lines: Sequence[bytes], name: str) -> list[str]:
        texts = []
        for number, line in enumerate(lines, self._done + 1):
            try:
                texts.append(line.decode("utf-8"))
            except UnicodeDecodeError:
                texts.append(line.decode("utf-8", errors="replace"))
                self._report.warn(name, number, "not valid UTF-8", "U+FFFD is read for what is no character")
        return texts

    def _translated(self, translator: Translator, lines: Sequence[bytes], prefixes: Sequence[str] | None) -> str:
        """What is written for some lines."""
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
        """The output is whole, also where it is only now that a signal is heard."""
        try:
            with self._interrupts.deferred():
                self._output.finish()
        except SystemExit:
            self._report.say(f"interrupted; {self._done} lines are translated")
            raise

    def give_up(self, error: BaseException) -> None:
        """Leave whole lines, and say where."""
        self._report.close()
        where = self._output.give_up()
        if isinstance(error, SystemExit):
            self._report.say(f"interrupted; {self._done} lines are translated{where}")
        elif where:
            self._report.say(f"{self._done} lines are translated{where}")


class _Report:
    """What stderr is told: remarks, the first warnings of each kind and how many more there are, and how far it is."""

    def __init__(self, total: int | None, *, shows_progress: bool) -> None:
        """`total` lines, if that is known: an input without an end is not to fill a log."""
        self._total = total
        self._shows_progress = shows_progress
        self._bar: Progress | None = None
        self._started = 0.0
        self._pieces = 0
        self._counts: dict[tuple[str, str], int] = {}  # of warnings, by file and problem

    def start(self) -> None:
        """The model is read: what lines/s counts from."""
        self._started = time.monotonic()
        if self._shows_progress:
            self._bar = Progress(self._total, "lines", "translating", lines="none" if self._total is None else "slow")

    def say(self, text: str) -> None:
        print(f"rpr-cli: {text}", file=sys.stderr, flush=True)

    def warn(self, file: str, line: int, problem: str, consequence: str) -> None:
        """Of a line, from 1."""
        number = self._counts[file, problem] = self._counts.get((file, problem), 0) + 1
        if number <= TOLD_ONE_BY_ONE:
            self.say(f"warning: {file}, line {line}: {problem}; {consequence}")

    def add(self, pieces: int) -> None:
        """So many source pieces are translated."""
        self._pieces += pieces

    def progress(self, lines: int) -> None:
        """So many lines are translated."""
        if self._bar is not None:
            speed = self._pieces / max(time.monotonic() - self._started, 1e-9)
            self._bar.reach(lines, self._total, **{"source tokens/s": speed})

    def close(self) -> None:
        """The warnings that were only counted."""
        if self._bar is not None:
            self._bar.close()
        for (file, problem), number in self._counts.items():
            if number > TOLD_ONE_BY_ONE:
                self.say(f"warning: {file}, {number - TOLD_ONE_BY_ONE} more lines: {problem}")
        self._counts = {}


def _n_best_lines(number: int, translations: Sequence[Translation]) -> str:
    """Moses's format: number of the line, from 0 ||| translation ||| log p ||| score."""
    return "".join(
        f"{number} ||| {found.text.replace(SEPARATOR, ESCAPED)} ||| {found.log_probability:.6f} ||| {found.score:.6f}\n"
        for found in translations
    )


def _standard(name: str) -> int:
    """The descriptor of stdin or stdout."""
    stream = sys.stdin if name == "input" else sys.stdout
    if stream is None:
        raise ConfigError(f"{name}: std{name.removesuffix('put')} is closed; give a file as {name}=FILE")
    return stream.fileno()


def _opened(path: str, name: str, opened: ExitStack) -> IO[bytes]:
    try:
        return opened.enter_context(Path(path).expanduser().open("rb"))
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read ({error.strerror}); give a file of text lines") from None


def _refuse_same(files: dict[str, int], written: os.stat_result, name: str) -> None:
    """Raises ConfigError when a file that is read is the one that is written."""
    for key, descriptor in files.items():
        if stat.S_ISREG(written.st_mode) and os.path.samestat(os.fstat(descriptor), written):
            raise ConfigError(f"{key}: it is the file that is written, {name}; give another output")

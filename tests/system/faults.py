"""`rpr-cli` in forks of this process, which has its imports, that take longer than most commands here; perhaps with a
fault at a chosen moment.
"""

import errno
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4


class Fault(NamedTuple):
    """The name of a signal, or `full` for the disk, when a file whose path contains `name` is opened for writing or
    renamed (`event`) for the first time.
    """

    kind: str
    event: str
    name: str


CODES = {"SIGKILL": -9, "SIGTERM": 143, "full": 2}  # exit codes, by the kind of a fault


def instead(work: Callable[[], Any], streams: Sequence[str] = ()) -> None:
    """Where a child would start Python, do `work` and end with its exit code; `streams`: paths of the usual three."""
    os.closerange(3, 256)  # as Python's start would, for which its parent waits
    code: Any = 1
    try:
        for descriptor, name in enumerate(streams):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT if descriptor else os.O_RDONLY, 0o666), descriptor)
        # The streams know what their descriptors were at the start: a file, perhaps, that can be sought in.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
        code = work()
    except SystemExit as stopped:
        code = stopped.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code or 0)


class Forked:
    """A command that is running."""

    def __init__(self, words: Sequence[str], folder: Path, fault: Fault | None, **streams: str) -> None:
        """`folder`: for the output; `streams`: other paths of the usual three."""
        folder.mkdir()
        self._files = [folder / "out", folder / "err"]
        usual = {"stdin": os.devnull, "stdout": str(self._files[0]), "stderr": str(self._files[1])}
        work = partial(_command, words, fault)
        preexec = partial(instead, work, [*(usual | streams).values()])
        self.process = subprocess.Popen([sys.executable], preexec_fn=preexec)
        self.pid = self.process.pid

    def wait(self, seconds: float = 240) -> SimpleNamespace:
        """Wait for its end: the exit code (negative: a signal) and the output. A timeout is a failure."""
        code = self.process.wait(seconds)
        out, err = (path.read_text() if path.exists() else "" for path in self._files)
        return SimpleNamespace(code=code, out=out, err=err)


class Forks:
    """Starts commands as forks of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, list[Forked]()

    def start(self, words: Sequence[str], fault: Fault | None = None, **streams: str) -> Forked:
        self._started.append(Forked(words, self._folder / uuid4().hex, fault, **streams))
        return self._started[-1]

    def run(self, words: Sequence[str], fault: Fault | None = None) -> SimpleNamespace:
        return self.start(words, fault).wait()

    def close(self) -> None:
        for forked in self._started:  # of a test that failed
            forked.process.kill()


def _command(words: Sequence[str], fault: Fault | None) -> int:
    from rpr.cli import app

    forked_jobs()
    if fault is not None:
        watch(fault)
    sys.argv = ["rpr-cli", *words]
    return app.main([*words])


def watch(fault: Fault) -> None:
    """Inject the fault: an audit hook sees each file just before it is opened or renamed."""
    begun = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal begun
        if event != fault.event or fault.name not in str(arguments[0]):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if fault.kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), arguments[0])
        if not begun:
            begun = True
            os.kill(os.getpid(), signal.Signals[fault.kind])

    sys.addaudithook(hook)


def forked_jobs() -> None:
    """Start the jobs of a sweep without waiting for their imports: as forks that run where they would start Python."""
    from rpr.sweep import pool

    popen = partial(subprocess.Popen, preexec_fn=lambda: instead(pool.main))
    pool.subprocess = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)

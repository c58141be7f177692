"""`rpr-cli` in forks of a process that has its imports, which take longer than most commands here, perhaps with a fault
at a chosen moment.
"""

import errno
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
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


CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full": 2}  # exit codes, by the kind of a fault


class Forked:
    """A command that is running."""

    def __init__(self, process: Any, folder: Path) -> None:
        self.pid, self._process, self._folder = process.pid, process, folder

    def wait(self, seconds: float = 240) -> SimpleNamespace:
        """Wait for its end: the exit code (negative: a signal) and the output. A timeout is a failure."""
        self._process.join(seconds)
        out, err = (path.read_text() if path.exists() else "" for path in (self._folder / "out", self._folder / "err"))
        assert self._process.exitcode is not None, f"still running: {err}"
        return SimpleNamespace(code=self._process.exitcode, out=out, err=err)


class ForkServer:
    """Starts commands as forks of a process that has imported their modules."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for the output of the commands."""
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.system.preloaded"])
        multiprocessing.forkserver.ensure_running()

    def start(self, words: list[str], fault: Fault | None = None, patch: str | None = None, **streams: str) -> Forked:
        """`rpr-cli` with these words, after `patch`, a function of this module; `streams`: paths of the usual three."""
        folder = self._folder / uuid4().hex
        folder.mkdir()
        usual = {"stdin": os.devnull, "stdout": str(folder / "out"), "stderr": str(folder / "err")}
        process = self._context.Process(target=_command, args=(words, usual | streams, fault, patch))
        process.start()
        return Forked(process, folder)

    def run(self, words: list[str], fault: Fault | None = None) -> SimpleNamespace:
        return self.start(words, fault).wait()

    def close(self) -> None:
        for process in multiprocessing.active_children():  # of a test that failed
            process.kill()


def _command(words: list[str], streams: dict[str, str], fault: Fault | None, patch: str | None) -> None:
    from rpr.cli import app

    for descriptor, name in enumerate(streams.values()):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT if descriptor else os.O_RDONLY, 0o666), descriptor)
    # The streams know what their descriptors were at the start: a file, perhaps, that can be sought in.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    os.fsync = lambda descriptor: None  # processes end here, never the machine
    if patch is not None:
        globals()[patch]()
    if fault is not None:
        watch(fault)
    sys.argv = ["rpr-cli", *words]
    sys.exit(app.main(words))


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

    def job() -> None:
        os.closerange(3, 256)  # as Python's start would, for which its parent waits
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        code: Any = 1
        try:
            code = pool.main()
        except SystemExit as stopped:
            code = stopped.code
        finally:
            sys.stdout.flush()
            os._exit(code)

    popen = partial(subprocess.Popen, preexec_fn=job)
    pool.subprocess = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)

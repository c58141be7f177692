"""Fault injection at a known moment of a command.

Imports take longer than most commands here, so one process that has done them forks a child for each command
(`ForkServer`). In the child an audit hook sees every change of the disk just before it is made: a file opened for
writing, renamed or removed, a folder made or removed. At a chosen change it raises a signal, or makes the disk full.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.system import patches

# Audit events: the index of the path in their arguments, and of the descriptor of the folder that it is relative to.
CHANGES = {"open": 0, "os.rename": 0, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "os.truncate": 0}
FOLDERS = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2}
NEEDS_SPACE = ("open", "os.mkdir")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Fault:
    """At change `number`, from 1: the name of a signal, or `full`. `small`: files are limited to `number` bytes."""

    kind: str
    number: int


CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full": 2, "small": 2}  # exit codes, by the kind of a fault


@dataclass(frozen=True)
class CommandResult:
    """The exit code (negative: a signal), the output, and every change of the disk as `os.rename PATH`."""

    code: int
    out: str
    err: str
    changes: tuple[str, ...]


class RunningCommand:
    def __init__(self, server: ForkServer, pid: int, folder: Path) -> None:
        self.pid, self._server, self._folder = pid, server, folder
        (folder / "changes").touch()

    def changes(self) -> tuple[str, ...]:
        return tuple((self._folder / "changes").read_text().splitlines())

    def wait(self, seconds: float = 120) -> CommandResult:
        """Wait for its end; a timeout is a failure."""
        code = self._server.request({"wait": self.pid, "seconds": seconds})["code"]
        assert code is not None, f"still running: {(self._folder / 'err').read_text()}"
        out, err = (path.read_text() if path.exists() else "" for path in (self._folder / "out", self._folder / "err"))
        return CommandResult(code, out, err, self.changes())


class ForkServer:
    """Starts commands as forks of a process that has imported their modules and read their settings."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        """`folder`: for the output of the commands."""
        self._folder = folder
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.faults"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(
        self, arguments: list[str], root: Path, fault: Fault | None = None, patch: str | None = None, **streams: str
    ) -> RunningCommand:
        """`rpr-cli` with these arguments, with the changes below `root` counted.

        Args:
            patch: a function of patches.py that the child calls first.
            streams: paths to open as stdin, stdout and stderr.
        """
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        request = {"arguments": arguments, "root": str(root), "folder": str(folder), "patch": patch, "streams": streams}
        pid = self.request({**request, "fault": None if fault is None else asdict(fault)})["pid"]
        return RunningCommand(self, pid, folder)

    def run(
        self, arguments: list[str], root: Path, fault: Fault | None = None, patch: str | None = None
    ) -> CommandResult:
        return self.start(arguments, root, fault, patch).wait()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Read one request per line, write one answer per line."""
    import rpr.cli.app
    import rpr.commands.evaluate
    import rpr.commands.export
    import rpr.commands.prepare
    import rpr.commands.report
    import rpr.commands.train
    import rpr.commands.translate
    import rpr.data.files
    import rpr.report.plots
    import rpr.sweep.launcher
    import rpr.training.fit

    os.fsync = lambda descriptor: None  # processes end here, never the machine
    rpr.data.files.SETTLED_NS = 2**62  # remembering digests would depend on how long ago the files were copied here
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps({"code": _wait(request["wait"], request["seconds"])}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _child(request)
        print(json.dumps({"pid": pid}), flush=True)


def _wait(pid: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _child(request: dict[str, Any]) -> None:
    """The command; never returns."""
    from rpr.cli import app

    folder = Path(request["folder"])
    usual = {"stdin": os.devnull, "stdout": folder / "out", "stderr": folder / "err"}
    for descriptor, name in enumerate((usual | request["streams"]).values()):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT if descriptor else os.O_RDONLY, 0o666), descriptor)
    # The stream knows what its descriptor was at the start: a file, perhaps, that can be sought in.
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    changes = os.open(folder / "changes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    if request["patch"] is not None:
        getattr(patches, request["patch"])()
    fault = None if request["fault"] is None else Fault(**request["fault"])
    if fault is not None and fault.kind == "small":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.number, fault.number))
    watch(Path(request["root"]), fault, changes)
    sys.argv = ["rpr-cli", *request["arguments"]]
    code: Any = 70
    try:
        code = app.main(request["arguments"])
    except SystemExit as stopped:
        code = stopped.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch(root: Path, fault: Fault | None, log: int) -> None:
    """Log each change below the root before it is made, and inject the fault at its number."""
    number = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal number
        path = _changed(event, arguments) if event in CHANGES else None
        if path is None or not (path == str(root) or path.startswith(f"{root}/")):
            return
        number += 1
        with contextlib.suppress(OSError):  # the limit on file sizes applies to the log too
            os.write(log, f"{event} {path}\n".encode())
        if fault is None or number < fault.number:
            return
        if fault.kind == "full" and event in NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if fault.kind.startswith("SIG") and number == fault.number:
            os.kill(os.getpid(), signal.Signals[fault.kind])

    sys.addaudithook(hook)


def _changed(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The path that changes; None if the event changes nothing."""
    path = arguments[CHANGES[event]]
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
        return None
    if isinstance(path, int):
        path = os.readlink(f"/proc/self/fd/{path}")
    if event in FOLDERS and arguments[FOLDERS[event]] != -1:
        with contextlib.suppress(OSError):
            path = os.path.join(os.readlink(f"/proc/self/fd/{arguments[FOLDERS[event]]}"), os.fsdecode(path))
    return os.path.abspath(os.fsdecode(path))


if __name__ == "__main__":
    serve()

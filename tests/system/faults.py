"""Fault injection at a known moment of a command.

Imports take longer than most commands here, so one process that has done them forks a child for each command
(`ForkServer`). In the child an audit hook sees each file just before it is opened for writing or renamed. At a chosen
one it raises a signal, or makes the disk full.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.system import patches


@dataclass(frozen=True)
class Fault:
    """The name of a signal, or `full` for the disk, when a file whose path contains `name` is opened for writing or
    renamed (`event`) for the first time.
    """

    kind: str
    event: str
    name: str


CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130, "full": 2}  # exit codes, by the kind of a fault


@dataclass(frozen=True)
class CommandResult:
    """The exit code (negative: a signal) and the output."""

    code: int
    out: str
    err: str


class RunningCommand:
    def __init__(self, server: ForkServer, pid: int, folder: Path) -> None:
        self.pid, self._server, self._folder = pid, server, folder

    def wait(self, seconds: float = 240) -> CommandResult:
        """Wait for its end; a timeout is a failure."""
        code = self._server.request({"wait": self.pid, "seconds": seconds})["code"]
        assert code is not None, f"still running: {(self._folder / 'err').read_text()}"
        out, err = (path.read_text() if path.exists() else "" for path in (self._folder / "out", self._folder / "err"))
        return CommandResult(code, out, err)


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
        self, arguments: list[str], fault: Fault | None = None, patch: str | None = None, **streams: str
    ) -> RunningCommand:
        """`rpr-cli` with these arguments.

        Args:
            patch: a function of patches.py that the child calls first.
            streams: paths to open as stdin, stdout and stderr.
        """
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        request = {"arguments": arguments, "folder": str(folder), "patch": patch, "streams": streams}
        pid = self.request({**request, "fault": None if fault is None else asdict(fault)})["pid"]
        return RunningCommand(self, pid, folder)

    def run(self, arguments: list[str], fault: Fault | None = None, patch: str | None = None) -> CommandResult:
        return self.start(arguments, fault, patch).wait()

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
    if request["patch"] is not None:
        getattr(patches, request["patch"])()
    if request["fault"] is not None:
        watch(Fault(**request["fault"]))
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


def watch(fault: Fault) -> None:
    """Inject the fault."""
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


if __name__ == "__main__":
    serve()

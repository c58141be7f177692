"""Patches that a command applies to itself first: see `ForkServer.start`."""

import datetime
import os
import signal
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace
from typing import Any


def slow_disk() -> None:
    """Delay each rename."""
    replace = os.replace

    def slowly(*names: Any) -> None:
        time.sleep(0.1)
        replace(*names)

    os.replace = slowly


def clock_set_back() -> None:
    """Set Python's wall clocks back by an hour when the first metrics of a training are written."""
    from rpr.records import provenance
    from rpr.training import callbacks

    now, write = time.time, callbacks.Metrics._write
    back = 0

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(time.time(), tz)

    def set_back(*arguments: Any) -> None:
        nonlocal back
        back = 3600
        write(*arguments)

    time.time = lambda: now() - back
    callbacks.Metrics._write = set_back
    provenance.datetime = Now


class Forked(subprocess.Popen):
    """`python -m rpr.sweep.pool` as a fork of this process."""

    def _execute_child(self, *given: Any) -> None:
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = given[10:16]
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
            return
        code: Any = 1
        try:
            from rpr.sweep import pool

            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for descriptor in (stdin, to_stdin, from_stdout, stdout, from_stderr, stderr):
                os.close(descriptor)
            sys.stdin = open(0)  # noqa: SIM115
            code = pool.main()
        except SystemExit as stopped:
            code = stopped.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def forked_jobs() -> None:
    """Start the jobs of a sweep without waiting for their imports."""
    from rpr.sweep import pool

    pool.subprocess = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)

"""Patches that a command applies to itself first: see `ForkServer.start`."""

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

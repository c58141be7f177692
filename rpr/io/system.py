"""What this process has of the system: its cores, the memory that it has used, and standard streams that are closed,
have lost their reader, or are on a full disk.
"""

import contextlib
import errno
import io
import os
import sys
from pathlib import Path


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reset_resident_peak() -> None:
    """Start measuring the peak again; if the system does not allow it, it remains the peak since the process began."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def resident_peak() -> int:
    """The peak resident memory of this process, in bytes, since it was last reset."""
    try:
        # Not getrusage: its value starts at the parent's memory at the time of the fork.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


# Standard streams


def reopen_closed_fds() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null where they are closed (`2>&-`), for this process and its children: a
    file opened under such a number would receive everything that libraries print. What is printed there is discarded.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def replace_unencodable() -> None:
    """Print `?` for what the encodings of stdout and stderr (LANG=C, PYTHONIOENCODING) lack, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # from asking its position afterwards, if a pipe has replaced a file
                stream.reconfigure(errors="replace")


class _Lasting(io.FileIO):
    """A stream that discards what is written from the time its reader is gone: a pipe's, or a closed terminal."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            _discard(self.fileno())  # also for libraries that write to the descriptor
            return len(data)


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def outlive_readers(*names: str) -> None:
    """From now on these streams (`"stderr"`) outlive their readers: a run's output are its files. Streams that a
    program has put in their place stay as they are.
    """
    for name in names:
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            raw = _Lasting(stream.fileno(), "w", closefd=False)
            buffer = io.BufferedWriter(raw)  # type: ignore[type-var]
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=True))


def detach_stdout() -> None:
    """Discard unwritten output: at exit Python would try to write it again, and report the error in several lines."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())

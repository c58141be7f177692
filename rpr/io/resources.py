"""The cores that this process may use, and the memory that it has used."""

import contextlib
import os
import sys
from pathlib import Path


def num_cores() -> int:
    """The number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """The number of threads for one task: the cores available to this process, at most 16."""
    return min(16, num_cores())


def reset_resident_peak() -> None:
    """Start measuring the peak again; if the system does not allow it, it remains the peak since the process began."""
    if sys.platform == "linux":
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

"""Process-wide settings of a rank (memory allocation, threads, precision), and the description of its device."""

import contextlib
import ctypes
import platform
from pathlib import Path

import torch

from rpr.config.train import HardwareConfig
from rpr.errors import ConfigError
from rpr.io.system import resident_peak

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt(3)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks of up to 32 MiB: touching fresh pages for tensors of the same sizes took half of a
    training step on a CPU (model=small, two threads). Larger ones, the logits, are still returned: kept as well, they
    fragment the heap. Those use huge pages instead (set in rpr.cli.app). No effect without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)


def set_up(hardware: HardwareConfig) -> None:
    """Set threads and precision of this process."""
    if hardware.accelerator == "cpu":
        keep_freed_memory()
    if hardware.threads is not None:
        torch.set_num_threads(hardware.threads)
    torch.set_float32_matmul_precision(matmul_precision(hardware))


def matmul_precision(hardware: HardwareConfig) -> str:
    """How float32 matrices are multiplied: as configured; `auto` is "medium" (through bfloat16) on a CPU with matrix
    units, where that doubles the speed, else "highest": without them it gains a third at most.
    """
    if hardware.matmul_precision != "auto":
        return hardware.matmul_precision
    return "medium" if hardware.accelerator == "cpu" and "amx_bf16" in _of_cpuinfo("flags") else "highest"


def check_devices(hardware: HardwareConfig) -> None:
    """Raises ConfigError if this node has fewer GPUs than requested."""
    if hardware.accelerator != "gpu":
        return
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if present < hardware.devices:
        remedy = f"hardware.devices={present}" if present else "hardware=cpu"
        raise ConfigError(
            f"hardware={hardware.name}: {hardware.devices} GPUs requested, but {present} available; choose {remedy}"
        )


def device_name(hardware: HardwareConfig) -> str:
    """The hardware in words, for the record: `2 threads of Intel(R) Xeon(R) Processor`."""
    if hardware.accelerator == "gpu":
        return f"{hardware.num_ranks} x {torch.cuda.get_device_name()}"
    threads = hardware.threads or torch.get_num_threads()
    processes = f"{hardware.num_ranks} processes, each " if hardware.num_ranks > 1 else ""
    return f"{processes}{threads} thread{'s' if threads > 1 else ''} of {processor_name()}"


def processor_name() -> str:
    return _of_cpuinfo("model name") or platform.processor() or platform.machine()


def _of_cpuinfo(key: str) -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(key))
    return ""


def peak_memory(hardware: HardwareConfig) -> tuple[int, str]:
    """Peak memory in bytes, and what was counted."""
    if hardware.accelerator == "gpu":
        return torch.cuda.max_memory_allocated(), "allocated on one GPU"
    return resident_peak(), "resident memory of one process"


def torch_device(hardware: HardwareConfig) -> torch.device:
    """The device on which one process decodes."""
    return torch.device("cuda" if hardware.accelerator == "gpu" else "cpu")

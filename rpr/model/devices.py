"""What the code asks of a device."""

import torch
from torch import Tensor


def on_gpu(x: Tensor) -> bool:
    return x.device.type != "cpu"


def memory(x: Tensor) -> int:
    """Bytes of memory of the GPU that holds x."""
    return int(torch.cuda.get_device_properties(x.device).total_memory)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def matmul_precision() -> str:
    """Of float32 products; a constant of a compiled graph."""
    return torch.get_float32_matmul_precision()

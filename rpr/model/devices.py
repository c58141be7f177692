"""What the code asks of a device."""

import torch
from torch import Tensor


def on_gpu(x: Tensor) -> bool:
    return x.device.type != "cpu"


def memory(x: Tensor) -> int:
    """Bytes of memory of the GPU that holds x."""
    return int(torch.cuda.get_device_properties(x.device).total_memory)


def matmul_precision() -> str:
    """Of float32 products; a constant of a compiled graph."""
    return torch.get_float32_matmul_precision()


# As torch.compiler.assume_constant_result does, which imports the compiler: 1.6 s of every command.
matmul_precision._dynamo_marked_constant = True  # type: ignore[attr-defined]

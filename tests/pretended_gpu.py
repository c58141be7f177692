"""A simulated GPU: tensors that report a device other than the CPU, whose values are computed on the CPU.

Code takes the branches of a GPU on it, with comparable results. An operation that mixes tensors of both devices fails,
as on a GPU; those that would synchronise are counted by name in `waits`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten
DEVICE = torch.device("meta")
MOVES = {aten._to_copy.default, aten.copy_.default}
# The CPU needs their result's shape or value.
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}


class OnDevice(torch.Tensor):
    """`held` has the values; other tensors of this class may hold views of it."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        tensor: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        tensor.held = held
        return tensor

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func}: outside of pretended_gpu()")


class PretendedGpu(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten._fused_sdp_choice.default:
            return 0  # the composed one
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        on_device = [x for x in tensors if isinstance(x, OnDevice)]
        device = kwargs.get("device")
        to_device = bool(on_device) if device is None else torch.device(device) == DEVICE
        if device is not None:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        self._count_waits(func, tensors, on_device, kwargs, to_device)
        on_cpu = [x for x in tensors if not isinstance(x, OnDevice) and x.dim()]
        if on_device and on_cpu and func not in MOVES:
            raise RuntimeError(f"{func}: a tensor of the CPU {tuple(on_cpu[0].shape)} beside one of the device")
        wrapped = {id(x.held): x for x in on_device}
        held_args, held_kwargs = tree_map_only(OnDevice, lambda x: x.held, (args, kwargs))
        result = func(*held_args, **held_kwargs)
        if func is aten.copy_.default:
            return args[0]
        if not to_device:
            return result
        return tree_map_only(torch.Tensor, lambda x: wrapped[id(x)] if id(x) in wrapped else OnDevice(x), result)

    def _count_waits(
        self, func: Any, tensors: list[torch.Tensor], on_device: list[OnDevice], kwargs: Any, to_device: bool
    ) -> None:
        indexing = func in (aten.index.Tensor, aten.index_put_.default)
        by_mask = indexing and any(x.dtype == torch.bool for x in on_device[1:])
        moved = func is aten._to_copy.default and bool(on_device) != to_device and not kwargs.get("non_blocking")
        copied = func is aten.copy_.default and 0 < len(on_device) < len(tensors)
        if (on_device and (func in WAITS or by_mask)) or moved or copied:
            self.waits[func.__name__] += 1


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Inside, tensors that are moved to DEVICE or created with `device=DEVICE` are OnDevice."""
    autocast, tensor = torch.autocast, torch.tensor

    def autocast_of(kind: str, *args: Any, **kwargs: Any) -> torch.autocast:
        return autocast("cpu" if kind == DEVICE.type else kind, *args, **kwargs)  # torch has none for `meta`

    def tensor_of(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return tensor(data, *args, **kwargs).to(device)  # torch creates one without values

    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, PretendedGpu() as device:
        patch.setattr(torch, "autocast", autocast_of)
        patch.setattr(torch, "tensor", tensor_of)
        # Inference tensors could not be used outside.
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
        patch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *of, **more: None)
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter's class cannot change
        try:
            yield device
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)

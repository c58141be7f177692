"""A GPU that is none: tensors that say they are on `cuda`, whose numbers lie and are computed on the CPU.

What is run on it takes the branches that a GPU takes, and gives numbers that can be compared. An operation that meets
a tensor of the CPU beside one of the device fails, as it would there; each one that would make the CPU wait for the
device is counted by name in `waits`.
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
# Their result's shape, or the number itself, must be known to the CPU.
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}


class OnDevice(torch.Tensor):
    """`held` is where the numbers are; views of it are held by other tensors of this class."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func}: outside of the pretended device")


class PretendedGpu(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten._fused_sdp_choice.default:
            return 0  # the composed one: the fused ones have a name for each device
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        here = [x for x in given if isinstance(x, OnDevice)]
        device = kwargs.get("device")
        there = bool(here) if device is None else torch.device(device) == DEVICE
        if device is not None:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        self._count_waits(func, given, kwargs, there)
        strays = [x for x in given if not isinstance(x, OnDevice) and x.dim()]
        if here and strays and func not in MOVES:
            raise RuntimeError(f"{func}: a tensor of the CPU {tuple(strays[0].shape)} beside one of the device")
        wrapped = {id(x.held): x for x in here}
        held_args, held_kwargs = tree_map_only(OnDevice, lambda x: x.held, (args, kwargs))
        result = func(*held_args, **held_kwargs)
        if func is aten.copy_.default:
            return args[0]
        if not there:
            return result
        return tree_map_only(torch.Tensor, lambda x: wrapped[id(x)] if id(x) in wrapped else OnDevice(x), result)

    def _count_waits(self, func: Any, given: list[torch.Tensor], kwargs: Any, there: bool) -> None:
        here = [x for x in given if isinstance(x, OnDevice)]
        by_mask = func in (aten.index.Tensor, aten.index_put_.default) and any(x.dtype == torch.bool for x in here[1:])
        moved = func is aten._to_copy.default and bool(here) != there and not kwargs.get("non_blocking")
        copied = func is aten.copy_.default and 0 < len(here) < len(given)
        if (here and (func in WAITS or by_mask)) or moved or copied:
            self.waits[func.__name__] += 1


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Inside, tensors that are moved to DEVICE are OnDevice, and made there where `device` says so."""
    autocast, tensor = torch.autocast, torch.tensor

    def autocast_of(kind: str, *args: Any, **kwargs: Any) -> torch.autocast:
        return autocast("cpu" if kind == DEVICE.type else kind, *args, **kwargs)  # torch knows none for it

    def tensor_of(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return tensor(data, *args, **kwargs).to(device)  # torch makes one without numbers for it

    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, PretendedGpu() as device:
        patch.setattr(torch, "autocast", autocast_of)
        patch.setattr(torch, "tensor", tensor_of)
        # What is made inside would be of no use to the tensors around it.
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
        patch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *of, **more: None)
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter's class cannot change
        try:
            yield device
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)

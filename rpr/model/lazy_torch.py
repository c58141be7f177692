"""torch for the hooks of schemes, imported when it is first used: commands that only read settings do not wait."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor

    Device = torch.device
    Dtype = torch.dtype
    Module = torch.nn.Module
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Lazy("torch")
    Tensor = Device = Dtype = Module = Any

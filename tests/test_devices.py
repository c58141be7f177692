"""Training steps and steps of decoding with every position scheme on torch's device without values: no tensor is on
another device, and nothing waits for a value, as a GPU's queue would have to. Values on a GPU: tests/gpu.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rpr.compose import composition
from rpr.data.batches import Batch
from rpr.data.vocabulary import BOS, EOS, PAD
from tests.lazy import training_module
from tests.shapes import choices, scheme

aten = torch.ops.aten
VOCABULARY = 50
DEVICE = torch.device("meta")
OF_LAYERS = (
    "alibi,clipped_scalars,cope,fire,fox,kerple,pope,relative,relative_logits,rope,selective_rope,t5,transformer_xl"
)
CASES = {  # a layer of each scheme; what adds to the embeddings; windows; without torch's kernels
    "layers": [
        "model.num_layers=14", "model.architecture=decoder_only", "position=pattern",
        f"position.layers=[{OF_LAYERS},xpos]",
    ],
    "absolute, centred": ["model.num_layers=1", "position.encoder=absolute", "position.decoder=centred"],
    "learned, shape": ["model.num_layers=1", "position.encoder=learned", "position.decoder=shape"],
    "windows": ["model.num_layers=4", "position=rope_local"],
    "relative, blockwise": ["model.num_layers=1", "position=relative"],
}  # fmt: skip
SMALL = ("model.d_model=32", "model.num_heads=4", "model.d_ff=32", "model.dropout=0")


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, but for a CPU's scalars, and copies that the CPU waits for; an
    operation that needs a value is refused by torch.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        moved = func is aten._to_copy.default and (kwargs or {}).get("device", tensors[0].device) != tensors[0].device
        if moved and not (kwargs or {}).get("non_blocking"):
            raise RuntimeError(f"{func}: the CPU waits")
        if len({x.device for x in tensors if x.dim() or x.device == DEVICE}) > 1:
            raise RuntimeError(f"{func}: tensors of two devices")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def on_device(monkeypatch):
    """Torch has neither autocast nor a fused Adam for this device."""
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, *args, **more: autocast("cpu", *args, **more))
    monkeypatch.setattr("rpr.model.devices.memory", lambda x: 2**30)
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *of, **more: None)


def make_batch() -> Batch:
    """Three sentences, padded."""
    random = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (3, 8), generator=random) for _ in range(2))
    for rows, ends in ((source, (8, 4, 6)), (target, (8, 7, 5))):
        for row, end in zip(rows, ends, strict=True):
            row[end - 1], row[end:] = EOS, PAD
    target_input = torch.cat([torch.full((3, 1), BOS), target[:, :-1]], dim=1)
    return Batch(source, target_input, target, 20, 18, 20)


def test_every_scheme_is_tried():
    """But for patterns, and parts and sums of others."""
    tried = {*OF_LAYERS.split(","), *", ".join(CASES).split(", "), "xpos", "none"}
    of_others = {"relative_keys", "relative_values", "absolute_and_relative"}
    assert {choice for choice in choices() if len(scheme(choice).parts) == 1} - of_others <= tried


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("case", CASES)
def test_training_and_decoding_steps_are_on_one_device_and_never_wait(case, monkeypatch):
    config = composition.compose_train([*SMALL, *CASES[case]])
    module = training_module.TranslationModule(config, VOCABULARY).to(DEVICE)
    module.model.use_attention("blockwise" if "blockwise" in case else "auto")
    module._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
    optimizer = module.configure_optimizers()["optimizer"]
    batch = Batch(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in make_batch()))
    for absolute in module.model.children():
        if hasattr(absolute, "rows"):
            absolute.rows(0, 1000, DEVICE)  # its table is moved once
    with OneDevice():
        module.training_step(batch, 0).backward()
        module.on_before_optimizer_step(optimizer)
        optimizer.step()
        assert all(parameter.grad is None or parameter.grad.is_meta for parameter in module.parameters())
        with torch.inference_mode():
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "__bool__", lambda nothing_padded: False)  # asked once for each batch
                state = module.model.eval().start_decoding(batch.source_BS)
            for step in range(2):
                assert module.model.next_hidden(batch.target_input_BT[:, step : step + 1], state).is_meta


def test_waiting_and_mixed_devices_are_refused():
    x = torch.ones(3, device=DEVICE)
    with OneDevice():
        torch.arange(3).to(DEVICE, non_blocking=True).add_(torch.tensor(1)).mul_(x)
        for wait in (lambda: x + torch.arange(3), lambda: torch.arange(3).to(DEVICE), lambda: x[x > 2], x.tolist):
            with pytest.raises((RuntimeError, NotImplementedError)):
                wait()

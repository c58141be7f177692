"""Training steps and beam searches of every position scheme on a simulated GPU (tests/pretended_gpu.py): the same
results as on the CPU, no tensor on the wrong device, no synchronisation in a training step, one per step of a search.
"""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rpr.compose import composition
from rpr.data.batches import Batch
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.model.beam_search import beam_search
from rpr.training.module import TranslationModule
from tests.pretended_gpu import DEVICE, OnDevice, pretended_gpu
from tests.shapes import choices

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 50
# Without parts of `relative`, and without patterns but one.
CHOICES = sorted({*choices()} - {"relative_keys", "relative_values", "relative_rope", "rope_none"})
SMALL = ("model.d_model=32", "model.num_heads=4", "model.d_ff=32", "model.dropout=0")


def make_batch() -> Batch:
    """Three sentences, padded."""
    random = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (3, length), generator=random) for length in (8, 8))
    for rows, ends in ((source, (8, 4, 6)), (target, (8, 7, 5))):
        for row, end in zip(rows, ends, strict=True):
            row[end - 1] = EOS
            row[end:] = PAD
    target_input = torch.cat([torch.full((3, 1), BOS), target[:, :-1]], dim=1)
    return Batch(source, target_input, target, 20, 18, 20)


def train_step(module: TranslationModule, batch: Batch) -> list[torch.Tensor]:
    """A whole training step; its gradients."""
    trainer: Any = SimpleNamespace(accumulate_grad_batches=1, world_size=1)
    module._trainer = trainer
    optimizer = module.configure_optimizers()["optimizer"]
    module.training_step(batch, 0).backward()
    module.on_before_optimizer_step(optimizer)
    optimizer.step()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def module_of(choice: str) -> TranslationModule:
    """In float64, so that rounding hides no difference between devices."""
    causal = choice in ("cope", "fire", "fox", "xpos")
    words = [f"position{'.decoder' * causal}={choice}", *SMALL, f"model.num_layers={1 + (choice == 'pattern')}"]
    return TranslationModule(composition.compose_train(words), VOCABULARY).double()


@pytest.mark.parametrize(
    "choice, attention", [*((choice, "auto") for choice in CHOICES), ("relative", "blockwise"), ("t5", "blockwise")]
)
def test_training_step_equals_the_cpu_and_never_synchronises(choice: str, attention: Any) -> None:
    module = module_of(choice)
    module.model.use_attention(attention)
    on_gpu = copy.deepcopy(module)
    torch.manual_seed(3)  # of the offsets of `shape`
    expected = train_step(module, make_batch())
    with pretended_gpu() as gpu:
        on_gpu.to(DEVICE)
        for absolute in (on_gpu.model.source_positions, on_gpu.model.target_positions):
            if hasattr(absolute, "rows"):
                absolute.rows(0, 1000, DEVICE)  # its table is moved once
        batch = Batch(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in make_batch()))
        gpu.waits.clear()
        torch.manual_seed(3)
        gradients = train_step(on_gpu, batch)
        assert gpu.waits == Counter()
        assert all(isinstance(gradient, OnDevice) for gradient in gradients)
        actual = [x.cpu() for x in (*gradients, *on_gpu.parameters())]
    for one, other in zip(actual, [*expected, *module.parameters()], strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("choice, beam_size", [*((choice, 3) for choice in CHOICES), ("relative", 1)])
def test_beam_search_equals_the_cpu_and_synchronises_once_a_step(choice: str, beam_size: int) -> None:
    torch.manual_seed(0)
    model = module_of(choice).model.eval()
    on_gpu = copy.deepcopy(model)
    source = make_batch().source_BS
    sizes: dict[str, Any] = {"beam_size": beam_size, "length_penalty": 0.6, "max_extra_length": 0, "min_length": 2}
    expected = beam_search(model, source, **sizes)
    with pretended_gpu() as gpu:
        on_gpu.to(DEVICE)
        source = source.to(DEVICE)
        gpu.waits.clear()
        found = beam_search(on_gpu, source, **sizes)
    assert [[h.pieces for h in best] for best in found] == [[h.pieces for h in best] for best in expected]
    steps = max(len(h.pieces) for best in found for h in best) + 1
    # And a few more at the beginning, and each time one of the three sentences is finished.
    assert gpu.waits["nonzero.default"] <= steps + 5 * 3
    assert gpu.waits.total() <= steps + 20 * 3


def test_pretended_gpu_detects_mixed_devices_and_synchronisation() -> None:
    with pretended_gpu() as gpu:
        x = torch.ones(3, device=DEVICE)
        assert isinstance(x, OnDevice) and (x + 1).cpu().tolist() == [2.0, 2.0, 2.0]
        message = r"aten\.add\.Tensor: a tensor of the CPU \(3,\) beside one of the device"
        with pytest.raises(RuntimeError, match=message):
            x + torch.arange(3)
        gpu.waits.clear()
        x[1:].mul_(2)
        torch.arange(3).to(DEVICE, non_blocking=True)
        x += torch.tensor(1.0)  # scalars may be on the CPU
        assert not gpu.waits
        assert x.tolist() == [2.0, 3.0, 3.0]
        assert x.sum().item() == 8.0
        torch.arange(3).to(DEVICE)
        (x > 2).nonzero()
        x[x > 2]
        counts = {"_to_copy.default": 2, "_local_scalar_dense.default": 1, "nonzero.default": 1, "index.Tensor": 1}
        assert gpu.waits == counts

"""Label-smoothed cross entropy."""

# Shape suffixes: N target pieces, V vocabulary.

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def label_smoothed_loss(logits_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """Sum over N of the cross entropy against 1 - smoothing on the target, smoothing / (V - 1) on each other piece.

    tensor2tensor's form. torch spreads its own smoothing e over all V pieces, the target included; the two are equal
    for e = smoothing * V / (V - 1).
    """
    vocabulary_size = logits_NV.shape[-1]
    spread_over_all = smoothing * vocabulary_size / (vocabulary_size - 1)
    return F.cross_entropy(logits_NV, targets_N, label_smoothing=spread_over_all, reduction="sum")

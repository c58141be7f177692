"""Torch's FlexAttention for the schemes that it supports, a comparison in `rpr-cli bench`; not used for training.

It can modify scores, so it supports key vectors and biases, but not value vectors. It computes gradients only on GPUs,
and sums those of the score modification in no fixed order.
"""

# Shape suffixes: B batch, H heads, Q queries, K keys, D head width, R = 2k+1 table rows.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def flex(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    bias_table: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """As `rpr.model.attention.attend`, without labels, mask and cache; compiled on a GPU.

    Raises:
        ValueError: `value_table` is given.
    """
    if value_table is not None:
        raise ValueError("flex: FlexAttention does not support vectors added to values")
    scale = q_BHQD.shape[-1] ** -0.5
    by_row_BHQR = None
    if key_table is not None:
        by_row_BHQR = torch.matmul(q_BHQD, key_table.to(q_BHQD.dtype).transpose(-2, -1)) * scale

    def row(query: Tensor, key: Tensor, table: Tensor) -> Tensor:
        clip_distance = (table.shape[-1] - 1) // 2
        return (key - query).clamp(-clip_distance, clip_distance) + clip_distance

    def modify(score: Tensor, sentence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if by_row_BHQR is not None:
            score = score + by_row_BHQR[sentence, head, query, row(query, key, by_row_BHQR)]
        if bias_table is not None:
            score = score + bias_table[head, row(query, key, bias_table)]
        return score

    blocks = None
    if causal:
        blocks = _causal_blocks(q_BHQD.shape[2], k_BHKD.shape[2], q_BHQD.device)
    plain = by_row_BHQR is None and bias_table is None
    z_BHQD: Tensor = _kernel(q_BHQD.device.type)(
        q_BHQD, k_BHKD, v_BHKD, score_mod=None if plain else modify, block_mask=blocks, scale=scale
    )
    return z_BHQD


@cache
def _kernel(kind: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Callable[..., Any] = flex_attention
    return kernel if kind == "cpu" else torch.compile(kernel)


@cache
def _causal_blocks(num_queries: int, num_keys: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def earlier(sentence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    return create_block_mask(earlier, None, None, num_queries, num_keys, device=str(device))

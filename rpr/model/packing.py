"""Rows of several documents one after the other: self-attention and positions of each document by itself.

Documents of similar length, within a factor of two, are gathered as the rows of one batch, so that no scheme's tables,
running sums or shifted keys can cross from one to the next, and nothing of a row's length squared is computed.
"""

# Shape suffixes: B rows, L tokens of a row, N = B L, P documents, T tokens of the longest of similar length, X any.

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where the documents of a batch of rows are."""

    places_BL: Tensor  # of each token in its document, int64
    longest: int  # tokens of a document
    groups: tuple[Tensor, ...]  # documents of similar length: of their N tokens, [P, T], padded with their last one
    back_N: Tensor  # where each token is among those of all groups

    @staticmethod
    def of(starts_BL: Tensor) -> "Packing":
        """From where documents start, bool; at the start of a row one does, too."""
        device, (batch, length) = starts_BL.device, starts_BL.shape
        # 1. The first token, and the length, of each document.
        starts_BL = starts_BL.cpu().clone()
        starts_BL[:, 0] = True
        firsts_P = starts_BL.flatten().nonzero()[:, 0]
        lengths_P = torch.diff(firsts_P, append=firsts_P.new_tensor([batch * length]))
        document_N = starts_BL.flatten().cumsum(0) - 1
        places_N = torch.arange(batch * length) - firsts_P[document_N]
        # 2. Groups by powers of two; where each document begins among their tokens.
        classes_P, begins_P = lengths_P.double().log2().ceil(), torch.empty_like(firsts_P)
        groups, total = [], 0
        for of_class in sorted({*classes_P.tolist()}):
            chosen_P = (classes_P == of_class).nonzero()[:, 0]
            longest = int(lengths_P[chosen_P].max())
            inside_PT = torch.minimum(torch.arange(longest), lengths_P[chosen_P, None] - 1)
            groups.append((firsts_P[chosen_P, None] + inside_PT).to(device))
            begins_P[chosen_P] = total + longest * torch.arange(len(chosen_P))
            total += longest * len(chosen_P)
        back_N = begins_P[document_N] + places_N
        places_BL = places_N.view(batch, length)
        return Packing(places_BL.to(device), int(lengths_P.max()), tuple(groups), back_N.to(device))

    def apart(self, function: Callable[..., Tensor], *of_rows: Tensor) -> Tensor:
        """`function` of the documents of each group, [P, T, X] each, from tensors [B, L, X] and to one."""
        parts = []
        for index_PT in self.groups:
            documents = (x.flatten(0, 1).index_select(0, index_PT.flatten()) for x in of_rows)
            parts.append(function(*(x.view(*index_PT.shape, -1) for x in documents)).flatten(0, 1))
        return torch.cat(parts).index_select(0, self.back_N).view(*self.places_BL.shape, -1)

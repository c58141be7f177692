"""Rows of several documents, packed, against each document alone: hidden states and gradients, for every scheme."""

import pytest
import torch

from rpr.model.packing import Packing
from tests.model.scheme_variants import EACH_KIND, layers_of
from tests.model.test_decoder_only import make_model
from tests.model.test_readable import assert_same_gradients

BOS = 2


def row(*lengths: int, seed: int = 0) -> torch.Tensor:
    """Documents of so many tokens, each with BOS first."""
    pieces = torch.randint(4, 20, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    pieces[torch.tensor([0, *lengths]).cumsum(0)[:-1]] = BOS
    return pieces


ROWS = torch.stack([row(5, 1, 6), row(2, 2, 8, seed=1)])
ROWS[1, 0] = 7  # a document that goes on in this row: its positions start at 0 here


def test_documents_of_5_1_and_6_tokens_have_37_pairs_and_the_fewest_padded():
    packing = Packing.of(ROWS == BOS)
    assert int((packing.places_BL[0] + 1).sum()) == 15 + 1 + 21 == 37
    assert packing.longest == 8
    assert sorted(map(tuple, (group.shape for group in packing.groups))) == [(1, 1), (2, 2), (3, 8)]
    assert torch.equal(packing.apart(lambda x: x, ROWS[..., None])[..., 0], ROWS)


@pytest.mark.parametrize("kind", EACH_KIND)
def test_documents_of_a_row_are_each_alone(kind):
    model = make_model(kind, num_layers=layers_of(kind)).requires_grad_(True)
    cotangent = torch.randn(*ROWS.shape, model.config.d_model, dtype=torch.float64)
    packed = model(ROWS[:, :0], ROWS, packed=True)
    alone = []
    for pieces, lengths in zip(ROWS, ((5, 1, 6), (2, 2, 8)), strict=True):
        parts = [part[None] for part in pieces.split(lengths)]
        alone.append(torch.cat([model(part[:, :0], part)[0] for part in parts]))
    torch.testing.assert_close(packed, torch.stack(alone), rtol=1e-9, atol=1e-10)
    assert_same_gradients(model, packed, torch.stack(alone), cotangent)


@pytest.mark.parametrize("kind", ["relative", "sinusoidal", "rope_window"])
def test_positions_drawn_in_training_alone_are_of_the_longest_document(kind):
    model = make_model(kind)
    positions = model.config.decoder_positions.model_copy(update={"random_positions": 40})
    model = make_model(kind, decoder_positions=positions).train()
    torch.manual_seed(3)
    packed = model(ROWS[:, :0], ROWS, packed=True)
    torch.manual_seed(3)
    longest = model(ROWS[1:, :0], ROWS[1:, 4:])
    torch.testing.assert_close(packed[1:, 4:], longest, rtol=1e-9, atol=1e-9)
    model.eval()
    assert torch.equal(model(ROWS[:, :0], ROWS), model(ROWS[:, :0], ROWS))

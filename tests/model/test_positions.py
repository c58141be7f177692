"""Sinusoids against values computed by hand; learned positions; initial values of tables. Rows: test_attention.py."""

import math

import pytest
import torch

from rpr.model.vectors import LearnedPositions, SinusoidalPositions, sinusoids


def test_sinusoids_match_hand_computation():
    # Three frequencies, geometric from 1 to 1 / 10,000: 1, 0.01, 0.0001. Sines first, then cosines.
    table = sinusoids(6, 6)
    assert (table.dtype, table.shape) == (torch.float32, (6, 6))
    assert table[0].tolist() == [0, 0, 0, 1, 1, 1]
    by_hand = [-0.95892427, 0.04997917, 0.00049999998, 0.28366219, 0.99875026, 0.99999988]  # of 5, 0.05, 0.0005
    assert table[5].tolist() == pytest.approx(by_hand, rel=1e-6)
    assert sinusoids(4, 2)[3].tolist() == pytest.approx([math.sin(3), math.cos(3)], rel=1e-6)  # one frequency, 1


def test_sinusoidal_positions_are_table_rows_and_have_no_state():
    positions = SinusoidalPositions(8)
    for first, length in [(0, 5), (3, 4), (255, 1), (255, 2), (250, 700), (5000, 3)]:
        assert torch.equal(positions(first, torch.zeros(1, length)), sinusoids(first + length, 8)[first:])
    assert [*positions.parameters(), *positions.buffers(), *positions.state_dict()] == []


def test_sinusoids_cached_in_inference_mode_can_be_used_in_training():
    positions = SinusoidalPositions(8)
    with torch.inference_mode():
        positions(1000, torch.zeros(1, 2))
    x = torch.ones(2, 8, requires_grad=True)
    (x * positions(1000, torch.zeros(1, 2))).sum().backward()  # an inference tensor cannot be saved for backward
    assert torch.equal(x.grad, sinusoids(1002, 8)[1000:])


def test_learned_positions_beyond_the_table_use_its_last_row():
    positions = LearnedPositions(5, 3)
    weight = positions.weight_LM
    for first, rows in [(0, [0, 1, 2, 3, 4]), (1, [1, 2]), (3, [3, 4, 4, 4]), (100, [4, 4])]:
        assert torch.equal(positions(first, torch.zeros(1, len(rows))), weight[rows])
    positions(2, torch.zeros(1, 4)).sum().backward()  # positions 2, 3, 4, 5: the last two share row 4
    assert weight.grad[:, 0].tolist() == [0, 0, 1, 1, 2]

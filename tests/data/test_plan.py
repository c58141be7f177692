"""Checked here: the plan of microbatches, computed in chunks, against a plain one by sorting; the order it draws
against numpy's own permutation; the padding of a whole epoch against the microbatches counted one by one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpr.data import plan as module
from rpr.data.batches import TrainingBatches, padding_waste
from rpr.data.plan import Plan, bucket_boundaries
from rpr.data.token_split import TokenSplit


def lengths(number: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(number)
    source = np.exp(draw.normal(3, 0.7, number))
    target = source * np.exp(draw.normal(0, 0.2, number))
    return tuple(np.clip(np.round(side), 1, 250).astype(np.int32) for side in (source, target))  # type: ignore[return-value]


def test_bucket_boundaries_by_hand() -> None:
    assert bucket_boundaries(22).tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22]
    assert bucket_boundaries(3).tolist() == [8]


@pytest.mark.parametrize("at_once", [7, 1000, 1 << 20])
def test_pairs_stand_by_bucket_then_skew_then_as_they_were_drawn(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", at_once)
    source, target = lengths(3000)
    drawn = Plan(source, target, 512).epoch(seed=3, epoch=5)
    boundaries = bucket_boundaries(int(max(source.max(), target.max()))).tolist()

    def bucket(length: int) -> int:
        return next(index for index, boundary in enumerate(boundaries) if boundary >= length)

    def cell(pair: int) -> tuple[int, int]:
        of_source, of_target = bucket(source[pair]), bucket(target[pair])
        of_both = max(of_source, of_target)
        return of_both, (of_target - of_source) * (-1 if of_both % 2 else 1)

    shuffled = np.random.Generator(np.random.PCG64([3, 5])).permutation(3000).tolist()
    assert drawn.pair_order.tolist() == sorted(shuffled, key=cell)
    assert (drawn.epoch, drawn.pair_order.dtype) == (5, np.int32)


@pytest.mark.parametrize("number", [1, 50, 3000])
def test_the_padding_of_an_epoch_is_that_of_its_microbatches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(module, "MICROBATCHES_AT_ONCE", 13)
    split = TokenSplit(tmp_path, "train", number, "uint16")
    split.__dict__["source_lengths"], split.__dict__["target_lengths"] = lengths(number)
    batches = TrainingBatches(split, 512, 4, seed=2)
    microbatches = [
        microbatch for step in range(batches.steps_in_epoch(0)) for microbatch in batches.step_microbatches(step)
    ]
    batches.step_microbatches(batches.steps_in_epoch(0) * 3)  # another epoch in between
    assert batches.padding_waste() == pytest.approx(padding_waste(microbatches, split), abs=1e-12)
    assert (number == 1) == (batches.padding_waste() == 0)

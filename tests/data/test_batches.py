"""Checked here: batches, and padding counted, by hand; the order of an epoch by sorting and numpy's own permutation.
Every pair once, within the budget, shared equally, from any step on: tests/property/test_batching.py.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from rpr.data import batches as module
from rpr.data import plan as plan_module
from rpr.data.batches import (
    Batch,
    BatchSpec,
    TrainingBatches,
    TranslationDataset,
    accumulation,
    evaluation_batches,
)
from rpr.data.plan import Plan, bucket_boundaries
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.errors import ConfigError
from tests.data.helpers import memory_growth, padding_waste


def write_split(directory: Path, source_lengths: np.ndarray, target_lengths: np.ndarray) -> TokenSplit:
    """A split of these lengths (EOS included) whose other pieces count up from 4."""
    for side, lengths in (("source", source_lengths), ("target", target_lengths)):
        ends = np.cumsum(lengths, dtype=np.int64)
        pieces = (np.arange(ends[-1]) % 5000 + 4).astype(np.uint16)
        pieces[ends - 1] = EOS
        pieces.tofile(directory / f"train.{side}.pieces")
        np.append(np.int64(0), ends).tofile(directory / f"train.{side}.offsets")
    return TokenSplit(directory, "train", len(source_lengths), "uint16")


def sentence_lengths(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Lognormal, median 22 pieces, the target within some 20% of the source, as in WMT."""
    draw = np.random.default_rng(0)
    source = np.exp(draw.normal(3.1, 0.6, number))
    target = source * np.exp(draw.normal(0.05, 0.2, number))
    return tuple(np.clip(np.round(side), 1, 255).astype(np.int32) + 1 for side in (source, target))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return write_split(tmp_path_factory.mktemp("split"), *sentence_lengths(3000))


def epoch_microbatches(batches: TrainingBatches, epoch: int) -> list[np.ndarray]:
    steps = batches.steps_per_epoch
    return [pairs for step in range(epoch * steps, (epoch + 1) * steps) for pairs in batches.step_microbatches(step)]


def test_epochs_differ_in_order_and_in_which_pairs_meet(split):
    batches = TrainingBatches(split, 1024, 1, seed=0)
    first, second = epoch_microbatches(batches, 0), epoch_microbatches(batches, 1)
    meetings = [{frozenset(microbatch.tolist()) for microbatch in epoch} for epoch in (first, second)]
    assert meetings[0] != meetings[1]
    order = [split.source_lengths[microbatch].mean() for microbatch in first]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.5, "short and long microbatches are mixed"


def test_a_pair_longer_than_the_budget_is_a_microbatch_of_its_own(tmp_path):
    split = write_split(tmp_path, np.asarray([5, 90, 5, 70]), np.asarray([5, 8, 5, 8]))
    microbatches = [microbatch.tolist() for microbatch in epoch_microbatches(TrainingBatches(split, 20, 1, seed=0), 0)]
    assert sorted(map(sorted, microbatches)) == [[0, 2], [1], [3]]
    assert sorted(microbatch.tolist() for microbatch in evaluation_batches(split, 20)) == [[0, 2], [1], [3]]


@pytest.mark.parametrize(("num_devices", "microbatches_per_step"), [(3, 8), (6, 4)])
def test_unequal_shares_are_refused(split, num_devices, microbatches_per_step):
    shares = f"{num_devices} devices cannot share optim.microbatches_per_step = {microbatches_per_step} equally"
    for call in (
        lambda: accumulation(microbatches_per_step, num_devices),
        lambda: TrainingBatches(split, 512, microbatches_per_step, 0, num_devices),
    ):
        with pytest.raises(ConfigError, match=rf"^hardware: {shares}; choose 1, 2, .* multiple of"):
            call()


def test_little_padding_on_realistic_lengths(tmp_path):
    split = write_split(tmp_path, *sentence_lengths(30_000))
    assert padding_waste(epoch_microbatches(TrainingBatches(split, 4096, 8, 0), 0), split) < 0.08
    assert padding_waste(evaluation_batches(split, 4096), split) < 0.15


def test_the_next_epoch_is_drawn_ahead_where_it_is_large(split, monkeypatch):
    plain = TrainingBatches(split, 512, 4, seed=3)
    last = plain.steps_per_epoch - 1
    steps = (0, last // 2, last, last + 1, 2 * last + 1, 5 * last + 5, 0)
    expected = [[microbatch.tolist() for microbatch in plain.step_microbatches(step)] for step in steps]
    monkeypatch.setattr(module, "PREFETCH_EPOCH_FROM", len(split))
    ahead = TrainingBatches(split, 512, 4, seed=3)
    drawn = []
    draw = Plan.epoch

    def recorded(plan, seed, epoch):
        drawn.append((epoch, threading.current_thread().name))
        return draw(plan, seed, epoch)

    monkeypatch.setattr(Plan, "epoch", recorded)
    for step, pairs in zip(steps, expected, strict=True):
        microbatches = ahead.step_microbatches(step)
        if step == last:
            assert ahead._ahead is not None and ahead._ahead[1].result().epoch == 1
        assert [microbatch.tolist() for microbatch in microbatches] == pairs
    main = threading.main_thread().name
    assert {epoch for epoch, name in drawn if name != main} == {1, 2}, "not before the half of an epoch"
    assert pickle.loads(pickle.dumps(ahead)).step_microbatches(last)[0].tolist() == expected[2][0]


def test_reading_a_split_needs_no_more_memory_than_its_batches(tmp_path):
    """A map of the files would count as memory of the process, page by page, until it holds them whole."""
    split = write_split(tmp_path, np.full(50_000, 400), np.full(50_000, 400))
    assert (tmp_path / "train.source.pieces").stat().st_size == 40_000_000

    def read():
        assert split.source_lengths.sum() == split.target_lengths.sum() == 20_000_000
        for first in range(0, 50_000, 100):
            assert split.source_rows(range(first, first + 100))[1].tolist() == [400] * 100

    assert memory_growth(read) < 10e6


def test_a_batch_by_hand(tmp_path):
    split = write_split(tmp_path, np.asarray([3, 1, 2]), np.asarray([1, 3, 2]))
    batch = TranslationDataset(split)[BatchSpec(np.asarray([1, 0]), 7, 0, 40, 50)]
    assert batch.source_BS.tolist() == [[EOS, PAD, PAD], [4, 5, EOS]]
    assert batch.target_output_BT.tolist() == [[5, 6, EOS], [EOS, PAD, PAD]]
    assert batch.target_input_BT.tolist() == [[BOS, 5, 6], [BOS, PAD, PAD]]
    assert batch[3:] == (4, 4, 7, 40, 50)
    outside = TranslationDataset(split)[[2]]
    assert outside.source_BS.tolist() == [[8, EOS]] and outside[3:] == (2, 2, None, 2, 2)
    empty = TranslationDataset(split)[BatchSpec(np.empty(0, np.int64), 7, 1, 40, 50)]  # one row that counts nothing
    assert [rows.tolist() for rows in empty[:3]] == [[[EOS]], [[BOS]], [[PAD]]] and empty[3:] == (0, 0, 7, 40, 50)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_gives_the_same_batches_with_and_without_workers(split, num_workers):
    split.source(0)  # an open file in the parent must not hinder its workers
    dataset, batches = TranslationDataset(split), TrainingBatches(split, 512, 2, seed=0)
    loader = DataLoader(dataset, sampler=batches, batch_size=None, num_workers=num_workers)
    for spec, batch in itertools.islice(zip(batches, loader, strict=False), 20):
        expected = dataset[spec]
        assert isinstance(batch, Batch) and batch[3:] == expected[3:]
        assert all((one == other).all() for one, other in zip(batch[:3], expected[:3], strict=True))
        assert batch.num_target_tokens == int((batch.target_output_BT != PAD).sum())
        assert batch.num_source_tokens == int((batch.source_BS != PAD).sum())


# The plan


def test_bucket_boundaries_by_hand():
    assert bucket_boundaries(22).tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22]
    assert bucket_boundaries(3).tolist() == [8]


@pytest.mark.parametrize("at_once", [7, 1 << 20])
def test_pairs_stand_by_bucket_then_skew_then_as_they_were_drawn(monkeypatch, at_once):
    monkeypatch.setattr(plan_module, "PAIRS_AT_ONCE", at_once)
    source, target = sentence_lengths(1000)
    drawn = Plan(source, target, 512).epoch(seed=3, epoch=5)
    boundaries = bucket_boundaries(int(max(source.max(), target.max()))).tolist()

    def bucket(length):
        return next(index for index, boundary in enumerate(boundaries) if boundary >= length)

    def cell(pair):
        of_source, of_target = bucket(source[pair]), bucket(target[pair])
        of_both = max(of_source, of_target)
        return of_both, (of_target - of_source) * (-1 if of_both % 2 else 1)

    shuffled = np.random.Generator(np.random.PCG64([3, 5])).permutation(1000).tolist()
    assert drawn.pair_order.tolist() == sorted(shuffled, key=cell)
    assert (drawn.epoch, drawn.pair_order.dtype) == (5, np.int32)


@pytest.mark.parametrize("number", [1, 3000])
def test_the_padding_of_an_epoch_is_that_of_its_microbatches(tmp_path, monkeypatch, number):
    monkeypatch.setattr(plan_module, "MICROBATCHES_AT_ONCE", 13)
    split = write_split(tmp_path, *sentence_lengths(number))
    batches = TrainingBatches(split, 512, 4, seed=2)
    microbatches = epoch_microbatches(batches, 0)
    batches.step_microbatches(batches.steps_per_epoch * 3)  # another epoch in between
    assert batches.padding_waste() == pytest.approx(padding_waste(microbatches, split), abs=1e-12)
    assert (number == 1) == (batches.padding_waste() == 0)

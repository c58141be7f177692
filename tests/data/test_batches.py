"""Checked here: batches against their definition (every pair once an epoch, the budget, equal shares), padding
counted by hand, and the same order in another process.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from rpr.data import batches as module
from rpr.data.batches import (
    Batch,
    BatchSpec,
    TrainingBatches,
    TranslationDataset,
    accumulation,
    evaluation_batches,
    padding_waste,
)
from rpr.data.plan import EpochOrder, Plan
from rpr.data.token_split import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD
from rpr.errors import ConfigError


def write_split(directory: Path, source_lengths: np.ndarray, target_lengths: np.ndarray) -> TokenSplit:
    """A split of these lengths (EOS included) whose other pieces count up from 4."""
    for side, lengths in (("source", source_lengths), ("target", target_lengths)):
        ends = np.cumsum(lengths, dtype=np.int64)
        pieces = (np.arange(ends[-1]) % 5000 + 4).astype(np.uint16)
        pieces[ends - 1] = EOS
        pieces.tofile(directory / f"train.{side}.pieces")
        np.append(np.int64(0), ends).tofile(directory / f"train.{side}.offsets")
    return TokenSplit(directory, "train", len(source_lengths), "uint16")


def sentence_lengths(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lognormal, median 22 pieces, the target within some 20% of the source, as in WMT."""
    draw = np.random.default_rng(seed)
    source = np.exp(draw.normal(3.1, 0.6, number))
    target = source * np.exp(draw.normal(0.05, 0.2, number))
    return tuple(np.clip(np.round(side), 1, 255).astype(np.int32) + 1 for side in (source, target))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> TokenSplit:
    return write_split(tmp_path_factory.mktemp("split"), *sentence_lengths(3000))


def epoch_microbatches(batches: TrainingBatches, epoch: int) -> list[np.ndarray]:
    steps = batches.steps_in_epoch(epoch)
    return [
        microbatch
        for step in range(epoch * steps, (epoch + 1) * steps)
        for microbatch in batches.step_microbatches(step)
    ]


@pytest.mark.parametrize(
    "number, budget, microbatches_per_step", [(1, 40, 8), (2, 4096, 3), (17, 512, 1), (3000, 40, 3), (3000, 512, 8)]
)
def test_every_pair_once_an_epoch_within_the_budget(
    tmp_path: Path, number: int, budget: int, microbatches_per_step: int
) -> None:
    split = write_split(tmp_path, *sentence_lengths(number))
    batches = TrainingBatches(split, budget, microbatches_per_step, seed=1)
    for epoch in (0, 1, 5):
        microbatches = epoch_microbatches(batches, epoch)
        assert len(microbatches) == microbatches_per_step * batches.steps_in_epoch(epoch)
        assert sum(len(microbatch) > 0 for microbatch in microbatches) == batches.microbatches_in_epoch(epoch)
        assert sorted(np.concatenate(microbatches).tolist()) == list(range(number))
        for microbatch in microbatches:
            for lengths in (split.source_lengths[microbatch], split.target_lengths[microbatch]):
                assert len(microbatch) <= 1 or len(microbatch) * lengths.max() <= budget


def test_epochs_differ_in_order_and_in_which_pairs_meet(split: TokenSplit) -> None:
    batches = TrainingBatches(split, 1024, 1, seed=0)
    first, second = epoch_microbatches(batches, 0), epoch_microbatches(batches, 1)
    assert [microbatch.tolist() for microbatch in first] != [microbatch.tolist() for microbatch in second]
    assert {frozenset(microbatch.tolist()) for microbatch in first} != {
        frozenset(microbatch.tolist()) for microbatch in second
    }
    order = [split.source_lengths[microbatch].mean() for microbatch in first]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.5, "short and long microbatches are mixed"


def test_a_pair_longer_than_the_budget_is_a_microbatch_of_its_own(tmp_path: Path) -> None:
    split = write_split(tmp_path, np.asarray([5, 90, 5, 70]), np.asarray([5, 8, 5, 8]))
    microbatches = [microbatch.tolist() for microbatch in epoch_microbatches(TrainingBatches(split, 20, 1, seed=0), 0)]
    assert sorted(map(sorted, microbatches)) == [[0, 2], [1], [3]]
    assert sorted(microbatch.tolist() for microbatch in evaluation_batches(split, 20)) == [[0, 2], [1], [3]]


ORDER = """
import hashlib, sys
from pathlib import Path
from rpr.data.batches import TrainingBatches
from rpr.data.token_split import TokenSplit
batches = TrainingBatches(TokenSplit(Path(sys.argv[1]), "train", 3000, "uint16"), 512, 4, seed=int(sys.argv[2]))
pairs = [pairs.astype("<i8").tobytes() for step in (0, 3, 700) for pairs in batches.step_microbatches(step)]
print(hashlib.sha256(b"".join(pairs)).hexdigest())
"""


def test_same_seed_same_batches_in_another_process_and_another_seed_others(split: TokenSplit) -> None:
    def digest(seed: int) -> str:
        microbatches = [
            microbatch
            for step in (0, 3, 700)
            for microbatch in TrainingBatches(split, 512, 4, seed=seed).step_microbatches(step)
        ]
        return hashlib.sha256(b"".join(microbatch.astype("<i8").tobytes() for microbatch in microbatches)).hexdigest()

    command = [sys.executable, "-c", ORDER, str(split.directory), "5"]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert there == digest(5) != digest(6)


@pytest.mark.parametrize("microbatches_per_step, num_devices", [(1, 2), (1, 8), (2, 2), (4, 1), (4, 8), (8, 2), (8, 4)])
def test_devices_share_a_step_without_changing_it(
    split: TokenSplit, microbatches_per_step: int, num_devices: int
) -> None:
    alone = TrainingBatches(split, 512, microbatches_per_step, seed=3)
    ranks = [TrainingBatches(split, 512, microbatches_per_step, 3, num_devices, rank) for rank in range(num_devices)]
    last = alone.steps_in_epoch(0) - 1
    for step in (0, 1, last, last + 1):
        specs = [rank.step_specs(step) for rank in ranks]
        assert {len(own) for own in specs} == {max(1, microbatches_per_step // num_devices)} == {ranks[0].accumulate}
        shared = np.concatenate([spec.indices for own in specs for spec in own])
        expected = np.concatenate(alone.step_microbatches(step))
        assert sorted(shared.tolist()) == sorted(expected.tolist())
        for spec in itertools.chain.from_iterable(specs):
            assert spec.step_source_tokens == split.source_lengths[expected].sum()
            assert spec.step_target_tokens == split.target_lengths[expected].sum()
        assert [spec.micro for spec in specs[0]] == list(range(ranks[0].accumulate))


@pytest.mark.parametrize(("num_devices", "microbatches_per_step"), [(3, 8), (6, 4), (12, 8)])
def test_unequal_shares_are_refused(split: TokenSplit, num_devices: int, microbatches_per_step: int) -> None:
    pattern = (
        rf"^hardware: {num_devices} devices cannot share optim.microbatches_per_step = {microbatches_per_step} "
        "equally; "
        "choose 1, 2, .* multiple of"
    )
    with pytest.raises(ConfigError, match=pattern):
        accumulation(microbatches_per_step, num_devices)
    with pytest.raises(ConfigError, match=pattern):
        TrainingBatches(split, 512, microbatches_per_step, 0, num_devices)


def same(one: BatchSpec, other: BatchSpec) -> bool:
    plain = [
        (spec.indices.tolist(), spec.step, spec.micro, spec.step_source_tokens, spec.step_target_tokens)
        for spec in (one, other)
    ]
    return plain[0] == plain[1]


@pytest.mark.parametrize("start", [1, 40, 500])
def test_starting_at_a_step_equals_skipping_to_it(split: TokenSplit, start: int) -> None:
    whole = TrainingBatches(split, 512, 4, 0, num_devices=2, rank=1)
    resumed = pickle.loads(pickle.dumps(whole))
    resumed.start_step = start
    skipped = itertools.islice(whole, start * whole.accumulate, start * whole.accumulate + 90)
    assert all(same(one, other) for one, other in zip(skipped, itertools.islice(resumed, 90), strict=True))


@pytest.mark.parametrize("number", [30_000])
def test_little_padding_on_realistic_lengths(tmp_path: Path, number: int) -> None:
    split = write_split(tmp_path, *sentence_lengths(number))
    assert padding_waste(epoch_microbatches(TrainingBatches(split, 4096, 8, 0), 0), split) < 0.08
    assert padding_waste(evaluation_batches(split, 4096), split) < 0.15


def test_the_next_epoch_is_drawn_ahead_where_it_is_large(split: TokenSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TrainingBatches(split, 512, 4, seed=3)
    last = plain.steps_in_epoch(0) - 1
    steps = (0, last // 2, last, last + 1, 2 * last + 1, 5 * last + 5, 0)
    expected = [[microbatch.tolist() for microbatch in plain.step_microbatches(step)] for step in steps]
    monkeypatch.setattr(module, "PREFETCH_EPOCH_FROM", len(split))
    ahead = TrainingBatches(split, 512, 4, seed=3)
    drawn: list[tuple[int, str]] = []
    draw = Plan.epoch

    def recorded(plan: Plan, seed: int, epoch: int) -> EpochOrder:
        drawn.append((epoch, threading.current_thread().name))
        return draw(plan, seed, epoch)

    monkeypatch.setattr(Plan, "epoch", recorded)
    for step, pairs in zip(steps, expected, strict=True):
        microbatches = ahead.step_microbatches(step)
        if step == last:
            assert ahead._ahead is not None and ahead._ahead[1].result().epoch == 1
        assert [microbatch.tolist() for microbatch in microbatches] == pairs
    main = threading.main_thread().name
    aside = {epoch for epoch, name in drawn if name != main}
    assert aside == {1, 2}, "not before the half of an epoch"
    assert pickle.loads(pickle.dumps(ahead)).step_microbatches(last)[0].tolist() == expected[2][0]


def test_reading_a_split_needs_no_more_memory_than_its_batches(tmp_path: Path) -> None:
    """A map of the files would count as memory of the process, page by page, until it holds them whole."""
    split = write_split(tmp_path, np.full(100_000, 400), np.full(100_000, 400))
    assert (tmp_path / "train.source.pieces").stat().st_size == 80_000_000
    there = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(there[0]) == split.source(99_999).sum() and int(there[1]) < 20e6


READ = """
import sys
import threading
from pathlib import Path
import numpy as np
from rpr.data.token_split import TokenSplit
from rpr.io.resources import resident_peak as peak_bytes
split = TokenSplit(Path(sys.argv[1]), "train", 100_000, "uint16")
assert split.source_lengths.sum() == split.target_lengths.sum() == 40_000_000
before = peak_bytes()
for first in range(0, 100_000, 100):
    pieces, lengths = split.source_rows(range(first, first + 100))
    assert lengths.tolist() == [400] * 100
print(pieces[-400:].sum(), peak_bytes() - before)
"""


def test_padding_waste_by_hand(tmp_path: Path) -> None:
    split = write_split(tmp_path, np.asarray([2, 4, 3]), np.asarray([5, 1, 3]))
    assert padding_waste([np.asarray([0, 1]), np.asarray([2]), np.asarray([], np.int64)], split) == pytest.approx(
        1 - 18 / 24
    )


def test_evaluation_batches_hold_every_pair_once_by_length(split: TokenSplit) -> None:
    microbatches = evaluation_batches(split, 1000)
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.concatenate(microbatches)
    assert sorted(order.tolist()) == list(range(len(split)))
    assert (np.diff(longer[order]) >= 0).all()
    assert all(len(microbatch) * longer[microbatch].max() <= 1000 for microbatch in microbatches)


def test_a_batch_by_hand(tmp_path: Path) -> None:
    split = write_split(tmp_path, np.asarray([3, 1, 2]), np.asarray([1, 3, 2]))
    batch = TranslationDataset(split)[BatchSpec(np.asarray([1, 0]), 7, 0, 40, 50)]
    assert batch.source_BS.tolist() == [[EOS, PAD, PAD], [4, 5, EOS]]
    assert batch.target_output_BT.tolist() == [[5, 6, EOS], [EOS, PAD, PAD]]
    assert batch.target_input_BT.tolist() == [[BOS, 5, 6], [BOS, PAD, PAD]]
    assert batch[3:] == (4, 4, 7, 40, 50)
    outside = TranslationDataset(split)[[2]]
    assert outside.source_BS.tolist() == [[8, EOS]] and outside[3:] == (2, 2, None, 2, 2)


def test_an_empty_shard_is_one_row_that_counts_nothing(split: TokenSplit) -> None:
    batch = TranslationDataset(split)[BatchSpec(np.empty(0, np.int64), 7, 1, 40, 50)]
    assert (batch.source_BS.tolist(), batch.target_input_BT.tolist(), batch.target_output_BT.tolist()) == (
        [[EOS]],
        [[BOS]],
        [[PAD]],
    )
    assert batch[3:] == (0, 0, 7, 40, 50)


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_a_data_loader_gives_the_same_batches_with_and_without_workers(split: TokenSplit, context: str | None) -> None:
    split.source(0)  # an open map in the parent must not hinder its workers
    dataset = TranslationDataset(split)
    batches = TrainingBatches(split, 512, 2, seed=0)
    loader = DataLoader(
        dataset,
        sampler=batches,
        batch_size=None,
        num_workers=0 if context is None else 2,
        multiprocessing_context=context,
    )
    for spec, batch in itertools.islice(zip(batches, loader, strict=False), 20):
        expected = dataset[spec]
        assert isinstance(batch, Batch) and batch[3:] == expected[3:]
        assert all((one == other).all() for one, other in zip(batch[:3], expected[:3], strict=True))
        assert batch.num_target_tokens == int((batch.target_output_BT != PAD).sum())
        assert batch.num_source_tokens == int((batch.source_BS != PAD).sum())

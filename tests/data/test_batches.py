"""Batches and padding by hand; what chunks and workers must not change. General properties of batching:
tests/property/test_batching.py; the order of pairs is frozen by the losses of tests/golden/test_training.py.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from rpr.data import batches
from rpr.data.batches import Batch, BatchDataset, BatchSpec, TrainingBatches
from rpr.data.cache import TokenSplit
from rpr.data.vocabulary import BOS, EOS, PAD


def write_split(directory: Path, source_lengths: np.ndarray, target_lengths: np.ndarray) -> TokenSplit:
    """A split of these lengths (including EOS) whose other pieces count up from 4."""
    for side, lengths in (("source", source_lengths), ("target", target_lengths)):
        ends = np.cumsum(lengths, dtype=np.int64)
        pieces = (np.arange(ends[-1]) % 5000 + 4).astype(np.uint16)
        pieces[ends - 1] = EOS
        pieces.tofile(directory / f"train.{side}.pieces")
        np.append(np.int64(0), ends).tofile(directory / f"train.{side}.offsets")
    return TokenSplit(directory, "train", len(source_lengths), "uint16")


def sentence_lengths(number: int) -> tuple[np.ndarray, np.ndarray]:
    """WMT-like: lognormal with median 22, targets within about 20% of their sources."""
    rng = np.random.default_rng(0)
    source = np.exp(rng.normal(3.1, 0.6, number))
    target = source * np.exp(rng.normal(0.05, 0.2, number))
    return tuple(np.clip(np.round(side), 1, 255).astype(np.int32) + 1 for side in (source, target))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return write_split(tmp_path_factory.mktemp("split"), *sentence_lengths(3000))


def test_batch_contents(tmp_path):
    split = write_split(tmp_path, np.asarray([3, 1, 2]), np.asarray([1, 3, 2]))
    batch = BatchDataset(split)[BatchSpec(np.asarray([1, 0]), 40, 50)]
    assert batch.source_BS.tolist() == [[EOS, PAD, PAD], [4, 5, EOS]]
    assert batch.target_output_BT.tolist() == [[5, 6, EOS], [EOS, PAD, PAD]]
    assert batch.target_input_BT.tolist() == [[BOS, 5, 6], [BOS, PAD, PAD]]
    assert batch[3:] == (4, 40, 50, True)
    evaluation = BatchDataset(split)[[2]]
    assert evaluation.source_BS.tolist() == [[8, EOS]] and evaluation[3:] == (2, 2, 2, False)
    empty = BatchDataset(split)[BatchSpec(np.empty(0, np.int64), 40, 50)]  # one row without tokens
    assert [rows.tolist() for rows in empty[:3]] == [[[EOS]], [[BOS]], [[PAD]]] and empty[3:] == (0, 40, 50, False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_loader_batches_equal_those_of_the_dataset(split, num_workers):
    split.row("source", 0)  # opens a file in the parent, which must not break its workers
    dataset, batches = BatchDataset(split), TrainingBatches(split, 512, 2, seed=0)
    loader = DataLoader(dataset, sampler=batches, batch_size=None, num_workers=num_workers)
    pairs = [*itertools.islice(zip(batches, loader, strict=False), 20)]
    assert len(pairs) == 20
    for spec, batch in pairs:
        expected = dataset[spec]
        assert isinstance(batch, Batch) and batch[3:] == expected[3:]
        assert all((one == other).all() for one, other in zip(batch[:3], expected[:3], strict=True))
        assert batch.num_target_tokens == int((batch.target_output_BT != PAD).sum())


def test_cells_and_microbatches_do_not_depend_on_chunks(monkeypatch):
    whole = batches.planned(*sentence_lengths(1000), 512, joined=False)
    monkeypatch.setattr(batches, "PAIRS_AT_ONCE", 7)
    assert all(map(np.array_equal, batches.planned(*sentence_lengths(1000), 512, joined=False), whole))


def test_padding_waste_equals_that_of_the_microbatches(split):
    batches, sides = TrainingBatches(split, 512, 4, seed=2), (split.source_lengths, split.target_lengths)
    real = padded = 0
    first, second = (np.concatenate(batches.step_microbatches(at)) for at in (0, batches.steps_per_epoch))
    assert first.tolist() != second.tolist(), "epochs differ in order"
    for step, lengths in itertools.product(range(batches.steps_per_epoch), sides):
        for rows in filter(len, batches.step_microbatches(step)):
            real, padded = real + int(lengths[rows].sum()), padded + len(rows) * int(lengths[rows].max())
    assert batches.padding_waste() == pytest.approx(1 - real / padded, abs=1e-12)


def test_longest_rows_may_come_first(split):
    """As many microbatches as asked for; the epoch has the same ones. Buckets grow by a tenth."""
    longest = np.maximum(split.source_lengths, split.target_lengths)
    usual, ahead = (
        [sorted(rows.tolist()) for step in range(plan.steps_per_epoch) for rows in plan.step_microbatches(step)]
        for plan in (TrainingBatches(split, 512, 2, seed=1, longest_first=number) for number in (0, 6))
    )
    lengths = [longest[rows].max() for rows in ahead if rows]
    assert sorted(ahead) == sorted(usual) and max(lengths[:6]) == longest.max()
    assert 1.2 * min(lengths[:6]) >= max(lengths[6:])

"""Properties of batching: every pair in exactly one microbatch per epoch, within the budget; ranks share a step without
overlap or loss; a sampler that starts at a later step gives the rest of one that starts at the first.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import example
from hypothesis import strategies as st

from rpr.data.batches import BatchSpec, TrainingBatches, scored_batches
from rpr.data.cache import TokenSplit
from tests.property.sizes import sized


class Case(NamedTuple):
    """A split by its (source, target) lengths, and how it is batched."""

    lengths: list[tuple[int, int]]
    budget: int
    microbatches_per_step: int
    num_devices: int
    seed: int
    joined: bool

    def split(self) -> TokenSplit:
        split = TokenSplit(Path("nowhere"), "train", len(self.lengths), "uint16")
        for side, name in enumerate(("source_lengths", "target_lengths")):
            split.__dict__[name] = np.asarray([pair[side] for pair in self.lengths], np.int32)
        return split

    def batches(self, *, num_devices: int = 1, rank: int = 0, start_step: int = 0) -> TrainingBatches:
        return TrainingBatches(
            self.split(), self.budget, self.microbatches_per_step, self.seed, num_devices, rank, start_step,
            joined=self.joined,
        )  # fmt: skip


def sharing(microbatches_per_step: int) -> st.SearchStrategy[int]:
    """Numbers of devices that share the microbatches of a step equally."""
    divisors = [number for number in range(1, microbatches_per_step + 1) if microbatches_per_step % number == 0]
    return st.sampled_from([*divisors, 2 * microbatches_per_step, 3 * microbatches_per_step])


LENGTHS = st.integers(1, 12) | st.integers(1, 300)
CASES = st.integers(1, 6).flatmap(
    lambda microbatches: st.builds(
        Case,
        st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=60),
        st.integers(1, 400),
        st.just(microbatches),
        sharing(microbatches),
        st.integers(0, 2**31 - 1),
        st.booleans(),
    )
)
ONE_PAIR = Case([(1, 1)], 1, 4, 8, 0, False)


def all_pairs(microbatches: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(microbatches))


def assert_each_once_within_the_budget(case: Case, microbatches: list[list[int]]) -> None:
    assert all_pairs(microbatches) == list(range(len(case.lengths)))
    for microbatch in filter(None, microbatches):
        longest = [max(case.lengths[pair][side] for pair in microbatch) for side in (0, 1)]
        assert len(microbatch) == 1 or len(microbatch) * (sum if case.joined else max)(longest) <= case.budget


def tokens(case: Case, pairs: list[int]) -> tuple[int, int]:
    return sum(case.lengths[pair][0] for pair in pairs), sum(case.lengths[pair][1] for pair in pairs)


def plain(specs: list[BatchSpec]) -> list[tuple[object, ...]]:
    return [tuple(x.tolist() if isinstance(x, np.ndarray) else x for x in vars(spec).values()) for spec in specs]


@sized(30, CASES, st.integers(0, 3))
@example(ONE_PAIR, 1)
def test_epoch_has_every_pair_once_within_the_budget(case, epoch):
    batches = case.batches()
    steps = batches.steps_per_epoch
    microbatches = [
        microbatch.tolist() for step in range(steps) for microbatch in batches.step_microbatches(epoch * steps + step)
    ]
    assert_each_once_within_the_budget(case, microbatches)
    assert steps == -(-sum(map(bool, microbatches)) // case.microbatches_per_step)
    assert len(microbatches) == steps * case.microbatches_per_step


@sized(30, CASES, st.integers(0, 20))
@example(ONE_PAIR, 3)
def test_ranks_share_a_step_without_overlap_or_loss(case, step):
    whole = [microbatch.tolist() for microbatch in case.batches().step_microbatches(step)]
    pairs = all_pairs(whole)
    ranks = [case.batches(num_devices=case.num_devices, rank=rank) for rank in range(case.num_devices)]
    shares = [rank.step_specs(step) for rank in ranks]
    assert {len(specs) for specs in shares} == {max(1, case.microbatches_per_step // case.num_devices)}
    of_ranks = [spec.indices.tolist() for specs in shares for spec in specs]
    assert all_pairs(of_ranks) == pairs
    assert all(not share or any({*share} <= {*microbatch} for microbatch in whole) for share in of_ranks)
    for specs in shares:
        assert {(spec.step_source_tokens, spec.step_target_tokens) for spec in specs} == {tokens(case, pairs)}


@sized(20, CASES, st.integers(0, 12), st.integers(0, 50))
def test_start_step_gives_the_rest_of_the_batches(case, start, rank):
    here = {"num_devices": case.num_devices, "rank": rank % case.num_devices}
    micro_batches = max(1, case.microbatches_per_step // case.num_devices)
    whole = list(itertools.islice(case.batches(**here), (start + 3) * micro_batches))
    rest = list(itertools.islice(case.batches(**here, start_step=start), 3 * micro_batches))
    assert plain(rest) == plain(whole[start * micro_batches :])


@sized(20, CASES)
@example(ONE_PAIR)
def test_evaluation_has_every_pair_once_within_the_budget(case):
    batches = scored_batches(case.split(), case.budget, joined=case.joined)
    microbatches = [microbatch.tolist() for microbatch in batches]
    assert_each_once_within_the_budget(case, microbatches)
    assert all(microbatches)
    longer = [max(case.lengths[pair]) for microbatch in microbatches for pair in microbatch]
    assert longer == sorted(longer)

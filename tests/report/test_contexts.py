"""Tables and plot of bits per byte by length of the context, against means worked out here from made-up records."""

from typing import Any

import pytest

from rpr.records.record import Record
from rpr.report.render import Grid
from rpr.report.tables import context_grids
from tests.fake_records import fake_record
from tests.report.helpers import group_of, row, value

SCORES = {("separate", 64): 2.5, ("separate", 128): 2.25, ("separate", 256): 2.75, ("sliding", 128): 2.0}


def score(windows: str, length: int, bits: float) -> dict[str, Any]:
    return {"windows": windows, "length": length, "bits_per_byte": bits, "num_bytes": 4096, "interval": None}


def scored(position: str, seed: int = 1, more: float = 0.0, **changes: Any) -> Record:
    """A record with `more` bits than SCORES everywhere."""
    return fake_record(position, seed=seed, by_context=[fields(more) | changes])


def fields(more: float) -> dict[str, Any]:
    return {
        "split": "test", "test_set": "held out", "training_length": 128, "num_bytes": 4096, "num_tokens": 4096,
        "num_documents": 3, "stride": 64, "checkpoint": "step 10", "precision": "float32",
        "scores": [score(*windows, bits + more) for windows, bits in SCORES.items()],
        "by_position": [],
    }  # fmt: skip


def changes_of(grid: Grid) -> list[float]:
    return [value(row(grid, "relative, k = 16")[column.key]) for column in grid.columns if column.signed]


def test_changes_are_of_the_same_bytes_and_of_a_baseline_below_the_unigram_entropy():
    baseline = [scored("absolute", seed, seed / 10) for seed in (1, 2)]
    others = [scored("relative", 1, 0.3), scored("relative", 2, 0.6)]  # 0.2 and 0.4 more
    (grid,) = context_grids(group_of([*baseline, *others]))
    assert changes_of(grid) == pytest.approx([0.3] * len(SCORES))
    (grid,) = context_grids(group_of([*baseline, scored("relative", 1, 0.3, num_bytes=1)]))
    assert changes_of(grid) == [], "none of other bytes"
    text = {"data.text": {}, "model.architecture": "decoder_only"}
    known = [fake_record(name, settings=text, by_context=[fields(more)], **{"data.unigram_bits": 2.7})
             for name, more in (("absolute", 0.0), ("relative", -0.1))]  # fmt: skip
    (grid,) = context_grids(group_of(known))
    assert row(grid, "unigram entropy of the corpus")["separate_256"].value.value == 2.7
    headings = [column.heading for column in grid.columns if column.signed]
    assert headings == ["change 64", "change 128", "change 128, sliding"], "2.75 bits at 256"


@pytest.mark.parametrize("change, windows", [
    ({"num_bytes": 1000}, 2), ({"precision": "bf16"}, 2),
    ({"scores": [*fields(0.0)["scores"], score("separate", 512, 2.0)]}, 2), ({"stride": 32}, 1),
])  # fmt: skip
def test_seeds_scored_on_different_bytes_or_otherwise_have_no_mean(change, windows):
    group = group_of([scored("relative"), scored("relative", 2, **change)])
    for key in [("sliding", 128), ("separate", 64)][:windows]:
        one = group.variants[0].measured(("test", *key))
        assert one.value is None and "different ways" in str(one.reason)
    (grid,) = context_grids(group)
    assert grid.warnings

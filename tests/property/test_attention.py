"""Property of attention in float64: every implementation, also in blocks and parts of any size, matches `composed`
forward and backward. Decoding with caches: tests/model/test_beam_search.py.
"""

from hypothesis import example
from hypothesis import strategies as st

from rpr.model.attention import blocks
from tests.model.attention_cases import Case, assert_all_forms_agree
from tests.property.sizes import sized

CLIPS = st.none() | st.integers(0, 7)
AXES = st.sets(st.sampled_from("BHQK")).map("".join)
CASES = st.builds(
    Case, num_queries=st.integers(1, 8), num_keys=st.integers(1, 8), first_query=st.just(0) | st.integers(0, 10),
    keys=CLIPS, values=CLIPS, bias=CLIPS, causal=st.booleans(), mask=st.just("") | AXES,
    labels=st.sampled_from(["", "", "QK", "BQK"]), per_head=st.tuples(st.booleans(), st.booleans()),
    strided=st.booleans(), batch=st.integers(1, 3), heads=st.integers(1, 3), width=st.integers(1, 4),
    seed=st.integers(0, 99),
)  # fmt: skip


@sized(12, CASES, st.sampled_from([1, 300, 2**23]))
@example(Case(1, 2, 1, causal=True), 1)  # sees all keys
@example(Case(1, 2, 9, keys=2, values=1, causal=True), 2**23)  # behind all keys by more than both clip distances
def test_all_forms_agree_forward_and_backward(monkeypatch, case, part_bytes):
    monkeypatch.setattr(blocks, "PART_BYTES", part_bytes)
    assert_all_forms_agree(case)

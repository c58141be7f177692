"""Which of many are shown: as many as there is room for, in their order, some of every kind, the ends among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpr.report.selection import few, left_out


def test_by_hand():
    assert few(["a1", "a2"], lambda x: x[0], 2) == ["a1", "a2"]
    # Three places in turn: a, b, then a again, which gets its first and its last.
    assert few(["a1", "a2", "a3", "b1", "b2"], lambda x: x[0], 3) == ["a1", "a3", "b1"]
    assert few([f"a{n}" for n in range(9)], lambda x: x[0], 3) == ["a0", "a4", "a8"]
    assert few(["a1", "b1", "c1"], lambda x: x[0], 2) == ["a1", "b1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())), st.integers(1, 20))
def test_as_many_as_there_is_room_for_in_their_order(items, most):
    items = [(kind, number) for number, (kind, _) in enumerate(items)]
    chosen = few(items, lambda item: item[0], most)
    assert len(chosen) == min(most, len(items))
    assert chosen == sorted(chosen, key=items.index)
    if most >= 3:
        assert {kind for kind, _ in chosen} == {kind for kind, _ in items}


def test_what_is_left_out_is_said():
    assert left_out(3, 3, "runs") == ""
    assert left_out(3, 4000, "runs are shown").startswith("3 of 4,000 runs are shown: of each kind, evenly spaced")

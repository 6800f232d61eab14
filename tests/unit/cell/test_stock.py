"""What a pool makes, gives out and throws away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cell.lease import (
    STALE_SHARE,
    fresh_for_s,
    is_worth_replacing,
    oldest_fresh,
)


def test_a_cell_is_stale_after_a_twentieth_of_its_lifetime() -> None:
    """Counted from its making, as the lifetime is."""
    assert fresh_for_s(made_s=10, now_s=10, lifetime_s=100) == pytest.approx(5)
    assert fresh_for_s(made_s=10, now_s=15.1, lifetime_s=100) < 0


@given(st.lists(st.floats(-100, 100)))
def test_what_is_given_out_is_fresh_and_the_oldest(left_s: list[float]) -> None:
    """Never a stale one; of the others the one that would be stale first; nothing if there is
    none."""
    index = oldest_fresh(left_s)
    fresh = [left for left in left_s if left > 0]
    assert (None if index is None else left_s[index]) == min(fresh, default=None)


def test_short_lives_are_not_replaced_for_nobody() -> None:
    """Of a policy whose cells live for a minute, one would be thrown away every three seconds."""
    assert is_worth_replacing(3600)
    assert not is_worth_replacing(60)


def test_a_stale_cell_leaves_most_of_a_lifetime() -> None:
    """What a sample can lose by taking a cell that waited."""
    assert 0 < STALE_SHARE <= 0.05

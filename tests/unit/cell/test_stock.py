"""What a pool makes, gives out and throws away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cell.lease import (
    STALE_SHARE,
    fresh_for_s,
    is_worth_replacing,
    may_claim,
    oldest_fresh,
    should_make,
)


@pytest.mark.parametrize(
    ("ready", "claimed", "ended", "made"),
    [
        (0, 0, False, True),
        (1, 0, False, True),
        (2, 0, False, False),
        (2, 1, False, True),
        (0, 1, True, False),
    ],
)
def test_the_shelf_is_filled_and_no_more(ready: int, claimed: int, ended: bool, made: bool) -> None:
    """Two stand ready at most; who waits gets one besides; an ended pool makes nothing."""
    assert should_make(size=2, ready=ready, claimed=claimed, ended=ended) is made


def test_only_one_waits_for_the_cell_in_the_making() -> None:
    """A second taker is quicker with a cell of his own; without one in the making there is nothing
    to wait for."""
    assert may_claim(making=True, claimed=0)
    assert not may_claim(making=True, claimed=1)
    assert not may_claim(making=False, claimed=0)


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

"""What a pool makes, gives out and throws away."""

from __future__ import annotations

import pytest

from belljar.cell.pool import (
    fresh_for_s,
    is_worth_replacing,
)


def test_a_cell_is_stale_after_a_twentieth_of_its_lifetime() -> None:
    """Counted from its making, as the lifetime is."""
    assert fresh_for_s(made_s=10, now_s=10, lifetime_s=100) == pytest.approx(5)
    assert fresh_for_s(made_s=10, now_s=15.1, lifetime_s=100) < 0


def test_short_lives_are_not_replaced_for_nobody() -> None:
    """Of a policy whose cells live for a minute, one would be thrown away every three seconds."""
    assert is_worth_replacing(3600)
    assert not is_worth_replacing(60)

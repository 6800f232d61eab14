"""What a pool makes, gives out and throws away: its decisions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STALE_SHARE: Final = 0.05
"""Of a cell's lifetime, which counts from its making: one that has waited longer would be missed by
the sample that takes it.
"""
_MIN_USEFUL_S: Final = 10.0
DEFAULT_SIZE: Final = 1
MAX_SIZE: Final = 16


def should_make(*, size: int, ready: int, claimed: int, ended: bool) -> bool:
    """Whether one more cell is to be made: the pool isn't full, or somebody waits for the one in
    the making.
    """
    return not ended and (ready < size or claimed > 0)


def may_claim(*, making: bool, claimed: int) -> bool:
    """Whether to wait for the cell in the making is quicker than to make one: only while nobody
    else waits for it.
    """
    return making and not claimed


def fresh_for_s(*, made_s: float, now_s: float, lifetime_s: float) -> float:
    """How much longer a cell may be given out; 0 or less: it is stale."""
    return made_s + STALE_SHARE * lifetime_s - now_s


def is_worth_replacing(lifetime_s: float) -> bool:
    """Whether a cell that became stale is replaced before anyone asks: not when one would be made
    and thrown away every few seconds.
    """
    return STALE_SHARE * lifetime_s >= _MIN_USEFUL_S


def oldest_fresh(left_s: Sequence[float]) -> int | None:
    """Which of the cells to give out, by how long each stays fresh: the one that would be wasted
    first. None when all are stale.
    """
    fresh = [(left, index) for index, left in enumerate(left_s) if left > 0]
    return min(fresh)[1] if fresh else None

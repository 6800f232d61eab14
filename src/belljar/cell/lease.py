"""A cell between its pool and its taker: request, lease, discard reason."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import anyio

from belljar.cell.loop_thread import LoopThread, result_of
from belljar.cell.range import Range
from belljar.errors import BelljarError


class Discard(StrEnum):
    """Why a cell made ahead is destroyed untaken, as it is recorded."""

    STALE = "it was made ahead and waited too long"
    UNUSED = "it was made ahead and nobody took it"
    DEAD = "it was made ahead and died before anyone took it"
    VOID = "it was made ahead and its warm-up was void"
    BREACHED = "it was made ahead and its warm-up found a way out"


class CellRequest(Future["Lease | None"]):
    """A taker's request. Its result is a lease, or None: no cell is there."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s = time.monotonic()

    def answer(self, lease: Lease | None) -> None:
        """Answer once, unless the taker is gone."""
        if not self.done() and self.set_running_or_notify_cancel():
            self.set_result(lease)


@dataclass(slots=True, kw_only=True, eq=False)
class PooledCell:
    """One cell of a pool. Belongs to the pool's thread, but for `ended`."""

    made_s: float = field(default_factory=time.monotonic)
    range: Range | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)
    called: anyio.Event = field(default_factory=anyio.Event)
    returned: anyio.Event = field(default_factory=anyio.Event)
    ended: Future[None] = field(default_factory=Future)
    reason: Discard | None = None
    request: CellRequest | None = None
    warmed: bool = False
    leased: bool = False

    def left_s(self) -> float:
        """How long it may still be given out; ≤ 0: stale."""
        lifetime_s = 0.0 if self.range is None else self.range.cell.plan.limits.lifetime_s
        return fresh_for_s(made_s=self.made_s, now_s=time.monotonic(), lifetime_s=lifetime_s)

    def call(self, *, reason: Discard | None = None, request: CellRequest | None = None) -> None:
        """Tell the task that holds it: discard it, or give it out."""
        self.reason, self.request = reason, request
        self.called.set()


class Lease:
    """A cell in use. Belongs to the taker's event loop."""

    def __init__(self, opened: Range, pooled: PooledCell, thread: LoopThread) -> None:
        self.range = opened
        self._pooled = pooled
        self._thread = thread

    async def give_back(self) -> None:
        """Destroy the cell here, where its other waiters are, and release its task. Shielded.

        Raises what leaving `open_cell` raises: `ContainmentBreach`, `HostError`.
        """
        with anyio.CancelScope(shield=True):
            try:
                await self.range.cell.destroy()
            finally:
                self._thread.post(self._pooled.returned.set)
                await result_of(self._pooled.ended)


async def undo(request: CellRequest) -> None:
    """The taker is gone: withdraw the request, or give the cell back."""
    if request.cancel():
        return
    with anyio.CancelScope(shield=True):
        try:
            lease = await result_of(request)
        except BelljarError:  # it was the answer, and is on its way
            return
        if lease is not None:
            await lease.give_back()


STALE_SHARE: Final = 0.05
"""Of a cell's lifetime, which counts from its making: one that has waited longer would be missed by
the sample that takes it.
"""
_MIN_USEFUL_S: Final = 10.0
DEFAULT_SIZE: Final = 1
MAX_SIZE: Final = 16


def fresh_for_s(*, made_s: float, now_s: float, lifetime_s: float) -> float:
    """How long a cell may still be given out; ≤ 0: stale."""
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

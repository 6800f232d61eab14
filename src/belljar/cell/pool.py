"""A pool of cells made and probed ahead of use: taking one costs milliseconds.

A pooled cell is like any other in journal, ledger and proof. It serves one taker, once. A task in
the pool's thread (`loop_thread`) holds it from `open_range`'s entry to its exit. Its taker works in
it from another event loop, ends it there, and gives it back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import anyio

from belljar.cell.cell import Cell
from belljar.cell.lease import (
    DEFAULT_SIZE,
    MAX_SIZE,
    CellRequest,
    Discard,
    Lease,
    PooledCell,
    is_worth_replacing,
    oldest_fresh,
    undo,
)
from belljar.cell.loop_thread import LoopThread, async_loop_thread, result_of
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range
from belljar.cell.revert import revertible
from belljar.errors import CellError, ContainmentBreach
from belljar.events import Actor, Event, Kind, Recorder
from belljar.host.settings import PolicyLike, resolve_here
from belljar.isolation.hold import refuse_if_held, refuse_to_give
from belljar.ledger import RunDirectory
from belljar.probe.model import ProbeReport, Verdict
from belljar.probe.run import WARM_UP, breach_of, probe_cell
from belljar.store.home import belljar_home

HEAD_START_S: Final = 0.25
"""The next cell is made later, not to slow down the taker's first step."""
_CLAIM_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 2.0
_END_TIMEOUT_S: Final = 10.0


class OpenRange(Protocol):
    """How a pool opens a cell with its range: `open_range` of one policy."""

    def __call__(self, *, ahead: bool) -> AbstractAsyncContextManager[Range]:
        """A fresh one; leaving the block destroys it, with proof."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What one pool is to hold.

    Attributes:
        open: one cell of the pool's plan; in the pool's thread, or the taker's when none is idle.
        warm_up: the quick probes in it, recorded.
        recorder: of taken cells; used from two threads.
        size: of idle cells, at most.
        refuse: raises to the taker, before it takes a cell and before it gets it (the store is
            held, the run was killed).
        admit: whether one more is wanted and has room, given the idle ones. In the pool's thread.
        on_breach: called when a warm-up found a way out. In the pool's thread.
        taken: entered before the taker gets a cell, left after it. In the taker's loop.
    """

    open: OpenRange
    warm_up: Callable[[Range], Awaitable[ProbeReport]]
    recorder: Recorder
    size: int = DEFAULT_SIZE
    refuse: Callable[[], None] = lambda: None
    admit: Callable[[int], bool] = lambda _ready: True
    on_breach: Callable[[ContainmentBreach], object] = lambda _breach: None
    taken: Callable[[Cell], AbstractAsyncContextManager[object]] = nullcontext


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of a pool's cells."""

    made: int = 0
    taken: int = 0
    failed: int = 0
    void: int = 0
    dead: int = 0
    stale: int = 0
    unused: int = 0

    def thrown_away(self, reason: Discard) -> None:
        """A cell was destroyed untaken."""
        self.void += reason in {Discard.VOID, Discard.BREACHED}
        self.dead += reason is Discard.DEAD
        self.stale += reason is Discard.STALE
        self.unused += reason is Discard.UNUSED


class Pool:
    """Warmed cells of one plan, in a thread that several pools may share."""

    def __init__(self, supply: Supply, thread: LoopThread) -> None:
        self.counts = Counts()
        self.troubles: list[Exception] = []
        self.breach: ContainmentBreach | None = None
        self._supply = supply
        self._thread = thread
        self._ready: list[PooledCell] = []
        self._cells: list[PooledCell] = []
        self._requests: deque[CellRequest] = deque()
        self._listeners: deque[Future[int]] = deque()
        self._filling = False
        self._making = False
        thread.post(partial(thread.at_end, self._end))

    # ---- the taker's side, in any event loop

    @asynccontextmanager
    async def cell(self) -> AsyncIterator[Cell]:
        """A cell of its own, as `open_cell` gives one. Otherwise as `range`."""
        async with self.range() as opened:
            yield opened.cell

    def range(self) -> AbstractAsyncContextManager[Range]:
        """A cell with its range, as `open_range` gives one: idle, in the making, or else opened
        now. Another is made in its place.

        Raises as `open_range`; and `ContainmentBreach` when a warm-up of this pool found a way out.
        """
        return revertible(self._machine)

    @asynccontextmanager
    async def _machine(self) -> AsyncIterator[Range]:
        self._supply.refuse()
        lease = await self._take()
        if lease is None:
            async with self._supply.open(ahead=False) as opened:
                self.refill(after_s=HEAD_START_S)
                yield opened
            return
        try:
            self._supply.refuse()  # the hold may have come while a cell was waited for
            lease.range.change_loop()
            self.refill(after_s=HEAD_START_S)
            async with self._supply.taken(lease.range.cell):
                yield replace(lease.range, from_pool=True)
        finally:
            await lease.give_back()

    def refill(self, *, after_s: float = 0.0) -> None:
        """Have idle cells made, after a delay. From any thread; never waits."""
        self._thread.post(partial(self._fill, after_s))

    async def filled(self) -> int:
        """Wait until none is being made; the number of idle cells. In any event loop."""
        answer: Future[int] = Future()
        return await result_of(answer) if self._thread.post(partial(self._tell, answer)) else 0

    async def _take(self) -> Lease | None:
        request = CellRequest()
        if not self._thread.post(partial(self._serve, request)):
            return None
        try:
            with anyio.move_on_after(_CLAIM_TIMEOUT_S):
                return await result_of(request)
            return None if request.cancel() else await result_of(request)
        except BaseException:
            await undo(request)
            raise

    # ---- the pool's side, in its thread

    def _is_ended(self) -> bool:
        return self._thread.closing.is_set() or self.breach is not None

    def _serve(self, request: CellRequest) -> None:
        """Answer a request, or have its answer made."""
        if self.breach is not None:
            # An error of its own for each, since it comes to hold the taker's traceback
            if request.set_running_or_notify_cancel():
                request.set_exception(
                    ContainmentBreach(
                        self.breach.what, where=self.breach.where, hint=self.breach.hint
                    )
                )
            return
        index = (
            None if self._is_ended() else oldest_fresh([pooled.left_s() for pooled in self._ready])
        )
        if index is not None:
            self._ready.pop(index).call(request=request)
        elif self._making and not self._is_ended() and not self._waiting():
            # Quicker than making another
            self._requests.append(request)
        else:
            request.answer(None)

    def _waiting(self) -> int:
        """How many still wait for what is in the making."""
        self._requests = deque(request for request in self._requests if not request.cancelled())
        return len(self._requests)

    def _tell(self, answer: Future[int]) -> None:
        if self._filling:
            self._listeners.append(answer)
        else:
            answer.set_result(len(self._ready))

    def _fill(self, after_s: float = 0.0) -> None:
        if not self._filling and not self._is_ended():
            self._filling = True
            self._making = not after_s and not self._thread.making.locked()
            self._thread.spawn(partial(self._fill_up, after_s))

    async def _fill_up(self, after_s: float) -> None:
        """Make cells, one after another, until there are enough or one fails: the next
        request has it tried again.
        """
        try:
            with anyio.move_on_after(after_s):
                await self._thread.closing.wait()
            async with self._thread.making:
                self._making = True
                while self._wants_one():
                    pooled = PooledCell()
                    self._cells.append(pooled)
                    self._thread.spawn(partial(self._own, pooled))
                    await pooled.settled.wait()
                    if pooled.range is None or pooled.reason:
                        break
        except Exception as error:  # noqa: BLE001
            # Nothing that goes wrong here ends the cells that are out.
            self.troubles.append(error)
        finally:
            self._filling = self._making = False
            while self._requests:
                self._serve(self._requests.popleft())
            while self._listeners:
                self._tell(self._listeners.popleft())

    def _wants_one(self) -> bool:
        ready = len(self._ready)
        is_wanted = ready < self._supply.size or self._waiting() > 0
        return is_wanted and not self._is_ended() and self._supply.admit(ready)

    async def _own(self, pooled: PooledCell) -> None:
        """One cell's whole life, in one task."""
        error: Exception | None = None
        try:
            with pooled.scope:
                async with self._supply.open(ahead=True) as opened:
                    pooled.range = opened
                    self.counts.made += 1
                    await self._hold(pooled, opened)
        except Exception as failure:  # noqa: BLE001
            # `_close` reports it to the taker or the pool's owner; else it is only on record.
            error = failure
        finally:
            self._close(pooled, error)

    async def _hold(self, pooled: PooledCell, opened: Range) -> None:
        cell = opened.cell
        while pooled.reason is None:
            # The taker of an awaited cell probes it itself: warmed first, it would come later.
            if not pooled.warmed and not self._waiting():
                pooled.warmed = True
                pooled.reason = self._fault(await self._supply.warm_up(opened), cell)
                continue
            self._offer(pooled)
            # Until it is called for, or can't be given out any more
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._watch, pooled, cell)
                with anyio.move_on_after(max(0.0, pooled.left_s())):
                    await pooled.called.wait()
                self._withdraw(pooled, Discard.STALE)
                await pooled.called.wait()
                watching.cancel_scope.cancel()
            if pooled.reason is Discard.STALE and is_worth_replacing(cell.plan.limits.lifetime_s):
                self._fill()
            if pooled.request is None:
                continue
            if self._is_ended() or not await _answers(cell):
                pooled.reason = Discard.UNUSED if self._is_ended() else Discard.DEAD
                request, pooled.request = pooled.request, None  # `_close` answers it no more
                self._serve(request)
            elif self._hand_over(pooled, opened, pooled.request):
                # Until it is given back; when the pool ends before that, its operations are ended,
                # and soon the cell.
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(self._recall, opened, waiting.cancel_scope)
                    await pooled.returned.wait()
                    waiting.cancel_scope.cancel()
                return
        if pooled.reason is Discard.DEAD:
            await _answers(cell)  # that it does not, and why, is on record then
        await cell.destroy(reason=pooled.reason)

    def _fault(self, report: ProbeReport, cell: Cell) -> Discard | None:
        """Why a cell is not given out after its warm-up; None: it is."""
        if report.verdict is Verdict.CONTAINED:
            return None
        breach = breach_of(report, cell.id)
        if breach is None:
            return Discard.VOID
        self.breach = self.breach or breach
        self._supply.on_breach(breach)
        return Discard.BREACHED

    def _offer(self, pooled: PooledCell) -> None:
        """Give it to the next request, else keep it idle."""
        pooled.called, pooled.request = anyio.Event(), None
        if self._is_ended():
            pooled.call(reason=Discard.UNUSED)
        elif self._waiting():
            pooled.call(request=self._requests.popleft())
        else:
            self._ready.append(pooled)
        pooled.settled.set()

    async def _watch(self, pooled: PooledCell, cell: Cell) -> None:
        await cell.wait_dead()
        self._withdraw(pooled, Discard.DEAD)

    def _withdraw(self, pooled: PooledCell, reason: Discard) -> None:
        """Discard a cell that is still idle."""
        if pooled in self._ready:
            self._ready.remove(pooled)
            pooled.call(reason=reason)

    def _hand_over(self, pooled: PooledCell, opened: Range, request: CellRequest) -> bool:
        """Give it out, on record first. False when the taker is gone."""
        if not request.set_running_or_notify_cancel():
            return False
        now_s = time.monotonic()
        data = {"waited_ms": _ms(now_s - request.asked_s), "age_ms": _ms(now_s - pooled.made_s)}
        taken = Event(kind=Kind.CELL_TAKEN, cell_id=opened.cell.id, data=data)
        try:
            self._supply.recorder.record(taken)
        except BaseException as error:
            request.set_exception(error)
            raise
        self.counts.taken += 1
        pooled.leased = True
        request.set_result(Lease(opened, pooled, self._thread))
        return True

    async def _recall(self, opened: Range, waiting: anyio.CancelScope) -> None:
        await self._thread.closing.wait()
        opened.disconnect()
        await anyio.sleep(_END_TIMEOUT_S)
        waiting.cancel()

    def _close(self, pooled: PooledCell, error: Exception | None) -> None:
        """It is gone: tell its taker how that went, else its pool."""
        self._cells.remove(pooled)
        if pooled.request is not None:
            pooled.request.answer(None)
        if pooled.range is None:
            self.counts.failed += error is not None
        elif not pooled.leased:
            pooled.reason = pooled.reason or Discard.UNUSED
            self.counts.thrown_away(pooled.reason)
            self.troubles += [error] if error is not None else []
        pooled.settled.set()
        if error is None:
            pooled.ended.set_result(None)
        else:
            pooled.ended.set_exception(error)

    def _end(self) -> None:
        """Make and give out nothing more; discard idle cells."""
        while self._requests:
            self._requests.popleft().answer(None)
        for pooled in tuple(self._cells):
            if not pooled.settled.is_set():
                pooled.scope.cancel()
            self._withdraw(pooled, Discard.UNUSED)


@asynccontextmanager
async def open_pool(
    policy: PolicyLike = None,
    *,
    size: int = DEFAULT_SIZE,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AsyncIterator[Pool]:
    """A pool of warmed cells of one policy. Works under asyncio and trio.

    `pool.cell()` takes one, as `open_cell` opens one, only sooner. If none can be made ahead, which
    is recorded, it opens one. A cell that died, was not contained at its warm-up, or has waited for
    a twentieth of its lifetime is not given out.

    Leaving the block destroys unused cells, with proof; ten seconds later also those that were not
    given back.

    Args:
        policy, run, home, actor: as `open_cell`'s. All cells share the run directory.
        size: idle cells, 1 to 16. Each uses memory as a running cell does.

    Raises:
        ContainmentBreach, HostError: at the end: a warm-up found a way out, or the destruction of
            an unused cell left something or could not be proven.
    """
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"a pool of {size} cells; it must be 1 to {MAX_SIZE}")
    home = home or belljar_home()
    refuse_if_held(home)
    loaded = resolve_here(policy)
    if run is None:
        with start_run("pool", loaded.source, [], home=home) as own:
            async with open_pool(loaded, size=size, run=own, home=home, actor=actor) as pool:
                yield pool
        return
    recorder = run.recorder

    async def warm_up(opened: Range) -> ProbeReport:
        return await probe_cell(
            opened.cell,
            recorder=recorder,
            router=opened.routers.get(opened.cell.id),
            phase=WARM_UP,
            actor=Actor.BELLJAR,
        )

    supply = Supply(
        open=partial(open_range, loaded, run=run, home=home, actor=actor),
        warm_up=warm_up,
        recorder=recorder,
        size=size,
        refuse=partial(refuse_to_give, home, run.run_id),
    )
    if loaded.policy.decoys:
        from belljar.cell.decoys import decoys_in

        supply = replace(supply, taken=partial(decoys_in, loaded=loaded, run=run))
    async with async_loop_thread() as thread:
        pool = Pool(supply, thread)
        pool.refill()
        yield pool
    for trouble in (pool.breach, *pool.troubles):
        if trouble is not None:
            raise trouble


async def _answers(cell: Cell) -> bool:
    try:
        await cell.ping(timeout_s=_ANSWER_TIMEOUT_S)
    except CellError:
        return False
    return True


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

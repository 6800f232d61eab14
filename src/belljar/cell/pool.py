"""A pool of cells made and probed ahead of use: taking one costs milliseconds.

It lives in the event loop of its takers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from belljar.cell.base import spawn_task
from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range, revertible
from belljar.errors import CellError, ContainmentBreach, first_of
from belljar.events import Actor, Kind
from belljar.host.settings import PolicyLike, resolve_here
from belljar.isolation.hold import check_may_start
from belljar.ledger.rundir import RunDirectory
from belljar.probe.model import ProbeReport, Verdict
from belljar.probe.run import WARM_UP, breach_of, probe_cell
from belljar.store.home import belljar_home

# Each idle cell holds memory as a running one does.
MAX_SIZE: Final = 16
# Of a cell's lifetime, which counts from its making: one that has waited longer would be missed
# by the sample that takes it.
STALE_SHARE: Final = 0.05
# A cell that was just made answers in milliseconds; one that needs longer is as good as dead.
_ANSWER_TIMEOUT_S: Final = 2.0
# For takers to give their cells back by themselves when the pool ends.
_END_TIMEOUT_S: Final = 10.0
UNUSED: Final = "it was made ahead and nobody took it"


@dataclass(slots=True, eq=False)
class _Idle:
    """A cell that nobody has taken; closing `owner` destroys it."""

    opened: Range
    owner: AsyncExitStack
    made_s: float
    watching: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Pool:
    """Warmed cells of one plan, in one event loop. `open_pool` makes it.

    `refuse` raises to the taker, before it takes a cell and before it gets it. `taken` is
    entered before the taker gets a cell. `error` is the first that nobody waits for; a
    breach ends the pool.
    """

    def __init__(
        self,
        *,
        open_one: Callable[..., AbstractAsyncContextManager[Range]],
        warm_up: Callable[[Range], Awaitable[ProbeReport]],
        size: int,
        refuse: Callable[[], None],
        taken: Callable[[Cell], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self.error: Exception | None = None
        self._open_one, self._warm_up = open_one, warm_up
        self._size, self._refuse, self._taken = size, refuse, taken
        self._idle: list[_Idle] = []
        self._out: list[_Idle] = []
        self._working_on = 0  # cells that are looked at or destroyed: `aclose` awaits them
        self._filling: anyio.CancelScope | None = None
        self._is_closed = False
        self._changed = anyio.Event()

    @asynccontextmanager
    async def cell(self) -> AsyncIterator[Cell]:
        """Give a cell as `open_cell` does. Raise as `range`."""
        async with self.range() as opened:
            yield opened.cell

    def range(self) -> AbstractAsyncContextManager[Range]:
        """Give a cell with its range. Raise as `open_range`."""
        return revertible(self._machine)

    @asynccontextmanager
    async def _machine(self) -> AsyncIterator[Range]:
        self._refuse()
        idle = await self._take()
        async with AsyncExitStack() as stack:
            if idle is not None:
                stack.push_async_exit(partial(self._give_back, idle))
                opened = replace(idle.opened, from_pool=True)
            else:
                opened = await stack.enter_async_context(self._open_one(ahead=False))
                self._stop_if_breached()  # a warm-up may have found a way out meanwhile
            self._refuse()  # the hold may have come while the cell was asked whether it answers
            self.refill()
            if idle is not None:
                await stack.enter_async_context(self._taken(opened.cell))
            yield opened

    async def _give_back(self, idle: _Idle, *error: Any) -> None:  # noqa: ANN401 - as `__aexit__`
        """Destroy it. Raise what leaving `open_cell` raises."""
        with anyio.CancelScope(shield=True), self._working():
            try:
                await idle.owner.__aexit__(*error)
            finally:
                self._out.remove(idle)

    def refill(self) -> None:
        """Have idle cells made, without waiting."""
        if self._filling is None and not self._is_ended():
            self._filling = anyio.CancelScope()
            spawn_task(partial(self._fill, self._filling))

    async def filled(self) -> int:
        """Wait until none is being made; count the idle cells."""
        while self._filling is not None:
            await self._changed.wait()
        return len(self._idle)

    async def _take(self) -> _Idle | None:
        """Return a cell that answers, recorded as taken."""
        while self._idle and not self._is_ended():
            idle = self._idle.pop(0)
            idle.watching.cancel()
            with self._working():
                try:
                    cell = idle.opened.cell
                    useful_s = STALE_SHARE * cell.plan.limits.lifetime_s
                    is_fresh = time.monotonic() <= idle.made_s + useful_s
                    is_good = is_fresh and await _answers(cell)
                    if is_good and idle.opened.killed() is None and not self._is_ended():
                        cell.note(Kind.CELL_TAKEN, {})
                        self._out.append(idle)
                        return idle
                finally:
                    if idle not in self._out:
                        await self._destroy(idle)
        self._stop_if_breached()
        return None

    def _stop_if_breached(self) -> None:
        if isinstance(found := self.error, ContainmentBreach):
            # An error of its own for each, since it comes to hold the taker's traceback
            raise ContainmentBreach(found.what, where=found.where, hint=found.hint)

    def _is_ended(self) -> bool:
        return self._is_closed or isinstance(self.error, ContainmentBreach)

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._working_on += 1
        try:
            yield
        finally:  # whatever interrupts it: `aclose` waits for this
            self._working_on -= 1
            self._change()

    def _change(self) -> None:
        # An anyio event can't be cleared: each change has its own.
        self._changed.set()
        self._changed = anyio.Event()

    async def _fill(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while len(self._idle) < self._size and not self._is_ended():
                    if not await self._make_one():
                        break
        except Exception as error:  # noqa: BLE001
            # Nothing that goes wrong here ends the cells that are out.
            self._note(error)
        finally:
            self._filling = None
            self._change()

    async def _make_one(self) -> bool:
        made_s, owner = time.monotonic(), AsyncExitStack()
        try:
            opened = await owner.enter_async_context(self._open_one(ahead=True))
        except Exception as error:  # noqa: BLE001 - on record; a taker meets it in its own
            if (breach := first_of(error, ContainmentBreach)) is not None:
                self._note(breach)
            return False
        idle = _Idle(opened, owner, made_s)
        try:
            report = await self._warm_up(opened)
            if (breach := breach_of(report, opened.cell.id)) is not None:
                self._note(breach)
            # A killed one may still run: its processes take a moment to end
            is_good = report.verdict is Verdict.CONTAINED and opened.killed() is None
            if is_good and not self._is_ended():
                self._idle.append(idle)
                spawn_task(partial(self._watch, idle))
        finally:
            if idle not in self._idle:
                await self._destroy(idle)
        return idle in self._idle

    async def _watch(self, idle: _Idle) -> None:
        """Destroy it if it dies untaken."""
        # A host out of descriptors can't watch it; whether it lives is asked when it is taken
        with idle.watching, suppress(OSError):
            await idle.opened.cell.wait_dead()
            if idle in self._idle:  # else it was taken at this moment
                self._idle.remove(idle)
                with self._working():
                    await _answers(idle.opened.cell)  # that it does not, and why, is on record
                    await self._destroy(idle)

    async def _destroy(self, idle: _Idle) -> None:
        """Destroy it untaken; note what that found."""
        idle.watching.cancel()
        with anyio.CancelScope(shield=True), self._working():
            try:
                async with idle.owner:
                    await idle.opened.cell.destroy(reason=UNUSED)
            except Exception as error:  # noqa: BLE001
                self._note(error)

    def _note(self, error: Exception) -> None:
        breach = first_of(error, ContainmentBreach)
        if self.error is None or (breach and not isinstance(self.error, ContainmentBreach)):
            self.error = breach or error

    async def aclose(self) -> None:
        """Destroy idle cells, and late ones after 10 s."""
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            if self._filling is not None:
                self._filling.cancel()
            for cell in [cell for idle in self._out for cell in idle.opened.cells.values()]:
                cell.disconnect()
            while self._idle:
                await self._destroy(self._idle.pop())
            with anyio.move_on_after(_END_TIMEOUT_S):
                while self._out:
                    await self._changed.wait()
            # A copy: a taker may give its cell back meanwhile.
            for idle in tuple(self._out):
                try:
                    await idle.owner.aclose()
                except Exception as error:  # noqa: BLE001
                    self._note(error)
            while self._filling is not None or self._working_on:  # else their ends had no proof
                await self._changed.wait()


@asynccontextmanager
async def open_pool(
    policy: PolicyLike = None,
    *,
    size: int = 1,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AsyncIterator[Pool]:
    """Open a pool of `size` (1 to 16) idle, warmed cells of one policy; else as `open_cell`.

    Leaving the block destroys unused cells, with proof, and after 10 s those not given back.
    It raises `ContainmentBreach` and `HostError`, too, for a way out that a warm-up found,
    and for an unused cell that left something or could not be proven gone.
    """
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"a pool of {size} cells; it must be 1 to {MAX_SIZE}")
    home = home or belljar_home()
    check_may_start(home)
    loaded = resolve_here(policy)
    taken: Callable[[Cell], AbstractAsyncContextManager[object]] = nullcontext
    with nullcontext(run) if run else start_run("pool", loaded.source, [], home=home) as run:
        if loaded.policy.decoys:
            from belljar.cell.decoys import decoys_in  # late: most policies have none

            taken = partial(decoys_in, loaded=loaded, run=run)

        async def warm_up(opened: Range) -> ProbeReport:
            cell, router = opened.cell, opened.routers.get(opened.cell.id)
            more: dict[str, Any] = {"phase": WARM_UP, "actor": Actor.BELLJAR}
            return await probe_cell(cell, recorder=run.recorder, router=router, **more)

        pool = Pool(
            open_one=partial(open_range, loaded, run=run, home=home, actor=actor),
            warm_up=warm_up,
            size=size,
            refuse=partial(check_may_start, home, run=run.run_id),
            taken=taken,
        )
        pool.refill()
        try:
            yield pool
        finally:
            await pool.aclose()
            if isinstance(pool.error, ContainmentBreach):  # whatever else was raised
                raise pool.error
        if pool.error is not None:
            raise pool.error


async def _answers(cell: Cell) -> bool:
    try:
        await cell.ping(timeout_s=_ANSWER_TIMEOUT_S)
    except CellError:
        return False
    return True

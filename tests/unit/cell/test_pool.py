"""The pool over fake cells: who gets which cell, and what becomes of those that nobody has."""

# ruff: noqa: ANN401 - fakes stand for cells

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.fakes.cell import FakeCell, FakeCells, FakeRun

from belljar.cell import pool as pools
from belljar.cell.pool import Pool
from belljar.errors import ContainmentBreach, HostError
from belljar.events import Kind
from belljar.isolation.hold import KilledError, new_order
from belljar.policy.load import resolve_policy
from belljar.probe.model import AttemptOutcome

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


class Stand:
    """A pool of fake cells and what it was made of. A test may replace `open` and `refuse`."""

    def __init__(self, cells: FakeCells, *, size: int) -> None:
        self.cells, self.run = cells, FakeRun("pool")
        self.ahead: list[FakeCell] = []
        self.pool = Pool(
            open_one=lambda *, ahead: self.open(ahead=ahead),
            warm_up=lambda opened: cells.probe(opened.cell, run=self.run, phase="warm-up"),
            size=size,
            refuse=lambda: self.refuse(),
        )
        self.open: Callable[..., AbstractAsyncContextManager[Any]] = self.open_fake
        self.refuse: Callable[[], None] = lambda: None
        self.cell = self.pool.cell

    def is_ahead(self, cell: Any) -> bool:
        return any(cell.id == one.id for one in self.ahead)

    @asynccontextmanager
    async def open_fake(self, *, ahead: bool) -> AsyncIterator[Any]:
        policy = resolve_policy("high")
        async with self.cells.open_range(policy, self.run, ahead=ahead) as opened:
            if ahead:
                self.ahead.append(opened.cell)
            yield opened

    def on_open(self, act: Callable[[Any, bool], None]) -> None:
        """Do this with each range, and whether it is made ahead, once its cell is there."""

        @asynccontextmanager
        async def open_(*, ahead: bool) -> AsyncIterator[Any]:
            async with self.open_fake(ahead=ahead) as opened:
                act(opened, ahead)
                yield opened

        self.open = open_

    async def filled(self) -> None:
        self.pool.refill()
        await self.pool.filled()

    def taken(self) -> list[str | None]:
        events = self.run.recorder.events
        return [event.cell_id for event in events if event.kind is Kind.CELL_TAKEN]

    async def nobody_gets(self, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            async with self.cell():
                pytest.fail("a cell was given out")


@asynccontextmanager
async def stand(size: int = 1, *, cells: FakeCells | None = None) -> AsyncIterator[Stand]:
    """A pool, ended with the block; then no cell is left."""
    it = Stand(cells or FakeCells(), size=size)
    try:
        yield it
    finally:
        await it.pool.aclose()


def all_gone(it: Stand) -> bool:
    return all(cell.destroyed for cell in it.cells.opened)


@pytest.mark.promise("6.4")
async def test_a_hold_that_comes_while_a_cell_is_waited_for_counts() -> None:
    """The taker gets the refusal, not the cell; the cell is destroyed."""
    refusals = iter([None, HostError("held")])

    def refuse() -> None:
        if (error := next(refusals)) is not None:
            raise error

    async with stand() as it:
        it.refuse = refuse
        await it.filled()
        await it.nobody_gets(HostError, "held")
        assert it.ahead[0].destroyed


@pytest.mark.promise("3.4")
async def test_many_takers_never_share_a_cell() -> None:
    """Ten at once, from a pool of two: ten cells."""
    had: list[str] = []

    async def take() -> None:
        async with it.cell() as cell:
            had.append(cell.id)
            await anyio.sleep(0.001)

    async with stand(2) as it:
        await it.filled()
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(take)
    assert len(had) == len(set(had)) == 10
    assert len(it.taken()) >= 2
    assert set(it.taken()) <= set(had)
    assert all_gone(it)


NOT_GIVEN = (
    "void",
    "stale",
    "dead",
    "seen to die",
    "killed",
    "killed in its warm-up",
    "killed in the making",
)


@pytest.mark.promise("3.4")
@pytest.mark.parametrize("why", NOT_GIVEN)
async def test_what_is_given_to_nobody(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is destroyed; the taker opens his own, and the pool goes on."""
    order, cells = new_order("cells", "enough"), FakeCells()

    def on_probe(cell: Any, _phase: str) -> None:
        cell.run_probe_program.timed_out = why == "void"
        if why == "killed in its warm-up":
            cell._live.killed = lambda: order

    def kill(_opened: Any, ahead: bool) -> None:
        if ahead and why == "killed in the making":
            raise KilledError(order, where="cell c-1")

    cells.on_probe = on_probe
    async with stand(cells=cells) as it:
        it.on_open(kill)
        await it.filled()
        if why == "stale":
            monkeypatch.setattr(pools, "STALE_SHARE", 0.0)
        elif why == "dead":
            it.ahead[0].dead = True
        elif why == "seen to die":
            it.ahead[0].die()
            while not it.ahead[0].destroyed:
                await anyio.wait_all_tasks_blocked()
        elif why == "killed":
            monkeypatch.setattr(it.ahead[0]._live, "killed", lambda: order)
        async with it.cell() as cell:
            assert not it.is_ahead(cell)
        assert (it.taken(), it.pool.error) == ([], None)
    assert it.ahead[0].destroyed
    assert it.ahead[0].reason == ("" if why == "killed in the making" else pools.UNUSED)


@pytest.mark.parametrize("when", ["made", "warmed", "found", "destroyed", "taken"])
async def test_a_way_out_of_a_cell_made_ahead_ends_the_pool(when: str) -> None:
    """Whoever wants a cell gets the breach instead, wherever it was found."""
    cells, breach = FakeCells(), ContainmentBreach("calls.mount")

    def on_probe(cell: Any, _phase: str) -> None:
        if when == "found":
            cell.run_probe_program.outcomes["calls.mount"] = (AttemptOutcome.REACHED, "it")
        elif when == "warmed":  # as a group, which a task group makes of it
            raise ExceptionGroup("tasks", [ValueError(), breach])
        else:
            cell.run_probe_program.timed_out = True  # void: it is destroyed

    def refuse(*, ahead: bool) -> Any:
        raise breach

    cells.on_probe = on_probe
    cells.destroy_error = breach if when == "destroyed" else None
    async with stand(cells=cells) as it:
        if when == "taken":
            it.on_open(lambda *_: setattr(it.pool, "error", breach))
        else:
            it.open = refuse if when == "made" else it.open
            await it.filled()
        await it.nobody_gets(ContainmentBreach, r"calls\.mount")
        await it.filled()
        assert len(it.cells.opened) == (when != "made")
        assert all_gone(it)


@pytest.mark.promise("3.4")
async def test_a_cell_that_can_not_be_made_ahead_fails_nothing() -> None:
    """The taker opens his own and gets the real error if there is one."""

    def refuse(*, ahead: bool) -> Any:
        raise HostError("no room")

    async with stand() as it:
        it.open = refuse
        await it.filled()
        await it.nobody_gets(HostError, "no room")
        it.open = it.open_fake
        async with it.cell() as cell:
            assert not it.is_ahead(cell)
        await it.filled()
        async with it.cell() as cell:
            assert it.is_ahead(cell)
    assert it.pool.error is None


async def test_an_end_that_was_not_clean_is_told() -> None:
    """To the taker when the cell was his, to the pool's owner when nobody had it."""
    cells = FakeCells()
    cells.destroy_error = ContainmentBreach("destruction left: a process")
    async with stand(cells=cells) as it:
        await it.filled()
        with pytest.raises(ContainmentBreach, match="left"):
            async with it.cell():
                await it.filled()
    assert str(it.pool.error) == "destruction left: a process"


async def test_nobody_is_left_waiting_when_the_pool_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands is destroyed, and a cell that is still out is recalled."""
    monkeypatch.setattr(pools, "_END_TIMEOUT_S", 0.05)
    async with stand(2) as it:
        await it.filled()
        taking = it.cell()
        cell = await taking.__aenter__()
    assert isinstance(cell, FakeCell)
    assert cell.dead
    assert all_gone(it)
    await taking.__aexit__(None, None, None)
    async with it.cell() as late:
        assert not it.is_ahead(late)


@pytest.mark.promise("3.4")
@pytest.mark.parametrize("is_out", [False, True])
async def test_a_pool_ends_after_the_last_of_its_cells(
    monkeypatch: pytest.MonkeyPatch, is_out: bool
) -> None:
    """Also one that was just looked at for a taker, or is being given back."""
    monkeypatch.setattr(pools, "_END_TIMEOUT_S", 0.01)
    begun, go_on = anyio.Event(), anyio.Event()

    async def wait(**_: Any) -> float:
        begun.set()
        await go_on.wait()
        return 0.0

    async def take() -> None:
        async with it.cell():
            pass

    async def end() -> None:
        await it.pool.aclose()
        assert it.ahead[0].destroyed

    @asynccontextmanager
    async def open_(*, ahead: bool) -> AsyncIterator[Any]:
        async with it.open_fake(ahead=ahead) as opened:
            yield opened
            if is_out and opened.cell is it.ahead[0]:  # not the next, which is destroyed too
                await wait()

    async with stand() as it:
        it.open = open_
        await it.filled()
        if not is_out:
            monkeypatch.setattr(it.ahead[0], "ping", wait)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await begun.wait()
            tasks.start_soon(end)
            await anyio.sleep(0.05)
            go_on.set()

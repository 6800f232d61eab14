"""The pool over fake cells: who gets which cell, and what becomes of those that nobody has. Real
cells: `tests/integration/test_pool.py`."""

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
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.model import AttemptOutcome

pytestmark = pytest.mark.anyio


class Stand:
    """A pool of fake cells and what it was made of."""

    def __init__(self, cells: FakeCells, *, size: int) -> None:
        self.cells, self.run = cells, FakeRun("pool")
        self.policy: LoadedPolicy = resolve_policy("high")
        self.ahead: list[FakeCell] = []
        self.pool = Pool(
            self.run.recorder,
            open_one=lambda *, ahead: self.open(ahead=ahead),
            warm_up=lambda opened: cells.probe(opened.cell, run=self.run, phase="warm-up"),
            size=size,
            refuse=lambda: self.refuse(),
        )
        # As `open_range`, and the owner's refusal; a test may replace them
        self.open: Callable[..., AbstractAsyncContextManager[Any]] = self.open_fake
        self.refuse: Callable[[], None] = lambda: None

    @property
    def ids(self) -> list[str]:
        """Of the cells that were made ahead."""
        return [cell.id for cell in self.ahead]

    @asynccontextmanager
    async def open_fake(self, *, ahead: bool) -> AsyncIterator[Any]:
        """A fake cell's range."""
        async with self.cells.open_range(
            self.policy, run=self.run, home=None, ahead=ahead
        ) as opened:
            if ahead:
                self.ahead.append(opened.cell)
            yield opened

    def cell(self) -> AbstractAsyncContextManager[Any]:
        """What a taker gets."""
        return self.pool.cell()

    async def filled(self) -> None:
        """Until the shelf is full, or can't be filled."""
        self.pool.refill()
        await self.pool.filled()

    def taken(self) -> list[str | None]:
        """The cells that were given out, by the record."""
        return [
            event.cell_id for event in self.run.recorder.events if event.kind is Kind.CELL_TAKEN
        ]


@asynccontextmanager
async def stand(size: int = 1, *, cells: FakeCells | None = None) -> AsyncIterator[Stand]:
    """A pool, ended with the block."""
    it = Stand(cells or FakeCells(), size=size)
    try:
        yield it
    finally:
        await it.pool.aclose()


async def test_a_cell_that_was_made_ahead_is_given_out_once() -> None:
    """Warmed, taken, on record, destroyed when it is given back,
    and another stands in its place."""
    async with stand() as it:
        await it.filled()
        async with it.cell() as first:
            assert first.id == it.ahead[0].id
            assert (await first.exec(["echo", "hi"])).stdout == b"hi\n"
            await it.filled()
            async with it.cell() as second:
                assert second.id == it.ahead[1].id
                assert second is not first
        assert first.destroyed
        assert second.destroyed
        assert it.taken() == [first.id, second.id]
    assert all(cell.destroyed for cell in it.cells.opened)
    assert len({cell.id for cell in it.ahead}) == len(it.ahead)


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
        with pytest.raises(HostError, match="held"):
            async with it.cell():
                raise AssertionError("it was given out")
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
    assert set(it.taken()) <= set(had)
    assert all(cell.destroyed for cell in it.cells.opened)


NOT_GIVEN = {
    "void": pools.Discard.VOID,
    "stale": pools.Discard.STALE,
    "dead": pools.Discard.DEAD,
    "seen to die": pools.Discard.DEAD,
    "killed": pools.Discard.KILLED,
    "killed in its warm-up": pools.Discard.KILLED,
    "killed in the making": "",
}


@pytest.mark.promise("3.4")
@pytest.mark.parametrize("why", NOT_GIVEN)
async def test_what_is_given_to_nobody(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is destroyed, with its reason; the taker opens his own, and the pool goes on."""
    order, cells = new_order("cells", "enough"), FakeCells()

    def on_probe(cell: Any, _phase: str) -> None:
        cell.run_probe_program.timed_out = why == "void"
        if why == "killed in its warm-up":
            cell._live.killed = lambda: order

    cells.on_probe = on_probe
    async with stand(cells=cells) as it:
        real = it.open

        @asynccontextmanager
        async def open_(*, ahead: bool) -> AsyncIterator[Any]:
            async with real(ahead=ahead) as opened:
                if ahead and why == "killed in the making":
                    raise KilledError(order, where="cell c-1")
                yield opened

        it.open = open_
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
            assert cell.id not in it.ids
        assert (it.taken(), it.pool.troubles) == ([], [])
    assert it.ahead[0].destroyed
    assert it.ahead[0].reason == NOT_GIVEN[why]


@pytest.mark.parametrize("when", ["made", "warmed", "found", "destroyed"])
async def test_a_way_out_of_a_cell_made_ahead_ends_the_pool(when: str) -> None:
    """Whoever wants a cell gets the breach instead, whether a probe found it, or making, probing or
    destroying the cell raised it."""
    cells, breach = FakeCells(), ContainmentBreach("calls.mount")

    def on_probe(cell: Any, _phase: str) -> None:
        if when == "found":
            cell.run_probe_program.outcomes["calls.mount"] = (AttemptOutcome.REACHED, "it")
        elif when == "warmed":  # as a group, which a task group makes of it
            raise ExceptionGroup("tasks", [ValueError(), breach])
        else:
            cell.run_probe_program.timed_out = True  # void: it is destroyed

    cells.on_probe = on_probe
    cells.destroy_error = breach if when == "destroyed" else None
    async with stand(cells=cells) as it:
        if when == "made":

            def refuse(*, ahead: bool) -> Any:
                raise breach

            it.open = refuse
        await it.filled()
        with pytest.raises(ContainmentBreach, match=r"calls\.mount"):
            async with it.cell():
                pytest.fail("a cell was given out")
        await it.filled()
        assert len(it.cells.opened) == (when != "made")
        assert all(each.destroyed for each in it.cells.opened)


async def test_a_taker_whose_cell_opens_meanwhile_gets_the_breach_too() -> None:
    """It came while the warm-up ran, and opened a cell of its own: that one is not given out."""
    async with stand() as it:

        @asynccontextmanager
        async def open_meanwhile(*, ahead: bool) -> AsyncIterator[Any]:
            async with it.open_fake(ahead=ahead) as opened:
                it.pool.breach = ContainmentBreach("a way out", where="a cell", hint="")
                yield opened

        it.open = open_meanwhile
        with pytest.raises(ContainmentBreach, match="a way out"):
            async with it.cell():
                pytest.fail("a cell was given out")
        assert it.cells.opened[0].destroyed


@pytest.mark.promise("3.4")
async def test_a_cell_that_can_not_be_made_ahead_fails_nothing() -> None:
    """The taker opens his own and gets the real error if there is one."""
    async with stand() as it:
        real, broken = it.open, True

        def open_(*, ahead: bool) -> AbstractAsyncContextManager[Any]:
            if broken:
                raise HostError("no room")
            return real(ahead=ahead)

        it.open = open_
        await it.filled()
        with pytest.raises(HostError, match="no room"):
            async with it.cell():
                pytest.fail("a cell was given out")
        broken = False
        async with it.cell() as cell:
            assert cell.id not in it.ids
        await it.filled()
        async with it.cell() as cell:
            assert cell.id in it.ids
    assert it.pool.troubles == []


async def test_an_end_that_was_not_clean_is_told() -> None:
    """To the taker when the cell was his, to the pool's owner when nobody had it."""
    cells = FakeCells()
    cells.destroy_error = ContainmentBreach("destruction left: a process")
    async with stand(cells=cells) as it:
        await it.filled()
        with pytest.raises(ContainmentBreach, match="left"):
            async with it.cell():
                await it.filled()
    assert [str(trouble) for trouble in it.pool.troubles] == ["destruction left: a process"]


async def test_a_destruction_that_is_interrupted_holds_up_no_end() -> None:
    """An interrupt that comes while an idle cell is destroyed is raised, and the pool can end."""
    cells = FakeCells()
    cells.destroy_error = KeyboardInterrupt()
    async with stand(cells=cells) as it:
        await it.filled()
        with pytest.raises(KeyboardInterrupt):
            await it.pool.aclose()
        with anyio.fail_after(30):
            await it.pool.aclose()


async def test_nobody_is_left_waiting_when_the_pool_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands is destroyed, and a cell that is still out is recalled: its operations end, then
    it is destroyed too."""
    monkeypatch.setattr(pools, "_END_TIMEOUT_S", 0.05)
    async with stand(2) as it:
        await it.filled()
        taking = it.cell()
        cell = await taking.__aenter__()
    assert isinstance(cell, FakeCell)
    assert cell.dead
    assert all(each.destroyed for each in it.cells.opened)
    await taking.__aexit__(None, None, None)
    async with it.cell() as late:
        assert late.id not in it.ids


@pytest.mark.promise("3.4")
@pytest.mark.parametrize("is_out", [False, True])
async def test_a_pool_ends_after_the_last_of_its_cells(
    monkeypatch: pytest.MonkeyPatch, is_out: bool
) -> None:
    """Also one that was just looked at for a taker, or is being given back: its run is sealed next,
    and its destruction would have no proof."""
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

    async with stand() as it:
        real = it.open

        @asynccontextmanager
        async def open_(*, ahead: bool) -> AsyncIterator[Any]:
            async with real(ahead=ahead) as opened:
                yield opened
                if is_out and opened.cell is it.ahead[0]:  # not the next, which is destroyed too
                    await wait()

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


async def test_a_taker_that_is_cancelled_gives_back_what_it_was_given() -> None:
    """Whether it was cancelled before or after the answer, no cell is lost or shared."""
    async with stand() as it:
        for _ in range(5):
            await it.filled()
            with anyio.CancelScope() as scope:
                scope.cancel()
                async with it.cell():
                    await anyio.lowlevel.checkpoint()
                    pytest.fail("a cancelled taker went on")
        await it.filled()
        async with it.cell() as cell:
            assert cell.id in it.ids
    assert all(each.destroyed for each in it.cells.opened)


async def test_what_is_in_the_making_is_given_up_at_the_end() -> None:
    """Its cell is destroyed as well."""
    cells, never, begun = FakeCells(), anyio.Event(), anyio.Event()

    async def probe(cell: Any, router: Any = None, *, run: Any, phase: str) -> Any:
        begun.set()
        await never.wait()

    cells.probe = probe  # type: ignore[method-assign]
    async with stand(cells=cells) as it:
        it.pool.refill()
        await begun.wait()
    assert it.ahead[0].destroyed
    assert it.pool.troubles == []

"""The thread where cells are made ahead: what is posted is done, once, in order, there; its end waits for all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import anyio
import pytest

from belljar.cell.workshop import Workshop, async_workshop, open_workshop, promised

pytestmark = pytest.mark.anyio


async def test_what_is_posted_is_done_in_order_in_one_other_thread() -> None:
    """From many threads at once; nothing is lost."""
    done: list[tuple[str, int]] = []
    last: Future[None] = Future()
    async with async_workshop() as workshop:
        for number in range(1000):
            assert workshop.post(partial(lambda n: done.append((threading.current_thread().name, n)), number))
        workshop.post(lambda: last.set_result(None))
        await promised(last)
    assert done == [("cells-ahead", number) for number in range(1000)]


async def test_its_end_waits_for_what_was_spawned() -> None:
    """A task is told that the end has come, and ends by itself; after that nothing is taken on, and the thread is gone."""
    said: list[str] = []

    def begin(workshop: Workshop) -> None:
        ending = anyio.Event()

        async def work() -> None:
            said.append("begun")
            await ending.wait()
            said.append("ended")

        workshop.at_end(ending.set)
        workshop.spawn(work)

    async with async_workshop() as workshop:
        workshop.post(partial(begin, workshop))
    assert said == ["begun", "ended"]
    assert not workshop.post(lambda: said.append("late"))
    assert said == ["begun", "ended"]
    assert not workshop._thread.is_alive()


def test_it_is_closed_when_its_owner_fails() -> None:
    """However the block is left."""
    with pytest.raises(RuntimeError, match="the owner failed"), open_workshop() as workshop:
        raise RuntimeError("the owner failed")
    assert not workshop._thread.is_alive()


def test_an_interrupt_does_not_cut_the_end_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the owner waits for the end is raised when everything is gone."""
    workshop = Workshop()
    workshop.start()
    join: Callable[[], None] = workshop._thread.join
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        join()

    monkeypatch.setattr(workshop._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workshop.close()
    assert not workshop._thread.is_alive()


async def test_a_promise_is_heard_whenever_it_was_kept() -> None:
    """Before or while one waits; a failure too; and whoever stops waiting leaves it as it is."""
    kept: Future[int] = Future()
    kept.set_result(7)
    assert await promised(kept) == 7
    later: Future[int] = Future()
    threading.Timer(0.01, later.set_result, [8]).start()
    assert await promised(later) == 8
    broken: Future[int] = Future()
    broken.set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await promised(broken)
    never: Future[int] = Future()
    with anyio.move_on_after(0.01) as gone:
        await promised(never)
    assert gone.cancelled_caught
    assert not never.done()
    never.set_result(9)

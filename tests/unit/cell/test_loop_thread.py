"""The thread where cells are made ahead: what is posted is done, once, in order, there; its end
waits for all of it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

import anyio
import pytest

from belljar.cell.loop_thread import LoopThread, async_loop_thread, open_loop_thread, result_of

pytestmark = pytest.mark.anyio


async def test_what_is_posted_is_done_in_order_in_one_other_thread() -> None:
    """From many threads at once; nothing is lost."""
    done: list[tuple[str, int]] = []
    last: Future[None] = Future()
    async with async_loop_thread() as thread:
        for number in range(1000):
            assert thread.post(
                partial(lambda n: done.append((threading.current_thread().name, n)), number)
            )
        thread.post(lambda: last.set_result(None))
        await result_of(last)
    assert done == [("cells-ahead", number) for number in range(1000)]


async def test_its_end_waits_for_what_was_spawned() -> None:
    """A task is told that the end has come, and ends by itself; after that nothing is taken on, and
    the thread is gone."""
    said: list[str] = []
    workers: list[threading.Thread] = []

    def begin(thread: LoopThread) -> None:
        async def work() -> None:
            said.append("begun")
            await thread.closing.wait()
            said.append("ended")

        workers.append(threading.current_thread())
        thread.at_end(lambda: said.append("ending"))
        thread.spawn(work)

    async with async_loop_thread() as thread:
        thread.post(partial(begin, thread))
    assert sorted(said) == ["begun", "ended", "ending"]
    assert not thread.post(lambda: said.append("late"))
    assert "late" not in said
    assert not workers[0].is_alive()


def test_it_is_closed_when_its_owner_fails() -> None:
    """However the block is left."""
    workers: list[threading.Thread] = []

    def fail() -> None:
        with open_loop_thread() as thread:
            thread.post(lambda: workers.append(threading.current_thread()))
            raise RuntimeError("the owner failed")

    with pytest.raises(RuntimeError, match="the owner failed"):
        fail()
    assert not workers[0].is_alive()


def test_an_interrupt_does_not_cut_the_end_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the owner waits for the end is raised when everything is gone."""
    workers: list[threading.Thread] = []
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]
    join = threading.Thread.join

    def interrupted(worker: threading.Thread) -> None:
        if interrupts:
            raise interrupts.pop()
        join(worker)

    thread = LoopThread()
    thread.post(lambda: workers.append(threading.current_thread()))
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.close()
    assert not interrupts
    assert not workers[0].is_alive()


async def test_a_promise_is_heard_whenever_it_was_kept() -> None:
    """Before or while one waits; a failure too; and whoever stops waiting leaves it as it is."""
    kept: Future[int] = Future()
    kept.set_result(7)
    assert await result_of(kept) == 7
    later: Future[int] = Future()
    threading.Timer(0.01, later.set_result, [8]).start()
    assert await result_of(later) == 8
    broken: Future[int] = Future()
    broken.set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await result_of(broken)
    never: Future[int] = Future()
    with anyio.move_on_after(0.01) as gone:
        await result_of(never)
    assert gone.cancelled_caught
    assert not never.done()
    never.set_result(9)

"""The thread with an event loop where cells are made ahead and held.

Taking a cell and giving it back may be separate coroutines, and no task group may span them
(Inspect's `sample_init` and `sample_cleanup`). Other threads `post` to it and wait for its futures
with `result_of`. anyio's blocking portal would have `post` wait for the loop, which makes cells.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

_T = TypeVar("_T")


class LoopThread:
    """Made only by `open_loop_thread` and `async_loop_thread`, which end it.

    What is posted runs in the thread, in order, and must neither wait nor raise. A spawned task
    handles its own errors, and ends within bounds once `closing` is set.

    Attributes, for use in the thread only:
        making: held while a cell is made: one at once.
        closing: set when the thread is to end.
    """

    making: anyio.Lock
    closing: anyio.Event
    _tasks: TaskGroup

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acts: deque[Callable[[], None]] = deque()
        self._posted = asyncio.Event()
        self._started = threading.Event()
        self._ends: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="cells-ahead", daemon=True)
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        """End everything and wait for it.

        An interrupt at the terminal meanwhile is raised when that is done.
        """
        self.post(lambda: self.closing.set())
        interrupt: KeyboardInterrupt | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as late:
                interrupt = late
        if interrupt is not None:
            raise interrupt

    def post(self, act: Callable[[], None]) -> bool:
        """Run `act` in the thread. False when it is closed."""
        with self._guard:
            if self._loop is None:
                return False
            self._acts.append(act)
            self._loop.call_soon_threadsafe(self._posted.set)
        return True

    def spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task. In the thread only."""
        self._tasks.start_soon(task)

    def at_end(self, end: Callable[[], None]) -> None:
        """Run `end` in the thread before it closes. In the thread only."""
        self._ends.append(end)

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio")
        finally:
            self._started.set()

    async def _main(self) -> None:
        self.making, self.closing = anyio.Lock(), anyio.Event()
        try:
            async with anyio.create_task_group() as listening:
                listening.start_soon(self._listen)
                async with anyio.create_task_group() as self._tasks:
                    self._loop = asyncio.get_running_loop()
                    self._started.set()
                    await self.closing.wait()
                    for end in self._ends:
                        end()
                listening.cancel_scope.cancel()
        finally:
            with self._guard:
                self._loop = None
            self._do_posted()

    async def _listen(self) -> None:
        """In a task, since what is posted makes anyio's events and tasks."""
        while True:
            await self._posted.wait()
            self._posted.clear()
            self._do_posted()

    def _do_posted(self) -> None:
        while self._acts:
            self._acts.popleft()()


@contextmanager
def open_loop_thread() -> Iterator[LoopThread]:
    """A thread for an owner without an event loop."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()


@asynccontextmanager
async def async_loop_thread() -> AsyncIterator[LoopThread]:
    """A thread; its end is shielded."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.close)


async def result_of(future: Future[_T]) -> _T:
    """Wait for another thread's future in any event loop. Cancelled, it leaves the future alone."""
    far, near = socket.socketpair()

    def wake(_: Future[_T]) -> None:
        with suppress(OSError):  # the waiter is gone
            far.send(b"\0")

    with far, near:
        future.add_done_callback(wake)
        while not future.done():
            await anyio.wait_readable(near)
    return future.result()

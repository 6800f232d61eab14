"""A thread with an event loop of its own, where cells are made ahead and their lifetimes are held.

A thread, because who takes a cell and who gives it back may be separate coroutines, and no task
group may span them (Inspect's `sample_init` and `sample_cleanup`). Other threads speak to it by
`post`, which never waits, and hear from it by futures: `promised`.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

_T = TypeVar("_T")
_BELL_BYTES: Final = 4096


class Workshop:
    """Made only by `open_workshop` and `async_workshop`, which end all that was spawned, and join
    the thread.

    What is posted runs in the workshop's own thread, in order, and must neither wait nor raise. A
    task that is spawned handles its own errors; when the end has come it must end by itself, within
    bounds: `at_end` says so to those who asked.
    """

    def __init__(self) -> None:
        self._acts: deque[Callable[[], None]] = deque()
        self._bell, self._ear = socket.socketpair()
        self._guard = threading.Lock()
        self._open = True
        self._ends: list[Callable[[], None]] = []
        self._tasks: TaskGroup | None = None
        self._bench: anyio.Lock | None = None
        self._closing: anyio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="cells-ahead", daemon=True)
        for end in (self._bell, self._ear):
            end.setblocking(False)  # noqa: FBT003

    def start(self) -> None:
        """Open it."""
        self._thread.start()

    def close(self) -> None:
        """End everything and wait for it.

        An interrupt at the terminal meanwhile is raised when that is done.
        """
        self.post(self._begin_end)
        interrupt: KeyboardInterrupt | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as late:
                interrupt = late
        self._bell.close()
        self._ear.close()
        if interrupt is not None:
            raise interrupt

    def post(self, act: Callable[[], None]) -> bool:
        """Have `act` run in the workshop. False when it is closed: then it never will."""
        with self._guard:
            if not self._open:
                return False
            self._acts.append(act)
            with suppress(BlockingIOError):  # it rings already
                self._bell.send(b"\0")
        return True

    def spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task. In the workshop only."""
        if self._tasks is None:
            raise RuntimeError("the workshop is not open")
        self._tasks.start_soon(task)

    def at_end(self, end: Callable[[], None]) -> None:
        """Have `end` run in the workshop when it is to be closed. In the workshop only."""
        self._ends.append(end)

    @property
    def bench(self) -> anyio.Lock:
        """Held by whoever makes a cell: one at once. In the workshop only."""
        if self._bench is None:
            raise RuntimeError("the workshop is not open")
        return self._bench

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio")
        finally:
            with self._guard:
                self._open = False
            self._do_acts()

    async def _main(self) -> None:
        self._bench, self._closing = anyio.Lock(), anyio.Event()
        async with anyio.create_task_group() as listening:
            async with anyio.create_task_group() as self._tasks:
                listening.start_soon(self._listen)
                await self._closing.wait()
                for end in self._ends:
                    end()
            listening.cancel_scope.cancel()

    async def _listen(self) -> None:
        while True:
            await anyio.wait_readable(self._ear)
            with suppress(BlockingIOError):
                self._ear.recv(_BELL_BYTES)
            self._do_acts()

    def _do_acts(self) -> None:
        while self._acts:
            self._acts.popleft()()

    def _begin_end(self) -> None:
        if self._closing is not None:
            self._closing.set()


@contextmanager
def open_workshop() -> Iterator[Workshop]:
    """A workshop, for an owner without an event loop."""
    workshop = Workshop()
    workshop.start()
    try:
        yield workshop
    finally:
        workshop.close()


@asynccontextmanager
async def async_workshop() -> AsyncIterator[Workshop]:
    """A workshop; its end is shielded."""
    workshop = Workshop()
    workshop.start()
    try:
        yield workshop
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(workshop.close)


async def promised(future: Future[_T]) -> _T:
    """What another thread promised, waited for in whatever event loop this is.

    Cancelled, it leaves the future as it is.
    """
    far, near = socket.socketpair()

    def ring(_: Future[_T]) -> None:
        with suppress(OSError):  # nobody waits any more
            far.send(b"\0")

    with far, near:
        future.add_done_callback(ring)
        while not future.done():
            await anyio.wait_readable(near)
    return future.result()

"""An event loop in a thread of its own, and calls into it that wait.

A call that is interrupted (Ctrl-C, or another signal handler that raises) is cancelled, waited for
and then raised, so that nothing of it goes on behind the caller's back.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from belljar.errors import CellError, ContainmentBreach

T = TypeVar("T")
P = ParamSpec("P")
# The longest that a signal is not seen which came just before a wait.
_LOOK_S: Final = 1.0


class _Job(Generic[T]):
    """One coroutine in the loop. `done` is set when it has ended, cancelled or not."""

    def __init__(self, function: Callable[[], Awaitable[T]], portal: BlockingPortal) -> None:
        self.done: Future[T] = Future()
        self._function, self._portal = function, portal
        self._scope: anyio.CancelScope | None = None

    def start(self) -> None:
        """Have it run."""
        self._post(self._run)

    def cancel(self) -> None:
        """Cancel it, also when it was never started. From any thread."""
        self._post(self._cancel)

    def _post(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            self._portal.start_task_soon(act)
        except RuntimeError:  # the loop has ended, and every task with it
            self._fail(CellError("its event loop has ended"))

    async def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        else:  # what is posted begins in order: an interrupt came before the start was posted
            self._fail(CellError("the call was cancelled"))

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                self.done.set_result(await self._function())
        except Exception as error:  # noqa: BLE001 - the caller's
            self._fail(error)
        finally:
            self._fail(CellError("the call was cancelled"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def wait(self, act: Callable[[], None], future: Future[Any] | None = None) -> None:
        """Act, and wait for its end, or for `future`. An interrupt meanwhile cancels it, and is
        raised once it has ended; but a breach that was found is raised instead."""
        interrupt, awaited = None, future or self.done
        while True:
            try:
                act()
                # Python sees a signal that comes just before a thread waits only after the wait
                while not awaited.done():
                    wait([awaited], timeout=_LOOK_S)
                if interrupt is None:
                    return
                break
            except BaseException as signalled:  # noqa: BLE001
                # A signal handler's: raised below.
                interrupt, act, awaited = interrupt or signalled, self.cancel, self.done
        if isinstance(error := self.done.exception(), ContainmentBreach):
            raise error from interrupt
        raise interrupt


class Loop:
    """Made by `own_loop`."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._thread = portal.call(threading.get_ident)
        self.is_closed = False

    def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the loop and wait for it.

        Raises `CellError` when the block that made the loop has been left, `RuntimeError` when
        called in the loop itself (from a callback).
        """
        job = self._job(partial(function, *args, **kwargs))
        job.wait(job.start)
        return job.done.result()

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An async context manager, entered and left in one task of the loop. What the block raises
        is raised in there; an interrupt of the block cancels the task."""
        value: Future[T] = Future()
        left: list[Exception | None] = []
        leave: list[anyio.Event] = []

        async def hold() -> None:
            leave.append(anyio.Event())
            async with manager as entered:
                value.set_result(entered)
                await leave[0].wait()
                if left[0] is not None:
                    raise left[0]

        def end(error: Exception | None) -> None:
            left.append(error)
            job.wait(partial(self._portal.call, lambda: leave[0].set()))
            job.done.result()

        def fail(done: Future[Any]) -> None:
            if not value.done():
                value.set_exception(done.exception() or CellError("it ended before it was ready"))

        job = self._job(hold)
        # Who waits for `value` must also hear of a manager that failed before it was entered.
        job.done.add_done_callback(fail)
        job.wait(job.start, value)
        try:
            yield value.result()
        except Exception as error:
            end(error)
            raise
        except BaseException as signalled:
            with suppress(BaseException):  # one more interrupt changes nothing
                job.wait(job.cancel)
            if isinstance(found := job.done.exception(), ContainmentBreach):
                raise found from signalled
            raise
        else:
            end(None)

    def _job(self, function: Callable[[], Awaitable[T]]) -> _Job[T]:
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "a callback can't call its cell: its event loop would wait for itself"
            )
        if self.is_closed:
            raise CellError("it is closed: its `with` block was left")
        return _Job(function, self._portal)


@contextmanager
def own_loop() -> Iterator[Loop]:
    """A loop for the time of the block; all that runs in it is cancelled if the block raises.

    A block that is never left, as in a notebook, is left when the interpreter ends.

    Raises `RuntimeError` in the thread of a running event loop, which would stand still.
    """
    is_in_a_loop = False
    with suppress(RuntimeError):
        anyio.lowlevel.current_token()
        # An interactive session (a notebook's, `python -m asyncio`) runs what is typed inside its
        # loop: there nothing else waits for it.
        is_in_a_loop = not hasattr(sys, "ps1")
    if is_in_a_loop:
        raise RuntimeError(
            "belljar.sync would block this thread's event loop: use `async with belljar.open_cell`"
        )
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("asyncio", name="belljar-sync"))

        def end() -> None:
            portal.start_task_soon(portal.stop, True)  # noqa: FBT003 - cancels all that runs in it
            stack.close()

        atexit.register(end)
        stack.callback(atexit.unregister, end)
        loop = Loop(portal)
        try:
            yield loop
        finally:
            loop.is_closed = True

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
        self._function = function
        self._portal = portal
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
        _raise_interrupt(_settled(job.done, job.cancel, act=job.start), job.done)
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
            leaving = partial(self._portal.call, lambda: leave[0].set())
            _raise_interrupt(_settled(job.done, job.cancel, act=leaving), job.done)
            job.done.result()

        job = self._job(hold)
        # Who waits for `value` must also hear of a manager that failed before it was entered.
        job.done.add_done_callback(partial(_fail_with, value))
        # Started within `_settled`, so that an interrupt just after the start still cancels it.
        interrupt = _settled(value, job.cancel, act=job.start)
        if interrupt is not None:
            _settled(job.done, job.cancel)
            _raise_interrupt(interrupt, job.done)
        try:
            yield value.result()
        except Exception as error:
            end(error)
            raise
        except BaseException as signalled:  # noqa: BLE001 - raised again, or a breach is
            _settled(job.done, job.cancel, act=job.cancel)
            _raise_interrupt(signalled, job.done)
        else:
            end(None)

    def _job(self, function: Callable[[], Awaitable[T]]) -> _Job[T]:
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "a callback can't call its cell: it runs in the cell's own event loop, which "
                "would wait for itself"
            )
        if self.is_closed:
            raise CellError(
                "it is closed: its `with` block was left",
                hint="keep what you do with it within the block, or open another",
            )
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
            "belljar.sync would block the event loop that runs in this thread: use `async with "
            "belljar.open_cell(...)` there, or call this by `anyio.to_thread.run_sync`"
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


def _settled(
    future: Future[Any], cancel: Callable[[], None], *, act: Callable[[], None] = lambda: None
) -> BaseException | None:
    """Act, wait until `future` is done, and return the first interrupt that came meanwhile.

    Each one cancels.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            act()
            # Python sees a signal that comes just before a thread waits only after the wait
            while not future.done():
                wait([future], timeout=_LOOK_S)
        except BaseException as signalled:  # noqa: BLE001
            # A signal handler's: the caller raises it.
            interrupt, act = interrupt or signalled, cancel
        else:
            return interrupt


def _raise_interrupt(interrupt: BaseException | None, done: Future[Any]) -> None:
    """Raise it, if there was one; but a breach that was found meanwhile is raised instead."""
    if interrupt is None:
        return
    error = done.exception()
    if isinstance(error, ContainmentBreach):
        raise error from interrupt
    raise interrupt


def _fail_with(value: Future[Any], done: Future[Any]) -> None:
    if not value.done():
        value.set_exception(done.exception() or CellError("it ended before it was ready"))

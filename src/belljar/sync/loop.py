"""An event loop in a thread of its own, and calls into it that wait.

Ctrl-C (or another signal handler that raises) cancels the call that waits and is raised at once.
What is open is then left by its `with` block, whose end is waited for whatever comes meanwhile.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from belljar.errors import CellError, ContainmentBreach

T = TypeVar("T")
P = ParamSpec("P")
# Python sees a signal that comes just before a thread waits only after that wait.
_LOOK_S: Final = 1.0


class Loop:
    """Made by `own_loop`."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.is_closed = False

    def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the loop and wait for it.

        Raises `CellError` when the block that made the loop has been left, `RuntimeError` when
        called in the loop itself (from a callback).
        """
        running = self._start(partial(function, *args, **kwargs))
        try:
            while not running.done():
                wait([running], timeout=_LOOK_S)
        except BaseException:  # a signal handler's
            running.cancel()
            raise
        try:
            return running.result()
        except CancelledError:
            raise CellError("the call was cancelled") from None

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An async context manager, entered and left in one task of the loop. What the block raises
        is raised in there; an interrupt of the block cancels the task."""
        value: Future[T] = Future()
        ended: Future[Exception | None] = Future()
        raised: list[Exception] = []
        leave = anyio.Event()

        async def hold() -> None:
            failed: Exception | None = CellError("its event loop has ended")
            try:
                async with manager as entered:
                    value.set_result(entered)
                    await leave.wait()
                    if raised:
                        raise raised[0]
                failed = None
            except Exception as error:  # noqa: BLE001 - the caller's
                failed = error
            finally:
                ended.set_result(failed)

        task = self._start(hold)
        interrupt: BaseException | None = None
        try:
            while not (value.done() or ended.done()):
                wait([value, ended], timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if value.done():
                yield value.result()
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)
        except BaseException as signalled:  # noqa: BLE001 - likewise
            interrupt = signalled
        interrupt = self._end(task, ended, leave, interrupt)
        failed = ended.result()
        if interrupt is not None:
            if isinstance(failed, ContainmentBreach):
                raise failed from interrupt
            raise interrupt
        for error in filter(None, (failed, *raised)):
            raise error

    def _end(
        self,
        task: Future[None],
        ended: Future[Any],
        leave: anyio.Event,
        interrupt: BaseException | None,
    ) -> BaseException | None:
        """Let the task end, or cancel it after an interrupt; return the first interrupt."""
        while True:
            try:
                while not ended.done():
                    if interrupt is not None:
                        task.cancel()
                    elif not leave.is_set():
                        self._portal.start_task_soon(leave.set)
                    wait([ended], timeout=_LOOK_S)
            except BaseException as signalled:  # noqa: BLE001 - nothing cuts the end short
                interrupt = interrupt or signalled
            else:
                return interrupt

    def _start(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        if self.is_closed:
            raise CellError(
                "it is closed: its `with` block was left",
                hint="keep what you do with it within the block, or open another",
            )
        return self._portal.start_task_soon(function)


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

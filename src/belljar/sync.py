"""Belljar without `async`: the same names, which wait.

Each opened cell, pool or range has a thread of its own with an event loop. An interrupted call
is cancelled, waited for and then raised: nothing of it goes on.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
from anyio.from_thread import BlockingPortal, start_blocking_portal

from belljar.cell import open as cell_open
from belljar.cell.cell import Cell as AsyncCell
from belljar.cell.cell import CellStream as AsyncCellStream
from belljar.cell.cell import Snapshot as AsyncSnapshot
from belljar.cell.exec import RunningCommand as AsyncRunningCommand
from belljar.cell.pool import Pool as AsyncPool
from belljar.cell.pool import open_pool as open_async_pool
from belljar.cell.range import Range as AsyncRange
from belljar.channel import ExecOutput, Stream
from belljar.errors import CellError, ContainmentBreach
from belljar.isolation.hold import release as release
from belljar.isolation.kill import KillReport, kill_now
from belljar.isolation.survivors import Destruction
from belljar.plan.model import Plan
from belljar.policy.guarding import OWN_CELL
from belljar.store.home import belljar_home

_A = TypeVar("_A")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
# The longest that a signal is not seen which came just before a wait.
_LOOK_S: Final = 1.0


class _Job(Generic[_T]):
    """One coroutine in the loop. `done` is set at its end."""

    def __init__(self, function: Callable[[], Awaitable[_T]], portal: BlockingPortal) -> None:
        self.done: Future[_T] = Future()
        self._function, self._portal = function, portal
        self._scope: anyio.CancelScope | None = None

    async def cancel(self) -> None:
        """Cancel it, also when it was never started."""
        if self._scope is not None:
            self._scope.cancel()
        else:  # what is posted begins in order: an interrupt came before the start was posted
            self._fail(CellError("the call was cancelled"))

    async def run(self) -> None:
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

    def wait(self, act: Callable[[], Awaitable[None]], future: Future[Any] | None = None) -> None:
        """Act in the loop. An interrupt cancels it; a breach wins."""
        interrupt, awaited = None, future or self.done
        while True:
            try:
                try:
                    self._portal.start_task_soon(act)
                except RuntimeError:  # the loop has ended, and every task with it
                    self._fail(CellError("its event loop has ended"))
                # Python sees a signal that comes just before a thread waits only after the wait
                while not awaited.done():
                    wait([awaited], timeout=_LOOK_S)
                if interrupt is None:
                    return
                break
            except BaseException as signalled:  # noqa: BLE001
                # A signal handler's: raised below.
                interrupt, awaited, act = interrupt or signalled, self.done, self.cancel
        if isinstance(error := self.done.exception(), ContainmentBreach):
            raise error from interrupt
        raise interrupt


class Loop:
    """A thread with an event loop, made by `own_loop`."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._thread = portal.call(threading.get_ident)
        self.is_closed = False

    def call(
        self, function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a coroutine function in the loop."""
        job = self._job(partial(function, *args, **kwargs))
        job.wait(job.run)
        return job.done.result()

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
        """Enter and leave an async context manager in one task."""
        value: Future[_T] = Future()
        left: list[Exception | None] = []
        leave: list[anyio.Event] = []

        async def hold() -> None:
            leave.append(anyio.Event())
            async with manager as entered:
                value.set_result(entered)
                await leave[0].wait()
                if left[0] is not None:
                    raise left[0]

        async def end_hold() -> None:
            leave[0].set()

        def end(error: Exception | None) -> None:
            left.append(error)
            job.wait(end_hold)
            job.done.result()

        def fail(done: Future[Any]) -> None:
            if not value.done():
                value.set_exception(done.exception() or CellError("it ended before it was ready"))

        job = self._job(hold)
        # Who waits for `value` must also hear of a manager that failed before it was entered.
        job.done.add_done_callback(fail)
        job.wait(job.run, value)
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

    def _job(self, function: Callable[[], Awaitable[_T]]) -> _Job[_T]:
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "a callback can't call its cell: its event loop would wait for itself"
            )
        if self.is_closed:
            raise CellError("it is closed: its `with` block was left")
        return _Job(function, self._portal)


@contextmanager
def own_loop() -> Iterator[Loop]:
    """Run a loop. Raise `RuntimeError` in a running event loop."""
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


class _Facade(Generic[_Inner_co]):
    """An object of the async library, with its event loop."""

    def __init__(self, inner: _Inner_co, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the class annotates it
        # Facts of the inner object, not its methods: those would need the loop.
        if any(name in vars(each).get("__annotations__", {}) for each in type(self).__mro__):
            return getattr(self._inner, name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return repr(self._inner)


def _mirrored(
    method: Callable[Concatenate[_A, _P], _R], act: Callable[[Callable[[], _R], Loop], _T]
) -> Callable[Concatenate[_Facade[_A], _P], _T]:

    @wraps(method)
    def call(self: _Facade[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound: Callable[..., _R] = getattr(self._inner, method.__name__)
        return act(partial(bound, *args, **kwargs), self._loop)

    return call


def _waiting(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    return _mirrored(method, lambda call, loop: loop.call(call))


def _at_once(
    method: Callable[Concatenate[_A, _P], _T],
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    return _mirrored(method, lambda call, _loop: call())


@contextmanager
def _entered(
    manager: AbstractAsyncContextManager[_A], facade: Callable[[_A, Loop], _T], loop: Loop | None
) -> Iterator[_T]:
    """Open the object as a facade; without `loop` in its own."""
    opening = own_loop() if loop is None else nullcontext(loop)
    with opening as own, own.entered(manager) as inner:
        yield facade(inner, own)


def _opening(
    function: Callable[_P, AbstractAsyncContextManager[_A]], facade: Callable[[_A, Loop], _T]
) -> Callable[_P, AbstractContextManager[_T]]:
    """Return the same function; Ctrl-C ends its object first."""

    @wraps(function)
    def opened(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T]:
        return _entered(function(*args, **kwargs), facade, None)

    return opened


class RunningCommand(_Facade[AsyncRunningCommand]):
    """A command of `Cell.open_exec` (iterate it, then `wait`) or `Cell.start`."""

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        if (found := self._loop.call(anext, self._inner, None)) is None:
            raise StopIteration
        return found

    id: int
    argv: tuple[str | bytes, ...]
    outcome: ExecOutput | None
    running: bool
    returncode: int | None
    output = _at_once(AsyncRunningCommand.output)
    send_stdin = _waiting(AsyncRunningCommand.send_stdin)
    close_stdin = _waiting(AsyncRunningCommand.close_stdin)
    signal = _waiting(AsyncRunningCommand.signal)
    resize = _waiting(AsyncRunningCommand.resize)
    wait = _waiting(AsyncRunningCommand.wait)
    kill = _waiting(AsyncRunningCommand.kill)


class CellStream(_Facade[AsyncCellStream]):
    """A byte stream of `Cell.connect`, closed by leaving its block."""

    def receive(self, max_bytes: int = 65536) -> bytes:
        """See `belljar.CellStream.receive`; it returns `b""` at the end."""
        try:
            return self._loop.call(self._inner.receive, max_bytes)
        except anyio.EndOfStream:
            return b""

    send = _waiting(AsyncCellStream.send)
    send_eof = _waiting(AsyncCellStream.send_eof)


class Snapshot(_Facade[AsyncSnapshot]):
    """A cell at one moment, made by `Cell.snapshot`."""

    @property
    def facts(self) -> AsyncSnapshot:
        """Return its `id`, `name`, `state`, `digest`, `key`, `cell` and `size_bytes`."""
        return self._inner

    fork = _mirrored(AsyncSnapshot.fork, lambda call, loop: _entered(call(), Cell, loop))


class Cell(_Facade[AsyncCell]):
    """A running sandbox. It is thread-safe; an `on_output` can't call it."""

    id: str
    plan: Plan
    image_command: tuple[str, ...]
    destruction: Destruction | None
    tier: str
    emulated: bool
    env: Mapping[str, str]
    timings_ms: Mapping[str, float]
    host_pid: int | None
    console = _at_once(AsyncCell.console)

    exec = _waiting(AsyncCell.exec)
    open_exec = _mirrored(
        AsyncCell.open_exec, lambda call, loop: _entered(call(), RunningCommand, loop)
    )
    start = _mirrored(AsyncCell.start, lambda call, loop: RunningCommand(loop.call(call), loop))
    connect = _mirrored(AsyncCell.connect, lambda call, loop: _entered(call(), CellStream, loop))
    write_file = _waiting(AsyncCell.write_file)
    read_file = _waiting(AsyncCell.read_file)
    upload = _waiting(AsyncCell.upload)
    download = _waiting(AsyncCell.download)
    list_dir = _waiting(AsyncCell.list_dir)
    stat = _waiting(AsyncCell.stat)
    remove = _waiting(AsyncCell.remove)
    note = _at_once(AsyncCell.note)
    check_health = _waiting(AsyncCell.check_health)
    ping = _waiting(AsyncCell.ping)
    wait_dead = _waiting(AsyncCell.wait_dead)
    destroy = _waiting(AsyncCell.destroy)
    snapshot = _mirrored(AsyncCell.snapshot, lambda call, loop: Snapshot(loop.call(call), loop))

    def revert(self, *, verify: bool | None = None, to: Snapshot | None = None) -> None:
        """See `belljar.Cell.revert`."""
        saved = None if to is None else to._inner
        self._loop.call(self._inner.revert, verify=verify, to=saved)


class Range:
    """One sample's cells and network, made by `belljar.sync.open_range`."""

    def __init__(self, opened: AsyncRange, loop: Loop) -> None:
        self.cell = Cell(opened.cell, loop)
        """The one that a sample works in."""
        self.targets = {name: Cell(cell, loop) for name, cell in opened.targets.items()}
        """The others, by name."""
        self.network = opened.network

    @property
    def cells(self) -> Mapping[str, Cell]:
        """Return all of them, by name, its own first."""
        return {OWN_CELL: self.cell, **self.targets}


class Pool(_Facade[AsyncPool]):
    """Cells made ahead, by `belljar.sync.open_pool`."""

    cell = _mirrored(AsyncPool.cell, lambda call, loop: _entered(call(), Cell, loop))
    range = _mirrored(AsyncPool.range, lambda call, loop: _entered(call(), Range, loop))
    filled = _waiting(AsyncPool.filled)


open_cell = _opening(cell_open.open_cell, Cell)
open_pool = _opening(open_async_pool, Pool)
open_range = _opening(cell_open.open_range, Range)


def kill(
    *names: str,
    everything: bool = False,
    hold: bool = False,
    reason: str = "",
    home: Path | None = None,
) -> KillReport:
    """See `belljar.kill`."""
    return kill_now(
        home or belljar_home(), names, everything=everything, hold_too=hold, reason=reason
    )

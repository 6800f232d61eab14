"""A cell, and a command that runs in it, for callers that wait. Contracts: `belljar.Cell`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio

from belljar.cell import open as cell_open
from belljar.cell.cell import Cell as AsyncCell
from belljar.cell.cell import Snapshot as AsyncSnapshot
from belljar.cell.connection import CellStream as AsyncCellStream
from belljar.cell.exec import RunningCommand as AsyncRunningCommand
from belljar.cell.pool import Pool as AsyncPool
from belljar.cell.pool import open_pool as open_async_pool
from belljar.cell.range import Range as AsyncRange
from belljar.channel import ExecOutput, Stream
from belljar.events import Actor
from belljar.host.settings import PolicyLike
from belljar.isolation.kill import KillReport, kill_now
from belljar.isolation.survivors import Destruction
from belljar.ledger.rundir import RunDirectory
from belljar.plan.model import Plan
from belljar.store.home import belljar_home
from belljar.sync.loop import Loop, own_loop

_A = TypeVar("_A")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


class _Facade(Generic[_Inner_co]):
    """Something of the async library, and the event loop in which it lives."""

    def __init__(self, inner: _Inner_co, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the class annotates it
        # Facts of the inner object, not its methods: those would need the loop.
        if not self._is_fact(name):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _is_fact(self, name: str) -> bool:
        return any(name in vars(each).get("__annotations__", {}) for each in type(self).__mro__)

    def __repr__(self) -> str:
        return repr(self._inner)


def _mirrored(
    method: Callable[Concatenate[_A, _P], _R], act: Callable[[Callable[[], _R], Loop], _T]
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    """The same method on the facade: `act` is given the call to make and the facade's loop."""

    @wraps(method)
    def call(self: _Facade[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound: Callable[..., _R] = getattr(self._inner, method.__name__)
        return act(partial(bound, *args, **kwargs), self._loop)

    return call


def _waiting(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    """The same method, which runs in the facade's loop and is waited for."""
    return _mirrored(method, lambda call, loop: loop.call(call))


def _at_once(
    method: Callable[Concatenate[_A, _P], _T],
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    """The same method, which waits for nothing."""
    return _mirrored(method, lambda call, _loop: call())


@contextmanager
def _entered(
    manager: AbstractAsyncContextManager[_A], facade: Callable[[_A, Loop], _T], loop: Loop | None
) -> Iterator[_T]:
    """What `manager` opens, as a facade. `loop`: None: one of its own."""
    opening = own_loop() if loop is None else nullcontext(loop)
    with opening as own, own.entered(manager) as inner:
        yield facade(inner, own)


def _opening(
    function: Callable[_P, AbstractAsyncContextManager[_A]], facade: Callable[[_A, Loop], _T]
) -> Callable[_P, AbstractContextManager[_T]]:
    """The same function; Ctrl-C ends what it opened before it is raised."""

    @wraps(function)
    def opened(*args: _P.args, **kwargs: _P.kwargs) -> AbstractContextManager[_T]:
        return _entered(function(*args, **kwargs), facade, None)

    return opened


class RunningCommand(_Facade[AsyncRunningCommand]):
    """A command of `Cell.open_exec` or `Cell.start`; of the first, iterate it, then `wait`."""

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
    """A byte stream of `Cell.connect`; leaving its block closes it."""

    def receive(self, max_bytes: int = 65536) -> bytes:
        """See `belljar.CellStream.receive`; `b""` at the end."""
        return self._loop.call(self._receive, max_bytes)

    async def _receive(self, max_bytes: int) -> bytes:
        try:
            return await self._inner.receive(max_bytes)
        except anyio.EndOfStream:
            return b""

    send = _waiting(AsyncCellStream.send)
    send_eof = _waiting(AsyncCellStream.send_eof)


class Snapshot(_Facade[AsyncSnapshot]):
    """A cell at one moment. Made by `Cell.snapshot`."""

    @property
    def facts(self) -> AsyncSnapshot:
        """Its `id`, `name`, `state`, `digest`, `key`, `cell` and `size_bytes`."""
        return self._inner

    fork = _mirrored(AsyncSnapshot.fork, lambda call, loop: _entered(call(), Cell, loop))


class Cell(_Facade[AsyncCell]):
    """A running sandbox. Made only by `belljar.sync.open_cell`, a pool or a range; may be used by
    several threads at once. An `on_output` is called in the cell's own thread, and can't call it.
    """

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
    """The cells of one sample and their network. Made only by `belljar.sync.open_range`."""

    def __init__(self, opened: AsyncRange, loop: Loop) -> None:
        self.cell = Cell(opened.cell, loop)
        """The one that a sample works in."""
        self.targets = {name: Cell(cell, loop) for name, cell in opened.targets.items()}
        """The others, by name."""
        self.network = opened.network

    @property
    def cells(self) -> Mapping[str, Cell]:
        """All of them, by name, its own first."""
        from belljar.policy.guarding import OWN_CELL

        return {OWN_CELL: self.cell, **self.targets}


class Pool(_Facade[AsyncPool]):
    """Cells made ahead. Made only by `belljar.sync.open_pool`."""

    cell = _mirrored(AsyncPool.cell, lambda call, loop: _entered(call(), Cell, loop))
    range = _mirrored(AsyncPool.range, lambda call, loop: _entered(call(), Range, loop))
    filled = _waiting(AsyncPool.filled)


open_cell = _opening(cell_open.open_cell, Cell)
open_pool = _opening(open_async_pool, Pool)


def open_range(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AbstractContextManager[Range]:
    """See `belljar.open_range`. Ctrl-C destroys the range before it is raised."""
    return _entered(cell_open.open_range(policy, run=run, home=home, actor=actor), Range, None)


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

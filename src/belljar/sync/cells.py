"""A cell, and a command that runs in it, for callers that wait. Contracts: `belljar.Cell`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import anyio

from belljar.cell import open as cell_open
from belljar.cell.background import BackgroundCommand as AsyncBackgroundCommand
from belljar.cell.background import OutputSoFar
from belljar.cell.cell import Cell as AsyncCell
from belljar.cell.connection import CONNECT_TIMEOUT_S, KEEP_STREAM_BYTES
from belljar.cell.connection import CellStream as AsyncCellStream
from belljar.cell.exec import RunningCommand as AsyncRunningCommand
from belljar.cell.lease import DEFAULT_SIZE
from belljar.cell.output import ExecOutput
from belljar.cell.pool import Counts
from belljar.cell.pool import Pool as AsyncPool
from belljar.cell.pool import open_pool as open_async_pool
from belljar.cell.range import Range as AsyncRange
from belljar.channel import PtySize, Stream
from belljar.events import Actor, JsonValue, Kind
from belljar.host.settings import PolicyLike
from belljar.isolation.kill import KillReport, kill_now
from belljar.isolation.survivors import Destruction
from belljar.ledger import RunDirectory
from belljar.plan import Plan
from belljar.store.home import belljar_home
from belljar.sync.loop import Loop, own_loop

Input: TypeAlias = bytes | str | Iterable[bytes] | None
_A = TypeVar("_A")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Facade(Generic[_A]):
    """Something of the async library, and the event loop in which it lives."""

    def __init__(self, inner: _A, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)


def _waiting(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Facade[_A], _P], _T]:
    """The same method, which runs in the facade's loop and is waited for."""

    @wraps(method)
    def call(self: _Facade[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound: Callable[_P, Coroutine[Any, Any, _T]] = getattr(self._inner, method.__name__)
        return self._loop.call(bound, *args, **kwargs)

    return call


@contextmanager
def _entered(
    manager: AbstractAsyncContextManager[_A], facade: Callable[[_A, Loop], _T], loop: Loop | None
) -> Iterator[_T]:
    """What `manager` opens, as a facade. `loop`: None: one of its own."""
    opening = own_loop() if loop is None else nullcontext(loop)
    with opening as own, own.entered(manager) as inner:
        yield facade(inner, own)


class RunningCommand(_Facade[AsyncRunningCommand]):
    """A command of `Cell.open_exec`.

    Iterate it for `(stream, bytes)`, then `wait` for its outcome.
    """

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        found = self._loop.call(self._next)
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> tuple[Stream, bytes] | None:
        return await anext(self._inner, None)

    @property
    def id(self) -> int:
        """See `belljar.RunningCommand.id`."""
        return self._inner.id

    @property
    def output(self) -> ExecOutput | None:
        """Its outcome, once it was waited for."""
        return self._inner.output

    send_stdin = _waiting(AsyncRunningCommand.send_stdin)
    close_stdin = _waiting(AsyncRunningCommand.close_stdin)
    signal = _waiting(AsyncRunningCommand.signal)
    resize = _waiting(AsyncRunningCommand.resize)
    wait = _waiting(AsyncRunningCommand.wait)


class BackgroundCommand(_Facade[AsyncBackgroundCommand]):
    """A command of `Cell.start`."""

    @property
    def running(self) -> bool:
        """See `belljar.BackgroundCommand.running`."""
        return self._inner.running

    @property
    def returncode(self) -> int | None:
        """See `belljar.BackgroundCommand.returncode`."""
        return self._inner.returncode

    def output(self) -> OutputSoFar:
        """See `belljar.BackgroundCommand.output`."""
        return self._inner.output()

    wait = _waiting(AsyncBackgroundCommand.wait)
    signal = _waiting(AsyncBackgroundCommand.signal)
    kill = _waiting(AsyncBackgroundCommand.kill)


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


class Cell(_Facade[AsyncCell]):
    """A running sandbox. Made only by `belljar.sync.open_cell`, a pool or a range; may be used by
    several threads at once."""

    @property
    def id(self) -> str:
        """The cell's name in the ledger, the journal and on the host."""
        return self._inner.id

    @property
    def plan(self) -> Plan:
        """What it was made by."""
        return self._inner.plan

    @property
    def tier(self) -> str:
        """How the cell is isolated."""
        return self._inner.tier

    @property
    def emulated(self) -> bool:
        """True when no hardware virtualisation stands between guest and VMM."""
        return self._inner.emulated

    @property
    def env(self) -> Mapping[str, str]:
        """See `belljar.Cell.env`."""
        return self._inner.env

    @property
    def image_command(self) -> tuple[str, ...]:
        """What the image says is to be run: its entrypoint and command, often nothing."""
        return self._inner.image_command

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Milliseconds by phase of making this cell."""
        return self._inner.timings_ms

    @property
    def host_pid(self) -> int | None:
        """The pid on this host of the cell's outermost process, while it lives."""
        return self._inner.host_pid

    @property
    def destruction(self) -> Destruction | None:
        """What its end found, once it has ended."""
        return self._inner.destruction

    def console(self) -> bytes:
        """See `belljar.Cell.console`."""
        return self._inner.console()

    def exec(
        self,
        argv: Sequence[str],
        *,
        input: Input = None,  # noqa: A002 - the name every caller of a subprocess knows
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        keep: Literal["head", "tail"] = "head",
        on_output: Callable[[Stream, bytes], None] | None = None,
    ) -> ExecOutput:
        """See `belljar.Cell.exec`.

        `on_output` is called in the cell's own thread, and can't call the cell.
        """
        fed = input if input is None or isinstance(input, bytes | str) else self._loop.pieces(input)
        return self._loop.call(
            self._inner.exec,
            argv,
            input=fed,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            keep=keep,
            on_output=on_output,
        )

    def open_exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        pty: PtySize | None = None,
        service: bool = False,
    ) -> AbstractContextManager[RunningCommand]:
        """See `belljar.Cell.open_exec`."""
        opened = self._inner.open_exec(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, pty=pty, service=service
        )
        return _entered(opened, RunningCommand, self._loop)

    write_file = _waiting(AsyncCell.write_file)
    read_file = _waiting(AsyncCell.read_file)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        service: bool = False,
    ) -> BackgroundCommand:
        """See `belljar.Cell.start`."""
        command = self._loop.call(
            self._inner.start,
            argv,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            service=service,
        )
        return BackgroundCommand(command, self._loop)

    def connect(
        self,
        target: int | str | os.PathLike[str],
        *,
        user: str | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
        keep_bytes: int = KEEP_STREAM_BYTES,
    ) -> AbstractContextManager[CellStream]:
        """See `belljar.Cell.connect`."""
        connected = self._inner.connect(
            target, user=user, timeout_s=timeout_s, keep_bytes=keep_bytes
        )
        return _entered(connected, CellStream, self._loop)

    upload = _waiting(AsyncCell.upload)
    download = _waiting(AsyncCell.download)
    list_dir = _waiting(AsyncCell.list_dir)
    stat = _waiting(AsyncCell.stat)
    remove = _waiting(AsyncCell.remove)
    metrics = _waiting(AsyncCell.metrics)

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        """See `belljar.Cell.note`."""
        self._inner.note(kind, data)

    check_health = _waiting(AsyncCell.check_health)
    ping = _waiting(AsyncCell.ping)
    wait_dead = _waiting(AsyncCell.wait_dead)
    destroy = _waiting(AsyncCell.destroy)


class Pool(_Facade[AsyncPool]):
    """Cells made ahead. Made only by `belljar.sync.open_pool`."""

    @property
    def counts(self) -> Counts:
        """What became of its cells."""
        return self._inner.counts

    def cell(self) -> AbstractContextManager[Cell]:
        """See `belljar.Pool.cell`."""
        return _entered(self._inner.cell(), Cell, self._loop)

    def range(self) -> AbstractContextManager[Range]:
        """See `belljar.Pool.range`."""
        return _entered(self._inner.range(), Range, self._loop)

    def refill(self, *, after_s: float = 0.0) -> None:
        """See `belljar.Pool.refill`."""
        self._inner.refill(after_s=after_s)

    filled = _waiting(AsyncPool.filled)


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


def open_cell(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AbstractContextManager[Cell]:
    """See `belljar.open_cell`. Ctrl-C destroys the cell before it is raised."""
    return _entered(cell_open.open_cell(policy, run=run, home=home, actor=actor), Cell, None)


def open_range(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AbstractContextManager[Range]:
    """See `belljar.open_range`. Ctrl-C destroys the range before it is raised."""
    return _entered(cell_open.open_range(policy, run=run, home=home, actor=actor), Range, None)


def open_pool(
    policy: PolicyLike = None,
    *,
    size: int = DEFAULT_SIZE,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AbstractContextManager[Pool]:
    """See `belljar.open_pool`. Ctrl-C destroys its cells before it is raised."""
    opening = open_async_pool(policy, size=size, run=run, home=home, actor=actor)
    return _entered(opening, Pool, None)


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

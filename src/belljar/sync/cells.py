"""A cell, and a command that runs in it, for callers that wait. Contracts: `belljar.Cell`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import anyio

from belljar.cell.background import BackgroundCommand as AsyncBackgroundCommand
from belljar.cell.background import OutputSoFar
from belljar.cell.cell import Cell as AsyncCell
from belljar.cell.connection import CONNECT_TIMEOUT_S
from belljar.cell.connection import CellStream as AsyncCellStream
from belljar.cell.files import (
    MAX_LISTED,
    MAX_TRANSFER_BYTES,
    MAX_TRANSFER_FILES,
    FileInfo,
)
from belljar.cell.health import Health
from belljar.cell.local_tree import Transfer
from belljar.cell.metrics import Metrics
from belljar.cell.output import ExecOutput
from belljar.cell.stream import RunningCommand as AsyncRunningCommand
from belljar.channel import PtySize, Stream
from belljar.events import JsonValue, Kind
from belljar.isolation.survivors import Destruction
from belljar.plan import Plan
from belljar.sync.loop import Loop

Input: TypeAlias = bytes | str | Iterable[bytes] | None


class RunningCommand:
    """A command of `Cell.open_exec`.

    Iterate it for `(stream, bytes)`, then `wait` for its outcome.
    """

    def __init__(self, running: AsyncRunningCommand, loop: Loop) -> None:
        self._running = running
        self._loop = loop

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        found = self._loop.call(self._next)
        if found is None:
            raise StopIteration
        return found

    async def _next(self) -> tuple[Stream, bytes] | None:
        return await anext(self._running, None)

    @property
    def id(self) -> int:
        """See `belljar.RunningCommand.id`."""
        return self._running.id

    @property
    def output(self) -> ExecOutput | None:
        """Its outcome, once it was waited for."""
        return self._running.output

    def send_stdin(self, chunk: bytes | str) -> None:
        """See `belljar.RunningCommand.send_stdin`."""
        self._loop.call(self._running.send_stdin, chunk)

    def close_stdin(self) -> None:
        """See `belljar.RunningCommand.close_stdin`."""
        self._loop.call(self._running.close_stdin)

    def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """See `belljar.RunningCommand.signal`."""
        self._loop.call(self._running.signal, number, whole_tree=whole_tree)

    def resize(self, rows: int, cols: int) -> None:
        """See `belljar.RunningCommand.resize`."""
        self._loop.call(self._running.resize, rows, cols)

    def wait(self) -> ExecOutput:
        """See `belljar.RunningCommand.wait`."""
        return self._loop.call(self._running.wait)


class BackgroundCommand:
    """A command of `Cell.start`."""

    def __init__(self, command: AsyncBackgroundCommand, loop: Loop) -> None:
        self._command = command
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._command)

    @property
    def running(self) -> bool:
        """See `belljar.BackgroundCommand.running`."""
        return self._command.running

    @property
    def returncode(self) -> int | None:
        """See `belljar.BackgroundCommand.returncode`."""
        return self._command.returncode

    def output(self) -> OutputSoFar:
        """See `belljar.BackgroundCommand.output`."""
        return self._command.output()

    def wait(self, *, timeout_s: float | None = None) -> ExecOutput:
        """See `belljar.BackgroundCommand.wait`."""
        return self._loop.call(self._command.wait, timeout_s=timeout_s)

    def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """See `belljar.BackgroundCommand.signal`."""
        self._loop.call(self._command.signal, number, whole_tree=whole_tree)

    def kill(self) -> None:
        """See `belljar.BackgroundCommand.kill`."""
        self._loop.call(self._command.kill)


class CellStream:
    """A byte stream of `Cell.connect`; leaving its block closes it."""

    def __init__(self, stream: AsyncCellStream, loop: Loop) -> None:
        self._stream = stream
        self._loop = loop

    def receive(self, max_bytes: int = 65536) -> bytes:
        """See `belljar.CellStream.receive`; `b""` at the end."""
        return self._loop.call(self._receive, max_bytes)

    async def _receive(self, max_bytes: int) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""

    def send(self, item: bytes) -> None:
        """See `belljar.CellStream.send`."""
        self._loop.call(self._stream.send, item)

    def send_eof(self) -> None:
        """See `belljar.CellStream.send_eof`."""
        self._loop.call(self._stream.send_eof)


class Cell:
    """A running sandbox. Made only by `belljar.sync.open_cell`, a pool or a range; may be used by
    several threads at once."""

    def __init__(self, cell: AsyncCell, loop: Loop) -> None:
        self._cell = cell
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._cell)

    @property
    def id(self) -> str:
        """The cell's name in the ledger, the journal and on the host."""
        return self._cell.id

    @property
    def plan(self) -> Plan:
        """What it was made by."""
        return self._cell.plan

    @property
    def tier(self) -> str:
        """How the cell is isolated."""
        return self._cell.tier

    @property
    def emulated(self) -> bool:
        """True when no hardware virtualisation stands between guest and VMM."""
        return self._cell.emulated

    @property
    def env(self) -> Mapping[str, str]:
        """See `belljar.Cell.env`."""
        return self._cell.env

    @property
    def image_command(self) -> tuple[str, ...]:
        """What the image says is to be run: its entrypoint and command, often nothing."""
        return self._cell.image_command

    @property
    def others(self) -> Mapping[str, Cell]:
        """The target cells of its range, by name; they end with it."""
        return {name: Cell(cell, self._loop) for name, cell in self._cell.others.items()}

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Milliseconds by phase of making this cell."""
        return self._cell.timings_ms

    @property
    def host_pid(self) -> int | None:
        """The pid on this host of the cell's outermost process, while it lives."""
        return self._cell.host_pid

    @property
    def destruction(self) -> Destruction | None:
        """What its end found, once it has ended."""
        return self._cell.destruction

    def console(self) -> bytes:
        """See `belljar.Cell.console`."""
        return self._cell.console()

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
            self._cell.exec,
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

    @contextmanager
    def open_exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        pty: PtySize | None = None,
    ) -> Iterator[RunningCommand]:
        """See `belljar.Cell.open_exec`."""
        opened = self._cell.open_exec(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, pty=pty
        )
        with self._loop.entered(opened) as running:
            yield RunningCommand(running, self._loop)

    def write_file(
        self,
        path: str,
        contents: bytes | str,
        *,
        user: str | None = None,
        mode: int | None = None,
        owner: str = "",
        timeout_s: float | None = None,
        is_secret: bool = False,
    ) -> None:
        """See `belljar.Cell.write_file`."""
        self._loop.call(
            self._cell.write_file,
            path,
            contents,
            user=user,
            mode=mode,
            owner=owner,
            timeout_s=timeout_s,
            is_secret=is_secret,
        )

    def read_file(
        self, path: str, *, max_bytes: int, user: str | None = None, timeout_s: float | None = None
    ) -> bytes:
        """See `belljar.Cell.read_file`."""
        return self._loop.call(
            self._cell.read_file, path, max_bytes=max_bytes, user=user, timeout_s=timeout_s
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> BackgroundCommand:
        """See `belljar.Cell.start`."""
        command = self._loop.call(
            self._cell.start,
            argv,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return BackgroundCommand(command, self._loop)

    @contextmanager
    def connect(
        self,
        target: int | str | os.PathLike[str],
        *,
        user: str | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Iterator[CellStream]:
        """See `belljar.Cell.connect`."""
        connected = self._cell.connect(target, user=user, timeout_s=timeout_s)
        with self._loop.entered(connected) as stream:
            yield CellStream(stream, self._loop)

    def upload(
        self,
        local_path: str | os.PathLike[str],
        target: str,
        *,
        user: str | None = None,
        overwrite: bool = False,
        max_files: int = MAX_TRANSFER_FILES,
        max_bytes: int = MAX_TRANSFER_BYTES,
        timeout_s: float | None = None,
    ) -> Transfer:
        """See `belljar.Cell.upload`."""
        return self._loop.call(
            self._cell.upload,
            local_path,
            target,
            user=user,
            overwrite=overwrite,
            max_files=max_files,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
        )

    def download(
        self,
        path: str,
        local_path: str | os.PathLike[str],
        *,
        user: str | None = None,
        overwrite: bool = False,
        skip_unsafe: bool = False,
        max_files: int = MAX_TRANSFER_FILES,
        max_bytes: int = MAX_TRANSFER_BYTES,
        timeout_s: float | None = None,
    ) -> Transfer:
        """See `belljar.Cell.download`."""
        return self._loop.call(
            self._cell.download,
            path,
            local_path,
            user=user,
            overwrite=overwrite,
            skip_unsafe=skip_unsafe,
            max_files=max_files,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
        )

    def list_dir(
        self,
        path: str = "",
        *,
        user: str | None = None,
        max_entries: int = MAX_LISTED,
        timeout_s: float | None = None,
    ) -> tuple[FileInfo, ...]:
        """See `belljar.Cell.list_dir`."""
        return self._loop.call(
            self._cell.list_dir, path, user=user, max_entries=max_entries, timeout_s=timeout_s
        )

    def stat(
        self,
        path: str,
        *,
        user: str | None = None,
        follow_symlinks: bool = True,
        timeout_s: float | None = None,
    ) -> FileInfo:
        """See `belljar.Cell.stat`."""
        return self._loop.call(
            self._cell.stat, path, user=user, follow_symlinks=follow_symlinks, timeout_s=timeout_s
        )

    def remove(
        self,
        path: str,
        *,
        recursive: bool = False,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See `belljar.Cell.remove`."""
        self._loop.call(
            self._cell.remove, path, recursive=recursive, user=user, timeout_s=timeout_s
        )

    def metrics(self) -> Metrics:
        """See `belljar.Cell.metrics`."""
        return self._loop.call(self._cell.metrics)

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        """See `belljar.Cell.note`."""
        self._cell.note(kind, data)

    def check_health(self) -> Health:
        """See `belljar.Cell.check_health`."""
        return self._loop.call(self._cell.check_health)

    def ping(self, *, timeout_s: float = 10) -> float:
        """See `belljar.Cell.ping`."""
        return self._loop.call(self._cell.ping, timeout_s=timeout_s)

    def wait_dead(self) -> str:
        """See `belljar.Cell.wait_dead`."""
        return self._loop.call(self._cell.wait_dead)

    def destroy(self, *, reason: str = "closed") -> Destruction:
        """See `belljar.Cell.destroy`."""
        return self._loop.call(self._cell.destroy, reason=reason)

"""A cell's attach socket, for `belljar attach`; early clients wait in the backlog.

A frame: one byte of kind, four of length (little-endian), at most 64 KiB of payload.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import struct
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from anyio.abc import AnyByteReceiveStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from belljar.descriptors import open_fd
from belljar.errors import BelljarError, CellError
from belljar.store.home import belljar_home
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.exec import RunningCommand

logger = logging.getLogger(__name__)
BACKLOG: Final = 8  # people who wait for a cell's terminal
_OPENING_S: Final = 10.0  # a client that says nothing must not stay
# An image may lack bash, but a cell's every image has a shell there.
_LOGIN_SHELL: Final = ("/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -l')
MAX_PAYLOAD_BYTES: Final = 1 << 16  # a reader holds one frame at most, of a broken peer, too
_HEAD: Final = struct.Struct("<cI")  # kind and length of a frame


class FrameKind(Enum):
    OPEN = b"O"
    INPUT = b"I"
    INPUT_END = b"E"
    RESIZE = b"W"
    RELEASE = b"K"
    OUTPUT = b"D"
    EXIT = b"X"


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind.value, len(payload)) + payload


_Frames: TypeAlias = AsyncGenerator[tuple[FrameKind, bytes], None]


async def frames(stream: AnyByteReceiveStream) -> _Frames:
    """Raises `ValueError` for what is no frame."""
    reading = BufferedByteReceiveStream(stream)
    with contextlib.suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
        while True:
            kind, length = _HEAD.unpack(await reading.receive_exactly(_HEAD.size))
            if length > MAX_PAYLOAD_BYTES:  # before the payload is held in memory
                raise ValueError(f"a frame of {length} bytes")
            yield FrameKind(kind), await reading.receive_exactly(length)


def attach_directory(home: Path | None) -> Path:
    return (home or belljar_home()) / "attach"


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name of the socket within the kernel's 107 bytes."""
    # Only to name it: nothing is read from the directory.
    with open_fd(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        yield f"/proc/self/fd/{directory}/{path.name}"


class AttachSocket:
    def __init__(self, cell: Cell, *, home: Path | None) -> None:
        self.path = path = attach_directory(home) / cell.id
        self.released = self._served = self._closed = False
        self._sessions: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with short_path(path) as name:
            self._listening.bind(name)
            Path(name).chmod(0o600)  # nobody can connect before `listen`, whatever the umask was
        self._listening.listen(BACKLOG)

    async def close(self) -> None:
        self._closed = True
        if self._sessions is not None:
            self._sessions.cancel()
            await self._ended.wait()
        self._listening.close()
        self.path.unlink(missing_ok=True)

    def open_in_sample(self, cell: Cell) -> None:
        if self._served:
            return
        from inspect_ai.util import background

        try:
            background(self.serve, cell)
        except RuntimeError:  # there is no sample yet: the next operation tries again
            return
        self._served = True

    async def serve(self, cell: Cell) -> None:
        if self._closed:
            return
        self._ended = anyio.Event()

        async def session(stream: SocketStream) -> None:
            async with stream:
                try:
                    await self._session(stream, cell)
                except Exception as error:  # noqa: BLE001
                    # A session that goes wrong must never end the sample it is in.
                    logger.info("a session in cell %s ended: %s", cell.id, printable(str(error)))

        try:
            with anyio.CancelScope() as self._sessions:
                async with await SocketListener.from_socket(self._listening.dup()) as listener:
                    await listener.serve(session)
        finally:
            self._sessions = None
            self._ended.set()

    async def _session(self, stream: SocketStream, cell: Cell) -> None:
        peer = stream.extra(SocketAttribute.raw_socket)  # noqa: S610
        # Linux's `struct ucred` (unix(7)): process, user and group, as they were when it connected.
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] not in {0, os.geteuid()}:
            return
        async with contextlib.aclosing(frames(stream)) as incoming:
            with anyio.fail_after(_OPENING_S):
                # A client that left at once sent no opening, and no branch below takes it.
                kind, payload = await anext(incoming, (FrameKind.INPUT_END, b""))
            if kind is FrameKind.RELEASE:
                self.released = True
                await stream.send(frame(FrameKind.EXIT, b"0"))
            elif kind is FrameKind.OPEN:
                status = await _terminal(stream, incoming, cell, json.loads(payload))
                await stream.send(frame(FrameKind.EXIT, status.encode()))


async def _terminal(
    stream: SocketStream, incoming: _Frames, cell: Cell, opening: Mapping[str, Any]
) -> str:
    from belljar.channel import PtySize

    argv, env = opening["argv"] or _LOGIN_SHELL, {"TERM": opening["term"]}
    rows, cols = opening["size"]
    size = PtySize(rows=rows, cols=cols)
    try:
        async with cell.open_exec(argv, user=opening["user"], env=env, pty=size) as running:
            return await _relay(stream, incoming, running)
    except BelljarError as error:
        return f"1 {printable(error.what)}"


async def _relay(stream: SocketStream, incoming: _Frames, running: RunningCommand) -> str:
    status = "1 the connection was closed"
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            has_ended = False  # then input is dropped: what the command still says is relayed
            async for kind, payload in incoming:
                try:
                    if kind is FrameKind.INPUT and not has_ended:
                        await running.send_stdin(payload)
                    elif kind is FrameKind.RESIZE:
                        await running.resize(*json.loads(payload))
                    elif kind is FrameKind.INPUT_END:
                        await running.close_stdin()
                except (BrokenPipeError, CellError):
                    has_ended = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        try:
            async for _, chunk in running:
                for start in range(0, len(chunk), MAX_PAYLOAD_BYTES):
                    piece = chunk[start : start + MAX_PAYLOAD_BYTES]
                    await stream.send(frame(FrameKind.OUTPUT, piece))
            output = await running.wait()
            status = f"{output.returncode} {printable(output.why_not_started)}".strip()
        except CellError as error:
            status = f"1 {printable(error.what)}"
        tasks.cancel_scope.cancel()
    return status


def connect_to(path: Path, *, timeout_s: float = 5.0) -> socket.socket:
    """Raises `OSError`."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(timeout_s)
    try:
        with short_path(path) as name:
            stream.connect(name)
    except OSError:
        stream.close()
        raise
    return stream


def release_cells(cell_id: str | None, home: Path | None = None) -> list[str]:
    """Ask owners to destroy kept cells; return those that confirmed."""
    released = []
    for name, stream in _connected(home):
        with contextlib.suppress(OSError):  # a running sample's socket may not be served
            if cell_id in (None, name):
                stream.sendall(frame(FrameKind.RELEASE))
                released += [name] if stream.recv(1) else []  # no byte: closed unanswered
    return released


def remove_dead_sockets(home: Path | None = None) -> None:
    for _ in _connected(home, timeout_s=1):
        pass


def _connected(home: Path | None, *, timeout_s: float = 5.0) -> Iterator[tuple[str, socket.socket]]:
    """Connect to each cell's socket; remove those without an owner."""
    for path in sorted(attach_directory(home).glob("*")):
        # Full, or another error that does not show that its owner is dead
        with contextlib.suppress(OSError):
            try:
                stream = connect_to(path, timeout_s=timeout_s)
            except ConnectionRefusedError:  # by connect(2) its owner is dead
                path.unlink(missing_ok=True)
                continue
            with stream:
                yield path.name, stream


def login_command(cell_id: str, user: str | None) -> str:
    # Of this Python: PATH may name another installation.
    words = [sys.executable, "-m", "belljar", "attach", cell_id]
    return shlex.join([*words, *(["--user", user] if user else [])])

"""A cell's attach socket, for `belljar attach`.

The process that made the cell serves it while the sample runs; early clients wait in the backlog.
Only the same user or root may connect, never the guest.

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
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import AnyByteReceiveStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from belljar.descriptors import open_fd
from belljar.errors import BelljarError, CellError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.exec import RunningCommand


logger = logging.getLogger(__name__)
# People at terminals of one cell.
MAX_CLIENTS: Final = 8
# A client that says nothing must not keep one of the few places.
_OPENING_S: Final = 10.0
# An image may lack bash, but a cell's every image has a shell there.
_LOGIN_SHELL: Final = ("/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -l')
# A reader holds one frame at most, so a broken peer costs no more memory.
MAX_PAYLOAD_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("<cI")  # kind and length of a frame


class FrameKind(Enum):
    """The kind of a frame."""

    OPEN = b"O"
    INPUT = b"I"
    INPUT_END = b"E"
    RESIZE = b"W"
    RELEASE = b"K"
    OUTPUT = b"D"
    EXIT = b"X"


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """One frame. The payload must fit."""
    return _HEAD.pack(kind.value, len(payload)) + payload


async def frames(stream: AnyByteReceiveStream) -> AsyncGenerator[tuple[FrameKind, bytes], None]:
    """Each frame until the peer leaves. Raises `ValueError` for one that is none."""
    reading = BufferedByteReceiveStream(stream)
    with contextlib.suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
        while True:
            kind, length = _HEAD.unpack(await reading.receive_exactly(_HEAD.size))
            # Checked before the payload is there: it would be held in memory.
            if length > MAX_PAYLOAD_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            yield FrameKind(kind), await reading.receive_exactly(length)


def attach_directory(home: Path | None) -> Path:
    """The directory of this user's attach sockets."""
    from belljar.store.home import belljar_home

    return (home or belljar_home()) / "attach"


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A socket's name within the kernel's 107 bytes."""
    # Only to name it: nothing is read from the directory.
    with open_fd(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        yield f"/proc/self/fd/{directory}/{path.name}"


class AttachSocket:
    """One cell's attach socket: listening, not yet served."""

    def __init__(self, cell: Cell, *, home: Path | None) -> None:
        self.path = path = attach_directory(home) / cell.id
        self.released = self._served = self._closed = False
        self._sessions: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._listening = socket.socket(socket.AF_UNIX, kind)
        with short_path(path) as name:
            self._listening.bind(name)
            # Nobody can connect before `listen`, whatever the umask was.
            Path(name).chmod(0o600)
        self._listening.listen(MAX_CLIENTS)

    async def close(self) -> None:
        """Refuse new clients and end all sessions."""
        self._closed = True
        if self._sessions is not None:
            self._sessions.cancel()
            await self._ended.wait()
        self._listening.close()
        self.path.unlink(missing_ok=True)

    def open_in_sample(self, cell: Cell) -> None:
        """Serve clients while the sample runs. Idempotent."""
        if self._served:
            return
        from inspect_ai.util import background

        try:
            background(self.serve, cell)
        # There is no sample yet: the next operation tries again.
        except RuntimeError:
            return
        self._served = True

    async def serve(self, cell: Cell) -> None:
        """Serve clients until cancelled; errors end one session."""
        if self._closed:
            return
        self._ended = anyio.Event()
        self._terminals = anyio.CapacityLimiter(MAX_CLIENTS)

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
                async with self._terminals:
                    await _terminal(stream, incoming, cell, **json.loads(payload))


async def _terminal(
    stream: SocketStream,
    incoming: AsyncIterator[tuple[FrameKind, bytes]],
    cell: Cell,
    *,
    argv: Sequence[str],
    user: str | None,
    term: str,
    size: tuple[int, int],
) -> None:
    from belljar.channel import PtySize

    try:
        async with cell.open_exec(
            argv or _LOGIN_SHELL,
            user=user,
            env={"TERM": term},
            pty=PtySize(rows=size[0], cols=size[1]),
        ) as running:
            status = await _relay(stream, incoming, running)
    except BelljarError as error:
        status = f"1 {printable(error.what)}"
    await stream.send(frame(FrameKind.EXIT, status.encode()))


async def _relay(
    stream: SocketStream, incoming: AsyncIterator[tuple[FrameKind, bytes]], running: RunningCommand
) -> str:
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
    """Connect to an attach socket. Raises `OSError`."""
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
    """Ask owners to destroy kept cells; returns those confirmed."""
    released = []
    for name, stream in _connected(home):
        # A timeout: a running sample's socket that is not served right now
        with contextlib.suppress(OSError):
            if cell_id in (None, name):
                stream.sendall(frame(FrameKind.RELEASE))
                # Any byte confirms; none means that it was closed without an answer.
                released += [name] if stream.recv(1) else []
    return released


def remove_dead_sockets(home: Path | None = None) -> None:
    """Remove dead owners' sockets."""
    for _ in _connected(home, timeout_s=1):
        pass


def _connected(home: Path | None, *, timeout_s: float = 5.0) -> Iterator[tuple[str, socket.socket]]:
    """Connect to each cell's socket in turn; removes those without an owner."""
    for path in sorted(attach_directory(home).glob("*")):
        # Full, or another error that does not show that its owner is dead
        with contextlib.suppress(OSError):
            try:
                stream = connect_to(path, timeout_s=timeout_s)
            # By connect(2) nobody listens on it: its owner is dead.
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                continue
            with stream:
                yield path.name, stream


def login_command(cell_id: str, user: str | None) -> str:
    """The command line for a terminal in a cell."""
    # The script beside this Python: PATH may name another installation.
    script = Path(sys.executable).with_name("belljar")
    launcher = [str(script)] if script.exists() else [sys.executable, "-m", "belljar"]
    return shlex.join([*launcher, "attach", cell_id, *(["--user", user] if user else [])])

"""The touch sensor of gVisor: the sandbox sends its trace points to a socket of this process.

They have to be asked for when the sandbox starts, so a cell without decoys has no such socket.
"""

from __future__ import annotations

import json
import os
import posixpath
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.channel.own_reads import OwnReads
from belljar.errors import HostError
from belljar.events import Trust
from belljar.isolation.oci.sensor_thread import FULL_READ, QueueThread, Reports
from belljar.isolation.oci.trace_points import (
    HELLO,
    MAX_MESSAGE_BYTES,
    Point,
    dropped,
    read_point,
    trace_config,
)
from belljar.isolation.touches import Access, FileWatch, OnAccess, OnEnd
from belljar.units import printable

_SOCKET: Final = "trace.sock"
_CONFIG: Final = "trace.json"
_AGENT: Final = b"init"
_PEER: Final = struct.Struct("iII")
_PAUSE_S: Final = 0.0005
_MAX_NAME: Final = 64
_MAX_PATH: Final = 4096
_DELETED: Final = b" (deleted)"
"""What the sandbox adds to the path of a file that is read after its removal."""
_LOST: Final = "the sandbox dropped trace points: this host was too slow for them"
_GONE: Final = "the sandbox ended its trace"
_NEVER: Final = "the sandbox has not connected to its trace socket"


class Trace:
    """The socket that one sandbox sends to, and the thread that reads it from the start: what
    nobody watches is thrown away.

    Args:
        inside: its directory as the runtime sees it.
        is_peer: whether a process of that number may be the sandbox's runtime. The socket can be
            found by others of this host.

    Raises `OSError`.
    """

    def __init__(self, directory: Path, inside: str, is_peer: Callable[[int], bool]) -> None:
        self._is_peer = is_peer
        self.config_path = posixpath.join(inside, _CONFIG)
        config = trace_config(posixpath.join(inside, _SOCKET))
        file = directory / _CONFIG
        file.write_text(json.dumps(config))
        file.chmod(0o444)
        self._listener = _listen(directory)
        self._connection: socket.socket | None = None
        self._has_greeted = self._has_ended = self._is_closed = False
        self._dropped = 0
        self._watches: tuple[TraceWatch, ...] = ()
        self._thread = QueueThread(self._fileno, self._read, self._on_error, pause_s=_PAUSE_S)
        self._thread.start()

    async def watch(self, paths: Sequence[str], own_reads: OwnReads) -> FileWatch:
        """Watch these files from now on. Raises `HostError`."""
        await anyio.to_thread.run_sync(self._thread.drain)
        if not self._has_greeted or self._has_ended:
            raise HostError(f"its files can't be watched: {_NEVER}", where="runsc-trace")
        watch = TraceWatch(self, self._thread, paths, own_reads)
        self._watches = (*self._watches, watch)
        return watch

    def forget(self, watch: TraceWatch) -> None:
        """It is told no more."""
        self._watches = tuple(one for one in self._watches if one is not watch)

    def close(self) -> None:
        """End thread and sockets. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.stop()
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _fileno(self) -> int:
        return (self._connection or self._listener).fileno()

    def _read(self) -> int:
        watches, count = self._watches, 0
        ended = [watch.reports.ended_host_reads for watch in watches]
        with suppress(BlockingIOError):
            if self._connection is None:
                self._connection = self._accept()
            while count < FULL_READ:
                message = self._connection.recv(MAX_MESSAGE_BYTES)
                if not message:
                    self._on_error(_GONE)
                    return -1
                count += 1
                self._take(message, watches)
        for watch, reads in zip(watches, ended, strict=True):
            watch.reports.settle(reads, read=count, is_empty=count < FULL_READ)
        return count

    def _accept(self) -> socket.socket:
        while True:
            connection, _ = self._listener.accept()
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if self._is_peer(_PEER.unpack(peer)[0]):
                connection.setblocking(False)  # noqa: FBT003
                return connection
            connection.close()

    def _take(self, message: bytes, watches: tuple[TraceWatch, ...]) -> None:
        if not self._has_greeted and self._connection is not None:
            self._connection.send(HELLO)
            self._has_greeted = True
            return
        has_lost = dropped(message) != self._dropped
        self._dropped = dropped(message)
        for watch in watches:
            if has_lost:
                watch.lost()
            if any(name in message for name in watch.names):
                point = read_point(message)
                if point is not None:
                    watch.take(point)

    def _on_error(self, reason: str) -> None:
        self._has_ended = True
        for watch in self._watches:
            with suppress(Exception):
                watch.reports.end(reason)


class TraceWatch:
    """As `isolation.touches.FileWatch`. It knows files by their paths, not by what they are."""

    sensor = "runsc-trace"
    trust = Trust.HOST_OBSERVED
    missing: Mapping[str, str]

    def __init__(
        self, trace: Trace, thread: QueueThread, paths: Sequence[str], own_reads: OwnReads
    ) -> None:
        self.missing = {path: "its path is too long" for path in paths if len(path) > _MAX_PATH}
        self.reports = Reports(own_reads, thread)
        self._files = {os.fsencode(posixpath.normpath(path)): path for path in paths}
        self.names = tuple({posixpath.basename(path) for path in self._files})
        self._trace, self._thread = trace, thread
        self._has_lost = self._is_closed = False

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        self.reports.begin(on_access, on_end)

    async def aclose(self) -> None:
        """As `FileWatch.aclose`."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._thread.drain()
        self._trace.forget(self)
        self._thread.drain()  # it may be at it with the list it had
        self.reports.close()

    def lost(self) -> None:
        """Points were dropped."""
        if not self._has_lost:
            self._has_lost = True
            self.reports.end(_LOST)

    def take(self, point: Point) -> None:
        """An access of any file."""
        path = self._files.get(point.path)
        if path is None and point.operation == "read":
            path = self._files.get(point.path.removesuffix(_DELETED))
        if path is not None:
            name = printable(point.process, max_chars=_MAX_NAME)
            access = Access(
                path=path, operation=point.operation, process=name, pid=point.pid or None
            )
            self.reports.offer(access, may_be_hosts=point.process == _AGENT)


async def watch_sandbox(
    trace: Trace | None, paths: Sequence[str], own_reads: OwnReads
) -> FileWatch:
    """Watch these files of a sandbox. Raises `HostError`."""
    if trace is None:
        what = "its files can't be watched: it was started without trace points"
        raise HostError(what, where="runsc-trace", hint="a policy with `decoys` asks for them")
    return await trace.watch(paths, own_reads)


def _listen(directory: Path) -> socket.socket:
    """A listener in it, whatever the length of its path."""
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)  # noqa: FBT003
        listener.bind(f"/proc/self/fd/{held}/{_SOCKET}")
        (directory / _SOCKET).chmod(0o666)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(held)
    return listener

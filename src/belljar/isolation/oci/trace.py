"""gVisor's file sensor: its trace points arrive on a socket.

The workload can't forge them, but chooses names and paths: messages are bounded and untrusted.
Source: gVisor's `pkg/sentry/seccheck/sinks/remote/wire` and `points/*.proto` (Apache-2.0).
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread

from belljar.channel.operations import OwnReads
from belljar.errors import HostError
from belljar.isolation.touches import FULL_READ, Access, Operation, QueueThread, QueueWatch
from belljar.plan.oci import BUNDLE

_SOCKET: Final = "trace.sock"
_CONFIG: Final = "trace.json"
# struct ucred of SO_PEERCRED (unix(7)): pid, uid, gid.
_PEER: Final = struct.Struct("iII")
# After a full read: a flood of points must not take a whole processor of this host.
_PAUSE_S: Final = 0.0005
_MAX_PATH: Final = 4096  # Linux's PATH_MAX
# The sandbox's suffix for removed files.
_DELETED: Final = b" (deleted)"
_LOST: Final = "the sandbox dropped trace points, or sent one that was too long"


class Trace:
    """The socket that one sandbox sends to, read from the start. Raises `OSError`.

    `is_peer`: the process may be the sandbox's runtime; others can find the socket.
    """

    def __init__(self, directory: Path, is_peer: Callable[[int], bool]) -> None:
        self._is_peer = is_peer
        self.config_path = posixpath.join(BUNDLE, _CONFIG)
        file = directory / _CONFIG
        file.write_text(json.dumps(trace_config(posixpath.join(BUNDLE, _SOCKET))))
        file.chmod(0o444)
        self._listener = _listen(directory)
        self._connection: socket.socket | None = None
        self.has_greeted = self.has_ended = self._is_closed = False
        self._dropped = 0
        self.watch: TraceWatch | None = None
        self.thread = QueueThread(
            lambda: (self._connection or self._listener).fileno(),
            self._read,
            self._on_error,
            pause_s=_PAUSE_S,
        )
        self.thread.start()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.thread.stop()
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _read(self) -> int:
        count = 0
        with suppress(BlockingIOError):
            if self._connection is None:
                self._connection = self._accept()
            while count < FULL_READ:
                message, _, flags, _ = self._connection.recvmsg(MAX_MESSAGE_BYTES)
                if not message:
                    self._on_error("the sandbox ended its trace")
                    return -1
                count += 1
                if not self.has_greeted:
                    self._connection.send(HELLO)
                    self.has_greeted = True
                    continue
                before, self._dropped = self._dropped, dropped(message)
                if (watch := self.watch) is not None:
                    # One is cut where its process's directory has a path that is too long.
                    if flags & socket.MSG_TRUNC or before != self._dropped:
                        watch.end(_LOST)
                    watch.take(message)
        if (watch := self.watch) is not None:
            watch.report()
        return count

    def _accept(self) -> socket.socket:
        while True:
            connection, _ = self._listener.accept()
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if self._is_peer(_PEER.unpack(peer)[0]):
                connection.setblocking(False)  # noqa: FBT003
                return connection
            connection.close()

    def _on_error(self, reason: str) -> None:
        self.has_ended = True
        if self.watch is not None:
            self.watch.end(reason)


class TraceWatch(QueueWatch):
    sensor = "runsc-trace"

    def __init__(self, trace: Trace, paths: Sequence[str], own_reads: OwnReads) -> None:
        super().__init__(own_reads, trace.thread)
        self.missing = {path: "its path is too long" for path in paths if len(path) > _MAX_PATH}
        self._files = {os.fsencode(posixpath.normpath(path)): path for path in paths}
        self._names = {posixpath.basename(path) for path in self._files}
        self._trace = trace

    async def _stop(self) -> None:
        await super()._stop()
        self._trace.watch = None
        await anyio.to_thread.run_sync(self._thread.drain)  # it may be at it with this watch still

    def take(self, message: bytes) -> None:
        # Most are of no watched file: they are not parsed.
        if not any(name in message for name in self._names):
            return
        if (point := read_point(message)) is None:
            return
        path = self._files.get(point.path)
        if path is None and point.operation == "read":
            path = self._files.get(point.path.removesuffix(_DELETED))
        if path is not None:
            self.offer(Access(path=path, operation=point.operation, pid=point.pid or None))


async def watch_sandbox(
    trace: Trace | None, paths: Sequence[str], own_reads: OwnReads
) -> TraceWatch:
    if trace is not None:
        await anyio.to_thread.run_sync(trace.thread.drain)  # what came before is not the watch's
        if trace.has_greeted and not trace.has_ended:
            trace.watch = TraceWatch(trace, paths, own_reads)
            return trace.watch
    raise HostError(
        "its files can't be watched: the sandbox sends no trace points",
        where="runsc-trace",
        hint="a policy with `decoys` asks for them",
    )


def _listen(directory: Path) -> socket.socket:
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with ExitStack() as undo:
        undo.callback(os.close, held)
        with ExitStack() as failed:
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
            listener = failed.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(f"/proc/self/fd/{held}/{_SOCKET}")
            (directory / _SOCKET).chmod(0o666)
            listener.listen(1)
            failed.pop_all()
    return listener


MAX_MESSAGE_BYTES: Final = 16 << 10
# Both sides' first message: version 1.
HELLO: Final = b"\x08\x01"
# Of a point: its length, kind, and how many were dropped so far (gVisor's `wire.Header`).
_HEADER: Final = struct.Struct("<HHI")
# Kinds of gVisor's `MessageType`.
_OPEN: Final = 7
_READ: Final = 9
# Opens nothing: no contents can be read through it.
_O_PATH: Final = 0o10000000
# Another name of the root directory for whoever has one: what follows is the same path.
_ROOTS: Final = rb"(?:/proc/(?:self|thread-self|[0-9]+)(?:/task/[0-9]+)?/root(?=/|\Z))+"
_MAX_FIELDS: Final = 64
_OPENS: Final = ("open", "openat", "creat")
_READS: Final = ("read", "pread64", "readv", "preadv", "preadv2")


class Point(NamedTuple):
    """It succeeded; `path` is as called."""

    operation: Operation
    path: bytes
    pid: int


def trace_config(endpoint: str) -> dict[str, Any]:
    """Late reading slows calls by 0.5 ms."""
    points = [
        {
            "name": f"syscall/{call}/exit",
            "optional_fields": ["fd_path"] if call in ("openat", *_READS) else [],
            # No name of the process: a guest chooses it, and gVisor sends no point at all whose
            # text is no UTF-8 (proto3), nor counts it as dropped.
            "context_fields": ["group_id", "cwd"] if call in _OPENS else ["group_id"],
        }
        for call in (*_OPENS, *_READS)
    ]
    config = {"endpoint": endpoint, "retries": 3, "backoff": "50us", "backoff_max": "200us"}
    return {
        "trace_session": {
            "name": "Default",  # the only name that it takes
            "points": points,
            "sinks": [{"name": "remote", "config": config, "ignore_setup_error": True}],
        }
    }


def dropped(message: bytes) -> int:
    """Return the points dropped before, modulo 2^32."""
    return int(_HEADER.unpack_from(message)[2]) if len(message) >= _HEADER.size else 0


def read_point(message: bytes) -> Point | None:
    """Return None for another point, a failed call, or an invalid one."""
    if len(message) < _HEADER.size:
        return None
    header_bytes, kind, _ = _HEADER.unpack_from(message)
    if kind not in (_OPEN, _READ) or header_bytes < _HEADER.size:
        return None
    try:
        fields = dict(_fields(message[header_bytes:]))
        context = dict(_fields(_bytes(fields, 1)))
        outcome = dict(_fields(_bytes(fields, 2)))
    except ValueError:
        return None
    value = _number(outcome, 1)
    result = value - (1 << 64) if value >> 63 else value
    if result < 0 or _number(outcome, 2):
        return None
    read_path = _bytes(fields, 5) if result else b""  # 0: the end of the file
    path = read_path if kind == _READ else _opened(fields, context)
    if not path:
        return None
    return Point("read" if kind == _READ else "open", path, _number(context, 4) & 0x7FFF_FFFF)


def _opened(fields: dict[int, int | bytes], context: dict[int, int | bytes]) -> bytes:
    """Resolve only `/proc` links to roots."""
    name, base = _bytes(fields, 6), _bytes(fields, 5) or _bytes(context, 8)
    if _number(fields, 7) & _O_PATH or not (name or base):
        return b""
    path = posixpath.normpath(posixpath.join(b"/", base, name))
    roots = re.match(_ROOTS, path)
    return path if roots is None else path[roots.end() :] or b"/"


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    for _ in range(_MAX_FIELDS):
        if at >= len(data):
            return
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field that is longer than its message")
            yield key >> 3, data[at : at + length]
            at += length
        else:
            at += {1: 8, 5: 4}.get(key & 7, len(data))
    raise ValueError("too many fields")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number that is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number that is too long")


def _number(fields: dict[int, int | bytes], key: int) -> int:
    return value if isinstance(value := fields.get(key), int) else 0


def _bytes(fields: dict[int, int | bytes], key: int) -> bytes:
    return value if isinstance(value := fields.get(key), bytes) else b""

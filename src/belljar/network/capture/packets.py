"""The packet record: frames of a range's ports in files that Wireshark opens (classic pcap,
nanoseconds).

The last bit of a frame's nanoseconds says which way it went: 1, the range sent it to a cell, so its
rules had let it through; 0, it came from a cell. Nothing in a frame can say that: a cell writes
what it likes into its own.

Frames that the gateway's events hold as well (see `accounting`) stand in two files that take turns:
when the newer is full, the older is emptied. All others have a quarter of the bound for themselves
and are never thrown away there; when it is full they join the first, and are counted when they go.
https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
"""

from __future__ import annotations

import errno
import heapq
import mmap
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from belljar.network.capture.accounting import Connection, Connections, Frame

_MAGIC_NANOSECONDS: Final = 0xA1B2_3C4D
_LINKTYPE_ETHERNET: Final = 1
RECORD: Final = "the packet record"
"""What an error of writing it has for its file's name: the writer has only descriptors."""
SNAP_BYTES: Final = 1 << 16
_FILE_HEADER: Final = struct.Struct("=IHHiIII")
_RECORD: Final = struct.Struct("=IIII")
HEADER: Final = _FILE_HEADER.pack(_MAGIC_NANOSECONDS, 2, 4, 0, 0, SNAP_BYTES, _LINKTYPE_ETHERNET)
_MAX_RECORD_BYTES: Final = _RECORD.size + SNAP_BYTES
MIN_BYTES: Final = 8 * _MAX_RECORD_BYTES  # The least that all files together may be given.
FILES: Final = 3
_PENDING_BYTES: Final = 8 * _MAX_RECORD_BYTES
_COPIED_BYTES: Final = 1 << 20
_ALL_PROTOCOLS: Final = 0x0003
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@qq")
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STATISTICS: Final = struct.Struct("=II")
_RAW: Final = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_BUFFER_BYTES: Final = 64 << 20
"""What waits to be written: most of a second of what a gateway can send.

An ordinary user gets what `net.core.rmem_max` allows.
"""
_MAX_AT_ONCE: Final = 512


class _File:
    """One file and what waits in memory for `flush`. Methods raise `OSError`."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._fd, self._max_bytes = fd, max_bytes
        self._pending = memoryview(bytearray(_PENDING_BYTES))
        self.restart()

    def restart(self) -> None:
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        _write_all(self._fd, memoryview(HEADER))
        self._written, self._end = len(HEADER), 0
        self.frames = self.evidence = 0

    def has_room(self, kept: int) -> bool:
        return self._written + self._end + _RECORD.size + kept <= self._max_bytes

    def put(self, time_ns: int, frame: memoryview, length: int) -> None:
        if self._end + _MAX_RECORD_BYTES > _PENDING_BYTES:
            self.flush()
        seconds, rest = divmod(time_ns, 1_000_000_000)
        _RECORD.pack_into(self._pending, self._end, seconds & 0xFFFF_FFFF, rest, len(frame), length)
        start = self._end + _RECORD.size
        self._end = start + len(frame)
        self._pending[start : self._end] = frame
        self.frames += 1

    def flush(self) -> None:
        """Give everything to the kernel."""
        _write_all(self._fd, self._pending[: self._end])
        self._written += self._end
        self._end = 0


class PacketFiles:
    """Frames in, three files out. Bytes that can't be written raise `OSError`: it stops the range.

    `dropped_evidence`: dropped frames that no event of the gateway's can hold.
    """

    def __init__(self, fds: Sequence[int], max_bytes: int, connections: Connections) -> None:
        """The descriptors, `FILES` of them, are this object's from now on; the files are empty."""
        self.packets = self.dropped_packets = self.dropped_evidence = 0
        self.room: Final = memoryview(bytearray(SNAP_BYTES))
        """Where the next frame is put before `keep` is called."""
        quarter = max(max_bytes, MIN_BYTES) // 4
        self._turns = [_File(fd, quarter * 3 // 2) for fd in fds[:2]]
        self._evidence = _File(fds[2], quarter)
        self._connections = connections
        self._held: tuple[set[Connection], set[Connection]] = (set(), set())
        self._now = 0

    def keep(self, time_ns: int, length: int) -> None:
        """Keep the frame in `room`, `length` bytes long on the wire, until `flush`. Raises
        `OSError`."""
        frame = self.room[: min(length, SNAP_BYTES)]
        whose = self._connections.take(frame, sent=bool(time_ns & 1))
        self.packets += 1
        if whose is Frame.EVIDENCE and self._evidence.has_room(len(frame)):
            self._evidence.put(time_ns, frame, length)
            return
        if not self._turns[self._now].has_room(len(frame)):
            self._turn()
        self._turns[self._now].put(time_ns, frame, length)
        if isinstance(whose, Connection):
            whose.held[self._now] += 1
            self._held[self._now].add(whose)
        elif whose is Frame.EVIDENCE:
            self._turns[self._now].evidence += 1

    def flush(self) -> None:
        """Give everything to the kernel. Raises `OSError`."""
        self._evidence.flush()
        self._turns[self._now].flush()

    def _turn(self) -> None:
        self._turns[self._now].flush()
        self._now = now = 1 - self._now
        self.dropped_packets += self._turns[now].frames
        self.dropped_evidence += self._turns[now].evidence
        for connection in self._held[now]:
            connection.dropped += connection.held[now]
            connection.held[now] = 0
        self._held[now].clear()
        self._turns[now].restart()


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        try:
            done = os.write(fd, view)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, RECORD) from exc
        if done == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), RECORD)
        view = view[done:]


class Tap:
    """Every frame of every device of this namespace but loopback. Made before there is any
    device."""

    def __init__(self) -> None:
        self.lost = 0
        """Frames that the kernel had no room for."""
        self.socket = socket.socket(socket.AF_PACKET, _RAW, socket.htons(_ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, 33, _BUFFER_BYTES)  # SO_RCVBUFFORCE
        except PermissionError:  # asks for a right over the whole host
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.buffer_bytes = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        """What there is room for in the kernel, as it counts: a frame is more than its bytes."""

    def read_into(self, files: PacketFiles) -> bool:
        """Take a bounded number of frames; whether there may be more. Raises `OSError`."""
        taken = 0
        try:
            while taken < _MAX_AT_ONCE:
                length, ancillary, _, address = self.socket.recvmsg_into(
                    [files.room], 64, socket.MSG_TRUNC
                )
                taken += 1
                if address[3] != _LOOPBACK:
                    sent = address[2] == socket.PACKET_OUTGOING
                    files.keep(_time_ns(ancillary) & ~1 | sent, length)
        except BlockingIOError:
            pass
        files.flush()
        return taken == _MAX_AT_ONCE

    def count_lost(self) -> int:
        """How many frames were lost since it was made."""
        statistics = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        self.lost += _STATISTICS.unpack(statistics)[1]  # the kernel counts anew each time
        return self.lost


def _time_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(rest)
    return 0


def held(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those that are there and hold a frame. Raises `OSError`."""
    return tuple(path for path in paths if path.is_file() and next(records(path), None) is not None)


def join(first: Path, *others: Path) -> None:
    """Merge all files into the first, by time, without half-written records; remove the others.

    Raises `OSError` where the disk has no room: then all are as they were.
    """
    part = first.with_name(f".{first.name}.part")
    try:
        with part.open("xb", buffering=0) as target:
            _write_all(target.fileno(), memoryview(HEADER))
            _merge([path for path in (first, *others) if path.is_file()], target.fileno())
        part.replace(first)
    finally:
        part.unlink(missing_ok=True)
    for path in others:
        path.unlink(missing_ok=True)


def _merge(paths: Sequence[Path], target: int) -> None:
    """Records of one file that follow each other are copied together."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")).fileno() for path in paths]
        begun = (-1, 0, 0)
        each = [_places(at, path) for at, path in enumerate(paths)]
        for _, at, start, end in heapq.merge(*each):
            if (at, start) == (begun[0], begun[2]) and end - begun[1] <= _COPIED_BYTES:
                begun = (at, begun[1], end)
                continue
            _copy(files, begun, target)
            begun = (at, start, end)
        _copy(files, begun, target)


def _places(at: int, path: Path) -> Iterator[tuple[int, int, int, int]]:
    start = len(HEADER)
    for time_ns, end in records(path):
        yield time_ns, at, start, end
        start = end


def _copy(files: Sequence[int], place: tuple[int, int, int], target: int) -> None:
    at, start, end = place
    if end > start:
        _write_all(target, memoryview(os.pread(files[at], end - start, start)))


def records(path: Path) -> Iterator[tuple[int, int]]:
    """Time and end (in bytes from the file's beginning) of each whole record."""
    size = path.stat().st_size
    at = len(HEADER)
    if size <= at:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
        while at + _RECORD.size <= size:
            seconds, rest, kept, _ = _RECORD.unpack_from(data, at)
            at += _RECORD.size + kept
            if at > size:
                return
            yield seconds * 1_000_000_000 + rest, at


def sent_frames(file: BinaryIO) -> Iterator[tuple[float, bytes]]:
    """Time (seconds since the epoch) and bytes of each whole frame that the range sent to a cell,
    read one after the other. Raises `ValueError` for no packet record.
    """
    if file.read(len(HEADER)) != HEADER:
        raise ValueError("no packet record: its first bytes are not its header")
    while len(head := file.read(_RECORD.size)) == _RECORD.size:
        seconds, rest, kept, _ = _RECORD.unpack(head)
        frame = file.read(kept) if kept <= SNAP_BYTES else b""
        if len(frame) < kept:
            return
        if rest & 1:
            yield seconds + rest * 1e-9, frame

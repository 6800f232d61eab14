"""The packet record: every frame of a range's ports, in files that Wireshark opens (classic pcap, nanoseconds), bounded.

The last bit of a frame's nanoseconds says which way it went: 1, the range sent it to a cell, so its rules had let it through; 0, it came from a cell.
Nothing in a frame can say that: a cell writes what it likes into its own.

Two files take turns: when the newer is full, the older is emptied and becomes the newer, so that the last half of the bound, at least, is always kept.
https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC_NANOSECONDS: Final = 0xA1B2_3C4D
_LINKTYPE_ETHERNET: Final = 1
RECORD: Final = "the packet record"
"""What an error of writing it has for its file's name: the writer has only descriptors."""
SNAP_BYTES: Final = 1 << 16
_FILE_HEADER: Final = struct.Struct("=IHHiIII")
_RECORD: Final = struct.Struct("=IIII")
HEADER: Final = _FILE_HEADER.pack(_MAGIC_NANOSECONDS, 2, 4, 0, 0, SNAP_BYTES, _LINKTYPE_ETHERNET)
MIN_BYTES: Final = 4 * (SNAP_BYTES + _RECORD.size)
"""The least that the two files together may be given."""
_MOST_RECORD_BYTES: Final = _RECORD.size + SNAP_BYTES
_PENDING_BYTES: Final = 8 * _MOST_RECORD_BYTES
_ALL_PROTOCOLS: Final = 0x0003
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@qq")
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STATISTICS: Final = struct.Struct("=II")
_RAW: Final = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_BUFFER_BYTES: Final = 64 << 20
"""What waits to be written: most of a second of what a gateway can send. An ordinary user gets what `net.core.rmem_max` allows."""
_MOST_AT_ONCE: Final = 512


class PacketFiles:
    """Frames in, two files out. Bytes that can't be written raise `OSError`: what isn't recorded may not go on."""

    def __init__(self, fds: tuple[int, int], max_bytes: int) -> None:
        """The descriptors are this object's from now on; the files are empty."""
        self.packets = 0
        self.dropped_packets = 0
        """In files that were emptied."""
        self._fds = fds
        self._each_bytes = max(max_bytes, MIN_BYTES) // 2
        self._now = 0
        self._written = [0, 0]
        self._held = [0, 0]
        self._pending = memoryview(bytearray(_PENDING_BYTES))
        self._end = 0
        self._begin()

    def room(self) -> memoryview:
        """Where the next frame is put, before `keep` says what it was; what stands there is nothing until then. Raises `OSError`."""
        if self._end + _MOST_RECORD_BYTES > _PENDING_BYTES:
            self.flush()
        return self._pending[self._end + _RECORD.size : self._end + _MOST_RECORD_BYTES]

    def keep(self, time_ns: int, length: int) -> None:
        """The frame in `room`: when, and how long it was, however much of it there was room for. Kept in memory until `flush`. Raises `OSError`."""
        seconds, rest = divmod(time_ns, 1_000_000_000)
        kept = min(length, SNAP_BYTES)
        if self._written[self._now] + self._end + _RECORD.size + kept > self._each_bytes:
            frame = bytes(self._pending[self._end + _RECORD.size :][:kept])
            self._turn()
            self.room()[:kept] = frame
        _RECORD.pack_into(self._pending, self._end, seconds & 0xFFFF_FFFF, rest, kept, length)
        self._end += _RECORD.size + kept
        self._held[self._now] += 1
        self.packets += 1

    def flush(self) -> None:
        """Give everything to the kernel. Raises `OSError`."""
        _write_all(self._fds[self._now], self._pending[: self._end])
        self._written[self._now] += self._end
        self._end = 0

    def _turn(self) -> None:
        self.flush()
        self._now = 1 - self._now
        self.dropped_packets += self._held[self._now]
        self._begin()

    def _begin(self) -> None:
        fd = self._fds[self._now]
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        _write_all(fd, memoryview(HEADER))
        self._written[self._now], self._held[self._now] = len(HEADER), 0


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
    """Every frame of every device of this namespace but loopback, as it goes by. Made before there is any device."""

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
        """Take what is there, some hundreds at most; whether there was so much that there may be more. Raises `OSError` when it can't be written."""
        taken = 0
        try:
            while taken < _MOST_AT_ONCE:
                length, ancillary, _, address = self.socket.recvmsg_into([files.room()], 64, socket.MSG_TRUNC)
                taken += 1
                if address[3] != _LOOPBACK:
                    sent = address[2] == socket.PACKET_OUTGOING
                    files.keep(_time_ns(ancillary) & ~1 | sent, length)
        except BlockingIOError:
            pass
        files.flush()
        return taken == _MOST_AT_ONCE

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


def in_order(first: Path, second: Path) -> tuple[Path, ...]:
    """Those of the two that are there and hold a frame, in the order of time. Raises `OSError`."""
    there = [path for path in (first, second) if path.is_file()]
    begins = {path: next((time_ns for time_ns, _ in records(path)), None) for path in there}
    return tuple(sorted((path for path in there if begins[path] is not None), key=lambda path: begins[path] or 0))


def join(first: Path, second: Path) -> None:
    """Both files in one, the first, in the order of time; the second is removed. What was written half is left out.

    Raises `OSError` where the disk has no room: then both are whole, as they were.
    """
    held = in_order(first, second)
    if second not in held:
        _keep_whole(first)
    elif first not in held:
        second.replace(first)
        _keep_whole(first)
        return
    else:
        older, newer = held
        _append(older, newer)
        if older != first:
            older.replace(first)
            return
    second.unlink()


def records(path: Path) -> Iterator[tuple[int, int]]:
    """Time and end (in bytes from the file's beginning) of each whole record."""
    size = path.stat().st_size
    at = len(HEADER)
    with path.open("rb") as file:
        while at + _RECORD.size <= size:
            file.seek(at)
            seconds, rest, kept, _ = _RECORD.unpack(file.read(_RECORD.size))
            at += _RECORD.size + kept
            if at > size:
                return
            yield seconds * 1_000_000_000 + rest, at


def sent_frames(file: BinaryIO) -> Iterator[tuple[float, bytes]]:
    """Time (seconds since the epoch) and bytes of each whole frame that the range sent to a cell, read one after the other. Raises `ValueError` for no packet record."""
    if file.read(len(HEADER)) != HEADER:
        raise ValueError("no packet record: its first bytes are not its header")
    while len(head := file.read(_RECORD.size)) == _RECORD.size:
        seconds, rest, kept, _ = _RECORD.unpack(head)
        frame = file.read(kept) if kept <= SNAP_BYTES else b""
        if len(frame) < kept:
            return
        if rest & 1:
            yield seconds + rest * 1e-9, frame


def _keep_whole(path: Path) -> None:
    whole = len(HEADER)
    for _, end in records(path):
        whole = end
    if path.stat().st_size >= whole:
        os.truncate(path, whole)


def _append(older: Path, newer: Path) -> None:
    _keep_whole(older)
    _keep_whole(newer)
    size = older.stat().st_size
    with newer.open("rb") as source, older.open("ab", buffering=0) as target:
        source.seek(len(HEADER))
        try:
            while piece := source.read(1 << 20):
                _write_all(target.fileno(), memoryview(piece))
        except OSError:
            target.truncate(size)
            raise

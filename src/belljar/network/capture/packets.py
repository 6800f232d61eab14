"""The packet record: frames of a range's ports in pcapng files.

Two files take turns with frames that the range's own gateway sent. When the newer is full, the
older is emptied. What cells sent, and the gateway's part in handshakes of TLS, has a file of a
quarter of the bound, which is never emptied: with the secrets in events it can be decrypted. Once
that is full, such frames go to the first two, and are counted when dropped.

A frame's `epb_flags` are inbound (from a cell) or outbound (sent by the range to a cell: its rules
had let it through).

Source: draft-ietf-opsawg-pcapng (Section Header, Interface Description, Enhanced Packet Block).
"""

from __future__ import annotations

import errno
import heapq
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from socket import inet_aton
from typing import BinaryIO, Final

from belljar.network.syscalls import set_receive_buffer

RECORD: Final = "the packet record"
"""Stands for the file's name in a write error: the writer has only descriptors."""
SNAP_BYTES: Final = 1 << 16
_LINKTYPE_ETHERNET: Final = 1
_NANOSECONDS: Final = 9  # if_tsresol: units of 10^-9 s
HEADER: Final = struct.pack(
    "<IIIHHqI IIHHI HHB3xHHI",
    *(0x0A0D_0D0A, 28, 0x1A2B_3C4D, 1, 0, -1, 28),  # section header, of unknown length
    *(1, 32, _LINKTYPE_ETHERNET, 0, SNAP_BYTES, 9, 1, _NANOSECONDS, 0, 0, 32),  # interface
)
# An enhanced packet block: head, the frame padded to a multiple of four, then option and length.
_PACKET_BLOCK: Final = 6
_HEAD: Final = struct.Struct("<IIIIIII")
_TAILS: Final = tuple(struct.Struct(f"<{padding}xHHIHHI") for padding in range(4))
_FLAGS_OPTION: Final = 2
_FLAGS_AT: Final = -12  # the flags' low byte, from the block's end
_INBOUND, _OUTBOUND = 1, 2
_BLOCK_BYTES: Final = _HEAD.size + _TAILS[0].size  # beside the padded frame
_MAX_BLOCK_BYTES: Final = _BLOCK_BYTES + SNAP_BYTES
MIN_BYTES: Final = 8 * _MAX_BLOCK_BYTES  # The least that all files together may be given.
FILES: Final = 3
_PENDING_BYTES: Final = 8 * _MAX_BLOCK_BYTES
BUFFER_BYTES: Final = 1 << 18  # for files that are read or joined
_ALL_PROTOCOLS: Final = 0x0003
_IPV4: Final = b"\x08\x00"
_TCP: Final = 6
_HANDSHAKE: Final = b"\x16\x03"  # A record of TLS: without the server's hello none is readable.
_HEAD_BYTES: Final = 96  # Ethernet, IPv4 and TCP with its options, and two bytes more.
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@qq")
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STATISTICS: Final = struct.Struct("=II")
_RAW: Final = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_SOCKET_BUFFER_BYTES: Final = 64 << 20
"""Most of a second of what a gateway can send.

An ordinary user gets what `net.core.rmem_max` allows.
"""
_MAX_AT_ONCE: Final = 512


class _File:
    """One file and its unflushed frames. Methods raise `OSError`."""

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
        return self._written + self._end + _BLOCK_BYTES + kept + 3 <= self._max_bytes

    def put(self, time_ns: int, frame: memoryview, length: int, flags: int) -> None:
        if self._end + _MAX_BLOCK_BYTES > _PENDING_BYTES:
            self.flush()
        kept = len(frame)
        padding = -kept & 3
        size = _BLOCK_BYTES + kept + padding
        pending, at = self._pending, self._end
        high, low = time_ns >> 32 & 0xFFFF_FFFF, time_ns & 0xFFFF_FFFF
        _HEAD.pack_into(pending, at, _PACKET_BLOCK, size, 0, high, low, kept, length)
        at += _HEAD.size
        pending[at : at + kept] = frame
        _TAILS[padding].pack_into(pending, at + kept, _FLAGS_OPTION, 4, flags, 0, 0, size)
        self._end += size
        self.frames += 1

    def flush(self) -> None:
        """Give everything to the kernel."""
        _write_all(self._fd, self._pending[: self._end])
        self._written += self._end
        self._end = 0


class PacketFiles:
    """Writes frames to three files. A failed write raises `OSError`, which ends the range.

    `dropped_evidence`: dropped frames that a cell sent.
    """

    def __init__(self, fds: Sequence[int], max_bytes: int, cells: Iterable[str]) -> None:
        """Take over the descriptors of `FILES` empty files. `cells`: their addresses."""
        self.packets = self.dropped_packets = self.dropped_evidence = 0
        self.room: Final = memoryview(bytearray(SNAP_BYTES))
        """Where the caller puts a frame before it calls `keep`."""
        quarter = max(max_bytes, MIN_BYTES) // 4
        self._turns = [_File(fd, quarter * 3 // 2) for fd in fds[:2]]
        self._evidence = _File(fds[2], quarter)
        self._cells = frozenset(map(inet_aton, cells))
        self._now = 0

    def keep(self, time_ns: int, length: int, *, is_sent: bool) -> None:
        """Keep the frame in `room`, `length` bytes long on the wire, until `flush`.

        `is_sent`: by the range, to a cell. Raises `OSError`.
        """
        frame = self.room[: min(length, SNAP_BYTES)]
        is_ours = is_sent and not self._is_evidence(bytes(frame[:_HEAD_BYTES]))
        flags = _OUTBOUND if is_sent else _INBOUND
        self.packets += 1
        if not is_ours and self._evidence.has_room(len(frame)):
            self._evidence.put(time_ns, frame, length, flags)
            return
        if not self._turns[self._now].has_room(len(frame)):
            self._turn()
        self._turns[self._now].put(time_ns, frame, length, flags)
        self._turns[self._now].evidence += not is_ours

    def _is_evidence(self, head: bytes) -> bool:
        """Return whether a frame that the range sent is another cell's, or begins a handshake."""
        if head[12:14] != _IPV4 or head[26:30] in self._cells:
            return True
        payload = 34 + (head[46] >> 4) * 4 if len(head) > 46 else len(head)
        return head[23] == _TCP and head[payload : payload + 2] == _HANDSHAKE

    def flush(self) -> None:
        """Give everything to the kernel. Raises `OSError`."""
        self._evidence.flush()
        self._turns[self._now].flush()

    def _turn(self) -> None:
        self._turns[self._now].flush()
        self._now = now = 1 - self._now
        self.dropped_packets += self._turns[now].frames
        self.dropped_evidence += self._turns[now].evidence
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
    """Every frame of this namespace's devices but loopback. Made before any device."""

    def __init__(self) -> None:
        self.lost = 0
        """Frames that the kernel had no room for."""
        self.socket = socket.socket(socket.AF_PACKET, _RAW, socket.htons(_ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        set_receive_buffer(self.socket, _SOCKET_BUFFER_BYTES)
        self.buffer_bytes = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        """As the kernel counts: a frame takes more than its bytes."""

    def read_into(self, files: PacketFiles) -> bool:
        """Take at most 512 frames; whether there may be more. Raises `OSError`."""
        taken = 0
        try:
            while taken < _MAX_AT_ONCE:
                length, ancillary, _, address = self.socket.recvmsg_into(
                    [files.room], 64, socket.MSG_TRUNC
                )
                taken += 1
                if address[3] == _LOOPBACK:
                    continue
                time_ns = 0
                for level, kind, data in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                        seconds, rest = _TIMESPEC.unpack_from(data)
                        time_ns = seconds * 1_000_000_000 + rest
                files.keep(time_ns, length, is_sent=address[2] == socket.PACKET_OUTGOING)
        except BlockingIOError:
            pass
        files.flush()
        return taken == _MAX_AT_ONCE

    def count_lost(self) -> int:
        """How many frames were lost since it was made."""
        statistics = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        self.lost += _STATISTICS.unpack(statistics)[1]  # the kernel counts anew each time
        return self.lost


def read_packets(file: BinaryIO) -> Iterator[tuple[int, int, bytes, bytes]]:
    """(time in ns, bytes of the frame, block's head, frame and tail), up to a cut-off block.

    Raises `ValueError`: no packet record.
    """
    if file.read(len(HEADER)) != HEADER:
        raise ValueError("no packet record: its first bytes are not its header")
    read, unpack, head_bytes = file.read, _HEAD.unpack, _HEAD.size  # locals: a fifth quicker
    while len(head := read(head_bytes)) == head_bytes:
        kind, size, _, high, low, kept, _ = unpack(head)
        if kind != _PACKET_BLOCK or kept > SNAP_BYTES or size != _BLOCK_BYTES + kept + (-kept & 3):
            return
        rest = read(size - head_bytes)
        if len(rest) < size - head_bytes:
            return
        yield high << 32 | low, kept, head, rest


def sent_frames(file: BinaryIO) -> Iterator[tuple[float, bytes]]:
    """Time (seconds since the epoch) and bytes of each frame sent to a cell.

    Raises `ValueError`: no packet record.
    """
    return (
        (time_ns * 1e-9, rest[:kept])
        for time_ns, kept, _, rest in read_packets(file)
        if rest[_FLAGS_AT] & 3 == _OUTBOUND
    )


def with_frames(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The files that hold a whole frame. Raises `OSError`."""
    found = []
    for path in paths:
        if path.is_file() and path.stat().st_size > len(HEADER):
            with path.open("rb") as file:
                found += [path] * (next(read_packets(file), None) is not None)
    return tuple(found)


def join(first: Path, *others: Path) -> None:
    """Merge all files into the first, by time, without cut-off blocks; remove the others.

    Raises `OSError` where the disk has no room: then all are as they were.
    """
    part = first.with_name(f".{first.name}.part")
    try:
        with ExitStack() as stack:
            files = [
                stack.enter_context(path.open("rb", buffering=BUFFER_BYTES))
                for path in (first, *others)
                if path.is_file() and path.stat().st_size > len(HEADER)
            ]
            target = stack.enter_context(part.open("xb", buffering=BUFFER_BYTES))
            target.write(HEADER)
            merged = heapq.merge(*map(read_packets, files), key=itemgetter(0))
            target.writelines(part for _, _, *block in merged for part in block)
        part.replace(first)
    finally:
        part.unlink(missing_ok=True)
    for path in others:
        path.unlink(missing_ok=True)

"""The packet record: frames of a range's ports in one bounded pcapng file.

Inbound frames (from a cell) are kept whole, outbound ones until half of the room is used, then by
their headers, but for TLS handshakes: decryption needs the server's hello.
Sources: draft-ietf-opsawg-pcapng; packet(7), linux/if_packet.h (a VLAN tag is beside its frame).
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from typing import Final, TypeVar

from belljar.network.syscalls import set_receive_buffer

# Stands for the file's name in a write error: the writer has only descriptors.
RECORD: Final = "the packet record"
# Segmentation offload hands over frames of up to 64 KiB, unless a cell may set up its device.
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
# Type, length, interface, the time's halves, kept and original length of the frame.
_HEAD: Final = struct.Struct("<IIIIIII")
# Padding, the option `epb_flags`, the end of the options, the length once more.
_TAILS: Final = tuple(struct.Struct(f"<{padding}xHHIHHI") for padding in range(4))
_FLAGS_OPTION: Final = 2
_INBOUND, _OUTBOUND = 1, 2
_BLOCK_BYTES: Final = _HEAD.size + _TAILS[0].size  # beside the padded frame
_MAX_BLOCK_BYTES: Final = _BLOCK_BYTES + SNAP_BYTES
MIN_BYTES: Final = 8 * _MAX_BLOCK_BYTES  # The least that a file may be given.
_HEADERS_BYTES: Final = 136  # Ethernet, IPv4 and TCP with all their options, and a record's type.
_IPV4: Final = b"\x08\x00"
# Of a frame without IP options
_PROTOCOL_AT, _TCP_OFFSET_AT, _FLAGS_AT = 23, 47, 47
# Held until a flush, so that a frame costs no system call of its own.
_PENDING_BYTES: Final = 8 * _MAX_BLOCK_BYTES
_ALL_PROTOCOLS: Final = 0x0003  # ETH_P_ALL: only this shows what is sent, too
_LOOPBACK: Final = 772  # ARPHRD_LOOPBACK
_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; not in Python's socket
_TIMESPEC: Final = struct.Struct("@qq")
# linux/socket.h and linux/if_packet.h; not in Python's socket.
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_AUXDATA = 263, 6, 8
_STATISTICS: Final = struct.Struct("=II")  # tpacket_stats: packets, drops
_AUXDATA: Final = struct.Struct("=IIIHHHH")  # the first is the status, the last two are the tag
_VLAN_VALID, _VLAN_TPID_VALID = 1 << 4, 1 << 6  # TP_STATUS_VLAN_VALID, TP_STATUS_VLAN_TPID_VALID
_VLAN_AT: Final = 12  # of a frame: behind both addresses
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size) + socket.CMSG_SPACE(_AUXDATA.size)
# A server's flight has its hello in the first few hundred bytes.
_FLIGHT_BYTES: Final = 4096
# More goes to a cell in a handshake only by sixteen repetitions of a flight.
MAX_HANDSHAKE_BYTES: Final = 64 << 10
# Connections in a table, the oldest forgotten first; a gateway holds 11,000, and 2,000 in TLS.
_MAX_CONNECTIONS: Final = 16_384
# Likewise. One that is forgotten and goes on ends its range.
_MAX_ANSWERED, _MAX_ENDED = 65_536, 16_384
_SYN, _RST, _FIN_OR_RST = 0x02, 0x04, 0x05
_RAW: Final = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
# Most of a second of what a gateway can send; an ordinary user gets what the host allows.
_SOCKET_BUFFER_BYTES: Final = 64 << 20
# Frames in one go: a cell that floods keeps the supervisor from no other work.
_MAX_AT_ONCE: Final = 512
_K = TypeVar("_K")
_V = TypeVar("_V")


class PacketFile:
    """Writes frames until the file is full. A failed write raises `OSError`, which ends the range.

    `dropped_packets`: frames of cells and handshakes that aren't whole, which are missing evidence.
    `cut_packets`: others, cut or without room. `datagrams`: to a cell, by UDP.
    `answered`: connections on which a cell was sent a first byte (False), or more than a handshake
    has (True), until the caller empties it.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        self.packets = self.dropped_packets = self.cut_packets = self.datagrams = 0
        # Maps, of which the kernel gives only what is written: most ranges have few frames. The
        # caller puts a frame into `room` before it calls `keep`.
        self.room: Final = memoryview(mmap.mmap(-1, SNAP_BYTES, mmap.MAP_PRIVATE))
        self.answered: list[tuple[bytes, bool]] = []
        self._flights: dict[bytes, int] = {}  # connection → bytes of it that are kept whole
        # Answered connections: what was sent, until either side ends it; more may follow then
        self._sent: dict[bytes, int] = {}
        self._ended: dict[bytes, int] = {}
        self._fd, self._max_bytes = fd, max(max_bytes, MIN_BYTES)
        self._pending = memoryview(mmap.mmap(-1, _PENDING_BYTES, mmap.MAP_PRIVATE))
        self._end = 0
        self._written = len(HEADER)
        _write_all(fd, memoryview(HEADER))

    def keep(self, time_ns: int, length: int, *, is_sent: bool) -> None:
        """Keep the frame in `room`; `is_sent`: to a cell. Raises `OSError`."""
        self.packets += 1
        used = self._written + self._end
        is_evidence = not is_sent or self._take_sent(length)
        if not is_sent and self.room[_FLAGS_AT] & _RST:
            # Perhaps a false one: it has the connection forgotten sooner than others.
            sent, *_ = tcp_part(self.room[: min(length, _HEADERS_BYTES)], length)
            self._end_of(sent[4:8] + sent[:4] + sent[10:12] + sent[8:10])
        is_cut = not is_evidence and used > self._max_bytes // 2
        kept = min(length, _HEADERS_BYTES if is_cut else SNAP_BYTES)
        padding = -kept & 3
        size = _BLOCK_BYTES + kept + padding
        has_room = used + size <= self._max_bytes
        is_missing = kept < length or not has_room
        self.dropped_packets += is_evidence and is_missing
        self.cut_packets += not is_evidence and is_missing
        if not has_room:
            return
        if self._end + size > _PENDING_BYTES:
            self.flush()
        pending, at = self._pending, self._end
        high, low = time_ns >> 32 & 0xFFFF_FFFF, time_ns & 0xFFFF_FFFF
        _HEAD.pack_into(pending, at, _PACKET_BLOCK, size, 0, high, low, kept, length)
        at += _HEAD.size
        pending[at : at + kept] = self.room[:kept]
        flags = _OUTBOUND if is_sent else _INBOUND
        _TAILS[padding].pack_into(pending, at + kept, _FLAGS_OPTION, 4, flags, 0, 0, size)
        self._end += size

    def flush(self) -> None:
        _write_all(self._fd, self._pending[: self._end])
        self._written += self._end
        self._end = 0

    def _take_sent(self, length: int) -> bool:
        head = self.room[: min(length, _HEADERS_BYTES)]
        connection, begins, size, flags = tcp_part(head, length)
        is_ip = bytes(head[12:14]) == _IPV4 and length > _PROTOCOL_AT
        self.datagrams += is_ip and head[_PROTOCOL_AT] == socket.IPPROTO_UDP
        if flags & _SYN:  # of a new one
            self._sent.pop(connection, None)
            self._ended.pop(connection, None)
        if size:
            # Counted on behind its end: a refusal of the rules may reset one that goes on.
            is_over = connection in self._ended
            table, most = (self._ended, _MAX_ENDED) if is_over else (self._sent, _MAX_ANSWERED)
            before = table.pop(connection, 0)
            if not before:
                self.answered.append((connection, False))
            if before <= MAX_HANDSHAKE_BYTES < before + size:
                self.answered.append((connection, True))
            put_bounded(table, connection, before + size, most)
        if flags & _FIN_OR_RST:
            self._end_of(connection)
        if not begins and not size:
            return False
        left = _FLIGHT_BYTES if begins else self._flights.get(connection, 0)
        self._flights.pop(connection, None)
        if size < left:
            put_bounded(self._flights, connection, left - size, _MAX_CONNECTIONS)
        return begins or size <= left  # larger than what is left of a flight: an answer

    def _end_of(self, connection: bytes) -> None:
        if connection in self._sent:
            put_bounded(self._ended, connection, self._sent.pop(connection), _MAX_ENDED)


def put_bounded(table: dict[_K, _V], key: _K, value: _V, most: int) -> _V | None:
    """Put it last; return the oldest value, forgotten when there are more than `most`."""
    table.pop(key, None)
    table[key] = value
    return table.pop(next(iter(table))) if len(table) > most else None


def tcp_part(head: memoryview, length: int) -> tuple[bytes, bool, int, int]:
    """Return a frame's connection, if it begins a TLS handshake, its payload's size, its flags.

    The connection: both addresses, then both ports, the sender's first. Pure.
    """
    if (
        bytes(head[12:14]) != _IPV4
        or len(head) < _TCP_OFFSET_AT
        or head[_PROTOCOL_AT] != socket.IPPROTO_TCP
    ):
        return b"", False, 0, 0
    tcp = 14 + (head[14] & 15) * 4
    has_flags = len(head) > tcp + 13
    payload = tcp + (head[tcp + 12] >> 4) * 4 if has_flags else len(head)
    begun = bytes(head[payload : min(payload + 2, length)])
    size = max(0, length - payload)
    connection = bytes(head[26:34]) + bytes(head[tcp : tcp + 4])
    begins = bool(begun) and b"\x16\x03".startswith(begun)
    return connection, begins, size, head[tcp + 13] if has_flags else 0


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
    """Reads all frames but loopback's. It is made before any device."""

    def __init__(self) -> None:
        self.lost = 0  # Frames that the kernel had no room for.
        self.socket = socket.socket(socket.AF_PACKET, _RAW, socket.htons(_ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        set_receive_buffer(self.socket, _SOCKET_BUFFER_BYTES)
        # The kernel's count: a frame takes more than its bytes.
        self.buffer_bytes = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    def read_into(self, file: PacketFile) -> bool:
        """Take at most 512 frames; return whether more may follow."""
        taken = 0
        try:
            while taken < _MAX_AT_ONCE:
                # With MSG_TRUNC the length is the frame's own (packet(7)).
                length, ancillary, _, address = self.socket.recvmsg_into(
                    [file.room], _ANCILLARY_BYTES, socket.MSG_TRUNC
                )
                taken += 1
                if address[3] == _LOOPBACK:
                    continue
                time_ns = 0
                for level, kind, data in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                        seconds, rest = _TIMESPEC.unpack_from(data)
                        time_ns = seconds * 1_000_000_000 + rest
                    elif (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                        length += put_tag_back(file.room, length, data)
                file.keep(time_ns, length, is_sent=address[2] == socket.PACKET_OUTGOING)
        except BlockingIOError:
            pass
        file.flush()
        return taken == _MAX_AT_ONCE

    def count_lost(self) -> int:
        statistics = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        self.lost += _STATISTICS.unpack(statistics)[1]  # the kernel counts anew each time
        return self.lost


def put_tag_back(room: memoryview, length: int, auxdata: bytes) -> int:
    """Insert a frame's VLAN tag (IEEE 802.1Q); return its byte count."""
    status, *_, tag, protocol = _AUXDATA.unpack_from(auxdata)
    if not status & _VLAN_VALID:
        return 0
    end = min(length, len(room) - 4)
    room[_VLAN_AT + 4 : end + 4] = bytes(room[_VLAN_AT:end])
    # Without a valid TPID, the tag is 802.1Q's ordinary one.
    known = protocol if status & _VLAN_TPID_VALID else 0x8100
    room[_VLAN_AT : _VLAN_AT + 4] = struct.pack("!HH", known, tag)
    return 4

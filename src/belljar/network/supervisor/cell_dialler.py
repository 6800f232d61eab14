"""Dials a target cell before a connection of another cell is let in.

The rules drop and log a connection's first segment (SYN). Loopback sends it again, to be let in or
refused as the target did. So the gateway, which gets both ends, can begin none itself.
"""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import suppress
from typing import Any, Final, NamedTuple

from belljar.network import ipc
from belljar.network.packets import put_bounded
from belljar.plan.rules import DIAL_MARK, ENTER_MARK, REFUSE_MARK

# Targets that don't answer: a further client tries again, as when the target's queue is full.
MAX_WAITING: Final = 256
MAX_WAITING_OF_CLIENT: Final = 64  # One cell can't take all.
# First segments that may come again, as their client has seen no answer.
MAX_REMEMBERED: Final = 4096
# Dialled halves; the gateway holds 1,000, and 1,000 that are not joined yet.
_MAX_HALVES: Final = 16_384
# Of the kernel's attempts: some 15 s. A client that waits longer asks for another.
_ATTEMPTS: Final = 3
# linux/in.h. With the second, one local port may serve connections to several targets (ip(7)).
IP_TRANSPARENT: Final = 19
_IP_BIND_ADDRESS_NO_PORT: Final = 24
_TCP: Final = 6
_MIN_IP_BYTES, _MIN_TCP_BYTES = 20, 20


class First(NamedTuple):
    client: tuple[str, int]
    target: tuple[str, int]
    sequence: int
    packet: bytes


def parse_first(packet: bytes) -> First | None:
    """Read a logged IPv4 packet; None without a whole TCP header. Pure."""
    if len(packet) < _MIN_IP_BYTES or packet[0] >> 4 != 4 or packet[9] != _TCP:
        return None
    at = 4 * (packet[0] & 15)
    if at < _MIN_IP_BYTES or len(packet) < at + _MIN_TCP_BYTES:
        return None
    end = at + 4 * (packet[at + 12] >> 4)
    if not at + _MIN_TCP_BYTES <= end <= len(packet):
        return None
    source_port, target_port, sequence = struct.unpack_from("!HHI", packet, at)
    # A cell's device may leave the checksum to whoever sends it on, and data would be cut off
    segment = bytearray(packet[at:end])
    segment[16:18] = bytes(2)
    pseudo = packet[12:20] + struct.pack("!HH", _TCP, len(segment))
    segment[16:18] = struct.pack("!H", checksum(pseudo + segment))
    # The kernel fills in this header's own checksum (raw(7)).
    head = packet[:2] + struct.pack("!H", end) + packet[4:at]
    return First(
        client=(socket.inet_ntoa(packet[12:16]), source_port),
        target=(socket.inet_ntoa(packet[16:20]), target_port),
        sequence=sequence,
        packet=head + bytes(segment),
    )


def checksum(data: bytes | bytearray) -> int:
    """Return the Internet checksum (RFC 1071)."""
    # A sum in ones' complement is the remainder by 2^16 - 1.
    total = int.from_bytes(bytes(data) + bytes(len(data) % 2), "big") % 0xFFFF
    return ~total & 0xFFFF


class CellDialler:
    """It is made before the supervisor's confinement; nothing blocks."""

    def __init__(self, gateway: socket.socket) -> None:
        gateway.setblocking(False)  # noqa: FBT003 - the library's signature
        # Descriptors that a gateway left in it would count against its user, who has a limit
        gateway.shutdown(socket.SHUT_RD)
        self.waiting: dict[socket.socket, First] = {}
        self._gateway = gateway
        # Connected or not, by client, target and first sequence number
        self._begun: dict[tuple[Any, ...], bool] = {}
        # A half's frames, as `packets.tcp_part` names them → its client's.
        self._clients: dict[bytes, bytes] = {}
        self._enter, self._refuse = _raw(ENTER_MARK), _raw(REFUSE_MARK)

    def begin(self, packet: bytes) -> None:
        """Dial for a logged first segment, or readmit it if already dialled."""
        first = parse_first(packet)
        if first is None:
            return
        if (is_connected := self._begun.get(first[:3])) is not None:
            if is_connected:  # the answer to the segment was lost
                _send_again(self._enter, first)
            return
        of_client = sum(1 for each in self.waiting.values() if each.client[0] == first.client[0])
        if len(self.waiting) >= MAX_WAITING or of_client >= MAX_WAITING_OF_CLIENT:
            return  # Its client sends it again.
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            end.setblocking(False)  # noqa: FBT003 - the library's signature
            end.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
            end.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, DIAL_MARK)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _ATTEMPTS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.bind((first.client[0], 0))
            number = end.connect_ex(first.target)
        except OSError as exc:
            number = exc.errno or errno.EIO
        put_bounded(self._begun, first[:3], False, MAX_REMEMBERED)  # noqa: FBT003 - a value
        if number == errno.EINPROGRESS:
            self.waiting[end] = first
        else:
            self._dialled(end, first, number)

    def as_dialled(self, connection: bytes) -> bytes:
        """Return the client's own connection, for frames of a half to its target."""
        return self._clients.get(connection, connection)

    def finish(self, end: socket.socket) -> None:
        first = self.waiting.pop(end)
        number = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # This call alone ends the dial in the kernel: else the half's next `connect` succeeds
        number = number or end.connect_ex(first.target)
        self._dialled(end, first, 0 if number == errno.EISCONN else number)

    def _dialled(self, end: socket.socket, first: First, number: int) -> None:
        message: dict[str, Any] = {"client": first.client, "target": first.target}
        with end:
            if not number:
                half = _connection(first, end.getsockname()[1])
                client = _connection(first, first.client[1])
                put_bounded(self._clients, half, client, _MAX_HALVES)
                # Else the gateway is gone, or reads too slowly
                with suppress(ipc.ClosedError, OSError):
                    ipc.send(self._gateway, message, [end.fileno()])
                    self._begun[first[:3]] = True
                    _send_again(self._enter, first)
                    return
        self._begun.pop(first[:3], None)
        # No answer, or no room: the client gets none either, and tries again
        if number not in (0, errno.ETIMEDOUT):
            _send_again(self._refuse, first)


def _connection(first: First, port: int) -> bytes:
    ends = socket.inet_aton(first.client[0]) + socket.inet_aton(first.target[0])
    return ends + struct.pack("!HH", port, first.target[1])


def _raw(mark: int) -> socket.socket:
    # IPPROTO_RAW: packets come with their IP header (raw(7)).
    made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    made.setblocking(False)  # noqa: FBT003 - the library's signature
    made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    return made


def _send_again(by: socket.socket, first: First) -> None:
    with suppress(OSError):  # without room the client tries again
        by.sendto(first.packet, (first.target[0], 0))

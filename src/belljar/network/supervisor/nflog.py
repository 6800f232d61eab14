"""What the rules log: packets' first bytes from the kernel (NFLOG), read into flows.

Parses a guest's headers, fixed ones alone; pure but for the socket.

linux/netfilter/nfnetlink_log.h, RFC 791, 793, 768, 8200 (fixed header).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from belljar.network.supervisor import netlink

_NETFILTER: Final = 12
_SUBSYSTEM_LOG: Final = 4
_PACKET, _CONFIG = _SUBSYSTEM_LOG << 8, _SUBSYSTEM_LOG << 8 | 1
_NOTIFY_RULES_GROUP: Final = 7  # NFNLGRP_NFTABLES
_CFG_COMMAND, _CFG_MODE, _CFG_TIMEOUT, _CFG_THRESHOLD = 1, 2, 4, 5
_COMMAND_BIND: Final = 1
_COPY_PACKET: Final = 2
_NFGEN: Final = struct.Struct("=BBH")
_AT_HEADER, _AT_IN_DEVICE, _AT_PAYLOAD, _AT_PREFIX = 1, 4, 9, 10
_BUFFER_BYTES: Final = 4 << 20
"""Room for some 10,000 records, five cells' bursts; an ordinary user gets what `net.core.rmem_max`
allows.
"""
_READ_BYTES: Final = 1 << 16
_PROTOCOLS: Final = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}
_WITH_PORTS: Final = frozenset({6, 17, 132})
_MAX_PREFIX_CHARS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One logged packet: the rules' word for why, and what its headers say.

    `bytes` is the length that the IP header claims; addresses are empty when there is none.
    """

    reason: str
    device: int
    protocol: str
    source: str
    destination: str
    port: int | None
    bytes: int


def open_log(group: int, snap_bytes: int) -> socket.socket:
    """A socket that gets what this namespace's rules log to the group, each packet at once.

    Doesn't block. Raises `OSError`.
    """
    kernel = _open()
    _configure(kernel, group, _CFG_COMMAND, struct.pack("=B", _COMMAND_BIND))
    _configure(kernel, group, _CFG_MODE, struct.pack(">IBx", snap_bytes, _COPY_PACKET))
    _configure(kernel, group, _CFG_THRESHOLD, struct.pack(">I", 1))
    _configure(kernel, group, _CFG_TIMEOUT, struct.pack(">I", 1))
    kernel.settimeout(0.0)
    return kernel


def open_changes() -> socket.socket:
    """A socket that gets a word whenever a rule of this namespace changes.

    Doesn't block. Raises `OSError`.
    """
    kernel = _open()
    kernel.bind((0, 1 << (_NOTIFY_RULES_GROUP - 1)))
    kernel.settimeout(0.0)
    return kernel


def read_all(kernel: socket.socket) -> Iterator[bytes]:
    """The datagrams that are there. What the kernel had no room for is skipped."""
    while True:
        try:
            yield kernel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            if exc.errno != 105:  # ENOBUFS
                raise


def parse_log(datagram: bytes) -> Iterator[Logged]:
    """The packets of a datagram from the kernel; what can't be read is left out. Pure, total."""
    for kind, payload in netlink.messages(datagram):
        if kind == _PACKET and len(payload) >= _NFGEN.size:
            yield _logged(dict(netlink.attributes(payload[_NFGEN.size :])))


def _logged(found: dict[int, bytes]) -> Logged:
    prefix = found.get(_AT_PREFIX, b"").rstrip(b"\0").decode("ascii", "replace")[:_MAX_PREFIX_CHARS]
    protocol, source, destination, port, length = parse_packet(found.get(_AT_PAYLOAD, b""))
    return Logged(
        reason=prefix,
        device=_number(found.get(_AT_IN_DEVICE)) or 0,
        protocol=protocol,
        source=source,
        destination=destination,
        port=port,
        bytes=length,
    )


def parse_packet(packet: bytes) -> tuple[str, str, str, int | None, int]:
    """(protocol, source, destination, destination port or None, length claimed) of a packet's first
    bytes. Pure, total.
    """
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        return _ipv4(packet)
    if version == 6 and len(packet) >= 40:
        (length,) = struct.unpack_from(">H", packet, 4)
        number = packet[6]
        source, destination = str(IPv6Address(packet[8:24])), str(IPv6Address(packet[24:40]))
        return _name(number), source, destination, _port(packet, 40, number), length + 40
    return "unknown", "", "", None, len(packet)


def _ipv4(packet: bytes) -> tuple[str, str, str, int | None, int]:
    header = 4 * (packet[0] & 0xF)
    (length,) = struct.unpack_from(">H", packet, 2)
    (fragment,) = struct.unpack_from(">H", packet, 6)
    number = packet[9]
    port = _port(packet, header, number) if header >= 20 and fragment & 0x1FFF == 0 else None
    return (
        _name(number),
        str(IPv4Address(packet[12:16])),
        str(IPv4Address(packet[16:20])),
        port,
        length,
    )


def _port(packet: bytes, at: int, number: int) -> int | None:
    if number not in _WITH_PORTS or len(packet) < at + 4:
        return None
    return int(struct.unpack_from(">H", packet, at + 2)[0])


def _name(number: int) -> str:
    return _PROTOCOLS.get(number, f"ip-{number}")


def _number(value: bytes | None) -> int | None:
    return int(struct.unpack(">I", value)[0]) if value is not None and len(value) == 4 else None


def _open() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    kernel.settimeout(5.0)
    try:
        kernel.setsockopt(socket.SOL_SOCKET, 33, _BUFFER_BYTES)  # SO_RCVBUFFORCE
    except PermissionError:  # asks for a right over the whole host
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return kernel


def _configure(kernel: socket.socket, group: int, attribute: int, value: bytes) -> None:
    netlink.exchange(
        kernel,
        netlink.message(
            _CONFIG,
            _NFGEN.pack(socket.AF_UNSPEC, 0, socket.htons(group))
            + netlink.attribute(attribute, value),
        ),
    )

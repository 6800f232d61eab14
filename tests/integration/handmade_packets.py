"""Packets as a cell could write them by hand, for `rules_world`."""

from __future__ import annotations

import ipaddress
import struct


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(
    source: str,
    target: str,
    protocol: int,
    payload: bytes,
    *,
    fragment: int = 0,
    options: bytes = b"",
) -> bytes:
    """A packet as a cell could write it by hand."""
    words = 5 + len(options) // 4
    addresses = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address(target).packed
    head = struct.pack(
        "!BBHHHBBH", 0x40 | words, 0, 4 * words + len(payload), 7, fragment, 64, protocol, 0
    )
    whole = head + addresses + options
    return whole[:10] + struct.pack("!H", checksum(whole)) + whole[12:] + payload


def ipv6(source: str, target: str) -> bytes:
    """A packet without contents (next header 59)."""
    addresses = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address(target).packed
    return struct.pack("!IHBB", 6 << 28, 0, 59, 64) + addresses


def syn(source: str, target: str, port: int, *, source_port: int = 40000) -> bytes:
    """The first segment of a connection."""
    head = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 0x50, 0x02, 1024, 0, 0)
    pseudo = (
        ipaddress.IPv4Address(source).packed
        + ipaddress.IPv4Address(target).packed
        + struct.pack("!BBH", 0, 6, 20)
    )
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]

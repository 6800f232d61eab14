"""What the rules log, parsed: a guest's headers, never believed beyond their bytes."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.supervisor import netfilter, netlink

PACKET = (
    bytes.fromhex("4500003c00004000400600000a0000020a000001")
    + struct.pack(">HH", 40000, 443)
    + bytes(16)
)


def logged(prefix: str, packet: bytes) -> bytes:
    """A datagram as the kernel's log sends it."""
    attributes = (
        netlink.attribute(10, prefix.encode() + b"\0")
        + netlink.attribute(9, packet)
        + netlink.attribute(4, struct.pack(">I", 3))
    )
    return netlink.message(4 << 8, bytes(4) + attributes)


def test_a_refused_connection() -> None:
    """Why, from where, to where, on which port, how long."""
    (seen,) = netfilter.parse_log(logged("port", PACKET))
    assert (seen.reason, seen.device, seen.protocol) == ("port", 3, "tcp")
    assert (seen.source, seen.destination, seen.port, seen.bytes) == (
        "10.0.0.2",
        "10.0.0.1",
        443,
        60,
    )


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet(packet: bytes) -> None:
    """Whatever a guest sends has a protocol and a length within their bounds, and raises
    nothing."""
    protocol, _, _, port, length = netfilter.parse_packet(packet)
    assert protocol
    assert port is None or 0 <= port < 65536
    assert 0 <= length <= 65535 + 40
    (seen,) = netfilter.parse_log(logged("x", packet))
    assert seen.reason == "x"


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(0, 100), st.binary(max_size=8))
def test_any_datagram_is_read(noise: bytes, at: int, change: bytes) -> None:
    """A damaged or invented datagram gives packets or nothing, and raises nothing."""
    list(netfilter.parse_log(noise))
    good = logged("port", PACKET)
    list(netfilter.parse_log(good[:at] + change + good[at + len(change) :]))

"""The kernel's messages, parsed."""

from __future__ import annotations

import contextlib
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.supervisor import netfilter, netlink

ROUTE = bytes((2, 8, 0, 0, 254, 4, 253, 1)) + bytes(4)


def test_a_route_of_the_kernel_s() -> None:
    """As RTM_GETROUTE lists it (linux/rtnetlink.h)."""
    device, table = (
        netlink.attribute(4, struct.pack("=I", 7)),
        netlink.attribute(15, struct.pack("=I", 1000)),
    )
    to, used = netlink.attribute(1, bytes((10, 0, 0, 0))), netlink.attribute(12, bytes(32))
    route = netlink.parse_route(ROUTE + to + device + table + used)
    assert (str(route.to), route.device, route.table, route.kind) == ("10.0.0.0/8", 7, 1000, 1)
    assert route == netlink.parse_route(ROUTE + to + device + table)
    assert route != netlink.parse_route(
        ROUTE + to + device + table + netlink.attribute(5, bytes((10, 0, 0, 1)))
    )
    assert str(netlink.parse_route(bytes((10, 0, 0, 0, 254, 4, 0, 1)) + bytes(4)).to) == "::/0"


@settings(deadline=None)
@given(st.binary(min_size=12, max_size=100))
def test_any_route_is_read_or_refused(payload: bytes) -> None:
    """What is no route is a `ValueError`, and nothing else."""
    with contextlib.suppress(ValueError):
        netlink.parse_route(payload)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_response_is_read(reply: bytes) -> None:
    """Lengths that lie end the reading; nothing is raised, and nothing is read twice."""
    assert sum(len(payload) for _, payload in netlink.messages(reply)) <= len(reply)
    assert sum(len(value) for _, value in netlink.attributes(reply)) <= len(reply)


PACKET = (
    bytes.fromhex("4500003c00004000400600000a0000020a000001")
    + struct.pack(">HH", 40000, 443)
    + bytes(16)
)


def logged(prefix: str, packet: bytes) -> bytes:
    attributes = (
        netlink.attribute(10, prefix.encode() + b"\0")
        + netlink.attribute(9, packet)
        + netlink.attribute(4, struct.pack(">I", 3))
    )
    return netlink.message(4 << 8, bytes(4) + attributes)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet(packet: bytes) -> None:
    """Whatever a guest sends has a protocol and a bounded length, and raises nothing."""
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

"""The kernel's messages: requests are as the headers define, and any reply is parsed."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.supervisor import netlink


def test_the_kernels_refusal_is_an_error() -> None:
    """Minus an errno is that error; zero is an acknowledgement."""
    netlink.raise_error(struct.pack("=i", 0))
    with pytest.raises(FileExistsError):
        netlink.raise_error(struct.pack("=i", -17))


ROUTE = bytes((2, 8, 0, 0, 254, 4, 253, 1)) + bytes(4)


def test_a_route_of_the_kernel_s() -> None:
    """As RTM_GETROUTE lists it (linux/rtnetlink.h): the long table's number counts, what only
    counts use doesn't, all else does."""
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


def test_a_port_s_route_is_listed_as_it_was_made() -> None:
    """What the kernel is asked for, read as its listing, is what is looked for."""
    asked = netlink.route_on_link(7, "10.1.2.3")
    route = netlink.as_listed(asked)
    assert (str(route.to), route.device, route.table, route.kind) == ("10.1.2.3/32", 7, 254, 1)
    assert route.rest == {(0, bytes((0, 0, 4, 253)))}


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

"""A range's namespace, judged: its devices, and what differs from its baseline."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.supervisor import netlink
from belljar.network.supervisor.links import (
    MAX_BYTES_PER_S,
    Baseline,
    LivePort,
    differences,
    line_bytes_per_s,
    unexpected_devices,
)
from belljar.network.supervisor.netlink import Link, Route
from belljar.plan.addresses import CellPort

PORT = CellPort(
    name="agent", address="10.1.2.3", mac="02:00:00:00:00:01", gateway_mac="", outer_device="p0"
)
PORTS = {3: LivePort(port=PORT, index=3, peer=(2, 0))}
LOOPBACK = Link(index=1, name="lo", is_up=True)
LOCAL = Route(to=ip_network("127.0.0.0/8"), device=1, table=255, kind=2, rest=frozenset())
ELSEWHERE = Route(to=ip_network("0.0.0.0/0"), device=7, table=254, kind=1, rest=frozenset())
MULTICAST6 = Route(to=ip_network("ff00::/8"), device=7, table=255, kind=5, rest=frozenset())
LEFT = Baseline(
    routes=frozenset({LOCAL}),
    policy=frozenset({b"local", b"main"}),
    settings={"a": "0", "conf/p0/a": "1"},
)


def test_loopback_ports_and_what_is_down_are_no_strangers() -> None:
    """The kernel makes some devices itself, which are down."""
    down = Link(index=2, name="sit0", is_up=False)
    for peer in ((2, 0), (2, -1), None):
        port = Link(index=3, name="p0", is_up=True, peer=peer)
        assert list(unexpected_devices([LOOPBACK, down, port], PORTS)) == []


def test_another_device_and_another_end_are_named() -> None:
    """One that is up and no port, whatever it is called."""
    assert list(unexpected_devices([LOOPBACK, Link(index=4, name="p0", is_up=True)], PORTS)) == [
        "a device is up that is no cell's port: p0"
    ]
    for peer in ((4, 0), (2, 1), (2, None)):
        assert list(
            unexpected_devices([Link(index=3, name="p0", is_up=False, peer=peer)], PORTS)
        ) == ["the port of the cell agent leads elsewhere"]


@given(st.integers(1, 1 << 30), st.integers(0, 250))
def test_all_ports_together_are_slower_than_the_record(buffer_bytes: int, ports: int) -> None:
    """None is faster than the others."""
    together = line_bytes_per_s(buffer_bytes, ports) * max(1, ports)
    assert together <= MAX_BYTES_PER_S
    assert 2 * together / 8 <= buffer_bytes
    assert together > min(MAX_BYTES_PER_S, 4 * buffer_bytes) - max(1, ports)


def on_link(device: int, ip: str) -> Route:
    return netlink.as_listed(netlink.route(device, ip))


def routes(*found: Route) -> Baseline:
    return replace(LEFT, routes=frozenset(found))


def settings(**found: str) -> Baseline:
    return replace(LEFT, settings=found)


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (LEFT, ""),
        # A port's own route, the kernel's for its multicast, and settings that went with a device
        (routes(LOCAL, on_link(7, "10.1.2.3"), MULTICAST6), ""),
        (settings(a="0"), ""),
        (routes(LOCAL, ELSEWHERE), "a route that was not there: 0.0.0.0/0 by device 7"),
        (routes(LOCAL, on_link(8, "10.1.2.3")), "a route that was not there: 10.1.2.3/32"),
        (routes(LOCAL, on_link(7, "10.1.2.4")), "a route that was not there: 10.1.2.4/32"),
        (routes(), "a route is gone: 127.0.0.0/8"),
        (routes(replace(LOCAL, rest=frozenset({(5, b"x")}))), "a route that was not there: 127"),
        (replace(LEFT, policy=frozenset({b"main"})), "the policy of routing is another"),
        (settings(a="1"), "a was 0 and is 1"),
        (replace(LEFT, settings={"a": "0", "conf/p0/a": "2"}), "conf/p0/a was 1 and is 2"),
    ],
)
def test_each_change_is_named(now: Baseline, changed: str) -> None:
    """Whatever is added, gone or another, also on a port's device; and nothing else."""
    named = differences(LEFT, now, {7: "10.1.2.3"})
    assert bool(named) == bool(changed)
    assert "; ".join(named).startswith(changed)

"""What stands in a range's namespace, compared."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from belljar.network.supervisor import netlink
from belljar.network.supervisor.links import Baseline, differences
from belljar.network.supervisor.netlink import Route

LOOPBACK = Route(to=ip_network("127.0.0.0/8"), device=1, table=255, kind=2, rest=frozenset())
ELSEWHERE = Route(to=ip_network("0.0.0.0/0"), device=7, table=254, kind=1, rest=frozenset())
MULTICAST6 = Route(to=ip_network("ff00::/8"), device=7, table=255, kind=5, rest=frozenset())
LEFT = Baseline(
    routes=frozenset({LOOPBACK}),
    policy=frozenset({b"local", b"main"}),
    settings={"a": "0", "conf/p0/a": "1"},
)
PORTS = {7: "10.1.2.3"}


def on_link(device: int, ip: str) -> Route:
    """A port's route, as the kernel lists it."""
    return netlink.as_listed(netlink.route_on_link(device, ip))


def found(*routes: Route) -> Baseline:
    """As it was left, with these routes."""
    return replace(LEFT, routes=frozenset(routes))


def test_what_is_as_it_was_left_is_no_difference() -> None:
    """Nor is a port's own route, the kernel's for its multicast, or that a device's settings went
    with it."""
    assert differences(LEFT, LEFT, {}) == ()
    assert differences(LEFT, found(LOOPBACK, on_link(7, "10.1.2.3"), MULTICAST6), PORTS) == ()
    assert differences(LEFT, replace(LEFT, settings={"a": "0"}), PORTS) == ()


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            found(LOOPBACK, ELSEWHERE),
            "a route that was not there: 0.0.0.0/0 by device 7 in table 254, kind 1",
        ),
        (
            found(LOOPBACK, on_link(8, "10.1.2.3")),
            "a route that was not there: 10.1.2.3/32 by device 8",
        ),
        (
            found(LOOPBACK, on_link(7, "10.1.2.4")),
            "a route that was not there: 10.1.2.4/32 by device 7",
        ),
        (found(), "a route is gone: 127.0.0.0/8"),
        (
            found(replace(LOOPBACK, rest=frozenset({(5, b"x")}))),
            "a route that was not there: 127.0.0.0/8",
        ),
        (replace(LEFT, policy=frozenset({b"main"})), "the policy of routing is another"),
        (replace(LEFT, settings={"a": "1", "conf/p0/a": "1"}), "a was 0 and is 1"),
        (replace(LEFT, settings={"a": "0", "conf/p0/a": "2"}), "conf/p0/a was 1 and is 2"),
    ],
)
def test_each_change_is_named(now: Baseline, said: str) -> None:
    """Whatever is added, gone or another, also on a port's device."""
    assert differences(LEFT, now, PORTS)[0].startswith(said)

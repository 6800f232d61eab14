"""What stands in a range's namespace beside its rules: routes, routing policy and settings, as its
supervisor left them. Read, and compared as a whole.

Whoever changes one by hand could lead packets past what the rules were written for: a route
elsewhere, a table that some packets are routed by, source routing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Route
from belljar.units import printable

SETTINGS: Final = Path("/proc/sys/net")
_WHOLE: Final = (
    "ipv4/ip_forward",
    "ipv4/ip_unprivileged_port_start",
    "ipv4/icmp_ratemask",
    "ipv4/tcp_rmem",
    "ipv4/tcp_wmem",
)
_OF_DEVICE: Final = (
    *(
        f"ipv4/conf/%s/{name}"
        for name in (
            *(
                "accept_local",
                "accept_redirects",
                "accept_source_route",
                "arp_ignore",
                "bc_forwarding",
                "forwarding",
            ),
            *("proxy_arp", "route_localnet", "rp_filter", "secure_redirects", "send_redirects"),
        )
    ),
    *(
        f"ipv6/conf/%s/{name}"
        for name in (
            *(
                "accept_ra",
                "accept_redirects",
                "accept_source_route",
                "addr_gen_mode",
                "disable_ipv6",
                "forwarding",
            ),
            *("proxy_ndp",),
        )
    ),
)
_ALWAYS: Final = ("all", "default", "lo")
_MULTICAST6: Final = ip_network("ff00::/8")
_TOLD: Final = 8
_MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Routes of IPv4 and IPv6 in every table, the policy that chooses among tables as the kernel
    lists it, and settings by their path below /proc/sys/net.
    """

    routes: frozenset[Route]
    policy: frozenset[bytes]
    settings: Mapping[str, str]


def read_baseline(kernel: socket.socket, devices: Collection[str]) -> Baseline:
    """As it is now in the namespace that this thread is in, of which `kernel` is a socket.

    Raises `OSError`.
    """
    families = (socket.AF_INET, socket.AF_INET6)
    return Baseline(
        routes=frozenset(
            route for family in families for route in netlink.list_routes(kernel, family)
        ),
        policy=frozenset(
            rule for family in families for rule in netlink.list_rules(kernel, family)
        ),
        settings={**dict(_read(_WHOLE)), **read_settings((*_ALWAYS, *devices))},
    )


def read_settings(devices: Collection[str]) -> dict[str, str]:
    """Those of the devices, by their names. Raises `OSError`."""
    return dict(_read(pattern % device for device in devices for pattern in _OF_DEVICE))


def _read(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        # A kernel without IPv6, an older one, a device that has gone
        with contextlib.suppress(FileNotFoundError):
            yield name, _content(f"{SETTINGS}/{name}")


def _content(path: str) -> str:
    """What the file says. (Dozens at each look, and `Path.read_text` takes five times as long.)"""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_BYTES).decode().strip()
    finally:
        os.close(fd)


def differences(left: Baseline, found: Baseline, ports: Mapping[int, str]) -> tuple[str, ...]:
    """What is not as it was left, in words, the first few. Pure.

    Args:
        ports: the cells' addresses by their devices' numbers. Each has one route, which goes with
            its device, and the kernel's own for IPv6's multicast.
    """
    return tuple(_differences(left, found, ports))[:_TOLD]


def _differences(left: Baseline, found: Baseline, ports: Mapping[int, str]) -> Iterator[str]:
    for route in sorted(found.routes - left.routes, key=str):
        if not _is_of_port(route, ports):
            yield f"a route that was not there: {route}"
    for route in sorted(left.routes - found.routes, key=str):
        yield f"a route is gone: {route}"
    if left.policy != found.policy:
        yield "the policy of routing is another"
    for name, value in left.settings.items():
        if (now := found.settings.get(name, value)) != value:
            yield f"{name} was {value} and is {printable(now, max_chars=40)}"


def _is_of_port(route: Route, ports: Mapping[int, str]) -> bool:
    if route.device is None or route.device not in ports:
        return False
    return (
        route == netlink.Route.on_link(route.device, ports[route.device]) or route.to == _MULTICAST6
    )

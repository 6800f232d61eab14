"""A range's namespace and ports: settings before the rules, and changes since.

A changed route, policy or setting could lead packets past the rules: all are read back.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from belljar.errors import CellError
from belljar.libc import enter_namespace
from belljar.network import syscalls
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Route
from belljar.plan.addresses import CellPort, RangeLayout
from belljar.plan.rules import ENTER_MARK, LOCAL_MARK, REFUSE_MARK
from belljar.units import printable

INNER_DEVICE: Final = "eth0"
_LOCAL_TABLE: Final = 100
# Before the kernel's own rule for the main table (32766), behind that for the local one (0).
_OWN_PRIORITY, _LOCAL_PRIORITIES = 99, (100, 98, 97)
_SIOCETHTOOL: Final = 0x8946  # linux/sockios.h
# ETHTOOL_STXCSUM, SSG, STSO, SGSO: checksums, scatter-gather, TCP and generic segmentation
_ETHTOOL_SET: Final = (0x17, 0x19, 0x1F, 0x24)
_IFREQ: Final = struct.Struct("16sP16x")  # ifreq: name, pointer, the rest of its union
MAX_BYTES_PER_S: Final = 64 << 20
# Least, first and most (tcp(7)); they are in nobody's memory limit: 1.3 GiB for 10,000 connections.
_TCP_BUFFER: Final = "4096 32768 65536"
SETTINGS: Final = Path("/proc/sys/net")
# Written in this order, forwarding first: to set it sets others anew (ip-sysctl.rst).
_WRITTEN: Final = {
    "ipv4/ip_forward": "0",
    "ipv4/ip_unprivileged_port_start": "0",
    # The rules limit answers to refusals: the kernel's own limit would leave clients waiting.
    "ipv4/icmp_ratemask": "0",
    "ipv4/tcp_rmem": _TCP_BUFFER,
    "ipv4/tcp_wmem": _TCP_BUFFER,
}
_WRITTEN_OF_DEVICE: Final = {
    "ipv4/conf/%s/arp_ignore": "8",  # no ARP request is answered
    "ipv4/conf/%s/accept_redirects": "0",
    "ipv4/conf/%s/secure_redirects": "0",
    "ipv4/conf/%s/send_redirects": "0",
    "ipv4/conf/%s/accept_source_route": "0",
    "ipv4/conf/%s/rp_filter": "1",  # Strict (RFC 3704)
    "ipv4/conf/%s/proxy_arp": "0",
    # Not disabled: the kernel would drop a cell's IPv6 before the rules count it.
    "ipv6/conf/%s/addr_gen_mode": "1",  # IN6_ADDR_GEN_MODE_NONE
    "ipv6/conf/%s/accept_ra": "0",
    "ipv6/conf/%s/accept_redirects": "0",
    "ipv6/conf/%s/forwarding": "0",
}
# Read back and compared: what is written, and what else could lead packets past the rules.
_READ_OF_DEVICE: Final = (
    *_WRITTEN_OF_DEVICE,
    *("ipv4/conf/%s/accept_local", "ipv4/conf/%s/bc_forwarding", "ipv4/conf/%s/forwarding"),
    *("ipv4/conf/%s/route_localnet", "ipv6/conf/%s/accept_source_route"),
    *("ipv6/conf/%s/disable_ipv6", "ipv6/conf/%s/proxy_ndp"),
)
_ALWAYS: Final = ("all", "default", "lo")
_MULTICAST6: Final = ip_network("ff00::/8")  # The kernel's own route of each device


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePort:
    port: CellPort
    index: int
    peer: tuple[int, int | None] | None


def prepare_namespace(layout: RangeLayout) -> socket.socket:
    for_all = (
        (pattern % device, value)
        for device in ("all", "default")
        for pattern, value in _WRITTEN_OF_DEVICE.items()
    )
    for name, value in (*_WRITTEN.items(), *for_all):
        try:
            (SETTINGS / name).write_text(value)
        except FileNotFoundError:
            if not name.startswith("ipv6/"):  # a kernel without IPv6
                raise
    kernel = netlink.open_socket()
    loopback = socket.if_nametoindex("lo")
    netlink.exchange(kernel, netlink.set_link(loopback, up=True))
    for prefix in layout.local_prefixes:
        netlink.exchange(kernel, netlink.route(loopback, prefix, local_table=netlink.TABLE_LOCAL))
    if layout.sink_port is not None or layout.proxy_port is not None:
        taken = layout.prefix if layout.sink_port is None else "0.0.0.0/0"
        route = netlink.route(loopback, taken, local_table=_LOCAL_TABLE)
        # Answers bear the mark too, and are to leave; first segments are sent again by loopback.
        netlink.exchange(kernel, route, netlink.rule(_OWN_PRIORITY))
        of_cells = () if layout.proxy_port is None else (ENTER_MARK, REFUSE_MARK)
        for priority, mark in zip(_LOCAL_PRIORITIES, (LOCAL_MARK, *of_cells), strict=False):
            netlink.exchange(kernel, netlink.rule(priority, _LOCAL_TABLE, mark=mark))
    return kernel


def make_port(
    kernel: socket.socket,
    inner: socket.socket,
    namespace_fd: int,
    port: CellPort,
    resolver: str,
    *,
    offloads: bool,
    bytes_per_s: int,
) -> LivePort:
    """Hang the cell at its port, all set before either end is up. Raises `OSError`: none is left.

    Without `offloads` frames leave whole, with checksums, none above the MTU.
    """
    request = netlink.veth(
        port.outer_device, port.gateway_mac, INNER_DEVICE, port.mac, namespace_fd
    )
    netlink.exchange(kernel, request)
    outer_index = socket.if_nametoindex(port.outer_device)
    try:
        for command in () if offloads else _ETHTOOL_SET:
            value = array.array("I", [command, 0])
            change = _IFREQ.pack(port.outer_device.encode("ascii"), value.buffer_info()[0])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, _SIOCETHTOOL, change)
        netlink.exchange(
            kernel,
            netlink.line(outer_index, bytes_per_s),
            netlink.neighbour(outer_index, port.address, port.mac),
        )
        index = next(link.index for link in netlink.list_links(inner) if link.name == INNER_DEVICE)
        with contextlib.suppress(OSError):  # a kernel without IPv6
            netlink.exchange(inner, netlink.without_ipv6_address(index))
        netlink.exchange(
            inner,
            netlink.line(index, bytes_per_s),
            netlink.address(index, port.address),
            netlink.neighbour(index, resolver, port.gateway_mac),
            netlink.set_link(index, up=True),
            netlink.route(index, resolver),
            netlink.route(index, "0.0.0.0/0", gateway=resolver),
        )
        netlink.exchange(
            kernel, netlink.set_link(outer_index, up=True), netlink.route(outer_index, port.address)
        )
    except BaseException:
        with contextlib.suppress(OSError):
            netlink.exchange(kernel, netlink.delete_link(outer_index))
        raise
    peer = next(link.peer for link in netlink.list_links(kernel) if link.index == outer_index)
    return LivePort(port=port, index=outer_index, peer=peer)


def line_bytes_per_s(buffer_bytes: int, ports: int) -> int:
    """Return a port's rate each way, an eighth of a second buffered."""
    return min(MAX_BYTES_PER_S, 4 * buffer_bytes) // max(1, ports)


def unexpected_devices(
    listed: Iterable[netlink.Link], ports: Mapping[int, LivePort]
) -> Iterator[str]:
    """Name devices that are up or lead outside the range."""
    for link in listed:  # one that is down (the kernel makes some itself) lets nothing pass
        if link.index not in ports:
            if link.is_up and link.name != "lo":
                yield f"a device is up that is no cell's port: {link.name}"
            continue
        # -1 (NETNSA_NSID_NOT_ASSIGNED): the peer's namespace is ending
        is_ending = link.peer is None or link.peer[1] == -1
        if link.peer != ports[link.index].peer and not is_ending:
            yield f"the port of the cell {ports[link.index].port.name} leads elsewhere"


def all_down(kernel: socket.socket) -> None:
    """Put ports down; one's failure stops no other."""
    for link in netlink.list_links(kernel):
        if link.is_up:
            with contextlib.suppress(OSError):
                netlink.exchange(kernel, netlink.set_link(link.index, up=False))


def socket_within(namespace_fd: int) -> socket.socket:
    """Open a socket there; this thread returns from it. Raises `OSError`."""
    with open("/proc/thread-self/ns/net", "rb") as home:  # noqa: PTH123 - a descriptor is wanted
        enter_namespace(namespace_fd, syscalls.CLONE_NEWNET)
        try:
            return netlink.open_socket()
        finally:
            enter_namespace(home.fileno(), syscalls.CLONE_NEWNET)


def tables_of(namespace: int) -> socket.socket:
    """Return `socket_within` of a new thread. Raises `CellError`."""
    with ThreadPoolExecutor(1, thread_name_prefix="namespace") as thread:
        try:
            return thread.submit(socket_within, namespace).result()
        except OSError as exc:
            what = f"the cell's network namespace can't be entered: {exc.strerror}"
            raise CellError(what) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    routes: frozenset[Route]
    policy: frozenset[bytes]
    settings: Mapping[str, str]


def read_baseline(kernel: socket.socket, devices: Collection[str]) -> Baseline:
    routes, policy = netlink.list_routes(kernel), netlink.list_rules(kernel)
    settings = read_settings((*_ALWAYS, *devices), _WRITTEN)
    return Baseline(routes=frozenset(routes), policy=frozenset(policy), settings=settings)


def read_settings(devices: Iterable[str], others: Iterable[str] = ()) -> dict[str, str]:
    found = {}
    of_devices = (pattern % device for device in devices for pattern in _READ_OF_DEVICE)
    for name in (*others, *of_devices):
        # A kernel without IPv6, an older one, a device that has gone
        with contextlib.suppress(FileNotFoundError):
            found[name] = (SETTINGS / name).read_text().strip()
    return found


def differences(baseline: Baseline, found: Baseline, ports: Mapping[int, str]) -> list[str]:
    """Return each difference as a sentence.

    Each port (address by device number) has one route, and the kernel's own for IPv6 multicast.
    """
    own = {netlink.as_listed(netlink.route(*port)) for port in ports.items()}
    changed = [
        f"a route that was not there: {new}"
        for new in sorted(found.routes - baseline.routes - own, key=str)
        if new.to != _MULTICAST6 or new.device not in ports
    ]
    gone = sorted(baseline.routes - found.routes, key=str)
    changed += (f"a route is gone: {old}" for old in gone)
    changed += ["the policy of routing is another"] * (baseline.policy != found.policy)
    for name, value in baseline.settings.items():
        if (now := found.settings.get(name, value)) != value:
            changed.append(f"{name} was {value} and is {printable(now, max_chars=40)}")
    return changed

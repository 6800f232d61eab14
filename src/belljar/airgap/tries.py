"""Tries that send nothing beyond this host, unless an address is named.

The kernel is asked for its way to an address: `connect` of a UDP socket only chooses a route. A
socket that is bound to a device has a way without any route. For TCP, whose `connect` would send,
the same question goes to the routing tables.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from belljar.airgap.finding import Finding, State, tried
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Route

# Of each kind that a network may have a route for: global, documentation, private, link-local,
# multicast. Besides, an address of each listed route is tried.
_ADDRESSES: Final[Mapping[socket.AddressFamily, tuple[str, ...]]] = {
    socket.AF_INET: (
        *("1.0.0.1", "198.51.100.1", "203.0.113.1", "10.0.0.1", "172.16.0.1"),
        *("192.168.0.1", "100.64.0.1", "169.254.0.1", "224.0.0.251"),
    ),
    socket.AF_INET6: ("2600::1", "2001:db8::1", "fd00::1", "ff02::1"),
}
_NAMES: Final = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}
_MAX_ROUTES: Final = 512
_PORTS: Final = {"TCP": (socket.IPPROTO_TCP, 443), "UDP": (socket.IPPROTO_UDP, 53)}
_ANSWER_TIMEOUT_S: Final = 3.0
_TCP_PORTS: Final = (53, 80, 443)
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "ws_proxy", "wss_proxy")
# No address or no route, for this family or this address.
_NO_WAY: Final = {
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EACCES,
    errno.EINVAL,  # a blackhole
    errno.ENETDOWN,
}


def address_findings(devices: Mapping[int, str], inner: Set[int]) -> Iterator[Finding]:
    """TCP and UDP of each family. `devices`: the names of all; `inner`: those that lead nowhere."""
    outer = [name for index, name in devices.items() if index not in inner]
    for family, name in _NAMES.items():
        unknown, asked = list[str](), list[str]()
        ways: dict[str, list[str]] = {"TCP": [], "UDP": []}
        if not _is_supported(family):
            for protocol in ways:
                yield tried(f"{name} {protocol}", absent=f"no {name} socket can be made here")
            continue
        try:
            with netlink.open_socket() as kernel:
                routes = netlink.list_routes(kernel, family)
                addresses = [*_ADDRESSES[family], *map(_within, routes)]
                asked = [each for each in dict.fromkeys(addresses) if _is_outer(each)]
                if len(asked) > _MAX_ROUTES:
                    unknown.append(f"{len(asked)} addresses, more than are tried")
                for address in asked[:_MAX_ROUTES]:
                    for protocol, port in _PORTS.items():
                        device = netlink.route_for(kernel, address, *port)
                        if device is not None and device not in inner:
                            by = devices.get(device, "an unknown device")
                            ways[protocol].append(f"{address} by {by}")
        except (OSError, ValueError) as error:
            unknown.append(f"routes can't be asked for: {error}")
        none = f"no route to any of {len(asked)} addresses"
        yield tried(f"{name} TCP", present=ways["TCP"], unknown=unknown, absent=none)
        bound, unclear = _bound_ways(family, asked[:_MAX_ROUTES], outer)
        none += f", also when bound to {', '.join(outer)}" if outer else ""
        udp = [*bound, *ways["UDP"]]
        yield tried(f"{name} UDP", present=udp, unknown=[*unknown, *unclear], absent=none)


def _is_supported(family: socket.AddressFamily) -> bool:
    try:
        socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def _bound_ways(
    family: socket.AddressFamily, addresses: Sequence[str], devices: Sequence[str]
) -> tuple[list[str], list[str]]:
    """By each device, without any route. A way, and what is unclear."""
    ways, unclear = list[str](), list[str]()
    for device in devices:
        for address in addresses:
            try:
                source = _udp_source(family, address, device)
            except OSError as error:
                if error.errno not in _NO_WAY:
                    unclear.append(f"{address} bound to {device}: {error.strerror}")
                continue
            ways.append(f"{address} from {source} bound to {device}")
            break
    return ways, unclear


def _udp_source(family: socket.AddressFamily, address: str, device: str = "") -> str:
    """The address that a datagram would be sent from. Sends nothing. Raises `OSError`."""
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        if device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        sock.connect((address, _PORTS["UDP"][1]))
        return str(sock.getsockname()[0])


def has_way(address: str) -> bool:
    """Whether the kernel would send a datagram there by anything but loopback. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return _is_outer(_udp_source(family, address))
    except OSError:
        return False


def _within(route: Route) -> str:
    """An address that the route is for."""
    first = route.to.network_address
    return str(first + 1 if route.to.num_addresses > 1 else first)


def _is_outer(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_unspecified or int(parsed) == 1)


def resolver_finding(files: Sequence[Path]) -> Finding:
    """Whether any configured resolver could be reached. None is asked: a local one may forward."""
    servers = dict[str, None]()
    for file in files:
        with suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
            words = (line.split() for line in lines)
            servers |= {each[1]: None for each in words if each[:1] == ["nameserver"] and each[1:]}
    named = [(server, server, 53) for server in servers]
    return _servers("DNS", named, "no resolver is configured")


def proxy_finding(environ: Mapping[str, str]) -> Finding:
    """Whether a proxy that the environment names could be reached."""
    named = list[tuple[str, str, int]]()
    for name, value in environ.items():
        if name.lower() in _PROXIES and value:
            try:
                parsed = urlsplit(value if "://" in value else f"//{value}")
                host, port = parsed.hostname or "", parsed.port or 80
            except ValueError:
                host, port = "", 0  # can't be told
            named.append((f"{name} ({host}:{port})", host, port))
    return _servers("proxies", named, "the environment names none")


def _servers(name: str, named: Sequence[tuple[str, str, int]], none: str) -> Finding:
    """Of servers with what they are called here, their hosts and ports."""
    states = [(called, _server_state(host, port)) for called, host, port in named]
    present = [f"{called}: by a route" for called, state in states if state is State.PRESENT]
    unknown = [f"{called}: it may forward" for called, state in states if state is State.UNKNOWN]
    listed = ", ".join(called for called, _ in states)
    absent = f"none of {listed} can be reached" if listed else none
    return tried(name, present=present, unknown=unknown, absent=absent)


def _server_state(host: str, port: int) -> State:
    """By the route alone: a named host would have to be looked up, and a local one may forward."""
    host = "127.0.0.1" if host == "localhost" else host
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return State.UNKNOWN
    if not parsed.is_loopback:
        return State.PRESENT if has_way(host) else State.ABSENT
    return State.UNKNOWN if _listens(port) else State.ABSENT


def _listens(port: int) -> bool:
    """Whether a socket of this namespace is bound to the port; true when that can't be read."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        except OSError:
            return True
        if any(int(line.split()[1].rpartition(":")[2], 16) == port for line in lines):
            return True
    return False


def send_findings(address: str) -> Iterator[Finding]:
    """Send to this address, which the caller named: TCP, a DNS query, an NTP request.

    Silence proves nothing: the packet may have left. Raises `ValueError` for no address.
    """
    parsed = ip_address(address)
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    for port in _TCP_PORTS:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            code = sock.connect_ex((address, port))
        yield _sent(f"TCP to {address} port {port}", code)
    query = secrets.token_bytes(2) + bytes.fromhex("01000001000000000000") + b"\0\0\2\0\1"
    for what, port, payload in (("DNS", 53, query), ("NTP", 123, b"\x23" + bytes(47))):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            code = 0
            try:
                sock.connect((address, port))
                sock.send(payload)
                sock.recv(512)
            except OSError as error:
                code = error.errno or errno.EAGAIN
        yield _sent(f"{what} to {address}", code)


def _sent(name: str, code: int) -> Finding:
    if code in (0, errno.ECONNREFUSED):
        word = "answered" if code == 0 else "answered that nothing listens"
        return tried(name, present=[word], absent="")
    if code in _NO_WAY:
        return tried(name, absent=f"not sent: {os.strerror(code)}")
    return tried(name, unknown=["sent, and no answer came"], absent="")


def vsock_finding() -> Finding:
    """Whether sockets to a hypervisor can be made, and this machine has an address there."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_CLOEXEC).close()
    except OSError as error:
        return tried("vsock", absent=f"no such socket can be made: {error.strerror}")
    try:
        with Path("/dev/vsock").open("rb") as device:
            asked = fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4))
        (number,) = struct.unpack("=I", asked)
    except OSError as error:
        unknown = [f"/dev/vsock can't be asked: {error.strerror}"]
        return tried("vsock", unknown=unknown, absent="")
    if number in (socket.VMADDR_CID_ANY, 1):  # no transport, or the local one
        return tried("vsock", absent="no hypervisor has given this machine an address")
    present = [f"this machine is {number} on its hypervisor's vsock"]
    return tried("vsock", present=present, absent="")

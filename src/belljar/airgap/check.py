"""The check of the air gap: every way beyond this host, by trying and by looking.

Sends nothing beyond this host, unless an address is named. `connect` of a UDP socket only chooses a
route, and that of a TCP socket in repair mode does so too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from belljar.airgap.looks import Finding, State, look, looked, tried
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Link
from belljar.network.syscalls import CLONE_NEWNET, enter

# Virtual devices that hand a packet to nobody.
_SINKS: Final = frozenset({"dummy", "ifb", "nlmon"})
# In another namespace these lead to a further namespace only, which is looked at as well.
_INNER: Final = _SINKS | {"veth", "bridge"}
# The files on which `ip netns add` mounts namespaces, which may have no process.
_MOUNTED: Final = re.compile(r"^\S+ \S+ \S+ net:\[\d+\] (\S+) .* - nsfs ", re.MULTILINE)
# Of each kind that a network may have a route for: global, documentation, private, link-local,
# multicast.
_ADDRESSES: Final[Mapping[socket.AddressFamily, tuple[str, ...]]] = {
    socket.AF_INET: (
        *("1.0.0.1", "198.51.100.1", "203.0.113.1", "10.0.0.1", "172.16.0.1"),
        *("192.168.0.1", "100.64.0.1", "169.254.0.1", "224.0.0.251"),
    ),
    socket.AF_INET6: ("2600::1", "2001:db8::1", "fd00::1", "fe80::1", "ff02::1"),
}
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_TCP_REPAIR: Final = 19  # linux/tcp.h
_ANSWER_TIMEOUT_S: Final = 3.0
# systemd-resolved's second file has the servers behind its local one.
_RESOLVERS: Final = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "ws_proxy", "wss_proxy")
# No address or no route, for this family or this address; EINVAL: a blackhole.
_NO_WAY: Final = {
    *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT),
    *(errno.EACCES, errno.EINVAL, errno.ENETDOWN),
}


def check_air_gap(address: str = "") -> tuple[Finding, ...]:
    """Every finding on this host now.

    Sends nothing beyond it, except to `address`, an IP address that the operator named.
    Raises `OSError` when this namespace's interfaces can't be listed, `ValueError` for no address.
    """
    links = _own_links()
    outer = [link.name for link in links if not link.is_loopback and link.kind not in _SINKS]
    return (
        *map(_interface, links),
        *(
            _ways(f"IPv{number} {name}", family, kind, outer)
            for number, family in ((4, socket.AF_INET), (6, socket.AF_INET6))
            for name, kind in _KINDS.items()
        ),
        _namespaces(),
        _resolvers(),
        _proxies(os.environ),
        _vsock(),
        *look(),
        *(_sent(address) if address else ()),
    )


# --- interfaces


def state_of(link: Link) -> State:
    """Tell if packets can leave by a link of this namespace. Pure."""
    if link.is_loopback or link.kind in _SINKS or not link.is_up:
        return State.ABSENT
    return State.PRESENT if link.has_carrier else State.UNKNOWN


def evidence_of(link: Link) -> str:
    """A link in words. Pure."""
    kind = "loopback" if link.is_loopback else link.kind or "a device of its own driver"
    carrier = "with a carrier" if link.has_carrier else "without a carrier: a cable is enough"
    return f"{link.name} ({kind}) is {f'up, {carrier}' if link.is_up else 'down'}"


def _interface(link: Link) -> Finding:
    name, evidence = f"interface {link.name}", evidence_of(link)
    return Finding(name=name, state=state_of(link), how="looked", evidence=evidence)


def _own_links() -> list[Link]:
    with netlink.open_socket() as kernel:
        return netlink.list_links(kernel)


def _namespaces() -> Finding:
    """Devices in other namespaces, through which a process there could relay."""
    present, unknown = list[str](), list[str]()
    if os.geteuid() != 0:
        unknown.append("other users' processes may be hidden: run as root")
    seen = {Path("/proc/self/ns/net").stat().st_ino}
    for file in _namespace_files(unknown):
        try:
            with file.open("rb", buffering=0) as place:
                number = os.fstat(place.fileno()).st_ino
                if number in seen:
                    continue
                seen.add(number)
                # A thread of its own, which ends in that namespace.
                with ThreadPoolExecutor(1) as thread:
                    links = thread.submit(_links_in, place.fileno()).result()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError as error:
            unknown.append(f"{file} can't be entered: {error.strerror}")
            continue
        present += [
            f"{evidence_of(link)}, in namespace {number}"
            for link in links
            if link.is_up and not link.is_loopback and link.kind not in _INNER
        ]
    none = f"{len(seen) - 1} other namespaces, none with a device that is up"
    return looked("namespaces", present, unknown, absent=none)


def _links_in(namespace: int) -> list[Link]:
    enter(namespace, CLONE_NEWNET)
    return _own_links()


def _namespace_files(unknown: list[str]) -> Iterator[Path]:
    """A file of each thread's namespace, and of each mounted one."""
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names alone
        tasks = Path("/proc", process, "task")
        try:  # not by `glob`, which passes over what it may not read
            yield from (tasks / thread / "ns/net" for thread in os.listdir(tasks))  # noqa: PTH208
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            unknown.append(f"{tasks} can't be read: {error.strerror}")
    for where in _MOUNTED.findall(Path("/proc/self/mountinfo").read_text()):
        yield Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), where))


# --- tries


def _ways(name: str, family: int, kind: int, devices: Sequence[str]) -> Finding:
    """Ways to addresses of every kind: by the routes, and bound to each device without any."""
    present, unknown = list[str](), list[str]()
    addresses = _ADDRESSES[socket.AddressFamily(family)]
    for device in ("", *devices):
        for address in addresses:
            by = f" bound to {device}" if device else ""
            try:
                source = _source(address, kind, device)
            except OSError as error:
                if error.errno not in _NO_WAY:
                    unknown.append(f"{address}{by}: {error.strerror}")
                continue
            if not ip_address(source).is_loopback:
                present.append(f"{address} from {source}{by}")
    bound = f", also when bound to {', '.join(devices)}" if devices else ""
    return tried(name, present, unknown, absent=f"no way to {len(addresses)} addresses{bound}")


def _source(address: str, kind: int = socket.SOCK_DGRAM, device: str = "") -> str:
    """The address that packets would be sent from. Sends nothing. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)  # it is connected without a packet
        if device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        sock.connect((address, 443))
        return str(sock.getsockname()[0])


def _resolvers() -> Finding:
    """The configured resolvers."""
    servers, unknown = list[str](), list[str]()
    for file in _RESOLVERS:
        try:
            text = Path(file).read_text(errors="replace")
            servers += re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown.append(f"{file} can't be read: {error.strerror}")
    return _servers("DNS", {server: server for server in servers}, unknown)


def _proxies(environ: Mapping[str, str]) -> Finding:
    named = dict[str, str]()
    for name, value in environ.items():
        if name.lower() in _PROXIES and value:
            try:
                host = urlsplit(value if "://" in value else f"//{value}").hostname or ""
            except ValueError:
                host = ""
            named[f"{name} ({host})"] = host
    return _servers("proxies", named)


def _servers(name: str, named: Mapping[str, str], unread: Sequence[str] = ()) -> Finding:
    """Judges servers by the route alone: none is asked, no name is looked up."""
    present, unknown = list[str](), list(unread)
    for called, host in named.items():
        try:
            source = _source(str(ip_address(host)))
        except OSError as error:
            if error.errno not in _NO_WAY:
                unknown.append(f"{called}: {error.strerror}")
            continue
        except ValueError:
            unknown.append(f"{called} is no address")
            continue
        is_here = ip_address(source).is_loopback
        by = "it is on this host, and may forward" if is_here else "by a route"
        (unknown if is_here else present).append(f"{called}: {by}")
    listed = f"none of {', '.join(named)} can be reached" if named else "none is configured"
    return tried(name, present, unknown, absent=listed)


def _vsock() -> Finding:
    """Sockets to a hypervisor: it has a channel to this machine if that has an address there."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        said = f"no such socket can be made: {error.strerror}"
        is_none = error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
        return tried("vsock", absent=said) if is_none else tried("vsock", unknown=[said])
    try:
        with Path("/dev/vsock").open("rb") as device:
            asked = fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4))
    except OSError as error:
        return tried("vsock", unknown=[f"/dev/vsock can't be asked: {error.strerror}"])
    (number,) = struct.unpack("=I", asked)
    if number in (socket.VMADDR_CID_ANY, 1):  # no transport, or the local one
        return tried("vsock", absent="no hypervisor has given this machine an address")
    return tried("vsock", [f"this machine is {number} on its hypervisor's vsock"])


def _sent(address: str) -> Iterator[Finding]:
    """Send TCP, a DNS query, an NTP request. Silence proves nothing: the packet may have left."""
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    query = secrets.token_bytes(2) + bytes.fromhex("01000001000000000000") + b"\0\0\2\0\1"
    payloads = {("TCP", port): b"" for port in (53, 80, 443)}
    for (what, port), payload in {
        **payloads,
        ("DNS", 53): query,
        ("NTP", 123): b"\x23" + bytes(47),
    }.items():
        name, code = f"{what} to {address} port {port}", 0
        with socket.socket(family, _KINDS.get(what, socket.SOCK_DGRAM)) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            try:
                sock.connect((address, port))
                if payload:
                    sock.send(payload)
                    sock.recv(512)
            except OSError as error:
                code = error.errno or errno.EAGAIN
        if code in (0, errno.ECONNREFUSED):
            yield tried(name, [os.strerror(code) if code else "answered"])
        elif code in _NO_WAY:
            yield tried(name, absent=f"not sent: {os.strerror(code)}")
        else:
            yield tried(name, unknown=["sent, and no answer came"])

"""The check of the air gap: every way beyond this host, by trying and by looking.

Sends nothing beyond this host. `connect` of a UDP socket only chooses a
route, and that of a TCP socket in repair mode does so too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from belljar.airgap.looks import AirGapFinding, Seen, State, judged, look
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Link
from belljar.network.syscalls import CLONE_NEWNET, enter

# Virtual devices that hand a packet to nobody.
_SINKS: Final = frozenset({"dummy", "ifb", "nlmon"})
# In another namespace these lead to a further namespace only, which is looked at as well.
_INNER: Final = _SINKS | {"veth", "bridge"}
# The files on which `ip netns add` mounts namespaces, which may have no process.
_MOUNTED: Final = re.compile(r"^\S+ \S+ \S+ net:\[(\d+)\] .* - nsfs ", re.MULTILINE)
FIRST_PID_NAMESPACE: Final = 0xEFFF_FFFC  # linux/proc_ns.h
# EINVAL: a process that has ended and is not reaped yet has no mounts.
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})
# Of each kind that a network may have a route for: global, documentation, private, link-local,
# multicast.
_ADDRESSES: Final = {
    "IPv4": (
        *("1.0.0.1", "198.51.100.1", "203.0.113.1", "10.0.0.1", "172.16.0.1"),
        *("192.168.0.1", "100.64.0.1", "169.254.0.1", "224.0.0.251"),
    ),
    "IPv6": ("2600::1", "2001:db8::1", "fd00::1", "fe80::1", "ff02::1"),
}
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_TCP_REPAIR: Final = 19  # linux/tcp.h
# systemd-resolved's second file has the servers behind its local one.
_RESOLVERS: Final = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
# No address or no route, for this family or this address; EINVAL: a blackhole.
_NO_WAY: Final = {
    *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT),
    *(errno.EACCES, errno.EINVAL, errno.ENETDOWN),
}


def check_air_gap() -> tuple[AirGapFinding, ...]:
    """Every finding on this host now. Raises `OSError` when its interfaces can't be listed."""
    links = _links()
    outer = [link.name for link in links if not link.is_loopback and link.kind not in _SINKS]
    return (
        *(judged(f"interface {link.name}", "looked", [seen(link)]) for link in links),
        *(
            judged(
                f"{family} {name}",
                "tried",
                (_way(each, kind, device) for device in ("", *outer) for each in addresses),
            )
            for family, addresses in _ADDRESSES.items()
            for name, kind in _KINDS.items()
        ),
        judged("namespaces", "looked", _namespaces()),
        judged("DNS", "tried", _servers(_resolvers())),
        judged("proxies", "tried", _servers(proxies().values())),
        judged("vsock", "tried", _vsock()),
        *look(),
    )


# --- interfaces


def seen(link: Link) -> Seen:
    """Tell if packets can leave by a link of this namespace. Pure."""
    kind = "loopback" if link.is_loopback else link.kind or "a device of its own driver"
    if not link.is_up:
        return State.ABSENT, f"{link.name} ({kind}) is down"
    is_inside = link.is_loopback or link.kind in _SINKS
    open_state = State.PRESENT if link.has_carrier else State.UNKNOWN
    carrier = "with a carrier" if link.has_carrier else "without a carrier: a cable is enough"
    return State.ABSENT if is_inside else open_state, f"{link.name} ({kind}) is up, {carrier}"


def _links(namespace: int | None = None) -> list[Link]:
    """Those of this namespace, or of another, in which the calling thread ends."""
    if namespace is not None:
        enter(namespace, CLONE_NEWNET)
    with netlink.open_socket() as kernel:
        return netlink.list_links(kernel)


def _namespaces() -> Iterator[Seen]:
    """Devices in other namespaces, through which a process there could relay."""
    if os.geteuid() != 0:
        yield State.UNKNOWN, "other users' processes may be hidden: run as root"
    if Path("/proc/self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE:
        yield State.UNKNOWN, "this PID namespace hides processes outside it, and their networks"
    own = Path("/proc/self/ns/net").stat()
    hidden, mounted, known = list[str](), set[int](), {own.st_ino}
    for file in _namespace_files(own.st_dev, hidden, mounted):
        with _noted(hidden, file), ExitStack() as stack:
            # A process may put a FIFO or a device in its place, and opening that would act.
            found = os.open(file, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, found)
            about = os.fstat(found)
            if about.st_dev != own.st_dev or about.st_ino in known:
                continue
            place = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, place)
            known.add(about.st_ino)
            with ThreadPoolExecutor(1) as thread:
                links = thread.submit(_links, place).result()
            for link in links:
                if link.is_up and not link.is_loopback and link.kind not in _INNER:
                    yield State.PRESENT, f"{seen(link)[1]}, in namespace {about.st_ino}"
    hidden += [
        f"the network namespace {number} is mounted, and no visible process is in it"
        for number in sorted(mounted - known)
    ]
    yield from ((State.UNKNOWN, each) for each in dict.fromkeys(hidden))
    yield State.ABSENT, f"{len(known) - 1} other namespaces, none with a device that is up"


def _namespace_files(device: int, hidden: list[str], mounted: set[int]) -> Iterator[Path]:
    """Yield a file of each namespace that a thread is in or holds open; note those it mounts.

    `device`: of the file system of namespaces.
    """
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names alone
        threads, tasks = list[Path](), Path("/proc", process, "task")
        with _noted(hidden, tasks):  # not by `glob`, which passes over what it may not read
            threads += tasks.iterdir()
        for thread in threads:
            yield thread / "ns/net"
            files = list[Path]()
            with _noted(hidden, thread / "fd"):
                files += (thread / "fd").iterdir()
            for file in files:
                with _noted(hidden, file):
                    held = str(file.readlink())  # a namespace that is held open needs no process
                    # Of one whose mount was detached meanwhile, the kernel shows the mount's root.
                    if held.startswith("net:[") or (held == "/" and file.stat().st_dev == device):
                        yield file
            with _noted(hidden, thread / "mountinfo"):
                mounts = (thread / "mountinfo").read_text(errors="replace")
                mounted.update(map(int, _MOUNTED.findall(mounts)))


@contextmanager
def _noted(hidden: list[str], place: Path) -> Iterator[None]:
    """Note the process of a place that can't be read, but not one that has ended meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ENDED:
            hidden.append(f"process {place.parts[2]} can't be looked into: {error.strerror}")


# --- tries


def _way(
    address: str,
    kind: int = socket.SOCK_DGRAM,
    device: str = "",
    *,
    if_here: Seen = (State.ABSENT, "this host"),
) -> Seen:
    """Ask the kernel for the way to an address, by the routes or bound to a device without any.

    Sends nothing. `if_here`: what it shows if that is loopback.
    """
    place = f"{address} by {device}" if device else address
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as sock:
            if kind == socket.SOCK_STREAM:  # connected without a packet
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            if device:
                bound = device.encode() + b"\0"
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound)
            sock.connect((address, 443))
            source = str(sock.getsockname()[0])
    except OSError as error:
        state = State.ABSENT if error.errno in _NO_WAY else State.UNKNOWN
        return state, f"{place}: {error.strerror}"
    if ip_address(source).is_loopback:
        return if_here[0], f"{place}: {if_here[1]}"
    return State.PRESENT, f"{place}: a way from {source}"


def _servers(hosts: Iterable[str]) -> Iterator[Seen]:
    """Judges servers by the route alone: none is asked, no name is looked up."""
    for host in hosts:
        try:
            here = (State.UNKNOWN, "it is on this host, and may forward")
            yield _way(str(ip_address(host)), if_here=here)
        except ValueError:
            yield State.UNKNOWN, f"{host} is no address: its way is not known"


def _resolvers() -> Iterator[str]:
    for file in filter(Path.exists, map(Path, _RESOLVERS)):
        text = file.read_text(errors="replace")
        yield from re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)


def proxies() -> dict[str, str]:
    """The hosts of the environment's proxies, by their variables; "" for none. No passwords."""
    hosts = dict[str, str]()
    for scheme, value in getproxies_environment().items():
        if scheme != "no":
            hosts[f"{scheme}_proxy"] = ""
            with suppress(ValueError):
                url = urlsplit(value if "://" in value else f"//{value}")
                hosts[f"{scheme}_proxy"] = url.hostname or ""
    return hosts


def _vsock() -> Iterator[Seen]:
    """Sockets to a hypervisor: it has a channel to this machine if that has an address there."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        is_none = error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
        state = State.ABSENT if is_none else State.UNKNOWN
        yield state, f"no such socket can be made: {error.strerror}"
        return
    with Path("/dev/vsock").open("rb") as device:
        asked = fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4))
    yield vsock_seen(*struct.unpack("=I", asked))


def vsock_seen(number: int) -> Seen:
    """What this machine's vsock number shows. Pure."""
    if number in (socket.VMADDR_CID_ANY, 1):  # no transport, or the local one
        return State.ABSENT, "no hypervisor has given this machine an address"
    if number == socket.VMADDR_CID_HOST:  # only with vhost_vsock, and no hypervisor below this one
        return State.ABSENT, "this machine is the hypervisor's side: its guests are on it"
    return State.PRESENT, f"this machine is {number} on its hypervisor's vsock"

"""The check of the air gap. Nothing is sent: `connect` of a UDP socket chooses a route."""

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
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from belljar.dataclass import dataclass
from belljar.libc import enter_namespace
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Link
from belljar.network.syscalls import CLONE_NEWNET

# Their bytes are on another machine, or with the hypervisor. A file system in user space may be.
_REMOTE: Final = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|davfs|gfs2|glusterfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|"
    "smb3|smbfs|vboxsf|virtiofs|vmhgfs"
)
# File systems in user space whose bytes are on this host.
_LOCAL_FUSE: Final = frozenset(
    {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuseblk", "fusectl"}
)
_TIME_PROGRAMS: Final = (
    "^(chronyd|ntpd|ntpd-rs|openntpd|ntpdate|phc2sys|ptp4l|sntp|systemd-timesyn|timemaster)$"
)
_TABLES: Final = ("tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6")
_MAX_SHOWN: Final = 9  # of a finding's evidence, which the ledger keeps


class State(StrEnum):
    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "can't tell"


# One piece of evidence, and what it shows by itself.
Seen: TypeAlias = tuple[State, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AirGapFinding:
    """`name` is stable; `evidence` may quote this host: escape it."""

    name: str
    state: State
    how: Literal["tried", "looked"]
    evidence: str


def is_air_gapped(findings: Iterable[AirGapFinding]) -> bool:
    return {each.state for each in findings} == {State.ABSENT}


def judged(name: str, how: Literal["tried", "looked"], evidence: Iterable[Seen]) -> AirGapFinding:
    """Judge by the worst evidence; an unreadable place is `can't tell`."""
    seen: dict[State, list[str]] = {State.PRESENT: [], State.UNKNOWN: [], State.ABSENT: []}
    try:
        for state, text in evidence:
            seen[state].append(text)
    except OSError as error:
        seen[State.UNKNOWN].append(f"{error.filename or name} can't be read: {error.strerror}")
    state = next((state for state, texts in seen.items() if texts), State.ABSENT)
    shown = seen[state][:_MAX_SHOWN] or ["none"]
    if len(seen[state]) > _MAX_SHOWN:
        shown.append(f"{len(seen[state]) - _MAX_SHOWN} more")
    return AirGapFinding(name=name, state=state, how=how, evidence="; ".join(shown))


class _Place(NamedTuple):
    finding: str
    folder: str
    names: str = ""
    file: str = ""
    text: str = ""
    state: State = State.PRESENT


_PLACES: Final = (
    _Place("modems", "sys/class/wwan"),
    _Place("modems", "sys/class/usbmisc", "cdc-wdm"),
    _Place("modems", "sys/class/tty", "ttyUSB|ttyACM", state=State.UNKNOWN),  # it may be one
    _Place("USB network", "sys/class/udc", file="function", text="."),  # this host is a gadget
    _Place("USB network", "sys/class/net", file="device/uevent", text="DEVTYPE=usb"),
    _Place("InfiniBand", "sys/class/infiniband"),
    _Place("network block devices", "sys/block", "drbd|rbd"),
    _Place("network block devices", "sys/block", "nbd", file="pid", text="."),
    _Place("network block devices", "sys/class/iscsi_session"),
    _Place("network block devices", "sys/class/fc_remote_ports"),
    _Place("network block devices", "sys/class/nvme", file="transport", text="^(?!pcie$|loop$)."),
    _Place("time synchronisation", "proc", "[0-9]", file="comm", text=_TIME_PROGRAMS),
)


def look(root: Path = Path("/")) -> Iterator[AirGapFinding]:
    yield judged("radios", "looked", _radios(root))
    yield judged("sockets", "looked", _sockets(root))
    yield judged("network file systems", "looked", _file_systems(root))
    for finding in dict.fromkeys(place.finding for place in _PLACES):
        yield judged(finding, "looked", _listed(finding, root))


def _listed(finding: str, root: Path) -> Iterator[Seen]:
    for needed in ("sys/class", "proc/self"):
        (root / needed).stat()
    for place in _PLACES:
        folder = root / place.folder
        entries = _entries(folder) if place.finding == finding else []
        for entry in filter(re.compile(place.names).match, entries):
            text = _word(folder / entry / place.file) if place.file else ""
            if re.search(place.text, text):
                yield place.state, f"{place.folder}/{entry} {text}".rstrip()


def _entries(folder: Path) -> list[str]:
    """Return no names for a missing place. Raises `OSError`."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


# ENODEV, EINVAL, EOPNOTSUPP: an attribute of a device that has none.
_NO_TEXT: Final = {
    *(errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)
}


def _word(file: Path) -> str:
    """Return no text if the kernel lacks it. Raises `OSError`."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError as error:
        if error.errno in _NO_TEXT:
            return ""
        raise


def _radios(root: Path) -> Iterator[Seen]:
    """Count a radio as off only by its own switch."""
    (root / "sys/class").stat()
    # rfkill comes first: it also has the switches of others
    for kind in ("rfkill", "ieee80211", "bluetooth", "nfc", "uwb", "ieee802154"):
        for name in _entries(root / "sys/class" / kind):
            place = root / "sys/class" / kind / name
            own = [place / each for each in _entries(place) if each.startswith("rfkill")]
            words = [_word(each / file) for each in (place, *own) for file in ("hard", "soft")]
            state, said = (State.ABSENT, "off") if "1" in words else (State.PRESENT, "on")
            yield state, f"{kind} {name} is {said}"


def _sockets(root: Path) -> Iterator[Seen]:
    (root / "proc/self").stat()
    for table in _TABLES:
        for line in _word(root / "proc/net" / table).splitlines()[1:]:
            _, local, peer, *_ = line.split()
            (ip, port), (peer_ip, peer_port) = address_of(local), address_of(peer)
            if peer_port and not peer_ip.is_loopback:
                yield State.PRESENT, f"{table} {ip}:{port} has the peer {peer_ip}:{peer_port}"
            elif ip.is_unspecified:
                yield State.ABSENT, f"{table} port {port} is open by each interface that is up"
            elif not ip.is_loopback:
                yield State.PRESENT, f"{table} {ip}:{port} is bound beyond loopback"


def address_of(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Read hex words in host byte order."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    address = ip_address(struct.pack(f"={len(words)}I", *words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)


def _file_systems(root: Path) -> Iterator[Seen]:
    for line in (root / "proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        kind, where = right.split(" ", 1)[0], left.split(" ")[4]
        if _REMOTE.fullmatch(kind):
            yield State.PRESENT, f"{kind} at {where}"
        elif kind.startswith("fuse") and kind not in _LOCAL_FUSE:
            yield State.UNKNOWN, f"{kind} at {where}"


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
    """Raise `OSError` if interfaces can't be listed."""
    links = _links()
    outer = [link.name for link in links if not link.is_loopback and link.kind not in _SINKS]
    found = [judged(f"interface {link.name}", "looked", [seen(link)]) for link in links]
    for family, addresses in _ADDRESSES.items():
        for name, kind in _KINDS.items():
            ways = (_way(each, kind, device) for device in ("", *outer) for each in addresses)
            found.append(judged(f"{family} {name}", "tried", ways))
    found.append(judged("namespaces", "looked", _namespaces()))
    found.append(judged("DNS", "tried", _servers(_resolvers())))
    found.append(judged("proxies", "tried", _servers(proxies().values())))
    found.append(judged("vsock", "tried", _vsock()))
    return (*found, *look())


# --- interfaces


def seen(link: Link) -> Seen:
    """Tell if packets can leave by a link."""
    kind = "loopback" if link.is_loopback else link.kind or "a device of its own driver"
    if not link.is_up:
        return State.ABSENT, f"{link.name} ({kind}) is down"
    is_inside = link.is_loopback or link.kind in _SINKS
    open_state = State.PRESENT if link.has_carrier else State.UNKNOWN
    carrier = "with a carrier" if link.has_carrier else "without a carrier: a cable is enough"
    return State.ABSENT if is_inside else open_state, f"{link.name} ({kind}) is up, {carrier}"


def _links(namespace: int | None = None) -> list[Link]:
    if namespace is not None:
        enter_namespace(namespace, CLONE_NEWNET)
    with netlink.open_socket() as kernel:
        return netlink.list_links(kernel)


def _namespaces() -> Iterator[Seen]:
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
    """Note an unreadable place's process, unless it has ended meanwhile."""
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
    if_here: Seen = (State.ABSENT, "this host"),  # what loopback shows
) -> Seen:
    """Ask the kernel for the way. Sends nothing."""
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
    """Judge by route alone: no query, no look-up."""
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
    """Return hosts by variable, "" for none; no passwords."""
    hosts = dict[str, str]()
    for scheme, value in getproxies_environment().items():
        if scheme != "no":
            hosts[f"{scheme}_proxy"] = ""
            with suppress(ValueError):
                url = urlsplit(value if "://" in value else f"//{value}")
                hosts[f"{scheme}_proxy"] = url.hostname or ""
    return hosts


def _vsock() -> Iterator[Seen]:
    """A local address is a channel to this machine."""
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
    if number in (socket.VMADDR_CID_ANY, 1):  # no transport, or the local one
        return State.ABSENT, "no hypervisor has given this machine an address"
    if number == socket.VMADDR_CID_HOST:  # only with vhost_vsock, and no hypervisor below this one
        return State.ABSENT, "this machine is the hypervisor's side: its guests are on it"
    return State.PRESENT, f"this machine is {number} on its hypervisor's vsock"

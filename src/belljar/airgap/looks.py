"""Findings of an air-gap check; looks at devices, sockets, file systems and time sources.

Reads /sys and /proc only. A place that can't be read is `can't tell`; a kernel without the thing
has no such place.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from belljar.dataclass import dataclass

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
    """Tells if a way beyond this host exists."""

    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "can't tell"


# One piece of evidence, and what it shows by itself.
Seen: TypeAlias = tuple[State, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AirGapFinding:
    """One way. `name` is stable; `evidence` may quote this host: escape it where it is shown."""

    name: str
    state: State
    how: Literal["tried", "looked"]
    evidence: str


def is_air_gapped(findings: Iterable[AirGapFinding]) -> bool:
    """Return true if there are findings and all are absent."""
    return {each.state for each in findings} == {State.ABSENT}


def judged(name: str, how: Literal["tried", "looked"], evidence: Iterable[Seen]) -> AirGapFinding:
    """Judge a way by its worst evidence. A place that can't be read is one that can't be told."""
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
    """A directory whose entries lead beyond this host: those named so, whose file has such text."""

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
    """One finding for each kind of thing below `root`."""
    finders: dict[str, Callable[[Path], Iterator[Seen]]] = {
        "radios": _radios,
        "sockets": _sockets,
        "network file systems": _file_systems,
        **{place.finding: partial(_listed, place.finding) for place in _PLACES},
    }
    for name, find in finders.items():
        yield judged(name, "looked", find(root))


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
    """Names, sorted; none if there is no such place. Raises `OSError` if it can't be read."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


# ENODEV, EINVAL, EOPNOTSUPP: an attribute of a device that has none.
_NO_TEXT: Final = {
    *(errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)
}


def _word(file: Path) -> str:
    """Its text; none if there is no such file, or the kernel has none. Raises `OSError`."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError as error:
        if error.errno in _NO_TEXT:
            return ""
        raise


def _radios(root: Path) -> Iterator[Seen]:
    """A radio counts as off only when a switch of its own says so."""
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
    """Sockets of this namespace with a peer beyond loopback, or bound to an address beyond it.

    A socket that listens on every address is as reachable as the interfaces make it.
    """
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
    """An address as /proc/net has it: words of the host's byte order in hex. Pure."""
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

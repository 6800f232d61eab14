"""Findings of an air-gap check; looks at radios, modems, sockets, file systems and time sources.

Reads /sys and /proc only. A place that can't be read is `can't tell`; a kernel without the thing
has no such place.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from sys import byteorder
from typing import Final, Literal

from belljar.dataclass import dataclass

# Devices of these classes send and receive. rfkill comes first: it also has the switches of others.
_RADIOS: Final = ("rfkill", "ieee80211", "bluetooth", "nfc", "uwb", "ieee802154")
# Their bytes are on another machine, or with the hypervisor. A file system in user space may be.
_REMOTE: Final = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|davfs|gfs2|glusterfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|"
    "smb3|smbfs|vboxsf|virtiofs|vmhgfs"
)
_LOCAL_FUSE: Final = frozenset(
    {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuseblk", "fusectl"}
)
_TIME_PROGRAMS: Final = frozenset(
    {
        *("chronyd", "ntpd", "ntpd-rs", "openntpd", "ntpdate", "phc2sys", "ptp4l", "sntp"),
        *("systemd-timesyn", "timemaster"),
    }
)
_TABLES: Final = ("tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6")
_MAX_SHOWN: Final = 6  # of each list of evidence, which the ledger keeps


class State(StrEnum):
    """Tells if a way beyond this host exists."""

    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "can't tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way. `name` is stable; `evidence` may quote this host: escape it where it is shown."""

    name: str
    state: State
    how: Literal["tried", "looked"]
    evidence: str


def is_air_gapped(findings: Iterable[Finding]) -> bool:
    """Return true if there are findings and all are absent."""
    return {each.state for each in findings} == {State.ABSENT}


def _judged(
    name: str,
    present: Sequence[str] = (),
    unknown: Sequence[str] = (),
    *,
    how: Literal["tried", "looked"],
    absent: str = "none",
) -> Finding:
    state = State.PRESENT if present else State.UNKNOWN if unknown else State.ABSENT
    shown = [*present[:_MAX_SHOWN], *unknown[:_MAX_SHOWN]]
    if more := len(present) + len(unknown) - len(shown):
        shown.append(f"{more} more")
    return Finding(name=name, state=state, how=how, evidence="; ".join(shown) or absent)


# `(name, present, unknown, absent=)`: evidence of each; `absent` is shown where there is neither.
tried = partial(_judged, how="tried")
looked = partial(_judged, how="looked")


def look(root: Path = Path("/")) -> Iterator[Finding]:
    """One finding for each kind of thing below `root`."""
    for name, find in {
        "radios": _radios,
        "modems": _modems,
        "USB network": _usb_network,
        "InfiniBand": lambda root: looked("InfiniBand", _entries(root / "sys/class/infiniband")),
        "network block devices": _block_devices,
        "sockets": _sockets,
        "network file systems": _file_systems,
        "time synchronisation": _time,
    }.items():
        try:
            for needed in ("sys/class", "proc/self"):
                (root / needed).stat()
            yield find(root)
        except OSError as error:
            yield looked(name, unknown=[f"{error.filename} can't be read: {error.strerror}"])


def _entries(place: Path, prefix: str | tuple[str, ...] = "") -> list[str]:
    """Names, sorted; none if there is no such place. Raises `OSError` if it can't be read."""
    try:
        return sorted(each.name for each in place.iterdir() if each.name.startswith(prefix))
    except (FileNotFoundError, NotADirectoryError):
        return []


# ENODEV, EINVAL, EOPNOTSUPP: an attribute of a device that has none.
_NO_TEXT: Final = {
    *(errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP),
}


def _word(file: Path) -> str:
    """Its text; none if there is no such file, or the kernel has none. Raises `OSError`."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError as error:
        if error.errno in _NO_TEXT:
            return ""
        raise


def _radios(root: Path) -> Finding:
    """A radio counts as off only when a switch of its own says so."""
    present, off = list[str](), list[str]()
    for kind in _RADIOS:
        for name in _entries(root / "sys/class" / kind):
            place = root / "sys/class" / kind / name
            switches = [place, *(place / each for each in _entries(place, "rfkill"))]
            is_off = any("1" in (_word(each / "hard"), _word(each / "soft")) for each in switches)
            (off if is_off else present).append(f"{kind} {name} is {'off' if is_off else 'on'}")
    return looked("radios", present, absent="; ".join(off) or "none")


def _modems(root: Path) -> Finding:
    present = _entries(root / "sys/class/wwan") + _entries(root / "sys/class/usbmisc", "cdc-wdm")
    lines = _entries(root / "sys/class/tty", ("ttyUSB", "ttyACM"))
    unknown = [f"{each} is a serial line on USB: it may be a modem" for each in lines]
    return looked("modems", present, unknown)


def _usb_network(root: Path) -> Finding:
    """This host as a gadget of another, and adapters on its own ports."""
    classes = root / "sys/class"
    present = [
        f"this host is a gadget on {each}"
        for each in _entries(classes / "udc")
        if _word(classes / "udc" / each / "function")
    ]
    present += [
        f"{each} is on USB"
        for each in _entries(classes / "net")
        if "DEVTYPE=usb" in _word(classes / "net" / each / "device/uevent")
    ]
    return looked("USB network", present)


def _block_devices(root: Path) -> Finding:
    """Disks whose bytes come by a network."""
    block, classes = root / "sys/block", root / "sys/class"
    present = _entries(block, ("drbd", "rbd"))
    present += [each for each in _entries(block, "nbd") if (block / each / "pid").exists()]
    present += _entries(classes / "iscsi_session") + _entries(classes / "fc_remote_ports")
    for each in _entries(classes / "nvme"):
        transport = _word(classes / "nvme" / each / "transport")
        present += [f"{each} by {transport}"] if transport not in ("", "pcie", "loop") else []
    return looked("network block devices", present)


def _sockets(root: Path) -> Finding:
    """Sockets of this namespace with a peer beyond loopback, or bound to an address beyond it.

    A socket that listens on every address is as reachable as the interfaces make it.
    """
    present, wide = list[str](), set[int]()
    for table in _TABLES:
        try:
            lines = (root / "proc/net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            _, local, peer, *_ = line.split()
            (ip, port), (peer_ip, peer_port) = address_of(local), address_of(peer)
            if peer_port and not peer_ip.is_loopback:
                present.append(f"{table} {ip}:{port} has the peer {peer_ip}:{peer_port}")
            elif ip.is_unspecified:
                wide.add(port)
            elif not ip.is_loopback:
                present.append(f"{table} {ip}:{port} is bound beyond loopback")
    ports = ", ".join(map(str, sorted(wide)))
    none = f"only on every address: {ports}, closed while no interface is up" if ports else "none"
    return looked("sockets", present, absent=none)


def address_of(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address as /proc/net has it: words of the host's byte order in hex. Pure."""
    digits, _, port = text.partition(":")
    raw, step = bytes.fromhex(digits), -1 if byteorder == "little" else 1
    order = b"".join(raw[at : at + 4][::step] for at in range(0, len(raw), 4))
    if len(order) == 4:
        return IPv4Address(order), int(port, 16)
    six = IPv6Address(order)
    return six.ipv4_mapped or six, int(port, 16)


def _file_systems(root: Path) -> Finding:
    present, unknown = list[str](), list[str]()
    for line in (root / "proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        kind, where = right.split(" ", 1)[0], left.split(" ")[4]
        if _REMOTE.fullmatch(kind):
            present.append(f"{kind} at {where}")
        elif kind.startswith("fuse") and kind not in _LOCAL_FUSE:
            unknown.append(f"{kind} at {where}")
    return looked("network file systems", present, unknown)


def _time(root: Path) -> Finding:
    """Programs that set the clock from elsewhere."""
    running = ((each, _word(root / "proc" / each / "comm")) for each in _entries(root / "proc"))
    present = [f"{name} runs (process {each})" for each, name in running if name in _TIME_PROGRAMS]
    return looked("time synchronisation", present)

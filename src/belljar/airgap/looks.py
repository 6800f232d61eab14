"""Looks at what this host has: radios, modems, gadgets, sockets, file systems, time sources.

Reads /sys and /proc only. A place that can't be read is `can't tell`; a kernel without the thing
has no such place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from sys import byteorder
from typing import Final

from belljar.airgap.finding import Finding, looked
from belljar.airgap.tries import has_way
from belljar.units import printable

# Their bytes are on another machine, or with the hypervisor.
_REMOTE: Final = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph-fuse"),
        *("fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs"),
        *("vboxsf", "virtiofs", "vmhgfs"),
    }
)
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fusectl"})
_ADAPTERS: Final = frozenset(
    {
        *("asix", "ax88179_178a", "cdc_eem", "cdc_ether", "cdc_mbim", "cdc_ncm", "cdc_subset"),
        *("ipheth", "r8152", "rndis_host", "qmi_wwan", "smsc75xx", "smsc95xx"),
    }
)
_NETWORK_FUNCTIONS: Final = ("ecm.", "eem.", "ncm.", "rndis.", "geth.")
_TIME_PROGRAMS: Final = frozenset(
    {
        *("chronyd", "ntpd", "ntpd-rs", "openntpd", "ntpdate", "phc2sys", "ptp4l", "sntp"),
        *("systemd-timesyn", "timemaster"),
    }
)
_TIME_SERVER: Final = re.compile(r"^\s*(?:server|pool|peer|NTP\s*=)\s*(\S+)", re.MULTILINE)
_TIME_FILES: Final = (
    *("etc/chrony.conf", "etc/chrony/chrony.conf", "etc/ntp.conf", "etc/ntpsec/ntp.conf"),
    "etc/systemd/timesyncd.conf",
)
_TABLES: Final = ("tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6", "sctp/assocs")
_LITTLE: Final = byteorder == "little"


def look(root: Path = Path("/")) -> Iterator[Finding]:
    """One finding for each kind of thing below `root`."""
    sys, proc = root / "sys", root / "proc"
    for name, find, place in (
        ("radios", _radios, sys),
        ("modems", _modems, sys),
        ("USB network", _usb_network, sys),
        ("InfiniBand", _infiniband, sys),
        ("network block devices", _block_devices, sys),
        ("sockets", _sockets, proc),
        ("network file systems", _file_systems, proc),
        ("time synchronisation", _time, root),
    ):
        try:
            if place == sys:
                (sys / "class").stat()
            yield find(name, place)
        except OSError as error:
            unknown = [f"{printable(str(error.filename))} can't be read: {error.strerror}"]
            yield looked(name, unknown=unknown, absent="")


def _entries(place: Path) -> list[str]:
    """Names, sorted; none if there is no such place. Raises `OSError` if it can't be read."""
    try:
        return sorted(entry.name for entry in place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _word(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _radios(name: str, sys: Path) -> Finding:
    """A radio counts as off only when its switch says so."""
    present, off, switched = list[str](), list[str](), set[str]()
    for each in _entries(sys / "class/rfkill"):
        place = sys / "class/rfkill" / each
        kind, label = _word(place / "type"), f"{_word(place / 'name')} ({_word(place / 'type')})"
        switched.add(kind)
        is_off = "1" in (_word(place / "hard"), _word(place / "soft"))
        (off if is_off else present).append(f"{label} is {'blocked' if is_off else 'on'}")
    for what, kind in (("ieee80211", "wlan"), ("bluetooth", "bluetooth"), ("nfc", "nfc")):
        if kind not in switched:
            present += [f"{each} has no switch" for each in _entries(sys / "class" / what)]
    present += _entries(sys / "class/ieee802154") + _entries(sys / "class/uwb")
    return looked(name, present=present, absent="; ".join(off) or "no radio")


def _modems(name: str, sys: Path) -> Finding:
    present = [*_entries(sys / "class/wwan")]
    present += [each for each in _entries(sys / "class/usbmisc") if each.startswith("cdc-wdm")]
    lines = [each for each in _entries(sys / "class/tty") if each.startswith(("ttyUSB", "ttyACM"))]
    unknown = [f"{each} is a serial line on USB: it may be a modem" for each in lines]
    return looked(name, present=present, unknown=unknown, absent="no modem")


def _usb_network(name: str, sys: Path) -> Finding:
    """This host as a gadget of another, and adapters on its own ports."""
    present = list[str]()
    for gadget in _entries(sys / "kernel/config/usb_gadget"):
        place = sys / "kernel/config/usb_gadget" / gadget
        functions = [
            each for each in _entries(place / "functions") if each.startswith(_NETWORK_FUNCTIONS)
        ]
        if functions and _word(place / "UDC"):
            present.append(f"gadget {gadget} offers {', '.join(functions)}")
    drivers = sys / "bus/usb/drivers"
    for driver in _ADAPTERS:
        bound = [each for each in _entries(drivers / driver) if ":" in each]
        present += [f"{each} is a network adapter ({driver})" for each in bound]
    controllers = [] if present else _entries(sys / "class/udc")
    unknown = [
        f"controller {each} may be a gadget: {function}"
        for each in controllers
        if (function := _word(sys / "class/udc" / each / "function"))
    ]
    return looked(name, present=present, unknown=unknown, absent="no gadget, no adapter")


def _infiniband(name: str, sys: Path) -> Finding:
    return looked(name, present=_entries(sys / "class/infiniband"), absent="no such device")


def _block_devices(name: str, sys: Path) -> Finding:
    """Disks whose bytes come by a network."""
    present = [
        each
        for each in _entries(sys / "block")
        if each.startswith(("drbd", "rbd"))
        or (each.startswith("nbd") and (sys / "block" / each / "pid").exists())
    ]
    present += _entries(sys / "class/iscsi_session") + _entries(sys / "class/fc_remote_ports")
    present += [
        f"{each} by {transport}"
        for each in _entries(sys / "class/nvme")
        if (transport := _word(sys / "class/nvme" / each / "transport")) not in ("", "pcie", "loop")
    ]
    return looked(name, present=present, absent="none")


def _sockets(name: str, proc: Path) -> Finding:
    """Sockets of this namespace with a peer beyond loopback, or bound to an address beyond it.

    A socket that listens on every address is as reachable as the interfaces make it.
    """
    present, wide = list[str](), set[int]()
    for table in _TABLES:
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        if table == "sctp/assocs":
            present += ["an SCTP association"] if lines else []
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
    return looked(name, present=present, absent=none)


def address_of(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address as /proc/net has it: words of the host's byte order in hex. Pure."""
    digits, _, port = text.partition(":")
    raw = bytes.fromhex(digits)
    order = b"".join(raw[at : at + 4][:: -1 if _LITTLE else 1] for at in range(0, len(raw), 4))
    if len(order) == 4:
        return IPv4Address(order), int(port, 16)
    six = IPv6Address(order)
    return six.ipv4_mapped or six, int(port, 16)


def _file_systems(name: str, proc: Path) -> Finding:
    present, unknown = list[str](), list[str]()
    for line in (proc / "self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        kind, where = right.split(" ", 1)[0], left.split(" ")[4]
        if kind in _REMOTE:
            present.append(f"{kind} at {where}")
        elif kind.startswith("fuse") and kind not in _LOCAL_FUSE and kind != "fuseblk":
            unknown.append(f"{kind} at {where}")
    return looked(name, present=present, unknown=unknown, absent="none mounted")


def _time(name: str, root: Path) -> Finding:
    """Programs that set the clock from elsewhere, and the servers they are given."""
    present, unknown = list[str](), list[str]()
    for entry in (root / "proc").iterdir():
        program = _word(entry / "comm") if entry.name.isdigit() else ""
        if program in _TIME_PROGRAMS:
            present.append(f"{program} runs (process {entry.name})")
    for file in _TIME_FILES:
        for server in _TIME_SERVER.findall(_word(root / file)):
            is_number = bool(re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]+", server))
            if is_number and has_way(server):
                unknown.append(f"/{file} names {server}, reached by a route")
    return looked(name, present=present, unknown=unknown, absent="none runs")

"""A range's nftables: rules by nft, logged packets (NFLOG), counted flows.

Parses only fixed headers of a guest's packets. Source: linux/netfilter/nfnetlink_log.h.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.errors import HostError, host_errors
from belljar.network import syscalls
from belljar.network.supervisor import netlink
from belljar.plan.addresses import RangeLayout
from belljar.plan.rules import ANSWERED, LET_THROUGH, DropReason
from belljar.units import printable

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_SUBSYSTEM_LOG: Final = 4  # NFNL_SUBSYS_ULOG
_PACKET, _CONFIG = _SUBSYSTEM_LOG << 8, _SUBSYSTEM_LOG << 8 | 1
_NOTIFY_RULES_GROUP: Final = 7  # NFNLGRP_NFTABLES
# NFULA_CFG_CMD, _MODE, _TIMEOUT, _QTHRESH.
_CFG_COMMAND, _CFG_MODE, _CFG_TIMEOUT, _CFG_THRESHOLD = 1, 2, 4, 5
_COMMAND_BIND: Final = 1  # NFULNL_CFG_CMD_BIND
_COPY_PACKET: Final = 2  # NFULNL_COPY_PACKET: the packet's beginning, too
_NFGEN: Final = struct.Struct("=BBH")  # nfgenmsg: family, version, group
# NFULA_PACKET_HDR, _IFINDEX_INDEV, _PAYLOAD, _PREFIX.
_AT_HEADER, _AT_IN_DEVICE, _AT_PAYLOAD, _AT_PREFIX = 1, 4, 9, 10
# Room for some 10,000 records, five cells' bursts; an ordinary user gets what the host allows.
_BUFFER_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 16  # The end of a longer datagram is lost.
# IANA's numbers; any other protocol is shown by its number.
_PROTOCOLS: Final = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}
# Both ports are the first four bytes of their headers.
_WITH_PORTS: Final = frozenset({6, 17, 132})
_MAX_PREFIX_CHARS: Final = 32
_NFT_TIMEOUT_S: Final = 20.0
_MAX_LISTING_BYTES: Final = 16 << 20
# Refused destinations of one cell and reason with an event of their own; the rest are one count.
FIRST_LISTED: Final = 100
FIRST_ALLOWED: Final = 65_536  # Likewise, of what was let through: every port of a cell.
_KNOWN: Final = frozenset(str(reason) for reason in DropReason)
_Destination: TypeAlias = tuple[str, str, int | None]  # Protocol, address, port.
Flow = dict[str, Any]  # The data of a `network.flow`.


@dataclass(frozen=True, slots=True)
class Logged:
    reason: str
    device: int
    protocol: str
    source: str
    destination: str
    port: int | None
    size_bytes: int
    packet: bytes = field(default=b"", compare=False, repr=False)


def open_log(group: int, snap_bytes: int) -> socket.socket:
    kernel = netlink.open_socket(family=_NETFILTER)
    syscalls.set_receive_buffer(kernel, _BUFFER_BYTES)
    head = _NFGEN.pack(socket.AF_UNSPEC, 0, socket.htons(group))
    for attribute, value in (
        (_CFG_COMMAND, struct.pack("=B", _COMMAND_BIND)),
        (_CFG_MODE, struct.pack(">IBx", snap_bytes, _COPY_PACKET)),
        # Each packet at once, none held back for a batch; the timeout is in hundredths of a second.
        (_CFG_THRESHOLD, struct.pack(">I", 1)),
        (_CFG_TIMEOUT, struct.pack(">I", 1)),
    ):
        body = head + netlink.attribute(attribute, value)
        netlink.exchange(kernel, netlink.message(_CONFIG, body))
    kernel.settimeout(0.0)
    return kernel


def open_changes() -> socket.socket:
    kernel = netlink.open_socket(family=_NETFILTER)
    syscalls.set_receive_buffer(kernel, _BUFFER_BYTES)
    kernel.bind((0, 1 << (_NOTIFY_RULES_GROUP - 1)))
    kernel.settimeout(0.0)
    return kernel


def read_all(kernel: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield kernel.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            if exc.errno != 105:  # ENOBUFS
                raise


def parse_log(datagram: bytes) -> Iterator[Logged]:
    """Read a datagram's packets. Pure, total."""
    for kind, payload in netlink.messages(datagram):
        if kind == _PACKET and len(payload) >= _NFGEN.size:
            found = dict(netlink.attributes(payload[_NFGEN.size :]))
            prefix = found.get(_AT_PREFIX, b"").rstrip(b"\0").decode("ascii", "replace")
            device = found.get(_AT_IN_DEVICE, b"")
            packet = found.get(_AT_PAYLOAD, b"")
            number = int.from_bytes(device, "big") if len(device) == 4 else 0
            yield Logged(prefix[:_MAX_PREFIX_CHARS], number, *parse_packet(packet), packet)


def parse_packet(packet: bytes) -> tuple[str, str, str, int | None, int]:
    """Return (protocol, source, destination, port, claimed length). Pure, total."""
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        header, number = 4 * (packet[0] & 0xF), packet[9]
        length, _, fragment = struct.unpack_from(">HHH", packet, 2)
        ends = packet[12:16], packet[16:20]
        # Only the first fragment has the ports.
        has_ports = header >= 20 and fragment & 0x1FFF == 0
    elif version == 6 and len(packet) >= 40:
        header, number, has_ports = 40, packet[6], True
        length = int.from_bytes(packet[4:6], "big") + header
        ends = packet[8:24], packet[24:40]
    else:
        return "unknown", "", "", None, len(packet)
    port = None
    if has_ports and number in _WITH_PORTS and len(packet) >= header + 4:
        port = int.from_bytes(packet[header + 2 : header + 4], "big")
    source, destination = (str(ip_address(end)) for end in ends)
    return _PROTOCOLS.get(number, f"ip-{number}"), source, destination, port, length


@contextmanager
def rules_loaded(nft: str, rules: int) -> Iterator[None]:
    """Load rules by the block's end, all or none. Raises `HostError`."""
    os.lseek(rules, 0, os.SEEK_SET)
    with _started(nft, "-f", "-", stdin=rules) as process:
        yield
        _output(nft, process)


def list_rules(nft: str) -> dict[str, Any]:
    with (
        Path(os.devnull).open("rb") as nothing,  # not DEVNULL, which is opened for writing too
        _started(nft, "list", "ruleset", stdin=nothing.fileno()) as process,
    ):
        output = _output(nft, process)
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("nftables"), list):
        raise HostError("nft's listing can't be read", where=nft)
    return document


@contextmanager
def _started(nft: str, *words: str, stdin: int) -> Iterator[subprocess.Popen[bytes]]:
    command, pipe, env = (nft, "-j", *words), subprocess.PIPE, {"LC_ALL": "C"}
    with host_errors("nft can't be run", where=nft):
        process = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, env=env, cwd="/")
    with process:
        try:
            yield process
        finally:
            process.kill()  # harmless when it has ended


def _output(nft: str, process: subprocess.Popen[bytes]) -> bytes:
    try:
        output, errors = process.communicate(timeout=_NFT_TIMEOUT_S)
        problem = printable(errors.strip() or output[:200], max_chars=500)
    except subprocess.TimeoutExpired as exc:
        raise HostError(str(exc), where=nft) from exc
    if process.returncode != 0 or len(output) > _MAX_LISTING_BYTES:
        hint = "this kernel may lack a part of nftables; `belljar doctor` says which"
        raise HostError(f"nft refused: {problem}", where=nft, hint=hint)
    return output


class Flows:
    def __init__(self, layout: RangeLayout) -> None:
        self.taken = self.lost = 0
        self.cells: dict[int, str] = {}  # by their ports' device numbers
        # The first name of an address
        self._names = {name.address: name.pattern for name in reversed(layout.names)}
        # By cell and reason: destinations with an event, then packets and bytes counted since.
        self._seen: dict[tuple[str, str], set[_Destination]] = {}
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}

    def take(self, logged: Logged) -> Flow | None:
        """Return the packet's event data, if it needs one."""
        self.taken += 1
        cell = self.cells.get(logged.device, "")
        reason = logged.reason if logged.reason in _KNOWN else "unknown"
        seen = self._seen.setdefault((cell, reason), set())
        destination = (logged.protocol, logged.destination, logged.port)
        most = FIRST_ALLOWED if _verdict(reason) == "allowed" else FIRST_LISTED
        if destination in seen or len(seen) >= most:
            packets, size = self._counted.get((cell, reason), (0, 0))
            self._counted[cell, reason] = packets + 1, size + logged.size_bytes
            return None
        seen.add(destination)
        flow = self._flow(cell, reason, destination, logged.size_bytes, 1)
        return flow | {"source": logged.source}

    def flush(self) -> Iterator[Flow]:
        counted, self._counted = self._counted, {}
        for (cell, reason), (packets, size) in counted.items():
            yield self._flow(cell, reason, ("", "", None), size, packets)

    def count_lost(self, logged: int) -> None:
        self.lost = max(self.lost, logged - self.taken)

    def _flow(
        self, cell: str, reason: str, destination: _Destination, size: int, count: int
    ) -> Flow:
        flow = dict(zip(("protocol", "address", "port"), destination, strict=True))
        verdict, name = _verdict(reason), self._names.get(destination[1], "")
        about = {"verdict": verdict, "reason": reason, "bytes": size, "count": count}
        return {"cell": cell, **flow, **about, "name": name}


def _verdict(reason: str) -> str:
    if reason in LET_THROUGH:
        return "allowed"
    return "refused" if reason in ANSWERED else "dropped"

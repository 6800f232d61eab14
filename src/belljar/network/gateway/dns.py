"""The resolver of a layout's names; it knows no recursion."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from belljar.capture import body_of
from belljar.events import Kind
from belljar.network.decide import canonical_name, find
from belljar.network.gateway.site import Site
from belljar.network.ipc import Item
from belljar.plan.addresses import RangeLayout
from belljar.signals.detectors import entropy
from belljar.signals.values import Channel
from belljar.units import printable

TTL_S: Final = 30
MAX_QUERY_BYTES: Final = 4096
# NXDOMAIN even where unknown names are simulated: Mozilla's canary (Firefox leaves DoH off), RFC
# 9462 (no encrypted resolver), WPAD.
NEVER: Final = frozenset({"use-application-dns.net", "wpad", "_dns.resolver.arpa", "resolver.arpa"})
_HEADER_BYTES: Final = 12  # RFC 1035 sections 4.1.1 and 2.3.4.
_MAX_NAME_BYTES, _MAX_LABEL_BYTES = 255, 63
_COUNTS: Final = struct.Struct("!HHHH")
# A label shown byte for byte: no dot, backslash, space or control.
_SHOWN_EXACTLY: Final = re.compile(rb"[!-\-/-\[\]-~]+")
_IN, _ANY_CLASS = 1, 255
_A, _IXFR, _AXFR, _ANY = 1, 251, 252, 255
# https://www.iana.org/assignments/dns-parameters; others are shown by number.
_TYPES: Final[Mapping[int, str]] = {
    _A: "A", 2: "NS", 5: "CNAME", 6: "SOA", 10: "NULL", 12: "PTR", 15: "MX", 16: "TXT",
    28: "AAAA", 33: "SRV", 35: "NAPTR", 43: "DS", 46: "RRSIG", 48: "DNSKEY", 52: "TLSA",
    64: "SVCB", 65: "HTTPS", _IXFR: "IXFR", _AXFR: "AXFR", _ANY: "ANY", 257: "CAA",
}  # fmt: skip
_QUESTION_S_NAME: Final = b"\xc0\x0c"  # A pointer to byte 12 (RFC 1035 section 4.1.4)
_RCODES: Final = {"FORMERR": 1, "NXDOMAIN": 3, "NOTIMP": 4, "REFUSED": 5}  # RFC 1035 section 4.1.1.
DATAGRAMS_A_TURN: Final = 64  # A flood of queries leaves connections their turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsAnswer:
    wire: bytes | None
    name: str = ""
    type: str = ""
    answer: str
    longest_label: int = 0
    entropy: float = 0.0
    header: str = ""  # Id and flags.
    whole: bool = False  # The fields hold every bit of the query.


def answer(query: bytes, layout: RangeLayout) -> DnsAnswer:
    """Return the answer to a message; never raise."""
    # An answer gets none, or two servers could talk without end.
    if not _HEADER_BYTES <= len(query) <= MAX_QUERY_BYTES or query[2] & 0x80:
        return DnsAnswer(wire=None, answer="NOT A QUERY")
    opcode, parsed = query[2] >> 3 & 0xF, _parse(query)
    if opcode or parsed is None:
        word, kind = ("NOTIMP", f"OPCODE{opcode}") if opcode else ("FORMERR", "")
        # The query's id, opcode and RD (0x79), and an error.
        wire = query[:2] + bytes((0x80 | (query[2] & 0x79), _RCODES[word])) + bytes(8)
        return DnsAnswer(wire=wire, answer=word, type=kind, header=query[:4].hex())
    question, labels, kind_number, klass = parsed
    records, address = b"", _address(labels, layout)
    if klass not in (_IN, _ANY_CLASS) or kind_number in (_AXFR, _IXFR):
        word = "REFUSED"
    elif address is not None and kind_number in (_A, _ANY):  # RFC 8482
        word, data = address, socket.inet_aton(address)
        records = _QUESTION_S_NAME + struct.pack("!HHIH", _A, _IN, TTL_S, len(data)) + data
    else:
        word = "NXDOMAIN" if address is None else "NODATA"
    rcode = _RCODES.get(word, 0)
    # Authoritative for these alone (AA, 0x04).
    flags = bytes((0x80 | 0x04 * (rcode in (0, 3)) | query[2] & 0x01, rcode))
    # Nothing stands behind the question, and nothing says so.
    is_bare = len(query) == _HEADER_BYTES + len(question) and query[10:12] == bytes(2)
    return DnsAnswer(
        wire=query[:2] + flags + _COUNTS.pack(1, bool(records), 0, 0) + question + records,
        name=printable(b".".join(labels), max_chars=300),
        type=_TYPES.get(kind_number, f"TYPE{kind_number}"),
        answer=word,
        longest_label=max(map(len, labels), default=0),
        entropy=round(entropy(b"".join(labels).lower()), 3),
        header=query[:4].hex(),
        whole=klass == _IN and is_bare and all(map(_SHOWN_EXACTLY.fullmatch, labels)),
    )


def _parse(query: bytes) -> tuple[bytes, tuple[bytes, ...], int, int] | None:
    """Return question, labels, type and class."""
    questions, answers, authorities, _ = _COUNTS.unpack_from(query, 4)
    if questions != 1 or answers or authorities:
        return None
    labels: list[bytes] = []
    at = _HEADER_BYTES
    while at < len(query) and (size := query[at]):
        at += 1 + size
        if size > _MAX_LABEL_BYTES or at - _HEADER_BYTES >= _MAX_NAME_BYTES:
            return None
        labels.append(query[at - size : at])
    end = at + 5
    if end > len(query):
        return None
    kind, klass = struct.unpack_from("!HH", query, at + 1)
    return query[_HEADER_BYTES:end], tuple(labels), kind, klass


def _address(labels: tuple[bytes, ...], layout: RangeLayout) -> str | None:
    has_dot = any(b"." in label for label in labels)
    canonical = None if has_dot else canonical_name(b".".join(labels))
    if canonical is None or canonical in NEVER or canonical.startswith("wpad."):
        return None
    found = find(canonical, layout)
    if found is not None:
        return found.address
    reverse = canonical.endswith((".in-addr.arpa", ".ip6.arpa"))
    return None if reverse else layout.catch_all


class DnsServer:
    def __init__(self, site: Site, group: asyncio.TaskGroup) -> None:
        self._site, self._group = site, group
        self._pending = 0
        self._datagram = memoryview(bytearray(1 << 16))  # No datagram is longer.

    def listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)

    def _readable(self, sock: socket.socket) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                length, peer = sock.recvfrom_into(self._datagram)
            except OSError:
                return
            query = bytes(self._datagram[:length])
            self._group.create_task(self._answer(sock, query, peer))
            self._pending += 1
            if self._pending == self._site.bounds.dns_pending:  # the rest stays in the socket
                self._site.hit("dns_pending")
                asyncio.get_running_loop().remove_reader(sock.fileno())
                return

    async def _answer(self, sock: socket.socket, query: bytes, peer: tuple[str, int]) -> None:
        try:
            cell = self._site.cells.get(peer[0], "")
            reply = answer(query, self._site.known_to(cell))
            bodies = () if reply.whole else (body_of("query", query, MAX_QUERY_BYTES),)
            data: dict[str, Any] = {"cell": cell, **asdict(reply)}
            del data["wire"], data["whole"]
            await self._site.record(lambda: Item(Kind.NETWORK_DNS, data, bodies))
            parts = [("label", reply.name.encode())]
            if not reply.whole:  # the name may be cut, and options are in no name
                parts.append(("query", query))
            is_blocked = await self._site.blocks("", Channel.DNS, parts, {"cell": cell})
            if reply.wire is not None and not is_blocked:
                sock.sendto(reply.wire, peer)
        except OSError:
            pass  # a datagram may be lost at any time: the client asks again
        finally:
            if self._pending == self._site.bounds.dns_pending:
                asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)
            self._pending -= 1

"""The resolver's answers: authoritative for the layout's names, NXDOMAIN for others. Pure.

No cache, no upstream, no recursion (RFC 1034 section 4.3.1).
A query has one question and at most one OPT record without a name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from socket import inet_aton
from typing import Final

from belljar.network.decide import canonical_name, find
from belljar.plan.addresses import RangeLayout
from belljar.signals.detectors import entropy
from belljar.units import printable

TTL_S: Final = 30
MAX_QUERY_BYTES: Final = 4096
MAX_UDP_BYTES: Final = 1232  # Announced (DNS flag day 2020). No answer is longer than 320 bytes.
MAX_SHOWN_CHARS: Final = 300
# NXDOMAIN even where unknown names are simulated: Mozilla's canary (Firefox leaves DoH off), RFC
# 9462 (no encrypted resolver), WPAD.
NEVER: Final = frozenset({"use-application-dns.net", "wpad", "_dns.resolver.arpa", "resolver.arpa"})
# RFC 1035 sections 4.1.1 and 2.3.4.
_HEADER_BYTES: Final = 12
_MAX_NAME_BYTES: Final = 255
_MAX_LABEL_BYTES: Final = 63
_AN_OPT: Final = b"\0\0\x29"  # The root's name and the type OPT (RFC 6891).
_OPT_BYTES: Final = 11  # Name, type, class, TTL and the length of options
_COUNTS: Final = struct.Struct("!HHHH")
# A label shown byte for byte: no dot, backslash, space or control.
_SHOWN_EXACTLY: Final = re.compile(rb"[!-\-/-\[\]-~]+")
_IN, _ANY_CLASS = 1, 255
_A, _SOA, _OPT, _IXFR, _AXFR, _ANY = 1, 6, 41, 251, 252, 255
# https://www.iana.org/assignments/dns-parameters
_TYPES: Final[Mapping[int, str]] = {
    _A: "A", 2: "NS", 5: "CNAME", _SOA: "SOA", 10: "NULL", 12: "PTR", 13: "HINFO", 15: "MX",
    16: "TXT", 17: "RP", 24: "SIG", 25: "KEY", 28: "AAAA", 29: "LOC", 33: "SRV", 35: "NAPTR",
    37: "CERT", 39: "DNAME", _OPT: "OPT", 43: "DS", 44: "SSHFP", 46: "RRSIG", 47: "NSEC",
    48: "DNSKEY", 50: "NSEC3", 52: "TLSA", 61: "OPENPGPKEY", 64: "SVCB", 65: "HTTPS", 99: "SPF",
    249: "TKEY", 250: "TSIG", _IXFR: "IXFR", _AXFR: "AXFR", _ANY: "ANY", 256: "URI", 257: "CAA",
}  # fmt: skip
_OPCODES: Final[Mapping[int, str]] = {1: "IQUERY", 2: "STATUS", 4: "NOTIFY", 5: "UPDATE"}
_QUESTION_S_NAME: Final = b"\xc0\x0c"  # A pointer to byte 12 (RFC 1035 section 4.1.4)


class Rcode(IntEnum):
    """RFC 1035 section 4.1.1, RFC 6891 section 9."""

    NOERROR = 0
    FORMERR = 1
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsAnswer:
    """What is sent back (`wire`) and recorded.

    `header`: the query's id and flags; `edns`: its OPT's fixed fields.
    `whole`: these fields hold every bit of the query.
    """

    wire: bytes | None
    name: str = ""
    type: str = ""
    answer: str
    longest_label: int = 0
    entropy: float = 0.0
    header: str = ""
    edns: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """`edns`: the OPT record's class and TTL."""

    question: bytes
    labels: tuple[bytes, ...]
    type: int
    klass: int
    edns: bytes | None
    options_bytes: int

    @property
    def version(self) -> int:
        return 0 if self.edns is None else self.edns[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """`word`: as recorded. `answer`, `authority`: that section's record."""

    word: str
    rcode: Rcode = Rcode.NOERROR
    answer: bytes = b""
    authority: bytes = b""


def answer(query: bytes, layout: RangeLayout) -> DnsAnswer:
    """The answer to a message. Never raises.

    A and ANY (RFC 8482): the A record; other types: NODATA with the SOA (RFC 2308).
    Another class, AXFR, IXFR: REFUSED; another opcode: NOTIMP.
    The name is returned as it was spelt (0x20).
    """
    # An answer gets none, or two servers could talk without end.
    if not _HEADER_BYTES <= len(query) <= MAX_QUERY_BYTES or query[2] & 0x80:
        return DnsAnswer(wire=None, answer="NOT A QUERY")
    reported = DnsAnswer(wire=None, answer="", header=query[:4].hex())
    if opcode := query[2] >> 3 & 0xF:
        wire = _bare(query, Rcode.NOTIMP)
        word = _OPCODES.get(opcode, f"OPCODE{opcode}")
        return replace(reported, wire=wire, answer="NOTIMP", type=word)
    parsed = _parse(query)
    if parsed is None:
        return replace(reported, wire=_bare(query, Rcode.FORMERR), answer="FORMERR")
    labels = parsed.labels
    reply = _decide(parsed, layout)
    return replace(
        reported,
        wire=_wire(query, parsed, reply),
        name=printable(b".".join(labels), max_chars=MAX_SHOWN_CHARS),
        type=_TYPES.get(parsed.type, f"TYPE{parsed.type}"),
        answer=reply.word,
        longest_label=max(map(len, labels), default=0),
        entropy=round(entropy(b"".join(labels).lower()), 3),
        edns="" if parsed.edns is None else parsed.edns.hex(),
        whole=parsed.klass == _IN
        and not parsed.options_bytes
        and all(map(_SHOWN_EXACTLY.fullmatch, labels)),
    )


def _bare(query: bytes, rcode: Rcode) -> bytes:
    """The query's id, opcode and RD, and an error."""
    # 0x79: opcode and RD.
    return query[:2] + bytes((0x80 | (query[2] & 0x79), rcode)) + bytes(8)


def _parse(query: bytes) -> _Query | None:
    """One question and at most one OPT, or None."""
    questions, answers, authorities, additionals = _COUNTS.unpack_from(query, 4)
    if questions != 1 or answers or authorities or additionals > 1:
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
    rest = query[end:]
    edns, options_bytes = None, 0
    if additionals:
        if len(rest) < _OPT_BYTES or rest[:3] != _AN_OPT:
            return None
        edns, options_bytes = rest[3:9], int.from_bytes(rest[9:11], "big")
    if len(rest) != (_OPT_BYTES + options_bytes if additionals else 0):
        return None
    return _Query(
        question=query[_HEADER_BYTES:end],
        labels=tuple(labels),
        type=kind,
        klass=klass,
        edns=edns,
        options_bytes=options_bytes,
    )


def _decide(query: _Query, layout: RangeLayout) -> _Reply:
    if query.version:
        return _Reply(word="BADVERS", rcode=Rcode.BADVERS)
    if query.klass not in (_IN, _ANY_CLASS) or query.type in (_AXFR, _IXFR):
        return _Reply(word="REFUSED", rcode=Rcode.REFUSED)
    address = _address(query.labels, layout)
    if address is None:
        return _Reply(word="NXDOMAIN", rcode=Rcode.NXDOMAIN, authority=_soa())
    if query.type in (_A, _ANY):
        return _Reply(word=address, answer=_record(_A, inet_aton(address)))
    return _Reply(word="NODATA", authority=_soa())


def _wire(query: bytes, parsed: _Query, reply: _Reply) -> bytes:
    # Authoritative for these alone (AA, 0x04).
    is_ours = reply.rcode in (Rcode.NOERROR, Rcode.NXDOMAIN)
    has_opt = parsed.edns is not None
    flags = bytes((0x80 | 0x04 * is_ours | query[2] & 0x01, reply.rcode & 0xF))
    counts = _COUNTS.pack(1, bool(reply.answer), bool(reply.authority), has_opt)
    opt = (
        _AN_OPT + struct.pack("!HIH", MAX_UDP_BYTES, reply.rcode >> 4 << 24, 0) if has_opt else b""
    )
    return query[:2] + flags + counts + parsed.question + reply.answer + reply.authority + opt


def _record(kind: int, data: bytes) -> bytes:
    return _QUESTION_S_NAME + struct.pack("!HHIH", kind, _IN, TTL_S, len(data)) + data


def _soa() -> bytes:
    """Each name is its own zone: no other is named."""
    return _record(_SOA, _QUESTION_S_NAME * 2 + struct.pack("!IIIII", 1, 3600, 600, 86_400, TTL_S))


def _address(labels: tuple[bytes, ...], layout: RangeLayout) -> str | None:
    """A label that no host name has is never simulated."""
    canonical = (
        None if any(b"." in label for label in labels) else canonical_name(b".".join(labels))
    )
    if canonical is None or canonical in NEVER or canonical.startswith("wpad."):
        return None
    found = find(canonical, layout)
    if found is not None:
        return found.address
    reverse = canonical.endswith((".in-addr.arpa", ".ip6.arpa"))
    return None if reverse else layout.catch_all

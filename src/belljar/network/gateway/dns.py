"""What the resolver answers: authoritative for the layout's names, NXDOMAIN for every other. Pure: bytes in, bytes and what to record out.

There is nothing to ask anybody with: no cache, no upstream, no recursion (RFC 1034 section 4.3.1; RA is 0). The parser is dnspython's; whatever it raises is a
FORMERR.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from dns.rdtypes.ANY.NS import NS
from dns.rdtypes.ANY.SOA import SOA
from dns.rdtypes.IN.A import A

from belljar.network.decide import canonical_name, find
from belljar.plan.addresses import RangeLayout
from belljar.units import printable

TTL_S: Final = 30
MAX_QUERY_BYTES: Final = 4096
MAX_UDP_BYTES: Final = 1232
"""What fits a packet everywhere (DNS flag day 2020), whatever the client says that it takes."""
LEAST_UDP_BYTES: Final = 512
MAX_SHOWN_CHARS: Final = 300
NEVER: Final = frozenset({"use-application-dns.net", "wpad", "_dns.resolver.arpa", "resolver.arpa"})
"""Names that would lead a client elsewhere, or that tell it whether there is a filter: NXDOMAIN even where unknown names are simulated
(Mozilla's canary: Firefox then leaves DoH off; RFC 9462: there is no encrypted resolver; WPAD)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`wire` is None when nothing is sent back (what can't be a query: an answer, or less than a header). `name`, `type`, `answer` are what goes on record."""

    wire: bytes | None
    name: str = ""
    type: str = ""
    answer: str
    longest_label: int = 0
    entropy: float = 0.0


def answer(query: bytes, layout: RangeLayout, *, udp: bool) -> Answer:
    """The answer to a message. Never raises; at most `MAX_UDP_BYTES` over UDP (TC is set when it would be more), 64 KiB over TCP.

    A, AAAA, HTTPS and every other type of a name that exists: its A record, else NODATA with the SOA (RFC 2308). ANY: the A record (RFC 8482). Another class, AXFR,
    IXFR: REFUSED. Another opcode: NOTIMP. Not exactly one question: FORMERR. The name is given back as it was spelt (0x20).
    """
    if len(query) < 12 or len(query) > MAX_QUERY_BYTES or query[2] & 0x80:
        return Answer(wire=None, answer="NOT A QUERY")
    opcode = (query[2] >> 3) & 0xF
    if opcode != dns.opcode.QUERY:
        return Answer(
            wire=_bare(query, dns.rcode.NOTIMP), answer="NOTIMP", type=dns.opcode.to_text(dns.opcode.Opcode(opcode))
        )
    if query[4:6] != b"\0\1":
        return Answer(wire=_bare(query, dns.rcode.FORMERR), answer="FORMERR")
    try:
        message = dns.message.from_wire(query, ignore_trailing=False, one_rr_per_rrset=True)
    except Exception:  # noqa: BLE001 - a parser of hostile bytes: whatever it raises, the bytes are no query
        return Answer(wire=_bare(query, dns.rcode.FORMERR), answer="FORMERR")
    return _answered(message, layout, udp=udp)


def entropy(text: bytes) -> float:
    """Shannon's entropy of the bytes of a text, in bits a byte; 0 for an empty one. High for names that carry data."""
    if not text:
        return 0.0
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts) + 0.0


def _bare(query: bytes, rcode: int) -> bytes:
    """A header without a question: the query's id, opcode and RD, and an error."""
    return query[:2] + bytes((0x80 | (query[2] & 0x79), rcode)) + bytes(8)


def _answered(message: dns.message.Message, layout: RangeLayout, *, udp: bool) -> Answer:
    question = message.question[0]
    response = dns.message.make_response(message, recursion_available=False, our_payload=MAX_UDP_BYTES)
    response.flags &= ~(dns.flags.AD | dns.flags.CD)
    said = _fill(response, question, layout) if message.edns <= 0 else _badvers(response)
    labels = [label for label in question.name.labels if label]
    return Answer(
        wire=_wire(response, message, udp=udp),
        name=printable(b".".join(labels), max_chars=MAX_SHOWN_CHARS),
        type=dns.rdatatype.to_text(question.rdtype),
        answer=said,
        longest_label=max(map(len, labels), default=0),
        entropy=round(entropy(b"".join(labels).lower()), 3),
    )


def _badvers(response: dns.message.Message) -> str:
    response.set_rcode(dns.rcode.BADVERS)
    return "BADVERS"


def _wire(response: dns.message.Message, message: dns.message.Message, *, udp: bool) -> bytes:
    most = min(max(message.payload if message.edns >= 0 else LEAST_UDP_BYTES, LEAST_UDP_BYTES), MAX_UDP_BYTES)
    try:
        return response.to_wire(max_size=most if udp else 65535)
    except dns.exception.TooBig:
        response.answer, response.authority, response.additional = [], [], []
        response.flags |= dns.flags.TC
        return response.to_wire()


def _fill(response: dns.message.Message, question: dns.rrset.RRset, layout: RangeLayout) -> str:
    """Puts the answer in; says it in a word."""
    if question.rdclass not in (dns.rdataclass.IN, dns.rdataclass.ANY) or question.rdtype in (
        dns.rdatatype.AXFR,
        dns.rdatatype.IXFR,
    ):
        response.set_rcode(dns.rcode.REFUSED)
        return "REFUSED"
    response.flags |= dns.flags.AA
    address = _address(question.name, layout)
    if address is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype in (dns.rdatatype.A, dns.rdatatype.ANY):
        response.answer.append(_record(question.name, A(dns.rdataclass.IN, dns.rdatatype.A, address)))  # type: ignore[no-untyped-call]
        return address
    zone = question.name
    if address is not None and question.rdtype in (dns.rdatatype.NS, dns.rdatatype.SOA):
        own = NS(dns.rdataclass.IN, dns.rdatatype.NS, zone)  # type: ignore[no-untyped-call]
        response.answer.append(_record(zone, _soa(zone) if question.rdtype == dns.rdatatype.SOA else own))
        return dns.rdatatype.to_text(question.rdtype)
    response.authority.append(_record(zone, _soa(zone)))
    return "NODATA" if address is not None else "NXDOMAIN"


def _address(name: dns.name.Name, layout: RangeLayout) -> str | None:
    """Where a name leads; None when it leads nowhere. A label with a byte that no host name has is nobody's, simulated or not."""
    labels = [label for label in name.labels if label]
    canonical = None if any(b"." in label for label in labels) else canonical_name(b".".join(labels))
    if canonical is None or canonical in NEVER or canonical.startswith("wpad."):
        return None
    found = find(canonical, layout)
    if found is not None:
        return found.address
    reverse = canonical.endswith((".in-addr.arpa", ".ip6.arpa"))
    return None if reverse else layout.catch_all


def _record(name: dns.name.Name, data: dns.rdata.Rdata) -> dns.rrset.RRset:
    return dns.rrset.from_rdata(name, TTL_S, data)


def _soa(zone: dns.name.Name) -> SOA:
    """Each name is a zone of its own: no other name is told of."""
    return SOA(dns.rdataclass.IN, dns.rdatatype.SOA, zone, zone, 1, 3600, 600, 86_400, TTL_S)  # type: ignore[no-untyped-call]

"""What the resolver answers."""

from __future__ import annotations

import struct

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belljar.network.gateway.dns import DnsAnswer, answer
from belljar.plan.addresses import NameAddress, RangeLayout

NAMES = {
    "shop.example": "10.9.8.2",
    "*.shop.example": "10.9.8.3",
    "169.254.169.254": "169.254.169.254",
}
LAYOUT = RangeLayout(
    prefix="10.9.8.0/22",
    resolver="10.9.8.1",
    names=tuple(NameAddress(pattern=p, stand_in="s", address=a) for p, a in NAMES.items()),
    catch_all=None,
    cells=(),
)


PLAIN = dns.message.make_query("shop.example", "A").to_wire()


def counting(*counts: int) -> bytes:
    return PLAIN[:4] + struct.pack("!HHHH", *counts) + PLAIN[12:]


@pytest.mark.promise("4.5")
@pytest.mark.parametrize(
    ("query", "answered"),
    [
        *((PLAIN[:2] + bytes((opcode << 3,)) + PLAIN[3:], "NOTIMP") for opcode in (1, 15)),
        *((counting(count, 0, 0, 0), "FORMERR") for count in (0, 2, 65535)),  # RFC 9619
        *((counting(1, *counts), "FORMERR") for counts in ((1, 0, 0), (0, 1, 0))),
        (counting(1, 65535, 65535, 65535), "FORMERR"),
        # QR is set: nothing comes back, or two resolvers could talk for ever
        (PLAIN[:2] + b"\x80" + PLAIN[3:], "NOT A QUERY"),
    ],
)
def test_what_is_no_query_is_refused_by_its_header(query: bytes, answered: str) -> None:
    """With an error and nothing else, or not at all."""
    said = answer(query, LAYOUT)
    assert said.answer == answered
    if answered == "NOT A QUERY":
        assert said.wire is None
    else:
        assert said.wire is not None
        assert said.wire[3] & 0xF == dns.rcode.from_text(answered)


def rebuilt(said: DnsAnswer) -> bytes:
    """The message that a record of this answer stands for."""
    labels = said.name.split(".") if said.name else []
    name = b"".join(bytes((len(label),)) + label.encode() for label in labels) + b"\0"
    kind = dns.rdatatype.from_text(said.type)
    counts = struct.pack("!HHHH", 1, 0, 0, 0)
    return bytes.fromhex(said.header) + counts + name + struct.pack("!HH", kind, 1)


@pytest.mark.promise("5.4")
@given(
    labels=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=63),
            st.from_regex(rb"[a-zA-Z0-9_-]{1,20}", fullmatch=True),
        ),
        max_size=5,
    ),
    kind=st.integers(0, 65535),
    klass=st.sampled_from([1, 1, 1, 3, 255]),
    header=st.binary(min_size=4, max_size=4),
    opt=st.sampled_from(
        [b"", b"\0\0\x29\xab\xcd\0\0\x80\1\0\0", b"\0\0\x29\4\xd0\0\0\0\0\0\5\0\x0a\0\1s"]
    ),
)
@settings(deadline=None, max_examples=150)
def test_a_record_is_whole_only_when_the_message_can_be_made_from_it(
    labels: list[bytes], kind: int, klass: int, header: bytes, opt: bytes
) -> None:
    """Id, flags, name and type: `whole` means that no bit of the message is missing."""
    name = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    query = (
        header
        + struct.pack("!HHHH", 1, 0, 0, bool(opt))
        + name
        + struct.pack("!HH", kind, klass)
        + opt
    )
    said = answer(query, LAYOUT)
    assert not said.whole or rebuilt(said) == query


QUERY = dns.message.make_query("shop.example", "A", use_edns=0).to_wire()


@given(
    query=st.one_of(
        st.binary(max_size=600),
        st.binary(max_size=500).map(lambda rest: QUERY[:12] + rest),
        st.binary(max_size=500).map(lambda rest: b"\0\1\1\0\0\1\0\0\0\0\0\0" + rest),
        st.tuples(st.integers(0, len(QUERY) - 1), st.integers(0, 255)).map(
            lambda change: QUERY[: change[0]] + bytes((change[1],)) + QUERY[change[0] + 1 :]
        ),
    )
)
@example(query=b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1")  # a name that points at itself
@settings(deadline=None, max_examples=200)
def test_hostile_messages_get_bounded_answers(query: bytes) -> None:
    """Whatever the bytes: an answer that parses and fits, or none; the record is printable."""
    said = answer(query, LAYOUT)
    assert len(said.name) < 1500
    assert (said.name + said.type + said.answer).isprintable()
    if said.wire is None:
        return
    assert len(said.wire) <= 320
    assert said.wire[:2] == query[:2]
    assert said.wire[2] & 0x80
    dns.message.from_wire(said.wire)


@pytest.mark.promise("2.5")
@given(labels=st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=8))
@settings(deadline=None)
def test_only_names_of_the_policy_ever_get_an_address(labels: list[bytes]) -> None:
    """An address in an answer means: the name, byte for byte but for case, is the policy's."""
    try:
        name = dns.name.Name((*labels, b""))
    except dns.name.NameTooLong:
        return
    query = dns.message.make_query(name, "A")
    wire = answer(query.to_wire(), LAYOUT).wire
    assert wire is not None
    if dns.message.from_wire(wire).answer:
        text = b".".join(labels).lower().decode()
        assert text == "shop.example" or text.split(".", 1)[1] == "shop.example"

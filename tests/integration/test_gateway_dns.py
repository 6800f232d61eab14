"""DNS through a gateway's process, over UDP and TCP."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import dns.edns
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest
from tests.fakes.gateway import (
    CATCH_ALL,
    RESOLVER,
    SHOP,
    WILD,
    Gateway,
    is_silent,
    read_all,
    running,
)

from belljar.events import Kind


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """One with small bounds, and timeout."""
    with running(
        tmp_path, dns_pending=20, dns_tcp_idle_s=60.0, dns_tcp_queries=3, dns_tcp_connections=4
    ) as found:
        yield found


def ask(gateway: Gateway, name: str, kind: str = "A", *, tcp: bool = False) -> dns.message.Message:
    """An answer."""
    query = dns.message.make_query(name, kind)
    if tcp:
        return dns.query.tcp(query, RESOLVER, port=gateway.ports["dns_tcp"], timeout=20)
    return dns.query.udp(query, RESOLVER, port=gateway.ports["dns_udp"], timeout=20)


@pytest.mark.parametrize("tcp", [False, True])
def test_names_are_answered_and_on_record(gateway: Gateway, tcp: bool) -> None:
    """The policy's names, and every other one: the answer comes from the address that was asked,
    and the query is on record."""
    assert ask(gateway, "shop.example", tcp=tcp).answer[0][0].to_text() == SHOP
    assert ask(gateway, "A.Shop.Example", tcp=tcp).answer[0][0].to_text() == WILD
    assert ask(gateway, "aGVsbG8gd29ybGQ.evil.example", tcp=tcp).rcode() == dns.rcode.NXDOMAIN
    assert ask(gateway, "shop.example", "AAAA", tcp=tcp).answer == []
    said = gateway.owner.of(Kind.NETWORK_DNS)
    assert [item["answer"] for item in said] == [SHOP, WILD, "NXDOMAIN", "NODATA"]
    assert {item["cell"] for item in said} == {"agent"}
    assert {item["transport"] for item in said} == {"tcp" if tcp else "udp"}
    assert said[2]["longest_label"] == 15


@pytest.mark.promise("5.4")
def test_no_answer_before_the_record(gateway: Gateway) -> None:
    """Not even NXDOMAIN: a query that nobody recorded could have carried something."""
    gateway.owner.hold()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.sendto(
            dns.message.make_query("x.evil.example", "A").to_wire(),
            (RESOLVER, gateway.ports["dns_udp"]),
        )
        gateway.owner.first(Kind.NETWORK_DNS)
        assert is_silent(sock)
        gateway.owner.release()
        assert dns.message.from_wire(sock.recv(4096)).rcode() == dns.rcode.NXDOMAIN


@pytest.mark.promise("5.4")
def test_each_query_of_a_flood_is_on_record(gateway: Gateway) -> None:
    """While the owner is late, only so many wait; the others wait in the kernel, and none is lost."""
    gateway.owner.hold()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        for number in range(100):
            query = dns.message.make_query(f"n{number}.evil.example", "A")
            sock.sendto(query.to_wire(), (RESOLVER, gateway.ports["dns_udp"]))
        gateway.owner.first(Kind.NETWORK_DNS)
        assert is_silent(sock)
        assert len(gateway.owner.of(Kind.NETWORK_DNS)) == 20
        gateway.owner.release()
        for _ in range(100):
            sock.recv(4096)
    names = [item["name"] for item in gateway.owner.of(Kind.NETWORK_DNS)]
    assert sorted(names) == sorted(f"n{number}.evil.example" for number in range(100))


def test_hostile_datagrams_change_nothing(gateway: Gateway) -> None:
    """What can't be parsed is on record with its bytes, and the next query is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for data in (
            b"",
            b"x",
            bytes(12),
            b"\0\1\1\0\0\1" + b"\xff" * 300,
            b"\xff" * 5000,
            b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1",
        ):
            sock.sendto(data, (RESOLVER, gateway.ports["dns_udp"]))
    assert ask(gateway, "shop.example").answer
    malformed = next(
        event for event in gateway.owner.events if event.data.get("answer") == "FORMERR"
    )
    assert malformed.bodies[0].name == "query"


@pytest.mark.promise("4.5")
def test_costly_messages_hold_nobody_up(gateway: Gateway) -> None:
    """64 messages whose records each took a second to parse, over each transport: each is refused
    and on record, and another query is answered."""
    records = b"\1a\xc0\x0c" + struct.pack("!HHIH", 2, 1, 0, 2) + b"\xc0\x0c"
    name = b"\1a" * 120 + b"\0"
    attack = b"\0\1\1\0" + struct.pack("!HHHH", 1, 0, 85, 0) + name + b"\0\1\0\1" + records * 85
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(64):
            sock.sendto(attack, (RESOLVER, gateway.ports["dns_udp"]))
    with socket.create_connection((RESOLVER, gateway.ports["dns_tcp"]), timeout=20) as sock:
        sock.sendall((struct.pack("!H", len(attack)) + attack) * 3)
        assert len(read_all(sock)) == 3 * 14
    assert ask(gateway, "shop.example").answer
    refused = [event for event in gateway.owner.events if event.data.get("answer") == "FORMERR"]
    assert sum(event.bodies[0].total_bytes for event in refused) >= (64 + 3) * len(attack)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("tcp", [False, True])
def test_what_is_beside_the_question_is_kept(gateway: Gateway, tcp: bool) -> None:
    """EDNS options of an answered query, records and bytes of a refused one: the message, its
    length and digest."""
    option = dns.edns.GenericOption("65001", b"the secret " * 50)
    carrying = dns.message.make_query("shop.example", "A", use_edns=0, options=[option]).to_wire()
    trailing = dns.message.make_query("shop.example", "A").to_wire() + b"the secret"
    port = gateway.ports["dns_tcp" if tcp else "dns_udp"]
    for wire in (carrying, trailing):
        with socket.socket(
            socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
        ) as sock:
            sock.settimeout(20)
            sock.connect((RESOLVER, port))
            sock.sendall(struct.pack("!H", len(wire)) + wire if tcp else wire)
            assert sock.recv(4096)
    kept = [event.bodies[0] for event in gateway.owner.events if event.kind is Kind.NETWORK_DNS]
    assert [body.content for body in kept] == [carrying, trailing]
    assert [body.sha256 for body in kept] == [
        hashlib.sha256(wire).hexdigest() for wire in (carrying, trailing)
    ]


@pytest.mark.promise("5.4")
def test_a_message_longer_than_a_query_is_kept(gateway: Gateway) -> None:
    """Over UDP: its first 4 KiB, its length and the digest of all of it. Over TCP: what came behind
    its length, too."""
    secret = bytes(range(256)) * 40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(secret, (RESOLVER, gateway.ports["dns_udp"]))
    udp = gateway.owner.first(Kind.NETWORK_DNS, transport="udp").bodies[0]
    assert (udp.content, udp.total_bytes) == (secret[:4096], len(secret))
    assert udp.sha256 == hashlib.sha256(secret).hexdigest()
    with socket.create_connection((RESOLVER, gateway.ports["dns_tcp"]), timeout=20) as sock:
        sock.sendall(b"\xff\xff" + secret)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    tcp = gateway.owner.first(Kind.NETWORK_DNS, transport="tcp").bodies[0]
    assert tcp.content == b"\xff\xff" + secret


@pytest.mark.promise("5.4")
def test_what_follows_the_last_query_of_a_connection_is_kept(gateway: Gateway) -> None:
    """Beyond the queries that a connection may ask nothing is answered, and nothing is lost."""
    query = dns.message.make_query("shop.example", "A").to_wire()
    framed = struct.pack("!H", len(query)) + query
    with socket.create_connection((RESOLVER, gateway.ports["dns_tcp"]), timeout=20) as sock:
        sock.sendall(framed * 3 + b"\0\x0athe secret")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock).count(socket.inet_aton(SHOP)) == 3
    rest = gateway.owner.first(Kind.NETWORK_DNS, answer="NOT A QUERY")
    assert rest.bodies[0].content == b"\0\x0athe secret"


def test_only_the_resolver_s_address_answers(gateway: Gateway) -> None:
    """A stand-in's address has no DNS, over neither transport."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(
            dns.message.make_query("shop.example", "A").to_wire(), (SHOP, gateway.ports["dns_udp"])
        )
        assert ask(gateway, "shop.example").answer
        assert is_silent(sock)
    with socket.create_connection((SHOP, gateway.ports["dns_tcp"]), timeout=20) as sock:
        assert read_all(sock) == b""
    assert len(gateway.owner.of(Kind.NETWORK_DNS)) == 1


def test_tcp_connections_are_bounded(gateway: Gateway) -> None:
    """In queries, message length and number."""
    where = (RESOLVER, gateway.ports["dns_tcp"])
    query = dns.message.make_query("shop.example", "A").to_wire()
    with socket.create_connection(where, timeout=20) as sock:
        sock.sendall((struct.pack("!H", len(query)) + query) * 5)
        assert read_all(sock).count(socket.inet_aton(SHOP)) == 3
    for head in (b"\0\0", b"\xff\xff"):
        with socket.create_connection(where, timeout=20) as sock:
            sock.sendall(head)
            assert read_all(sock) == b""
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            with contextlib.suppress(
                ConnectionResetError
            ):  # one over the bound may be cut before it knows that it is open
                stack.enter_context(socket.create_connection(where, timeout=20))
        gateway.owner.first(Kind.LIMIT_HIT, limit="dns_tcp_connections")


def test_unknown_names_are_simulated(tmp_path: Path) -> None:
    """`default: simulate`: DNS, TLS and HTTP lead an unknown name to the catch-all, and known names
    and canaries are as ever."""
    with running(tmp_path, simulate=True) as gateway:
        assert ask(gateway, "any.thing.example").answer[0][0].to_text() == CATCH_ALL
        assert ask(gateway, "shop.example").answer[0][0].to_text() == SHOP
        assert ask(gateway, "use-application-dns.net").rcode() == dns.rcode.NXDOMAIN

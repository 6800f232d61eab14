"""DNS through a gateway's process."""

from __future__ import annotations

import hashlib
import socket

import dns.edns
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest
from tests.fakes.gateway import RESOLVER, Gateway, is_silent
from tests.integration.processes import wait_for

from belljar.events import Kind

GATEWAY = {"dns_pending": 20}


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
        wait_for(lambda: len(gateway.owner.of(Kind.NETWORK_DNS)) >= 20, "all that may wait")
        assert is_silent(sock)
        assert len(gateway.owner.of(Kind.NETWORK_DNS)) == 20
        gateway.owner.release()
        for _ in range(100):
            sock.recv(4096)
    names = [item["name"] for item in gateway.owner.of(Kind.NETWORK_DNS)]
    assert sorted(names) == sorted(f"n{number}.evil.example" for number in range(100))


@pytest.mark.promise("5.4")
def test_what_is_beside_the_question_is_kept(gateway: Gateway) -> None:
    """EDNS options, bytes behind it, and a query that is none."""
    option = dns.edns.GenericOption("65001", b"the secret " * 50)
    carrying = dns.message.make_query("shop.example", "A", use_edns=0, options=[option]).to_wire()
    trailing = dns.message.make_query("shop.example", "A").to_wire() + b"the secret"
    sent = (carrying, trailing, bytes(range(256)) * 40)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for wire in sent:
            sock.sendto(wire, (RESOLVER, gateway.ports["dns_udp"]))
        gateway.owner.wait(lambda: len(gateway.owner.of(Kind.NETWORK_DNS)) == len(sent))
    kept = [event.bodies[0] for event in gateway.owner.events if event.kind is Kind.NETWORK_DNS]
    assert [(body.content, body.total_bytes, body.sha256) for body in kept] == [
        (wire[:4096], len(wire), hashlib.sha256(wire).hexdigest()) for wire in sent
    ]

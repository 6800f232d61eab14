"""How long a gateway waits for a client, and for a stand-in. Each is impatient in one thing; where
the machine stalls for so long, it is given more time."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

import dns.message
import pytest
from tests.fakes.gateway import DEADLINE_S, MAIL, RESOLVER, Gateway, read_all, running
from tests.fakes.gateway_clients import SMALL, WebSocket, reason

from belljar.events import Kind

HEAD = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n"


def test_a_head_that_comes_slowly_is_ended(tmp_path: Path) -> None:
    """Slow-loris: however often a byte comes, the head has one deadline; it is on record."""
    with running(tmp_path, bounds=replace(SMALL, head_timeout_s=0.5)) as gateway:
        assert dripping(gateway, b"GET / HTTP/1.1\r\n" + HEAD, every_s=0.1) == b""
        assert reason(gateway) == "the request's head took too long"


def dripping(gateway: Gateway, first: bytes, *, every_s: float) -> bytes:
    """What is answered to a client that says one byte more again and again, until the connection
    ends; a reset is an end."""
    give_up, got = time.monotonic() + DEADLINE_S, b""
    with gateway.connect("http") as sock:
        sock.sendall(first)
        sock.settimeout(every_s)
        while time.monotonic() < give_up:
            try:
                sock.sendall(b"x")
                data = sock.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                return got
            if not data:
                return got
            got += data
    pytest.fail("the connection goes on")


@pytest.mark.parametrize("before", [b"", GET], ids=["before a request", "after one"])
def test_an_idle_connection_is_ended(tmp_path: Path, before: bytes) -> None:
    """With no event for what was not said."""
    for idle_timeout_s in (0.5, 5, 15):
        with running(tmp_path, bounds=replace(SMALL, idle_timeout_s=idle_timeout_s)) as gateway:
            said = gateway.exchange(before)
            events = len(gateway.owner.of(Kind.NETWORK_HTTP))
        if said.startswith(b"HTTP/1.1 200 ") or not before:
            break
    assert (said[:12], events) == ((b"HTTP/1.1 200", 1) if before else (b"", 0))


def test_a_body_that_stalls_is_ended(tmp_path: Path) -> None:
    """408, on record with what came of it."""
    with running(tmp_path, bounds=replace(SMALL, body_wait_s=0.4)) as gateway:
        said = gateway.exchange(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 50\r\n\r\nabc")
        answered = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).data
    assert said.startswith(b"HTTP/1.1 408 ")
    assert (answered["reason"], answered["request_bytes"], answered["status"]) == (
        "the body stalled",
        3,
        408,
    )


def test_a_body_that_trickles_is_ended(tmp_path: Path) -> None:
    """Bytes that come in time, each, but far too slowly in all."""
    first = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 5000\r\n\r\n"
    for body_wait_s in (0.4, 4, 15):
        with running(
            tmp_path, bounds=replace(SMALL, body_wait_s=body_wait_s, body_bytes_per_s=1000)
        ) as gateway:
            said = dripping(gateway, first, every_s=0.05)
            why = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).data["reason"]
        if why != "the body stalled":
            break
    assert said.startswith(b"HTTP/1.1 408 ")
    assert why == "the body is too slow"


def test_a_stand_in_that_never_answers_is_ended(tmp_path: Path) -> None:
    """504 after the request's bound."""
    with running(tmp_path, bounds=replace(SMALL, request_timeout_s=0.5)) as gateway:
        assert gateway.exchange(b"GET /never HTTP/1.1\r\n" + HEAD + b"\r\n").startswith(
            b"HTTP/1.1 504 "
        )
        assert gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).data["reason"] == "took too long"


def test_an_idle_websocket_is_ended(tmp_path: Path) -> None:
    """As any connection."""
    for idle_timeout_s in (0.5, 5, 15):
        with running(tmp_path, bounds=replace(SMALL, idle_timeout_s=idle_timeout_s)) as gateway:
            ws = WebSocket(gateway)
            list(ws.events())
            ws.sock.close()
            if ws.accepted is not None:
                assert (
                    gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).data["reason"]
                    == "took too long"
                )
                return
    pytest.fail("it was never accepted")


def test_a_handshake_that_stalls_is_ended(tmp_path: Path) -> None:
    """TLS has its own deadline; it is on record."""
    with running(tmp_path, bounds=replace(SMALL, handshake_timeout_s=0.5)) as gateway:
        assert gateway.exchange(b"\x16\x03\x01\x02\0\x01", "tls") == b""
        gateway.owner.first(Kind.NETWORK_TLS, reason="the handshake took too long")


def test_an_idle_stream_and_a_silent_client_of_the_sink_are_ended(tmp_path: Path) -> None:
    """Both on record, the latter without a byte."""
    with running(tmp_path, idle_timeout_s=0.5, sink_wait_s=0.3) as gateway:
        gateway.exchange(b"", "tcp", MAIL)
        gateway.owner.first(Kind.NETWORK_STREAM, reason="idle for too long")
        assert gateway.exchange(b"", "sink", "127.0.77.50") == b""
        said = gateway.owner.first(Kind.NETWORK_STREAM, reason="sink")
        assert b"".join(body.content for body in said.bodies) == b""


@pytest.mark.parametrize("said", [b"", b"\0"], ids=["nothing", "half a length"])
def test_an_idle_dns_connection_is_ended(tmp_path: Path, said: bytes) -> None:
    """RFC 7766 section 6.2.3; a query that comes in time is answered."""
    query = dns.message.make_query("shop.example", "A").to_wire()
    for idle_s in (0.3, 3, 15):
        with running(tmp_path, dns_tcp_idle_s=idle_s) as gateway:
            where = (RESOLVER, gateway.ports["dns_tcp"])
            with socket.create_connection(where, timeout=DEADLINE_S) as sock:
                sock.sendall(struct.pack("!H", len(query)) + query + said)
                answered = read_all(sock)
        if answered:
            break
    assert answered[2:4] == query[:2]

"""Hostile clients of a gateway's process: what is refused, what is bounded, and that it goes on
serving. Bounds are small."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import SHOP, Gateway, read_all, running
from tests.fakes.gateway_clients import SMALL, damaged, reason, resident_bytes

from belljar.events import Kind

HEAD = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all of these: it must outlive each of them."""
    with running(tmp_path_factory.mktemp("gateway"), bounds=SMALL) as found:
        yield found


@pytest.fixture(autouse=True)
def _goes_on(gateway: Gateway) -> Iterator[None]:
    """After each hostile client the next one is served."""
    gateway.owner.events.clear()
    yield
    assert gateway.exchange(GET).startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("4.5")
@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (
            b"POST / HTTP/1.1\r\n"
            + HEAD
            + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "both Content-Length",
        ),
        (
            b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
            400,
            "conflicting Content-Length",
        ),
        (
            b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: +4\r\n\r\nabcd",
            400,
            "bad Content-Length",
        ),
        (
            b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n",
            501,
            "Only Transfer-Encoding: chunked",
        ),
        (
            b"POST / HTTP/1.1\r\n"
            + HEAD
            + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
            501,
            "multiple Transfer-Encoding",
        ),
        (
            b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "illegal chunk header",
        ),
        (
            b"POST / HTTP/1.1\r\n"
            + HEAD
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"1" * 30
            + b"\r\n",
            400,
            "illegal chunk header",
        ),
        (
            b"POST / HTTP/1.1\r\n"
            + HEAD
            + b"Transfer-Encoding: chunked\r\n\r\n3;x="
            + b"y" * 10_000,
            431,
            "Receive buffer too long",
        ),
        (b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n", 400, "multiple Host"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host"),
        (b"GET / HTTP/1.0\r\n\r\n", 400, "no Host"),
        (b"GET / HTTP/1.1\r\nHost : shop.example\r\n\r\n", 400, "illegal header line"),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\rb\r\n\r\n", 400, "illegal header line"),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\0b\r\n\r\n", 400, "illegal header line"),
        (b"GET / HTTP/1.1\r\n Host: shop.example\r\n\r\n", 400, "continuation line"),
        (b"GET /\xff HTTP/1.1\r\n" + HEAD + b"\r\n", 400, "illegal request line"),
        (b"GET / a HTTP/1.1\r\n" + HEAD + b"\r\n", 400, "illegal request line"),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"X: y\r\n" * 30 + b"\r\n", 431, "too many header fields"),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"X: " + b"y" * 20_000, 431, "Receive buffer too long"),
        (b"GET /" + b"y" * 20_000, 431, "Receive buffer too long"),
        (
            b"GET / HTTP/1.1\r\n"
            + HEAD
            + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings:"
            b" AAMAAABk\r\n\r\n",
            400,
            "an upgrade to HTTP/2",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2 without TLS"),
        (b"GET / HTTP/3.0\r\n" + HEAD + b"\r\n", 505, "HTTP/2 without TLS"),
        (b"CONNECT shop.example:80 HTTP/1.1\r\n" + HEAD + b"\r\n", 405, "CONNECT"),
        (b"GET http://evil.example/ HTTP/1.1\r\n" + HEAD + b"\r\n", 421, "Host and target differ"),
        (
            b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            421,
            "the policy does not have this name",
        ),
        (
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
            400,
            "illegal request line",
        ),
        (b"SSH-2.0-x\r\n\r\n", 400, "illegal request line"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(
    gateway: Gateway, request_: bytes, status: int, why: str
) -> None:
    """Smuggling, floods, other protocols: an error status, its reason on record, and the connection
    is closed."""
    with gateway.connect("http") as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(request_)
        said = read_all(sock)
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:200]
    assert said.count(b"HTTP/1.1 ") == 1
    assert why in reason(gateway)


@pytest.mark.parametrize(
    "request_",
    [
        GET.replace(b"\r\n", b"\n"),
        b"GET / HTTP/1.1\r\n" + HEAD + b"X: a\r\n b\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\n"
        + HEAD
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT:"
        b" x\r\n\r\n",
    ],
)
def test_what_can_be_read_in_one_way_only_is_one_request(gateway: Gateway, request_: bytes) -> None:
    """Bare LF, a folded line, chunk extensions and trailers (RFC 9112 sections 2.2, 5.2, 7.1): one
    request, on record as the stand-in saw it."""
    assert gateway.exchange(request_).count(b"HTTP/1.1 200 ") == 1
    assert len(gateway.owner.of(Kind.NETWORK_HTTP)) == 1


def test_a_smuggled_second_request_is_judged_by_itself(gateway: Gateway) -> None:
    """What follows a request is another request, on record and refused when it says another
    name."""
    evil = b"GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    said = gateway.exchange(
        b"POST /early HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc" + evil
    )
    assert said.count(b"HTTP/1.1 200 ") == 1
    assert said.count(b"HTTP/1.1 421 ") == 1
    assert [item["verdict"] for item in gateway.owner.of(Kind.NETWORK_HTTP)] == [
        "allowed",
        "refused",
    ]


def test_a_body_over_the_bound_is_refused(gateway: Gateway) -> None:
    """413: at once when it is announced, at the bound when it is not."""
    declared = gateway.exchange(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 100001\r\n\r\n")
    assert declared.startswith(b"HTTP/1.1 413 ")
    with gateway.connect("http") as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(
                b"POST / HTTP/1.1\r\n"
                + HEAD
                + b"Transfer-Encoding: chunked\r\n\r\n"
                + b"2710\r\n%s\r\n" % (b"x" * 10_000) * 30
            )
        said = read_all(sock)
    assert said.startswith(b"HTTP/1.1 413 ")
    last = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED, reason="the body is over the bound")
    assert last.data["status"] == 413


def test_a_client_that_goes_away_is_on_record(gateway: Gateway) -> None:
    """What had come of its request, and that nobody was answered."""
    with gateway.connect("http") as sock:
        sock.sendall(b"POST /never HTTP/1.1\r\n" + HEAD + b"Content-Length: 9\r\n\r\nabc")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answered = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
    assert (answered.data["status"], answered.data["reason"]) == (0, "the connection ended")


def test_compressed_bodies_stay_compressed(gateway: Gateway) -> None:
    """A bomb of 100 MiB in 100 KB is so many bytes to the gateway, and no more."""
    bomb = gzip.compress(bytes(60 << 20))[:90_000]
    before = resident_bytes(gateway)
    head = (
        b"POST / HTTP/1.1\r\n"
        + HEAD
        + b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    )
    assert gateway.exchange(head + bomb).startswith(b"HTTP/1.1 200 ")
    assert gateway.owner.first(Kind.NETWORK_HTTP).data["bytes"] == len(bomb)
    assert resident_bytes(gateway) - before < 8 << 20


def test_a_handshake_in_another_protocol_is_ended(gateway: Gateway) -> None:
    """What is no TLS is refused by name."""
    with gateway.connect("tls") as sock:
        sock.sendall(GET)
        read_all(sock)
    gateway.owner.first(Kind.NETWORK_TLS, reason="HTTP_REQUEST")


@given(data=st.binary(max_size=2000))
@settings(deadline=None, max_examples=60)
def test_whatever_the_bytes_it_goes_on(gateway: Gateway, data: bytes) -> None:
    """Random bytes at every kind of port."""
    for protocol in ("http", "tls"):
        with contextlib.suppress(OSError), gateway.connect(protocol) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)


def test_damaged_requests_of_each_kind(gateway: Gateway) -> None:
    """A corpus of good requests with bytes changed, dropped and doubled."""
    chance = random.Random(7)  # noqa: S311 - the same damage each time
    whole = (
        b"POST /x HTTP/1.1\r\n"
        + HEAD
        + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    for _ in range(60):
        with contextlib.suppress(OSError), gateway.connect("http") as sock:
            sock.sendall(damaged(whole, chance))
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)


def test_the_addresses_of_a_connection_are_the_kernel_s(gateway: Gateway) -> None:
    """What a client says of itself (Forwarded and its kind) changes nothing."""
    said = gateway.exchange(
        GET.replace(HEAD, HEAD + b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil.example\r\n")
    )
    assert b'"cell": "agent", "name": "shop.example"' in said
    assert (
        SHOP in gateway.owner.of(Kind.NETWORK_HTTP)[0]["url"]
        or "shop.example" in gateway.owner.of(Kind.NETWORK_HTTP)[0]["url"]
    )

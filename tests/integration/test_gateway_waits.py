"""How long a gateway waits for a client, and for a stand-in: one that is impatient in everything."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tests.fakes.gateway import DEADLINE_S, MAIL, SMALL, Gateway, reason

from belljar.events import Kind

HEAD = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n"


# Each client is slow on purpose: a machine that stalls is no other cause
IMPATIENT = replace(SMALL, head_timeout_s=0.5, request_timeout_s=0.5, handshake_timeout_s=0.5)
GATEWAY = {"bounds": replace(IMPATIENT, idle_timeout_s=1.0)}


def test_a_head_that_comes_slowly_is_ended(gateway: Gateway) -> None:
    """Slow-loris: however often a byte comes, the head has one deadline; it is on record."""
    give_up = time.monotonic() + DEADLINE_S
    with gateway.connect("http") as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + HEAD)
        sock.settimeout(0.1)
        while time.monotonic() < give_up:
            try:
                sock.sendall(b"x")
                assert sock.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                pass
            break
    assert reason(gateway) == "the request's head took too long"


def test_what_says_nothing_is_ended(gateway: Gateway) -> None:
    """A connection and a stream, with no event for what was not said; half a handshake."""
    assert gateway.exchange(b"") == b""
    assert gateway.owner.of(Kind.NETWORK_HTTP) == []
    gateway.exchange(b"", "tcp", MAIL)
    gateway.owner.first(Kind.NETWORK_STREAM, reason="idle for too long")
    assert gateway.exchange(b"\x16\x03\x01\x02\0\x01", "tls") == b""
    gateway.owner.first(Kind.NETWORK_TLS, reason="the handshake took too long")


@pytest.mark.parametrize(
    ("path", "body", "status"), [(b"/", b"abc", 408), (b"/never", b"x" * 50, 504)]
)
def test_a_request_has_one_time(gateway: Gateway, path: bytes, body: bytes, status: int) -> None:
    """A body that stalls, and a stand-in that never answers: on record with what came."""
    head = b"POST " + path + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 50\r\n\r\n"
    assert gateway.exchange(head + body).startswith(b"HTTP/1.1 %d " % status)
    answered = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED, status=status).data
    assert (answered["reason"], answered["request_bytes"]) == ("took too long", len(body))
    assert gateway.owner.of(Kind.NETWORK_HTTP)[0]["complete"] is (len(body) == 50)

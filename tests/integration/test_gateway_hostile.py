"""Hostile clients of a gateway's process."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import SMALL, Gateway, read_all, reason

from belljar.events import Kind

HEAD = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"


GATEWAY = {"bounds": SMALL}


@pytest.fixture(autouse=True)
def _goes_on(gateway: Gateway) -> Iterator[None]:
    yield
    assert gateway.exchange(GET).startswith(b"HTTP/1.1 200 ")


POST = b"POST / HTTP/1.1\r\n" + HEAD


@pytest.mark.promise("4.5")
@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (
            POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "both Content-Length",
        ),
        (b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n", 400, "multiple Host"),
        (b"GET /" + b"y" * 20_000, 431, "the head is over the bound"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(
    gateway: Gateway, request_: bytes, status: int, why: str
) -> None:
    """Smuggling, floods, other protocols: an error, its reason on record, and the end."""
    with gateway.connect("http") as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(request_)
        said = read_all(sock)
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:200]
    assert said.count(b"HTTP/1.1 ") == 1
    assert why in reason(gateway)


def test_a_body_over_the_bound_is_refused(gateway: Gateway) -> None:
    """413: at once when it is announced, at the bound when it is not."""
    declared = gateway.exchange(b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 100001\r\n\r\n")
    assert declared.startswith(b"HTTP/1.1 413 ")
    with gateway.connect("http") as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            chunk = b"2710\r\n%s\r\n" % (b"x" * 10_000)
            sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 30)
        said = read_all(sock)
    assert said.startswith(b"HTTP/1.1 413 ")
    last = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED, reason="the body is over the bound")
    assert last.data["status"] == 413


@given(data=st.binary(max_size=2000), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_whatever_the_bytes_it_goes_on(gateway: Gateway, data: bytes, seed: int) -> None:
    """Random bytes at every kind of port, and requests with bytes changed, dropped, doubled."""
    chance = random.Random(seed)  # noqa: S311 - the same damage each time
    whole = POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    for protocol, sent in (("http", data), ("tls", data), ("http", damaged(whole, chance))):
        with contextlib.suppress(OSError), gateway.connect(protocol) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)


def damaged(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        choice = chance.randrange(3)
        if choice == 0:
            found[at] = chance.randrange(256)
        elif choice == 1:
            del found[at : at + chance.randint(1, 5)]
        else:
            found[at:at] = found[at : at + 20]
    return bytes(found)

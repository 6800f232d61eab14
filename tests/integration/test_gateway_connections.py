"""What the events of a connection to a gateway's process hold of it, wherever it hides."""

from __future__ import annotations

import contextlib
import socket
import ssl

import pytest
from tests.fakes.gateway import MAIL, SHOP, Gateway, read_all

from belljar.events import Kind

SECRET = b"s3cr3t-" + bytes(range(65, 91)) + b"-end"
HOST = b"Host: shop.example\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"


def kept(gateway: Gateway) -> bytes:
    events = gateway.owner.events
    return b"\0".join(
        [b.content for e in events for b in e.bodies]
        + [repr(dict(e.data)).encode() for e in events]
    )


@pytest.mark.promise("5.4")
def test_what_the_client_hello_hides(gateway: Gateway) -> None:
    """Names of protocols that nobody knows: the first flight is on record, before its answer."""
    context = ssl.create_default_context(cafile=str(gateway.authority))
    context.set_alpn_protocols([SECRET.decode(), "http/1.1"])
    with context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example") as sock:
        sock.sendall(GET + b"\r\n")
        read_all(sock)
    (hello,) = gateway.owner.first(Kind.NETWORK_TLS).bodies
    assert (hello.name, hello.total_bytes) == ("hello", len(hello.content))
    assert SECRET in hello.content


@pytest.mark.promise("5.4")
def test_a_handshake_that_is_none(gateway: Gateway) -> None:
    """Plain HTTP on a TLS port: refused, and all of it on record."""
    gateway.exchange(GET + b"X: " + SECRET + b"\r\n\r\n", "tls")
    gateway.owner.first(Kind.NETWORK_TLS, verdict="refused")
    assert SECRET in kept(gateway)


def test_urgent_bytes_are_part_of_the_stream(gateway: Gateway) -> None:
    """TCP's urgent pointer hides no byte: each is read in its place."""
    with gateway.connect("http") as sock:
        sock.sendall(GET + b"X: ")
        for byte in SECRET:
            sock.send(bytes([byte]), socket.MSG_OOB)
        sock.sendall(b"\r\n\r\n")
        read_all(sock)
    assert SECRET in kept(gateway)


@pytest.mark.promise("5.4")
def test_a_connection_is_on_record_before_it_says_anything(gateway: Gateway) -> None:
    """With the addresses and ports by which it is found in the packet record."""
    with gateway.connect("http", SHOP) as sock:
        data = gateway.owner.first(Kind.NETWORK_CONNECTION).data
        assert (data["cell"], data["address"]) == ("agent", SHOP)
        assert (data["port"], data["source_port"]) == (gateway.ports["http"], sock.getsockname()[1])
    with contextlib.suppress(OSError), gateway.connect("http", MAIL) as sock:
        sock.sendall(SECRET)
        read_all(sock)
    refused = gateway.owner.first(Kind.NETWORK_STREAM, verdict="refused")
    gateway.owner.first(Kind.NETWORK_CONNECTION, connection=refused.data["connection"])

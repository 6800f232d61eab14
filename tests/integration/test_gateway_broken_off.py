"""Requests whose clients go away in the midst of them: what had come is on record once, and an
attempt where the stand-in calls it one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import h2.errors
import pytest
from tests.fakes.gateway import OTHER, SHOP, WILD, Gateway, running
from tests.fakes.gateway_clients import H2Client

from belljar.events import Kind

LEFT = "the connection ended"
UPLOAD = (
    b"POST /legacy/ HTTP/1.1\r\nHost: shop.example\r\nContent-Type: multipart/form-data;"
    b" boundary=b\r\nContent-Length: 9999\r\n\r\n"
)
FORM = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nleak\r\n--b\r\n'
DOCUMENT = b"PUT /leak HTTP/1.1\r\nHost: a.shop.example\r\nContent-Length: 9999\r\n\r\n"
SENT = b"POST /x HTTP/1.1\r\nHost: other.example\r\nContent-Length: 9999\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One with the stand-ins themselves. Its farewell has no end: a busy machine is no stand-in's
    fault."""
    kinds = {"shop": "pypi", "wild": "npm", "other": "catch_all"}
    with running(tmp_path_factory.mktemp("gateway"), kinds=kinds, farewell_s=60.0) as found:
        yield found


def leave(sock: socket.socket, *, by_reset: bool) -> None:
    """Closes a connection."""
    if by_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.promise("5.5")
@pytest.mark.parametrize("by_reset", [False, True])
@pytest.mark.parametrize(
    ("address", "head", "body", "what"),
    [
        (SHOP, UPLOAD, FORM, "publish"),
        (WILD, DOCUMENT, b'{"name"', "publish"),
        (OTHER, SENT, b"secret", "send"),
    ],
)
def test_an_upload_that_breaks_off_is_an_attempt(
    gateway: Gateway, address: str, head: bytes, body: bytes, what: str, *, by_reset: bool
) -> None:
    """By FIN or RST, in `pypi`, `npm` and the catch-all; its request is one event, not complete,
    and nobody was answered."""
    gateway.owner.events.clear()
    sock = gateway.connect("http", address)
    sock.sendall(head + body)
    leave(sock, by_reset=by_reset)
    attempt = gateway.owner.first(Kind.NETWORK_ATTEMPT, what=what)
    assert attempt.data["refused"] == "it broke off"
    (asked,) = gateway.owner.of(Kind.NETWORK_HTTP)
    assert (asked["complete"], asked["verdict"]) == (False, "allowed")
    (answered,) = gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)
    assert (answered["status"], answered["reason"]) == (0, LEFT)


def test_a_whole_upload_whose_client_is_gone_is_an_attempt(gateway: Gateway) -> None:
    """It is cut off while the owner has not yet taken the request in."""
    gateway.owner.events.clear()
    gateway.owner.hold()
    sock = gateway.connect("http", OTHER)
    sock.sendall(SENT.replace(b"9999", b"6") + b"secret")
    gateway.owner.first(Kind.NETWORK_HTTP, complete=True)
    leave(sock, by_reset=True)
    gateway.owner.release()
    attempt = gateway.owner.first(Kind.NETWORK_ATTEMPT, what="send")
    assert ("refused" in attempt.data, attempt.bodies[0].content) == (False, b"secret")


@pytest.mark.parametrize("whole", [False, True])
def test_over_http2(gateway: Gateway, *, whole: bool) -> None:
    """A stream alone that is reset, and the whole connection: with what had come of the form."""
    gateway.owner.events.clear()
    client = H2Client(gateway)
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":authority": "shop.example",
        ":path": "/legacy/",
    }
    client.engine.send_headers(
        1, [*fields.items(), ("content-type", "multipart/form-data; boundary=b")]
    )
    client.engine.send_data(1, FORM)
    client.send()
    if whole:
        client.sock.shutdown(socket.SHUT_WR)
    else:
        client.engine.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
        client.send()
    attempt = gateway.owner.first(Kind.NETWORK_ATTEMPT, what="publish")
    assert (attempt.data["name"], attempt.data["refused"]) == ("leak", "it broke off")
    assert [asked["complete"] for asked in gateway.owner.of(Kind.NETWORK_HTTP)] == [False]
    client.sock.close()

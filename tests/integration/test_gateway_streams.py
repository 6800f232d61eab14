"""Raw streams, numbers of connections, and the end of a gateway's process."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.gateway import DEADLINE_S, MAIL, SHOP, Gateway, read_all, running

from belljar.events import Kind

GET = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"


GATEWAY = {"sink_wait_s": 60.0, "stream_bytes": 1 << 20}


def test_a_stream_kind_speaks_first(gateway: Gateway) -> None:
    """SMTP's way: by port, not by what is sent; both ways are on record when it ends."""
    with gateway.connect("smtp", MAIL) as sock:
        assert sock.recv(100) == b"220 ready agent\r\n"
        sock.sendall(b"EHLO x\r\nQUIT\r\n")
        assert read_all(sock) == b"EHLO x\r\nQUIT\r\n"
    closed = gateway.owner.first(Kind.NETWORK_STREAM, phase="closed")
    assert closed.data["reason"] == ""
    assert {body.name: body.content for body in closed.bodies} == {
        "received": b"EHLO x\r\nQUIT\r\n",
        "sent": b"220 ready agent\r\nEHLO x\r\nQUIT\r\n",
    }
    assert gateway.owner.of(Kind.NETWORK_ATTEMPT) == [{"stand_in": "mail", "what": "quit"}]

    # Within TLS the name is judged as everywhere
    context = ssl.create_default_context(cafile=str(gateway.authority))
    with context.wrap_socket(
        gateway.connect("smtps", MAIL), server_hostname="mail.example"
    ) as sock:
        assert sock.recv(100) == b"220 ready agent\r\n"
        sock.sendall(b"QUIT\r\n")
        assert sock.recv(100) == b"QUIT\r\n"
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        context.wrap_socket(gateway.connect("smtps", MAIL), server_hostname="shop.example")


def opened(gateway: Gateway) -> int:
    return len(
        [item for item in gateway.owner.of(Kind.NETWORK_STREAM) if item["phase"] == "opened"]
    )


def test_a_stream_is_bounded(gateway: Gateway) -> None:
    """In bytes, and in a reader that reads nothing of what it asked for."""
    with contextlib.suppress(OSError), gateway.connect("tcp", MAIL) as sock:
        while True:
            sock.sendall(b"x" * 1023 + b"\n")
            sock.recv(65536)
    over = gateway.owner.first(Kind.NETWORK_STREAM, reason="more bytes than a stream may have")
    assert all(len(body.content) <= 4096 for body in over.bodies)
    with contextlib.suppress(OSError), gateway.connect("tcp", MAIL) as sock:
        sock.settimeout(0.2)
        while True:
            sock.sendall(b"x" * 1023 + b"\n")
    gateway.owner.wait(lambda: opened(gateway) >= 2)
    assert opened(gateway) == 2


@pytest.mark.promise("4.5")
def test_connections_are_bounded_in_all_and_per_cell(tmp_path: Path) -> None:
    """One more than the bound is reset at once, counted, and changes nothing for those open."""
    with (
        running(tmp_path, connections=8, connections_per_cell=5) as gateway,
        contextlib.ExitStack() as stack,
    ):
        mine = [stack.enter_context(gateway.connect("http")) for _ in range(5)]
        with pytest.raises(ConnectionResetError):
            _talk(gateway)
        gateway.owner.first(Kind.LIMIT_HIT, limit="connections_per_cell")
        other = [_from("127.0.0.9", gateway) for _ in range(3)]
        for sock in other:
            stack.enter_context(sock)
        with pytest.raises(ConnectionResetError), _from("127.0.0.10", gateway) as sock:
            sock.recv(1)
        gateway.owner.first(Kind.LIMIT_HIT, limit="connections")
        mine[0].sendall(GET)
        assert read_all(mine[0]).startswith(b"HTTP/1.1 200 ")


HEAD = b"POST /never HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 20000\r\n"


@pytest.mark.parametrize(
    ("limit", "most", "data"),
    [
        ("bodies_bytes", 50_000, HEAD.replace(b"/never", b"/") + b"\r\n" + b"z" * 19_999),
        ("exchanges", 4, HEAD + b"\r\n" + b"z" * 20_000),
    ],
)
def test_what_all_requests_hold_together_is_bounded(
    tmp_path: Path, limit: str, most: int, data: bytes
) -> None:
    """Bodies that are not answered, and requests at one time."""
    # A stand-in that never answers keeps its place until then, whether its client left or not.
    bounds: dict[str, Any] = {limit: most, "request_timeout_s": 2.0}
    with running(tmp_path, **bounds) as gateway:
        with contextlib.ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(gateway.connect("http")).sendall(data)
            gateway.owner.first(Kind.LIMIT_HIT, limit=limit)
        assert _served(gateway)


def _served(gateway: Gateway) -> bool:
    """In the end: what was cut off is given back when the gateway has seen the cut."""
    for _ in range(200):
        if gateway.exchange(GET).startswith(b"HTTP/1.1 200 "):
            return True
        time.sleep(0.1)
    return False


def _from(address: str, gateway: Gateway) -> socket.socket:
    return socket.create_connection(
        (SHOP, gateway.ports["http"]), source_address=(address, 0), timeout=DEADLINE_S
    )


def _talk(gateway: Gateway, protocol: str = "http", address: str = SHOP) -> bytes:
    with gateway.connect(protocol, address) as sock:
        sock.sendall(GET)
        return sock.recv(1)

"""Hostile clients of a gateway's process over WebSocket. Bounds are small."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.gateway import Gateway, running
from tests.fakes.gateway_clients import SMALL, WebSocket, reason, resident_bytes
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, TextMessage

from belljar.events import Kind

GET = b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all of these: it must outlive each of them."""
    with running(
        tmp_path_factory.mktemp("gateway"), bounds=SMALL, handshake_timeout_s=20.0
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _goes_on(gateway: Gateway) -> Iterator[None]:
    """After each hostile client the next one is served."""
    gateway.owner.events.clear()
    yield
    assert gateway.exchange(GET).startswith(b"HTTP/1.1 200 ")


def test_websocket_messages_are_on_record(gateway: Gateway) -> None:
    """Both ways, text and bytes; no compression is agreed to."""
    ws = WebSocket(gateway, b"Sec-WebSocket-Extensions: permessage-deflate")
    assert isinstance(ws.accepted, AcceptConnection)
    assert ws.accepted.extensions == []
    ws.send(TextMessage("grüße"))
    assert next(ws.events()).data == "grüße"  # type: ignore[attr-defined]
    ws.send(BytesMessage(b"\0\xff"))
    assert bytes(next(ws.events()).data) == b"\0\xff"  # type: ignore[attr-defined]
    ws.send(CloseConnection(1000))
    list(ws.events())
    ws.sock.close()
    gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
    said = [event for event in gateway.owner.events if event.kind is Kind.NETWORK_WEBSOCKET]
    assert [(event.data["direction"], event.bodies[0].content) for event in said] == [
        ("sent", "grüße".encode()),
        ("received", "grüße".encode()),
        ("sent", b"\0\xff"),
        ("received", b"\0\xff"),
    ]


def test_a_websocket_message_over_the_bound_ends_it(gateway: Gateway) -> None:
    """1009, and the connection is closed, whatever more is sent: nothing is collected."""
    ws = WebSocket(gateway)
    before = resident_bytes(gateway)
    with contextlib.suppress(OSError):
        for _ in range(200):
            ws.send(BytesMessage(bytes(100_000), message_finished=False))
    assert [event.code for event in ws.events() if isinstance(event, CloseConnection)] in (
        [1009],
        [],
    )
    ws.sock.close()
    assert resident_bytes(gateway) - before < 8 << 20


def test_a_websocket_for_another_name_is_refused(gateway: Gateway) -> None:
    """Its handshake is a request like any other."""
    head = (
        b"GET /ws HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection:"
        b" Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    )
    said = gateway.exchange(head + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 421 ")
    assert reason(gateway) == "the policy does not have this name"


def test_a_frame_that_breaks_the_protocol_is_not_a_word_of_the_cells(gateway: Gateway) -> None:
    """It is answered and on record as the gateway's close; its bytes are in the packets alone."""
    ws = WebSocket(gateway)
    ws.sock.sendall(b"\x81\x82\0\0\0\0\xff\xfe")
    assert [event.code for event in ws.events() if isinstance(event, CloseConnection)] == [1007]
    ws.sock.close()
    gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
    said = [event for event in gateway.owner.events if event.kind is Kind.NETWORK_WEBSOCKET]
    assert [(each.data["direction"], each.data["close"], each.bodies) for each in said] == [
        ("received", 1007, ())
    ]


def test_a_client_that_reads_nothing_keeps_no_place(tmp_path: Path) -> None:
    """When it is idle its exchange ends, though the gateway can't even say so."""
    bounds = replace(SMALL, idle_timeout_s=0.5, websocket_message_bytes=32 << 20)
    with running(tmp_path, bounds=bounds, handshake_timeout_s=20.0) as gateway:
        ws = WebSocket(gateway)
        size = 30 << 20  # more than all buffers hold
        ws.sock.sendall(b"\x82\xff" + size.to_bytes(8, "big") + bytes(4 + size))
        gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
        ws.sock.close()

"""Hostile clients of a gateway's process over HTTP/2 and WebSocket. Bounds are small."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import h2.errors
import h2.events
import hpack
import pytest
from tests.fakes.gateway import Gateway, running
from tests.fakes.gateway_clients import (
    SMALL,
    H2Client,
    WebSocket,
    damaged,
    ended,
    raw_frame,
    reason,
    resident_bytes,
)
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


@pytest.mark.promise("4.5")
def test_rapid_resets_end_the_connection(gateway: Gateway) -> None:
    """CVE-2023-44487: GOAWAY ENHANCE_YOUR_CALM, on record."""
    client = H2Client(gateway)
    for stream in range(1, 201, 2):
        client.head(stream)
        client.engine.reset_stream(stream)
    client.send()
    assert ended(client.events())[-1] == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    gateway.owner.first(Kind.NETWORK_HTTP, reason="too many control frames")


@pytest.mark.parametrize(
    "flood",
    [
        raw_frame(6, bytes(8)),
        raw_frame(4),
        raw_frame(2, bytes(5), stream=3),
        raw_frame(8, b"\0\0\0\1"),
        raw_frame(0xBB, b"xyz"),
    ],
    ids=["ping", "settings", "priority", "window", "unknown"],
)
def test_floods_of_frames_end_the_connection(gateway: Gateway, flood: bytes) -> None:
    """CVE-2019-9512 to 9518, and frames that nobody knows."""
    client = H2Client(gateway)
    client.send(flood * 200)
    assert h2.errors.ErrorCodes.ENHANCE_YOUR_CALM in ended(client.events())
    gateway.owner.first(Kind.NETWORK_HTTP, reason="too many control frames")


def test_a_header_block_without_end_is_bounded(gateway: Gateway) -> None:
    """HEADERS and CONTINUATION for ever; and a small block that grows when it is unpacked."""
    client = H2Client(gateway)
    client.send(raw_frame(1, bytes(100), 0, 1) + raw_frame(9, bytes(1000), 0, 1) * 20)
    assert h2.errors.ErrorCodes.ENHANCE_YOUR_CALM in ended(client.events())
    gateway.owner.first(Kind.NETWORK_HTTP, reason="a header block over the bound")
    gateway.owner.events.clear()
    client = H2Client(gateway)
    encoder = hpack.Encoder()
    head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "shop.example"),
        (":path", "/"),
    ]
    block = encoder.encode([*head, ("x", "y" * 3000)]) + encoder.encode([("x", "y" * 3000)]) * 50
    client.send(raw_frame(1, block, 5, 1))
    client.events()
    assert "header list" in reason(gateway).lower() or "DenialOfService" in reason(gateway)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "CONNECT", "scheme": "", "path": ""}, "CONNECT"),
        ({"scheme": "http"}, "the scheme is not https"),
        ({"path": "/\x7f"}, "the path or the method has other bytes"),
        ({"path": "/\u00e9"}, "the path or the method has other bytes"),
        ({"path": "/a b"}, "the path or the method has other bytes"),
    ],
)
def test_strange_heads_are_refused(gateway: Gateway, changes: dict[str, str], why: str) -> None:
    """The stream is reset, and the reason on record; the connection goes on."""
    client = H2Client(gateway)
    client.head(1, **changes)
    client.head(3)
    client.send()
    events = client.events(h2.events.StreamReset, h2.events.StreamEnded)
    assert [event.stream_id for event in events if isinstance(event, h2.events.StreamReset)] == [1]
    assert [event.stream_id for event in events if isinstance(event, h2.events.StreamEnded)] == [3]
    assert why in gateway.owner.of(Kind.NETWORK_HTTP)[0]["reason"]


@pytest.mark.parametrize(
    "authority",
    ["other.example", "shop.example:1", "10.0.0.1", "shop.example\0", "", "evil.example"],
)
def test_another_authority_is_refused(gateway: Gateway, authority: str) -> None:
    """:authority is Host: 421 or 400, or the library's refusal; never a stand-in's answer."""
    client = H2Client(gateway)
    client.head(1, authority=authority)
    client.send()
    assert reason(gateway)
    client.engine.close_connection()
    client.send()
    answers = [event for event in client.events() if isinstance(event, h2.events.ResponseReceived)]
    assert all(dict(event.headers or [])[b":status"] in (b"421", b"400") for event in answers)


def test_more_streams_than_the_bound_are_refused(gateway: Gateway) -> None:
    """RFC 9113 section 5.1.2: the ninth of eight ends the connection of a client that was told."""
    client = H2Client(gateway)
    for stream in range(1, 40, 2):
        client.head(stream, path="/never")
    client.send()
    assert ended(client.events())


def test_damaged_frames(gateway: Gateway) -> None:
    """A corpus of a good request's frames with bytes changed, dropped and doubled."""
    chance = random.Random(8)  # noqa: S311 - the same damage each time
    for _ in range(30):
        client = H2Client(gateway)
        client.head()
        said = client.engine.data_to_send()
        client.send(damaged(said, chance))
        with contextlib.suppress(OSError):
            client.sock.shutdown(socket.SHUT_WR)
        client.sock.close()


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


@pytest.mark.parametrize("late_bytes", [0, 30_000])
def test_a_refused_body_is_no_longer_asked_for(gateway: Gateway, late_bytes: int) -> None:
    """Whole answer, then RST_STREAM NO_ERROR (RFC 9113 section 8.1): a client that only waited for
    room would hang; what it sent meanwhile harms no other request."""
    client = H2Client(gateway)
    client.engine.send_headers(
        1,
        [
            (":method", "PUT"),
            (":scheme", "https"),
            (":authority", "shop.example"),
            (":path", "/"),
            ("content-length", "100001"),
        ],
    )
    for _ in range(late_bytes // 10_000):
        client.engine.send_data(1, bytes(10_000))
    client.head(3)
    client.send()
    events = client.events(h2.events.StreamReset, *[h2.events.StreamEnded] * 2)
    statuses = {
        event.stream_id: dict(event.headers or [])[b":status"]
        for event in events
        if isinstance(event, h2.events.ResponseReceived)
    }
    assert statuses == {1: b"413", 3: b"200"}
    assert {event.stream_id for event in events if isinstance(event, h2.events.StreamEnded)} == {
        1,
        3,
    }
    (reset,) = [event for event in events if isinstance(event, h2.events.StreamReset)][:1]
    assert (reset.stream_id, reset.error_code) == (1, h2.errors.ErrorCodes.NO_ERROR)

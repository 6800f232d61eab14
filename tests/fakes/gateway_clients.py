"""Hostile clients of a gateway, and small bounds to meet them with."""

from __future__ import annotations

import contextlib
import os
import random
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import wsproto
from tests.fakes.gateway import Gateway
from wsproto.events import Request

from belljar.events import Kind
from belljar.network.gateway.config import Bounds

# In everything but time: what waits is `test_gateway_waits`' affair, and a busy machine no client's
# fault.
SMALL = Bounds(
    head_timeout_s=60.0,
    handshake_timeout_s=60.0,
    body_wait_s=60.0,
    body_bytes=100_000,
    head_bytes=8192,
    headers=20,
    websocket_message_bytes=10_000,
    h2_control_frames=50,
    h2_streams=8,
)


def reason(gateway: Gateway) -> str:
    """Why the last request was refused."""
    gateway.owner.first(Kind.NETWORK_HTTP, verdict="refused")
    return next(
        str(item["reason"])
        for item in gateway.owner.of(Kind.NETWORK_HTTP)
        if item["verdict"] == "refused"
    )


def resident_bytes(gateway: Gateway) -> int:
    """Memory of the gateway's process."""
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class H2Client:
    """An HTTP/2 client that says what it is told to."""

    def __init__(self, gateway: Gateway) -> None:
        context = ssl.create_default_context(cafile=str(gateway.authority))
        context.set_alpn_protocols(["h2"])
        self.sock = context.wrap_socket(gateway.connect("tls"), server_hostname="shop.example")
        self.engine = h2.connection.H2Connection(
            h2.config.H2Configuration(
                validate_outbound_headers=False, normalize_outbound_headers=False
            )
        )
        self.engine.initiate_connection()
        self.send()

    def send(self, data: bytes = b"") -> None:
        """What the engine has to say, and `data`."""
        with contextlib.suppress(OSError):
            self.sock.sendall(self.engine.data_to_send() + data)

    def head(self, stream: int = 1, **changes: str) -> None:
        """A request's head."""
        fields = {
            ":method": "GET",
            ":scheme": "https",
            ":authority": "shop.example",
            ":path": "/",
        } | {":" + k: v for k, v in changes.items()}
        self.engine.send_headers(stream, [(k, v) for k, v in fields.items() if v], end_stream=True)

    def events(self, *last: type[h2.events.Event]) -> list[h2.events.Event]:
        """All that comes until these have come, as often as each is named, or until the gateway
        closes."""
        got: list[h2.events.Event] = []
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            while not (last and Counter(last) <= Counter(map(type, got))) and (
                data := self.sock.recv(65536)
            ):
                got += self.engine.receive_data(data)
                self.send()
        self.sock.close()
        return got


def ended(events: list[h2.events.Event]) -> list[int]:
    """The error codes of GOAWAY and RST_STREAM among them."""
    return [
        int(event.error_code or 0)
        for event in events
        if isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset)
    ]


def raw_frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """An HTTP/2 frame."""
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


class WebSocket:
    """A WebSocket's client end."""

    def __init__(self, gateway: Gateway, extensions: bytes = b"") -> None:
        self.sock = gateway.connect("http")
        self.engine = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        hello = self.engine.send(Request(host="shop.example", target="/ws"))
        self.sock.sendall(
            hello.replace(b"\r\n\r\n", b"\r\n" + extensions + b"\r\n\r\n") if extensions else hello
        )
        self.accepted = next(self.events(), None)

    def events(self) -> Iterator[object]:
        """What comes, until the gateway closes."""
        with contextlib.suppress(OSError):
            while data := self.sock.recv(65536):
                self.engine.receive_data(data)
                yield from self.engine.events()

    def send(self, event: wsproto.events.Event) -> None:
        """Says something."""
        self.sock.sendall(self.engine.send(event))


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed."""
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

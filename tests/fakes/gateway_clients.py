"""Hostile clients of a gateway, and small bounds to meet them with."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

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
)


def reason(gateway: Gateway) -> str:
    """Why a request was refused: its head, or its body."""

    def reasons() -> list[str]:
        kinds = (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)
        events = [event for event in gateway.owner.events if event.kind in kinds]
        return [str(event.data["reason"]) for event in events if event.data.get("reason")]

    gateway.owner.wait(lambda: bool(reasons()))
    return reasons()[0]


def resident_bytes(gateway: Gateway) -> int:
    """Memory of the gateway's process."""
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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

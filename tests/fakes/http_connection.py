"""One HTTP connection of a gateway in this process, on bytes that are given: no socket, no TLS."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from tests.fakes.gateway import SHOP, layout

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import Receive, Scope, Send
from belljar.network.gateway.middleware import Middleware
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.server import HttpConnection
from belljar.network.gateway.site import Account, Peer, Site, connection_item
from belljar.network.ipc import Item
from belljar.plan.network import PortPlan, StandInPlan


@dataclass
class GivenPipe:
    """Yields the given pieces, and keeps what is sent."""

    pieces: list[bytes]
    account: Account
    answer: bytearray = field(default_factory=bytearray)

    async def receive(self) -> bytes:
        """See `Pipe`. An answer has a turn before the next piece."""
        for _ in range(64):
            await asyncio.sleep(0)
        data = self.pieces.pop(0) if self.pieces else b""
        self.account.received_bytes += len(data)
        return data

    async def send(self, data: bytes) -> None:
        """See `Pipe`."""
        self.answer += data

    async def close(self) -> None:
        """See `Pipe`."""


@dataclass
class Outcome:
    """All that was recorded, and the last event of the connection."""

    items: list[Item]
    answer: bytes
    end: dict[str, Any]
    unreported: int = 0

    @property
    def kept(self) -> bytes:
        """The content of all bodies, and the texts of all heads."""
        bodies = b"\0".join(body.content for item in self.items for body in item.bodies)
        return bodies + b"\0".join(repr(dict(item.data)).encode() for item in self.items)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads all and answers; at `/early` answers first; a WebSocket is accepted."""
    if scope["type"] == "websocket":
        await send({"type": "http.response.start", "status": 101})
        await send({"type": "http.response.body"})
        return
    while scope["path"] != "/early" and (await receive()).get("more_body", False):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


def talk(
    pieces: list[bytes],
    bounds: Bounds | None = None,
    *,
    has_memory: bool = True,
) -> Outcome:
    """One connection on which these pieces come, and then the end. `has_memory`: to record."""
    return asyncio.run(_talk(pieces, bounds or Bounds(farewell_s=0.05), has_memory=has_memory))


async def _talk(pieces: list[bytes], bounds: Bounds, *, has_memory: bool) -> Outcome:
    items: list[Item] = []

    async def record(*given: Item) -> None:
        await asyncio.sleep(0)
        if not has_memory:
            raise MemoryError
        items.extend(given)

    reporter = cast("Reporter", SimpleNamespace(record=record, post=items.append, is_full=False))
    shop = StandInPlan(
        id="shop",
        kind="http",
        names=(),
        ports=(PortPlan(number=80, protocol="http"),),
    )
    site = Site(
        layout=layout(), stand_ins=(shop,), bounds=bounds, reporter=reporter, apps={"shop": echo}
    )
    account = Account(1)
    peer = Peer(cell="agent", address=SHOP, port=80, account=account)
    pipe = GivenPipe(list(pieces), account)
    await HttpConnection(site, peer, pipe, Middleware(site)).run()
    end = connection_item(peer, closed=True)
    return Outcome([*items, end], bytes(pipe.answer), dict(end.data), site.unreported)

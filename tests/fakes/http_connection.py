"""One HTTP connection of a gateway in this process, on bytes that are given: no socket, no TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from tests.fakes.gateway import SHOP, layout
from tests.machine import PATIENCE_S

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.server import HttpConnection
from belljar.network.gateway.site import Peer, Site
from belljar.network.ipc import Item
from belljar.network.stand_ins.web import HttpAnswer, Request
from belljar.plan.network import PortPlan, StandInPlan


@dataclass
class GivenPipe:
    """Yields the given pieces, and keeps what is sent. `takes`: its client reads."""

    pieces: list[bytes]
    answer: bytearray = field(default_factory=bytearray)
    takes: bool = True

    async def receive(self) -> bytes:
        """See `Pipe`. An answer has a turn before the next piece."""
        for _ in range(64):
            await asyncio.sleep(0)
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        if not self.takes:
            await asyncio.Event().wait()
        self.answer += data

    async def close(self) -> None:
        """See `Pipe`."""


@dataclass
class Outcome:
    items: list[Item]
    answer: bytes
    unreported: int = 0

    @property
    def kept(self) -> bytes:
        """The content of all bodies, and the texts of all heads."""
        bodies = b"\0".join(body.content for item in self.items for body in item.bodies)
        return bodies + b"\0".join(repr(dict(item.data)).encode() for item in self.items)


async def _endless() -> AsyncGenerator[bytes]:
    while True:
        yield bytes(1 << 16)


async def echo(request: Request) -> HttpAnswer:
    """Answers; at `/never` not at all, at `/endless` for 50 ms."""
    if request.path == "/never":
        await asyncio.Event().wait()
    if request.path == "/endless":
        return HttpAnswer(stream=_endless, until=asyncio.get_running_loop().time() + 0.05)
    return HttpAnswer(body=b"ok")


def talk(
    pieces: list[bytes],
    bounds: Bounds | None = None,
    *,
    has_memory: bool = True,
    takes: bool = True,
) -> Outcome:
    """One connection on which these pieces come, and then the end.

    `has_memory`: to record. `takes`: its client reads answers.
    """
    pipe = GivenPipe(list(pieces), takes=takes)
    return asyncio.run(_talk(pipe, bounds or Bounds(), has_memory=has_memory))


async def _talk(pipe: GivenPipe, bounds: Bounds, *, has_memory: bool) -> Outcome:
    items: list[Item] = []

    async def record(*given: Item) -> None:
        await asyncio.sleep(0)
        if not has_memory:
            raise MemoryError
        items.extend(given)

    async def go_on() -> None:
        pass

    given = SimpleNamespace(record=record, post=items.append, wait_for_room=go_on, flush=go_on)
    shop = StandInPlan(
        id="shop", kind="http", names=(), ports=(PortPlan(number=80, protocol="http"),)
    )
    site = Site(
        layout=layout(),
        stand_ins=(shop,),
        bounds=bounds,
        reporter=cast("Reporter", given),
        apps={"shop": echo},
    )
    peer = Peer(cell="agent", address=SHOP, port=80, number=1)
    async with asyncio.timeout(PATIENCE_S):
        await HttpConnection(site, peer, pipe).run()
    return Outcome(items, bytes(pipe.answer), site.unreported)

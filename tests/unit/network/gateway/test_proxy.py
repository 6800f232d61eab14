"""A connection between two cells, joined on loopback: what is on record of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from tests.fakes.gateway import layout, listener

from belljar.events import JsonValue
from belljar.network import ipc
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.proxy import Proxy
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.site import Account, Peer, Site
from belljar.network.ipc import Item
from belljar.plan.addresses import CellPort, NameAddress
from belljar.plan.network import StandInPlan

TARGET, PORT = "127.0.76.9", 8080
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Joined:
    """One connection through a proxy, from its client's end to its target's."""

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.client, self.target = client, target
        self.items: list[Item] = []
        self.site: Any = None

    async def send(self, data: bytes, *, sent: bool = False) -> None:
        """Send from one end and wait until the other has it."""
        loop = asyncio.get_running_loop()
        source, to = (self.target, self.client) if sent else (self.client, self.target)
        await loop.sock_sendall(source, data)
        got = b""
        while len(got) < len(data):
            got += await loop.sock_recv(to, 1 << 16)
        assert got == data

    @property
    def limits(self) -> list[JsonValue]:
        """The bounds that were hit."""
        self.site.post_limits()
        return [data["limit"] for data, _ in self.of("limit.hit")]

    def of(self, kind: str) -> list[tuple[dict[str, JsonValue], dict[str, bytes]]]:
        """The recorded events of a kind, and their bodies."""
        return [
            (dict(item.data), {body.name: body.content for body in item.bodies})
            for item in self.items
            if item.kind == kind
        ]


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in a loop of its own."""

    def run() -> None:
        asyncio.run(test())

    run.__doc__ = test.__doc__
    return run


@asynccontextmanager
async def joined(bounds: Bounds | None = None) -> AsyncIterator[Joined]:
    """Join a client with a target; at the end both close."""
    target = StandInPlan(id="target", kind="cell", names=("target.example",), ports=())
    port = CellPort(name="target", address=TARGET, mac="", gateway_mac="", outer_device="p1")
    name = NameAddress(pattern="target.example", stand_in="target", address=TARGET)
    here = layout()
    here = replace(here, cells=(*here.cells, port), names=(*here.names, name))
    with listener() as door, socket.socket() as client:
        door.listen()
        client.connect(("127.0.0.1", door.getsockname()[1]))
        sock, source = door.accept()
        half, target_end = socket.socketpair()
        supervisor, dialled = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made = Joined(client, target_end)

        async def record(*items: Item) -> None:
            made.items.extend(items)

        reporter = cast("Any", SimpleNamespace(record=record, post=made.items.append))
        site = Site(
            layout=here,
            stand_ins=(target,),
            bounds=bounds or Bounds(),
            reporter=cast("Reporter", reporter),
        )
        made.site = site
        with sock, target_end, half, supervisor, dialled:
            for end in (sock, client, target_end):
                end.setblocking(False)
            proxy = Proxy(site, dialled)
            message = {"client": list(source), "target": [TARGET, PORT]}
            ipc.send(supervisor, message, [half.fileno()])
            peer = Peer(cell="agent", address=TARGET, port=PORT, account=Account(1))
            async with asyncio.TaskGroup() as group:
                group.create_task(proxy.serve(sock, peer))
                half.close()
                yield made
                client.shutdown(socket.SHUT_WR)
                target_end.shutdown(socket.SHUT_WR)
            asyncio.get_running_loop().remove_reader(dialled.fileno())


@pytest.mark.promise("5.4")
@in_a_loop
async def test_a_head_that_its_event_does_not_show_is_a_body_of_it() -> None:
    """A long value, many fields, another host in the target, an interim answer."""
    long = b"GET http://a.example/x HTTP/1.1\r\nHost: b\r\nX: " + b"x" * 2000 + b"\r\n\r\n"
    short = b"GET /y?z HTTP/1.1\r\nHost: b\r\n\r\n"
    hints = b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
    async with joined() as made:
        await made.send(long)
        await made.send(hints + OK, sent=True)
        await made.send(short)
        await made.send(OK, sent=True)
    (first, one), (second, two) = made.of("network.http")
    (_, answer), (_, plain) = made.of("network.http.answered")
    # Nobody's Host is the target's name
    assert first["url"] == "http://target.example:8080/x"
    assert second["url"] == "http://target.example:8080/y?z"
    assert (one, two) == ({"head": long}, {})
    assert answer == {"head": hints + OK[:-2], "response": b"ok"}
    assert plain == {"response": b"ok"}


@pytest.mark.promise("5.4")
@in_a_loop
async def test_what_ends_http_is_on_record_wherever_it_stands() -> None:
    """Behind more of the message than its pieces have, and at the end of the connection."""
    bad = b"3;x=secret\r\nabc\r\n"
    head = b"POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with joined(Bounds(kept_stream_bytes=100)) as made:
        await made.send(head + b"3e8\r\n" + b"a" * 1000)
        await made.send(b"\r\n" + bad)
    ((_, bodies),) = made.of("network.http")
    assert bodies == {"request": b"a" * 1000}
    *_, (opened, _), (_, piece), (closed, whole) = made.of("network.stream")
    assert (opened["phase"], closed["phase"]) == ("opened", "closed")
    assert piece == whole == {"received": b"\r\n" + bad}
    async with joined() as made:
        await made.send(b"GET / HT")
    assert [data["phase"] for data, _ in made.of("network.stream")] == [
        *("data", "opened", "data", "closed")
    ]


@pytest.mark.promise("5.4")
@in_a_loop
async def test_what_a_cell_makes_the_gateway_keep_is_bounded() -> None:
    """A recorded request is not kept, however many wait for an answer. Beyond the cell's share of
    the memory, HTTP is recorded as a stream.
    """
    head = b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n"
    async with joined(Bounds(bodies_bytes=400_000, kept_body_bytes=200_000)) as made:
        for _ in range(20):
            await made.send(head % 10_000 + bytes(10_000))
        for _ in range(20):
            await made.send(OK, sent=True)
        assert len(made.of("network.http.answered")) == 20
        assert not made.of("network.stream")
        for data in (head % 200_000, *[b"b" * 30_000] * 5):
            await made.send(data)
    request, bodies = made.of("network.http")[20]
    assert not request["complete"]
    assert 90_000 < len(bodies["request"]) < 130_000
    *_, (closed, _) = made.of("network.stream")
    assert closed["bytes"] == 150_000 - len(bodies["request"])
    assert made.site.bodies_bytes == 0
    assert made.limits == ["bodies_bytes"]

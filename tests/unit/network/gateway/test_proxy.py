"""A connection between two cells, joined on loopback: what is on record of it."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

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


class Joined:
    """One connection through a proxy, from its client's end to its target's."""

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.client, self.target = client, target
        self.items: list[Item] = []

    async def send(self, data: bytes, *, sent: bool = False) -> None:
        """Send from one end and wait until the other has it."""
        loop = asyncio.get_running_loop()
        source, to = (self.target, self.client) if sent else (self.client, self.target)
        await loop.sock_sendall(source, data)
        got = b""
        while len(got) < len(data):
            got += await loop.sock_recv(to, 1 << 16)
        assert got == data

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
async def test_each_piece_is_on_record_and_the_end_counts_them() -> None:
    """Both ways, whatever the bytes say; what is beyond the room is told once, then counted."""
    async with joined(Bounds(kept_between_bytes=10)) as made:
        await made.send(b"GET / HT")
        await made.send(b"answer", sent=True)
        await made.send(b"TP/1.1")
        await made.send(b"more")
    (opened, _), *pieces, (closed, whole) = made.of("network.stream")
    assert (opened["phase"], closed["phase"]) == ("opened", "closed")
    assert [body for _, body in pieces] == [
        {"received": b"GET / HT"},
        {"sent": b"answer"},
        {"received": b"TP"},
    ]
    assert {data["between_cells"] for data, _ in (*pieces, (opened, {}), (closed, {}))} == {True}
    assert (closed["bytes"], closed["sent_bytes"], whole) == (18, 6, {"received": b"", "sent": b""})
    *_, item = made.items
    sent = {body.name: (body.total_bytes, body.sha256) for body in item.bodies}
    assert sent["received"] == (18, hashlib.sha256(b"GET / HTTP/1.1more").hexdigest())

"""Taking connections when there is no memory for them: one is cut, it is counted, and the next is
served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.gateway import layout, listener

from belljar.network.gateway import site as sites
from belljar.network.gateway.accept import Front
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.site import Peer, Site
from belljar.network.gateway.tls import Terminator
from belljar.network.ipc import Item

Once = Callable[[str], None]
"""Raises `MemoryError` the first time that it is called with a word, if that is among those that
are to fail."""


class World:
    """A front on a listener of this host, in this process, with a handler that says hello."""

    def __init__(self, failing: str) -> None:
        self.items: list[Item] = []
        self._failing = {failing}

    def fail_once(self, where: str) -> None:
        """As the interpreter does when nothing is left."""
        if where in self._failing:
            self._failing.remove(where)
            raise MemoryError

    async def record(self, *items: Item) -> None:
        """As a reporter's."""
        self.fail_once("record")
        self.items += items

    async def handle(self, sock: socket.socket, _peer: Peer) -> None:
        """What a connection is for."""
        self.fail_once("handler")
        if "record" in self._failing:
            raise RuntimeError("so that it is reported")
        await asyncio.get_running_loop().sock_sendall(sock, b"hello")

    async def serve(self, group: asyncio.TaskGroup, tcp: socket.socket) -> None:
        """Takes connections until cancelled."""
        reporter = SimpleNamespace(record=self.record, post=self.items.append)
        site = Site(
            layout=layout(), stand_ins=(), bounds=Bounds(), reporter=cast("Reporter", reporter)
        )
        front = Front(site, cast("Terminator", None), self._weak(group))
        await front.accept(tcp, "connections", self.handle)

    def _weak(self, group: asyncio.TaskGroup) -> Any:  # noqa: ANN401 - a task group that may have no memory for a task
        def create_task(coroutine: Any) -> asyncio.Task[None]:  # noqa: ANN401
            self.fail_once("create_task")
            return group.create_task(coroutine)

        return SimpleNamespace(create_task=create_task)


async def answer_of(address: Any) -> bytes:  # noqa: ANN401 - as getsockname's
    """All that a connection says until it ends or is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", address[1])
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"cut"
    finally:
        writer.close()


@pytest.mark.promise("4.5")
@pytest.mark.parametrize("where", ["accept", "create_task", "handler", "record"])
def test_a_connection_without_memory_is_cut_and_the_next_is_served(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever memory runs out on the way to the handler, in it, or while its fault is reported: the
    gateway goes on, and the limit is on record once."""
    monkeypatch.setattr(sites, "LIMIT_EVENTS_EVERY_S", 0.0)
    world = World(where)

    async def scene() -> list[bytes]:
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def weak(sock: socket.socket) -> Any:  # noqa: ANN401 - as sock_accept
            world.fail_once("accept")
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", weak)
        with listener() as tcp:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                serving = group.create_task(world.serve(group, tcp))
                answers = [await answer_of(tcp.getsockname()) for _ in range(3)]
                serving.cancel()
        return answers

    assert asyncio.run(scene())[1:] == [b"hello", b"hello"]
    limits = [dict(item.data) for item in world.items if item.kind == "limit.hit"]
    assert limits == [{"limit": "memory_bytes", "value": Bounds().memory_bytes, "count": 1}]

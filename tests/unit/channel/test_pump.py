"""Who reads: whoever waits; and when one is done or gives up, the next one."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.fakes import guest as g

from belljar.channel import operations
from belljar.channel.frames import Answer, FrameType, GuestEvent
from belljar.channel.operations import Pump, SocketPipe
from belljar.errors import CellError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


class Box:
    def __init__(self) -> None:
        self.waiters: set[anyio.Event] = set()
        self.came: list[GuestEvent] = []

    def deliver(self, event: GuestEvent) -> None:
        self.came.append(event)


@asynccontextmanager
async def pumping() -> AsyncIterator[tuple[Pump, Box, socket.socket]]:
    """A pump that has shaken hands, its connection's mailbox, and the guest's end."""
    ours, theirs = socket.socketpair()
    box = Box()
    pump = Pump(SocketPipe(ours), box)
    with ours, theirs, anyio.fail_after(60):
        await pump.send(lambda: pump.wire.send_hello(bytes(16)))
        theirs.sendall(
            g.frame(g.WELCOME, 0, struct.pack("<H", 1) + bytes(16) + struct.pack("<II", 8, 1000))
        )
        await pump.wait_until(box, lambda: bool(box.came))
        box.came.clear()
        try:
            yield pump, box, theirs
        finally:
            await pump.close()


def pong(cookie: int) -> bytes:
    return g.frame(g.PONG, 0, struct.pack("<Q", cookie))


async def ask(pump: Pump, cookie: int) -> None:
    await pump.send(lambda: pump.wire.send_ping(cookie))


async def test_a_leader_that_gives_up_passes_the_lead_on() -> None:
    """When the one who reads is cancelled, another reads, with nothing lost."""
    async with pumping() as (pump, box, guest):
        await ask(pump, 1)
        scopes = [anyio.CancelScope() for _ in range(5)]

        async def give_up(scope: anyio.CancelScope) -> None:
            with scope:
                await pump.wait_until(box, lambda: False)

        async def wait_for_one() -> None:
            await pump.wait_until(box, lambda: bool(box.came))

        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(give_up, scope)
                await anyio.wait_all_tasks_blocked()
            tasks.start_soon(wait_for_one)
            for scope in scopes:
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
            await anyio.wait_all_tasks_blocked()
            guest.sendall(pong(1))
        assert box.came == [Answer(kind=FrameType.PONG)]


async def test_a_message_is_sent_whole() -> None:
    """A sender that is cancelled half-way through a message still sends all of it."""
    async with pumping() as (pump, _, guest):
        guest.settimeout(60)
        assert guest.recv(100)[4] == g.HELLO
        size, got = 3_000_000, 0

        async def send() -> None:
            with scope:
                await pump.send(lambda: bytes(size))

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            while got < size:
                got += len(await anyio.to_thread.run_sync(guest.recv, 1 << 20))
        assert pump.failure is None


async def test_a_send_that_nobody_takes_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends the connection, for this sender and for those who wait for their turn."""
    monkeypatch.setattr(operations, "SEND_DEADLINE_S", 0.1)
    async with pumping() as (pump, _, _guest):

        async def send() -> None:
            with pytest.raises(CellError, match="did not read"):
                await pump.send(lambda: bytes(50_000_000))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(send)

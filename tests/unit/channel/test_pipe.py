"""The socket as bytes in and out."""

from __future__ import annotations

import socket
from contextlib import suppress

import anyio
import pytest

from belljar.channel.pump import SocketPipe

pytestmark = pytest.mark.anyio


async def test_there_and_back() -> None:
    """All that is sent arrives, also what the socket can't take at once."""
    ours, theirs = socket.socketpair()
    one, other, content, seen = (
        SocketPipe(ours),
        SocketPipe(theirs),
        bytes(range(256)) * 20_000,
        bytearray(),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, content)
        while len(seen) < len(content):
            seen += await other.receive(100_000)
    assert seen == content
    await one.aclose()
    await one.aclose()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()
    await other.aclose()


async def test_a_cancelled_receive_takes_nothing() -> None:
    """What arrives after a cancelled receive is there for the next, and nothing reads meanwhile."""
    ours, theirs = socket.socketpair()
    pipe = SocketPipe(ours)
    with theirs:
        with anyio.move_on_after(0.01):
            await pipe.receive()
        theirs.settimeout(0)
        sent = 0
        with suppress(BlockingIOError):
            while sent < 100_000_000:
                sent += theirs.send(bytes(10_000))
        assert sent < 100_000_000, "the socket fills: nobody reads it"
        await anyio.lowlevel.checkpoint()
        assert len(await pipe.receive(7)) == 7
        await pipe.aclose()


async def test_closing_wakes_who_waits() -> None:
    """A receive that waits when the pipe is closed raises."""
    ours, theirs = socket.socketpair()
    pipe = SocketPipe(ours)
    with theirs:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises((anyio.ClosedResourceError, anyio.EndOfStream, OSError)):
                    await pipe.receive()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await pipe.aclose()


async def test_a_reset_is_an_end() -> None:
    """However the other end goes, it is the end of the stream."""
    ours, theirs = socket.socketpair()
    pipe = SocketPipe(ours)
    await pipe.send(b"unread")
    theirs.close()
    with pytest.raises(anyio.EndOfStream):
        await pipe.receive()
    await pipe.aclose()

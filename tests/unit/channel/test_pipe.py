"""The socket as bytes in and out."""

from __future__ import annotations

import socket
from contextlib import suppress

import anyio
import pytest

from belljar.channel.pump import SocketPipe

pytestmark = pytest.mark.anyio


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

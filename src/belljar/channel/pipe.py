"""A connected stream socket as bytes in and bytes out, under either event loop.

Written on readiness instead of on anyio's own socket stream because that one, under asyncio, goes
on reading into an unbounded queue after a cancelled receive: a hostile guest could fill the host's
memory with frames that nobody has checked. Here nothing is read that nobody waits for.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

_READ_BYTES: Final = 256 << 10


class BytePipe(Protocol):
    """What a client needs of its stream; anyio's `SocketStream` has it too."""

    async def receive(self, max_bytes: int = ..., /) -> bytes:
        """Some bytes, at least one. Raises `anyio.EndOfStream` at the end."""
        ...

    async def send(self, item: bytes, /) -> None:
        """Send all of it."""
        ...

    async def aclose(self) -> None:
        """Close. Whoever waits gets an error."""
        ...


class SocketPipe:
    """Owns the socket from now on: `aclose` closes it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock

    async def receive(self, max_bytes: int = _READ_BYTES, /) -> bytes:
        """Some bytes, at most `max_bytes`.

        Cancelled, it has taken nothing. Raises `anyio.EndOfStream` when the other end is gone.
        """
        await checkpoint()
        while True:
            try:
                received = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except ConnectionError as error:
                raise anyio.EndOfStream from error
            else:
                if not received:
                    raise anyio.EndOfStream
                return received

    async def send(self, item: bytes, /) -> None:
        """All of the bytes.

        Cancelled, a part may have gone: then the connection is of no more use.
        """
        await checkpoint_if_cancelled()
        left = memoryview(item)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def aclose(self) -> None:
        """Close the socket; whoever waits on it gets `ClosedResourceError`.

        Closing again does nothing.
        """
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

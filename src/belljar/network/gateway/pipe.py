"""A connection's bytes, plain or in TLS, unbuffered: unread ones stay with the sender.

Nothing leaves a TLS connection before its ClientHello is judged, on record.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from belljar.network.gateway.context import Stream

PIECE_BYTES: Final = 64 << 10
# A client that sends on for longer, or more, gets a reset.
LINGER_S: Final = 1.0
LINGER_BYTES: Final = 256 << 10


class Pipe(Stream, Protocol):
    """Both ways of a connection, to its end."""

    async def close(self) -> None:
        """End it as the protocol says; never raises."""
        ...


class TcpPipe:
    """A non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        """See `Pipe`. Loses nothing when cancelled."""
        await asyncio.sleep(0)  # others have a turn, however much waits here
        loop, fd = asyncio.get_running_loop(), self.sock.fileno()
        while True:
            try:
                # Not the loop's own `sock_recv`: what that has read is lost if its caller is
                # cancelled.
                return self.sock.recv(max_bytes)
            except BlockingIOError:
                ready = asyncio.Event()
                loop.add_reader(fd, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(fd)

    async def send(self, data: bytes) -> None:
        """See `Pipe`."""
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def close(self) -> None:
        """See `Pipe`. Half-close, and read on for a second: a reset could overtake the answer."""
        if is_cancelled():
            reset(self.sock)
            return
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                left = LINGER_BYTES
                while left > 0 and (data := await self.receive()):
                    left -= len(data)
        self.sock.close()


def is_cancelled() -> bool:
    """Whether the caller is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def reset(sock: socket.socket) -> None:
    """Close a connection by RST."""
    with contextlib.suppress(OSError):
        # On, with no time: the kernel drops what is unsent, and sends a RST (socket(7)).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class TlsPipe:
    """TLS over a pipe. `server_name`: as a client. Call `handshake` first."""

    def __init__(
        self, inner: Pipe, context: ssl.SSLContext, *, server_name: str | None = None
    ) -> None:
        self._inner = inner
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.engine = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        self._handshake_bytes = bytearray()
        self._sending = asyncio.Lock()

    async def handshake(self, before_send: Callable[[], Awaitable[None]], max_bytes: int) -> None:
        """Handshake; awaits `before_send` before each send. Raises `ssl.SSLError`, `OSError`."""
        received, is_done = 0, False
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.engine.do_handshake()
                is_done = True
            await before_send()
            await self._flush()
            if is_done:
                return
            if received > max_bytes:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "handshake over the bound")
            # What a client sends right behind its handshake comes with it, and does not count.
            data = await self._inner.receive()
            if not data:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "closed within the handshake")
            received += len(data)
            self._handshake_bytes += data
            self._in.write(data)

    async def send_last(self) -> None:
        """Send what is left to say, as an alert, if the peer takes it."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._flush()

    def take_handshake_bytes(self) -> bytes:
        """Return the peer's bytes of the handshake since the last call, for the record."""
        heard = bytes(self._handshake_bytes)
        self._handshake_bytes.clear()
        return heard

    async def receive(self) -> bytes:
        """See `Pipe`. HTTP's framing decides, not close_notify."""
        while True:
            try:
                return self.engine.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.receive()
                if not data:
                    return b""
                self._in.write(data)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def send(self, data: bytes) -> None:
        """See `Pipe`."""
        step = 2 * PIECE_BYTES  # so that a piece of the usual size goes with its framing
        for at in range(0, len(data), step):
            self.engine.write(data[at : at + step])
            await self._flush()

    async def close(self) -> None:
        """See `Pipe`."""
        if not is_cancelled():
            # It asks for the peer's close_notify, which nothing here waits for.
            with contextlib.suppress(ssl.SSLError, OSError, ValueError):
                self.engine.unwrap()
            await self.send_last()
        await self._inner.close()

    async def _flush(self) -> None:
        if self._out.pending:
            # Two senders at once could change the order of OpenSSL's records.
            async with self._sending:
                if data := self._out.read():
                    await self._inner.send(data)

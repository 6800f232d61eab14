"""A connection's bytes, plain or in TLS, without a buffer of our own: what nobody reads stays with
the sender.

Nothing leaves a TLS connection before its ClientHello was judged and that is on record, not even an
alert: the TLS engine works on memory (`ssl.MemoryBIO`), and what it wants to say is sent when the
record is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from belljar.network.gateway.account import Account

PIECE_BYTES: Final = 64 << 10
LINGER_S: Final = 1.0
LINGER_BYTES: Final = 256 << 10


class Pipe(Protocol):
    """Both ways of a connection."""

    async def receive(self) -> bytes:
        """Some bytes, at most 64 KiB; empty at the end.

        Raises `OSError` when the connection was cut.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Returns when the kernel has taken all of it.

        Raises `OSError` when the connection was cut.
        """
        ...

    async def close(self) -> None:
        """Ends it as the protocol says; never raises."""
        ...

    @property
    def alpn(self) -> str | None:
        """The protocol agreed on within TLS."""
        ...


class TcpPipe:
    """Over a socket that is open and does not block. What it receives is counted in `account`."""

    alpn: str | None = None

    def __init__(self, sock: socket.socket, account: Account | None = None) -> None:
        self.sock = sock
        self.account = account or Account()
        self._loop = asyncio.get_running_loop()

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        """See `Pipe`.

        Nothing is taken from the socket that is not returned, also when cancelled.
        """
        while True:
            try:
                return self._take(max_bytes)
            except BlockingIOError:
                readable: asyncio.Future[None] = self._loop.create_future()
                fd = self.sock.fileno()
                self._loop.add_reader(fd, _done, readable)
                try:
                    await readable
                finally:
                    self._loop.remove_reader(fd)

    def _take(self, max_bytes: int) -> bytes:
        try:
            data = self.sock.recv(max_bytes)
        except ConnectionResetError:
            self.account.is_at_end = True
            raise
        self.account.receive(len(data))
        self.account.is_at_end |= not data
        return data

    async def send(self, data: bytes) -> None:
        """See `Pipe`."""
        await self._loop.sock_sendall(self.sock, data)
        self.account.sent_bytes += len(data)

    async def close(self) -> None:
        """See `Pipe`."""
        if not is_cancelled():
            await self.linger(self.receive)
        self.drop()

    async def linger(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Ends the sending side, and for at most a second reads by `receive` what is still on its
        way: closing a socket with unread bytes would reset it, and a reset can overtake the answer.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                left = LINGER_BYTES
                while left > 0 and (data := await receive()):
                    self.account.remain("after_end", data)
                    left -= len(data)

    def drain(self, max_bytes: int = LINGER_BYTES) -> bytes:
        """What the kernel has, without waiting.

        What is more than `max_bytes` is counted as unread.
        """
        found = bytearray()
        with contextlib.suppress(OSError):
            while len(found) < max_bytes and (data := self._take(PIECE_BYTES)):
                found += data
            if not self.account.is_at_end:
                self.account.unread_bytes = len(self.sock.recv(PIECE_BYTES, socket.MSG_PEEK))
        return bytes(found)

    def drop(self) -> None:
        """Closes it without waiting, of who is being cancelled by RST.

        What the kernel has is recorded.
        """
        if self.sock.fileno() < 0:
            return
        self.account.remain("after_end", self.drain())
        if is_cancelled():
            reset(self.sock)
        else:
            self.sock.close()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def is_cancelled() -> bool:
    """Whether who asks is being cancelled: it has no time for goodbyes."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def reset(sock: socket.socket) -> None:
    """Closes a connection by RST, whatever was still on its way."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class TlsPipe:
    """TLS over another pipe: the server's side, or with `server_name` the client's of a server of
    that name. Call `handshake` first.
    """

    def __init__(
        self, inner: Pipe, context: ssl.SSLContext, *, server_name: str | None = None
    ) -> None:
        self._inner = inner
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.engine = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        self._sending = asyncio.Lock()

    @property
    def alpn(self) -> str | None:
        """See `Pipe`."""
        return self.engine.selected_alpn_protocol()

    async def handshake(self, before_words: Callable[[], Awaitable[None]], max_bytes: int) -> None:
        """Shakes hands. `before_words` is awaited each time before anything is sent.

        Raises `ssl.SSLError` when it fails (the alert has been sent), also for more than
        `max_bytes` received; `OSError` when the connection was cut.
        """
        received = 0
        while True:
            try:
                self.engine.do_handshake()
            except ssl.SSLWantReadError:
                await before_words()
                await self._flush()
                # What a client says right behind its last word of the handshake comes with it, and
                # does not count.
                data = await self._inner.receive() if received <= max_bytes else b""
                if not data:
                    why = (
                        "closed within the handshake"
                        if received <= max_bytes
                        else "handshake over the bound"
                    )
                    raise ssl.SSLError(ssl.SSL_ERROR_SSL, why) from None
                received += len(data)
                self._feed(data)
            except ssl.SSLError:
                await before_words()
                await self._flush()
                raise
            else:
                await before_words()
                await self._flush()
                return

    def _feed(self, data: bytes) -> None:
        self._in.write(data)

    async def receive(self) -> bytes:
        """See `Pipe`.

        A connection that ends without TLS's goodbye ends like one with it: what counts is what
        HTTP's framing says.
        """
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
        for at in range(0, len(data), PIECE_BYTES):
            self.engine.write(data[at : at + PIECE_BYTES])
            await self._flush()

    async def close(self) -> None:
        """See `Pipe`."""
        if not is_cancelled():
            await self._say_goodbye()
        await self._inner.close()

    async def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError, OSError, ValueError, TimeoutError):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.engine.unwrap()
            async with asyncio.timeout(LINGER_S):
                await self._flush()

    async def _flush(self) -> None:
        if self._out.pending:
            async with self._sending:
                if said := self._out.read():
                    await self._inner.send(said)

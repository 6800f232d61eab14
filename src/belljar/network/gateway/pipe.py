"""A connection's bytes, plain or in TLS, unbuffered: unread ones stay with the sender.

Nothing leaves a TLS connection before its ClientHello is judged, on record.
The server reads one TLS record at a time, so that every byte is accounted for
(RFC 8446 section 5, RFC 5246 section 6.2, RFC 7905, RFC 5288).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from belljar.network.gateway.site import REMAINDER_EXCEEDED, Account

PIECE_BYTES: Final = 64 << 10
LINGER_S: Final = 1.0
LINGER_BYTES: Final = 256 << 10


class Pipe(Protocol):
    """Both ways of a connection."""

    async def receive(self) -> bytes:
        """At most 64 KiB; empty at the end. Raises `OSError`."""
        ...

    async def send(self, data: bytes) -> None:
        """Return when the kernel has it. Raises `OSError`."""
        ...

    async def close(self) -> None:
        """End it as the protocol says; never raises."""
        ...

    @property
    def alpn(self) -> str | None:
        """The protocol agreed on in TLS."""
        ...


class TcpPipe:
    """A non-blocking socket, its received bytes counted."""

    alpn: str | None = None

    def __init__(self, sock: socket.socket, account: Account | None = None) -> None:
        self.sock = sock
        self.account = account or Account()

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        """See `Pipe`. Loses nothing when cancelled."""
        while True:
            try:
                return self._take(max_bytes)
            except BlockingIOError:
                await until_ready(self.sock)

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
        await asyncio.get_running_loop().sock_sendall(self.sock, data)
        self.account.sent_bytes += len(data)

    async def close(self) -> None:
        """See `Pipe`."""
        if not is_cancelled():
            await self.linger(self.receive)
        self.drop()

    async def linger(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Half-close, and read on for at most a second.

        Closing on unread bytes would reset, and a reset can overtake the answer.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                left = LINGER_BYTES
                while left > 0 and (data := await receive()):
                    self.account.remain("after_end", data)
                    left -= len(data)

    def drain(self, max_bytes: int = LINGER_BYTES) -> bytes:
        """What the kernel has; more than `max_bytes` is unread."""
        found = bytearray()
        with contextlib.suppress(OSError):
            while len(found) < max_bytes and (data := self._take(PIECE_BYTES)):
                found += data
            if not self.account.is_at_end:
                self.account.unread_bytes = len(self.sock.recv(PIECE_BYTES, socket.MSG_PEEK))
        return bytes(found)

    def drop(self) -> None:
        """Close now (cancelled: reset); unread bytes are recorded."""
        if self.sock.fileno() < 0:
            return
        self.account.remain("after_end", self.drain())
        if is_cancelled():
            reset(self.sock)
        else:
            self.sock.close()


async def until_ready(sock: socket.socket, *, is_writing: bool = False) -> None:
    """Return when a socket may be read, or written."""
    loop, ready, fd = asyncio.get_running_loop(), asyncio.Event(), sock.fileno()
    add, remove = (
        (loop.add_writer, loop.remove_writer)
        if is_writing
        else (loop.add_reader, loop.remove_reader)
    )
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


def is_cancelled() -> bool:
    """Whether the caller is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def reset(sock: socket.socket) -> None:
    """Close a connection by RST."""
    with contextlib.suppress(OSError):
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
        self._sending = asyncio.Lock()

    @property
    def alpn(self) -> str | None:
        """See `Pipe`."""
        return self.engine.selected_alpn_protocol()

    async def handshake(self, before_send: Callable[[], Awaitable[None]], max_bytes: int) -> None:
        """Handshake; awaits `before_send` before each send.

        Raises `ssl.SSLError`, also over `max_bytes`, with the alert sent; `OSError`.
        """
        received = 0
        while True:
            is_done = False
            try:
                self.engine.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            finally:  # also an alert is sent
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
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        self._in.write(data)

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
                if data := self._out.read():
                    await self._inner.send(data)


HEADER_BYTES: Final = 5
# Of a payload (RFC 5246 section 6.2.3); RFC 8446 allows less.
MAX_RECORD_BYTES: Final = (16 << 10) + 2048
_CONTENT_TYPES: Final = range(20, 25)
_INNER_BYTES: Final = 17  # TLS 1.3: inner content type and tag, 16 bytes in every offered suite.
_CLOSE_NOTIFY_BYTES: Final = 2
# A client's second flight in TLS 1.3 follows from the keys (SHA-256, SHA-384).
_FINISHED: Final = re.compile(
    rb"(?:\x14\x03\x03\0\x01\x01)?\x17\x03\x03\0(?:\x35[\0-\xff]{53}|\x45[\0-\xff]{69})", re.DOTALL
)


class Records:
    """Cuts bytes into TLS records. Sans-io."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._buffer += data

    def __iter__(self) -> Iterator[bytes]:
        """Whole records; what is none comes as it is."""
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[3:HEADER_BYTES], "big")
            is_record = self._buffer[0] in _CONTENT_TYPES and length <= MAX_RECORD_BYTES
            end = HEADER_BYTES + length if is_record else len(self._buffer)
            if len(self._buffer) < end:
                return
            record = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield record

    def take_rest(self) -> bytes:
        """What is not whole."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class ServerTlsPipe(TlsPipe):
    """The server's side of a cell's connection."""

    def __init__(self, inner: TcpPipe, context: ssl.SSLContext) -> None:
        super().__init__(inner, context)
        self._tcp, self.account = inner, inner.account
        self._handshake_bytes = bytearray()
        self._records = Records()
        self._is_over = False
        self.account.before_end(self.leave)

    def _feed(self, data: bytes) -> None:
        self._handshake_bytes += data
        super()._feed(data)

    def take_handshake_bytes(self) -> bytes:
        """Handshake bytes since the last call, for the record."""
        heard = bytes(self._handshake_bytes)
        self._handshake_bytes.clear()
        self.account.record(len(heard))
        return heard

    def shaken(self) -> None:
        """What follows the handshake is records."""
        rest = self._in.read()
        self._records.feed(rest)
        flight = bytes(self._handshake_bytes[: len(self._handshake_bytes) - len(rest)])
        self._handshake_bytes.clear()
        if self.engine.version() == "TLSv1.3" and _FINISHED.fullmatch(flight):
            self.account.frame(len(flight))
        else:
            self.account.remain("tls", flight)

    async def receive(self) -> bytes:
        """See `TlsPipe`."""
        while not self._is_over:
            for record in self._records:
                if data := self._opened(record):
                    return data
                if self._is_over:
                    return b""
                if self.account.is_over:
                    self.account.end_for(REMAINDER_EXCEEDED)
                    raise ConnectionAbortedError(REMAINDER_EXCEEDED)
            await self._flush()
            data = await self._tcp.receive()
            if not data:
                return b""
            self._records.feed(data)
        return b""

    def _opened(self, record: bytes) -> bytes:
        """Plaintext of a record of application data."""
        data = b""
        self._in.write(record)
        try:
            data = self.engine.read(PIECE_BYTES)
            self._is_over = not data
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_over = True
        except ssl.SSLError:
            self._is_over = True
            self.account.remain("tls", record)
            raise
        overhead, nonce = len(record) - len(data), self._nonce_bytes
        if self._is_over and len(record) == self._overhead + _CLOSE_NOTIFY_BYTES:
            self.account.frame(len(record))
        elif not data or overhead != self._overhead:
            # Padding, an empty record, or a message that is TLS's own: its plaintext is not known
            # here.
            self.account.remain("tls", record[:overhead])
        else:
            self.account.remain("tls_nonce", record[HEADER_BYTES : HEADER_BYTES + nonce])
            self.account.frame(overhead - nonce)
        return data

    @property
    def _nonce_bytes(self) -> int:
        """A sender's choice in each record: AES-GCM in TLS 1.2."""
        cipher = self.engine.cipher()
        return 8 if self.engine.version() == "TLSv1.2" and cipher and "GCM" in cipher[0] else 0

    @property
    def _overhead(self) -> int:
        """Around a record's plaintext: no offered suite pads."""
        if self.engine.version() == "TLSv1.3":
            return HEADER_BYTES + _INNER_BYTES
        return HEADER_BYTES + self._nonce_bytes + _INNER_BYTES - 1

    async def close(self) -> None:
        """See `Pipe`. What comes after is decrypted, too."""
        if not is_cancelled():
            await self._say_goodbye()

            async def receive() -> bytes:
                return await self.receive() or await self._tcp.receive()

            await self._tcp.linger(receive)
        self._records.feed(self._tcp.drain())
        self._tcp.drop()

    def leave(self) -> None:
        """Give what was not read to the remainder."""
        self.account.remain("tls", bytes(self._handshake_bytes))
        self._handshake_bytes.clear()
        for record in self._records:
            with contextlib.suppress(ssl.SSLError):
                self.account.remain("after_end", record if self._is_over else self._opened(record))
        self.account.remain("after_end", self._records.take_rest())

"""TLS as the gateway ends it, one record at a time, so that every byte on the wire is accounted
for.

RFC 8446 section 5, RFC 5246 section 6.2, RFC 7905 (ChaCha20-Poly1305), RFC 5288 (AES-GCM).
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from typing import Final

from belljar.network.gateway.account import TOO_MUCH
from belljar.network.gateway.pipe import PIECE_BYTES, TcpPipe, TlsPipe, is_cancelled

HEADER_BYTES: Final = 5
MAX_RECORD_BYTES: Final = (16 << 10) + 2048
"""Of its payload (RFC 5246 section 6.2.3); RFC 8446 allows less."""
_CONTENT_TYPES: Final = range(20, 25)
_INNER_BYTES: Final = 17
"""TLS 1.3: the inner content type and the tag, which in every suite that is offered has 16 bytes.
"""
_CLOSE_NOTIFY_BYTES: Final = 2
_FINISHED: Final = re.compile(
    rb"(?:\x14\x03\x03\0\x01\x01)?\x17\x03\x03\0(?:\x35[\0-\xff]{53}|\x45[\0-\xff]{69})", re.DOTALL
)
"""A client's second flight in TLS 1.3, whose bytes follow from the keys (SHA-256, SHA-384)."""


class Records:
    """Cuts a connection's bytes into TLS records. Sans-io."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._buffer += data

    def __iter__(self) -> Iterator[bytes]:
        """Those that are whole; what can't be a record comes as it is, with all that follows."""
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
    """The server's side over a cell's connection."""

    def __init__(self, inner: TcpPipe, context: ssl.SSLContext) -> None:
        super().__init__(inner, context)
        self._tcp, self.account = inner, inner.account
        self._heard = bytearray()
        self._records = Records()
        self._is_over = False
        self.account.before_end(self.leave)

    def _feed(self, data: bytes) -> None:
        self._heard += data
        super()._feed(data)

    def take_heard(self) -> bytes:
        """What came of the handshake since the last call: the caller puts it on record."""
        heard = bytes(self._heard)
        self._heard.clear()
        self.account.record(len(heard))
        return heard

    def shaken(self) -> None:
        """The handshake is over: what came behind it is records."""
        rest = self._in.read()
        self._records.feed(rest)
        flight = bytes(self._heard[: len(self._heard) - len(rest)])
        self._heard.clear()
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
                    self.account.end_for(TOO_MUCH)
                    raise ConnectionAbortedError(TOO_MUCH)
            await self._flush()
            data = await self._tcp.receive()
            if not data:
                return b""
            self._records.feed(data)
        return b""

    def _opened(self, record: bytes) -> bytes:
        """A record's plaintext; none of what is no application data."""
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
        if self._is_over and len(record) == self._overhead + _CLOSE_NOTIFY_BYTES:
            self.account.frame(len(record))
        else:
            self._account(record, data)
        return data

    def _account(self, record: bytes, data: bytes) -> None:
        overhead = len(record) - len(data)
        nonce = self._nonce_bytes
        if not data or overhead != self._overhead:
            # Padding, an empty record, or a message that is TLS's own: its plaintext is not known
            # here.
            self.account.remain("tls", record[:overhead])
            return
        self.account.remain("tls_nonce", record[HEADER_BYTES : HEADER_BYTES + nonce])
        self.account.frame(overhead - nonce)

    @property
    def _nonce_bytes(self) -> int:
        """Bytes of each record that its sender chooses: those of AES-GCM in TLS 1.2."""
        cipher = self.engine.cipher()
        return 8 if self.engine.version() == "TLSv1.2" and cipher and "GCM" in cipher[0] else 0

    @property
    def _overhead(self) -> int:
        """Around each record's plaintext: no suite that `server_context` offers pads."""
        if self.engine.version() == "TLSv1.3":
            return HEADER_BYTES + _INNER_BYTES
        return HEADER_BYTES + self._nonce_bytes + _INNER_BYTES - 1

    async def close(self) -> None:
        """See `Pipe`. What comes after the end is decrypted, as long as it is TLS."""
        if not is_cancelled():
            await self._say_goodbye()
            await self._tcp.linger(self._receive_more)
        self._records.feed(self._tcp.drain())
        self._tcp.drop()

    async def _receive_more(self) -> bytes:
        return await self.receive() or await self._tcp.receive()

    def leave(self) -> None:
        """What was not read goes to the remainder: decrypted where it can be."""
        self.account.remain("tls", bytes(self._heard))
        self._heard.clear()
        for record in self._records:
            with contextlib.suppress(ssl.SSLError):
                self.account.remain("after_end", record if self._is_over else self._opened(record))
        self.account.remain("tls", self._records.take_rest())

"""HTTP/1.1, and WebSocket after its upgrade: hypercorn's protocol on a parser whose bytes are
counted.

hypercorn's `H11Protocol` and h11's buffer are no public interface: see
`belljar.network.gateway.http`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, cast

import h11
from h11 import _abnf, _readers
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import Handshake, WSStream
from hypercorn.typing import ConnectionState

from belljar.errors import HostError
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.middleware import INCOMING, MESSAGES, WEBSOCKET
from belljar.network.gateway.site import Account, Incoming
from belljar.network.gateway.websocket import WebSocketFrames, WebSocketRecord

_BLANKS: Final = r"[ \t]*"


def patch_h11() -> None:
    """Make h11's header expression linear, for the whole process.

    h11 (0.16) backtracks over blanks after a colon: 60,000 and a NUL take 15 s.
    A possessive match takes the same fields. Raises `HostError` for another h11.
    """
    if _BLANKS not in _abnf.header_field:
        raise HostError(
            "the installed h11 reads header fields in a way that is not known here",
            where="network",
            hint="pip install --upgrade 'belljar-sandbox[network]'",
        )
    expression = _abnf.header_field.replace(_BLANKS, f"{_BLANKS}+")
    _readers.header_field_re = re.compile(expression.encode("ascii"))


def make_room(stream: Any) -> None:  # noqa: ANN401 - one of hypercorn's streams, or None
    """Drop unread data of a closing stream: hypercorn would wait."""
    put = getattr(stream, "app_put", None)
    if put is not None:
        queue: asyncio.Queue[Any] = put.__self__
        while queue.full():
            queue.get_nowait()


def keep_unread(stream: Any) -> None:  # noqa: ANN401 - one of hypercorn's streams, or None
    """Lift the queue's bound: the end never waits."""
    put = getattr(stream, "app_put", None)
    if put is not None:
        put.__self__._maxsize = 0


_FRAMED: Final = (b"content-length", b"transfer-encoding")
# Around a chunk's data: the end of the one before, a size, the end of all. A size follows from the
# length if its letters have one case and no zero leads.
_CHUNK: Final = re.compile(
    rb"(?:\r\n)?(?:(?P<size>[1-9a-f][0-9a-f]*|[1-9A-F][0-9A-F]*|0)\r\n)?(?:\r\n)?"
)


_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class RefusedRequest(Exception):  # noqa: N818 - a verdict on a request
    """A request that no stand-in sees."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class CountedConnection(h11.Connection):
    """h11's parser, with its taken bytes accounted for."""

    def __init__(self, account: Account, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self._account = account
        self._held = bytearray()
        self._refused = self._cr = self._of_chunk = b""
        self._is_upper: bool | None = None
        self.incoming: Incoming | None = None

    def receive_data(self, data: bytes) -> None:
        """See h11."""
        self._held += data
        super().receive_data(data)

    def next_event(self) -> Any:  # noqa: ANN401 - h11's events and its sentinels
        """See h11."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError:
            self._refused += self._taken()
            raise
        taken = self._taken()
        if isinstance(event, h11.Request):
            self.incoming = Incoming(self._account, taken, event.headers.raw_items())
        elif isinstance(event, h11.Data):
            data = bytes(event.data)
            self._around(taken[: len(taken) - len(data)])
            if event.chunk_end:
                self.end_chunk(is_whole=True)
            if self.incoming is not None:
                self.incoming.came(data)
            return h11.Data(data=data, chunk_start=event.chunk_start, chunk_end=event.chunk_end)
        else:
            self._around(taken)
        return event

    def _taken(self) -> bytes:
        size = len(self._held) - len(self._receive_buffer)
        if not size:
            return b""
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def _around(self, taken: bytes) -> None:
        """Pieces around a chunk's data, maybe a lone CR."""
        found = _CHUNK.fullmatch(self._cr + taken)
        self._cr = b"\r" if taken == b"\r" else b""
        if self._cr:
            self._account.frame(1)
        elif found is None or not self._is_of_one_case(found["size"] or b""):
            self._account.remain("chunked", taken)
        elif found["size"] in (None, b"0"):
            self._account.frame(len(taken))
        else:
            self._of_chunk = taken

    def _is_of_one_case(self, size: bytes) -> bool:
        """Whether letters have this connection's first case."""
        if size.isdigit() or not size:
            return True
        if self._is_upper is None:
            self._is_upper = size.isupper()
        return size.isupper() == self._is_upper

    def end_chunk(self, *, is_whole: bool) -> None:
        """A whole chunk's size follows from its data."""
        if is_whole:
            self._account.frame(len(self._of_chunk))
        else:
            self._account.remain("chunked", self._of_chunk)
        self._of_chunk = b""

    def take_held(self) -> bytes:
        """What h11 has not taken."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def take_unclaimed(self) -> bytes:
        """A refused head, and what was not parsed."""
        head = b"" if self.incoming is None else self.incoming.take_head()
        found = head + self._refused + self.take_held()
        self._refused = b""
        return found


class Http1(H11Protocol):
    """HTTP/1.1, and WebSocket after its upgrade."""

    _on_refused: Callable[[str], Awaitable[None]]
    _bounds: Bounds

    def guard(
        self, on_refused: Callable[[str], Awaitable[None]], bounds: Bounds, account: Account
    ) -> None:
        """`on_refused`: awaited before a refusal leaves."""
        self._on_refused, self._bounds, self._account = on_refused, bounds, account
        self._counted = CountedConnection(account, bounds.head_bytes)
        self.connection = self._counted
        self._frames: WebSocketFrames | None = None

    @property
    def awaits_head(self) -> bool:
        """Whether a head comes next."""
        return self.stream is None

    @property
    def has_unparsed(self) -> bool:
        """Whether a fragment has come."""
        return isinstance(self.connection, h11.Connection) and bool(
            self.connection.trailing_data[0]
        )

    def take_unclaimed(self) -> bytes:
        """Received bytes that are in no event."""
        return self._counted.take_unclaimed()

    take_refused = take_unclaimed

    def leave(self) -> None:
        """Give what is left to the remainder."""
        if self._counted.incoming is not None:
            self._counted.incoming.leave()
        self._counted.end_chunk(is_whole=False)
        self._account.remain("unparsed", self._counted.take_unclaimed())
        if self._frames is not None:
            self._frames.leave()

    def abandon(self) -> None:
        """Take no more of an answer."""
        if self.stream is not None:
            self.stream.closed = True

    @property
    def open_streams(self) -> list[Any]:
        """Streams of unanswered requests."""
        return [self.stream]

    def record_unfinished_message(self) -> None:
        """Record an incomplete WebSocket message."""
        if isinstance(self.stream, WSStream) and self.stream.buffer.value is not None:
            record: WebSocketRecord | None = cast("Any", self.stream.scope)["state"].get(WEBSOCKET)
            if record is not None and (begun := self.stream.buffer.value.getvalue()):
                record.record_unfinished(begun)

    async def refuse(self, refused: RefusedRequest) -> None:
        """Answer a request that no stand-in sees."""
        if self._frames is not None:
            await self._on_refused(str(refused))
            return
        await self._send_error_response(refused.status)

    async def handle(self, event: Event) -> None:
        """As hypercorn, but end an oversized WebSocket."""
        if isinstance(event, RawData) and self._frames is not None:
            # Bytes behind a WebSocket's handshake; before it is accepted there are no frames
            if isinstance(self.stream, WSStream) and self.stream.handshake.accepted:
                self._frames.feed(event.data)
            else:
                self._account.remain("outside_websocket", event.data)
        await super().handle(event)
        buffer = getattr(self.stream, "buffer", None)
        if buffer is not None and buffer.length > buffer.max_length:
            await self.send(Closed())

    async def _close_stream(self) -> None:
        make_room(self.stream)
        await super()._close_stream()

    async def _send_error_response(self, status_code: int) -> None:
        await self._on_refused(str(sys.exception() or "malformed"))
        await super()._send_error_response(status_code)

    async def _send_h11_event(self, event: Any) -> None:  # noqa: ANN401 - h11's events
        """botocore takes a 100 without a reason for the answer."""
        if isinstance(event, h11.Response | h11.InformationalResponse) and not event.reason:
            event = type(event)(
                status_code=event.status_code,
                headers=event.headers.raw_items(),
                http_version=event.http_version,
                reason=_PHRASES.get(event.status_code, b""),
            )
        await super()._send_h11_event(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        names = [name for name, _ in event.headers]
        if event.http_version not in (b"1.0", b"1.1"):
            raise RefusedRequest("another version of HTTP than 1.0 and 1.1", 505)
        if len(names) > self._bounds.headers:
            raise RefusedRequest("too many header fields", 431)
        # RFC 9112 section 6.1: ought to be handled as an error. Two parsers that disagree are
        # request smuggling.
        if all(name in names for name in _FRAMED):
            raise RefusedRequest("both Content-Length and Transfer-Encoding")
        if any(name == b"upgrade" and b"h2c" in value.lower() for name, value in event.headers):
            raise RefusedRequest("an upgrade to HTTP/2")
        if (
            _is_websocket(event)
            and not Handshake(list(event.headers), event.http_version.decode()).is_valid()
        ):
            raise RefusedRequest("a WebSocket's handshake that is not one")

    async def _create_stream(self, request: h11.Request) -> None:
        """Agree to no extension: compressed messages could be bombs."""
        plain = [
            (name, value) for name, value in request.headers if name != b"sec-websocket-extensions"
        ]
        if len(plain) != len(request.headers):
            request = h11.Request(method=request.method, target=request.target, headers=plain)
        state = {**self.connection_state, INCOMING: self._counted.incoming}
        if self._counted.incoming is not None:
            self._counted.incoming.is_handed = True
        if _is_websocket(request):
            self._frames = state[MESSAGES] = WebSocketFrames(self._account)
            self._account.remain("outside_websocket", self._counted.take_held())
        self.connection_state = ConnectionState(state)
        await super()._create_stream(request)


def _is_websocket(request: h11.Request) -> bool:
    """As hypercorn sees it: the last field counts."""
    fields = {name: value.lower() for name, value in request.headers}
    words = [word.strip() for word in fields.get(b"connection", b"").split(b",")]
    return (
        request.method.upper() == b"GET"
        and b"upgrade" in words
        and fields.get(b"upgrade", b"") == b"websocket"
    )

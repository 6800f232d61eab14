"""HTTP/1.1 between two cells, as it passes. Pure; h11 parses, and every byte is a cell's.

h11 gets one whole head at a time, after its size, lines and blanks were checked: its expression for
a field takes the square of a run of blanks (h11 0.16: 15 s for 60 KB).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import h11

from belljar.capture import Capture

MAX_HEAD_BYTES: Final = 64 << 10
MAX_LINES: Final = 130  # Of a head.
MAX_BLANKS: Final = 64  # In a row, of a head.
MAX_UNANSWERED: Final = 64  # Requests of one connection.
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_BLANKS: Final = re.compile(rb"[ \t]{%d}" % (MAX_BLANKS + 1))
_METHOD: Final = re.compile(rb"[A-Z-]{1,32}(?: |\Z)")
_Head: TypeAlias = h11.Request | h11.Response | h11.InformationalResponse


class NotHttpError(Exception):
    """What comes next is no HTTP/1.1, or beyond a bound."""


@dataclass(slots=True)
class PassingMessage:
    """A request or an answer; `body` keeps its first bytes, chunks put together."""

    body: Capture
    head: _Head | None = None
    is_complete: bool = False

    @property
    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """The head's fields as they came."""
        return () if self.head is None else self.head.headers.raw_items()


@dataclass(slots=True, kw_only=True)
class PassingExchange:
    """A request and its answer, as far as they came. The caller sets number and `recorded_bytes`.

    `recorded_bytes`: of the request's body, when it was recorded; None: it is not yet.
    """

    start_s: float
    request: PassingMessage
    answer: PassingMessage
    number: int = 0
    recorded_bytes: int | None = None

    @property
    def method(self) -> bytes:
        """The request's, or nothing."""
        return self.request.head.method if isinstance(self.request.head, h11.Request) else b""


@dataclass(slots=True)
class _Way:
    """One direction: bytes of a head that is not whole, or the parser of an open body."""

    waiting: bytearray = field(default_factory=bytearray)
    parser: h11.Connection | None = None

    @property
    def is_between(self) -> bool:
        return self.parser is None and not self.waiting


class Observer:
    """Follows one connection. `kept_bytes`: of each body."""

    def __init__(self, kept_bytes: int) -> None:
        self.unanswered: deque[PassingExchange] = deque()
        self._kept_bytes = kept_bytes
        self._requests, self._answers = _Way(), _Way()
        self._asks_to_switch = False

    def is_whole(self, *, sent: bool) -> bool:
        """Whether all bytes of this direction are of complete messages."""
        return (self._answers if sent else self._requests).is_between

    def rest(self, *, sent: bool) -> bytes:
        """Bytes of this direction that are in no message."""
        way = self._answers if sent else self._requests
        begun = b"" if way.parser is None else way.parser.trailing_data[0]
        return begun + bytes(way.waiting)

    def feed_request(self, data: bytes, now_s: float) -> list[PassingExchange]:
        """Take bytes of the client; return exchanges whose request is complete now.

        Raises `NotHttpError`.
        """
        way, done = self._requests, []
        way.waiting += data
        if self._asks_to_switch:  # what follows depends on the answer
            if len(way.waiting) > MAX_HEAD_BYTES:
                raise NotHttpError
            return []
        while way.waiting and not self._asks_to_switch:
            if way.parser is None:
                if not _METHOD.match(way.waiting) or len(self.unanswered) >= MAX_UNANSWERED:
                    raise NotHttpError
                parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
                if (head := _read_head(way, parser)) is None:
                    break
                self._begin(head, now_s)
            exchange = self.unanswered[-1]
            if self._take_body(way, exchange.request):
                done.append(exchange)
                self._asks_to_switch = exchange.method == b"CONNECT" or any(
                    name.lower() == b"upgrade" for name, _ in exchange.request.fields
                )
            elif way.parser is not None:
                break
        return done

    def feed_answer(self, data: bytes) -> list[PassingExchange]:
        """Take bytes of the target; return exchanges whose answer is complete now.

        Empty `data`: no more come. Raises `NotHttpError`, also after a switch of protocols and an
        answer before the request's end: that exchange is left in `unanswered`.
        """
        self._answers.waiting += data
        done: list[PassingExchange] = []
        try:
            self._read_answers(data, done)
        except NotHttpError:
            if not done:  # else the next bytes show it again
                raise
        return done

    def _read_answers(self, data: bytes, done: list[PassingExchange]) -> None:
        way = self._answers
        while (way.waiting or not data) and self.unanswered:
            exchange = self.unanswered[0]
            if way.parser is None:
                if (head := _read_head(way, _client(exchange.method))) is None:
                    break
                exchange.answer.head = head
            answered = exchange.answer.head
            if isinstance(answered, h11.InformationalResponse) and answered.status_code != 101:
                way.parser = None
                continue
            is_switched = way.parser is not None and way.parser.their_state is h11.SWITCHED_PROTOCOL
            if is_switched or self._take_body(way, exchange.answer, is_last=not data):
                exchange.answer.is_complete = True
            if not exchange.answer.is_complete:
                break
            if is_switched or not exchange.request.is_complete:
                raise NotHttpError
            done.append(self.unanswered.popleft())
            self._asks_to_switch &= bool(self.unanswered)
        if way.waiting and not self.unanswered:
            raise NotHttpError

    def _begin(self, head: _Head, now_s: float) -> None:
        request, answer = (
            PassingMessage(body=Capture(max_kept_bytes=self._kept_bytes)) for _ in range(2)
        )
        request.head = head
        self.unanswered.append(PassingExchange(start_s=now_s, request=request, answer=answer))

    def _take_body(self, way: _Way, message: PassingMessage, *, is_last: bool = False) -> bool:
        """Whether the message is complete; then what follows waits."""
        parser = way.parser
        if parser is None:
            return False
        try:
            if way.waiting:
                parser.receive_data(bytes(way.waiting))
                way.waiting.clear()
            elif is_last and parser.their_state is not h11.DONE:
                parser.receive_data(b"")
            while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Data):
                    message.body.feed(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    message.is_complete = True
                    way.waiting += parser.trailing_data[0]
                    way.parser = None
                    return True
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.ProtocolError as error:
            raise NotHttpError from error
        return False


def _read_head(way: _Way, parser: h11.Connection) -> _Head | None:
    """Read a whole head, or nothing as long as its end has not come. Raises `NotHttpError`."""
    found = _HEAD_END.search(way.waiting, 0, MAX_HEAD_BYTES)
    if found is None:
        if len(way.waiting) > MAX_HEAD_BYTES:
            raise NotHttpError
        return None
    head = bytes(way.waiting[: found.end()])
    if head.count(b"\n") > MAX_LINES or _BLANKS.search(head):
        raise NotHttpError
    try:
        parser.receive_data(head)
        event = parser.next_event()
    except h11.ProtocolError as error:
        raise NotHttpError from error
    if not isinstance(event, h11.Request | h11.Response | h11.InformationalResponse):
        raise NotHttpError
    if event.http_version >= b"2":
        raise NotHttpError
    if isinstance(event, h11.InformationalResponse):
        says_more = event.headers or event.reason not in (b"", b"Continue")
        if says_more and event.status_code != 101:  # no event would have it
            raise NotHttpError
    del way.waiting[: found.end()]
    way.parser = parser
    return event


def _client(method: bytes) -> h11.Connection:
    """Return a parser of answers, which must know the method; any may switch protocols."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    headers = [(b"host", b"x"), (b"connection", b"upgrade"), (b"upgrade", b"x")]
    parser.send(h11.Request(method=method, target=b"/", headers=headers))
    parser.send(h11.EndOfMessage())
    return parser

"""HTTP/1.1 between two cells, as it passes. Pure, and every byte is a cell's.

h11 reads heads, one whole head at a time, after its size, lines and blanks were checked: its
expression for a field takes the square of a run of blanks (h11 0.16: 15 s for 60 KB). What two
readers could read in two ways is no HTTP.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import h11

from belljar.capture import Capture
from belljar.network.gateway.http1 import (
    Framing,
    FramingError,
    Head,
    framing_of,
    head_problem,
    request_problem,
)

MAX_HEAD_BYTES: Final = 64 << 10  # Of an answer: with the interim ones before it.
MAX_LINES: Final = 130  # Of a head.
MAX_BLANKS: Final = 64  # In a row, of a head.
MAX_UNANSWERED: Final = 64  # Requests of one connection.
_EXCHANGE_BYTES: Final = 2 << 10  # In memory, without heads and bodies.
_HEAD_END: Final = b"\r\n\r\n"
_BLANKS: Final = re.compile(rb"[ \t]{%d}" % (MAX_BLANKS + 1))
_METHOD: Final = re.compile(rb"[A-Z-]{1,32}(?: |\Z)")


class NotHttpError(Exception):
    """What comes next is no HTTP/1.1, or beyond a bound."""


@dataclass(slots=True)
class PassingMessage:
    """A request or an answer; `body` keeps its first bytes, chunks put together.

    `raw_head`: as it came, with those of interim answers.
    """

    body: Capture
    head: Head | None = None
    raw_head: bytes = b""
    is_complete: bool = False

    @property
    def fields(self) -> Sequence[tuple[bytes, bytes]]:
        """The head's fields as they came."""
        return () if self.head is None else self.head.headers.raw_items()

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: of a body, and of a head, which the parser has twice more."""
        return self.body.total_bytes - self.body.dropped_bytes + 3 * len(self.raw_head)

    def release(self) -> None:
        """Forget all but counts, as it is on record."""
        self.head, self.raw_head = None, b""
        self.body.forget()


@dataclass(slots=True, kw_only=True)
class PassingExchange:
    """A request and its answer, as far as they came. The caller sets number and `recorded_bytes`.

    `recorded_bytes`: of the request's body, when it was recorded; None: it is not yet.
    """

    start_s: float
    request: PassingMessage
    answer: PassingMessage
    method: bytes = b""
    number: int = 0
    recorded_bytes: int | None = None


@dataclass(slots=True)
class _Way:
    """One direction: bytes of a head that is not whole, or the framing of an open body.

    `scanned_bytes`: of the head, without its end.
    """

    waiting: bytearray = field(default_factory=bytearray)
    framing: Framing | None = None
    scanned_bytes: int = 0


class Observer:
    """Follows one connection. `kept_bytes`: of each body."""

    def __init__(self, kept_bytes: int) -> None:
        self.unanswered: deque[PassingExchange] = deque()
        self._kept_bytes = kept_bytes
        self._requests, self._answers = _Way(), _Way()
        self._asks_to_switch = False

    def is_whole(self, *, sent: bool) -> bool:
        """Whether all bytes of this direction are of complete messages."""
        way = self._answers if sent else self._requests
        is_begun = sent and bool(self.unanswered) and self.unanswered[0].answer.head is not None
        return way.framing is None and not way.waiting and not is_begun

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        waiting = len(self._requests.waiting) + len(self._answers.waiting)
        return waiting + sum(
            _EXCHANGE_BYTES + each.request.held_bytes + each.answer.held_bytes
            for each in self.unanswered
        )

    def rest(self, *, sent: bool) -> bytes:
        """Bytes of this direction that are in no message."""
        way = self._answers if sent else self._requests
        return (b"" if way.framing is None else way.framing.open_line) + bytes(way.waiting)

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
            if way.framing is None and not self._begin(way, now_s):
                break
            exchange = self.unanswered[-1]
            if not _take_body(way, exchange.request):
                break
            done.append(exchange)
            self._asks_to_switch = exchange.method == b"CONNECT" or any(
                name.lower() == b"upgrade" for name, _ in exchange.request.fields
            )
        return done

    def _begin(self, way: _Way, now_s: float) -> bool:
        if not _METHOD.match(way.waiting) or len(self.unanswered) >= MAX_UNANSWERED:
            raise NotHttpError
        request, answer = (
            PassingMessage(body=Capture(max_kept_bytes=self._kept_bytes)) for _ in range(2)
        )
        if (head := _read_head(way, request, b"")) is None:
            return False
        method = head.method if isinstance(head, h11.Request) else b""
        self.unanswered.append(
            PassingExchange(start_s=now_s, request=request, answer=answer, method=method)
        )
        return True

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
            answer = exchange.answer
            if answer.is_complete:
                raise NotHttpError
            if way.framing is None and _read_head(way, answer, exchange.method) is None:
                break
            head = answer.head
            is_interim = isinstance(head, h11.InformationalResponse)
            is_switched = isinstance(head, h11.InformationalResponse | h11.Response) and (
                head.status_code == 101
                or (exchange.method == b"CONNECT" and 200 <= head.status_code < 300)
            )
            if is_switched:
                way.framing = None
            elif is_interim:
                way.framing = None
                continue
            elif not _take_body(way, answer, is_last=not data):
                break
            answer.is_complete = True
            if is_switched or not exchange.request.is_complete:
                raise NotHttpError
            done.append(self.unanswered.popleft())
            self._asks_to_switch &= bool(self.unanswered)
        if way.waiting and not self.unanswered:
            raise NotHttpError


def _take_body(way: _Way, message: PassingMessage, *, is_last: bool = False) -> bool:
    """Whether the message is complete; then what follows waits."""
    framing = way.framing
    if framing is None:
        return False
    try:
        framing.take(way.waiting, message.body.feed)
    except FramingError as error:
        raise NotHttpError from error
    if is_last and not framing.is_over and not framing.is_until_end:
        raise NotHttpError
    if is_last or framing.is_over:
        message.is_complete, way.framing = True, None
    return message.is_complete


def _read_head(way: _Way, message: PassingMessage, method: bytes) -> Head | None:
    """Read a whole head, or nothing as long as its end has not come. `method`: of what is answered.

    Raises `NotHttpError`; the head is still waiting.
    """
    found = way.waiting.find(_HEAD_END, max(0, way.scanned_bytes - 3))
    stop = len(way.waiting) if found < 0 else found + len(_HEAD_END)
    if len(message.raw_head) + stop > MAX_HEAD_BYTES:
        raise NotHttpError
    if head_problem(way.waiting, way.scanned_bytes, stop):
        raise NotHttpError
    if found < 0:
        way.scanned_bytes = stop
        return None
    raw = bytes(way.waiting[:stop])
    if raw.count(b"\n") > MAX_LINES or _BLANKS.search(raw):
        raise NotHttpError
    try:
        parser = _client(method) if method else h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
        parser.receive_data(raw)
        head = parser.next_event()
    except h11.ProtocolError as error:
        raise NotHttpError from error
    if not isinstance(head, h11.Request | h11.Response | h11.InformationalResponse):
        raise NotHttpError
    if request_problem(head, raw, MAX_LINES):
        raise NotHttpError
    del way.waiting[:stop]
    way.scanned_bytes = 0
    way.framing = framing_of(head, method)
    message.head = head
    message.raw_head += raw
    return head


def _client(method: bytes) -> h11.Connection:
    """Return a parser of answers, which must know the method; any may switch protocols."""
    parser = h11.Connection(h11.CLIENT, MAX_HEAD_BYTES)
    headers = [(b"host", b"x"), (b"connection", b"upgrade"), (b"upgrade", b"x")]
    parser.send(h11.Request(method=method, target=b"/", headers=headers))
    parser.send(h11.EndOfMessage())
    return parser

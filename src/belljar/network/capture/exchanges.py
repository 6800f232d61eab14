"""HTTP between cells, read from the packet record after the fact.

Pure; h11 parses the heads, and every byte is a guest's.

Requests between cells bypass the gateway: their record is made from the packets.
Cells decide what there is to parse; the bounds here limit what that costs.
h11 is given one head at a time, after its size, fields and blanks were checked.
Its expression for a field takes the square of a run of blanks (h11 0.16: 15 s for 60 KB).
Bodies are read here, so that a chunk of one byte costs little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import h11

from belljar.capture import Capture
from belljar.events import Body
from belljar.network.capture.conversations import Conversation

MAX_EXCHANGES: Final = 1000  # Of one conversation.
MAX_BODY_BYTES: Final = 64 << 10  # Kept of each body.
MAX_HEAD_BYTES: Final = 64 << 10
MAX_FIELDS: Final = 128  # Of a head.
MAX_BLANKS: Final = 64  # In a row, of a head.
MAX_STEPS: Final = 100_000
"""Of one conversation.

A chunk is a step, so is a line of a head or a trailer; a head is ten more.
"""
NO_HTTP: Final = "no HTTP/1.1 from here on"
NOT_FURTHER: Final = "not read further"
_HEAD_STEPS: Final = 10
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_FIRST_LINE: Final = re.compile(rb"[^\n]*HTTP/1\.")
_BLANKS: Final = re.compile(rb"[ \t]{%d}" % (MAX_BLANKS + 1))
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,20})[ \t]*(\r\n|;)")
_TRAILER: Final = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):([^\x00\r\n]*)\r?\n")
_LINE_END: Final = b"\r\n"
_SWITCHING: Final = 101
_NO_CONTENT: Final = frozenset({_SWITCHING, 204, 304})
_Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
_Head: TypeAlias = h11.Request | h11.Response | h11.InformationalResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its response; `status` 0: none. Trailers are the last headers."""

    method: str
    target: str
    host: str
    request_headers: _Fields
    request: Body
    status: int
    response_headers: _Fields = ()
    response: Body | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What each side sent after the last readable exchange.

    `reason`: `NO_HTTP`, or `NOT_FURTHER` and the bound. `steps`: taken by all of it.
    """

    sent: bytes
    received: bytes
    reason: str
    steps: int
    is_out_of_steps: bool


class _OverBoundError(Exception):
    """What comes next is over a bound, which it names."""


class _OutOfStepsError(_OverBoundError):
    """The bound is that of steps."""


class _Side:
    """What one side sent; `at`: how far it is read."""

    def __init__(self, sent: bytes) -> None:
        self.at = 0
        self._sent, self._view = sent, memoryview(sent)

    @property
    def is_read(self) -> bool:
        return self.at >= len(self._sent)

    def skip(self, text: bytes) -> bool:
        found = self._sent.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        found = pattern.match(self._sent, self.at)
        self.at = found.end() if found else self.at
        return found

    def take(self, max_bytes: int | None) -> memoryview:
        """So much, or what there is; None: all."""
        taken = self._view[self.at : None if max_bytes is None else self.at + max_bytes]
        self.at += len(taken)
        return taken

    def head(self) -> bytes:
        """All up to a blank line, or nothing when there is none. Raises `_OverBoundError`."""
        limit = self.at + MAX_HEAD_BYTES
        found = _HEAD_END.search(self._sent, self.at, limit)
        if found is None:
            if len(self._sent) > limit and _FIRST_LINE.match(self._sent, self.at, limit):
                raise _OverBoundError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            return b""
        head = self._sent[self.at : found.end()]
        if head.count(b"\n") > MAX_FIELDS + 2:
            raise _OverBoundError(f"a head of more than {MAX_FIELDS} fields")
        if _BLANKS.search(head):
            raise _OverBoundError(f"a head with more than {MAX_BLANKS} blanks in a row")
        self.at = found.end()
        return head


class _Message:
    """A request or a response, as it is read."""

    def __init__(self, max_kept_bytes: int) -> None:
        self.head: _Head | None = None
        self.trailer: list[tuple[bytes, bytes]] = []
        self.is_whole = False
        self._body = Capture(max_kept_bytes=max_kept_bytes)

    @property
    def total_bytes(self) -> int:
        return self._body.total_bytes

    def take(self, data: memoryview) -> None:
        self._body.feed(data)

    def body(self, name: str) -> Body:
        return self._body.body(name)

    def fields(self) -> _Fields:
        return () if self.head is None else (*self.head.headers.raw_items(), *self.trailer)

    def is_last(self) -> bool:
        """Whether nothing can follow it (RFC 9112, section 9.3)."""
        if self.head is None or not self.is_whole or self.head.http_version < b"1.1":
            return True
        connection = (value.lower() for name, value in self.head.headers if name == b"connection")
        return any(option.strip() == b"close" for item in connection for option in item.split(b","))


class _ConversationReader:
    """Reads one conversation. `sent_to`, `received_to`: how far it is reported."""

    def __init__(self, conversation: Conversation, max_steps: int, kept_body_bytes: int) -> None:
        self.found: list[Exchange] = []
        self.steps = self.sent_to = self.received_to = 0
        self._requests, self._responses = _Side(conversation.sent), _Side(conversation.received)
        self._max_steps, self._kept_body_bytes = max_steps, kept_body_bytes

    def read(self) -> None:
        """As far as it goes. Raises `_OverBoundError`, and `h11.ProtocolError`."""
        is_over = False
        while not is_over and not self._requests.is_read:
            if len(self.found) >= MAX_EXCHANGES:
                raise _OverBoundError(f"more than {MAX_EXCHANGES} requests")
            request = _Message(self._kept_body_bytes)
            request.head = head = self._head(self._requests, h11.Connection(h11.SERVER))
            if not isinstance(head, h11.Request):
                return
            request.is_whole = self._body(self._requests, request, has_end=True)
            if not request.is_whole:
                return
            self.sent_to = self._requests.at
            response = _Message(self._kept_body_bytes)
            try:
                self._response(head, response)
            finally:  # what was read of it is reported, whatever follows
                self.found.append(_exchange(head, request, response))
                if response.head is not None:
                    self.received_to = self._responses.at
            is_over = request.is_last() or response.is_last() or _switches(head, response.head)

    def _response(self, request: h11.Request, message: _Message) -> None:
        head = self._head(self._responses, _asking(request))
        while isinstance(head, h11.InformationalResponse) and head.status_code != _SWITCHING:
            head = self._head(self._responses, _asking(request))
        message.head = head
        if head is not None:
            has_no_body = request.method == b"HEAD" or _status(head) in _NO_CONTENT
            is_bare = has_no_body or _switches(request, head)
            message.is_whole = is_bare or self._body(self._responses, message, has_end=False)

    def _head(self, side: _Side, parser: h11.Connection) -> _Head | None:
        if not (text := side.head()):
            return None
        self._spend(_HEAD_STEPS + text.count(b"\n"))
        parser.receive_data(text)
        event = parser.next_event()
        return (
            event
            if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse)
            else None
        )

    def _body(self, side: _Side, message: _Message, *, has_end: bool) -> bool:
        """Whether the body is whole (RFC 9112 section 6.3).

        `has_end`: without a length it is empty.
        """
        fields = {} if message.head is None else dict(message.head.headers)
        if b"transfer-encoding" in fields:  # h11 lets nothing but `chunked` pass
            return self._chunks(side, message)
        length = fields.get(b"content-length", b"0" if has_end else None)
        message.take(side.take(None if length is None else int(length)))
        return length is None or message.total_bytes == int(length)

    def _chunks(self, side: _Side, message: _Message) -> bool:
        size = -1
        while size:
            self._spend(1)
            line = side.match(_CHUNK)
            if line is None:
                return False
            if line[2] != _LINE_END:
                raise _OverBoundError("a chunk with an extension")
            size = int(line[1], 16)
            data = side.take(size)
            message.take(data)
            if len(data) < size or (size and not side.skip(_LINE_END)):
                return False
        while not side.skip(_LINE_END):
            self._spend(1)
            if (field := side.match(_TRAILER)) is None:
                return False
            message.trailer.append((field[1], field[2].strip()))
        return True

    def _spend(self, steps: int) -> None:
        if self.steps + steps > self._max_steps:
            raise _OutOfStepsError("the parser's steps are used up")
        self.steps += steps


def exchanges(
    conversation: Conversation, max_steps: int = MAX_STEPS, kept_body_bytes: int = MAX_BODY_BYTES
) -> tuple[list[Exchange], Rest]:
    """The exchanges of one conversation, in order, and what could not be read. Total.

    `max_steps`, `kept_body_bytes`: at most `MAX_STEPS` and `MAX_BODY_BYTES`.
    """
    reader = _ConversationReader(
        conversation, min(max_steps, MAX_STEPS), min(kept_body_bytes, MAX_BODY_BYTES)
    )
    reason, is_out_of_steps = NO_HTTP, False
    try:
        reader.read()
    except _OverBoundError as exc:
        reason, is_out_of_steps = f"{NOT_FURTHER}: {exc}", isinstance(exc, _OutOfStepsError)
    except h11.ProtocolError:
        pass
    rest = Rest(
        sent=conversation.sent[reader.sent_to :],
        received=conversation.received[reader.received_to :],
        reason=reason,
        steps=reader.steps,
        is_out_of_steps=is_out_of_steps,
    )
    return reader.found, rest


def _asking(request: h11.Request) -> h11.Connection:
    """A parser of responses. It must know the request, or it would refuse an upgrade."""
    parser = h11.Connection(h11.CLIENT)
    headers = [(b"host", b"x"), (b"connection", b"upgrade"), (b"upgrade", b"x")]
    parser.send(h11.Request(method=request.method, target=b"/", headers=headers))
    return parser


def _status(head: _Head | None) -> int:
    return 0 if head is None or isinstance(head, h11.Request) else head.status_code


def _switches(request: h11.Request, response: _Head | None) -> bool:
    status = _status(response)
    return status == _SWITCHING or (request.method == b"CONNECT" and 200 <= status < 300)


def _exchange(head: h11.Request, request: _Message, response: _Message) -> Exchange:
    host = next((value for name, value in head.headers if name == b"host"), b"")
    return Exchange(
        method=head.method.decode("latin-1"),
        target=head.target.decode("latin-1"),
        host=host.decode("latin-1"),
        request_headers=request.fields(),
        request=request.body("request"),
        status=_status(response.head),
        response_headers=response.fields(),
        response=None if response.head is None else response.body("response"),
        is_cut=not response.is_whole,
    )

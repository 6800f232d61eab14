"""HTTP/1.1 to a model server in a cell, over a byte stream; the server is hostile.

Its answer is bounded in size and time, and must be JSON, or server-sent events of JSON. What breaks
that is a `ServerViolationError`; the caller ends the cell.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias

import anyio
import h11
from anyio.abc import ByteStream

from belljar.capture import Capture
from belljar.dataclass import dataclass
from belljar.units import format_size, printable

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[ByteStream]]
Header: TypeAlias = tuple[bytes, bytes]
MAX_HEAD_BYTES: Final = 64 << 10
MAX_LINE_BYTES: Final = 4 << 20
"""Of one server-sent event: a tool call comes whole in one."""
MAX_DEPTH: Final = 64
KEEP_BYTES: Final = 1 << 20
"""Of a request or an answer, in the record."""
_JSON: Final = b"application/json"
_EVENT_STREAM: Final = b"text/event-stream"
_SENT: Final = frozenset({b"content-type", b"accept"})
_DONE: Final = b"[DONE]"
_COUNTS: Final = ("prompt_tokens", "completion_tokens")


class ServerError(Exception):
    """What a server did wrong. Not a `CellError`: the cell's channel is sound."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class ServerViolationError(ServerError):
    """The server sent what no such server sends, or too much of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one request and its answer."""

    answer_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to the server."""

    method: str
    path: str
    headers: Sequence[Header] = ()
    body: bytes = b""


class Answer:
    """An answer whose head has come; its body is checked as it is read.

    Attributes:
        is_whole: all of it was read, and it is what it should be.
        kept: what was read, for the record.
        first_s: when its first part came, on the event loop's clock.
        tokens: `prompt_tokens` and `completion_tokens`, as the server says, or None.
    """

    def __init__(
        self,
        status: int,
        headers: Sequence[Header],
        receive: Callable[[], Awaitable[bytes | None]],
        bounds: Bounds,
    ) -> None:
        self.status = status
        self.tokens: dict[str, int | None] = dict.fromkeys(_COUNTS)
        self.is_whole = False
        self.kept = Capture("answer", max_kept_bytes=KEEP_BYTES)
        self.first_s = 0.0
        self._held = bytearray()
        self._is_done = False
        self._receive = receive
        self._bounds = bounds
        kinds = [value for name, value in headers if name.lower() == b"content-type"]
        kind = kinds[0].partition(b";")[0].strip().lower() if kinds else b""
        if len(kinds) != 1 or kind not in (_JSON, _EVENT_STREAM):
            shown = printable(kind, max_chars=60) or "nothing"
            raise ServerViolationError(f"the server's answer is {shown}, not JSON")
        self.is_stream = kind == _EVENT_STREAM
        # A client waits as long as it is told: minutes at most
        pauses = (each for each in headers if each[0].lower() == b"retry-after")
        short = (each for each in pauses if each[1].isdigit() and len(each[1]) < 4)
        self.headers = ((b"content-type", kind), *short)

    async def next_part(self) -> bytes | None:
        """More of the body, checked: all of it if it is JSON, whole lines if it is a stream.

        None at its end. Raises `ServerViolationError`; `BrokenOffError` when it is not whole.
        """
        while not self.is_whole:
            part = await self._receive()
            if part is None:
                return self._rest()
            self.first_s = self.first_s or anyio.current_time()
            self.kept.feed(part)
            if self.kept.total_bytes > self._bounds.answer_bytes:
                raise ServerViolationError(
                    f"an answer of more than {format_size(self._bounds.answer_bytes)}"
                )
            self._held += part
            # Only a part with a line's end is searched: a part may be one byte of a long line
            if self.is_stream and b"\n" in part:
                return self._lines()
            if self.is_stream and len(self._held) > MAX_LINE_BYTES:
                raise ServerViolationError(f"a line of more than {format_size(MAX_LINE_BYTES)}")
        return None

    def _lines(self) -> bytes:
        """The whole lines of what is held."""
        end = self._held.rfind(b"\n") + 1
        lines = bytes(self._held[:end])
        del self._held[:end]
        for document in events_of(lines):
            self._is_done = self._is_done or document is None
            self._take_usage(document)
        return lines

    def _rest(self) -> bytes | None:
        """What is left when the server has ended its answer."""
        rest = bytes(self._held)
        self._held.clear()
        if self.is_stream and (rest.strip() or not self._is_done):
            raise BrokenOffError("the server ended its answer in the middle")
        if not self.is_stream:
            self._take_usage(parse_json(rest))
        self.is_whole = True
        return rest or None

    def _take_usage(self, document: dict[str, Any] | None) -> None:
        usage = (document or {}).get("usage")
        if not isinstance(usage, dict):
            return
        for name in _COUNTS:
            count = usage.get(name)
            if type(count) is int and 0 <= count < 1 << 40:
                self.tokens[name] = count


class BrokenOffError(ServerError):
    """The server ended the connection before its answer was whole, or gave none."""


def parse_json(data: bytes) -> dict[str, Any]:
    """One JSON object. Raises `ServerViolationError`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ServerViolationError("the server's answer is not valid JSON") from None
    if not isinstance(value, dict) or _depth(value) > MAX_DEPTH:
        raise ServerViolationError("the server's answer is no JSON object of a usual shape")
    return value


def events_of(lines: bytes) -> Iterator[dict[str, Any] | None]:
    """The JSON documents of server-sent events, in whole lines; None for the end's mark.

    Raises `ServerViolationError`.
    """
    for line in lines.split(b"\n"):
        line = line.rstrip(b"\r")
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            continue
        if not line.startswith(b"data:"):
            raise ServerViolationError("a stream that is not made of server-sent events")
        data = line[len(b"data:") :].strip()
        yield None if data == _DONE else parse_json(data)


def _depth(value: Any) -> int:  # noqa: ANN401 - JSON
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner = (
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)
        )
        level = [each for values in inner for each in values]
    return depth


def _sent_headers(question: Question) -> list[Header]:
    """Host and length are ours. Clients say much of themselves and their host: it is left out."""
    kept = [(name, value) for name, value in question.headers if name.lower() in _SENT]
    length = str(len(question.body)).encode()
    return [(b"Host", b"model"), (b"Content-Length", length), (b"Connection", b"close"), *kept]


@asynccontextmanager
async def asked(connect: Connect, question: Question, bounds: Bounds) -> AsyncIterator[Answer]:
    """Send the question and give its answer, whose body is read inside the block.

    Leaving the block ends the connection, by which a server stops its work. No cancel scope is open
    across the yield: each wait has its own, until the request's one deadline.

    Raises `ServerViolationError`, `BrokenOffError`, `TimeoutError`, `OSError` and `CellError` of
    `connect`.
    """
    give_up = anyio.current_time() + bounds.timeout_s
    async with connect() as stream:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        request = h11.Request(
            method=question.method, target=question.path, headers=_sent_headers(question)
        )
        sent = [request, *([h11.Data(data=question.body)] if question.body else [])]
        data = b"".join(connection.send(each) or b"" for each in (*sent, h11.EndOfMessage()))

        has_ended = False

        async def next_event() -> Any:  # noqa: ANN401 - h11's events
            nonlocal has_ended
            try:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    with _until(give_up):
                        try:
                            connection.receive_data(await stream.receive())
                        except anyio.EndOfStream:
                            has_ended = True
                            connection.receive_data(b"")
            except h11.RemoteProtocolError as error:
                if has_ended:
                    raise BrokenOffError("the server ended its answer in the middle") from None
                why = printable(str(error), max_chars=100)
                raise ServerViolationError(f"the server's answer is not HTTP: {why}") from None
            return event

        with _until(give_up):
            try:
                await stream.send(data)
            except anyio.BrokenResourceError:
                raise BrokenOffError("the server took no request") from None
        head = await next_event()
        while isinstance(head, h11.InformationalResponse):
            head = await next_event()
        if not isinstance(head, h11.Response):
            raise BrokenOffError("the server gave no answer")

        async def receive() -> bytes | None:
            event = await next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                raise BrokenOffError("the server ended its answer in the middle")
            return None

        yield Answer(head.status_code, list(head.headers), receive, bounds)


@contextmanager
def _until(give_up: float) -> Iterator[None]:
    with anyio.fail_after(max(0.0, give_up - anyio.current_time())):
        yield

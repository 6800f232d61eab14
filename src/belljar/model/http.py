"""HTTP/1.1 to a model server in a cell, over byte streams; the server is hostile.

Its answer is bounded in size and time, and must be JSON, or server-sent events of JSON. Else it is
a `ServerViolationError`, and the caller ends the cell.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import anyio
import anyio.to_thread
import h11
from anyio.abc import ByteStream
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from belljar.capture import Capture
from belljar.dataclass import dataclass
from belljar.network.stand_ins.web import parse_json
from belljar.units import printable

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[ByteStream]]
# h11 takes time that grows with the square of a header's blanks: 0.3 s for this many
MAX_HEAD_BYTES: Final = 8 << 10
# Of one server-sent event: a tool call comes whole in one.
MAX_LINE_BYTES: Final = 4 << 20
# No API nests so deep, and a reader of JSON that recurses runs out of stack far beyond it.
MAX_DEPTH: Final = 64
# Of `,`, `[` and `{` in one document: each may be a value of a hundred bytes here.
MAX_MARKS: Final = 1_000_000
_INLINE_BYTES: Final = 64 << 10  # parsed at once
# Of a request or an answer, in the record.
KEEP_BYTES: Final = 1 << 20
_PATH: Final = re.compile(r"/v1(/[A-Za-z0-9_-]+)+", re.ASCII)
_JSON: Final = b"application/json"
_EVENT_STREAM: Final = b"text/event-stream"


class ServerError(Exception):
    """The server failed, but the channel is sound."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class ServerViolationError(ServerError):
    """The server sent invalid or too much data."""


class BrokenOffError(ServerError):
    """The connection ended before the whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to the server, which gets nothing else of a client.

    `may_be_empty`: its answer may have a status and nothing else.
    """

    method: str
    path: str
    body: bytes = b""
    may_be_empty: bool = False


def is_api(method: str, path: str) -> bool:
    """Return true for a request to the model. A server has more endpoints, and may resolve dots and
    double slashes to them.
    """
    return method in ("GET", "POST") and _PATH.fullmatch(path) is not None


_Count: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=1 << 40)]


class _Usage(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Count | dict[str, _Count | None] | None]
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None


class ServerAnswer:
    """An answer whose head has come; its body is checked as it is read. Made by `ask_server`.

    `is_whole`: all of it was read. `kept` is for the record, `tokens` are the server's word.
    """

    def __init__(self, stream: ByteStream, give_up: float, max_bytes: int) -> None:
        self.status, self.content_type = 0, b""
        self.tokens: dict[str, int | None] = {"prompt_tokens": None, "completion_tokens": None}
        self.is_whole = False
        self.kept = Capture("answer", max_kept_bytes=KEEP_BYTES)
        self._stream, self._give_up, self._max_bytes = stream, give_up, max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._received_bytes, self._allowed_bytes = 0, 2 * MAX_HEAD_BYTES
        self._held = bytearray()
        self._is_done = self._is_empty = False

    async def begin(self, question: Question) -> None:
        headers = [("Host", "model"), ("Content-Length", str(len(question.body)))]
        headers += [("Content-Type", "application/json"), ("Connection", "close")]
        request = h11.Request(method=question.method, target=question.path, headers=headers)
        events = (request, h11.Data(data=question.body), h11.EndOfMessage())
        data = b"".join(self._http.send(each) or b"" for each in events)
        with anyio.fail_after(max(0.0, self._give_up - anyio.current_time())):
            try:
                await self._stream.send(data)
            except anyio.BrokenResourceError:
                raise BrokenOffError("the server took no request") from None
        while isinstance(head := await self._next_event(), h11.InformationalResponse):
            pass  # they count as framing
        if not isinstance(head, h11.Response):
            raise BrokenOffError("the server gave no answer")
        self.status = head.status_code
        kinds = [value for name, value in head.headers if name == b"content-type"]
        self.content_type = kinds[0].partition(b";")[0].strip().lower() if kinds else b""
        self._is_empty = question.may_be_empty and (b"content-length", b"0") in head.headers
        is_known = len(kinds) == 1 and self.content_type in (_JSON, _EVENT_STREAM)
        if not is_known and not self._is_empty:
            shown = printable(self.content_type, max_chars=60) or "nothing"
            raise ServerViolationError(f"the server's answer is {shown}, not JSON")

    async def _next_event(self) -> Any:  # noqa: ANN401 - h11's events
        """Wait until the deadline. Raises `ServerViolationError` for more framing than content:
        one-byte chunks cost this process a hundred times the server's effort.
        """
        has_ended = False
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                with anyio.fail_after(max(0.0, self._give_up - anyio.current_time())):
                    try:
                        data = await self._stream.receive(MAX_HEAD_BYTES)
                    except anyio.EndOfStream:
                        data, has_ended = b"", True
                self._received_bytes += len(data)
                if self._received_bytes > self._allowed_bytes:
                    raise ServerViolationError("the server's answer is mostly framing")
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if has_ended:
                raise BrokenOffError("the server ended its answer in the middle") from None
            why = printable(str(error), max_chars=100)
            raise ServerViolationError(f"the server's answer is not HTTP: {why}") from None
        if isinstance(event, h11.Data):
            self._allowed_bytes += 2 * len(event.data)
        return event

    async def next_part(self) -> bytes | None:
        """Return more of the body, checked: all of it if it is JSON, whole lines if it is a stream.

        None is its end. Raises `ServerViolationError`; `BrokenOffError` when it is not whole.
        """
        is_stream = self.content_type == _EVENT_STREAM
        while not self.is_whole:
            event = await self._next_event()
            if isinstance(event, h11.EndOfMessage):
                rest = bytes(self._held)
                if is_stream and (rest.strip() or not self._is_done):
                    raise BrokenOffError("the server ended its answer in the middle")
                if not is_stream and not self._is_empty:
                    await self._take_json(rest)
                self.is_whole = True
                return rest or None
            if not isinstance(event, h11.Data):
                raise BrokenOffError("the server ended its answer in the middle")
            self.kept.feed(event.data)
            if self.kept.total_bytes > self._max_bytes:
                raise ServerViolationError("the server's answer is larger than it may be")
            self._held += event.data
            # Only a part with a line's end is searched: a part may be one byte of a long line
            if is_stream and b"\n" in event.data:
                lines, _, self._held = self._held.rpartition(b"\n")
                for line in lines.splitlines():  # a client takes "\r" for a line's end, too
                    if line.startswith(b"data:"):
                        data = bytes(line.removeprefix(b"data:").strip())
                        self._is_done |= data == b"[DONE]"
                        if data != b"[DONE]":
                            await self._take_json(data)
                    elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                        raise ServerViolationError(
                            "a stream that is not made of server-sent events"
                        )
                return bytes(lines + b"\n")
            if is_stream and len(self._held) > MAX_LINE_BYTES:
                raise ServerViolationError("one line of the server's answer is too long")
        return None

    async def _take_json(self, data: bytes) -> None:
        parse = partial(parse_json, data, MAX_DEPTH, max_commas=MAX_MARKS)
        try:
            is_large = len(data) > _INLINE_BYTES  # other samples go on meanwhile
            document = await anyio.to_thread.run_sync(parse) if is_large else parse()
        except ValueError as error:
            what = f"the server's answer is not JSON: {printable(str(error), max_chars=100)}"
            raise ServerViolationError(what) from None
        if not isinstance(document, dict):
            raise ServerViolationError("the server's answer is no JSON object")
        if document.get("usage") is not None:
            try:
                usage = _Usage.model_validate(document["usage"])
            except ValidationError as error:
                name = printable(".".join(map(str, error.errors()[0]["loc"])), max_chars=100)
                raise ServerViolationError(f"usage.{name} is no count of tokens") from None
            self.tokens |= usage.model_dump(include=set(self.tokens), exclude_unset=True)


@asynccontextmanager
async def ask_server(
    connect: Connect, question: Question, *, max_bytes: int, timeout_s: float
) -> AsyncIterator[ServerAnswer]:
    """Send the question and give its answer, whose body (of `max_bytes`) is read in the block.

    Leaving it ends the connection, by which a server stops its work. Raises `ServerViolationError`,
    `BrokenOffError`, `TimeoutError`, and as `connect`.
    """
    # No cancel scope is open across the yield: each wait has its own.
    give_up = anyio.current_time() + timeout_s
    async with connect() as stream:
        answer = ServerAnswer(stream, give_up, max_bytes)
        await answer.begin(question)
        yield answer

"""HTTP to a hostile model server: what passes, what is a violation, what is a broken connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from belljar.model.http import (
    MAX_HEAD_BYTES,
    MAX_LINE_BYTES,
    Answer,
    Bounds,
    BrokenOffError,
    Connect,
    Question,
    ServerViolationError,
    asked,
)

pytestmark = pytest.mark.anyio
BOUNDS = Bounds(answer_bytes=1 << 20, timeout_s=30)
QUESTION = Question(
    method="POST",
    path="/v1/chat/completions",
    headers=[
        (b"Authorization", b"Bearer none"),
        (b"X-Stainless-OS", b"Linux"),
        (b"Content-Type", b"application/json"),
    ],
    body=b'{"x":1}',
)


class ScriptedServer(ByteStream):
    """Sends its script, a part for each read, then ends its side, or is silent for ever."""

    def __init__(self, script: Iterable[bytes], *, is_silent: bool = False) -> None:
        self._script = filter(None, script)
        self._is_silent = is_silent
        self.received = b""
        self.is_closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The next part of the script."""
        await anyio.lowlevel.checkpoint()
        for part in self._script:
            return part
        if self._is_silent:
            await anyio.sleep_forever()
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        """Keep it."""
        self.received += item

    async def send_eof(self) -> None:
        """Nothing comes after a request."""

    async def aclose(self) -> None:
        """Note it."""
        self.is_closed = True


def to(server: ScriptedServer) -> Connect:
    """Connects to this server."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[ByteStream]:
        async with server:
            yield server

    return connect


def answer(body: bytes, kind: str = "application/json", *more: str) -> bytes:
    """A whole answer with a length."""
    head = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


def stream(*parts: bytes, end: bytes = b"0\r\n\r\n") -> list[bytes]:
    """A streamed answer in chunks."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), end]


async def whole(got: Answer) -> bytes:
    """All parts of the body."""
    parts = []
    while (part := await got.next_part()) is not None:
        parts.append(part)
    assert got.is_whole
    return b"".join(parts)


async def ask(
    script: Sequence[bytes], bounds: Bounds = BOUNDS, *, is_silent: bool = False
) -> tuple[Answer, bytes]:
    """The answer and its whole body."""
    async with asked(to(ScriptedServer(script, is_silent=is_silent)), QUESTION, bounds) as got:
        return got, await whole(got)


async def test_a_request_goes_out_whole_and_says_nothing_of_its_client() -> None:
    """Method, path, length, type and body are sent; no key, and nothing of this host."""
    server = ScriptedServer([answer(b"{}")])
    async with asked(to(server), QUESTION, BOUNDS) as got:
        assert await whole(got) == b"{}"
    head, _, body = server.received.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"content-length: 7" in head.lower()
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"host", b"content-length", b"connection", b"content-type"}
    assert body == b'{"x":1}'
    assert server.is_closed


async def test_an_answers_usage_is_read_from_it() -> None:
    """Counts that are no counts are left out."""
    got, _ = await ask([answer(b'{"usage":{"prompt_tokens":7,"completion_tokens":-1}}')])
    assert got.tokens == {"prompt_tokens": 7, "completion_tokens": None}


async def test_a_stream_passes_event_by_event_however_it_is_cut() -> None:
    """The same bytes, in whole lines, with the last event's usage."""
    text = b'data: {"a":1}\n\ndata: {"usage":{"completion_tokens":2}}\n\n: ping\ndata: [DONE]\n\n'
    got, body = await ask(stream(*(text[i : i + 5] for i in range(0, len(text), 5))))
    assert body == text
    assert got.tokens["completion_tokens"] == 2


VIOLATIONS = {
    "html": [answer(b"<html>", "text/html")],
    "no type": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"],
    "two types": [answer(b"{}", "application/json", "Content-Type: text/event-stream")],
    "not json": [answer(b"tokens, tokens")],
    "no object": [answer(b"[1]")],
    "deep": [answer(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}")],
    "very deep": [answer(b"[" * 100_000 + b"]" * 100_000)],
    "too much": [answer(b'{"a":"' + b"x" * (1 << 20) + b'"}')],
    "endless chunks": stream(*[b"data: {}\n\n" * 1000] * 200),
    "endless line": stream(*[b"x" * (1 << 20)] * 6),
    "other lines": stream(b"data: {}\n\nGET / HTTP/1.1\n\n"),
    "event not json": stream(b"data: tokens\n\n"),
    "garbage": [b"\x00\x01\x02 nonsense\r\n\r\n"],
    "endless head": [b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"y" * 1000 + b"\r\n"] * 100],
    "bad chunk": [stream()[0], b"zz\r\n"],
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_what_no_such_server_sends_is_a_violation(name: str) -> None:
    """Wrong types, no JSON, too deep, too long or no HTTP at all: never passed on."""
    bounds = Bounds(answer_bytes=MAX_LINE_BYTES + (2 << 20), timeout_s=30)
    with pytest.raises(ServerViolationError):
        await ask(VIOLATIONS[name], BOUNDS if name in ("too much", "endless chunks") else bounds)
    assert len(b"".join(VIOLATIONS["endless head"])) > MAX_HEAD_BYTES


BROKEN = {
    "nothing": [],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-"],
    "half a body": [answer(b'{"a": 1}')[:-3]],
    "half a stream": stream(b'data: {"a":1}\n\n', end=b""),
    "no end mark": stream(b'data: {"a":1}\n\n'),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_breaks_off_is_an_error_of_that_request(name: str) -> None:
    """Its answer is not whole, and never looks so."""
    with pytest.raises(BrokenOffError):
        await ask(BROKEN[name])


@pytest.mark.parametrize("script", [[], [b"HTTP/1.1 200 OK\r\n"], [stream()[0]]])
async def test_a_silent_server_is_given_up_at_the_deadline(script: list[bytes]) -> None:
    """One deadline for all of a request."""
    with pytest.raises(TimeoutError):
        await ask(script, Bounds(answer_bytes=1 << 20, timeout_s=0.05), is_silent=True)


async def test_of_the_servers_headers_only_two_are_passed_on() -> None:
    """The type that was checked, and a pause of minutes at most."""
    got, _ = await ask(
        [answer(b"{}", "application/json; charset=utf-8", "Retry-After: 30", "Set-Cookie: a=b")]
    )
    assert got.headers == ((b"content-type", b"application/json"), (b"retry-after", b"30"))
    got, _ = await ask([answer(b"{}", "application/json", "Retry-After: 86400")])
    assert got.headers == ((b"content-type", b"application/json"),)


async def test_a_line_that_comes_in_single_bytes_costs_no_more() -> None:
    """A server that sends a long line so makes nobody search it again and again."""
    text = b'data: {"a": "' + b"x" * 300_000 + b'"}\n\ndata: [DONE]\n\n'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    parts = (chunks[at : at + 65536] for at in range(0, len(chunks), 65536))
    with anyio.fail_after(30):
        _, body = await ask([stream()[0], *parts])
    assert body == text

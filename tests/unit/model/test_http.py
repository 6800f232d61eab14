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
    MAX_MARKS,
    BrokenOffError,
    Connect,
    Question,
    ServerAnswer,
    ServerViolationError,
    ask_server,
)

pytestmark = pytest.mark.anyio
MAX_BYTES = 1 << 20
QUESTION = Question(method="POST", path="/v1/chat/completions", body=b'{"x":1}')


class ScriptedServer(ByteStream):
    """Sends its script, a part for each read, then ends its side, or is silent for ever."""

    def __init__(self, script: Iterable[bytes], *, is_silent: bool = False) -> None:
        at = ((part, i) for part in script for i in range(0, len(part), 65536))
        self._script = (part[i : i + 65536] for part, i in at)
        self._is_silent = is_silent
        self.received = b""
        self.is_closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        for part in self._script:
            return part
        if self._is_silent:
            await anyio.sleep_forever()
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        self.received += item

    async def send_eof(self) -> None:
        """Nothing comes after a request."""

    async def aclose(self) -> None:
        self.is_closed = True


def to(server: ScriptedServer) -> Connect:
    @asynccontextmanager
    async def connect() -> AsyncIterator[ByteStream]:
        async with server:
            yield server

    return connect


def answer(body: bytes, kind: str = "application/json", *more: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


def stream(*parts: bytes, end: bytes = b"0\r\n\r\n") -> list[bytes]:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), end]


async def whole(got: ServerAnswer) -> bytes:
    parts = []
    while (part := await got.next_part()) is not None:
        parts.append(part)
    assert got.is_whole
    return b"".join(parts)


async def ask(script: Sequence[bytes], max_bytes: int = MAX_BYTES) -> tuple[ServerAnswer, bytes]:
    server = to(ScriptedServer(script))
    async with ask_server(server, QUESTION, max_bytes=max_bytes, timeout_s=30) as got:
        return got, await whole(got)


@pytest.mark.promise("2.8")
@pytest.mark.parametrize("count", ["-1", "1e999", "true", '"7"', "1099511627776"])
@pytest.mark.parametrize(
    "name", ["prompt_tokens", "completion_tokens", "total_tokens", "details", "reasoning_tokens"]
)
async def test_a_usage_that_is_no_count_is_a_violation(name: str, count: str) -> None:
    """A server can't end a sample's token limit, or its log, by what it says it used."""
    usage = f'{{"details": {{"{name}": {count}}}}}' if name == "reasoning_tokens" else ""
    body = f'{{"usage": {usage or f"""{{"{name}": {count}}}"""}}}'
    with pytest.raises(ServerViolationError):
        await ask([answer(body.encode())])
    with pytest.raises(ServerViolationError):
        await ask(stream(f"data: {body}\n\ndata: [DONE]\n\n".encode()))


VIOLATIONS = {
    "html": [answer(b"<html>", "text/html")],
    "no type": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"],
    "not json": [answer(b"tokens, tokens")],
    "deep": [answer(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}")],
    "many values": [answer(b'{"a":[' + b"0," * MAX_MARKS + b"0]}")],
    "too much": [answer(b'{"a":"' + b"x" * (2 << 20) + b'"}')],
    "endless chunks": stream(*[b"data: {}" + b" " * 90_000 + b"\n\n"] * 20),
    "endless line": stream(*[b"x" * (1 << 20)] * 6),
    "other lines": stream(b"data: {}\n\nGET / HTTP/1.1\n\n"),
    "lines within a comment": stream(b": x\rdata: tokens\n\n"),
    "event not json": stream(b"data: tokens\n\n"),
    "garbage": [b"\x00\x01\x02 nonsense\r\n\r\n"],
    "endless head": [b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"y" * 1000 + b"\r\n"] * 100],
    "bad chunk": [stream()[0], b"zz\r\n"],
    "a chunk a byte": [stream()[0], *[b"1\r\n:\r\n" * 10_000] * 30],
    "many fields": [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000],
}


@pytest.mark.promise("2.8")
@pytest.mark.parametrize("name", VIOLATIONS)
async def test_what_no_such_server_sends_is_a_violation(name: str) -> None:
    """Wrong types, no JSON, too deep, too long or no HTTP at all: never passed on."""
    is_of_size = name in ("too much", "endless chunks")
    with pytest.raises(ServerViolationError):
        await ask(VIOLATIONS[name], MAX_BYTES if is_of_size else MAX_LINE_BYTES + (2 << 20))
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


async def test_a_slow_drip_ends_at_the_deadline() -> None:
    """However often something comes."""

    class Dripping(ScriptedServer):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            await anyio.sleep(0.01)
            return await super().receive(max_bytes)

    server = Dripping([stream()[0], *[b"1\r\n:\r\n"] * 10_000])
    with anyio.fail_after(10), pytest.raises(TimeoutError):
        async with ask_server(to(server), QUESTION, max_bytes=MAX_BYTES, timeout_s=0.2) as got:
            await whole(got)


async def test_a_request_that_is_given_up_takes_its_stream_along() -> None:
    """By which the server stops its work."""
    server = ScriptedServer([stream()[0]], is_silent=True)
    with anyio.move_on_after(0.05):
        async with ask_server(to(server), QUESTION, max_bytes=MAX_BYTES, timeout_s=30) as got:
            await whole(got)
    assert server.is_closed

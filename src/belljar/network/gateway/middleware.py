"""Judges, bounds and records each request before a stand-in's answer leaves.

`network.http` is recorded when the body has come, or before the answer's first byte;
`network.http.answered` before its last one. A cut exchange is recorded as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from belljar.capture import Capture
from belljar.events import JsonValue, Kind
from belljar.network.decide import FlowVerdict, Refusal, RequestHead, split_target
from belljar.network.gateway.context import (
    App,
    ClientGoneError,
    Message,
    Receive,
    RefusedRequestError,
    Scope,
    Send,
)
from belljar.network.gateway.reporter import (
    MAX_RECORDED_URL_CHARS,
    head_of,
    printable_headers,
    printable_text,
)
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, since_ms
from belljar.network.gateway.websocket import WebSocket
from belljar.network.ipc import Item
from belljar.signals.observe import USUAL_METHODS
from belljar.signals.values import Channel

PEER: Final = "peer"  # `scope["state"]`'s `Peer`; a stand-in sees `cell` and `name` instead.
INCOMING: Final = "incoming"  # The request's `RawRequest`.
WEBSOCKET: Final = "websocket"  # The `WebSocket` that the request asks for, if it does.
_SWITCHING: Final = 101  # A stand-in's answer that accepts a WebSocket.
_STATUS: Final[Mapping[str, int]] = {
    Refusal.CONNECT: 405,
    Refusal.NO_HOST: 400,
    Refusal.HOST_IS_NO_NAME: 400,
    Refusal.TARGET_IS_NO_PATH: 400,
    Refusal.METHOD_NOT_TAKEN: 405,
}
_MISDIRECTED: Final = 421


@dataclass(slots=True)
class RawRequest:
    """A request as it came. `take_unread`: gives what came and the stand-in did not receive."""

    head: bytes
    fields: list[tuple[bytes, bytes]]
    take_unread: Callable[[], bytes] = bytes


class Middleware:
    """An ASGI application over all stand-ins."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange. Raises only what cancels it."""
        site = self._site
        peer: Peer = scope["state"][PEER]
        exchange = Exchange(site, peer, scope)
        if site.exchanges >= site.bounds.exchanges:
            site.hit("exchanges")
            try:
                await exchange.run(refuse(503), receive, send)
            finally:
                exchange.release()
            return
        site.exchanges += 1
        try:
            async with asyncio.timeout(
                site.bounds.request_timeout_s if scope["type"] == "http" else None
            ):
                await exchange.run(exchange.app(), receive, send)
        except TimeoutError:
            await exchange.fail("took too long", 504)
        except asyncio.CancelledError:
            exchange.cut(RANGE_ENDED if site.is_ending else "the connection ended")
            raise
        except ClientGoneError:
            exchange.cut(RANGE_ENDED if site.is_ending else "the connection ended")
        except Exception as error:  # noqa: BLE001
            # A stand-in's fault ends its exchange, not the gateway.
            await exchange.fail(f"the stand-in failed: {type(error).__name__}", 500)
        finally:
            site.exchanges -= 1
            exchange.release()


class Exchange:
    """One request and its answer."""

    def __init__(self, site: Site, peer: Peer, scope: Scope) -> None:
        self._site, self._peer, self._scope = site, peer, scope
        self._incoming: RawRequest = scope["state"][INCOMING]
        self._start = time.monotonic()
        self._number = next(site.numbers)
        query = scope["query_string"]
        self._request_head = RequestHead(
            method=scope.get("method", "GET"),
            target=scope["raw_path"] + (b"?" + query if query else b""),
            hosts=tuple(value for name, value in scope["headers"] if name == b"host"),
        )
        self.verdict: FlowVerdict = site.judge(peer, self._request_head)
        self._request = Capture(max_kept_bytes=site.bounds.kept_body_bytes)
        self._response = Capture(max_kept_bytes=site.bounds.kept_body_bytes)
        self._head: Message | None = None
        self._complete = False
        self._read_all = False
        self._held_bytes = 0
        self._recorded_bytes: int | None = None
        self._posted: asyncio.Future[Any] | None = None
        self._answered = False
        self._reason: str = self.verdict.reason
        self._refused: RefusedRequestError | None = None
        self._has_begun = False

    def app(self) -> App:
        """The stand-in, or a refusal."""
        if not self.verdict.allowed:
            return refuse(_STATUS.get(self.verdict.reason, _MISDIRECTED))
        found = self._site.apps.get(self.verdict.stand_in)
        return refuse(502) if found is None else found

    async def run(self, app: App, receive: Receive, send: Send) -> None:
        """Let `app` answer, on record."""
        self._upstream, self._downstream = receive, send
        # A stand-in sees no authority, one Host and a state of its own
        _, path, query = split_target(self._request_head.target)
        state = {"cell": self._peer.cell, "name": self.verdict.name}
        scope = {**self._scope, "query_string": query, "state": state, "extensions": {}}
        if self._scope["raw_path"] != path:
            scope |= {"raw_path": path, "path": unquote(path.decode("ascii"))}
        receive_body: Receive = self._receive_for_app
        if self._site.guard.scans(self.verdict.stand_in):
            scanned = await self._scanned()
            if scanned is None:
                return
            receive_body = replayed(scanned, self._receive_for_app)
        try:
            await app(scope, receive_body, self._send)
        except RefusedRequestError as refused:
            self._refused = refused
        if self._refused is not None:
            await self.fail(self._refused.reason, self._refused.status)
        if not self._answered:
            await self.fail("the stand-in gave no answer", 500)

    async def _scanned(self) -> list[Message] | None:
        """The whole request, once scanned; None: blocked."""
        messages = [await self._receive_for_app()]
        while messages[-1].get("more_body", False):
            messages.append(await self._receive_for_app())
        body = b"".join(message.get("body", b"") for message in messages)
        parts = [*self._head_parts(), ("body", body)]
        result = self._site.guard.scan(
            self.verdict.stand_in, Channel.HTTP, parts, self._common_fields()
        )
        if result.items:
            await self._record_request()
            await self._site.record(*result.items)
        if result.blocked:
            await self.fail("blocked by the guard", 403)
            return None
        return messages

    def _head_parts(self) -> list[tuple[str, bytes]]:
        head = b"\n".join(b"%s: %s" % pair for pair in self._scope["headers"])
        parts = [("url", self._request_head.target), ("header", head)]
        method = self._request_head.method
        return parts if method in USUAL_METHODS else [("method", method.encode()), *parts]

    async def fail(self, reason: str, status: int) -> None:
        """Answer `status`, or break off a begun answer."""
        self._reason = reason
        self._refused = None
        self._read_all = True
        if self._has_begun:
            await self._close(reason, status=None)
            return
        self._head = None
        self._response = Capture(max_kept_bytes=self._site.bounds.kept_body_bytes)
        await refuse(status)(self._scope, self._receive, self._send)

    def release(self) -> None:
        """Give back the body's share of the bound; an answer in no event is counted."""
        self._site.unreported += not self._answered
        self._site.bodies_bytes -= self._held_bytes
        self._held_bytes = 0

    def cut(self, reason: str) -> None:
        """Record an exchange that is over before its end."""
        if self._answered:
            return
        self._answered = True
        self._reason = reason
        self._request.feed(self._incoming.take_unread())
        if self._recorded_bytes is None:
            self._site.post(self._request_item)
        self._site.post(partial(self._answer_item, status=None))

    async def _receive_for_app(self) -> Message:
        """A refused request is a disconnect to the stand-in."""
        try:
            return await self._receive()
        except RefusedRequestError as refused:
            self._refused = refused
            self._read_all = True
            return {"type": "http.disconnect"}

    async def _receive(self) -> Message:
        if self._read_all:
            return await self._upstream()
        fields = self._scope["headers"]
        declared = next((value for name, value in fields if name == b"content-length"), b"")
        is_length = declared.isdigit() and len(declared) < 20
        if is_length and int(declared) > self._site.bounds.body_bytes:
            raise RefusedRequestError("the body is over the bound", 413)
        try:
            async with asyncio.timeout(self._site.bounds.body_wait_s):
                message = await self._upstream()
        except TimeoutError:
            raise RefusedRequestError("the body stalled", 408) from None
        if message["type"] == "http.request":
            data = message.get("body", b"")
            self._request.feed(data)
            bounds, total = self._site.bounds, self._request.total_bytes
            self._held_bytes += len(data)
            self._site.bodies_bytes += len(data)
            if self._site.bodies_bytes > bounds.bodies_bytes:
                self._site.hit("bodies_bytes")
                raise RefusedRequestError("the bodies of all requests are over the bound", 503)
            if total > (bounds.body_bytes if self.verdict.allowed else bounds.kept_body_bytes):
                raise RefusedRequestError("the body is over the bound", 413)
            late = time.monotonic() - self._start - bounds.body_wait_s
            if late > 0 and total < late * bounds.body_bytes_per_s:
                raise RefusedRequestError("the body is too slow", 408)
            if not message.get("more_body", False):
                self._complete = self._read_all = True
                if self._site.reporter.is_full:
                    await self._record_request()
                elif self._recorded_bytes is None:
                    # What is answered, or asked of the owner, follows in order and is waited for.
                    self._posted = self._site.post(self._request_item)
        else:
            self._read_all = True
            self.cut("the connection ended")
        return message

    async def _send(self, message: Message) -> None:
        if self._answered or self._refused is not None:
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        if message["type"] != "http.response.body" or self._head is None:
            return
        self._response.feed(message.get("body", b""))
        if message.get("more_body", False):
            if not self._has_begun:
                await self._record_request()
                if self._posted is not None:
                    await self._posted
        else:
            # Closing on unread bytes would reset: read the request first.
            await self._read_out()
            websocket = self._scope["state"].get(WEBSOCKET)
            if self._head["status"] == _SWITCHING and websocket is not None:
                await self._switch(websocket)
                return
            await self._close(self._reason, status=int(self._head["status"]))
        if not self._has_begun:
            self._has_begun = True
            await self._downstream(self._head)
        await self._downstream(message)

    async def _switch(self, websocket: WebSocket) -> None:
        await self._record_request()
        if self._posted is not None:
            await self._posted
        self._has_begun = True
        await websocket.run(self._site, self._common_fields())
        await self._close(self._reason, status=_SWITCHING)

    async def _read_out(self) -> None:
        try:
            while not self._read_all:
                await self._receive()
        except RefusedRequestError as refused:
            self._read_all = True
            self._reason = self._reason or refused.reason
            if self._head is not None:
                self._head = {
                    **self._head,
                    "headers": [*self._head.get("headers", ()), (b"connection", b"close")],
                }

    async def _record_request(self) -> None:
        if self._recorded_bytes is None:
            await self._site.record(self._request_item)

    async def _close(self, reason: str, *, status: int | None) -> None:
        if self._answered:
            return
        self._reason = reason
        self._answered = True
        first = [] if self._recorded_bytes is not None else [self._request_item]
        await self._site.record(*first, partial(self._answer_item, status=status))

    def _common_fields(self) -> dict[str, JsonValue]:
        return {
            **self._peer.connection_fields(),
            "exchange": self._number,
            "stand_in": self.verdict.stand_in,
        }

    def _request_item(self) -> Item:
        self._recorded_bytes = self._request.total_bytes
        incoming, version = self._incoming, self._scope["http_version"]
        authority, path, query = split_target(self._request_head.target)
        host = authority if authority is not None else b"".join(self._request_head.hosts[:1])
        named = host or f"{self._peer.address}:{self._peer.port}".encode()
        origin = b"%s://%s" % (self._scope["scheme"].encode(), named)
        url = printable_text(
            origin + path + (b"?" + query if query else b""), MAX_RECORDED_URL_CHARS
        )
        method = printable_text(self._request_head.method, 64)
        line = f"{method} {url[len(origin) :]} HTTP/{version}\r\n"
        bounds = self._site.bounds
        headers, bodies = head_of(line, incoming.fields, incoming.head, bounds.head_bytes)
        data: dict[str, JsonValue] = {
            **self._common_fields(),
            "method": method,
            "url": url,
            "verdict": "allowed" if self.verdict.allowed else "refused",
            "reason": self.verdict.reason,
            "bytes": self._request.total_bytes,
            "complete": self._complete,
            "version": version,
            "head_bytes": len(incoming.head),
            **headers,
        }
        return Item(Kind.NETWORK_HTTP, data, self._request.bodies("request") + bodies)

    def _answer_item(self, *, status: int | None) -> Item:
        headers, _ = printable_headers(() if self._head is None else self._head.get("headers", ()))
        went_on = (
            self._recorded_bytes is not None and self._request.total_bytes > self._recorded_bytes
        )
        data: dict[str, JsonValue] = {
            **self._common_fields(),
            "status": status
            or (int(self._head["status"]) if self._has_begun and self._head else 0),
            "bytes": self._response.total_bytes,
            "request_bytes": self._request.total_bytes,
            "duration_ms": since_ms(self._start),
            "headers": headers,
            **({"reason": self._reason} if self._reason else {}),
        }
        bodies = self._response.bodies("response") + (
            self._request.bodies("request") if went_on else ()
        )
        return Item(Kind.NETWORK_HTTP_ANSWERED, data, bodies)


def replayed(messages: list[Message], then: Receive) -> Receive:
    """What was received, then the rest."""
    waiting = deque(messages)

    async def receive() -> Message:
        return waiting.popleft() if waiting else await then()

    return receive


def refuse(status: int) -> App:
    """An application that answers a status and closes."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return app

"""One HTTP connection: requests one after the other, each answered by the application.

The application runs in the connection's own task, and its reads are the connection's: what it does
not ask for stays with the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import h11

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import (
    App,
    ClientGoneError,
    Message,
    RefusedRequestError,
    Scope,
)
from belljar.network.gateway.http1 import RequestParser, is_websocket
from belljar.network.gateway.middleware import INCOMING, PEER, WEBSOCKET, RawRequest
from belljar.network.gateway.pipe import Pipe
from belljar.network.gateway.reporter import printable_text
from belljar.network.gateway.site import (
    RANGE_ENDED,
    Peer,
    Site,
    postpone,
)
from belljar.network.gateway.websocket import WebSocket
from belljar.network.ipc import Item

# An application that does not read for so long is not told sooner that its client has left.
WATCH_AFTER_S: Final = 0.5
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})
# A larger piece of a body is written by itself: to join it with what frames it would copy it. For a
# smaller one that costs less than more system calls and packets.
_JOINED_BYTES: Final = 256 << 10


class HttpConnection:
    """One connection, until a side or a bound ends it."""

    def __init__(self, site: Site, peer: Peer, pipe: Pipe, app: App) -> None:
        self._site, self._pipe, self._app = site, pipe, app
        self.peer = peer
        self.parser = RequestParser(site.bounds)
        self.requests = 0
        self.has_ended = False
        self._held_bytes = 0
        self._leaving: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve requests, and close the pipe. Raises only what cancels it."""
        try:
            async with asyncio.timeout(self._site.bounds.connection_timeout_s):
                while await self._serve_one():
                    pass
                if self.parser.has_rest:
                    await self._refuse("bytes behind the last request", 0)
        except asyncio.CancelledError:
            if self.parser.held:
                self._site.post(partial(self._refusal, RANGE_ENDED, self._take_held()))
            raise
        except TimeoutError:
            if self.parser.held:
                await self._refuse("the request's head took too long", 0)
        except RefusedRequestError as refused:
            await self._refuse(refused.reason, refused.status)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001
            # Hostile bytes in libraries: whatever they raise ends this connection only.
            await self._refuse(f"protocol error: {type(error).__name__}", 0)
        finally:
            self._site.idle.discard(asyncio.current_task())
            self._release()
            await self._pipe.close()

    async def _serve_one(self) -> bool:
        """Serve the next request; return whether another one may follow."""
        found = await self._next_request()
        if found is None:
            return False
        request, head = found
        self.requests += 1
        incoming = RawRequest(head, request.headers.raw_items())
        scope = scope_of(request, self.peer, incoming)
        exchange = HttpExchange(self, request, incoming, self._site.bounds)
        try:
            if scope["type"] == "websocket":
                scope["state"][WEBSOCKET] = WebSocket(request, self.next_bytes, self.write)
        except RefusedRequestError:
            self.parser.held[:0] = head  # it has no exchange that would record it
            raise
        leaving = asyncio.timeout(None)
        try:
            async with leaving:
                self._leaving = leaving
                self._watch_later()
                await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            if not leaving.expired():
                raise
        finally:
            self._leaving = None
            await self._stop_watching()
        return exchange.may_go_on

    def _watch_later(self) -> None:
        """See later whether the client has left, if the application doesn't read until then."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WATCH_AFTER_S, self._start_watching)

    def _start_watching(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait_for_end())

    async def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _next_request(self) -> tuple[h11.Request, bytes] | None:
        """Return a request and its head; None when none has begun. A head has one deadline."""
        bounds, task, held = self._site.bounds, asyncio.current_task(), self.parser.held
        async with asyncio.timeout(
            bounds.head_timeout_s if held else bounds.idle_timeout_s
        ) as deadline:
            while (found := self.parser.next_request()) is None:
                if not held:
                    self._site.idle.add(task)
                data = await self.receive()
                self._site.idle.discard(task)
                if not data and held:
                    raise RefusedRequestError("the connection ended within a head", 400)
                if not data:
                    return None
                if not held:
                    postpone(deadline, bounds.head_timeout_s)
                held += data
                self._held_bytes += len(data)
                self._site.heads_bytes += len(data)
                if self._site.heads_bytes > bounds.heads_bytes:
                    self._site.hit("heads_bytes")
                    raise RefusedRequestError("the heads of all requests are over the bound", 503)
        self._release()
        return found

    def _release(self) -> None:
        self._site.heads_bytes -= self._held_bytes
        self._held_bytes = 0

    async def receive(self) -> bytes:
        """Return what comes next, or b"" at the end, which a cut is, too."""
        if self.has_ended:
            return b""
        await self._stop_watching()
        data = await self._read()
        if self._leaving is not None and data:
            self._watch_later()
        return data

    async def next_bytes(self) -> bytes:
        """Return what came and was not parsed, else as `receive`."""
        return self._take_held() or await self.receive()

    async def _read(self) -> bytes:
        data = b""
        with contextlib.suppress(OSError):
            data = await self._pipe.receive()
        self.has_ended = not data
        if self.has_ended and self._leaving is not None:
            # The application may record what it was; nobody waits for its answer.
            postpone(self._leaving, self._site.bounds.farewell_s)
        return data

    async def _wait_for_end(self) -> None:
        """Return when the client has left. What it sends meanwhile waits, within a bound."""
        while not self.has_ended and len(self.parser.held) < self._site.bounds.head_bytes:
            self.parser.held += await self._read()
        if not self.has_ended:
            await asyncio.Event().wait()

    async def wait_until_left(self) -> None:
        """Return when the client has left, for an application that asks."""
        await self._stop_watching()
        await self._wait_for_end()

    async def write(self, *pieces: bytes) -> None:
        """Return when the kernel has the pieces. Raises `ClientGoneError`."""
        if self._site.is_ending:
            raise ClientGoneError(RANGE_ENDED)
        try:
            for piece in pieces:
                await self._pipe.send(piece)
        except OSError as error:
            self.has_ended = True
            raise ClientGoneError("the connection ended") from error

    def _take_held(self) -> bytes:
        held = bytes(self.parser.held)
        self.parser.held.clear()
        return held

    async def _refuse(self, reason: str, status: int) -> None:
        """Record why the connection is ended, then answer, unless the status is 0."""
        self.peer.account.end_for(reason)
        await self._site.record(partial(self._refusal, reason, self._take_held()))
        if status:
            fields = (
                f"Date: {formatdate(usegmt=True)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            line = b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b""))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._site.bounds.idle_timeout_s):
                    await self.write(line + fields.encode())

    def _refusal(self, reason: str, received: bytes) -> Item:
        peer = self.peer
        place = f"{peer.sni or peer.address}:{peer.port}"
        data: dict[str, JsonValue] = {
            **peer.connection_fields(),
            "exchange": next(self._site.numbers),
            "stand_in": self._site.judge(peer).stand_in,
            "method": "",
            "url": printable_text(f"{'https' if peer.hello else 'http'}://{place}", 300),
            "verdict": "refused",
            "reason": printable_text(reason, 200),
            "bytes": 0,
        }
        kept_bytes = self._site.bounds.kept_body_bytes
        bodies = (body_of("request", received, kept_bytes),) if received else ()
        return Item(Kind.NETWORK_HTTP, data, bodies)


def scope_of(request: h11.Request, peer: Peer, incoming: RawRequest) -> Scope:
    """Return a request's ASGI scope."""
    path, _, query = request.target.partition(b"?")
    is_live = is_websocket(request)
    return {
        "type": "websocket" if is_live else "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.http_version.decode("ascii"),
        "method": request.method.decode("ascii"),
        "scheme": ("ws" if is_live else "http") + ("s" if peer.hello else ""),
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "client": (peer.cell, 0),
        "server": (peer.address, peer.port),
        "state": {PEER: peer, INCOMING: incoming},
        "extensions": {},
    }


class HttpExchange:
    """The application's side of one request."""

    def __init__(
        self, connection: HttpConnection, request: h11.Request, incoming: RawRequest, bounds: Bounds
    ) -> None:
        self._connection, self._bounds = connection, bounds
        self._parser, self._http = connection.parser, connection.parser.http
        self._is_bodiless = request.method == b"HEAD"
        self._is_received = False
        self._head = b""
        incoming.take_unread = self._take_unread

    async def receive(self) -> Message:
        """Return what has come of the body; behind its end, wait for the client to leave."""
        if self._is_received:
            await self._connection.wait_until_left()
            return {"type": "http.disconnect"}
        while (data := self._parser.next_data()) is None:
            if self._http.they_are_waiting_for_100_continue:
                # botocore takes an answer without a reason phrase for the last one.
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self._connection.write(self._http.send(go_on))
            if not (came := await self._connection.receive()):
                return {"type": "http.disconnect"}
            self._parser.held += came
        self._is_received = self._parser.is_body_over
        return {"type": "http.request", "body": data, "more_body": not self._is_received}

    def _take_unread(self) -> bytes:
        """Return what has come of the body and the application did not receive."""
        data = b""
        with contextlib.suppress(RefusedRequestError):
            data = self._parser.next_data() or b""
        return data

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Raises `ClientGoneError`, h11's `LocalProtocolError`."""
        if message["type"] == "http.response.start":
            self._start(int(message["status"]), list(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            data = bytes(message.get("body", b""))
            pieces, self._head = [self._head], b""
            if data and not self._is_bodiless:
                pieces += self._http.send_with_data_passthrough(h11.Data(data=data)) or ()
            if not message.get("more_body", False):
                pieces.append(self._http.send(h11.EndOfMessage()))
            pieces = [piece for piece in pieces if piece]
            is_small = len(data) <= _JOINED_BYTES
            await self._connection.write(*([b"".join(pieces)] if is_small else pieces))

    def _start(self, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        if not any(name.lower() == b"date" for name, _ in fields):
            fields.append((b"date", formatdate(usegmt=True).encode()))
        if self._connection.requests >= self._bounds.requests_per_connection:
            fields.append((b"connection", b"close"))
        self._is_bodiless |= status in _BODILESS
        reason = _PHRASES.get(status, b"")
        self._head = self._http.send(
            h11.Response(status_code=status, headers=fields, reason=reason)
        )

    @property
    def may_go_on(self) -> bool:
        """Return whether another request may follow on the connection."""
        is_done = self._http.our_state is h11.DONE and self._parser.is_body_over
        return is_done and not self._connection.has_ended

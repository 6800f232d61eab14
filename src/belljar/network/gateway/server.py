"""HTTP connections: one recorded exchange after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import h11

from belljar.capture import Capture, body_of
from belljar.events import JsonValue, Kind
from belljar.network.decide import FlowVerdict, Refusal, RequestHead, split_target
from belljar.network.gateway.http1 import RequestParser
from belljar.network.gateway.reporter import MAX_RECORDED_URL_CHARS, printable_headers
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, postpone, since_ms
from belljar.network.gateway.stream import Pipe
from belljar.network.ipc import Item
from belljar.network.stand_ins import web
from belljar.network.stand_ins.web import ClientGoneError, HttpAnswer, RefusedRequestError, Request
from belljar.signals.observe import USUAL_METHODS
from belljar.signals.values import Channel

LEFT: Final = "the connection ended"
# h11 adds none of its own.
PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})  # RFC 9110 sections 15.3.5 and 15.4.5
_STATUS: Final[Mapping[str, int]] = {
    **dict.fromkeys((Refusal.CONNECT, Refusal.METHOD_NOT_TAKEN), 405),
    **dict.fromkeys((Refusal.NO_HOST, Refusal.HOST_IS_NO_NAME, Refusal.TARGET_IS_NO_PATH), 400),
}
_MISDIRECTED: Final = 421  # Not for this name or place (RFC 9110 section 15.5.20).
_BODY_WAIT_S: Final = 20.0  # One that waits longer would keep one of the few exchanges.


class Exchange:
    def __init__(self, connection: HttpConnection, request: h11.Request, head: bytes) -> None:
        site = self._site = connection.site
        self._connection, self._peer = connection, connection.peer
        self._parser, self._http = connection.parser, connection.parser.http
        self._request, self._raw_head = request, head
        self._start = time.monotonic()
        self._judged = RequestHead(
            method=request.method.decode("ascii"),
            target=request.target,
            hosts=tuple(value for name, value in request.headers if name == b"host"),
        )
        self.verdict: FlowVerdict = site.judge(self._peer, self._judged)
        self._common = self._peer.connection_fields()
        self._common |= {"exchange": next(site.numbers), "stand_in": self.verdict.stand_in}
        self._refused: RefusedRequestError | None = None
        if not self.verdict.allowed:
            status = _STATUS.get(self.verdict.reason, _MISDIRECTED)
            self._refused = RefusedRequestError(self.verdict.reason, status)
        self._reason = ""
        self._received = Capture(max_kept_bytes=site.bounds.kept_body_bytes)
        self._posted: asyncio.Future[Any] | None = None
        self._sent = Capture(max_kept_bytes=site.bounds.kept_body_bytes)
        self._status, self._fields = 0, list[tuple[bytes, bytes]]()  # Of the answer.
        self._has_begun = self._is_over = False

    async def run(self) -> None:
        """Answer, on record; raise only what cancels it."""
        site = self._site
        site.exchanges += 1
        try:
            async with asyncio.timeout(site.bounds.request_timeout_s):
                await self._answer()
        except TimeoutError:
            await self._fail("took too long", 504 if self._parser.is_body_over else 408)
        except RefusedRequestError as refused:
            await self._fail(refused.reason, refused.status)
        except asyncio.CancelledError:
            self._cut()
            raise
        except ClientGoneError:
            self._cut()
        except Exception as error:  # noqa: BLE001
            # A stand-in's fault ends its exchange, not the gateway.
            await self._fail(f"the stand-in failed: {type(error).__name__}", 500)
        finally:
            site.exchanges -= 1
            site.unreported += not self._is_over
            site.bodies_bytes -= self._received.total_bytes

    async def _answer(self) -> None:
        site = self._site
        if site.exchanges > site.bounds.exchanges:
            site.hit("exchanges")
            raise RefusedRequestError("too many requests are being answered", 503)
        body = await self._read_body()
        await site.reporter.wait_for_room()
        # What is answered, or asked of the owner, follows in order and is waited for.
        self._posted = site.post(self._request_item)
        head = b"\n".join(b"%s: %s" % pair for pair in self._request.headers)
        parts = [("url", self._request.target), ("header", head), ("body", body)]
        # Any word can be a method, so a word that isn't one can carry data.
        if self._judged.method not in USUAL_METHODS:
            parts.append(("method", self._request.method))
        # What is refused anyway is looked at, too.
        if await site.blocks(self.verdict.stand_in, Channel.HTTP, parts, self._common):
            raise RefusedRequestError("blocked by the guard", 403)
        if self._refused is not None:
            raise self._refused
        app = site.apps.get(self.verdict.stand_in)
        if app is None:
            raise RefusedRequestError("the stand-in speaks no HTTP", 502)
        await self._reply(await app(self._seen(body)))

    async def _read_body(self) -> bytes:
        bounds = self._site.bounds
        over = self._refused or RefusedRequestError("the body is over the bound", 413)
        # Of a request that is refused anyway, what its event keeps.
        most = bounds.body_bytes if self._refused is None else bounds.kept_body_bytes
        body, declared = bytearray(), dict(self._request.headers).get(b"content-length", b"0")
        if int(declared) > bounds.body_bytes:
            raise over
        while not self._parser.is_body_over:
            if (data := self._parser.next_data()) is None:
                if self._http.they_are_waiting_for_100_continue:
                    # botocore takes an answer without a reason phrase for the last one.
                    go_on = h11.InformationalResponse(
                        status_code=100, headers=[], reason=b"Continue"
                    )
                    # The connection is on record before an answer on it.
                    await self._site.reporter.flush()
                    await self._connection.write(self._http.send(go_on))
                try:
                    async with asyncio.timeout(_BODY_WAIT_S):
                        data = await self._connection.receive()
                except TimeoutError:
                    raise RefusedRequestError("the body stalled", 408) from None
                if not data:
                    raise ClientGoneError(LEFT)
                self._parser.held += data
                continue
            await asyncio.sleep(0)  # chunks of a byte each cost the most: others have their turn
            self._received.feed(data)
            body += data
            self._site.bodies_bytes += len(data)
            if self._site.bodies_bytes > bounds.bodies_bytes:
                self._site.hit("bodies_bytes")
                raise RefusedRequestError("the bodies of all requests are over the bound", 503)
            if self._received.total_bytes > most:
                raise over
        return bytes(body)

    def _seen(self, body: bytes) -> Request:
        _, path, query = split_target(self._request.target)
        pairs = self._request.headers
        return Request(
            method=self._judged.method,
            path=unquote_to_bytes(path).decode("utf-8", "replace"),
            raw_path=path.decode("latin-1"),
            query_string=query.decode("latin-1"),
            headers=tuple((name.decode(), value.decode("latin-1")) for name, value in pairs),
            body=body,
            scheme=self._peer.scheme,
            port=self._peer.port,
            cell=self._peer.cell,
        )

    async def _reply(self, answer: HttpAnswer) -> None:
        self._status = answer.status
        self._fields = [
            (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in answer.headers
        ]
        names = {name for name, _ in self._fields}
        length = len(answer.body) if answer.stream is None else answer.length
        if length >= 0 and b"content-length" not in names and answer.status not in _BODILESS:
            self._fields.append((b"content-length", b"%d" % length))
        # RFC 9110 section 6.6.1: a server that has a clock sends it.
        if b"date" not in names:
            self._fields.append((b"date", formatdate(usegmt=True).encode()))
        is_bare = self._request.method == b"HEAD" or answer.status in _BODILESS
        if answer.stream is None:
            await self._send(b"" if is_bare else answer.body, is_last=True)
            return
        async with asyncio.timeout_at(answer.until), contextlib.aclosing(answer.stream()) as parts:
            if not is_bare:
                async for part in parts:
                    await self._send(part, is_last=False)
        await self._send(b"", is_last=True)

    async def _send(self, data: bytes, *, is_last: bool) -> None:
        """Send an answer's part, on record. Raises `ClientGoneError`."""
        self._sent.feed(data)
        if is_last:
            await self._site.record(*self._last_items())
        # The request is on record before the answer's first byte.
        elif not self._has_begun and self._posted is not None:
            await self._posted
        events = list[h11.Response | h11.Data | h11.EndOfMessage]()
        if not self._has_begun:
            reason = PHRASES.get(self._status, b"")
            events += [h11.Response(status_code=self._status, headers=self._fields, reason=reason)]
        events += [h11.Data(data=data)] if data else []
        events += [h11.EndOfMessage()] if is_last else []
        self._has_begun = True
        await self._connection.write(b"".join([self._http.send(event) for event in events]))

    async def _fail(self, reason: str, status: int) -> None:
        self._reason = reason
        if self._is_over:
            return
        if self._has_begun:
            # Too late for a status: the client sees an answer that ends too early.
            await self._site.record(*self._last_items())
            return
        self._sent = Capture(max_kept_bytes=self._site.bounds.kept_body_bytes)
        # On record by then. A client that doesn't read must not keep one of the few exchanges.
        with contextlib.suppress(ClientGoneError, TimeoutError):
            async with asyncio.timeout(self._site.bounds.idle_timeout_s):
                await self._reply(HttpAnswer(status=status, headers=(("connection", "close"),)))

    def _cut(self) -> None:
        if not self._is_over:
            self._reason = RANGE_ENDED if self._site.is_ending else LEFT
            self._status = self._status if self._has_begun else 0
        for make in self._last_items():
            self._site.post(make)

    def _last_items(self) -> list[Callable[[], Item]]:
        if self._is_over:
            return []
        self._is_over = True
        first = [] if self._posted is not None else [self._request_item]
        return [*first, self._answer_item]

    def _request_item(self) -> Item:
        version = self._request.http_version.decode("ascii")
        authority, path, query = split_target(self._request.target)
        host = authority if authority is not None else b"".join(self._judged.hosts[:1])
        named = host or f"{self._peer.address}:{self._peer.port}".encode()
        origin = b"%s://%s" % (self._peer.scheme.encode(), named)
        url = web.word(origin + path + (b"?" + query if query else b""), MAX_RECORDED_URL_CHARS)
        method = web.word(self._request.method, 64)
        pairs, dropped = printable_headers(self._request.headers.raw_items())
        fields = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        shown = f"{method} {url[len(origin) :]} HTTP/{version}\r\n{fields}\r\n"
        bodies = self._received.bodies("request")
        # As it came, unless the event shows all of it.
        if dropped or shown.encode() != self._raw_head:
            bodies += (body_of("head", self._raw_head, self._site.bounds.head_bytes),)
        data: dict[str, JsonValue] = {
            **self._common,
            "method": method,
            "url": url,
            "verdict": "allowed" if self.verdict.allowed else "refused",
            "reason": self.verdict.reason,
            "bytes": self._received.total_bytes,
            "complete": self._parser.is_body_over,
            "version": version,
            "headers": pairs,
        }
        return Item(Kind.NETWORK_HTTP, data, bodies)

    def _answer_item(self) -> Item:
        headers, _ = printable_headers(self._fields)
        data: dict[str, JsonValue] = {
            **self._common,
            "status": self._status,
            "bytes": self._sent.total_bytes,
            "request_bytes": self._received.total_bytes,
            "duration_ms": since_ms(self._start),
            "headers": headers,
            **({"reason": self._reason} if self._reason else {}),
        }
        return Item(Kind.NETWORK_HTTP_ANSWERED, data, self._sent.bodies("response"))


class HttpConnection:
    def __init__(self, site: Site, peer: Peer, pipe: Pipe) -> None:
        self.site, self._pipe = site, pipe
        self.peer = peer
        self.parser = RequestParser(site.bounds)
        self._has_ended = False

    async def run(self) -> None:
        """Serve requests, close the pipe, and raise only cancellation."""
        try:
            async with asyncio.timeout(self.site.bounds.connection_timeout_s):
                while (found := await self._next_request()) is not None:
                    await Exchange(self, *found).run()
                    is_done = self.parser.is_body_over and self.parser.http.our_state is h11.DONE
                    if not is_done or self._has_ended:
                        break
                if self.parser.held and self.parser.is_over:
                    await self._refuse("bytes behind the last request", 0)
        except asyncio.CancelledError:
            if self.parser.held:
                self.site.post(partial(self._refusal, RANGE_ENDED))
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
            self.site.idle.discard(asyncio.current_task())
            await self._pipe.close()

    async def _next_request(self) -> tuple[h11.Request, bytes] | None:
        bounds, task, held = self.site.bounds, asyncio.current_task(), self.parser.held
        async with asyncio.timeout(
            bounds.head_timeout_s if held else bounds.idle_timeout_s
        ) as deadline:
            while (found := self.parser.next_request()) is None:
                if not held:
                    self.site.idle.add(task)
                data = await self.receive()
                self.site.idle.discard(task)
                if not data and held:
                    raise RefusedRequestError("the connection ended within a head", 400)
                if not data:
                    return None
                if not held:
                    postpone(deadline, bounds.head_timeout_s)
                held += data
        return found

    async def receive(self) -> bytes:
        """Return b"" at the end or a cut."""
        data = b""
        with contextlib.suppress(OSError):
            data = await self._pipe.receive()
        self._has_ended = not data
        return data

    async def write(self, data: bytes) -> None:
        """Return when the kernel has it. Raises `ClientGoneError`."""
        if self.site.is_ending:
            raise ClientGoneError(RANGE_ENDED)
        try:
            await self._pipe.send(data)
        except OSError as error:
            self._has_ended = True
            raise ClientGoneError("the connection ended") from error

    async def _refuse(self, reason: str, status: int) -> None:
        """Record why it ends, then answer."""
        await self.site.record(partial(self._refusal, reason))
        if status:
            date = formatdate(usegmt=True).encode()
            head = b"HTTP/1.1 %d %b\r\nDate: %b\r\n" % (status, PHRASES.get(status, b""), date)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self.site.bounds.idle_timeout_s):
                    await self.write(head + b"Content-Length: 0\r\nConnection: close\r\n\r\n")

    def _refusal(self, reason: str) -> Item:
        peer, received = self.peer, bytes(self.parser.held)
        self.parser.held.clear()
        data: dict[str, JsonValue] = {
            **peer.connection_fields(),
            "exchange": next(self.site.numbers),
            "stand_in": self.site.judge(peer).stand_in,
            "method": "",
            "url": web.word(f"{peer.scheme}://{peer.sni or peer.address}:{peer.port}", 300),
            "verdict": "refused",
            "reason": web.word(reason),
            "bytes": 0,
        }
        kept_bytes = self.site.bounds.kept_body_bytes
        bodies = (body_of("request", received, kept_bytes),) if received else ()
        return Item(Kind.NETWORK_HTTP, data, bodies)

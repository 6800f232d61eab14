"""HTTP/1.1, HTTP/2 and WebSocket on one connection: hypercorn's protocols over our own pipes, with our bounds around them.

hypercorn's `H11Protocol` and `H2Protocol` are no public interface: its version is pinned, and another one is refused when this module is imported.
What they would let through is refused here: a cleartext upgrade to HTTP/2, CONNECT, two framings of one body, floods of frames, compressed WebSocket messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h11
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import ConnectionState

from belljar.errors import HostError
from belljar.events import JsonValue, Kind
from belljar.network.gateway.bounds import Bounds
from belljar.network.gateway.context import App, Receive, Scope, Send, kept_body
from belljar.network.gateway.fields import give_no_blank_back
from belljar.network.gateway.h2_guard import FloodGuard
from belljar.network.gateway.middleware import PEER, WEBSOCKET
from belljar.network.gateway.pipe import Pipe
from belljar.network.gateway.reporter import Item
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site
from belljar.network.gateway.tally import shown
from belljar.network.gateway.unread import keep_unread, make_room
from belljar.network.gateway.websocket import WebSocketRecord

HYPERCORN: Final = "0.18."
APP_QUEUE: Final = 2
"""Pieces of a body that wait for their application."""
_FRAMED: Final = (b"content-length", b"transfer-encoding")

if not importlib.metadata.version("hypercorn").startswith(HYPERCORN):
    raise HostError(
        f"hypercorn {importlib.metadata.version('hypercorn')} is installed; the gateway knows {HYPERCORN}x",
        where="network",
        mend="install belljar's extra `network` anew",
    )
give_no_blank_back()


class _Over(Exception):  # noqa: N818 - no error
    """The connection is."""


class RefusedRequest(Exception):  # noqa: N818 - a verdict on a request
    """A request that no stand-in gets to see."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def hypercorn_config(bounds: Bounds) -> Config:
    """hypercorn's settings. It says nothing of itself, and writes no log."""
    config = Config()
    config.h11_max_incomplete_size = bounds.head_bytes
    config.h2_max_concurrent_streams = bounds.h2_streams
    config.h2_max_header_list_size = bounds.head_bytes
    config.keep_alive_max_requests = bounds.requests_per_connection
    config.websocket_max_message_size = bounds.websocket_message_bytes
    config.max_app_queue_size = APP_QUEUE
    config.include_server_header = False
    config.accesslog = config.errorlog = None
    return config


class HttpConnection:
    """Serves one connection until either side, or a bound, ends it."""

    def __init__(self, site: Site, peer: Peer, pipe: Pipe, app: App, config: Config) -> None:
        self._site, self._peer, self._pipe = site, peer, pipe
        self._app, self._config = app, config
        self._protocol: Http1 | Http2
        self._reader: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._deadline: asyncio.Timeout | None = None
        self._in_head = False
        self._held_bytes = 0
        self._ended = False
        self._refused = False

    async def run(self) -> None:
        """Raises nothing but what cancels it. The pipe is closed."""
        bounds = self._site.bounds
        self._task = asyncio.current_task()
        self._rest()
        try:
            async with asyncio.timeout(bounds.connection_timeout_s), asyncio.timeout(None) as self._deadline:
                self._set_deadline(bounds.idle_timeout_s)
                await self._serve()
        except TimeoutError:
            if self._in_head:
                await self.on_refused("the request's head took too long")
        except Exception as error:  # noqa: BLE001 - hostile bytes in libraries: whatever they raise ends this connection only
            if not isinstance(_first(error), OSError):
                await self.on_refused(f"protocol error: {type(_first(error)).__name__}")
        finally:
            self._stir()
            self._release()
            await self._pipe.close()

    async def _serve(self) -> None:
        # Nothing is made for a connection that says nothing.
        first = b"" if self._pipe.alpn == "h2" else await self._receive()
        if not first and self._pipe.alpn != "h2":
            return
        try:
            async with TaskGroup(asyncio.get_running_loop()) as group:
                self._protocol = self._spoken(group)
                await self._protocol.initiate()
                self._reader = group._task_group.create_task(self._read(first))
                try:
                    await asyncio.wait([self._reader])
                finally:
                    self._tell_unfinished()
                for stream in self._protocol.open_streams:
                    keep_unread(stream)
                await self._protocol.handle(Closed())
                if self._answering and not self._site.is_ending:
                    # Who still answers may see that its client has gone, and put on record what that one wanted.
                    await asyncio.wait(self._answering, timeout=self._site.bounds.farewell_s)
                # Nobody is left to answer: what still runs for this connection is cancelled.
                raise _Over
        except* _Over:
            pass

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._answering.add(task)
        try:
            await self._app(scope, receive, send)
        finally:
            self._answering.discard(task)

    def _tell_unfinished(self) -> None:
        """A message, a head or a frame of which the rest does not come. What a connection's own end leaves of a head is told by its protocol."""
        self._protocol.break_off()
        if not self._site.is_ending:
            return
        self._protocol.abandon()
        if not self._refused and (unparsed := self._protocol.unparsed):
            self._refused = True
            self._site.tell(partial(self._refusal, RANGE_ENDED, unparsed))

    def _spoken(self, group: TaskGroup) -> Http1 | Http2:
        spoken = Http2 if self._pipe.alpn == "h2" else Http1
        is_tls = self._peer.hello
        there = (self._peer.address, self._peer.port)
        wrapped = ASGIWrapper(cast("Any", self._answer))
        context = WorkerContext(None)
        made = spoken(
            wrapped,
            self._config,
            context,
            group,
            ConnectionState({PEER: self._peer}),
            is_tls,
            (self._peer.cell, 0),
            there,
            self._say,
        )
        made.guard(self.on_refused, self._site.bounds)
        return made

    async def _read(self, first: bytes) -> None:
        data = first or await self._receive()
        while True:
            if not data and not self._protocol.awaits_head:
                return
            try:
                if data:
                    self._head_may_begin(len(data))
                await self._protocol.handle(RawData(data))
            except RefusedRequest as refused:
                await self._protocol.refuse(refused)
                return
            if not data or self._ended:
                return
            data = await self._receive()

    async def _receive(self) -> bytes:
        data = b""
        with contextlib.suppress(OSError):  # one that was cut has ended: what it had begun is told of either
            data = await self._pipe.receive()
        self._stir()
        return data

    def _rest(self) -> None:
        if self._task is not None:
            self._site.idle.add(self._task)

    def _stir(self) -> None:
        if self._task is not None:
            self._site.idle.discard(self._task)

    async def _say(self, event: Event) -> None:
        if self._site.is_ending:
            self._end()
        elif isinstance(event, RawData):
            with contextlib.suppress(OSError):
                await self._pipe.send(event.data)
                self._protocol.sent(len(event.data))
                return
            self._end()
        elif isinstance(event, Closed):
            self._end()
        elif isinstance(event, Updated):
            self._in_head = False
            self._release()
            if event.idle and not self._protocol.unparsed:
                self._rest()
            self._set_deadline(self._site.bounds.idle_timeout_s if event.idle else None)

    def _end(self) -> None:
        self._ended = True
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def _release(self) -> None:
        self._site.heads_bytes -= self._held_bytes
        self._held_bytes = 0

    def _head_may_begin(self, size: int) -> None:
        """The first bytes while no request is open: from now on the head has its own deadline, however often a byte comes."""
        is_idle = self._deadline is not None and self._deadline.when() is not None
        if is_idle and not self._in_head and self._protocol.awaits_head:
            self._in_head = True
            self._set_deadline(self._site.bounds.head_timeout_s)
        if self._in_head:
            self._held_bytes += size
            self._site.heads_bytes += size
            if self._site.heads_bytes > self._site.bounds.heads_bytes:
                self._site.hit("heads_bytes")
                raise RefusedRequest("the heads of all requests are over the bound", 503)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None and not self._deadline.expired():
            loop = asyncio.get_running_loop()
            self._deadline.reschedule(None if seconds is None else loop.time() + seconds)

    async def on_refused(self, reason: str) -> None:
        """Puts on record that this connection is ended for what it said. Once."""
        if self._refused:
            return
        self._refused = True
        await self._site.reporter.record(self._refusal(reason))

    def _refusal(self, reason: str, said: bytes = b"") -> Item:
        peer = self._peer
        data: dict[str, JsonValue] = {
            "cell": peer.cell,
            "exchange": next(self._site.numbers),
            "stand_in": self._site.judge(peer).stand_in,
            "method": "",
            "url": shown(f"{'https' if peer.hello else 'http'}://{peer.sni or peer.address}:{peer.port}", 300),
            "verdict": "refused",
            "reason": shown(reason, 200),
            "bytes": 0,
        }
        return Item(
            Kind.NETWORK_HTTP, data, (kept_body("request", said, self._site.bounds.kept_body_bytes),) if said else ()
        )


class Http1(H11Protocol):
    """HTTP/1.1, and WebSocket after its upgrade."""

    _on_refused: Callable[[str], Awaitable[None]]
    _bounds: Bounds

    def guard(self, on_refused: Callable[[str], Awaitable[None]], bounds: Bounds) -> None:
        """Says what to call before a refusal leaves."""
        self._on_refused, self._bounds = on_refused, bounds

    @property
    def awaits_head(self) -> bool:
        """Whether bytes that come now are those of a request's head."""
        return self.stream is None

    @property
    def unparsed(self) -> bytes:
        """What has come and is nothing whole."""
        return bytes(self.connection.trailing_data[0]) if isinstance(self.connection, h11.Connection) else b""

    def abandon(self) -> None:
        """Takes no more of an answer."""
        if self.stream is not None:
            self.stream.closed = True

    @property
    def open_streams(self) -> list[Any]:
        """Those of requests that are not answered."""
        return [self.stream]

    def break_off(self) -> None:
        """Has the beginning of a WebSocket's message put on record of which the rest does not come."""
        if isinstance(self.stream, WSStream) and self.stream.buffer.value is not None:
            record: WebSocketRecord | None = cast("Any", self.stream.scope)["state"].get(WEBSOCKET)
            if record is not None and (begun := self.stream.buffer.value.getvalue()):
                record.broke_off(begun)

    def sent(self, size: int) -> None:
        """Counts what was sent."""

    async def refuse(self, refused: RefusedRequest) -> None:
        """Answers a request that no stand-in gets to see."""
        await self._send_error_response(refused.status)

    async def handle(self, event: Event) -> None:
        """hypercorn's, and a WebSocket that is over its bound has ended, whatever more it sends."""
        await super().handle(event)
        buffer = getattr(self.stream, "buffer", None)
        if buffer is not None and buffer.length > buffer.max_length:
            await self.send(Closed())

    async def _close_stream(self) -> None:
        make_room(self.stream)
        await super()._close_stream()

    async def _send_error_response(self, status_code: int) -> None:
        await self._on_refused(str(sys.exception() or "malformed"))
        await super()._send_error_response(status_code)

    async def _check_protocol(self, event: h11.Request) -> None:
        names = [name for name, _ in event.headers]
        if event.http_version not in (b"1.0", b"1.1"):
            raise RefusedRequest("HTTP/2 without TLS", 505)
        if len(names) > self._bounds.headers:
            raise RefusedRequest("too many header fields", 431)
        # RFC 9112 section 6.1: ought to be handled as an error. Two parsers that disagree are request smuggling.
        if all(name in names for name in _FRAMED):
            raise RefusedRequest("both Content-Length and Transfer-Encoding")
        if any(name == b"upgrade" and b"h2c" in value.lower() for name, value in event.headers):
            raise RefusedRequest("an upgrade to HTTP/2 without TLS")

    async def _create_stream(self, request: h11.Request) -> None:
        """A message that was compressed is a bomb's chance, and the record's loss: no extension is agreed to."""
        plain = [(name, value) for name, value in request.headers if name != b"sec-websocket-extensions"]
        if len(plain) != len(request.headers):
            request = h11.Request(method=request.method, target=request.target, headers=plain)
        await super()._create_stream(request)


class Http2(H2Protocol):
    """HTTP/2, within TLS only."""

    def guard(self, on_refused: Callable[[str], Awaitable[None]], bounds: Bounds) -> None:
        """Says what to call before a refusal leaves."""
        self._on_refused, self._bounds = on_refused, bounds
        self._floods = FloodGuard(bounds)
        self.connection.decoder.max_header_list_size = bounds.head_bytes
        codes = h2.settings.SettingCodes
        offered = {
            code: self.connection.local_settings[code]
            for code in (codes.MAX_CONCURRENT_STREAMS, codes.MAX_HEADER_LIST_SIZE)
        }
        # Without ENABLE_CONNECT_PROTOCOL: no CONNECT of any kind is taken.
        self.connection.local_settings = h2.settings.Settings(client=False, initial_values=offered)

    awaits_head = False
    """Its frames are not a head's bytes alone; a head that never ends is ended with the idle connection."""

    def abandon(self) -> None:
        """Takes no more of any answer: nobody is left who would send it, for which each would wait."""
        for stream in self.streams.values():
            stream.closed = True

    @property
    def open_streams(self) -> list[Any]:
        """Those of requests that are not answered."""
        return list(self.streams.values())

    def break_off(self) -> None:
        """There is no WebSocket within it."""

    @property
    def unparsed(self) -> bytes:
        """What has come and is no whole frame, or no whole head."""
        frames = self.connection.incoming_buffer
        return b"".join(frame.serialize() for frame in frames._headers_buffer) + bytes(frames._data)

    def sent(self, size: int) -> None:
        """Counts what was sent."""
        self._floods.sent_bytes += size

    async def refuse(self, refused: RefusedRequest) -> None:
        """Ends the connection."""
        await self._go_away(str(refused), h2.errors.ErrorCodes.PROTOCOL_ERROR)

    async def handle(self, event: Event) -> None:
        """hypercorn's, behind the flood guard."""
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        if not event.data:
            return
        if problem := self._floods.feed(event.data):
            await self._go_away(problem, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        try:
            events = self.connection.receive_data(event.data)
        except h2.exceptions.ProtocolError as error:
            await self._on_refused(f"{type(error).__name__}: {error}")
            await self._flush()
            await self.send(Closed())
            return
        for item in events:
            await self._handle_one(item)

    async def _handle_one(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
            # Its answer was complete before its body: the window is given back, or the connection would starve.
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            await self._flush()
            return
        if isinstance(event, h2.events.StreamReset):
            keep_unread(self.streams.get(event.stream_id))
        await self._handle_events([event])
        if isinstance(event, h2.events.RequestReceived) and not self.streams:
            # hypercorn has just said that it is busy; the request was refused.
            await self.send(Updated(idle=True))

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        problem = _h2_problem(request.headers, self._bounds)
        if not problem:
            await super()._create_stream(request)
            return
        await self._on_refused(problem)
        self.connection.reset_stream(request.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
        await self._flush()

    async def _close_stream(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            make_room(stream)
            self._floods.requests += stream.state.name == "CLOSED"
        await super()._close_stream(stream_id)
        if stream is not None and stream.state.name == "CLOSED":
            # Who has answered doesn't read that this is the end either: a piece of the body that waited for room has it again.
            make_room(stream)

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        stream = self.connection.streams.get(stream_id)
        if stream_id in self.stream_buffers or stream is None or stream.closed:
            return
        # The answer is complete and the request is not: the client is told that no more of it is wanted (RFC 9113 section 8.1), or it would wait for room to send.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
        await self._flush()

    async def _go_away(self, reason: str, code: h2.errors.ErrorCodes) -> None:
        await self._on_refused(reason)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.close_connection(code)
        await self._flush()
        await self.send(Closed())


def _h2_problem(headers: Any, bounds: Bounds) -> str:  # noqa: ANN401 - h2 gives lists of pairs of bytes
    """Why a request's head is not taken; empty when it is."""
    fields: dict[bytes, bytes] = dict(headers)
    if fields.get(b":method", b"").upper() == b"CONNECT":
        return "CONNECT"
    if len(headers) > bounds.headers:
        return "too many header fields"
    if not all(0x20 < byte < 0x7F for byte in fields.get(b":path", b" ") + fields.get(b":method", b" ")):
        return "the path or the method has other bytes than printable ASCII"
    if fields.get(b":scheme") != b"https":
        return "the scheme is not https"
    return ""


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

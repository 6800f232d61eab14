"""HTTP/1.1 and WebSocket: hypercorn's protocols over our pipes, within our bounds.

hypercorn's protocols are no public interface: importing this refuses other versions.
Refused here: HTTP/2, also by an upgrade, CONNECT, two framings of one body,
compressed WebSocket messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from functools import partial
from typing import Any, Final, cast

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState

from belljar.capture import body_of
from belljar.errors import HostError
from belljar.events import JsonValue, Kind
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import App, Receive, Scope, Send
from belljar.network.gateway.http1 import Http1, RefusedRequest, keep_unread, patch_h11
from belljar.network.gateway.middleware import INCOMING, PEER
from belljar.network.gateway.pipe import Pipe
from belljar.network.gateway.reporter import printable_text
from belljar.network.gateway.site import (
    RANGE_ENDED,
    REMAINDER_EXCEEDED,
    Peer,
    Site,
    connection_item,
    first_error,
    postpone,
)
from belljar.network.ipc import Item

HYPERCORN: Final = "0.18."
APP_QUEUE: Final = 2  # Pieces of a body that wait for their application.

if not importlib.metadata.version("hypercorn").startswith(HYPERCORN):
    raise HostError(
        f"hypercorn {importlib.metadata.version('hypercorn')} is installed; the gateway needs "
        f"{HYPERCORN}x",
        where="network",
        hint="pip install --upgrade 'belljar-sandbox[network]'",
    )
patch_h11()


class _Over(Exception):  # noqa: N818 - no error
    """The connection is."""


def hypercorn_config(bounds: Bounds) -> Config:
    """hypercorn's settings: no banner, no log."""
    config = Config()
    config.h11_max_incomplete_size = bounds.head_bytes
    config.keep_alive_max_requests = bounds.requests_per_connection
    config.websocket_max_message_size = bounds.websocket_message_bytes
    config.max_app_queue_size = APP_QUEUE
    config.include_server_header = False
    config.accesslog = config.errorlog = None
    return config


class HttpConnection:
    """One connection, until a side or bound ends it."""

    def __init__(self, site: Site, peer: Peer, pipe: Pipe, app: App, config: Config) -> None:
        self._site, self._peer, self._pipe = site, peer, pipe
        self._app, self._config = app, config
        self._protocol: Http1
        self._arrived = b""
        peer.account.before_end(self._leave)
        self._reader: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._deadline: asyncio.Timeout | None = None
        self._in_head = False
        self._held_bytes = 0
        self._ended = False
        self._refused = False

    async def run(self) -> None:
        """Raises only what cancels it; closes the pipe."""
        bounds = self._site.bounds
        self._task = asyncio.current_task()
        self._site.idle.add(self._task)
        try:
            async with (
                asyncio.timeout(bounds.connection_timeout_s),
                asyncio.timeout(None) as self._deadline,
            ):
                postpone(self._deadline, bounds.idle_timeout_s)
                await self._serve()
        except TimeoutError:
            if self._in_head:
                await self.on_refused("the request's head took too long")
        except Exception as error:  # noqa: BLE001
            # Hostile bytes in libraries: whatever they raise ends this connection only.
            cause = first_error(error)
            if not isinstance(cause, OSError):
                await self.on_refused(f"protocol error: {type(cause).__name__}")
        finally:
            self._site.idle.discard(self._task)
            self._release()
            await self._pipe.close()

    def _leave(self) -> None:
        self._peer.account.remain("unparsed", self._arrived)
        self._arrived = b""

    async def _serve(self) -> None:
        # Nothing is made for a silent connection.
        first = self._arrived = await self._receive()
        if not first:
            return
        try:
            async with TaskGroup(asyncio.get_running_loop()) as group:
                self._protocol = self._spoken(group)
                self._peer.account.before_end(self._protocol.leave)
                await self._protocol.initiate()
                self._reader = group._task_group.create_task(self._read(first))
                try:
                    await asyncio.wait([self._reader])
                finally:
                    self._protocol.record_unfinished_message()
                    if self._site.is_ending:
                        self._abandon()
                for stream in self._protocol.open_streams:
                    keep_unread(stream)
                await self._protocol.handle(Closed())
                if self._answering and not self._site.is_ending:
                    # A stand-in that still answers may see that its client has gone, and record
                    # the request.
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
            scope["state"][INCOMING].leave()

    def _abandon(self) -> None:
        self._protocol.abandon()
        if not self._refused and (unparsed := self._protocol.take_unclaimed()):
            self._refused = True
            self._site.post(partial(self._refusal, RANGE_ENDED, unparsed))

    def _spoken(self, group: TaskGroup) -> Http1:
        is_tls = self._peer.hello
        there = (self._peer.address, self._peer.port)
        wrapped = ASGIWrapper(cast("Any", self._answer))
        context = WorkerContext(None)
        made = Http1(
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
        made.guard(self.on_refused, self._site.bounds, self._peer.account)
        return made

    async def _read(self, first: bytes) -> None:
        data = first or await self._receive()
        while True:
            if not data and not self._protocol.awaits_head:
                return
            self._arrived = data
            try:
                if data:
                    self._count_head(len(data))
                self._arrived = b""
                await self._protocol.handle(RawData(data))
                account = self._peer.account
                if account.is_over and not self._ended:
                    raise RefusedRequest(REMAINDER_EXCEEDED)
                if account.is_part_due:
                    await self._site.record(partial(connection_item, self._peer, closed=False))
            except RefusedRequest as refused:
                await self._protocol.refuse(refused)
                return
            if not data or self._ended:
                return
            data = await self._receive()

    async def _receive(self) -> bytes:
        data = b""
        # A cut is an end: what had begun is recorded either way
        with contextlib.suppress(OSError):
            data = await self._pipe.receive()
        self._site.idle.discard(self._task)
        return data

    async def _say(self, event: Event) -> None:
        if self._site.is_ending:
            self._end()
        elif isinstance(event, RawData):
            with contextlib.suppress(OSError):
                await self._pipe.send(event.data)
                return
            self._end()
        elif isinstance(event, Closed):
            self._end()
        elif isinstance(event, Updated):
            self._in_head = False
            self._release()
            if event.idle and not self._protocol.has_unparsed:
                self._site.idle.add(self._task)
            postpone(self._deadline, self._site.bounds.idle_timeout_s if event.idle else None)

    def _end(self) -> None:
        self._ended = True
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def _release(self) -> None:
        self._site.heads_bytes -= self._held_bytes
        self._held_bytes = 0

    def _count_head(self, size: int) -> None:
        """A head's deadline counts from its first byte."""
        is_idle = self._deadline is not None and self._deadline.when() is not None
        if is_idle and not self._in_head and self._protocol.awaits_head:
            self._in_head = True
            postpone(self._deadline, self._site.bounds.head_timeout_s)
        if self._in_head:
            self._held_bytes += size
            self._site.heads_bytes += size
            if self._site.heads_bytes > self._site.bounds.heads_bytes:
                self._site.hit("heads_bytes")
                raise RefusedRequest("the heads of all requests are over the bound", 503)

    async def on_refused(self, reason: str) -> None:
        """Record once why this connection is ended."""
        if self._refused:
            return
        self._refused = True
        self._peer.account.end_for(reason)
        received, self._arrived = self._arrived, b""
        if hasattr(self, "_protocol"):
            received = self._protocol.take_refused() + received
        await self._site.record(partial(self._refusal, reason, received))

    def _refusal(self, reason: str, received: bytes) -> Item:
        peer = self._peer
        data: dict[str, JsonValue] = {
            **peer.connection_fields(),
            "exchange": next(self._site.numbers),
            "stand_in": self._site.judge(peer).stand_in,
            "method": "",
            "url": printable_text(
                f"{'https' if peer.hello else 'http'}://{peer.sni or peer.address}:{peer.port}", 300
            ),
            "verdict": "refused",
            "reason": printable_text(reason, 200),
            "bytes": 0,
        }
        peer.account.record(len(received))
        kept_bytes = self._site.bounds.kept_body_bytes
        bodies = (body_of("request", received, kept_bytes),) if received else ()
        return Item(Kind.NETWORK_HTTP, data, bodies)

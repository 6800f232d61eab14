"""A gateway's listeners, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from belljar.events import Body, JsonValue, Kind
from belljar.network import stand_ins
from belljar.network.decide import CATCH_ALL, ENCRYPTED, UPSTREAM
from belljar.network.gateway import stream
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.dns import DnsServer
from belljar.network.gateway.reporter import Reporter, TooManyRequestsError, die_without_memory
from belljar.network.gateway.server import HttpConnection
from belljar.network.gateway.site import Guard, Peer, Site, connection_item
from belljar.network.gateway.tls import Authority, Terminator
from belljar.network.gateway.upstream import UpstreamApp
from belljar.network.ipc import READY, Item
from belljar.network.stand_ins.web import StandInContext
from belljar.plan.network import StandInPlan

SETTLE_SHARE: Final = 0.25  # Of the time for the end: the most that what has arrived may take.
SETTLE_TURNS: Final = 16  # Of the loop, from bytes in a socket to an event of them.
# For descriptors or memory to become free: accepting at once would fail again.
_PAUSE_S: Final = 0.05
CANCEL_BATCH: Final = 64  # Connections between two looks at the time.
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# No later accept can succeed.
_DEAD_LISTENER: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
Handler = Callable[[socket.socket, Peer], Awaitable[None]]
Make = Callable[[str, StandInContext], Any]  # `stand_ins.make`


def serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serve to the end; exit with 0, 70 without an owner, 1 after a failure."""
    loop = asyncio.get_event_loop_policy().get_event_loop()
    loop.run_until_complete(run(config, listeners, events))
    os._exit(1)


async def run(
    config: GatewayConfig, listeners: Listeners, events: socket.socket, make: Make = stand_ins.make
) -> None:
    asyncio.get_running_loop().set_exception_handler(_handle_exception)
    reporter = Reporter(events, config.bounds)
    reporter.start()
    upstreams = frozenset(plan.id for plan in config.stand_ins if plan.kind == UPSTREAM)
    site = Site(
        layout=config.layout,
        stand_ins=config.stand_ins,
        bounds=config.bounds,
        reporter=reporter,
        guard=Guard(config.guard, upstreams),
    )
    plans = [plan for plan in config.stand_ins if not plan.is_target]
    if config.layout.catch_all is not None:
        plans.append(StandInPlan(id=CATCH_ALL, kind="catch_all", names=(), ports=()))
    for plan in plans:
        if plan.kind == UPSTREAM:
            site.apps[plan.id] = UpstreamApp(plan, site, config.authorities)
        elif plan.kind in stand_ins.STREAM_KINDS:
            site.streams[plan.id] = make(plan.kind, _context_of(plan, site))
        else:
            site.apps[plan.id] = make(plan.kind, _context_of(plan, site))
    authority = Authority(config.scratch, dt.datetime.now(dt.UTC), config.bounds.leaf_certificates)
    async with asyncio.TaskGroup() as group:
        front = Front(site, Terminator(site, authority), group)
        front.listen(listeners)
        await reporter.record(Item(READY, {"certificate": authority.certificate.decode()}))
        await reporter.end_requested.wait()
        await front.end()
        os._exit(0)


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        die_without_memory()
    loop.default_exception_handler(context)


class Front:
    def __init__(self, site: Site, terminator: Terminator, group: asyncio.TaskGroup) -> None:
        self._site, self._terminator, self._group = site, terminator, group
        self._open: Counter[str] = Counter()
        self._of_cell: Counter[str] = Counter()
        self._connections: set[asyncio.Task[Any] | None] = set()

    def listen(self, listeners: Listeners) -> None:
        DnsServer(self._site, self._group).listen(listeners["dns_udp"])
        for name, listener in listeners.items():
            kind, handler = "connections", self._serve
            if name == "sink":
                handler = partial(stream.sink, self._site)
            elif name == "cells":
                kind = "cell_connections"
                handler = stream.Proxy(self._site, listeners["dialled"]).serve
            elif not name.isdecimal():
                continue
            self._group.create_task(self._accept(listener, kind, handler))

    async def _accept(self, listener: socket.socket, kind: str, handler: Handler) -> None:
        """Accept for ever; a dead listener raises `OSError`."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
        # Its connections have it too: else an urgent byte is taken out of the stream, and in no
        # read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        while True:
            try:
                sock, source = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _DEAD_LISTENER:
                    raise
                if error.errno in _TRANSIENT:
                    self._site.hit("connections")
                    await asyncio.sleep(_PAUSE_S)
                continue
            bounds, address = self._site.bounds, source[0]
            is_full = self._open[kind] >= getattr(bounds, kind)
            if is_full or self._of_cell[address] >= bounds.connections_per_cell:
                self._site.hit(kind if is_full else "connections_per_cell")
                stream.reset(sock)
                continue
            self._open[kind] += 1
            self._of_cell[address] += 1
            self._group.create_task(self._one(sock, source, kind, handler))

    async def _one(
        self, sock: socket.socket, source: tuple[str, int], kind: str, handler: Handler
    ) -> None:
        address, task = source[0], asyncio.current_task()
        cell, number = self._site.cells.get(address, ""), next(self._site.connections)
        peer = Peer(cell=cell, source_port=source[1], number=number, address="", port=0)
        self._connections.add(task)
        try:
            sock.setblocking(False)  # noqa: FBT003 - the library's signature
            # Answers are written whole: to wait for more would only delay their ends.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialled, port = sock.getsockname()
            peer = replace(peer, address=dialled, port=port)
            try:
                await self._site.reporter.wait_for_room()
            finally:  # in order, so on record before anything that is answered
                self._site.post(partial(connection_item, peer))
            await handler(sock, peer)
        except OSError:
            pass
        except asyncio.CancelledError:
            stream.reset(sock)
            raise
        except Exception as error:  # noqa: BLE001
            # A fault that one connection can cause ends that connection, on record.
            stream.reset(sock)
            reason = f"the gateway failed: {type(error).__name__}"
            await self._site.record(
                lambda: Item(Kind.NETWORK_STREAM, stream.stream_data(peer, "", "refused", reason))
            )
        finally:
            self._connections.discard(task)
            sock.close()
            self._open[kind] -= 1
            self._of_cell[address] -= 1
            if not self._of_cell[address]:
                del self._of_cell[address]

    async def end(self) -> None:
        """Settle, cut, record, and report the end in time."""
        reporter, loop = self._site.reporter, asyncio.get_running_loop()
        until = loop.time() + reporter.end_within_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(reporter.end_within_s * SETTLE_SHARE):
                before = -1
                while before != reporter.posted:  # until the sockets bring nothing more
                    before = reporter.posted
                    await reporter.flush()
                    for _ in range(SETTLE_TURNS):
                        await asyncio.sleep(0)
        self._site.is_ending = True
        self._site.post_limits()
        connections = [task for task in self._connections if task and task not in self._site.idle]
        for at in range(0, len(connections), CANCEL_BATCH):
            if loop.time() >= until:
                break
            for task in connections[at : at + CANCEL_BATCH]:
                task.cancel()
            await asyncio.sleep(0)
        if connections:
            await asyncio.wait(connections, timeout=max(0.0, until - loop.time()))
        unended = sum(not task.done() for task in connections)
        await reporter.end(unended + self._site.unreported, until)

    async def _serve(self, sock: socket.socket, peer: Peer) -> None:
        verdict = self._site.judge(peer)
        if not verdict.allowed:
            data = stream.stream_data(peer, verdict.stand_in, "refused", verdict.reason)
            await self._site.record(Item(Kind.NETWORK_STREAM, data))
            stream.reset(sock)
        elif verdict.protocol not in ENCRYPTED:
            await self._speak(stream.TcpPipe(sock), peer)
        elif self._open["tls_connections"] >= self._site.bounds.tls_connections:
            self._site.hit("tls_connections")
            stream.reset(sock)
        else:
            self._open["tls_connections"] += 1
            try:
                pipe = stream.TcpPipe(sock)
                shaken = await self._terminator.handshake(pipe, peer)
                if shaken is None:
                    await pipe.close()
                else:
                    await self._speak(*shaken)
            finally:
                self._open["tls_connections"] -= 1

    async def _speak(self, pipe: stream.Pipe, peer: Peer) -> None:
        stand_in = self._site.judge(peer).stand_in
        app = self._site.streams.get(stand_in)
        if app is not None:
            await stream.RecordedStream(self._site, peer, pipe, stand_in).run(app)
        else:
            await HttpConnection(self._site, peer, pipe).run()


def _context_of(plan: StandInPlan, site: Site) -> StandInContext:
    async def record(data: Mapping[str, JsonValue], *bodies: Body) -> None:
        await site.record(lambda: Item(Kind.NETWORK_ATTEMPT, {"stand_in": plan.id, **data}, bodies))

    async def ask(body: bytes) -> bytes:
        try:
            return bytes(await site.reporter.ask("chat", body))
        except TooManyRequestsError:
            site.hit("questions")
            raise

    return StandInContext(
        id=plan.id,
        names=plan.names,
        settings=plan.settings,
        files=plan.directory or Path("/nonexistent"),
        clock=time.time,
        random=os.urandom,
        record=record,
        ask=ask,
    )

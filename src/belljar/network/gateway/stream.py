"""Connections to stand-ins, the sink and between cells, unbuffered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network import ipc
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, postpone, since_ms
from belljar.network.ipc import Item
from belljar.network.stand_ins.web import ClientStream, RefusedRequestError, StreamApp, word
from belljar.signals.values import Channel

PIECE_BYTES: Final = 64 << 10
LINGER_S: Final = 1.0  # A client that sends on for longer, or more, gets a reset.
LINGER_BYTES: Final = 256 << 10


class Pipe(ClientStream, Protocol):
    async def close(self) -> None:
        """End it by its protocol; never raise."""
        ...


class TcpPipe:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def receive(self, max_bytes: int = PIECE_BYTES) -> bytes:
        """Return bytes; none are lost when cancelled."""
        await asyncio.sleep(0)  # others have a turn, however much waits here
        loop, fd = asyncio.get_running_loop(), self.sock.fileno()
        while True:
            try:
                # Not the loop's `sock_recv`, which loses bytes where its caller is cancelled.
                return self.sock.recv(max_bytes)
            except BlockingIOError:
                ready = asyncio.Event()
                loop.add_reader(fd, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(fd)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def close(self) -> None:
        """Half-close, and read on for a second."""
        if is_cancelled():
            reset(self.sock)
            return
        with contextlib.suppress(OSError, TimeoutError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                left = LINGER_BYTES
                while left > 0 and (data := await self.receive()):
                    left -= len(data)
        self.sock.close()


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # On, with no time: the kernel drops what is unsent, and sends a RST (socket(7)).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class TlsPipe:
    """TLS over a pipe; needs `handshake` first."""

    def __init__(
        self, inner: Pipe, context: ssl.SSLContext, *, server_name: str | None = None
    ) -> None:
        self._inner = inner
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.engine = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        self._handshake_bytes = bytearray()
        self._sending = asyncio.Lock()

    async def handshake(self, before_send: Callable[[], Awaitable[None]], max_bytes: int) -> None:
        """Await `before_send` before each send. Raises `ssl.SSLError`, `OSError`."""
        received, is_done = 0, False
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.engine.do_handshake()
                is_done = True
            await before_send()
            await self._flush()
            if is_done:
                return
            if received > max_bytes:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "handshake over the bound")
            # What a client sends right behind its handshake comes with it, and does not count.
            data = await self._inner.receive()
            if not data:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "closed within the handshake")
            received += len(data)
            self._handshake_bytes += data
            self._in.write(data)

    async def send_last(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._flush()

    def take_handshake_bytes(self) -> bytes:
        heard = bytes(self._handshake_bytes)
        self._handshake_bytes.clear()
        return heard

    async def receive(self) -> bytes:
        """Return bytes; HTTP's framing decides an end, not close_notify."""
        while True:
            try:
                return self.engine.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.receive()
                if not data:
                    return b""
                self._in.write(data)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def send(self, data: bytes) -> None:
        step = 2 * PIECE_BYTES  # so that a piece of the usual size goes with its framing
        for at in range(0, len(data), step):
            self.engine.write(data[at : at + step])
            await self._flush()

    async def close(self) -> None:
        if not is_cancelled():
            # It asks for the peer's close_notify, which nothing here waits for.
            with contextlib.suppress(ssl.SSLError, OSError, ValueError):
                self.engine.unwrap()
            await self.send_last()
        await self._inner.close()

    async def _flush(self) -> None:
        if self._out.pending:
            # Two senders at once could change the order of OpenSSL's records.
            async with self._sending:
                if data := self._out.read():
                    await self._inner.send(data)


class StreamRecord:
    def __init__(self, peer: Peer, stand_in: str, kept_bytes: int, **more: JsonValue) -> None:
        self._fields = {**stream_data(peer, stand_in, "allowed", ""), **more}
        self._start = time.monotonic()
        self.received = Capture(max_kept_bytes=kept_bytes)
        self.sent = Capture(max_kept_bytes=kept_bytes)

    @property
    def total_bytes(self) -> int:
        return self.received.total_bytes + self.sent.total_bytes

    def item(self, phase: str, bodies: tuple[Body, ...] = (), **more: JsonValue) -> Item:
        data = {**self._fields, "bytes": self.received.total_bytes, "phase": phase, **more}
        return Item(Kind.NETWORK_STREAM, data, bodies)

    def closed(self, reason: str, **more: JsonValue) -> Item:
        bodies = self.received.bodies("received") + self.sent.bodies("sent")
        more |= {"sent_bytes": self.sent.total_bytes, "duration_ms": since_ms(self._start)}
        return self.item("closed", bodies, reason=word(reason), **more)


class RecordedStream(StreamRecord):
    def __init__(self, site: Site, peer: Peer, pipe: Pipe, stand_in: str) -> None:
        super().__init__(peer, stand_in, site.bounds.kept_stream_bytes)
        self._site, self._peer, self._pipe, self._stand_in = site, peer, pipe, stand_in
        self._idle: asyncio.Timeout | None = None

    async def run(self, app: StreamApp) -> None:
        bounds = self._site.bounds
        reason = ""
        try:
            await self._site.record(partial(self.item, "opened"))
            async with (
                asyncio.timeout(bounds.connection_timeout_s),
                asyncio.timeout(bounds.idle_timeout_s) as self._idle,
            ):
                await app(self, self._peer.cell)
        except asyncio.CancelledError:
            reason = RANGE_ENDED
            raise
        except Exception as error:  # noqa: BLE001
            # A stand-in's fault, or the peer's, ends its connection, not the gateway.
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            reason = f"the stand-in failed: {type(first).__name__}"
            if isinstance(first, RefusedRequestError):
                reason = first.reason
            elif isinstance(first, TimeoutError):
                reason = "idle for too long"
            elif isinstance(first, OSError):
                reason = "cut"
        finally:
            self._site.guard.end(self._stand_in, self._peer.connection_fields())
            self._site.post(partial(self.closed, reason))
            await self._pipe.close()

    async def receive(self) -> bytes:
        data = await self._pipe.receive()
        self._count(self.received, data)
        fields = self._peer.connection_fields()
        if data and await self._site.blocks(
            self._stand_in, Channel.STREAM, [("data", data)], fields
        ):
            raise RefusedRequestError("blocked by the guard", 403)
        return data

    async def send(self, data: bytes) -> None:
        self._count(self.sent, data)
        await self._pipe.send(data)

    def _count(self, capture: Capture, data: bytes) -> None:
        capture.feed(data)
        if self.total_bytes > self._site.bounds.stream_bytes:
            raise RefusedRequestError("more bytes than a stream may have", 413)
        postpone(self._idle, self._site.bounds.idle_timeout_s)


async def sink(site: Site, sock: socket.socket, peer: Peer) -> None:
    """Record an unanswered connection's first bytes; send nothing."""
    record, pipe = StreamRecord(peer, "", site.bounds.kept_stream_bytes), TcpPipe(sock)
    try:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(site.bounds.sink_wait_s):
                while not record.received.dropped_bytes and (data := await pipe.receive()):
                    record.received.feed(data)
    finally:
        reason = f"sink; {RANGE_ENDED}" if is_cancelled() else "sink"
        # Posted, as a cancelled task can't wait for the record.
        told = site.post(partial(record.closed, reason))
    await told
    await pipe.close()


def stream_data(peer: Peer, stand_in: str, verdict: str, reason: str) -> dict[str, JsonValue]:
    data: dict[str, JsonValue] = {"stand_in": stand_in, "verdict": verdict, "bytes": 0}
    return {**peer.place_fields(), **data, "reason": word(reason)}


JOIN_TIMEOUT_S: Final = 10.0  # The client has gone before its connection was there.


class Proxy:
    """Joins the halves of connections between cells."""

    def __init__(self, site: Site, dialled: socket.socket) -> None:
        self._site, self._from_supervisor = site, dialled
        self._halves: dict[Any, tuple[socket.socket, asyncio.TimerHandle]] = {}
        self._joined = 0
        self._targets = {
            site.layout.cell(plan.id).address: plan.id for plan in site.stand_ins if plan.is_target
        }
        dialled.setblocking(False)  # noqa: FBT003 - the library's signature
        asyncio.get_running_loop().add_reader(dialled.fileno(), self._take_halves)

    def _take_halves(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                message, fds = ipc.receive(self._from_supervisor)
            except BlockingIOError:
                return
            except (ipc.ClosedError, OSError):  # the owner sees its end
                loop.remove_reader(self._from_supervisor.fileno())
                return
            except ValueError:  # no room for a descriptor: the client gets a reset
                self._site.hit("cell_connections")
                continue
            half = socket.socket(fileno=fds[0])
            half.setblocking(False)  # noqa: FBT003 - the library's signature
            key = (*message["client"], *message["target"])
            self._drop(key)
            if len(self._halves) + self._joined >= self._site.bounds.cell_connections:
                self._site.hit("cell_connections")
                reset(half)
            else:
                self._halves[key] = half, loop.call_later(JOIN_TIMEOUT_S, self._drop, key)

    def _drop(self, key: tuple[object, ...]) -> None:
        if (found := self._halves.pop(key, None)) is not None:
            reset(found[0])
            found[1].cancel()

    async def serve(self, sock: socket.socket, peer: Peer) -> None:
        self._take_halves()  # the connection may have been accepted first
        found = self._halves.pop((*sock.getpeername(), peer.address, peer.port), None)
        if found is None:
            reset(sock)
            return
        half, timer = found
        timer.cancel()
        self._joined += 1
        try:
            target = self._targets.get(peer.address, "")
            await _Relay(self._site, peer, target, TcpPipe(sock), TcpPipe(half)).run()
        finally:
            self._joined -= 1
            half.close()


class _Relay:
    def __init__(self, site: Site, peer: Peer, target: str, client: TcpPipe, half: TcpPipe) -> None:
        self._site, self._client, self._half = site, client, half
        # The pieces hold the bytes: the last event counts them, with their digest.
        self._record = StreamRecord(peer, target, 0, between_cells=True)
        self._room = dict.fromkeys(("received", "sent"), site.bounds.kept_between_bytes)
        self._not_kept = Counter[str]()  # Bytes of the pieces that have no event.

    async def run(self) -> None:
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(self._client, self._half, "received"))
                group.create_task(self._pump(self._half, self._client, "sent"))
        except asyncio.CancelledError:
            reason = RANGE_ENDED
            raise
        except BaseExceptionGroup as group_error:
            if group_error.split(OSError)[1] is not None:
                raise
            reason = "cut"
            reset(self._half.sock)
        finally:
            if self._record.total_bytes:
                not_kept = {f"{way}_not_kept_bytes": self._not_kept[way] for way in self._room}
                self._site.post(partial(self._record.closed, reason, **not_kept))
            if reason == "cut":
                reset(self._client.sock)

    async def _pump(self, source: TcpPipe, to: TcpPipe, way: str) -> None:
        capture = self._record.received if way == "received" else self._record.sent
        while data := await source.receive():
            # Recorded at once: when the range ends, no byte is between a socket and an event.
            items, record = list[Item](), self._record
            if not record.total_bytes:
                items.append(record.item("opened", direction=way))
            capture.feed(data)
            if self._room[way] > 0:
                body = body_of(way, data, self._room[way])
                items.append(record.item("data", (body,), bytes=len(data), direction=way))
            else:
                self._not_kept[way] += len(data)
            self._room[way] -= len(data)
            if items:
                await self._site.record(*items)
            await to.send(data)
        with contextlib.suppress(OSError):
            to.sock.shutdown(socket.SHUT_WR)

"""Raw connections: to stream stand-ins, the sink, and between cells.

Both ways to a stand-in are bounded, and the first bytes of each are on record. Between cells each
byte is on record before it goes on. The supervisor has dialled the target cell by the time that a
cell's connection is accepted, and hands over that half. The bytes are recorded piece by piece,
whatever they say, as far as `kept_between_bytes` of each direction go; what follows is counted and
in the digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from functools import partial
from typing import Final, TypeAlias

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network import ipc
from belljar.network.gateway.context import StreamApp
from belljar.network.gateway.pipe import Pipe, TcpPipe, reset
from belljar.network.gateway.reporter import printable_text
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, postpone, since_ms
from belljar.network.ipc import Item
from belljar.signals.values import Channel


class StreamRecord:
    """The record of one raw connection: its begin, and its end with both ways' bytes."""

    def __init__(self, peer: Peer, stand_in: str, kept_bytes: int, **more: JsonValue) -> None:
        """`kept_bytes`: of each way, in the last event. `more`: further fields of all events."""
        self._fields = {**stream_data(peer, stand_in, "allowed", ""), **more}
        self._start = time.monotonic()
        self.received = Capture(max_kept_bytes=kept_bytes)
        self.sent = Capture(max_kept_bytes=kept_bytes)

    def item(self, phase: str, bodies: tuple[Body, ...] = (), **more: JsonValue) -> Item:
        """Return an event as of now."""
        data = {**self._fields, "bytes": self.received.total_bytes, "phase": phase, **more}
        return Item(Kind.NETWORK_STREAM, data, bodies)

    def closed(self, reason: str, **more: JsonValue) -> Item:
        """Return the last event."""
        bodies = self.received.bodies("received") + self.sent.bodies("sent")
        return self.item(
            "closed",
            bodies,
            reason=printable_text(reason, 200),
            sent_bytes=self.sent.total_bytes,
            duration_ms=since_ms(self._start),
            **more,
        )


class RecordedStream:
    """One raw connection to a stand-in, and what the stand-in has of it."""

    def __init__(self, site: Site, peer: Peer, pipe: Pipe, stand_in: str) -> None:
        self._site, self._peer, self._pipe, self._stand_in = site, peer, pipe, stand_in
        self._record = StreamRecord(peer, stand_in, site.bounds.kept_stream_bytes)
        self._idle: asyncio.Timeout | None = None

    async def run(self, app: StreamApp) -> None:
        """Run `app` until a bound; closes the pipe."""
        bounds = self._site.bounds
        reason = ""
        try:
            await self._site.record(partial(self._record.item, "opened"))
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
            if isinstance(first, _OverBoundError):
                reason = str(first)
            elif isinstance(first, TimeoutError):
                reason = "idle for too long"
            elif isinstance(first, OSError):
                reason = "cut"
        finally:
            self._site.guard.end(self._stand_in, self._peer.connection_fields())
            self._site.post(partial(self._record.closed, reason))
            await self._pipe.close()

    async def receive(self) -> bytes:
        """See `Stream`."""
        data = await self._pipe.receive()
        self._count(self._record.received, data)
        fields = self._peer.connection_fields()
        if data and await self._site.blocks(
            self._stand_in, Channel.STREAM, [("data", data)], fields
        ):
            raise _OverBoundError("blocked by the guard")
        return data

    async def send(self, data: bytes) -> None:
        """See `Stream`."""
        self._count(self._record.sent, data)
        await self._pipe.send(data)

    def _count(self, capture: Capture, data: bytes) -> None:
        capture.feed(data)
        both = self._record.received.total_bytes + self._record.sent.total_bytes
        if both > self._site.bounds.stream_bytes:
            raise _OverBoundError("more bytes than a stream may have")
        postpone(self._idle, self._site.bounds.idle_timeout_s)


async def sink(site: Site, sock: socket.socket, peer: Peer) -> None:
    """Record an unanswered connection's first bytes; send nothing."""
    start, pipe = time.monotonic(), TcpPipe(sock)
    received = Capture(max_kept_bytes=site.bounds.kept_stream_bytes)
    reason = "sink"
    try:
        async with asyncio.timeout(site.bounds.sink_wait_s):
            while received.total_bytes < site.bounds.kept_stream_bytes and (
                data := await pipe.receive()
            ):
                received.feed(data)
    except asyncio.CancelledError:
        reason = f"sink; {RANGE_ENDED}"
        raise
    except (TimeoutError, OSError):
        pass
    finally:
        fields = stream_data(peer, "", "allowed", reason)
        fields |= {"bytes": received.total_bytes, "duration_ms": since_ms(start)}
        # Posted, as a cancelled task can't wait for the record.
        told = site.reporter.post(Item(Kind.NETWORK_STREAM, fields, received.bodies("received")))
    await told
    await pipe.close()


def stream_data(peer: Peer, stand_in: str, verdict: str, reason: str) -> dict[str, JsonValue]:
    """Fields of every `network.stream`."""
    return {
        **peer.place_fields(),
        "stand_in": stand_in,
        "verdict": verdict,
        "reason": printable_text(reason, 200),
        "bytes": 0,
    }


class _OverBoundError(Exception):
    """A bound of a stream."""


# A half that its client doesn't join: the client has gone before its connection was there.
JOIN_TIMEOUT_S: Final = 10.0
# Addresses and ports of client and target.
_Key: TypeAlias = tuple[str, int, str, int]


class Proxy:
    """Joins the halves of all connections between cells."""

    def __init__(self, site: Site, dialled: socket.socket) -> None:
        """`dialled`: brings the halves to the targets."""
        self._site, self._from_supervisor = site, dialled
        self._halves: dict[_Key, tuple[socket.socket, asyncio.TimerHandle]] = {}
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

    def _drop(self, key: _Key) -> None:
        if (found := self._halves.pop(key, None)) is not None:
            reset(found[0])
            found[1].cancel()

    async def serve(self, sock: socket.socket, peer: Peer) -> None:
        """One connection, from its accepting to its end."""
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


class _Direction:
    """One direction's bytes, and the room for pieces of them on record."""

    def __init__(self, name: str, capture: Capture, room: int) -> None:
        self.name, self.capture, self.room = name, capture, room
        self.is_beyond = False
        """A piece was not recorded whole: an event says so, and no further piece has one."""
        self.not_kept_bytes = 0
        """Of the pieces behind that one."""


class _Relay:
    """One connection between two cells; `half`: to the target."""

    def __init__(self, site: Site, peer: Peer, target: str, client: TcpPipe, half: TcpPipe) -> None:
        self._site, self._client, self._half = site, client, half
        # The pieces hold the bytes: the last event counts them, with their digest.
        self._record = StreamRecord(peer, target, 0, between_cells=True)
        room = site.bounds.kept_between_bytes
        self._received = _Direction("received", self._record.received, room)
        self._sent = _Direction("sent", self._record.sent, room)
        self._is_opened = False

    async def run(self) -> None:
        """Relay until both sides have ended, or one is reset."""
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(self._client, self._half, self._received))
                group.create_task(self._pump(self._half, self._client, self._sent))
        except asyncio.CancelledError:
            reason = RANGE_ENDED
            raise
        except BaseExceptionGroup as group_error:
            if group_error.split(OSError)[1] is not None:
                raise
            reason = "cut"
            reset(self._half.sock)
        finally:
            if self._is_opened:
                not_kept = {
                    f"{way.name}_not_kept_bytes": way.not_kept_bytes
                    for way in (self._received, self._sent)
                }
                self._site.post(partial(self._record.closed, reason, **not_kept))
            if reason == "cut":
                reset(self._client.sock)

    async def _pump(self, source: TcpPipe, to: TcpPipe, way: _Direction) -> None:
        while data := await source.receive():
            # At once: when the range ends, no byte is between a socket and an event
            if items := self._items_of(way, data):
                await self._site.record(*items)
            await to.send(data)
        with contextlib.suppress(OSError):
            to.sock.shutdown(socket.SHUT_WR)

    def _items_of(self, way: _Direction, data: bytes) -> list[Item]:
        """Return what is to be on record before these bytes go on."""
        items: list[Item] = []
        way.capture.feed(data)
        if not self._is_opened:
            self._is_opened = True
            items.append(self._record.item("opened", bytes=0, direction=way.name))
        if way.is_beyond:
            way.not_kept_bytes += len(data)
            return items
        body = body_of(way.name, data, way.room)
        way.room -= len(body.content)
        way.is_beyond = len(body.content) < len(data)
        items.append(self._record.item("data", (body,), bytes=len(data), direction=way.name))
        return items

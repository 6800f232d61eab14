"""Connections between cells: each byte is on record before it goes on.

The supervisor has dialled the target cell by the time that a cell's connection is accepted, and
hands over that half. The bytes are recorded piece by piece, whatever they say, as far as
`kept_between_bytes` of each direction go; what follows is counted and in the digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import Final, TypeAlias

from belljar.capture import Capture, body_of
from belljar.network import ipc
from belljar.network.gateway.pipe import TcpPipe, reset
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site
from belljar.network.gateway.stream import StreamRecord
from belljar.network.ipc import Item

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
        """What is to be on record before these bytes go on."""
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

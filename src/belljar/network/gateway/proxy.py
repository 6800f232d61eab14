"""Connections between cells: each byte is on record before it goes on.

The supervisor has dialled the target cell by the time that a cell's connection is accepted, and
hands over that half. HTTP is recorded by requests and answers. All else, and messages that are not
complete yet, are recorded piece by piece, as far as `kept_stream_bytes` of each direction go; what
follows is counted and in the digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import Final, TypeAlias

import h11

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network import ipc
from belljar.network.decide import split_target
from belljar.network.gateway.observer import (
    NotHttpError,
    Observer,
    PassingExchange,
)
from belljar.network.gateway.pipe import TcpPipe, reset
from belljar.network.gateway.reporter import (
    MAX_RECORDED_URL_CHARS,
    die_without_memory,
    head_of,
    printable_text,
)
from belljar.network.gateway.site import RANGE_ENDED, Peer, Site, since_ms
from belljar.network.gateway.stream import stream_data
from belljar.network.ipc import Item

# A half that its client doesn't join: the client has gone before its connection was there.
JOIN_TIMEOUT_S: Final = 10.0
_REASON: Final = "a target cell's port"
_Key: TypeAlias = tuple[str, int, str, int]
"""Addresses and ports of client and target."""


class Proxy:
    """Joins the halves of all connections between cells."""

    def __init__(self, site: Site, dialled: socket.socket) -> None:
        """`dialled`: brings the halves to the targets."""
        self._site, self._from_supervisor = site, dialled
        self._halves: dict[_Key, tuple[socket.socket, asyncio.TimerHandle]] = {}
        self._joined = 0
        self._kept: Counter[str] = Counter()  # Bytes of unrecorded messages, by client.
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
        key = (*sock.getpeername(), peer.address, peer.port)
        self._take_halves()  # the connection may have been accepted first
        half, timer = self._halves.pop(key, (None, None))
        if half is None or timer is None:
            peer.account.end_for("no half of it is there")
            reset(sock)
            return
        timer.cancel()
        self._joined += 1
        try:
            target = self._targets.get(peer.address, "")
            await _Relay(self._site, peer, target, self._kept, (sock, half)).run()
        finally:
            self._joined -= 1
            half.close()


class _Direction:
    """One direction's bytes outside of HTTP, and the room for pieces of them on record."""

    def __init__(self, name: str, kept_bytes: int) -> None:
        self.name, self.kept_bytes = name, kept_bytes
        self.raw = Capture(max_kept_bytes=kept_bytes)
        self.room = kept_bytes


class _Relay:
    """One connection between two cells."""

    def __init__(
        self,
        site: Site,
        peer: Peer,
        target: str,
        kept: Counter[str],
        halves: tuple[socket.socket, socket.socket],
    ) -> None:
        """`kept`: bytes of unrecorded messages by client. `halves`: the client's, the target's."""
        self._site, self._peer, self._target, self._kept = site, peer, target, kept
        self._kept_bytes = 0
        client, half = halves
        self._client, self._half = TcpPipe(client, peer.account), TcpPipe(half)
        self._start = time.monotonic()
        self._observer: Observer | None = Observer(site.bounds.kept_body_bytes)
        room = site.bounds.kept_stream_bytes
        self._received, self._sent = _Direction("received", room), _Direction("sent", room)
        self._is_opened = False
        patterns = (name.pattern for name in site.layout.names if name.stand_in == target)
        name = next((pattern for pattern in patterns if "*" not in pattern), peer.address)
        self._origin = f"http://{name}" + (f":{peer.port}" if peer.port != 80 else "")

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
            try:
                self._post_last_items(reason)
            except MemoryError:
                die_without_memory()
            if reason == "cut":
                self._peer.account.end_for(reason)
                reset(self._client.sock)

    async def _pump(self, source: TcpPipe, to: TcpPipe, way: _Direction) -> None:
        while True:
            data = await source.receive()
            # At once: when the range ends, no byte is between a socket and an event
            items = self._items_of(way, data)
            if items:
                await self._site.record(*items)
            if not data:
                break
            await to.send(data)
        with contextlib.suppress(OSError):
            to.sock.shutdown(socket.SHUT_WR)

    def _items_of(self, way: _Direction, data: bytes) -> list[Item]:
        """What is to be on record before these bytes go on."""
        items: list[Item] = []
        if self._observer is None:
            way.raw.feed(data)
        else:
            try:
                is_whole = self._add_http_items(items, self._observer, way, data)
                self._charge(self._observer.held_bytes)
                if is_whole:
                    way.room = way.kept_bytes
                    return items
            except NotHttpError:
                return items + self._leave_http(self._observer)
        return items + self._piece_items(way, data)

    def _charge(self, kept_bytes: int) -> None:
        """Take memory. Raises `NotHttpError` beyond the client's share of half of it."""
        change, self._kept_bytes = kept_bytes - self._kept_bytes, kept_bytes
        self._site.bodies_bytes += change
        self._kept[self._peer.cell] += change
        share = self._site.bounds.bodies_bytes // (2 * len(self._site.layout.cells))
        if change > 0 and self._kept[self._peer.cell] > share:
            self._site.hit("bodies_bytes")
            raise NotHttpError

    def _piece_items(self, way: _Direction, data: bytes) -> list[Item]:
        items: list[Item] = []
        if self._observer is None and data and not self._is_opened:
            self._is_opened = True
            items.append(self._stream_item("opened", way, 0))
        if piece := data[: way.room]:
            way.room -= len(piece)
            body = body_of(way.name, piece, len(piece))
            items.append(self._stream_item("data", way, len(data), (body,)))
        return items

    def _add_http_items(
        self, items: list[Item], observer: Observer, way: _Direction, data: bytes
    ) -> bool:
        """Add events of messages that are complete now; whether they hold all these bytes.

        Raises `NotHttpError`; what was added until then is to be recorded.
        """
        is_whole = partial(observer.is_whole, sent=way is self._sent)
        if way is self._received:
            done = observer.feed_request(data, time.monotonic()) if data else []
            items += [self._request_item(each) for each in done if each.recorded_bytes is None]
            return is_whole() and 0 < len(done) == len(items)
        # A request that is answered before its end is on record by then
        first = [*observer.unanswered][: 1 if data else 0]
        items += [self._request_item(each) for each in first if each.recorded_bytes is None]
        done = observer.feed_answer(data)
        items += [self._answer_item(each) for each in done]
        return is_whole() and bool(done)

    def _leave_http(self, observer: Observer) -> list[Item]:
        """What HTTP there was; bytes of no message are a stream's, whatever pieces had them."""
        self._observer = None
        self._charge(0)
        items = []
        for exchange in observer.unanswered:
            if exchange.recorded_bytes is None:
                items.append(self._request_item(exchange))
            items.append(self._answer_item(exchange))
        for way in (self._received, self._sent):
            rest = observer.rest(sent=way is self._sent)
            way.raw.feed(rest)
            way.room = way.kept_bytes
            items += self._piece_items(way, rest)
        return items

    def _post_last_items(self, reason: str) -> None:
        items = [] if self._observer is None else self._leave_http(self._observer)
        if self._received.raw.total_bytes or self._sent.raw.total_bytes:
            bodies = self._received.raw.bodies("received") + self._sent.raw.bodies("sent")
            data = {
                **self._stream_data("closed", reason),
                "bytes": self._received.raw.total_bytes,
                "sent_bytes": self._sent.raw.total_bytes,
                "duration_ms": since_ms(self._start),
            }
            items.append(Item(Kind.NETWORK_STREAM, data, bodies))
        for item in items:
            self._site.reporter.post(item)

    def _stream_data(self, phase: str, reason: str = "") -> dict[str, JsonValue]:
        common = stream_data(self._peer, self._target, "allowed", reason)
        return {**common, "phase": phase, "between_cells": True}

    def _stream_item(
        self, phase: str, way: _Direction, size: int, bodies: tuple[Body, ...] = ()
    ) -> Item:
        data = {**self._stream_data(phase), "bytes": size, "direction": way.name}
        return Item(Kind.NETWORK_STREAM, data, bodies)

    def _common(self, exchange: PassingExchange) -> dict[str, JsonValue]:
        exchange.number = exchange.number or next(self._site.numbers)
        return {
            **self._peer.connection_fields(),
            "exchange": exchange.number,
            "stand_in": self._target,
            "between_cells": True,
        }

    def _request_item(self, exchange: PassingExchange) -> Item:
        head, request = exchange.request.head, exchange.request
        if not isinstance(head, h11.Request):
            raise TypeError("an exchange without a request")
        exchange.recorded_bytes = request.body.total_bytes
        # A client may write any Host: it stays in the headers
        _, path, query = split_target(head.target)
        path = path.removeprefix(b"/") + (b"?" + query if query else b"")
        url = printable_text(self._origin.encode() + b"/" + path, MAX_RECORDED_URL_CHARS)
        method, version = printable_text(head.method, 64), head.http_version.decode("ascii")
        line = f"{method} {url[len(self._origin) :]} HTTP/{version}\r\n"
        kept_bytes = self._site.bounds.kept_body_bytes
        headers, bodies = head_of(line, request.fields, request.raw_head, kept_bytes)
        data: dict[str, JsonValue] = {
            **self._common(exchange),
            "method": method,
            "url": url,
            "verdict": "allowed",
            "reason": _REASON,
            "address": self._peer.address,
            "port": self._peer.port,
            "bytes": request.body.total_bytes,
            "complete": request.is_complete,
            "version": version,
            **headers,
        }
        bodies += request.body.bodies("request")
        if request.is_complete:
            request.release()
        return Item(Kind.NETWORK_HTTP, data, bodies)

    def _answer_item(self, exchange: PassingExchange) -> Item:
        request, answer = exchange.request, exchange.answer
        status, line = 0, ""
        if isinstance(answer.head, h11.Response | h11.InformationalResponse):
            status = answer.head.status_code
            # The usual first line is not in the event
            line = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"
        kept_bytes = self._site.bounds.kept_body_bytes
        headers, bodies = head_of(line, answer.fields, answer.raw_head, kept_bytes)
        data: dict[str, JsonValue] = {
            **self._common(exchange),
            "status": status,
            "bytes": answer.body.total_bytes,
            "request_bytes": request.body.total_bytes,
            "duration_ms": since_ms(exchange.start_s),
            **headers,
            **({} if answer.is_complete else {"reason": "it has no end"}),
        }
        went_on = request.body.total_bytes > (exchange.recorded_bytes or 0)
        bodies += answer.body.bodies("response") + (request.body.bodies("request") * went_on)
        return Item(Kind.NETWORK_HTTP_ANSWERED, data, bodies)


_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}

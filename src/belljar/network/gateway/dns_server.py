"""DNS over UDP and TCP: each query is on record before its answer leaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import Final, TypeAlias

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network.gateway.dns import MAX_QUERY_BYTES, DnsAnswer, answer
from belljar.network.gateway.pipe import LINGER_BYTES, LINGER_S, TcpPipe, reset
from belljar.network.gateway.site import Site
from belljar.network.ipc import Item
from belljar.signals.values import Channel

BATCH_S: Final = 0.02
MAX_BATCH_NAMES: Final = 32
MAX_BATCH_NAME_CHARS: Final = 120
DATAGRAMS_A_TURN: Final = 64
MAX_DATAGRAM_BYTES: Final = 1 << 16
# linux/in.h; not in Python's socket.
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=I4s4s")


_Key: TypeAlias = tuple[str, str]  # Cell and transport.


class _Batch:
    """Queries recorded together, length-prefixed as over TCP."""

    def __init__(self, max_kept_bytes: int) -> None:
        self.recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.count = self.longest_label = 0
        self.entropy = 0.0
        self.names: list[str] = []
        self.queries = Capture(max_kept_bytes=max_kept_bytes)

    def add(self, reply: DnsAnswer, query: bytes) -> None:
        self.count += 1
        self.longest_label = max(self.longest_label, reply.longest_label)
        self.entropy = max(self.entropy, reply.entropy)
        if len(self.names) < MAX_BATCH_NAMES:
            self.names.append(reply.name[:MAX_BATCH_NAME_CHARS])
        self.queries.feed(struct.pack("!H", len(query)) + query)


class QueryRecord:
    """Records queries; above a rate, many in one event."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._second = 0
        self._used = 0
        self._batches: dict[_Key, _Batch] = {}

    async def record(self, cell: str, reply: DnsAnswer, transport: str, query: bytes) -> None:
        """Return when the query is on record."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        if self._used <= self._site.bounds.dns_events_per_s:
            bodies = () if reply.whole else (body_of("query", query, MAX_QUERY_BYTES),)
            await self._site.record(lambda: dns_item(cell, reply, transport, bodies))
        else:
            await asyncio.shield(self.count(cell, reply, transport, query))

    def count(
        self, cell: str, reply: DnsAnswer, transport: str, query: bytes
    ) -> asyncio.Future[None]:
        """Record it with others; done when on record."""
        key = (cell, transport)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(self._site.bounds.kept_body_bytes)
            asyncio.get_running_loop().call_later(BATCH_S, self._flush_if_room, key)
        batch.add(reply, query)
        return batch.recorded

    def flush_all(self) -> None:
        """Record counted queries now."""
        for key in list(self._batches):
            self._flush(key)

    def _flush_if_room(self, key: _Key) -> None:
        """Before that only a batch's count grows."""
        if key in self._batches and self._site.reporter.is_full:
            asyncio.get_running_loop().call_later(BATCH_S, self._flush_if_room, key)
        else:
            self._flush(key)

    def _flush(self, key: _Key) -> None:
        batch = self._batches.pop(key, None)
        if batch is None:
            return
        data: dict[str, JsonValue] = {
            "cell": key[0],
            "transport": key[1],
            "name": "",
            "type": "",
            "answer": "TOO MANY",
            "count": batch.count,
            "longest_label": batch.longest_label,
            "entropy": batch.entropy,
            "names": batch.names,
        }
        posted = self._site.post(
            lambda: Item(Kind.NETWORK_DNS, data, batch.queries.bodies("queries"))
        )
        posted.add_done_callback(lambda _: batch.recorded.set_result(None))


def dns_item(cell: str, reply: DnsAnswer, transport: str, bodies: tuple[Body, ...]) -> Item:
    """The event of one message."""
    data: dict[str, JsonValue] = {
        "cell": cell,
        "name": reply.name,
        "type": reply.type,
        "answer": reply.answer,
        "longest_label": reply.longest_label,
        "entropy": reply.entropy,
        "transport": transport,
        "header": reply.header,
        "edns": reply.edns,
    }
    return Item(Kind.NETWORK_DNS, data, bodies)


class DnsServer:
    """Answers UDP and TCP of the resolver address only."""

    def __init__(self, site: Site, group: asyncio.TaskGroup) -> None:
        self._site, self._group = site, group
        self.record = QueryRecord(site)
        self._pending = 0
        self._datagram = memoryview(bytearray(MAX_DATAGRAM_BYTES))

    def listen(self, sock: socket.socket) -> None:
        """Answer datagrams."""
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)

    def _readable(self, sock: socket.socket) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                length, info, _, peer = sock.recvmsg_into([self._datagram], 64)
            except OSError:
                return
            dialled = next(
                (
                    socket.inet_ntoa(_PKTINFO.unpack_from(data)[2])
                    for level, kind, data in info
                    if level == socket.IPPROTO_IP
                    and kind == _IP_PKTINFO
                    and len(data) >= _PKTINFO.size
                ),
                "",
            )
            if dialled != self._site.layout.resolver:
                continue
            query = bytes(self._datagram[:length])
            if self._pending >= self._site.bounds.dns_pending:
                self._drop(query, peer)
                continue
            self._group.create_task(self._reply(sock, query, dialled, peer))
            self._pending += 1

    def _drop(self, query: bytes, peer: tuple[str, int]) -> None:
        self._site.hit("dns_pending")
        cell = self._site.cell(peer[0])
        self.record.count(cell, answer(query, self._site.known_to(cell)), "udp", query)

    async def _reply(
        self, sock: socket.socket, query: bytes, dialled: str, peer: tuple[str, int]
    ) -> None:
        try:
            cell = self._site.cell(peer[0])
            reply = answer(query, self._site.known_to(cell))
            await self.record.record(cell, reply, "udp", query)
            if reply.wire is not None and not await self._is_blocked(cell, reply):
                source = (
                    socket.IPPROTO_IP,
                    _IP_PKTINFO,
                    _PKTINFO.pack(0, socket.inet_aton(dialled), bytes(4)),
                )
                sock.sendmsg([reply.wire], [source], 0, peer)
        except OSError:
            # A datagram may be lost at any time: the client asks again.
            pass
        finally:
            self._pending -= 1

    async def _is_blocked(self, cell: str, reply: DnsAnswer) -> bool:
        """Whether the guard forbids an answer to this name."""
        parts = [("label", reply.name.encode())]
        return await self._site.blocks("", Channel.DNS, parts, {"cell": cell})

    async def serve(self, pipe: TcpPipe, cell: str) -> None:
        """Serve TCP (RFC 7766); fragments are recorded too."""
        begun = bytearray()
        rest = Capture(max_kept_bytes=self._site.bounds.kept_body_bytes)
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await self._answer_each(pipe, cell, begun)
            rest.feed(bytes(begun))
            begun.clear()
            await _read_out(pipe, rest)
        finally:
            rest.feed(bytes(begun))
            if rest.total_bytes:
                fragment = DnsAnswer(wire=None, answer="NOT A QUERY")
                self._site.post(lambda: dns_item(cell, fragment, "tcp", rest.bodies("query")))
            await pipe.close()

    async def _answer_each(self, pipe: TcpPipe, cell: str, begun: bytearray) -> None:
        bounds = self._site.bounds
        for _ in range(bounds.dns_tcp_queries):
            async with asyncio.timeout(bounds.dns_tcp_idle_s):
                if not await _fill(begun, pipe, 2):
                    return
                length = int.from_bytes(begun, "big")
                if not 0 < length <= MAX_QUERY_BYTES or not await _fill(begun, pipe, 2 + length):
                    return
            query = bytes(begun[2:])
            begun.clear()
            reply = answer(query, self._site.known_to(cell))
            await self.record.record(cell, reply, "tcp", query)
            if reply.wire is None or await self._is_blocked(cell, reply):
                return
            async with asyncio.timeout(bounds.dns_tcp_idle_s):
                await pipe.send(struct.pack("!H", len(reply.wire)) + reply.wire)


async def _read_out(pipe: TcpPipe, rest: Capture) -> None:
    """Half-close, read on for a second or 256 KiB, reset."""
    left = LINGER_BYTES
    with contextlib.suppress(OSError, TimeoutError):
        pipe.sock.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await pipe.receive(left)):
                left -= len(data)
                rest.feed(data)
            if left > 0:
                return
    reset(pipe.sock)


async def _fill(begun: bytearray, pipe: TcpPipe, count: int) -> bool:
    """Read up to `count` bytes; False at the end."""
    while len(begun) < count and (data := await pipe.receive(count - len(begun))):
        begun += data
    return len(begun) >= count

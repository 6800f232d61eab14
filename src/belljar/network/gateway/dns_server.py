"""DNS over UDP and TCP on the range's resolver address: each query is on record before its answer leaves."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import kept_body
from belljar.network.gateway.dns import MAX_QUERY_BYTES, Answer, answer
from belljar.network.gateway.pipe import TcpPipe
from belljar.network.gateway.reporter import Item
from belljar.network.gateway.site import Site

BATCH_S: Final = 0.02
MAX_BATCH_NAMES: Final = 32
MAX_BATCH_NAME_CHARS: Final = 120
DATAGRAMS_A_TURN: Final = 64
# linux/in.h; not in Python's socket.
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=I4s4s")


@dataclass(slots=True)
class _Batch:
    recorded: asyncio.Future[None]
    count: int = 0
    longest_label: int = 0
    entropy: float = 0.0
    names: list[str] = field(default_factory=list)


class QueryRecord:
    """Puts queries on record: each by itself up to a rate, those beyond it together, fifty times a second, counted. Either way the caller waits for the record."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._second = 0
        self._used = 0
        self._batches: dict[str, _Batch] = {}

    async def record(self, cell: str, said: Answer, transport: str, query: bytes) -> None:
        """Returns when the query is on record."""
        if self._has_token():
            await self._site.reporter.record(_item(cell, said, transport, query))
        else:
            await self._join(cell, said)

    def _has_token(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        return self._used <= self._site.bounds.dns_events_per_s

    async def _join(self, cell: str, said: Answer) -> None:
        loop = asyncio.get_running_loop()
        batch = self._batches.get(cell)
        if batch is None:
            batch = self._batches[cell] = _Batch(loop.create_future())
            loop.call_later(BATCH_S, self._flush, cell)
        batch.count += 1
        batch.longest_label = max(batch.longest_label, said.longest_label)
        batch.entropy = max(batch.entropy, said.entropy)
        if len(batch.names) < MAX_BATCH_NAMES:
            batch.names.append(said.name[:MAX_BATCH_NAME_CHARS])
        await asyncio.shield(batch.recorded)

    def flush_all(self) -> None:
        """Those that are counted together go on record now."""
        for cell in list(self._batches):
            self._flush(cell)

    def _flush(self, cell: str) -> None:
        batch = self._batches.pop(cell, None)
        if batch is None:
            return
        data: dict[str, JsonValue] = {
            "cell": cell,
            "name": "",
            "type": "",
            "answer": "TOO MANY",
            "count": batch.count,
            "longest_label": batch.longest_label,
            "entropy": batch.entropy,
            "names": batch.names,
        }
        try:
            posted = self._site.reporter.post(Item(Kind.NETWORK_DNS, data))
        except MemoryError as error:
            batch.recorded.set_exception(error)  # each that waits is cut, and counted
        else:
            posted.add_done_callback(lambda _: batch.recorded.set_result(None))


def _item(cell: str, said: Answer, transport: str, query: bytes) -> Item:
    data: dict[str, JsonValue] = {
        "cell": cell,
        "name": said.name,
        "type": said.type,
        "answer": said.answer,
        "longest_label": said.longest_label,
        "entropy": said.entropy,
        "transport": transport,
    }
    return Item(Kind.NETWORK_DNS, data, () if said.type else (kept_body("query", query, 512),))


class DnsServer:
    """Both transports of one resolver address; a datagram to another of the range's addresses is not answered."""

    def __init__(self, site: Site, group: asyncio.TaskGroup) -> None:
        self._site, self._group = site, group
        self._record = QueryRecord(site)
        self._pending = 0

    def listen(self, sock: socket.socket) -> None:
        """Answers datagrams from now on."""
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)

    def flush(self) -> None:
        """Those of the queries that are counted together go on record now."""
        self._record.flush_all()

    def _readable(self, sock: socket.socket) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                query, info, _, peer = sock.recvmsg(MAX_QUERY_BYTES + 1, 64)
            except OSError:
                return
            dialled = _dialled(info)
            if self._pending >= self._site.bounds.dns_pending:
                self._site.hit("dns_pending")
            elif dialled == self._site.layout.resolver:
                self._begin(sock, query, dialled, peer)

    def _begin(self, sock: socket.socket, query: bytes, dialled: str, peer: tuple[str, int]) -> None:
        reply = self._reply(sock, query, dialled, peer)
        try:
            self._group.create_task(reply)
        except MemoryError:
            reply.close()
            self._site.starve()
        else:
            self._pending += 1

    async def _reply(self, sock: socket.socket, query: bytes, dialled: str, peer: tuple[str, int]) -> None:
        try:
            cell = self._site.cell(peer[0])
            said = answer(query, self._site.known_to(cell), udp=True)
            await self._record.record(cell, said, "udp", query)
            if said.wire is not None:
                source = (socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO.pack(0, socket.inet_aton(dialled), bytes(4)))
                sock.sendmsg([said.wire], [source], 0, peer)
        except OSError:
            # A datagram may be lost at any time: the client asks again.
            pass
        except MemoryError:
            self._site.starve()
        finally:
            self._pending -= 1

    async def serve(self, pipe: TcpPipe, cell: str) -> None:
        """One TCP connection (RFC 7766): length, query; length, answer; in order."""
        bounds = self._site.bounds
        begun = bytearray()
        try:
            for _ in range(bounds.dns_tcp_queries):
                async with asyncio.timeout(bounds.dns_tcp_idle_s):
                    query = await _framed(pipe, begun)
                begun.clear()
                if query is None:
                    break
                said = answer(query, self._site.known_to(cell), udp=False)
                await self._record.record(cell, said, "tcp", query)
                if said.wire is None:
                    break
                async with asyncio.timeout(bounds.dns_tcp_idle_s):
                    await pipe.send(struct.pack("!H", len(said.wire)) + said.wire)
        except (OSError, TimeoutError):
            pass
        finally:
            if begun:
                self._site.tell(lambda: _item(cell, Answer(wire=None, answer="NOT A QUERY"), "tcp", bytes(begun)))
            await pipe.close()


async def _framed(pipe: TcpPipe, begun: bytearray) -> bytes | None:
    """The next message; None at the end, and for one that is longer than a query can be. `begun` is what of it has come."""
    if not await _fill(begun, pipe, 2):
        return None
    length = int.from_bytes(begun, "big")
    if not 0 < length <= MAX_QUERY_BYTES:
        return None
    await _fill(begun, pipe, 2 + length)
    return bytes(begun[2:])


async def _fill(begun: bytearray, pipe: TcpPipe, count: int) -> bool:
    """Until there are so many bytes; False when the end comes before."""
    while len(begun) < count and (data := await pipe.receive(count - len(begun))):
        begun += data
    return len(begun) >= count


def _dialled(info: list[tuple[int, int, bytes]]) -> str:
    for level, kind, data in info:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO and len(data) >= _PKTINFO.size:
            return socket.inet_ntoa(_PKTINFO.unpack_from(data)[2])
    return ""

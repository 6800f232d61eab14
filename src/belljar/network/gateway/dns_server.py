"""DNS over UDP and TCP: each query is on record before its answer leaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network.gateway.dns import MAX_QUERY_BYTES, DnsAnswer, answer
from belljar.network.gateway.pipe import LINGER_BYTES, LINGER_S, TcpPipe, reset
from belljar.network.gateway.site import Site
from belljar.network.ipc import Item
from belljar.signals.values import Channel

DATAGRAMS_A_TURN: Final = 64
MAX_DATAGRAM_BYTES: Final = 1 << 16
# linux/in.h; not in Python's socket.
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=I4s4s")


def dns_item(cell: str, reply: DnsAnswer, transport: str, bodies: tuple[Body, ...]) -> Item:
    """The event of one message. `bodies`: what the answer's fields don't hold."""
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
            self._group.create_task(self._reply(sock, query, dialled, peer))
            self._pending += 1
            if self._pending == self._site.bounds.dns_pending:  # the rest stays in the socket
                self._site.hit("dns_pending")
                asyncio.get_running_loop().remove_reader(sock.fileno())
                return

    async def _reply(
        self, sock: socket.socket, query: bytes, dialled: str, peer: tuple[str, int]
    ) -> None:
        try:
            cell = self._site.cell(peer[0])
            reply = answer(query, self._site.known_to(cell))
            await self._record(cell, reply, "udp", query)
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
            if self._pending == self._site.bounds.dns_pending:
                asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)
            self._pending -= 1

    async def _record(self, cell: str, reply: DnsAnswer, transport: str, query: bytes) -> None:
        """Return when the query is on record."""
        bodies = () if reply.whole else (body_of("query", query, MAX_QUERY_BYTES),)
        await self._site.record(lambda: dns_item(cell, reply, transport, bodies))

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
            await self._record(cell, reply, "tcp", query)
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

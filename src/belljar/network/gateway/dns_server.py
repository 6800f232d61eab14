"""DNS: each query is on record before its answer leaves.

Over UDP alone: no answer is too long for it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from typing import Final

from belljar.capture import body_of
from belljar.events import Body, JsonValue, Kind
from belljar.network.gateway.dns import MAX_QUERY_BYTES, DnsAnswer, answer
from belljar.network.gateway.site import Site
from belljar.network.ipc import Item
from belljar.signals.values import Channel

DATAGRAMS_A_TURN: Final = 64  # A flood of queries leaves connections their turn.
MAX_DATAGRAM_BYTES: Final = 1 << 16  # No UDP datagram is longer
# linux/in.h; not in Python's socket.
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=I4s4s")  # in_pktinfo: device, local address, the header's


def dns_item(cell: str, reply: DnsAnswer, bodies: tuple[Body, ...]) -> Item:
    """The event of one message. `bodies`: what the answer's fields don't hold."""
    data: dict[str, JsonValue] = {
        "cell": cell,
        "name": reply.name,
        "type": reply.type,
        "answer": reply.answer,
        "longest_label": reply.longest_label,
        "entropy": reply.entropy,
        "transport": "udp",
        "header": reply.header,
        "edns": reply.edns,
    }
    return Item(Kind.NETWORK_DNS, data, bodies)


class DnsServer:
    """Answers at the resolver's address only."""

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
            bodies = () if reply.whole else (body_of("query", query, MAX_QUERY_BYTES),)
            await self._site.record(partial(dns_item, cell, reply, bodies))
            parts = [("label", reply.name.encode())]
            if not reply.whole:  # the name may be cut, and options are in no name
                parts.append(("query", query))
            is_blocked = await self._site.blocks("", Channel.DNS, parts, {"cell": cell})
            if reply.wire is not None and not is_blocked:
                source = (
                    socket.IPPROTO_IP,
                    _IP_PKTINFO,
                    # The local one is the answer's source (ip(7)).
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

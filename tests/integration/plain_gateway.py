"""The smallest gateway: answers every datagram and every connection with what it got, and puts it on record first. For tests of what is around a gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import NoReturn, cast

from belljar.events import Kind
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.reporter import READY, Item, Reporter
from belljar.network.gateway.bounds import Bounds


def serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Until it is killed."""
    asyncio.run(_serve(config, listeners, events))
    os._exit(1)


async def _serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> None:
    reporter = Reporter(events, Bounds())
    reporter.start()

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self.transport.sendto(b"echo " + data, addr)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        address, port = writer.get_extra_info("sockname")
        data = {
            "cell": "", "stand_in": "", "address": address, "port": port, "verdict": "allowed", "reason": "", "bytes": len(line),
        }  # fmt: skip
        await reporter.record(Item(Kind.NETWORK_STREAM, data))
        writer.write(b"echo %s:%d " % (address.encode(), port) + line)
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, sock=listeners.dns_udp)
    for listener in (listeners.dns_tcp, *listeners.tcp.values(), *((listeners.sink,) if listeners.sink else ())):
        await asyncio.start_server(answer, sock=listener)
    await reporter.record(Item(READY, {"certificate": "-----BEGIN CERTIFICATE-----"}))
    await asyncio.Event().wait()
